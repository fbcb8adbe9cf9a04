"""A checkpoint is of use without unimoe: the code on its model card gives the scores and vectors that unimoe gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from support.experiments import tiny_experiment
from support.tiny_models import save_tiny_model
from support.trainings import CPU, train

from unimoe.config import Experiment
from unimoe.config.files import overridden, parse_config
from unimoe.models.loader import ModelLoader
from unimoe.training.examples import load_training_data

PAIRS = [
    ("norm of a vector", "Return one of eight matrix norms."),
    ("sort", "Return a sorted copy. " * 60),
    ("an ünusual query?", "x"),
]
PROMPTS = [
    '{template: chat, order: document_first, instruction: Judge it., query_prefix: "ask ", embedding_suffix: "\\n"}',
    '{template: plain, order: document_first, instruction: "", query_prefix: "", embedding_suffix: "\\n"}',
    '{template: qwen3, order: query_first, document_prefix: "doc ", embedding_suffix: "<|endoftext|>"}',
]


CASES = [(PROMPTS[0], "llama", "null"), (PROMPTS[1], "llama", "null"), (PROMPTS[2], "qwen3", "3")]


@pytest.fixture(scope="module", params=CASES, ids=["document first", "plain", "query first, three of four layers"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path]:
    folder = tmp_path_factory.mktemp("elsewhere")
    prompt, kind, layers = request.param
    save_tiny_model(folder / "tiny-model", kind)
    overrides = [f"prompt={prompt}", f"model.layers={layers}", "training.steps=2", "lora.first_layer=1"]
    overrides.append("model.max_length=512")
    experiment = parse_config(Experiment, overridden(tiny_experiment(folder).model_dump(), overrides), source="tiny")
    return experiment, train(experiment, load_training_data(experiment), "joint_r8")


def test_the_code_on_the_card_gives_the_same_scores_and_vectors(
    trained: tuple[Experiment, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    experiment, folder = trained
    blocks = ModelCard.load(folder / "README.md").text.split("\n```python\n")[1:]
    there: dict[str, Any] = {}
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    ours = ModelLoader(experiment, CPU, torch.float32).trained(folder)

    exec(blocks[0].partition("\n```\n")[0], there)
    scores = [there["score"](query, document) for query, document in PAIRS]
    assert scores == pytest.approx(ours.rerank(PAIRS, output="margin").tolist(), abs=1e-3)

    exec(blocks[1].partition("\n```\n")[0], there)
    prompt = experiment.prompt
    texts = [query for query, _ in PAIRS]
    for prefix, expected in (
        (prompt.query_prefix, ours.encode(texts, kind="query")),
        (prompt.document_prefix, ours.encode(texts, kind="document")),
    ):
        found = np.stack([there["embed"](text, prefix) for text in texts])
        assert np.abs(found - expected).max() < 1e-4


def test_the_adapter_names_its_base_and_nothing_else_of_this_machine(trained: tuple[Experiment, Path]) -> None:
    import peft

    experiment, folder = trained
    config = peft.PeftConfig.from_pretrained(str(folder))
    assert config.base_model_name_or_path == experiment.model.base
