"""The main job on a tiny model: what it writes, that it skips what is done, and that a killed run ends the same."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.experiments import tiny_experiment, write_tiny_experiment
from support.gates import INTERFERENCE, gate_file
from support.json_files import read_plain
from support.scripts import SCRIPTS, Done, assert_refused, call_script, successful
from support.tiny_encoders import save_tiny_encoder
from support.tiny_rerankers import save_tiny_cross_encoder

import unimoe
from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.registration import REGISTERED
from unimoe.config.files import load_experiment
from unimoe.core.errors import DataError
from unimoe.experiment.estimate import planned
from unimoe.experiment.job import ExperimentRun, matching_gates, smoke_version
from unimoe.results import drilldown_path, read_drilldown, read_result

TIMING = {"created", "wall_time_s", "items_per_s"}


def run(config: Path, output_dir: Path, *options: str) -> Done:
    return call_script("run_experiment.py", "--config", config, "--output-dir", output_dir, *options)


def results(output_dir: Path) -> dict[str, Any]:
    """Every result, sidecar and adapter hash by its path, without what differs from run to run: times."""
    found: dict[str, Any] = {}
    for path in sorted(output_dir.rglob("results/**/*.json")):
        content = read_plain(path)
        if path.name.endswith(".mteb.json"):
            continue
        for key in TIMING & content.get("provenance", {}).keys():
            del content["provenance"][key]
        content.get("config", {}).pop("output_dir", None)
        found[str(path.relative_to(output_dir))] = content
    for path in sorted(output_dir.rglob("*.trec")):
        found[str(path.relative_to(output_dir))] = path.read_text(encoding="utf-8")
    return found


def verdicts(done: Done) -> list[str]:
    return re.findall(r"^[A-Z ]+: (?:reranking|embedding)\..*", done.stdout, re.M)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_experiment(tmp_path_factory.mktemp("experiment"))


@pytest.fixture(scope="module")
def finished(config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    output_dir = tmp_path_factory.mktemp("finished") / "outputs"
    return output_dir, run(config, output_dir)


class TestMainJob:
    def test_it_ends_with_verdict_report_the_next_command_and_every_result(self, finished: tuple[Path, Done]) -> None:
        output_dir, done = finished
        assert done.returncode == 0, done.stderr
        assert "UNDECIDED: reranking.joint_r8 (gate: INCONCLUSIVE" in done.stdout
        assert "UNDECIDED: embedding.joint_r8 (gate: INCONCLUSIVE" in done.stdout
        assert done.stdout.rstrip().splitlines()[-1].startswith("Next:   uv run scripts/evaluate.py --checkpoint")
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

    def test_a_result_is_complete(self, finished: tuple[Path, Done]) -> None:
        output_dir, _ = finished
        path = output_dir / "joint_r8" / "seed_1" / "results" / "embedding" / "apidocs.json"
        result = read_result(path)
        assert len(result.per_query) == 6
        assert result.training is not None
        assert result.training.embedding_examples == 24
        assert result.identity.pool == 40
        assert {"base_model", "checkpoint", "collection", "pool", "prompt"} == result.provenance.hashes.keys()
        assert result.provenance.dtype == "float32"
        assert any(given.startswith("--config") for given in result.provenance.given)
        assert path.with_suffix(".mteb.json").is_file()
        detail = read_drilldown(path)
        assert drilldown_path(path).is_file()
        assert all(query.relevant.keys() == query.ranks.keys() for query in detail.queries.values())

    def test_the_record_has_the_cost_of_every_phase(self, finished: tuple[Path, Done]) -> None:
        found = json.loads((finished[0] / "run.json").read_text(encoding="utf-8"))
        phases = found["phases"]
        trained = {"train rank_only", "train emb_only", "train joint"}
        assert phases.keys() == {"load and first stage", "rerank", "embed", "analyze", *trained}
        assert found["matmul_tflop"] == pytest.approx(sum(p["matmul_tflop"] for p in phases.values()), abs=1e-5)
        assert found["seconds"] == pytest.approx(sum(p["seconds"] for p in phases.values()), abs=1e-4)
        assert all(phases[name]["matmul_tflop"] > 0 for name in {"rerank", "embed", *trained})
        assert phases["train joint"]["matmul_tflop"] > phases["train rank_only"]["matmul_tflop"]
        assert phases["analyze"]["matmul_tflop"] == 0
        assert 100 < found["peak_mib"] < 20_000
        assert found["threads"] >= 1
        assert (found["dtype"], found["device"][:3]) == ("float32", "cpu")

    def test_a_plan_names_time_and_work_and_writes_nothing(self, config: Path, tmp_path: Path) -> None:
        planned = successful(run(config, tmp_path / "none", "--plan"))
        assert re.match(r"\d+ to \d+ (seconds|minutes), [.\d]+ TFLOP for tiny, 2 seeds, on this device", planned.stdout)
        assert not (tmp_path / "none").exists()

    @pytest.mark.usefixtures("without_report")
    def test_second_run_finds_everything_done(self, config: Path, finished: tuple[Path, Done]) -> None:
        output_dir, first = finished
        before = {path: path.stat().st_mtime_ns for path in output_dir.rglob("results/**/*.json")}
        again = successful(run(config, output_dir))
        assert again.stderr.count("already done") == 20
        assert {path: path.stat().st_mtime_ns for path in before} == before
        assert again.stdout == first.stdout

    @pytest.mark.usefixtures("without_report")
    def test_from_python_it_is_the_same(self, config: Path, finished: tuple[Path, Done], tmp_path: Path) -> None:
        analysis = unimoe.run_experiment(config, {"seeds": [0]}, output_dir=tmp_path / "outputs")
        assert [(one.name, one.label) for one in analysis.judgments] == [
            ("reranking.joint_r8", "INCONCLUSIVE"),
            ("embedding.joint_r8", "INCONCLUSIVE"),
        ]
        there = unimoe.load_all_results(finished[0])
        assert list(analysis.results) == list(there)
        for arm, seeds in analysis.results.items():
            for seed in seeds:
                for key, scores in there[arm][seed].items():
                    assert seeds[seed][key] == pytest.approx(scores, abs=1e-6)
        given = read_result(tmp_path / "outputs/joint_r8/seed_0/results/reranking/apidocs.json").provenance.given
        assert given == [f"--config {config}", "--set seeds=[0]"]
        again = run(config, tmp_path / "outputs", "--set", "seeds=[0]")  # the command goes on where Python was
        assert again.stderr.count("already done") == 12

    @pytest.mark.usefixtures("without_figures")
    def test_models_beside_the_arms_are_evaluated_and_shown_and_judge_nothing(
        self, config: Path, finished: tuple[Path, Done], tmp_path: Path
    ) -> None:
        output_dir = shutil.copytree(finished[0], tmp_path / "outputs")
        models = save_tiny_cross_encoder(tmp_path / "ce"), save_tiny_encoder(tmp_path / "mean")
        names = dict(zip(("minilm", "mean"), (f"cross-encoder:{models[0]}", f"encoder:{models[1]}"), strict=True))
        with_systems = ["--set", f"evaluation.systems={json.dumps(names)}"]
        planned = run(config, output_dir, *with_systems, "--plan")
        assert "beside the arms: minilm (cross-encoder:ce@" in planned.stdout
        assert ", 24 pairs to rerank\n" in planned.stdout
        done = successful(run(config, output_dir, *with_systems))
        assert done.stderr.count("already done") == 20
        assert (output_dir / "minilm/seed_none/results/reranking/apidocs.json").is_file()
        assert (output_dir / "mean/seed_none/results/embedding/apidocs.json").is_file()
        report = (output_dir / "analysis" / "report.md").read_text(encoding="utf-8")
        assert all(re.search(rf"^\| *{name}\b", report, re.M) for name in names)
        assert verdicts(done) == verdicts(finished[1])
        assert len(verdicts(done)) == 2

    def test_other_settings_in_the_same_folder_are_refused(self, config: Path, finished: tuple[Path, Done]) -> None:
        output_dir, _ = finished
        for change, words in (
            ("training.steps=7", "another training.steps (6 there, 7 here)"),
            ("model.layers=3", "another model.layers (None there, 3 here)"),
            ("prompt.instruction=Other", "another prompt.instruction"),
            ("arms.joint_r8.learning_rate=0.1", "arms.joint_r8.learning_rate was 0.01 there and is 0.1 here"),
            ("training.ranking.loss=ranknet", "another training.ranking.loss"),
            ("evaluation.bundled.queries=5", "another evaluation.bundled.queries"),
        ):
            assert_refused(run(config, output_dir, "--set", change), 3, words, silent=False)

    @pytest.mark.slow
    def test_killed_twice_and_run_again_it_ends_as_an_undisturbed_run(
        self, config: Path, finished: tuple[Path, Done], tmp_path: Path
    ) -> None:
        """Once in training and once in evaluation."""
        output_dir = tmp_path / "outputs"
        kill_when(output_dir / "joint_r8" / "seed_0" / "state.safetensors", config, output_dir)
        kill_when(output_dir / "emb_only_r8/seed_1/results/reranking/apidocs.json", config, output_dir)
        again = successful(run(config, output_dir))
        assert "already done" in again.stderr
        assert results(output_dir) == results(finished[0])

    @pytest.mark.usefixtures("without_figures")
    def test_smoke_marks_everything_it_writes(self, config: Path, tmp_path: Path) -> None:
        done = successful(run(config, tmp_path / "smoke", "--smoke", "--set", "training.embedding.pairs_per_step=8"))
        assert "Caveat: smoke run" in done.stdout
        for path in (tmp_path / "smoke").rglob("results/*/apidocs.json"):
            assert any("smoke run" in caveat for caveat in read_result(path).caveats)
        for table in (tmp_path / "smoke" / "analysis" / "tables").iterdir():
            assert "smoke run" in table.read_text(encoding="utf-8"), table.name
        assert "smoke run" in (tmp_path / "smoke" / "analysis" / "report.md").read_text(encoding="utf-8")


def kill_when(path: Path, config: Path, output_dir: Path) -> None:
    """Run the main job and kill it, with a signal it cannot catch, once ``path`` exists."""
    script = str(SCRIPTS / "run_experiment.py")
    arguments = [sys.executable, script, "--config", str(config), "--output-dir", str(output_dir)]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 300
        while not path.exists():
            assert process.poll() is None, "the run ended before the moment came"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)


@pytest.mark.usefixtures("without_report")
class TestLooks:
    """Three seeds, looked at after two and three; a tiny random model beats nothing, so the specialist need not."""

    @staticmethod
    def by_looks(folder: Path, looks: list[int], **gate: Any) -> Path:
        config = write_tiny_experiment(folder)
        free = {"specialist_must_beat": None, "looks": looks}
        gates = gate_file(folder, kill=INTERFERENCE | free | gate)
        text = config.read_text(encoding="utf-8").replace("seeds:\n- 0\n- 1\n", "seeds:\n- 0\n- 1\n- 2\n")
        text = text.replace("queries: 6\n", "queries: 30\n").replace("pool: 40\n", "pool: 120\n")
        config.write_text(f"{text}gates: {gates}\n", encoding="utf-8")
        return config

    def test_it_stops_training_when_every_gate_has_its_label(self, tmp_path: Path) -> None:
        config = self.by_looks(tmp_path, [2, 3], pass_at=0.99, fail_below=0.98)  # no TIR comes near it
        done = successful(run(config, tmp_path / "outputs"))
        assert "Every gate has its label: seed 2 would change nothing" in done.stderr
        assert not (tmp_path / "outputs" / "joint_r8" / "seed_2").exists()
        assert "NO INTERFERENCE: kill (gate: FAIL, keep the joint model)" in done.stdout
        assert "decided at the look at 2 seeds" in done.stdout
        again = run(config, tmp_path / "outputs")
        assert "Every gate has its label" in again.stderr
        assert not (tmp_path / "outputs" / "joint_r8" / "seed_2").exists()
        assert verdicts(again) == verdicts(done)

    def test_too_few_seeds_for_the_first_look_are_refused(self, tmp_path: Path) -> None:
        config = self.by_looks(tmp_path, [5, 8])
        done = run(config, tmp_path / "outputs")
        assert_refused(done, 3, "has its first look at 5 seeds, and this experiment trains 3")


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
