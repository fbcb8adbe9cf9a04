"""The commands: help that reads well, and bad input answered in one line with the right exit code."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from support.experiments import tiny_experiment_dict, write_tiny_experiment
from support.scripts import assert_refused, call_script, call_unimoe, successful
from support.tiny_models import save_tiny_model


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_experiment(tmp_path_factory.mktemp("commands"))


@pytest.fixture(scope="module")
def checkpoint(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("trained") / "outputs"
    done = successful(
        call_script("train.py", "--config", config, "--arm", "joint_r8", "--seed", "1", "--output-dir", output_dir)
    )
    return Path(done.stdout.strip())


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("run_experiment.py", ["--config", "--smoke", "--output-dir", "--device", "--set"]),
        ("train.py", ["--arm", "--seed", "--device", "--config"]),
        (
            "evaluate.py",
            ["--checkpoint", "--eval-tier", "--max-queries", "--zero-shot", "UNIMOE_DATA", "exit code is 4"],
        ),
        ("analyze_results.py", ["--output-dir", "--iterations"]),
    ],
)
def test_help_reads_well(script: str, words: list[str]) -> None:
    done = call_script(script, "--help")
    text = " ".join(done.stdout.split())
    assert done.returncode == 0
    for word in words:
        assert word in text


class TestTrain:
    def test_prints_the_checkpoint_and_keeps_it_on_resume(self, config: Path, checkpoint: Path) -> None:
        assert checkpoint.parts[-3:] == ("joint_r8", "seed_1", "checkpoint")
        before = (checkpoint / "unimoe.json").stat().st_mtime_ns
        again = call_script(
            "train.py", "--config", config, "--arm", "joint_r8", "--seed", "1",
            "--output-dir", checkpoint.parents[2],
        )  # fmt: skip
        assert again.returncode == 0
        assert (checkpoint / "unimoe.json").stat().st_mtime_ns == before

    def test_unknown_arm(self, config: Path) -> None:
        assert_refused(call_script("train.py", "--config", config, "--arm", "joint_r9"), 2, "did you mean 'joint_r8'?")

    @pytest.mark.parametrize(
        ("given", "today"),
        [
            ("--task NanoMSMARCO --num_steps 5000 --device cuda", "unimoe train-head --task NanoMSMARCO"),
            ("--arm joint_r8 --num_steps 5000", "--num_steps 5000: type --set training.steps=5000"),
        ],
    )
    def test_the_originals_options_have_todays_names_in_one_line(self, given: str, today: str) -> None:
        done = call_script("train.py", *given.split())
        assert_refused(done, 2, today)
        assert len(done.stderr.splitlines()) == 1


class TestEvaluate:
    def test_writes_results_beside_the_checkpoint_and_prints_them(self, checkpoint: Path) -> None:
        done = successful(call_script("evaluate.py", "--checkpoint", checkpoint))
        paths = [Path(line.rpartition("  ")[2]) for line in done.stdout.splitlines()]
        assert all(path.is_file() for path in paths)
        assert checkpoint.parent / "results" / "embedding" / "apidocs.json" in paths

    def test_max_queries_is_said_in_the_result(self, checkpoint: Path, tmp_path: Path) -> None:
        successful(
            call_script("evaluate.py", "--checkpoint", checkpoint, "--max-queries", "3", "--output-dir", tmp_path)
        )
        result = json.loads((tmp_path / "joint_r8/seed_1/results/reranking/apidocs.json").read_text(encoding="utf-8"))
        assert len(result["per_query"]) == 3
        assert result["identity"]["max_queries"] == 3
        assert "--max-queries 3" in result["caveats"][0]

    def test_real_collections_from_a_folder_and_a_missing_one_named(
        self, checkpoint: Path, unimoe_data: Path, tmp_path: Path
    ) -> None:
        done = call_script(
            "evaluate.py", "--checkpoint", checkpoint, "--eval-tier", "fast", "--max-queries", "2",
            "--task", "reranking", "--set", "evaluation.depth=3", "--output-dir", tmp_path,
            UNIMOE_DATA=str(unimoe_data),
        )  # fmt: skip
        assert done.returncode == 4, done.stderr
        assert "fiqa" in done.stderr
        assert "Traceback" not in done.stderr
        for dataset in ("scifact", "nfcorpus"):
            assert (tmp_path / "joint_r8" / "seed_1" / "results" / "reranking" / f"{dataset}.json").is_file()

    def test_half_written_checkpoint(self, checkpoint: Path, tmp_path: Path) -> None:
        half = shutil.copytree(checkpoint, tmp_path / "half")
        (half / "unimoe.json").unlink()
        assert_refused(call_script("evaluate.py", "--checkpoint", half), 3, "not a whole checkpoint", "unimoe.json")

    def test_checkpoint_of_another_base_model(self, config: Path, checkpoint: Path, tmp_path: Path) -> None:
        model = Path(tiny_experiment_dict(config.parent)["model"]["base"])
        kept = shutil.copytree(model, tmp_path / "kept")
        try:
            save_tiny_model(model, seed=5)
            assert_refused(call_script("evaluate.py", "--checkpoint", checkpoint), 3, "was trained on tiny-model@")
        finally:
            shutil.rmtree(model)
            shutil.copytree(kept, model)

    def test_config_of_another_model_is_refused(self, checkpoint: Path) -> None:
        done = call_script("evaluate.py", "--checkpoint", checkpoint, "--config", "experiments/bundled")
        assert_refused(done, 3, "--config", "model section differs")

    def test_neither_checkpoint_nor_zero_shot(self) -> None:
        assert_refused(call_script("evaluate.py"), 2, "--checkpoint", "--zero-shot")


def doctor(*options: str, **environment: str) -> dict[str, str]:
    done = successful(call_unimoe("doctor", *options, **environment))
    return {line.split()[0]: line for line in done.stdout.splitlines()}


def test_findings(tmp_path: Path) -> None:
    (tmp_path / "scifact" / "qrels").mkdir(parents=True)
    (tmp_path / "scifact" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n", encoding="utf-8")
    for part in ("corpus", "queries"):
        (tmp_path / "scifact" / f"{part}.jsonl").write_text('{"_id": "1", "text": "x"}\n', encoding="utf-8")
    found = doctor(
        "--config",
        str(write_tiny_experiment(tmp_path)),
        UNIMOE_DATA=str(tmp_path),
        UNIMOE_CACHE=str(tmp_path / "cache"),
    )
    assert found.keys() >= {"python", "packages", "device", "dtype", "cache", "disk", "collections", "main"}
    assert "scifact" in found["collections"]
    assert "nfcorpus" not in found["collections"]
    assert "GFLOP/s" in found["dtype"]
    assert str(tmp_path / "cache") in found["cache"]
    assert re.search(r"\d+ to \d+ (minutes|seconds), [.\d]+ TFLOP for tiny", found["main"])
