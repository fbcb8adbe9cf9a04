"""A fused first stage by hand, and against mteb's HybridSearch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mteb.models.hybrid_wrappers import fuse_rrf
from support.embedders import WordEmbedder
from support.reranking import invented
from support.tiny_encoders import save_tiny_encoder

from unimoe.config import BM25Config, DenseConfig, FusionConfig, FusionEncoder
from unimoe.core.trec import Run
from unimoe.data.collection import Collection, Document, assemble
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.dense import dense_run
from unimoe.retrieval.fusion import Hybrid

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")

TEXTS = {"a": "red fox", "b": "red", "c": "fox fox den", "d": "owl"}
TOY = assemble(
    "toy",
    "test",
    [(key, Document("", text)) for key, text in TEXTS.items()],
    [("fox", "red fox"), ("owl", "owl red"), ("den", "fox den")],
    {"fox": {"a": 1}, "owl": {"d": 1}, "den": {"c": 1}},
)

BY_BM25 = {"fox": "acb", "owl": "dba", "den": "ca"}
BY_COSINE = {"fox": "abcd", "owl": "dbac", "den": "cadb"}
"""Of word counts: for "red fox" 1, .71, .63, 0, for "owl red" .71, .71, .5, 0, for "fox den" .95, .5, 0, 0."""


@pytest.fixture
def encoder(tmp_path: Path) -> FusionEncoder:
    return FusionEncoder(base=str(save_tiny_encoder(tmp_path / "encoder")))


def fused(monkeypatch: pytest.MonkeyPatch, collection: Collection, words: list[str], cut: int, **config: Any) -> Run:
    """The run of a hybrid whose encoder counts words."""
    monkeypatch.setattr(Hybrid, "load", lambda _: WordEmbedder(words))
    return Hybrid(FusionConfig(**config), BM25Config()).run(collection, cut, exclude_self=False)


def test_the_order_by_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, encoder: FusionEncoder) -> None:
    config = DenseConfig(depth=4, cutoffs=[4])
    cosine = dense_run(WordEmbedder(["red", "fox", "den", "owl"]), TOY, config, store_dir=tmp_path / "vectors")
    for expected, found in ((BY_BM25, bm25_run(TOY, 4, BM25Config())), (BY_COSINE, cosine)):
        assert {key: "".join(scores) for key, scores in found.items()} == expected
    run = fused(monkeypatch, TOY, ["red", "fox", "den", "owl"], 4, encoder=encoder, depth=4)
    assert {key: "".join(found) for key, found in run.items()} == {"fox": "acbd", "owl": "dbac", "den": "cadb"}
    assert run["fox"] == {"a": 2 / 61, "c": 1 / 62 + 1 / 63, "b": 1 / 63 + 1 / 62, "d": 1 / 64}
    assert run["den"] == {"c": 2 / 61, "a": 2 / 62, "d": 1 / 63, "b": 1 / 64}


def test_depth_cuts_each_ranking_and_k_weighs_its_ranks(
    monkeypatch: pytest.MonkeyPatch, encoder: FusionEncoder
) -> None:
    """The first two of each: a c and a b, d b and d b, c a and c a."""
    run = fused(monkeypatch, TOY, ["red", "fox", "den", "owl"], 2, encoder=encoder, depth=2, k=1)
    assert run == {"fox": {"a": 1.0, "c": 1 / 3}, "owl": {"d": 1.0, "b": 2 / 3}, "den": {"c": 1.0, "a": 2 / 3}}
    deeper = fused(monkeypatch, TOY, ["red", "fox", "den", "owl"], 3, encoder=encoder, depth=2, k=1)
    assert deeper["fox"] == {"a": 1.0, "c": 1 / 3 + 1 / 4, "b": 1 / 4 + 1 / 3}, "as deep as the cut, at least"


def test_mteb_fuses_the_same_rankings_alike(monkeypatch: pytest.MonkeyPatch, encoder: FusionEncoder) -> None:
    collection = invented(documents=60, queries=12)
    words = sorted({word for document in collection.corpus.values() for word in document.full_text.split()})
    run = fused(monkeypatch, collection, words, 20, encoder=encoder, depth=30)
    embedder, by_words = WordEmbedder(words), bm25_run(collection, 30, BM25Config())
    documents = embedder.encode([document.full_text for document in collection.corpus.values()])
    for query_id, text in collection.queries.items():
        cosines = (documents @ embedder.encode([text])[0].astype("float64")).astype("float32").tolist()
        by_count = sorted(zip(cosines, collection.corpus, strict=True), reverse=True)[:30]
        scores = fuse_rrf([by_words[query_id], {key: score for score, key in by_count}], [1.0, 1.0])
        expected = sorted(scores, key=lambda key: (scores[key], key), reverse=True)[:20]
        assert list(run[query_id]) == expected
