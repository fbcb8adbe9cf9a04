"""Which weights of a base train where its lower layers are frozen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel

from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.training.model import _freeze

SIZES: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 32, "pad_token_id": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "settings", "after"),
    [
        ("bert", {}, set()),
        ("mpnet", {}, set()),  # the bias that all layers share is no norm after them
        ("modernbert", {"global_attn_every_n_layers": 1}, {"final_norm.weight"}),
        ("qwen3", {"head_dim": 4, "num_key_value_heads": 2}, {"norm.weight"}),
    ],
)
def test_upper_layers_train_and_what_follows_them(kind: str, settings: dict[str, Any], after: set[str]) -> None:
    torch.manual_seed(0)
    auto: Any = AutoModel
    model = auto.from_config(AutoConfig.for_model(kind, **{**SIZES, **settings})).eval()
    _freeze(model, BiEncoderConfig(frozen_layers=2))
    trains = {name for name, weight in model.named_parameters() if weight.requires_grad}
    of_layers = {name for name in trains if ".2." in name}
    assert of_layers
    assert trains - of_layers == after
    assert not {name for name in trains if ".0." in name or ".1." in name}
