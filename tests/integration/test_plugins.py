"""A package of another name that adds a measure, reranker, prompt, source, loss and command, used as a user would.

The package is laid out as installing a wheel leaves it: a module, and a ``dist-info`` folder with its entry points.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.experiments import tiny_experiment_dict
from support.heads import topics_folder
from support.tiny_encoders import save_tiny_encoder

from unimoe.results import read_result

MODULE = '''
from unimoe.config.training import Loss
from unimoe.data.collection import Document, assemble
from unimoe.data.source import Source, register_source
from unimoe.metrics import register_measure
from unimoe.training.losses import register_loss


def first_is_best(grades, ranking):
    return float(bool(ranking) and grades.get(ranking[0], 0) == max(grades.values()))


def hinge(scores, labels, options):
    import torch

    pairs = [(options.sigma - (s[:, None] - s))[y[:, None] > y] for s, y in zip(scores, labels)]
    return torch.cat(pairs).clamp(min=0).mean()


class Colours(Source):
    usage = "colours:NAME"

    def load(self, name, split):
        documents = [("d1", Document("", "red roses")), ("d2", Document("", "blue violets are blue"))]
        queries = [("q1", "what is red"), ("q2", "what is blue")]
        return assemble(name, split, documents, queries, {"q1": {"d1": 1}, "q2": {"d2": 1}})


def greet(name: str) -> None:
    """Greet somebody."""
    print(f"hello, {name}")


COMMANDS = {"greet": greet}
register_measure("first_is_best", first_is_best, cutoff=1)
register_loss("hinge_of_mine", Loss(hinge, ("sigma",)))
register_source("colours", Colours())
'''

RERANKERS = """
from unimoe.evaluation.reranking.rerankers import FunctionReranker
from unimoe.evaluation.systems.named import register_model, stated_system


class Overlap(FunctionReranker):
    name, identity = "overlap", "overlap@1"

    def __init__(self):
        super().__init__(lambda pairs: [len({*q.split()} & {*d.split()}) for q, d in pairs])


register_model("overlap", lambda name, naming: stated_system(Overlap(), naming))
"""

PROMPTS = """
from unimoe.models.prompts import register_prompt


class Bare:
    def __init__(self, prompt):
        self._instruction = prompt.instruction

    def conversation(self, tokenizer):
        return self._instruction, " Answer: "

    def before_document(self, query):
        return f"{query} | "

    def around_document(self):
        return "", " | "


register_prompt("bare_of_mine", Bare)
"""

FAMILIES = """
from unimoe.studies.cross_encoder.family import CrossEncoderFamily


class Mine(CrossEncoderFamily):
    metrics = ("mrr@10", "ndcg@10")
"""

ENTRY_POINTS = """
[unimoe.commands]
mine = ranking_extras:COMMANDS
[unimoe.measures]
mine = ranking_extras
[unimoe.losses]
mine = ranking_extras
[unimoe.sources]
mine = ranking_extras
[unimoe.rerankers]
mine = ranking_extras_models
[unimoe.prompts]
mine = ranking_extras_prompts
[unimoe.families]
mine = ranking_extras_families:Mine
broken = ranking_extras_families:Nothing
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages that holds this one alone."""
    folder = tmp_path / "site"
    info = folder / "ranking_extras-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "ranking_extras.py").write_text(MODULE, encoding="utf-8")
    for part, text in {"models": RERANKERS, "prompts": PROMPTS, "families": FAMILIES}.items():
        (folder / f"ranking_extras_{part}.py").write_text(text, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ranking-extras\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    return folder


def unimoe(site: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "UNIMOE_CACHE": str(site / "cache")}
    command = [sys.executable, "-m", "unimoe", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=site)


def test_a_command_of_another_package_is_a_command_of_unimoe(site: Path) -> None:
    assert unimoe(site, "greet", "reader").stdout == "hello, reader\n"
    assert "Greet somebody." in unimoe(site, "--help").stdout


def test_a_run_is_scored_by_a_measure_of_another_package(site: Path) -> None:
    (site / "run.trec").write_text("q1 Q0 d2 1 2.0 a\nq1 Q0 d1 2 1.0 a\nq2 Q0 d2 1 1.0 a\n", encoding="utf-8")
    (site / "qrels.txt").write_text("q1 0 d1 1\nq2 0 d2 1\n", encoding="utf-8")
    done = unimoe(site, "evaluate-run", "run.trec", "qrels.txt", "--metric", "first_is_best")
    assert done.returncode == 0, done.stderr
    assert "first_is_best" in done.stdout
    assert "0.5000" in done.stdout


def test_a_reranker_of_another_package_reranks_a_collection_of_its_source(site: Path) -> None:
    asked = ["--model", "overlap:any", "--dataset", "colours:garden", "--output-dir", "outputs"]
    done = unimoe(site, "evaluate", *asked)
    assert done.returncode == 0, done.stderr
    (folder,) = (site / "outputs" / "overlap").rglob("results/reranking")
    (file,) = (path for path in folder.iterdir() if path.suffixes == [".json"])
    assert read_result(file).per_query == {"q1": 1.0, "q2": 1.0}


def test_an_arm_is_trained_with_a_loss_and_a_prompt_of_another_package(site: Path) -> None:
    settings = tiny_experiment_dict(site)
    settings["prompt"]["template"] = "bare_of_mine"
    settings["training"]["steps"] = 2
    settings["training"]["ranking"] |= {"loss": "hinge_of_mine", "loss_options": {"sigma": 0.5}}
    (site / "tiny.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    done = unimoe(site, "train", "--config", "tiny.yaml", "--arm", "rank_only_r8")
    assert done.returncode == 0, done.stderr
    assert (Path(done.stdout.strip()) / "adapter_model.safetensors").is_file()


def test_a_study_trains_a_family_of_another_package(site: Path) -> None:
    encoder, topics = save_tiny_encoder(site / "encoder"), topics_folder(site / "topics")
    study = {
        "name": "s",
        "family": "mine",
        "base": {
            "model": {"base": str(encoder), "max_length": 48},
            "lists": {"source": f"path:{topics}", "max_docs": 4},
            "evaluation": {"depth": 6},
            "max_steps": 2,
        },
        "arms": {"a": {}},
        "seeds": 1,
    }
    (site / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    done = unimoe(site, "study", "study.yaml", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "s on topics: MRR@10" in done.stdout
    broken = unimoe(site, "study", "study.yaml", "--set", "family=broken")
    assert broken.returncode == 2
    assert "ranking-extras: its entry point broken = ranking_extras_families:Nothing" in broken.stderr
    assert "Traceback" not in broken.stderr


def test_a_package_that_cannot_be_imported_is_named_and_takes_no_command_away(site: Path) -> None:
    (site / "ranking_extras.py").write_text("import no_such_module\n", encoding="utf-8")
    done = unimoe(site, "evaluate-run", "run.trec", "qrels.txt", "--metric", "ndcg@10")
    assert "ranking-extras: its entry point mine = ranking_extras" in done.stderr
    assert "Traceback" not in done.stderr
    assert "evaluate-run" in unimoe(site, "--help").stdout
