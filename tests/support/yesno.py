"""The plain yes/no formula: the code of Qwen3-Reranker's model card, which the scorer has to equal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe.config.training import LoraConfig
from unimoe.models.adapter import adapter_parameters, add_lora
from unimoe.models.base import BaseModel
from unimoe.models.prompts import yes_no_ids

Scores = NDArray[np.float32]


@torch.inference_mode()
def plain_scores(base: BaseModel, sequences: Sequence[list[int]], rows: int = 4) -> tuple[Scores, Scores]:
    """Gaps and P(yes): batches of ``rows`` padded on the left, all logits, log-softmax over no and yes.

    Positions count from the first real token, as in generation: counted from the padding, rotations are rounded
    otherwise, which alone moves gaps of a random model by 1.5e-4.
    """
    yes, no = yes_no_ids(base.tokenizer)
    answers = []
    for begin in range(0, len(sequences), rows):
        batch = sequences[begin : begin + rows]
        longest = max(map(len, batch))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in batch])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in batch])
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        output = base.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
        answers.append(output.logits[:, -1, [no, yes]])
    logits = torch.cat(answers)
    probabilities = torch.nn.functional.log_softmax(logits, dim=1)[:, 1].exp()
    return (logits[:, 1] - logits[:, 0]).numpy(), probabilities.numpy()


def assert_margins_equal(found: Scores, expected: Scores) -> None:
    """As exact as float32 allows for sums in another order."""
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    np.testing.assert_array_less(np.abs(found - expected), 1e-4 * np.maximum(1, np.abs(expected)))


def adapt(base: BaseModel, first_layer: int) -> None:
    """Put adapters that do something into a base model, from ``first_layer`` up: fresh ones change nothing."""
    adapters = adapter_parameters(add_lora(base, LoraConfig(first_layer=first_layer), seed=1))
    torch.manual_seed(2)
    for name, weight in adapters.items():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
