from __future__ import annotations

import json
import shutil
from collections.abc import Callable
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


def unlinked(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def an_encoder(folder: Path) -> None:
    unlinked("unimoe.json", ADAPTER_FILE)(folder)
    (folder / "modules.json").write_text("[]")


def cut_short(folder: Path) -> None:
    (folder / "unimoe.json").write_text((folder / "unimoe.json").read_text()[:100])


class TestReading:
    def test_what_was_written_comes_back(self, folder: Path) -> None:
        assert read_checkpoint(folder) == manifest(folder)
        edit(folder, settings_hash=None)  # as in a checkpoint of before
        assert read_checkpoint(folder).settings_hash is None

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda folder: (folder / ADAPTER_FILE).write_text("{ }"), "safetensors: content differs from its"),
            (lambda folder: (folder / ADAPTER_SETTINGS).write_text("{ }"), "config.json: content differs from its"),
            (shutil.rmtree, "no such checkpoint folder; train the arm first"),
            (an_encoder, "`unimoe retrieve --encoder "),
            (unlinked("unimoe.json"), "not a whole checkpoint, unimoe.json is missing; train the arm again"),
            (unlinked(ADAPTER_FILE), f"not a whole checkpoint, {ADAPTER_FILE} is missing; train the arm again"),
            (lambda folder: edit(folder, checkpoint_version=2), "checkpoint_version: Input should be 1"),
            (cut_short, "unimoe.json: Invalid JSON"),
        ],
    )
    def test_what_is_no_whole_checkpoint_is_refused(
        self, folder: Path, change: Callable[[Path], Any], words: str
    ) -> None:
        change(folder)
        with pytest.raises(DataError) as caught:
            read_checkpoint(folder)
        assert words in str(caught.value)
        assert str(caught.value).startswith(str(folder))
        assert "\n" not in str(caught.value)


class TestFingerprint:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("model.base", "other/model"),
            ("model.max_length", 256),
            ("prompt.order", "document_first"),
            ("prompt.yes", "true"),
            ("lora.r", 4),
            ("training.ranking", {"loss": "softmax"}),
            ("evaluation.bm25", {"k1": 1.2}),
            ("arms.rank_only_r8.learning_rate", 2e-3),
        ],
    )
    def test_what_determines_the_weights_changes_it(self, key: str, value: Any) -> None:
        assert fingerprint(key, value) != fingerprint()

    def test_content_arm_and_seed_change_it(self) -> None:
        others = {fingerprint(data="other"), fingerprint(base="other"), fingerprint(dtype="bfloat16")}
        assert len(others | {fingerprint(), fingerprint(seed=2), fingerprint(arm="joint_r8")}) == 6

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("output_dir", "elsewhere"),
            ("prompt.yes", None),
            ("evaluation.token_budget", 100),
            ("training.save_every", 3),
            ("arms.joint_r8.learning_rate", 5e-3),
            ("arms.emb_only_r8", {"task": "emb_only", "learning_rate": 1e-3}),
        ],
    )
    def test_nothing_else_does(self, key: str, value: Any) -> None:
        assert fingerprint(key, value) == fingerprint()
        # As before there were other answers than yes and no.
        assert not {"yes", "no"} & training_settings(experiment(), "rank_only_r8", 1)["prompt"].keys()
