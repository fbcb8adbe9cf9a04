"""The light install: judging works without torch and its kind, and every other command names the extra it needs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = os.environ.get("UNIMOE_LIGHT_PYTHON", sys.executable)
"""By default this one, in which imports of the extras fail; in CI that of an environment with the wheel alone."""

WITHOUT = """
import importlib.util
import sys
from importlib.abc import MetaPathFinder

MISSING = {"torch", "transformers", "peft", "safetensors", "sentence_transformers", "mteb", "bm25s", "Stemmer",
           "rank_bm25", "huggingface_hub", "tokenizers", "torchjd", "accelerate", "ray", "s3fs"}

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name.partition(".")[0] in MISSING else found(name, *more)
sys.meta_path.insert(0, Missing())
"""
INSTALL = r"(uv sync --extra {0}|pip install (-e )?'\.\[{0}\]'( in a clone of unimoe)?)"
"""How an extra is installed, in a clone or elsewhere."""
RUNS = Path(__file__).parents[2] / "src" / "unimoe" / "data" / "example_runs"
BM25 = str(RUNS / "bm25.trec.gz")
COMMAND = f"{WITHOUT}\nfrom unimoe.cli.main import main\nmain()\n"


def light(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, "-c", COMMAND, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)


def test_judging_needs_no_extra(tmp_path: Path) -> None:
    joint, specialist = sorted(RUNS.glob("joint-*")), sorted(RUNS.glob("specialist-*"))
    qrels = RUNS / "qrels.gz"
    calls: list[tuple[list[str | Path], int]] = [
        (["evaluate-run", BM25, qrels], 0),
        (["compare", "--specialist", *specialist, "--joint", *joint, "--qrels", qrels, "--output-dir", "out"], 0),
        (["compare", "--baseline", BM25, "--systems", joint[0], "--qrels", qrels], 0),
        (["compare", "--example"], 0),
        (["analyze", "--output-dir", "out"], 0),
        (["analyze", "verdicts", "--output-dir", "out", "--json"], 12),  # undecided
        (["status", "store"], 2),  # there is no such store
        (["cache", "--json"], 0),
        (["import", "--table", "pairs.csv", "--output-dir", "pairs"], 0),
        (["compare", "--predictions", "kept", "--dataset", "Own=own.qrels"], 0),
    ]
    for name, scores in (("first", {"d": 1.0, "e": 2.0}), ("second", {"d": 2.0, "e": 1.0})):
        (tmp_path / "kept" / name).mkdir(parents=True)
        kept = {"mteb_model_meta": {"model_name": name}, "default": {"test": {"q": scores}}}
        (tmp_path / "kept" / name / "Own_predictions.json").write_text(json.dumps(kept), encoding="utf-8")
    (tmp_path / "own.qrels").write_text("q 0 d 1\n", encoding="utf-8")
    (tmp_path / "pairs.csv").write_text("query,document\nred,a red fish\n", encoding="utf-8")
    for arguments, code in calls:
        done = light(*arguments, cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert "not installed" not in done.stderr
    assert (tmp_path / "out" / "analysis" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["doctor"], "models"),
        (["run"], "train"),
        (["evaluate", "--model", "cross-encoder:here", "--eval-tier", "fast"], "models"),
        (["retrieve", "--dataset", "scifact"], "models"),
        (["compare", "--baseline", BM25, "--systems", "cross-encoder:here", "--dataset", "scifact"], "models"),
        (["train-head"], "studies"),
    ],
)
def test_other_commands_name_the_extra_they_need(tmp_path: Path, arguments: list[str], extra: str) -> None:
    done = light(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert re.search(INSTALL.format(extra), done.stderr)
    assert done.stdout == ""


CALLS = {
    "bm25_candidates": 'unimoe.bm25_candidates("apidocs")',
    "evaluate_reranker": 'unimoe.evaluate_reranker(len, "apidocs")',
    "evaluate_encoder": 'unimoe.evaluate_encoder(len, "apidocs")',
    "load_model": "unimoe.load_model()",
    "load_encoder": "unimoe.load_encoder()",
    "load_experiment": 'unimoe.load_experiment("experiments/bundled")',
    "load_collection": 'unimoe.load_collection("mteb:SciFact")',
    "evaluate_beir": "unimoe.evaluate_beir",
    "run_experiment": "unimoe.run_experiment",
}
"""Of each public name that an extra may bring, what needs it; all others work as they are."""


def test_python_names_the_extra_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIMOE_CACHE", str(tmp_path))  # where no candidates are kept
    asked = f"""{WITHOUT}
import json
import re
import unimoe

said = {{}}
for name, call in {CALLS!r}.items():
    try:
        eval(call)
    except unimoe.core.errors.UsageError as error:
        said[name] = [str(error), isinstance(error, ImportError)]
try:
    unimoe.load_collection("nanobeir:SciFact")
except unimoe.core.errors.UnimoeError as error:
    assert re.search({INSTALL.format("models")!r}, str(error)), error
for name in set(unimoe.__all__) - set(said):
    getattr(unimoe, name)
print(json.dumps(said))
"""
    done = subprocess.run([PYTHON, "-c", asked], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said.keys() == CALLS.keys()
    for name, (message, is_import_error) in said.items():
        extra = "train" if name == "run_experiment" else "models"
        assert message.startswith("this needs ")
        assert re.search(f", which is not installed: {INSTALL.format(extra)}$", message)
        assert is_import_error
