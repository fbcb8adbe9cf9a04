"""The yes/no gap against sentence-transformers' CrossEncoder with LogitScore, fed the same token ids.

It would apply a chat template and a truncation of its own, so its modules get the ids themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from support.tiny_models import ModelKind, save_tiny_model
from support.yesno import Scores, assert_gaps_equal

from unimoe.config import ModelConfig, PromptConfig
from unimoe.models.base import load_base
from unimoe.models.prompts import yes_no_ids
from unimoe.models.unimodel import UnimodelForExp1

PAIRS = [
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
    sequences = peers.ours.pair_ids(PAIRS)
    expected = logit_scores(peers.theirs, sequences)
    assert np.ptp(expected) > 0.1
    assert_gaps_equal(peers.ours.rerank(PAIRS, output="gap"), expected)
    assert_gaps_equal(peers.ours.rerank(PAIRS, output="gap", batch_size=3), expected)


def test_the_probability_is_the_peers_default_activation(peers: Peers) -> None:
    scores = torch.from_numpy(logit_scores(peers.theirs, peers.ours.pair_ids(PAIRS)))
    np.testing.assert_allclose(peers.ours.rerank(PAIRS), peers.theirs.activation_fn(scores).numpy(), atol=1e-4)
