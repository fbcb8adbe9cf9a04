from __future__ import annotations

import os

import pytest
import torch

from unimoe.cli import options
from unimoe.models import device as devices


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing set by hand, and no trace of what is set here."""
    for name in ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(options, "_TOKENIZERS_PARALLELISM", None)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(devices, "choose_device", lambda name: torch.device(name or "cuda"))


class TestTokenizers:
    def test_they_take_one_core_where_the_others_compute(self) -> None:
        options.quiet_libraries()
        options.chosen_device("cpu")
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
        assert "RAYON_NUM_THREADS" not in os.environ

    def test_they_take_all_cores_beside_a_gpu(self) -> None:
        options.quiet_libraries()
        options.chosen_device(None)
        assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
        assert os.environ["RAYON_NUM_THREADS"] == "16"

    def test_the_processes_of_a_machine_share_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
        options.chosen_device(None)
        assert os.environ["RAYON_NUM_THREADS"] == "5"

    def test_what_the_user_set_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
        monkeypatch.setattr(options, "_TOKENIZERS_PARALLELISM", "false")
        options.quiet_libraries()
        options.chosen_device(None)
        assert os.environ["TOKENIZERS_PARALLELISM"] == "false"
