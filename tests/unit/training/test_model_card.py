"""Model cards: what the hub reads, and text that stays text."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from support.tiny_models import tiny_base

from unimoe.config import Experiment
from unimoe.config.files import parse_config
from unimoe.models.checkpoint import Checkpoint
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import TrainingBudget
from unimoe.training.model_card import model_card


def checkpoint(arm: str = "joint_r8", **changes: Any) -> Checkpoint:
    raw: dict[str, Any] = {
        "name": "exp-1",
        "seeds": [3],
        "model": {"base": "some/model", "max_length": 128},
        "prompt": {"template": "chat", "instruction": "Find: it"},
        "training": {"collection": "apidocs", "steps": 50, "warmup_ratio": 0.1, "schedule": "cosine"},
        "arms": {
            "rank_only_r8": {"task": "rank_only", "learning_rate": 1e-3},
            "emb_only_r8": {"task": "emb_only", "learning_rate": 1e-3},
            "joint_r8": {"task": "joint", "learning_rate": 1e-3, "ranking_weight": 0.5},
        },
    } | changes
    return Checkpoint(
        arm=arm,
        seed=3,
        which="last",
        base_model=f"{raw['model']['base']}@abc",
        dtype="bfloat16",
        fingerprint="f",
        adapter_hash="a",
        training=TrainingBudget(steps=40, ranking_examples=320, embedding_examples=640, tokens=12345),
        config=parse_config(Experiment, raw, source="test").model_dump(),
    )


def card(found: Checkpoint) -> Any:
    """The card as the hub's library reads it."""
    experiment = found.experiment
    model = UnimodelForExp1(tiny_base("llama"), experiment.prompt, experiment.model.max_length)
    return ModelCard(model_card(found, model))


@pytest.mark.parametrize(
    ("arm", "pipeline", "tags"),
    [
        ("rank_only_r8", "text-ranking", ["unimoe", "lora", "reranker"]),
        ("emb_only_r8", "feature-extraction", ["unimoe", "lora", "sentence-similarity"]),
        ("joint_r8", "text-ranking", ["unimoe", "lora", "reranker", "sentence-similarity"]),
    ],
)
def test_the_hub_finds_library_base_and_task(arm: str, pipeline: str, tags: list[str]) -> None:
    data = card(checkpoint(arm)).data
    assert (data.library_name, data.base_model, data.pipeline_tag) == ("peft", "some/model", pipeline)
    assert data.tags == tags


def test_text_from_outside_stays_text() -> None:
    hostile = 'a|b</td> [x](http://y) `z`\n---\n# "quoted"\n```\nrm'
    prompt = {"template": "chat", "instruction": hostile, "query_prefix": hostile, "order": "document_first"}
    found = card(checkpoint(prompt=prompt, caveats=[hostile], model={"base": "o/m", "max_length": 500}))
    body = found.text
    assert yaml.safe_load(found.data.to_yaml())["base_model"] == "o/m"
    assert '> a\\|b\\</td\\> \\[x\\](http://y) \\`z\\` --- \\# "quoted"' in body
    assert not any(line.strip() in ("---", '# "quoted"', "rm") for line in body.splitlines())
    blocks = body.split("\n```python\n")[1:]
    assert len(blocks) == 2
    for block in blocks:
        compile(block.partition("\n```\n")[0], "card", "exec")
