"""Commands and scripts as people call them, and how what they write is read, compared and changed."""

from __future__ import annotations

import csv
import io
import json
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import unimoe
from unimoe.core.trec import Run
from unimoe.formats.runs import read_run
from unimoe.results import EvalResult, read_result, result_files, result_path, run_path

SCRIPTS = Path(__file__).parents[2] / "scripts"
MAIN = str(Path(unimoe.__file__).with_name("__main__.py"))


@dataclass(frozen=True)
class Done:
    """How a script ended."""

    returncode: int
    stdout: str
    stderr: str


def call_script(name: str, *arguments: str | Path, **environment: str) -> Done:
    """Run ``scripts/{name}`` with these arguments, as ``python scripts/{name} ...`` would."""
    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    with (
        patch.object(sys, "argv", [name, *map(str, arguments)]),
        patch.dict("os.environ", environment),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
    ):
        try:
            runpy.run_path(str(SCRIPTS / name), run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Done(code, stdout.getvalue(), stderr.getvalue())


def call_unimoe(*arguments: str | Path, **environment: str) -> Done:
    """Run a command as ``unimoe ...`` would."""
    return call_script(MAIN, *arguments, **environment)


def successful(done: Done) -> Done:
    """Return how a script ended, which must be well."""
    assert done.returncode == 0, done.stderr
    return done


def kill_script_when(moment: Callable[[], bool], name: str, *arguments: str | Path, **environment: str) -> None:
    """Run a script in a process of its own, and kill it with a signal it cannot catch once the moment comes."""
    command, quiet = [sys.executable, SCRIPTS / name, *arguments], subprocess.DEVNULL
    with patch.dict("os.environ", environment), subprocess.Popen(command, stdout=quiet, stderr=quiet) as process:
        deadline = time.monotonic() + 300
        while not moment():
            assert process.poll() is None, "the run ended before the moment came"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)


def assert_refused(done: Done, code: int, *words: str, silent: bool = True) -> None:
    """The last line on stderr holds all words, and there is no traceback; nor anything on stdout, if ``silent``."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.lower().startswith("error: ")
    for word in words:
        assert word in last
    assert not (silent and done.stdout)


Finished = tuple[Path, Done]
"""An output folder, and how the command ended that wrote it."""


def evaluate(data: Path, *options: str | Path, cache: str | Path = "cache") -> Done:
    return call_script("evaluate.py", *options, UNIMOE_DATA=str(data), UNIMOE_CACHE=str(data / cache))


def result_of(
    output_dir: Path, arm: str, dataset: str = "toy", task: str = "reranking", seed: int | None = None
) -> EvalResult:
    return read_result(result_path(output_dir, arm, seed, task, dataset))


def run_of(output_dir: Path, arm: str, dataset: str = "toy", task: str = "reranking") -> Run:
    return read_run(run_path(output_dir, arm, None, task, dataset))


_TIMES = {"s", "peak MB", "µs/query"}
"""Columns of tables that differ between two runs."""


def assert_same_files(here: Path, there: Path) -> None:
    """Two folders hold the same weights, runs, choices and tables, to the bit; times and memory may differ."""
    files, others = (
        {path.relative_to(folder) for path in folder.rglob("*.*") if path.is_file() and path.name[0] != "."}
        for folder in (here, there)
    )
    assert others == files
    for path in sorted(files):
        if path.suffix == ".safetensors":
            import torch  # here alone, for other helpers serve tests of the light install
            from safetensors.torch import load_file

            ours, theirs = (load_file(folder / path) for folder in (here, there))
            assert ours.keys() == theirs.keys(), path
            assert all(torch.equal(ours[name], theirs[name]) for name in ours), path
        elif path.suffix in (".trec", ".qrels"):
            assert (there / path).read_bytes() == (here / path).read_bytes(), path
        elif path.suffix == ".csv":
            assert _rows(there / path) == _rows(here / path), path
        elif path.parts[0] == "tuning" and len(path.parts) == 2:
            choices, chosen = (json.loads((folder / path).read_text()) for folder in (here, there))
            assert [one | {"seconds": 0} for one in choices] == [one | {"seconds": 0} for one in chosen], path
    for path in (*there.rglob("*.json*"), *there.rglob("*.md")):
        assert "/folders/" not in path.read_text(), f"{path} names a worker's folder"


def assert_same_results(here: Path, there: Path) -> None:
    """Two output folders hold the same results, with what a drill-down needs, runs, judgments and weights."""
    paths = result_files(here)
    assert [path.relative_to(here) for path in paths] == [path.relative_to(there) for path in result_files(there)]
    parts = {"aggregate", "per_query", "per_query_metrics", "identity", "truncated_queries"}
    for path in paths:
        own, other = read_result(path), read_result(there / path.relative_to(here))
        assert own.model_dump(include=parts) == other.model_dump(include=parts), path
        assert own.provenance.hashes == other.provenance.hashes, path
    for pattern in ("*.trec", "*.safetensors", "adapter_config.json", "*.qrels", "*.queries.json"):
        for path in sorted(here.rglob(pattern)):
            assert (there / path.relative_to(here)).read_bytes() == path.read_bytes(), path


def _rows(path: Path) -> list[dict[str, str]]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [{name: cell for name, cell in row.items() if name not in _TIMES} for row in csv.DictReader(lines)]


def read_plain(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_plain(path: Path, content: Any) -> None:
    """Write a JSON file in the place of another."""
    path.write_text(json.dumps(content), encoding="utf-8")
