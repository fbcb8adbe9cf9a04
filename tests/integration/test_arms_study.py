"""A study of the arms of an experiment: settings chosen on dev, then what ``unimoe run`` would train and score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.experiments import tiny_experiment_dict, write_tiny_experiment
from support.scripts import assert_refused, call_unimoe, successful

from unimoe.results import read_result, result_path

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")

RATES = [1e-4, 1e-2]


def write_study(folder: Path, **changes: Any) -> Path:
    raw: dict[str, Any] = {
        "name": "mine",
        "family": "arms",
        "config": str(write_tiny_experiment(folder)),
        "output_dir": str(folder / "study"),
        "base": {"training.dev": {"queries": 6, "depth": 4, "pool": 40}},
        "arms": {
            "emb_only_r8": {"set": {"arm.task": "emb_only"}},
            "joint_r8": {"set": {"arm": {"task": "joint", "ranking_weight": 0.5}}},
        },
        "grid": {"arm.learning_rate": RATES},
        "seeds": 2,
        "baselines": ["zero_shot"],
        "gates": {
            "kill": {"kind": "interference", "task": "embedding", "specialist": "emb_only_r8", "joint": "joint_r8"}
        },
    }
    file = folder / "study.yaml"
    file.write_text(json.dumps(raw | changes), encoding="utf-8")
    return file


def test_the_chosen_setting_scores_what_an_experiment_of_it_scores(tmp_path: Path) -> None:
    study = write_study(tmp_path)
    done = successful(call_unimoe("study", study, "--device", "cpu", "--threads", "1"))
    assert "kill (gate: " in done.stdout
    assert {path.name for path in (tmp_path / "study/analysis").glob("*.md")} == {
        "settings.md",
        "arms-reranking.md",
        "arms-embedding.md",
    }

    tried = json.loads((tmp_path / "study/tuning/joint_r8.json").read_text())
    best = max(tried, key=lambda one: one["val"])
    experiment = tiny_experiment_dict(tmp_path)
    experiment["arms"] = {"joint_r8": experiment["arms"]["joint_r8"] | {"learning_rate": best["arm.learning_rate"]}}
    (tmp_path / "plain.yaml").write_text(json.dumps(experiment), encoding="utf-8")
    successful(call_unimoe("run", "--config", tmp_path / "plain.yaml", "--device", "cpu", "--threads", "1"))
    for task in ("reranking", "embedding"):
        one, other = (
            read_result(result_path(tmp_path / root, "joint_r8", 1, task, "apidocs")) for root in ("study", "outputs")
        )
        assert one.per_query == pytest.approx(other.per_query, abs=1e-6)
        assert one.identity.experiment == "mine"

    (tmp_path / "study/joint_r8/seed_1/results/embedding/apidocs.json").unlink()
    again = successful(call_unimoe("study", study, "--device", "cpu", "--threads", "1"))
    assert again.stdout == done.stdout, "a study that has lost a result scores it again, and trains nothing"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grid": {}}, ("arms.emb_only_r8", "arm.learning_rate", "required")),
        ({"arms": {"a": {}}, "grid": {}, "gates": {}}, ("arms.a", "arm.task", "arm.learning_rate")),
        ({"grid": {"arm.lerning_rate": [1]}}, ("arms.emb_only_r8", "did you mean 'learning_rate'")),
        (
            {"gates": {"g": {"kind": "interference", "specialist": "emb", "joint": "joint_r8"}}},
            ("g.specialist", "'emb'"),
        ),
    ],
)
def test_mistakes_are_one_line_before_anything_is_trained(
    changes: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    assert_refused(call_unimoe("study", write_study(tmp_path, **changes)), 2, *words)
    assert not (tmp_path / "study").exists()
