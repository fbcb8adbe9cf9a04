"""An experiment registers its gates before there are scores, and is judged by that copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.experiments import tiny_experiment
from support.gates import INTERFERENCE, gate_file

from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.registration import REGISTERED
from unimoe.config.files import load_experiment
from unimoe.core.errors import DataError
from unimoe.experiment.estimate import planned
from unimoe.experiment.job import ExperimentRun, matching_gates, smoke_version

CPU = torch.device("cpu")


def test_an_experiment_without_gates_registers_its_own_and_changes_neither_these_nor_itself(tmp_path: Path) -> None:
    experiment = tiny_experiment(tmp_path)
    assert experiment.gates is None
    ExperimentRun(experiment, CPU)
    registered = load_gates(Path(experiment.output_dir) / REGISTERED)
    assert [(name, gate.datasets, gate.seeds) for name, gate in registered.gates.items()] == [
        ("reranking.joint_r8", ["apidocs"], [0, 1]),
        ("embedding.joint_r8", ["apidocs"], [0, 1]),
    ]
    ExperimentRun(experiment.model_copy(update={"seeds": [0, 1, 2]}), CPU)  # more seeds do not move what counts
    assert load_gates(Path(experiment.output_dir) / REGISTERED) == registered
    with pytest.raises(DataError, match="an experiment with another paired_seeds"):
        ExperimentRun(experiment.model_copy(update={"paired_seeds": True}), CPU)
    longer = experiment.model_copy(update={"training": experiment.training.model_copy(update={"steps": 7})})
    with pytest.raises(DataError, match=r"holds an experiment with another training\.steps"):
        list(planned(longer, CPU, 0.0))


def test_a_copied_config_gets_gates_for_its_own_dataset(tmp_path: Path) -> None:
    changes = [f"output_dir={tmp_path}", "evaluation.bundled.collection=mine", "gates=null"]
    bundled = load_experiment(Path("experiments/bundled"), changes)
    assert [gate.datasets for gate in matching_gates(bundled).gates.values()] == [["mine"], ["mine"]]


def test_gates_that_cannot_match_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = gate_file(tmp_path, kill=INTERFERENCE | {"datasets": ["apidoc"]})
    experiment = tiny_experiment(tmp_path).model_copy(update={"gates": str(path)})
    with pytest.raises(DataError, match="on which this experiment is not evaluated") as refused:
        ExperimentRun(experiment, CPU)
    assert str(refused.value).startswith(f"{path}: gate 'kill' ")
    assert not Path(experiment.output_dir).exists()
    fixed = gate_file(tmp_path, kill=INTERFERENCE)  # in the same folder, at once
    ExperimentRun(experiment.model_copy(update={"gates": str(fixed)}), CPU)


def test_a_gate_may_wait_for_a_later_tier_and_what_a_smoke_run_lacks_is_said_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later: dict[str, Any] = {"specialist": "emb_only_r8", "datasets": ["SciFact", "NFCorpus"], "task": "embedding"}
    path = gate_file(
        tmp_path, rank=INTERFERENCE | {"datasets": ["scifact", "fiqa"], "seeds": [0, 1]}, embed=INTERFERENCE | later
    )
    experiment = tiny_experiment(tmp_path).model_copy(update={"gates": str(path)})
    ExperimentRun(experiment, CPU)
    elsewhere = experiment.model_copy(update={"output_dir": str(tmp_path / "smoke")})
    ExperimentRun(smoke_version(elsewhere), CPU)
    assert "gate 'rank' registers seed 1, which this experiment does not train" in capsys.readouterr().err
