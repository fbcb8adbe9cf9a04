from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.json_files import read_plain, write_plain

from unimoe.config import Experiment
from unimoe.config.files import parse_config
from unimoe.core.errors import DataError
from unimoe.core.io import hash_file
from unimoe.models.checkpoint import (
    ADAPTER_FILE,
    ADAPTER_SETTINGS,
    Checkpoint,
    read_checkpoint,
    training_fingerprint,
    training_settings,
    write_manifest,
)
from unimoe.results import TrainingBudget

RAW: dict[str, Any] = {
    "name": "toy",
    "seeds": [1, 2],
    "model": {"base": "some/model"},
    "training": {"collection": "apidocs", "steps": 10},
    "arms": {
        "rank_only_r8": {"task": "rank_only", "learning_rate": 1e-3},
        "joint_r8": {"task": "joint", "learning_rate": 1e-3, "ranking_weight": 0.5},
    },
}


def experiment(changes: str = "", value: Any = None) -> Experiment:
    """The experiment above with ``section.key`` set to ``value``."""
    raw = json.loads(json.dumps(RAW))
    if changes:
        *sections, last = changes.split(".")
        node = raw
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = value
    return parse_config(Experiment, raw, "test")


def fingerprint(
    changes: str = "", value: Any = None, *, arm: str = "rank_only_r8", seed: int = 1, **content: str
) -> str:
    content = {"data": "d", "base": "b", "dtype": "float32"} | content
    return training_fingerprint(experiment(changes, value), arm, seed, **content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole checkpoint."""
    (tmp_path / ADAPTER_FILE).write_bytes(b"weights")
    (tmp_path / ADAPTER_SETTINGS).write_text("{}")
    write_manifest(tmp_path, manifest(tmp_path))
    return tmp_path


def manifest(folder: Path) -> Checkpoint:
    return Checkpoint(
        arm="rank_only_r8",
        seed=1,
        which="last",
        base_model="some/model@abc",
        dtype="bfloat16",
        fingerprint=fingerprint(),
        adapter_hash=hash_file(folder / ADAPTER_FILE),
        settings_hash=hash_file(folder / ADAPTER_SETTINGS),
        training=TrainingBudget(steps=10, ranking_examples=80, embedding_examples=0, tokens=1234),
        config=experiment().model_dump(),
    )


def edit(folder: Path, **changes: Any) -> None:
    """Change keys of the manifest; None removes one."""
    path = folder / "unimoe.json"
    raw = read_plain(path) | changes
    write_plain(path, {key: value for key, value in raw.items() if value is not None})


def refusal(folder: Path) -> str:
    """The one line with which a folder is refused."""
    with pytest.raises(DataError) as caught:
        read_checkpoint(folder)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(str(folder))
    assert any(remedy in line for remedy in ("train the arm", "run again", "--encoder"))
    return line


class TestReading:
    def test_what_was_written_comes_back(self, folder: Path) -> None:
        assert read_checkpoint(folder) == manifest(folder)

    @pytest.mark.parametrize("name", [ADAPTER_FILE, ADAPTER_SETTINGS])
    def test_a_changed_file_is_refused(self, folder: Path, name: str) -> None:
        (folder / name).write_text("{ }")
        assert f"{name}: content differs from its manifest" in refusal(folder)

    def test_a_checkpoint_of_before_names_no_hash_of_its_settings(self, folder: Path) -> None:
        edit(folder, settings_hash=None)
        assert read_checkpoint(folder).settings_hash is None

    def test_a_missing_folder(self, tmp_path: Path) -> None:
        assert "no such checkpoint folder" in refusal(tmp_path / "none")

    def test_an_encoder_is_sent_where_it_is_taken(self, tmp_path: Path) -> None:
        (tmp_path / "modules.json").write_text("[]")
        assert f"`unimoe retrieve --encoder {tmp_path}`" in refusal(tmp_path)

    @pytest.mark.parametrize("file", ["unimoe.json", ADAPTER_FILE])
    def test_a_half_written_folder(self, folder: Path, file: str) -> None:
        (folder / file).unlink()
        assert f"not a whole checkpoint, {file} is missing" in refusal(folder)

    def test_a_manifest_of_another_version_or_cut_short(self, folder: Path) -> None:
        edit(folder, checkpoint_version=2)
        assert "checkpoint_version: Input should be 1" in refusal(folder)
        path = folder / "unimoe.json"
        path.write_text(path.read_text()[:100])
        assert "unimoe.json: Invalid JSON" in refusal(folder)


class TestFingerprint:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("model.base", "other/model"),
            ("model.max_length", 256),
            ("prompt.order", "document_first"),
            ("lora.r", 4),
            ("training.steps", 11),
            ("training.ranking", {"hard_negatives": 5}),
            ("training.ranking", {"loss": "softmax"}),
            ("evaluation.bm25", {"k1": 1.2}),
            ("arms.rank_only_r8.learning_rate", 2e-3),
        ],
    )
    def test_what_determines_the_weights_changes_it(self, key: str, value: Any) -> None:
        assert fingerprint(key, value) != fingerprint()

    def test_that_of_yes_and_no_is_as_before_there_were_other_answers(self) -> None:
        assert not {"yes", "no"} & training_settings(experiment(), "rank_only_r8", 1)["prompt"].keys()
        assert fingerprint("prompt.yes", None) == fingerprint() != fingerprint("prompt.yes", "true")

    def test_content_arm_and_seed_change_it(self) -> None:
        others = {fingerprint(data="other"), fingerprint(base="other"), fingerprint(dtype="bfloat16")}
        assert len(others | {fingerprint(), fingerprint(seed=2), fingerprint(arm="joint_r8")}) == 6

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("output_dir", "elsewhere"),
            ("evaluation.token_budget", 100),
            ("evaluation.bundled", {"queries": 5}),
            ("training.save_every", 3),
            ("arms.joint_r8.learning_rate", 5e-3),
            ("arms.emb_only_r8", {"task": "emb_only", "learning_rate": 1e-3}),
        ],
    )
    def test_nothing_else_does(self, key: str, value: Any) -> None:
        assert fingerprint(key, value) == fingerprint()
