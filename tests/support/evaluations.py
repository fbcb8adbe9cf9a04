"""Evaluations by the command, the files that they leave, and two folders of such files that must be the same."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from support.scripts import Done, call_script

from unimoe.core.trec import Run, read_run
from unimoe.results import EvalResult, read_result, result_files, result_path, run_path

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
