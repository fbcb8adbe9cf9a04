"""Checkpoints, files of tensors, and the device and dtype to compute with."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.json_files import read_plain, write_plain

from unimoe.config import Experiment
from unimoe.config.files import parse_config
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_file
from unimoe.models import device as device_module
from unimoe.models.checkpoint import (
    ADAPTER_FILE,
    ADAPTER_SETTINGS,
    Checkpoint,
    read_checkpoint,
    training_fingerprint,
    training_settings,
    write_manifest,
)
from unimoe.models.device import choose_device, choose_dtype
from unimoe.models.tensor_files import read_tensors, save_tensors
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


_KILLED_WHILE_WRITING = """
import os, pathlib, sys
import torch
from unimoe.models.tensor_files import save_tensors

def killed(path, content):
    path.open("wb").write(content[:9])
    os.kill(os.getpid(), 9)

pathlib.Path.write_bytes = killed
save_tensors(pathlib.Path(sys.argv[1]), {"a": torch.ones(2)}, {})
"""


def test_what_a_killed_write_left_goes_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    subprocess.run([sys.executable, "-c", _KILLED_WHILE_WRITING, path], check=False)
    assert not path.exists()
    save_tensors(path, {"a": torch.ones(2)}, {"step": "3"})
    assert list(tmp_path.iterdir()) == [path]
    tensors, texts = read_tensors(path)
    assert (tensors["a"].tolist(), texts) == ([1.0, 1.0], {"step": "3"})


def test_a_changed_byte_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_tensors(path, {"a": torch.ones(2)}, {})
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="checksum"):
        read_tensors(path)


CPU = torch.device("cpu")


def only_cpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cuda, "is_available", lambda: False)
    patch.setattr(torch.backends.mps, "is_available", lambda: False)


class TestDevice:
    def test_the_best_there_is_by_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        only_cpu(monkeypatch)
        assert choose_device() == CPU
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        assert choose_device() == torch.device("mps")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        assert choose_device() == torch.device("cuda")

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("gpu", "unknown; use cpu, cuda or mps"),
            ("cuda:0", "unknown; use cpu, cuda or mps"),
            ("", "unknown; use cpu, cuda or mps"),
            ("cuda", "not found on this machine, which has cpu"),
            ("mps", "not found on this machine, which has cpu"),
        ],
    )
    def test_what_is_not_there_is_refused(self, monkeypatch: pytest.MonkeyPatch, name: str, words: str) -> None:
        only_cpu(monkeypatch)
        with pytest.raises(UsageError, match=rf"--device {name}: {words}"):
            choose_device(name)


class TestDtype:
    def test_a_setting_is_honoured_unmeasured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device_module, "probe_speed", None)
        assert choose_dtype(CPU, "float16") == torch.float16

    @pytest.mark.parametrize(
        ("gain", "dtype"), [(0.5, torch.float32), (1.2, torch.float32), (3.0, torch.bfloat16)], ids=str
    )
    def test_auto_takes_bfloat16_only_where_it_is_clearly_faster(
        self, monkeypatch: pytest.MonkeyPatch, gain: float, dtype: torch.dtype
    ) -> None:
        monkeypatch.setattr(device_module, "probe_speed", lambda _: {"float32": 1.0, "bfloat16": gain})
        assert choose_dtype(CPU) == dtype

    @pytest.mark.parametrize(("emulated", "trained"), [(True, "float32"), (False, "bfloat16")])
    def test_a_gpu_without_bfloat16_scores_in_float16_and_trains_in_float32(
        self, monkeypatch: pytest.MonkeyPatch, emulated: bool, trained: str
    ) -> None:
        """The speed is made up: there is no GPU here."""
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: not emulated)
        half = device_module._half("cuda")
        assert half == ("float16" if emulated else "bfloat16")
        monkeypatch.setattr(device_module, "probe_speed", lambda _: {"float32": 1.0, half: 4.0})
        assert choose_dtype(torch.device("cuda")) == getattr(torch, half)
        assert choose_dtype(torch.device("cuda"), trains=True) == getattr(torch, trained)
