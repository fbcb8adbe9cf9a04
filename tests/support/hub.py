"""A cache of the hub with models under names that are known there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants


class Hub:
    """A cache in a folder, where a model is found as if it were downloaded."""

    def __init__(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cache = cache
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))

    def publish(self, name: str, folder: Path, revision: str = "0" * 40) -> Path:
        """Copy a model's folder to where the newest revision of ``name`` is."""
        place = self._cache / f"models--{name.replace('/', '--')}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text(revision)
        return shutil.copytree(folder, place / "snapshots" / revision)
