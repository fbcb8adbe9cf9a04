"""The commands as scripts: what they write and print, and bad input answered in one line with its exit code."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from support.experiments import tiny_experiment_dict, write_tiny_experiment
from support.json_files import read_plain
from support.scripts import assert_refused, call_script, call_unimoe, successful
from support.sources import SMALL, write_beir
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


def test_training_prints_the_checkpoint_and_keeps_it_on_resume(config: Path, checkpoint: Path) -> None:
    assert checkpoint.parts[-3:] == ("joint_r8", "seed_1", "checkpoint")
    before = (checkpoint / "unimoe.json").stat().st_mtime_ns
    again = ("train.py", "--config", config, "--arm", "joint_r8", "--seed", "1", "--output-dir", checkpoint.parents[2])
    successful(call_script(*again))
    assert (checkpoint / "unimoe.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("train.py --config {config} --arm joint_r9", 2, ["did you mean 'joint_r8'?"]),
        # The originals' options.
        ("train.py --task NanoMSMARCO --num_steps 5000 --device cuda", 2, ["unimoe train-head --task NanoMSMARCO"]),
        ("train.py --arm joint_r8 --num_steps 5000", 2, ["--num_steps 5000: type --set training.steps=5000"]),
        ("evaluate.py", 2, ["--checkpoint", "--zero-shot"]),
        ("evaluate.py --checkpoint {half}", 3, ["not a whole checkpoint", "unimoe.json"]),
        (
            "evaluate.py --checkpoint {checkpoint} --config experiments/bundled",
            3,
            ["--config", "model section differs"],
        ),
    ],
)
def test_bad_input_is_one_line(
    config: Path, checkpoint: Path, tmp_path: Path, command: str, code: int, words: list[str]
) -> None:
    half = shutil.copytree(checkpoint, tmp_path / "half")
    (half / "unimoe.json").unlink()
    done = call_script(*command.format(config=config, checkpoint=checkpoint, half=half).split())
    assert_refused(done, code, *words)
    assert len(done.stderr.splitlines()) == 1


def test_an_evaluation_writes_beside_the_checkpoint_and_names_a_collection_that_is_missing(
    checkpoint: Path, unimoe_data: Path, tmp_path: Path
) -> None:
    done = successful(call_script("evaluate.py", "--checkpoint", checkpoint))
    paths = [Path(line.rpartition("  ")[2]) for line in done.stdout.splitlines()]
    assert all(path.is_file() for path in paths)
    assert checkpoint.parent / "results" / "embedding" / "apidocs.json" in paths
    done = call_script(
        "evaluate.py", "--checkpoint", checkpoint, "--eval-tier", "fast", "--max-queries", "2",
        "--task", "reranking", "--set", "evaluation.depth=3", "--output-dir", tmp_path,
        UNIMOE_DATA=str(unimoe_data),
    )  # fmt: skip
    assert_refused(done, 4, "fiqa", silent=False)
    for dataset in ("scifact", "nfcorpus"):
        result = read_plain(tmp_path / "joint_r8" / "seed_1" / "results" / "reranking" / f"{dataset}.json")
        assert (len(result["per_query"]), result["identity"]["max_queries"]) == (2, 2)
        assert "--max-queries 2" in result["caveats"][0]


def test_a_checkpoint_of_another_base_model_is_refused(config: Path, checkpoint: Path, tmp_path: Path) -> None:
    model = Path(tiny_experiment_dict(config.parent)["model"]["base"])
    kept = shutil.copytree(model, tmp_path / "kept")
    try:
        save_tiny_model(model, seed=5)
        assert_refused(call_script("evaluate.py", "--checkpoint", checkpoint), 3, "was trained on tiny-model@")
    finally:
        shutil.rmtree(model)
        shutil.copytree(kept, model)


def test_doctor_shows_machine_collections_and_the_time_of_the_main_job(tmp_path: Path) -> None:
    write_beir(SMALL, tmp_path / "scifact")
    places = {"UNIMOE_DATA": str(tmp_path), "UNIMOE_CACHE": str(tmp_path / "cache")}
    done = successful(call_unimoe("doctor", "--config", write_tiny_experiment(tmp_path), **places))
    found = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert found.keys() >= {"python", "packages", "device", "dtype", "cache", "disk", "collections", "main"}
    assert "scifact" in found["collections"]
    assert "nfcorpus" not in found["collections"]
    assert "GFLOP/s" in found["dtype"]
    assert str(tmp_path / "cache") in found["cache"]
    assert re.search(r"\d+ to \d+ (minutes|seconds), [.\d]+ TFLOP for tiny", found["main"])
