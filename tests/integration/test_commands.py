"""The commands: help that reads well, and bad input answered in one line with the right exit code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.experiments import tiny_experiment_dict, write_tiny_experiment
from support.json_files import read_plain
from support.scripts import Done, assert_refused, call_script
from support.tiny_models import save_tiny_model


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_experiment(tmp_path_factory.mktemp("commands"))


@pytest.fixture(scope="module")
def checkpoint(config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output_dir = tmp_path_factory.mktemp("trained") / "outputs"
    done = call_script("train.py", "--config", config, "--arm", "joint_r8", "--seed", "1", "--output-dir", output_dir)
    assert done.returncode == 0, done.stderr
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

    def test_unknown_device(self, config: Path) -> None:
        assert_refused(
            call_script("train.py", "--config", config, "--arm", "joint_r8", "--device", "tpu"), 2, "--device tpu"
        )

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

    def test_typo_in_the_config(self, config: Path, tmp_path: Path) -> None:
        bad = tmp_path / "bad.yaml"
        bad.write_text(config.read_text(encoding="utf-8").replace("warmup_steps", "warmup_step"), encoding="utf-8")
        assert_refused(
            call_script("train.py", "--config", bad, "--arm", "joint_r8"),
            2, "bad.yaml", "training.warmup_step", "did you mean 'warmup_steps'?",
        )  # fmt: skip

    def test_output_folder_that_cannot_be_written(self, config: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way", encoding="utf-8")
        done = call_script(
            "train.py", "--config", config, "--arm", "joint_r8", "--output-dir", tmp_path / "file" / "below"
        )
        assert_refused(done, 2, "file")

    def test_corpus_line_that_is_not_json(self, config: Path, tmp_path: Path) -> None:
        folder = collection(tmp_path)
        with (folder / "corpus.jsonl").open("a", encoding="utf-8") as file:
            file.write('{"_id": "d9", "text": "cut off\n')
        assert_refused(train_on(config, folder), 3, "corpus.jsonl:4")

    def test_qrels_with_a_non_number(self, config: Path, tmp_path: Path) -> None:
        folder = collection(tmp_path)
        with (folder / "qrels" / "train.tsv").open("a", encoding="utf-8") as file:
            file.write("q1\td2\tvery\n")
        assert_refused(train_on(config, folder), 3, "train.tsv:3", "very")

    def test_query_without_text(self, config: Path, tmp_path: Path) -> None:
        folder = collection(tmp_path)
        (folder / "queries.jsonl").write_text('{"_id": "q1", "text": ""}\n', encoding="utf-8")
        assert_refused(train_on(config, folder), 3, "q1")


class TestEvaluate:
    def test_writes_results_beside_the_checkpoint_and_prints_them(self, checkpoint: Path) -> None:
        done = call_script("evaluate.py", "--checkpoint", checkpoint)
        assert done.returncode == 0, done.stderr
        paths = [Path(line.rpartition("  ")[2]) for line in done.stdout.splitlines()]
        assert all(path.is_file() for path in paths)
        assert checkpoint.parent / "results" / "embedding" / "apidocs.json" in paths

    def test_max_queries_is_said_in_the_result(self, checkpoint: Path, tmp_path: Path) -> None:
        done = call_script("evaluate.py", "--checkpoint", checkpoint, "--max-queries", "3", "--output-dir", tmp_path)
        assert done.returncode == 0, done.stderr
        result = json.loads((tmp_path / "joint_r8/seed_1/results/reranking/apidocs.json").read_text(encoding="utf-8"))
        assert len(result["per_query"]) == 3
        assert result["identity"]["max_queries"] == 3
        assert "--max-queries 3" in result["caveats"][0]

    def test_another_measurement_in_the_same_place_is_refused_and_nothing_touched(
        self, checkpoint: Path, tmp_path: Path
    ) -> None:
        options = ("--checkpoint", checkpoint, "--output-dir", tmp_path)
        assert call_script("evaluate.py", *options, "--max-queries", "3").returncode == 0
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert_refused(call_script("evaluate.py", *options), 3, "holds another evaluation", "max_queries 3 there")
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before

    def test_zero_shot_is_one_more_arm(self, config: Path, tmp_path: Path) -> None:
        done = call_script("evaluate.py", "--zero-shot", "--config", config, "--output-dir", tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "zero_shot/seed_none/results/embedding/apidocs.json").is_file()

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

    def test_missing_checkpoint(self, tmp_path: Path) -> None:
        assert_refused(call_script("evaluate.py", "--checkpoint", tmp_path / "none"), 3, "no such checkpoint folder")

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

    def test_unknown_tier(self, checkpoint: Path) -> None:
        done = call_script("evaluate.py", "--checkpoint", checkpoint, "--eval-tier", "fasst")
        assert_refused(done, 2, "did you mean 'fast'?")

    def test_neither_checkpoint_nor_zero_shot(self) -> None:
        assert_refused(call_script("evaluate.py"), 2, "--checkpoint", "--zero-shot")

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            (lambda text: text[: len(text) // 2], ["is damaged or of another version"]),
            (
                lambda text: text.replace('"schema_version": 1', '"schema_version": 0'),
                ["is damaged or of another version", "schema_version"],
            ),
        ],
        ids=["cut short", "older schema"],
    )
    def test_damaged_result_file_is_named(
        self, checkpoint: Path, tmp_path: Path, damage: Callable[[str], str], words: list[str]
    ) -> None:
        assert call_script("evaluate.py", "--checkpoint", checkpoint, "--output-dir", tmp_path).returncode == 0
        path = tmp_path / "joint_r8/seed_1/results/reranking/apidocs.json"
        path.write_text(damage(json.dumps(read_plain(path))), encoding="utf-8")
        assert_refused(call_script("analyze_results.py", "--output-dir", tmp_path), 3, "reranking/apidocs.json", *words)


def collection(folder: Path) -> Path:
    """A small collection in BEIR layout."""
    (folder / "qrels").mkdir()
    documents = ["cosine of an angle", "sort a list", "mean of an array"]
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(documents)), encoding="utf-8"
    )
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "sorting"}\n', encoding="utf-8")
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n", encoding="utf-8")
    return folder


def train_on(config: Path, folder: Path) -> Done:
    return call_script(
        "train.py", "--config", config, "--arm", "rank_only_r8", "--output-dir", folder / "outputs",
        "--set", f"training.collection=path:{folder}",
    )  # fmt: skip
