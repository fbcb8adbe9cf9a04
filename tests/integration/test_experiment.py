"""The main job on a tiny model: what it writes, that it skips what is done, and that a killed run ends the same."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import scripts
from support.experiments import CPU, tiny_experiment, tiny_experiment_dict, write_tiny_experiment
from support.results import INTERFERENCE, gate_file
from support.tiny_models import save_tiny_cross_encoder, save_tiny_encoder

import unimoe
from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.registration import REGISTERED
from unimoe.config import Experiment
from unimoe.config.files import load_experiment
from unimoe.core.errors import DataError
from unimoe.experiment.job import ExperimentRun, matching_gates, smoke_version
from unimoe.experiment.plan import planned
from unimoe.results import read_drilldown, read_result


def run(config: Path, output_dir: Path, *options: str) -> scripts.Done:
    return scripts.call_script("run_experiment.py", "--config", config, "--output-dir", output_dir, *options)


def verdicts(done: scripts.Done) -> list[str]:
    return re.findall(r"^[A-Z ]+: (?:reranking|embedding)\..*", done.stdout, re.M)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_experiment(tmp_path_factory.mktemp("experiment"))


@pytest.fixture(scope="module")
def finished(config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, scripts.Done]:
    output_dir = tmp_path_factory.mktemp("finished") / "outputs"
    return output_dir, scripts.successful(run(config, output_dir))


def test_the_main_job_ends_with_verdict_report_the_next_command_and_every_result(
    finished: tuple[Path, scripts.Done],
) -> None:
    output_dir, done = finished
    for task in ("reranking", "embedding"):
        assert f"UNDECIDED: {task}.joint_r8 (gate: INCONCLUSIVE" in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].startswith("Next:   uv run unimoe evaluate --checkpoint")
    assert (output_dir / "analysis" / "report.md").is_file()
    assert f"Report: {output_dir / 'analysis' / 'report.html'}" in done.stdout
    both = ["reranking", "embedding"]
    tasks = {"rank_only_r8": ["reranking"], "emb_only_r8": both, "joint_r8": both, "zero_shot": both}
    expected = {
        f"{arm}/seed_{seed}/results/{task}/apidocs.json"
        for arm, own in {**tasks, "bm25": ["reranking", "retrieval"]}.items()
        for task in own
        for seed in ((0, 1) if arm.endswith("_r8") else ("none",))
    }
    assert {str(path.relative_to(output_dir)) for path in output_dir.rglob("results/*/apidocs.json")} == expected


def test_a_result_is_complete(finished: tuple[Path, scripts.Done]) -> None:
    path = finished[0] / "joint_r8" / "seed_1" / "results" / "embedding" / "apidocs.json"
    result, detail = read_result(path), read_drilldown(path)
    assert (len(result.per_query), result.identity.pool, result.provenance.dtype) == (6, 40, "float32")
    assert getattr(result.training, "embedding_examples", None) == 24
    assert {"base_model", "checkpoint", "collection", "pool", "prompt"} == result.provenance.hashes.keys()
    assert any(given.startswith("--config") for given in result.provenance.given)
    assert path.with_suffix(".mteb.json").is_file()
    assert all(query.relevant.keys() == query.ranks.keys() for query in detail.queries.values())


def test_the_record_has_the_cost_of_every_phase(finished: tuple[Path, scripts.Done]) -> None:
    found = scripts.read_plain(finished[0] / "run.json")
    flop = {name: phase["matmul_tflop"] for name, phase in found["phases"].items()}
    trained = {"train rank_only", "train emb_only", "train joint"}
    assert flop.keys() == {"load and first stage", "rerank", "embed", "analyze", *trained}
    assert all(flop[name] > 0 for name in {"rerank", "embed", *trained})
    assert flop["train joint"] > flop["train rank_only"]
    assert flop["analyze"] == 0
    assert 100 < found["peak_mib"] < 20_000
    assert (found["dtype"], found["device"][:3]) == ("float32", "cpu")


@pytest.mark.usefixtures("without_report")
def test_a_second_run_finds_everything_done_and_a_plan_writes_nothing(
    config: Path, finished: tuple[Path, scripts.Done], tmp_path: Path
) -> None:
    output_dir, first = finished
    before = {path: path.stat().st_mtime_ns for path in output_dir.rglob("results/**/*.json")}
    again = scripts.successful(run(config, output_dir))
    assert again.stderr.count("already done") == 20
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert again.stdout == first.stdout
    assert first.stderr.count("ndcg@10 on apidocs so far\n") == 2
    planned = scripts.successful(run(config, tmp_path / "none", "--plan"))
    assert re.match(r"\d+ to \d+ (seconds|minutes) for tiny, 2 seeds, on this device", planned.stdout)
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("without_report")
def test_python_goes_on_where_the_command_was(
    config: Path, finished: tuple[Path, scripts.Done], tmp_path: Path
) -> None:
    outputs = shutil.copytree(finished[0], tmp_path / "outputs")
    place = "joint_r8/seed_0/results/reranking/apidocs.json"
    (outputs / place).unlink()
    analysis = unimoe.run_experiment(config, {"seeds": [0, 1]}, output_dir=outputs)
    labels = [(f"{task}.joint_r8", "INCONCLUSIVE") for task in ("reranking", "embedding")]
    assert [(one.name, one.label) for one in analysis.judgments] == labels
    again = read_result(outputs / place)
    assert again.per_query == pytest.approx(read_result(finished[0] / place).per_query, abs=1e-6)
    assert again.provenance.given == [f"--config {config}", "--set seeds=[0, 1]"]


@pytest.mark.usefixtures("without_figures")
def test_models_beside_the_arms_are_evaluated_and_shown_and_judge_nothing(
    config: Path, finished: tuple[Path, scripts.Done], tmp_path: Path
) -> None:
    output_dir = shutil.copytree(finished[0], tmp_path / "outputs")
    models = save_tiny_cross_encoder(tmp_path / "ce"), save_tiny_encoder(tmp_path / "mean")
    names = dict(zip(("minilm", "mean"), (f"cross-encoder:{models[0]}", f"encoder:{models[1]}"), strict=True))
    with_systems = ["--set", f"evaluation.systems={json.dumps(names)}"]
    planned = run(config, output_dir, *with_systems, "--plan")
    assert re.search(r"beside the arms: minilm \(cross-encoder:ce@.*, 24 pairs to rerank\n", planned.stdout, re.S)
    (output_dir / "run.json").unlink()
    done = scripts.successful(run(config, output_dir, *with_systems))
    assert "on this machine" not in done.stderr  # arms that are done need no estimate
    assert done.stderr.count("already done") == 20
    assert (output_dir / "minilm/seed_none/results/reranking/apidocs.json").is_file()
    assert (output_dir / "mean/seed_none/results/embedding/apidocs.json").is_file()
    report = (output_dir / "analysis" / "report.md").read_text(encoding="utf-8")
    assert all(re.search(rf"^\| *{name}\b", report, re.M) for name in names)
    assert (verdicts(done), len(verdicts(done))) == (verdicts(finished[1]), 2)


def test_other_settings_in_the_same_folder_are_refused(config: Path, finished: tuple[Path, scripts.Done]) -> None:
    output_dir, _ = finished
    for change, words in (
        ("training.steps=7", "another training.steps (6 there, 7 here)"),
        ("paired_seeds=true", "another paired_seeds"),
        ("pool_runs=true", "another pool_runs (None there, True here)"),
        ("model.layers=3", "another model.layers (None there, 3 here)"),
        ("prompt.instruction=Other", "another prompt.instruction"),
        ("arms.joint_r8.learning_rate=0.1", "arms.joint_r8.learning_rate was 0.01 there and is 0.1 here"),
        ("evaluation.bundled.queries=5", "another evaluation.bundled.queries"),
    ):
        scripts.assert_refused(run(config, output_dir, "--set", change), 3, words, silent=False)


@pytest.mark.slow
def test_killed_twice_and_run_again_it_ends_as_an_undisturbed_run(
    config: Path, finished: tuple[Path, scripts.Done], tmp_path: Path
) -> None:
    """Once in training and once in evaluation."""
    output_dir = tmp_path / "outputs"
    for moment in ("joint_r8/seed_0/state.safetensors", "emb_only_r8/seed_1/results/reranking/apidocs.json"):
        arguments = ("run_experiment.py", "--config", config, "--output-dir", output_dir)
        scripts.kill_script_when((output_dir / moment).exists, *arguments)
    again = scripts.successful(run(config, output_dir))
    assert "already done" in again.stderr
    scripts.assert_same_results(finished[0], output_dir)


@pytest.mark.usefixtures("without_figures")
def test_smoke_marks_everything_it_writes(config: Path, tmp_path: Path) -> None:
    done = scripts.successful(
        run(config, tmp_path / "smoke", "--smoke", "--set", "training.embedding.pairs_per_step=8")
    )
    assert "Caveat: smoke run" in done.stdout
    for path in (tmp_path / "smoke").rglob("results/*/apidocs.json"):
        assert any("smoke run" in caveat for caveat in read_result(path).caveats)
    for table in (tmp_path / "smoke" / "analysis" / "tables").iterdir():
        assert "smoke run" in table.read_text(encoding="utf-8"), table.name
    assert "smoke run" in (tmp_path / "smoke" / "analysis" / "report.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("without_report")
def test_training_stops_when_every_gate_has_its_label(tmp_path: Path) -> None:
    """Three seeds, looked at after two and three; a tiny random model beats nothing, so the specialist need not."""
    free = {"specialist_must_beat": None, "looks": [2, 3], "pass_at": 0.99, "fail_below": 0.98}  # no TIR comes near it
    gates, outputs = gate_file(tmp_path, kill=INTERFERENCE | free), tmp_path / "outputs"
    larger = {"bundled": {"queries": 30, "depth": 4, "pool": 120}}
    plain = tiny_experiment_dict(tmp_path) | {"seeds": [0, 1, 2], "gates": str(gates), "evaluation": larger}
    plain["training"]["steps"] = 2
    del plain["arms"]["emb_only_r8"]
    scripts.write_plain(tmp_path / "tiny.yaml", plain)
    done = scripts.successful(run(tmp_path / "tiny.yaml", outputs))
    assert "NO INTERFERENCE: kill (gate: FAIL, " in done.stdout
    assert "decided at the look at 2 seeds" in done.stdout
    again = run(tmp_path / "tiny.yaml", outputs)
    for one in (done, again):
        assert "Every gate has its label: seed 2 would change nothing" in one.stderr
    assert not (outputs / "joint_r8" / "seed_2").exists()
    assert verdicts(again) == verdicts(done)


def test_an_experiment_without_gates_registers_its_own_and_changes_neither_these_nor_itself(tmp_path: Path) -> None:
    experiment = tiny_experiment(tmp_path)
    assert experiment.gates is None
    ExperimentRun(experiment, CPU)
    registered = load_gates(Path(experiment.output_dir) / REGISTERED)
    gates = {name: (gate.datasets, gate.seeds, gate.needed[2:]) for name, gate in registered.gates.items()}
    both = ("reranking.joint_r8", "embedding.joint_r8")
    assert gates == dict.fromkeys(both, (["apidocs"], [0, 1], ("zero_shot",)))
    ExperimentRun(experiment.model_copy(update={"seeds": [0, 1, 2]}), CPU)  # more seeds do not move what counts
    assert load_gates(Path(experiment.output_dir) / REGISTERED) == registered
    longer = experiment.model_copy(update={"training": experiment.training.model_copy(update={"steps": 7})})
    with pytest.raises(DataError, match=r"holds an experiment with another training\.steps"):
        list(planned(longer, CPU, 0.0))
    changes = [f"output_dir={tmp_path}", "evaluation.bundled.collection=mine", "gates=null"]
    copied = load_experiment(Path("experiments/bundled"), changes)
    assert [gate.datasets for gate in matching_gates(copied).gates.values()] == [["mine"], ["mine"]]


def test_gates_that_cannot_match_are_refused_before_anything_is_written_and_those_of_later_tiers_may_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = tiny_experiment(tmp_path)

    def opened(**gates: dict[str, Any]) -> Experiment:
        judged: dict[str, Any] = {name: INTERFERENCE | gate for name, gate in gates.items()}
        changed = experiment.model_copy(update={"gates": str(gate_file(tmp_path, **judged))})
        ExperimentRun(changed, CPU)
        return changed

    for gate, words in (
        ({"datasets": ["apidoc"]}, "on which this experiment is not evaluated"),
        ({"looks": [5, 8]}, "has its first look at 5 seeds, and this experiment trains 2"),
    ):
        with pytest.raises(DataError, match=words) as refused:
            opened(kill=gate)
        assert str(refused.value).startswith(f"{tmp_path / 'gates.yaml'}: gate 'kill' ")
    assert not Path(experiment.output_dir).exists()
    later: dict[str, Any] = {"specialist": "emb_only_r8", "datasets": ["SciFact", "NFCorpus"], "task": "embedding"}
    waiting = opened(rank={"datasets": ["scifact", "fiqa"], "seeds": [0, 1]}, embed=later)
    ExperimentRun(smoke_version(waiting.model_copy(update={"output_dir": str(tmp_path / "smoke")})), CPU)
    assert "gate 'rank' registers seed 1, which this experiment does not train" in capsys.readouterr().err
