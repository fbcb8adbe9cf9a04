"""A researcher's own study as one YAML file: looks that end it early, a plan, a kill, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.heads import topics_folder
from support.scripts import Done, assert_refused, call_script
from support.tiny_encoders import save_tiny_encoder

import unimoe
from unimoe.analysis.gates.definitions import load_gates
from unimoe.results import read_result
from unimoe.results.folder import load_all_results
from unimoe.studies.common.runner import StudyRunner
from unimoe.studies.common.study import load_study
from unimoe.studies.cross_encoder.family import CrossEncoderFamily
from unimoe.training.loop import Training

UNIMOE = str(Path(unimoe.__file__).with_name("__main__.py"))
pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")


def study_file(folder: Path, **changes: Any) -> Path:
    """Two losses at two rates on a toy collection with a tiny encoder: steps of milliseconds."""
    topics = folder / "topics"
    if not topics.exists():
        save_tiny_encoder(folder / "encoder")
        topics_folder(topics, {"train": 24, "dev": 6, "test": 12})
    raw: dict[str, Any] = {
        "name": "mine",
        "family": "cross_encoder",
        "output_dir": str(folder / "out"),
        "base": {
            "model": {"base": str(folder / "encoder"), "max_length": 48},
            "loss.mini_batch_size": 8,
            "lists": {"source": f"path:{topics}", "max_docs": 4},
            "evaluation.depth": 6,
            "batch_size": 4,
            "max_steps": 4,
            "eval_every": 2,
        },
        "arms": {"softmax": {"set": {"loss.name": "softmax"}}, "listnet": {"set": {"loss.name": "listnet"}}},
        "grid": {"learning_rate": [1e-5, 1e-3]},
        "seeds": 2,
        "baselines": ["bm25", "softmax"],
    }
    file = folder / "study.yaml"
    file.write_text(json.dumps(raw | changes), encoding="utf-8")
    return file


def run(file: Path, *more: str | Path) -> Done:
    return call_script(UNIMOE, "study", file, "--device", "cpu", "--threads", "1", *more)


def scores(folder: Path) -> dict[tuple[str, int | None], dict[str, float]]:
    return {(one.config_name, one.seed): one.per_query for one in load_all_results(folder).everything}


@pytest.mark.parametrize("shared", [True, False])
def test_a_gate_that_has_its_label_ends_the_study(shared: bool, tmp_path: Path) -> None:
    """Nothing is trained so well in four steps that it beats BM25 by .9, so the first look decides."""
    gate = {"system": "listnet", "baseline": "bm25", "margin": 0.9}
    of_study, own = {"looks": [3, 5], "gates": {"g": gate}}, {"gates": {"g": {**gate, "looks": [3, 5]}}}
    done = run(study_file(tmp_path, seeds=5, **(of_study if shared else own)))
    assert done.returncode == 0, done.stderr
    assert "Every gate has its label: seeds 3, 4 would change nothing" in done.stderr
    assert load_all_results(tmp_path / "out").seeds("softmax", "reranking/topics") == (0, 1, 2)
    assert "gate: " in done.stdout
    assert load_gates(tmp_path / "out" / "gates.yaml").gates["g"].looks == [3, 5]
    again = run(tmp_path / "study.yaml")
    assert again.stdout == done.stdout


def test_the_result_says_which_study_it_is_of(tmp_path: Path) -> None:
    assert run(study_file(tmp_path, caveats=["toy"]), "--seeds", "1").returncode == 0
    (path,) = (tmp_path / "out" / "listnet" / "seed_0" / "results" / "reranking").glob("topics.json")
    result = read_result(path)
    assert (result.identity.experiment, result.caveats) == ("mine", ["toy"])
    with (tmp_path / "out" / "analysis" / "arms.csv").open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if row["vs bm25"]]
    assert [row["arm"] for row in rows] == ["softmax", "listnet"]
    assert {row["setting"] for row in rows} <= {"learning_rate 1e-05", "learning_rate 0.001"}


def test_a_plan_trains_nothing_and_says_what_all_would_cost(tmp_path: Path) -> None:
    done = run(study_file(tmp_path), "--plan")
    assert done.returncode == 0, done.stderr
    assert "softmax: 2 trainings on dev and 2 that are tested" in done.stdout
    assert "In all about" in done.stdout
    assert not (tmp_path / "out").exists()


def test_settings_on_dev_alone_are_not_tested(tmp_path: Path) -> None:
    gates = {"g": {"system": "softmax", "baseline": "bm25", "margin": 0}}
    done = run(study_file(tmp_path, gates=gates), "--seeds", "0", "--only", "softmax")
    assert done.returncode == 0, done.stderr
    assert "learning_rate 0.001" in done.stdout
    assert not [*(tmp_path / "out").rglob("*.trec")]


def test_a_killed_study_ends_with_the_same_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(study_file(tmp_path))
    StudyRunner(CrossEncoderFamily(study, torch.device("cpu"))).run()
    file = load_study(tmp_path / "study.yaml", [], {"output_dir": str(tmp_path / "killed")})
    advance, taken = Training._advance, 0

    def killed(self: Training, *given: Any) -> None:
        nonlocal taken
        taken += 1
        if taken % 7 == 0:
            raise KeyboardInterrupt
        advance(self, *given)

    monkeypatch.setattr(Training, "_advance", killed)
    kills = 0
    while True:
        try:
            StudyRunner(CrossEncoderFamily(file, torch.device("cpu"))).run()
            break
        except KeyboardInterrupt:
            kills += 1
    assert kills >= 3
    expected, found = scores(tmp_path / "out"), scores(tmp_path / "killed")
    assert found.keys() == expected.keys()
    for place, values in expected.items():
        assert found[place] == pytest.approx(values, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"family": "crossencoder"}, 2, ("there is no 'crossencoder'", "did you mean 'cross_encoder'")),
        ({"arms": {"a": {"set": {"loss.name": "sofmax"}}}}, 2, ("sofmax", "did you mean 'softmax'")),
        ({"gates": {"g": {"system": "listnet", "baseline": "bm52", "margin": 0}}}, 2, ("gates.g.baseline", "'bm25'")),
        ({"gates": {"g": {"system": "listnet", "baseline": "bm25"}}}, 2, ("gates.g.margin", "required")),
        ({"grid": {"learning_rate": []}}, 2, ("grid.learning_rate", "must not be empty")),
        ({"data": {"source": "x"}}, 2, ("data", "cross_encoder")),
        ({"grid": {"lerning_rate": [1]}}, 2, ("arms.softmax", "did you mean 'learning_rate'")),
    ],
)
def test_mistakes_are_one_line_before_anything_is_trained(
    changes: dict[str, Any], code: int, words: tuple[str, ...], tmp_path: Path
) -> None:
    for more in ((), ("--plan",)):
        assert_refused(run(study_file(tmp_path, **changes), *more), code, *words)
    assert not [*tmp_path.rglob("*.safetensors.json")]
    assert not (tmp_path / "out" / "tuning").exists()


def test_a_gate_that_cannot_be_is_refused_before_data_are_loaded(tmp_path: Path) -> None:
    gate = {"system": "listnet", "baseline": "softmax", "margin": 0.0}
    file = study_file(tmp_path, seeds=5, gates={"g": {**gate, "looks": [3, 8]}})
    assert_refused(run(file, "--set", "lists.source=path:nowhere"), 2, "gates.g", "the last look is at 8 seeds")
