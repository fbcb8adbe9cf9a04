"""The light install: judging works without torch and its kind, and every other command names the extra it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import unimoe

PYTHON = os.environ.get("UNIMOE_LIGHT_PYTHON", sys.executable)
"""By default this one, in which imports of the extras fail; in CI that of an environment with the wheel alone."""

WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

MISSING = {"torch", "transformers", "peft", "safetensors", "sentence_transformers", "mteb", "bm25s", "Stemmer",
           "rank_bm25", "huggingface_hub", "tokenizers", "torchjd", "accelerate", "ray", "s3fs"}

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
COMMAND = f"{WITHOUT}\nfrom unimoe.cli.main import main\nmain()\n"


def light(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, "-c", COMMAND, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Judgments of twelve queries, and three runs of each of two systems that find another share of the documents."""
    folder = tmp_path_factory.mktemp("runs")
    queries = [f"q{number}" for number in range(12)]
    lines = [f"{query}\td{place}\t1\n" for query in queries for place in range(3)]
    (folder / "q.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines), encoding="utf-8")
    for system, shift in (("a", 0), ("b", 1)):
        for seed in range(3):
            with (folder / f"{system}{seed}.trec").open("w", encoding="utf-8") as file:
                for number, query in enumerate(queries):
                    found = [(place + shift + number * (seed + 1) % 3) % 9 for place in range(9)]
                    file.writelines(f"{query} Q0 d{d} {rank} {9 - rank} {system}\n" for rank, d in enumerate(found))
    return folder


def test_judging_needs_no_extra(runs: Path) -> None:
    verdict = ["--specialist", "a0.trec", "a1.trec", "a2.trec", "--joint", "b0.trec", "b1.trec", "b2.trec"]
    for arguments, code in (
        (["evaluate-run", "a0.trec", "q.tsv"], 0),
        (["compare", *verdict, "--qrels", "q.tsv", "--output-dir", "out"], 0),
        (["compare", "--baseline", "a0.trec", "--systems", "b0.trec", "--qrels", "q.tsv"], 0),
        (["compare", "--example"], 0),
        (["analyze", "--output-dir", "out"], 0),
        (["analyze", "verdicts", "--output-dir", "out", "--json"], 0),
        (["status", "store"], 2),  # there is no such store
    ):
        done = light(*arguments, cwd=runs)
        assert done.returncode == code, done.stderr
        assert "not installed" not in done.stderr
    assert (runs / "out" / "analysis" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["doctor"], "models"),
        (["run"], "train"),
        (["evaluate", "--model", "cross-encoder:here", "--eval-tier", "fast"], "models"),
        (["retrieve", "--dataset", "scifact"], "models"),
        (["compare", "--baseline", "a0.trec", "--systems", "cross-encoder:here", "--dataset", "scifact"], "models"),
        (["train-head"], "studies"),
    ],
)
def test_other_commands_name_the_extra_they_need(runs: Path, arguments: list[str], extra: str) -> None:
    done = light(*arguments, cwd=runs)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert f"pip install 'unimoe[{extra}]'" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(("name", "extra"), [("evaluate_beir", "models"), ("run_experiment", "train")])
def test_python_names_the_extra_too(name: str, extra: str) -> None:
    asked = f"{WITHOUT}\nimport unimoe\nunimoe.score_run, unimoe.tir, unimoe.judge, unimoe.parity\nunimoe.{name}\n"
    done = subprocess.run([PYTHON, "-c", asked], capture_output=True, text=True, timeout=600, check=False)
    assert done.stderr.strip().splitlines()[-1].startswith(f"ModuleNotFoundError: unimoe.{name}: this needs ")
    assert f"unimoe[{extra}]" in done.stderr


def test_the_version_is_there() -> None:
    assert unimoe.__version__
