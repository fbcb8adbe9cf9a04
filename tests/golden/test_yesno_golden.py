"""The yes/no score against the plain formula: left padding, full logits, log-softmax over no and yes.

The reference is the code of Qwen3-Reranker's model card, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.tiny_models import ModelKind, tiny_base
from torch import Tensor

from unimoe.config import LoraConfig, PromptConfig
from unimoe.models.adapter import adapter_parameters, add_lora
from unimoe.models.prompts import PairEncoder
from unimoe.models.unimodel import UnimodelForExp1

MAX_LENGTH = 300
PAIRS = [
    ("what sorts a list", "a quick sort splits the list around a pivot and sorts both halves"),
    ("what sorts a list", ""),
    ("", "the cat sat on the mat"),
    ("cat", "rain " * 400),
    ("où est le chat? 🐈", "the cat sat on the mat while rain fell on the roof of the old house"),
    ("cat", "cat"),
    ("the old house", "rain fell " * 20),
]


class Case(NamedTuple):
    kind: ModelKind
    lora: bool
    first_layer: int


CASES = [Case(kind, lora, first) for kind in ("qwen3", "llama") for lora in (False, True) for first in (0, 2)]


class Subject(NamedTuple):
    model: UnimodelForExp1
    gaps: NDArray[np.float32]
    probabilities: NDArray[np.float32]


@torch.inference_mode()
def reference(model: Any, sequences: Sequence[list[int]], yes: int, no: int) -> tuple[Tensor, Tensor]:
    """Gap and P(yes) of the whole batch in one pass, padded on the left under an attention mask."""
    longest = max(map(len, sequences))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in sequences])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in sequences])
    logits = model(input_ids=ids, attention_mask=mask).logits[:, -1, :]
    both = torch.nn.functional.log_softmax(torch.stack([logits[:, no], logits[:, yes]], dim=1), dim=1)
    return logits[:, yes] - logits[:, no], both[:, 1].exp()


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case.kind}-lora{case.lora:d}-from{case.first_layer}")
def subject(request: pytest.FixtureRequest) -> Subject:
    case: Case = request.param
    base = tiny_base(case.kind)
    if case.lora:
        adapters = adapter_parameters(add_lora(base, LoraConfig(first_layer=case.first_layer), seed=1))
        torch.manual_seed(2)
        for name, weight in adapters.items():
            if "lora_B" in name:  # zero when fresh, which would change nothing
                torch.nn.init.normal_(weight, std=0.1)
    sequences = PairEncoder(base.tokenizer, PromptConfig(), MAX_LENGTH)(PAIRS)
    yes, no = base.tokenizer.convert_tokens_to_ids(["yes", "no"])
    gaps, probabilities = reference(base.model, sequences, yes, no)
    model = UnimodelForExp1(base, PromptConfig(), MAX_LENGTH, case.first_layer)
    return Subject(model, gaps.numpy(), probabilities.numpy())


def assert_gaps_equal(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    assert (np.abs(found - expected) <= 1e-4 * np.maximum(1, np.abs(expected))).all()


def test_the_reference_tells_the_pairs_apart(subject: Subject) -> None:
    assert np.ptp(subject.gaps) > 0.1  # otherwise the comparisons below could not fail


def test_the_gap_is_yes_minus_no(subject: Subject) -> None:
    assert_gaps_equal(subject.model.rerank(PAIRS, output="gap"), subject.gaps)


def test_the_probability_is_that_of_the_formula(subject: Subject) -> None:
    np.testing.assert_allclose(subject.model.rerank(PAIRS), subject.probabilities, atol=1e-4)


@settings(max_examples=10)
@given(
    rows=st.lists(st.integers(0, len(PAIRS) - 1), min_size=1, max_size=9),
    token_budget=st.sampled_from([1, 300, 700, 100_000]),
    batch_size=st.sampled_from([None, 1, 2, 100]),
)
def test_neither_order_nor_company_nor_batching_matters(
    subject: Subject, rows: list[int], token_budget: int, batch_size: int | None
) -> None:
    pairs = [PAIRS[row] for row in rows]
    gaps = subject.model.rerank(pairs, output="gap", token_budget=token_budget, batch_size=batch_size)
    assert_gaps_equal(gaps, subject.gaps[rows])


def test_a_hundred_lengths(subject: Subject) -> None:
    pairs = [("cat", "rain " * length) for length in range(0, 200, 2)]
    sequences = subject.model.pair_ids(pairs)
    assert len({len(ids) for ids in sequences}) > 50
    yes, no = subject.model.tokenizer.convert_tokens_to_ids(["yes", "no"])
    expected, _ = reference(subject.model.model, sequences, yes, no)
    assert_gaps_equal(subject.model.rerank(pairs, output="gap"), expected.numpy())
