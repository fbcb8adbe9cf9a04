"""Dense retrieval on small collections: what is searched, what is scored, what is embedded again, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.embedders import WordEmbedder
from support.sources import SMALL, write_msmarco

from unimoe.config import DenseConfig, DenseExperiment
from unimoe.core.errors import DataError, UsageError
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection, Document, assemble
from unimoe.evaluation.retrieval_eval import dense_collection, retrieval_notes, search_retrieval
from unimoe.evaluation.systems.retriever import retriever_name
from unimoe.retrieval.dense import embed_collection

WORDS = ("heron", "tide", "moon", "rain")
DOCUMENTS = {"a": "heron heron tide", "b": "heron", "c": "tide moon", "d": "rain", "e": "moon rain rain"}
QUERIES = {"q1": "heron", "q2": "moon", "u": "rain"}
QRELS = {"q1": {"a": 1, "b": 2}, "q2": {"c": 1, "a": 0}}


def toy(qrels: dict[str, dict[str, int]] | None = None, documents: dict[str, str] | None = None) -> Collection:
    pairs = [(key, Document("", text)) for key, text in (DOCUMENTS if documents is None else documents).items()]
    return assemble("toy", "test", pairs, QUERIES.items(), qrels or QRELS)


def large(documents: int = 60, queries: int = 20) -> Collection:
    """Each query has two relevant documents, one of them of grade 2."""
    corpus = [(f"d{i:02d}", Document("", WORDS[i % 4])) for i in range(documents)]
    asked = [(f"q{i:02d}", WORDS[i % 4]) for i in range(queries)]
    qrels = {f"q{i:02d}": {f"d{i:02d}": 1, f"d{i + 20}": 2} for i in range(queries)}
    return assemble("large", "test", corpus, asked, qrels)


def long() -> Collection:
    """Forty documents, of which five make a unit of work."""
    documents = {f"d{i:02d}": f"{'x' * 210_000} {WORDS[i % 4]} {WORDS[i % 3]}" for i in range(40)}
    return toy({"q1": {"d00": 1}}, documents)


def retrieve(folder: Path, collection: Collection, model: WordEmbedder | None = None, **given: Any) -> Any:
    weights = given.pop("weights", None)
    config = DenseConfig(**{"depth": 5, "cutoffs": [1, 5], **given})
    embedded = embed_collection(model or WordEmbedder(WORDS), collection, config, store_dir=folder, weights=weights)
    return search_retrieval(embedded, collection, config)


def test_what_to_know_before_scores_are_believed_is_noted(tmp_path: Path) -> None:
    (note,) = retrieval_notes(large(200), 20)
    assert note == "large: recall@100 and map count the 20 documents kept of each query"
    assert retrieval_notes(large(200), 100) == []
    lacking = toy({"q1": {"b": 1}, "q2": {"c": 0}})
    found = retrieve(tmp_path, lacking)
    assert found.scores.per_query["recall_of_retrieved@5"] == {"q1": 1.0, "q2": 0.0}
    assert "toy: judged queries without a relevant document, which count 0: 1 (q2)" in retrieval_notes(lacking, 5)


@pytest.mark.parametrize("change", ["nothing", "weights", "prompt", "base", "corpus", "storage", "length"])
def test_what_changes_vectors_makes_new_ones_and_nothing_else_does(tmp_path: Path, change: str) -> None:
    model, collection = WordEmbedder(WORDS), toy()
    retrieve(tmp_path, collection, model)
    if change == "prompt":
        model.prompt_name = "bare@other"
    elif change == "base":
        model.base_identity = "words@other"
    elif change == "corpus":
        collection = replace(collection, corpus=collection.corpus | {"b": Document("", "tide")})
    changed: dict[str, dict[str, Any]] = {
        "weights": {"weights": "another adapter"}, "storage": {"storage": "float16"}, "length": {"document_length": 2},
    }  # fmt: skip
    new = 0 if change == "nothing" else 5
    assert retrieve(tmp_path, collection, model, **changed.get(change, {})).items == 3 + new
    assert model.embedded["document"] == 5 + new


def test_a_killed_run_goes_on_with_the_same_vectors_and_ends_the_same(tmp_path: Path) -> None:
    collection, killed, resumed = long(), WordEmbedder(WORDS, fail_after=10), WordEmbedder(WORDS)
    with pytest.raises(KeyboardInterrupt):
        retrieve(tmp_path / "killed", collection, killed)
    with pytest.raises(DataError, match=r"of 4 dimensions, and the model now makes 5; delete .* encode again"):
        retrieve(tmp_path / "killed", collection, WordEmbedder((*WORDS, "snow")))
    done = killed.embedded["document"]
    found = retrieve(tmp_path / "killed", collection, resumed)
    assert 0 < done < 40
    assert resumed.embedded["document"] == 40 - done
    assert found.run == retrieve(tmp_path / "whole", collection).run


def test_grades_below_the_threshold_count_nothing_and_some_must_be_left() -> None:
    data = dense_collection(toy(), DenseConfig(relevance_threshold=2))
    assert data.test.qrels == {"q1": {"a": 0, "b": 2}, "q2": {"c": 0, "a": 0}}
    with pytest.raises(DataError, match="no judgment reaches grade 3"):
        dense_collection(toy(), DenseConfig(relevance_threshold=3))
    with pytest.raises(DataError, match="toy: the corpus holds no documents"):
        dense_collection(replace(toy(), corpus={}), DenseConfig())


def test_a_sample_holds_the_relevant_documents_of_both_parts() -> None:
    config = DenseConfig(corpus_sample=50, test_size=0.2, split_seed=42)
    data = dense_collection(large(), config)
    assert data.train is not None
    assert data.train.corpus == data.test.corpus
    assert large().relevant_documents() <= data.test.corpus.keys()
    assert (len(data.train.qrels), len(data.test.qrels), data.pool) == (16, 4, 50)
    assert not data.train.queries.keys() & data.test.queries.keys()
    assert dense_collection(large(), config) == data
    other = dense_collection(large(), config.model_copy(update={"split_seed": 1}))
    assert (other.test.qrels, other.test.corpus) != (data.test.qrels, data.test.corpus)


def test_the_small_set_keeps_what_is_relevant_and_says_so() -> None:
    data = dense_collection(large(), DenseConfig(use_small_eval_set=True, subset_size=10, test_size=0.2))
    assert data.pool == len(data.test.corpus) == 10
    assert data.test.relevant_documents() <= data.test.corpus.keys()
    assert data.caveats == [
        "use_small_eval_set: 10 of 60 documents are searched, which makes finding the relevant ones easy"
    ]
    assert data.train is not None
    assert len(data.train.corpus) == 60


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"corpus_sample": 39}, "retrieval.corpus_sample: large: a pool of 39 documents cannot hold the 40"),
        ({"use_small_eval_set": True, "subset_size": 5}, "retrieval.subset_size: large: a pool of 5"),
        ({"test_size": 0.99}, "leaves none to train on"),
    ],
)
def test_what_cannot_hold_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        dense_collection(large(), DenseConfig(**config))


def test_ms_marco_is_split_as_it_is_published_and_needs_its_passages(tmp_path: Path) -> None:
    folder = write_msmarco(tmp_path / "passages", SMALL)
    config = DenseConfig(corpus_sample=150_000, test_size=0.2, split_seed=42)
    data = dense_collection(load_collection(f"path:{folder}", "dev"), config)
    assert data.train is not None
    assert (len(data.train.qrels), len(data.test.qrels), data.pool) == (1, 1, None)
    (folder / "collection.tsv").unlink()
    with pytest.raises(UsageError, match=r"candidates of top1000.dev.*put collection.tsv beside it"):
        dense_collection(load_collection(f"path:{folder}", "dev"), config)


@pytest.mark.parametrize(
    ("collection", "words"),
    [
        (toy(documents=DOCUMENTS | {"x": "nan"}), "document 'x': the embedding is not finite"),
        (toy(documents=DOCUMENTS | {"x": "unknown words"}), "document 'x': the embedding is zero"),
        (replace(toy(), queries=QUERIES | {"q2": "nan"}), "toy, query 'q2': the embedding is not finite"),
    ],
)
def test_a_text_without_an_embedding_is_named_queries_first(tmp_path: Path, collection: Collection, words: str) -> None:
    model = WordEmbedder(WORDS)
    with pytest.raises(DataError, match=words):
        retrieve(tmp_path, collection, model)
    assert "document 'x'" in words or model.embedded["document"] == 0


@pytest.mark.parametrize("name", ["bm25", "a/b", "..", "a b", "-a", "ab+bm25"])
def test_a_name_that_cannot_be_an_arms_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no name for this arm"):
        retriever_name(DenseExperiment(), None, name)
