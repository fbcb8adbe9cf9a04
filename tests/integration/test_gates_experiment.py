"""An experiment registers its gates before there are scores, and is judged by that copy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.experiments import tiny_experiment
from support.gates import INTERFERENCE, gate_file
from support.results import make_result, write_experiment
from support.scripts import call_script

from unimoe.analysis.gates.registration import REGISTERED
from unimoe.config import Experiment
from unimoe.config.files import load_experiment
from unimoe.errors import DataError
from unimoe.experiment import ExperimentRun, smoke_version
from unimoe.results import write_result

CPU = torch.device("cpu")


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """Names a gate file of its own."""
    path = gate_file(tmp_path, kill=INTERFERENCE | {"seeds": [0, 1]})
    return tiny_experiment(tmp_path).model_copy(update={"gates": str(path)})


def test_the_bundled_experiment_names_the_shipped_gate() -> None:
    assert load_experiment(Path("experiments/bundled")).gates == "gates/kill_gate"


def test_the_gates_are_there_before_any_result(experiment: Experiment) -> None:
    ExperimentRun(experiment, CPU)
    copy = Path(experiment.output_dir) / REGISTERED
    assert copy.read_bytes() == Path(str(experiment.gates)).read_bytes()
    assert not list(Path(experiment.output_dir).rglob("results"))
    ExperimentRun(experiment, CPU)  # a second start goes on


def test_other_gates_in_the_same_folder_are_refused(experiment: Experiment) -> None:
    ExperimentRun(experiment, CPU)
    with pytest.raises(DataError, match="registers other gates"):
        ExperimentRun(experiment.model_copy(update={"gates": "gates/kill_gate"}), CPU)


def test_a_malformed_gate_file_stops_before_anything_is_written(experiment: Experiment) -> None:
    Path(str(experiment.gates)).write_text("gates: {}", encoding="utf-8")
    with pytest.raises(DataError, match="registered: this key is required"):
        ExperimentRun(experiment, CPU)
    assert not Path(experiment.output_dir).exists()


def test_a_folder_from_before_gates_goes_on_without(experiment: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    ExperimentRun(experiment.model_copy(update={"gates": None}), CPU)
    write_result(Path(experiment.output_dir), make_result("joint_r8", 0, [0.5, 0.6]))
    ExperimentRun(experiment, CPU)
    assert not (Path(experiment.output_dir) / REGISTERED).exists()
    assert "too late to register" in capsys.readouterr().err


def test_what_a_smoke_run_will_lack_is_said_first(experiment: Experiment, capsys: pytest.CaptureFixture[str]) -> None:
    ExperimentRun(smoke_version(experiment), CPU)
    assert "gate 'kill' registers seed 1, which this experiment does not train" in capsys.readouterr().err


def test_gates_that_a_smoke_run_cannot_meet_do_not_fail_its_analysis(tmp_path: Path) -> None:
    write_experiment(tmp_path, seeds=(0,), caveats=["smoke run"], logs=False)
    gate_file(tmp_path, kill=INTERFERENCE | {"seeds": [0, 1]}, look=INTERFERENCE)
    done = call_script("analyze_results.py", "--output-dir", tmp_path, "--iterations", "50")
    assert done.returncode == 0, done.stderr
    assert "kill not judged: " in done.stdout
    assert "no results of both arms for seed 1; the gate registers its seeds" in " ".join(done.stdout.split())
    assert "look ADVISORY INCONCLUSIVE (these seeds and queries cannot decide" in done.stdout
    assert call_script("analyze_results.py", "verdicts", "--output-dir", tmp_path).returncode == 3
