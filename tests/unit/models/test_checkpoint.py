"""Checkpoints, and the device and dtype to compute with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.scripts import read_plain, write_plain

from unimoe.cli.doctor import examine
from unimoe.config import Experiment
from unimoe.config.files import overridden, parse_config
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_file
from unimoe.models import checkpoint as checkpoints
from unimoe.models import device as device_module
from unimoe.models.device import choose_device, choose_dtype
from unimoe.models.identity import ADAPTER_SETTINGS
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


def experiment(*overrides: str) -> Experiment:
    return parse_config(Experiment, overridden(RAW, overrides), "test")


def fingerprint(*overrides: str, arm: str = "rank_only_r8", seed: int = 1, **content: str) -> str:
    content = {"data": "d", "base": "b", "dtype": "float32"} | content
    return checkpoints.training_fingerprint(experiment(*overrides), arm, seed, **content)


def manifest(folder: Path) -> checkpoints.Checkpoint:
    return checkpoints.Checkpoint(
        arm="rank_only_r8",
        seed=1,
        which="last",
        base_model="some/model@abc",
        dtype="bfloat16",
        fingerprint=fingerprint(),
        adapter_hash=hash_file(folder / checkpoints.ADAPTER_FILE),
        settings_hash=hash_file(folder / ADAPTER_SETTINGS),
        training=TrainingBudget(steps=10, ranking_examples=80, embedding_examples=0, tokens=1234),
        config=experiment().model_dump(),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole checkpoint."""
    (tmp_path / checkpoints.ADAPTER_FILE).write_bytes(b"weights")
    (tmp_path / ADAPTER_SETTINGS).write_text("{}")
    checkpoints.write_manifest(tmp_path, manifest(tmp_path))
    return tmp_path


def test_what_was_written_comes_back_and_checkpoints_of_before_state_no_settings_hash(folder: Path) -> None:
    assert checkpoints.read_checkpoint(folder) == manifest(folder)
    raw = read_plain(folder / "unimoe.json")
    raw.pop("settings_hash")
    write_plain(folder / "unimoe.json", raw)
    assert checkpoints.read_checkpoint(folder).settings_hash is None


def an_encoder(folder: Path) -> None:
    (folder / "unimoe.json").unlink()
    (folder / checkpoints.ADAPTER_FILE).rename(folder / "modules.json")


def of_a_bi_encoder(folder: Path) -> None:
    (folder / "modules.json").write_text("[]")


def of_version_2(folder: Path) -> None:
    write_plain(folder / "unimoe.json", read_plain(folder / "unimoe.json") | {"checkpoint_version": 2})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / checkpoints.ADAPTER_FILE).write_text("{ }"), "safetensors: content differs from its"),
        (
            lambda folder: (folder / ADAPTER_SETTINGS).write_text("{ }"),
            "config.json: content differs from its",
        ),
        (shutil.rmtree, "no such checkpoint folder; train the arm first"),
        (an_encoder, "`unimoe retrieve --encoder "),
        (of_a_bi_encoder, "`unimoe retrieve --encoder "),
        (lambda folder: (folder / "unimoe.json").unlink(), "unimoe.json is missing; train the arm again"),
        (
            lambda folder: (folder / checkpoints.ADAPTER_FILE).unlink(),
            f"{checkpoints.ADAPTER_FILE} is missing; train the arm again",
        ),
        (of_version_2, "checkpoint_version: Input should be 1"),
        (lambda folder: (folder / "unimoe.json").write_text('{"arm": "ra'), "unimoe.json: Invalid JSON"),
    ],
)
def test_what_is_no_whole_checkpoint_is_refused(folder: Path, change: Callable[[Path], Any], words: str) -> None:
    change(folder)
    with pytest.raises(DataError) as caught:
        checkpoints.read_checkpoint(folder)
    assert words in str(caught.value)
    assert str(caught.value).startswith(str(folder))
    assert "\n" not in str(caught.value)


def test_what_determines_the_weights_changes_the_fingerprint_and_nothing_else_does() -> None:
    changes = [
        "model.base=other/model", "model.max_length=256", "prompt.order=document_first", "prompt.answers=[x]",
        "lora.r=4", "training.ranking={loss: softmax}", "evaluation.bm25={k1: 1.2}",
        "arms.rank_only_r8.learning_rate=2e-3",
    ]  # fmt: skip
    others = [fingerprint(data="other"), fingerprint(base="other"), fingerprint(dtype="bfloat16")]
    others += [fingerprint(seed=2), fingerprint(arm="joint_r8"), *map(fingerprint, changes)]
    assert len({fingerprint(), *others}) == 14
    for neutral in (
        "output_dir=elsewhere", "prompt.answers=null", "evaluation.token_budget=100", "training.save_every=3",
        "arms.joint_r8.learning_rate=5e-3", "arms.emb_only_r8={task: emb_only, learning_rate: 1e-3}",
    ):  # fmt: skip
        assert fingerprint(neutral) == fingerprint(), neutral
    # As before there were other answers than yes and no.
    assert (
        not {"yes", "no", "answers"} & checkpoints.training_settings(experiment(), "rank_only_r8", 1)["prompt"].keys()
    )


CPU = torch.device("cpu")


def test_the_device_is_the_best_there_is_and_another_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device() == CPU
    for name in ("gpu", "cuda:0", ""):
        with pytest.raises(UsageError, match=f"--device {name}: unknown; use cpu, cuda or mps"):
            choose_device(name)
    for name in ("cuda", "mps"):
        with pytest.raises(UsageError, match=f"--device {name}: not found on this machine, which has cpu"):
            choose_device(name)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device() == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device() == torch.device("cuda")


@pytest.mark.parametrize(("gain", "dtype"), [(0.5, "float32"), (1.2, "float32"), (3.0, "bfloat16")])
def test_a_dtype_is_that_of_the_config_else_bfloat16_where_it_is_clearly_faster(
    monkeypatch: pytest.MonkeyPatch, gain: float, dtype: str
) -> None:
    monkeypatch.setattr(device_module, "probe_speed", lambda _: {"float32": 1.0, "bfloat16": gain})
    assert choose_dtype(CPU) == getattr(torch, dtype)
    monkeypatch.setattr(device_module, "probe_speed", None)  # nothing is measured
    assert choose_dtype(CPU, "float16") == torch.float16


@pytest.mark.parametrize(
    ("device", "share", "load", "busy"),
    [("cpu", 0.4, 3.0, True), ("cpu", 0.95, 3.0, False), ("cpu", 0.4, 0.2, False), ("cuda", 0.1, 3.0, False)],
)
def test_a_probe_beside_other_work_says_so(
    monkeypatch: pytest.MonkeyPatch, device: str, share: float, load: float, busy: bool
) -> None:
    """An estimate on a busy machine read as if it were idle."""
    monkeypatch.setattr(device_module, "_probe", lambda _: ({"float32": 1e9, "bfloat16": 2e9}, share))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    said = "measured on a busy machine: other work left 40% of the processors' time, load average 3.0; measure again"
    assert device_module.other_work(device).startswith(said) == busy
    assert bool(device_module.other_work(device)) == busy
    found = examine(experiment(), torch.device(device))
    if device == "cpu":
        assert ("busy machine" in next(text for name, text in found if name == "dtype")) == busy


@pytest.mark.parametrize(("half", "trained"), [("float16", "float32"), ("bfloat16", "bfloat16")])
def test_a_gpu_without_bfloat16_scores_in_float16_and_trains_in_float32(
    monkeypatch: pytest.MonkeyPatch, half: str, trained: str
) -> None:
    """The speed is made up: there is no GPU here."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: half == "bfloat16")
    assert device_module._half("cuda") == half
    monkeypatch.setattr(device_module, "probe_speed", lambda _: {"float32": 1.0, half: 4.0})
    assert choose_dtype(torch.device("cuda")) == getattr(torch, half)
    assert choose_dtype(torch.device("cuda"), trains=True) == getattr(torch, trained)
