"""A package of another name that adds what ``docs/extending.md`` shows, a command and a family, used as a user would.

The package is laid out as installing a wheel leaves it: modules, and a ``dist-info`` folder with its entry points.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.docs import code_blocks
from support.experiments import tiny_experiment_dict
from support.heads import topics_folder
from support.tiny_encoders import save_tiny_encoder

from unimoe.results import read_result

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
REGISTERS = {
    "losses": "register_loss(",
    "measures": "register_measure(",
    "prompts": "register_prompt(",
    "sources": "register_source(",
    "apis": "register_api(",
    "rerankers": "register_model(",
}
"""By group of entry points: what the page's block of code for it calls."""

COMMAND = """
def greet(name: str) -> None:
    '''Greet somebody.'''
    print(f"hello, {name}")


COMMANDS = {"greet": greet}
"""
FAMILY = """
from unimoe.studies.cross_encoder.family import CrossEncoderFamily


class Mine(CrossEncoderFamily):
    metrics = ("mrr@10", "ndcg@10")
"""
ENTRY_POINTS = """
[unimoe.commands]
mine = extras_command:COMMANDS
[unimoe.families]
mine = extras_family:Mine
broken = extras_family:Nothing
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages that holds this one alone."""
    folder, entries = tmp_path / "site", ENTRY_POINTS
    info = folder / "ranking_extras-1.0.dist-info"
    info.mkdir(parents=True)
    for group, call in REGISTERS.items():
        (block,) = (block for block in code_blocks(PAGE, "python") if call in block.text)
        (folder / f"extras_{group}.py").write_text(block.text, encoding="utf-8")
        entries += f"[unimoe.{group}]\nmine = extras_{group}\n"
    (folder / "extras_command.py").write_text(COMMAND, encoding="utf-8")
    (folder / "extras_family.py").write_text(FAMILY, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ranking-extras\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(entries, encoding="utf-8")
    return folder


def unimoe(site: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints: on stderr, if it fails."""
    environment = {**os.environ, "PYTHONPATH": str(site), "UNIMOE_CACHE": str(site / "cache")}
    command = [sys.executable, "-m", "unimoe", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=site)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if code else done.stdout


def test_a_command_and_a_measure(site: Path) -> None:
    assert unimoe(site, "greet", "reader") == "hello, reader\n"
    assert "Greet somebody." in unimoe(site, "--help")
    (site / "run.trec").write_text("q1 Q0 d2 1 2.0 a\nq1 Q0 d1 2 1.0 a\nq2 Q0 d2 1 1.0 a\n", encoding="utf-8")
    (site / "qrels.txt").write_text("q1 0 d1 1\nq2 0 d2 1\n", encoding="utf-8")
    scored = unimoe(site, "evaluate-run", "run.trec", "qrels.txt", "--metric", "first_is_best")
    assert "first_is_best" in scored
    assert "0.5000" in scored


def test_a_kind_of_model_reranks_a_collection_of_a_source(site: Path) -> None:
    unimoe(site, "evaluate", "--model", "overlap:any", "--dataset", "colours:garden", "--output-dir", "outputs")
    (folder,) = (site / "outputs" / "overlap").rglob("results/reranking")
    (file,) = (path for path in folder.iterdir() if path.suffixes == [".json"])
    assert read_result(file).per_query == {"q1": 1.0}


def test_an_arm_is_trained_with_a_loss_and_a_prompt(site: Path) -> None:
    settings = tiny_experiment_dict(site)
    settings["prompt"]["template"] = "bare"
    settings["training"]["steps"] = 2
    settings["training"]["ranking"] |= {"loss": "hinge", "loss_options": {"sigma": 0.5}}
    (site / "tiny.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    train = ("train", "--config", "tiny.yaml", "--arm", "rank_only_r8")
    assert (Path(unimoe(site, *train).strip()) / "adapter_model.safetensors").is_file()
    misspelt = unimoe(site, *train, "--set", "served={api: hit, model: x}", code=2)
    assert "there is no served API 'hit' (did you mean 'hits'?)" in misspelt


def test_a_study_trains_a_family(site: Path) -> None:
    encoder, topics = save_tiny_encoder(site / "encoder"), topics_folder(site / "topics")
    base = {
        "model": {"base": str(encoder), "max_length": 48},
        "lists": {"source": f"path:{topics}", "max_docs": 4},
        "evaluation": {"depth": 6},
        "max_steps": 2,
    }
    study = {"name": "s", "family": "mine", "base": base, "arms": {"a": {}}, "seeds": 1}
    (site / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    assert "s on topics: MRR@10" in unimoe(site, "study", "study.yaml", "--device", "cpu")
    broken = unimoe(site, "study", "study.yaml", "--set", "family=broken", code=2)
    assert "ranking-extras: its entry point broken = extras_family:Nothing" in broken


def test_a_package_that_cannot_be_imported_is_named_and_takes_no_command_away(site: Path) -> None:
    for name in ("command", "measures"):
        (site / f"extras_{name}.py").write_text("import no_such_module\n", encoding="utf-8")
    said = unimoe(site, "evaluate-run", "run.trec", "qrels.txt", "--metric", "ndcg@10", code=2)
    assert "ranking-extras: its entry point mine = extras_" in said
    assert "evaluate-run" in unimoe(site, "--help")
