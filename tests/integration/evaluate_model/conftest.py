"""What the tests of ``evaluate --model`` share: a folder of models, in which they run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.experiments import write_tiny_experiment
from support.named_models import FUNCTIONS
from support.reranking import invented, long_collection, write_invented
from support.tiny_encoders import save_tiny_encoder
from support.tiny_models import save_tiny_model
from support.tiny_rerankers import save_tiny_cross_encoder, save_tiny_score_adapter, save_tiny_score_head, save_tiny_t5


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Collections, and a folder for each kind of model, made once."""
    folder = tmp_path_factory.mktemp("models")
    write_invented(folder / "toy", invented(documents=10, queries=3))
    write_invented(folder / "wide", invented(documents=120, queries=6, words=40))
    write_invented(folder / "long", long_collection())
    save_tiny_cross_encoder(folder / "ce")
    save_tiny_cross_encoder(folder / "two", labels=2)
    save_tiny_cross_encoder(folder / "nli", labels=3)
    save_tiny_t5(folder / "t5")
    save_tiny_score_head(folder / "llama")
    save_tiny_score_head(folder / "grades", labels=3)
    save_tiny_score_adapter(folder / "base", folder / "adapter")
    save_tiny_model(folder / "causal", "qwen3")
    save_tiny_encoder(folder / "encoder")
    damaged = shutil.copytree(folder / "ce", folder / "damaged") / "model.safetensors"
    save_file({name: torch.full_like(w, torch.nan) for name, w in load_file(damaged).items()}, damaged)
    headless = shutil.copytree(folder / "ce", folder / "headless") / "model.safetensors"
    save_file({name: w for name, w in load_file(headless).items() if "classifier" not in name}, headless)
    (folder / "my_functions.py").write_text(FUNCTIONS, "utf-8")
    (folder / "my_leaving.py").write_text("raise SystemExit(0)\n", "utf-8")
    (folder / "my_broken.py").write_text("import json\njson.loads('{')\n", "utf-8")
    write_tiny_experiment(folder)
    return folder


@pytest.fixture(autouse=True)
def _here(data: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is that of the models, as for a user who names them by relative paths."""
    monkeypatch.chdir(data)
