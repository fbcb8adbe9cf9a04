"""Dense search, the vectors of a corpus that are kept for it, and collections cut to be searched."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.embedders import WordEmbedder
from support.toy_collections import SMALL, write_msmarco

from unimoe.config import DenseConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection, Document, assemble
from unimoe.evaluation.datasets import Dataset
from unimoe.evaluation.tasks.search import dense_collection, retrieval_metrics, retrieval_notes
from unimoe.metrics import score_run
from unimoe.retrieval.dense import Backend, dense_run, embed_collection, search
from unimoe.retrieval.embeddings import encode_corpus, kept_embeddings

Floats = NDArray[np.float32]
pytestmark = pytest.mark.usefixtures("one_thread")


def random_vectors(rows: int, width: int, seed: int) -> Floats:
    vectors = np.random.default_rng(seed).standard_normal((rows, width), dtype=np.float32)
    unit: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def names(what: str, count: int) -> list[str]:
    return [f"{what}{number:05d}" for number in range(count)]


def brute_force(queries: Floats, vectors: NDArray[Any], ids: list[str], k: int) -> list[list[tuple[str, float]]]:
    """Every product in float64, rounded to float32; ties by id descending."""
    runs = []
    for query in queries.astype(np.float64):
        scores = (vectors.astype(np.float64) * query).sum(axis=1).astype(np.float32).tolist()
        runs.append([(key, score) for score, key in sorted(zip(scores, ids, strict=True), reverse=True)[:k]])
    return runs


@pytest.mark.parametrize("backend", ["torch", "faiss"])
@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_the_run_is_that_of_brute_force(backend: Backend, storage: str) -> None:
    queries, vectors = random_vectors(7, 48, 0), random_vectors(3000, 48, 1).astype(storage)
    ids, query_ids = names("d", 3000), names("q", 7)
    run = search(queries, query_ids, vectors, ids, 50, backend=backend, block_bytes=48 * 4 * 700)
    assert list(run) == query_ids
    assert [list(found.items()) for found in run.values()] == brute_force(queries, vectors, ids, 50)
    assert all(type(score) is float for score in run["q00000"].values())


def test_long_vectors_of_nearly_equal_scores_are_those_of_brute_force() -> None:
    """Their float32 products err by far more than those of unit length."""
    queries, noise = random_vectors(2, 512, 0), random_vectors(400, 512, 1)
    vectors = (1e4 * (queries[:1] + 1e-6 * noise)).astype(np.float32)
    ids = names("d", 400)
    run = search(queries, ["a", "b"], vectors, ids, 5, block_bytes=512 * 4 * 50)
    assert [list(found.items()) for found in run.values()] == brute_force(queries, vectors, ids, 5)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_not_finite_are_named(value: float) -> None:
    queries, vectors = random_vectors(3, 8, 0), random_vectors(30, 8, 1)
    spoilt, wrong = vectors.copy(), queries.copy()
    spoilt[17, 2] = wrong[1, 0] = value
    with pytest.raises(DataError, match="document 'd00017': its vector is not finite"):
        search(queries, names("q", 3), spoilt, names("d", 30), 5, block_bytes=8 * 4 * 4)
    with pytest.raises(DataError, match="query 'q00001': its vector is not finite"):
        search(wrong, names("q", 3), vectors, names("d", 30), 5)


def test_without_faiss_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(UsageError, match="uv sync --extra faiss"):
        search(random_vectors(1, 8, 0), ["q"], random_vectors(4, 8, 1), names("d", 4), 1, backend="faiss")


CORPUS = {f"d{(7 * i) % 40:02}": Document("title" * (i % 3), "x" * ((13 * i) % 50)) for i in range(40)}
UNIT = 100
"""Characters: a few documents each."""


class Encoder:
    """Vectors that depend on a text and, in a low digit, on its unit, as those of batches do.

    Args:
        units: after how many it is killed.
    """

    def __init__(self, units: int = 1000) -> None:
        self.units = units
        self.calls: list[list[str]] = []

    def __call__(self, texts: Sequence[str]) -> Floats:
        if len(self.calls) == self.units:
            raise KeyboardInterrupt
        self.calls.append(list(texts))
        rows = [np.random.default_rng(sum(map(ord, text)) + 1).standard_normal(6) for text in texts]
        return np.array(rows, dtype=np.float32) + np.float32(1e-6 * len(texts))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def encode(encoder: Callable[[Sequence[str]], Floats], folder: Path, **changes: object) -> bytes:
    settings: dict[str, object] = {"fingerprint": "one", "characters": UNIT, "corpus": CORPUS} | changes
    return np.array(encode_corpus(encoder, folder=folder, **settings).vectors).tobytes()  # type: ignore[arg-type]


@pytest.mark.parametrize("units", [0, 3])
def test_a_killed_run_goes_on_and_ends_with_the_same_bits(folder: Path, units: int) -> None:
    killed, rest, whole = Encoder(units), Encoder(), Encoder()
    with pytest.raises(KeyboardInterrupt):
        encode(killed, folder)
    if units:
        with pytest.raises(DataError, match=r"of 6 dimensions, and the model now makes 5; delete .* encode again"):
            encode(lambda texts: Encoder()(texts)[:, :5], folder)
    seen: list[int] = []
    undisturbed = folder.with_name("whole")
    assert encode(rest, folder, advance=seen.append) == encode(whole, undisturbed)
    assert killed.calls + rest.calls == whole.calls
    assert seen == [sum(map(len, killed.calls)), *map(len, rest.calls)]
    for name in ("vectors.npy", "ids.json", "store.json"):
        assert (folder / name).read_bytes() == (undisturbed / name).read_bytes()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])


@pytest.mark.parametrize(
    ("changes", "damage"),
    [
        ({"fingerprint": "another"}, None),
        ({"storage": "float16"}, None),
        ({"corpus": CORPUS | {"d03": Document("", "another text")}}, None),
        ({"corpus": {key + "x": document for key, document in CORPUS.items()}}, None),
        ({}, lambda folder: cut(folder / "store.json")),
        ({}, lambda folder: cut(folder / "vectors.npy")),
        ({}, lambda folder: (folder / "vectors.npy").unlink()),
        ({}, lambda folder: np.save(folder / "vectors.npy", np.array([{"a": 1}], dtype=object))),
    ],
)
def test_other_work_and_damaged_files_are_begun_again_and_logged(
    folder: Path, changes: dict[str, object], damage: Callable[[Path], None] | None, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyboardInterrupt):
        encode(Encoder(4), folder)
    if damage:
        damage(folder)
    encoder = Encoder()
    found = encode(encoder, folder, **changes)
    assert sum(map(len, encoder.calls)) == len(CORPUS)
    reason = "" if damage else "made from another model, corpus, or setting; "
    assert f"{reason}all vectors are computed again" in caplog.text
    assert found == encode(Encoder(), folder.with_name("fresh"), **changes)


@pytest.mark.parametrize(
    ("value", "storage", "message"),
    [
        (np.nan, "float32", "not finite in float32"),
        (0, "float32", "zero in float32"),
        (1e6, "float16", "not finite in float16"),
        (1e-9, "float16", "zero in float16"),
    ],
)
def test_a_useless_vector_names_its_document(folder: Path, value: float, storage: str, message: str) -> None:
    corpus = {key: Document("", f"text {key}") for key in CORPUS}

    def spoilt(texts: Sequence[str]) -> Floats:
        return np.array([[value if text == "text d17" else 1] * 6 for text in texts], dtype=np.float32)

    with pytest.raises(DataError, match=f"^document 'd17': the embedding is {message}"):
        encode_corpus(spoilt, corpus, folder, fingerprint="one", storage=storage)  # type: ignore[arg-type]


def test_no_room_on_the_disk_is_known_at_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(OSError, match="No space left on device"):
        encode(Encoder(), folder)
    assert not (folder / "vectors.npy").exists()


TEXTS = {"b": Document("", "red fox"), "a": Document("", "owl red"), "c": Document("", "den")}


@pytest.mark.usefixtures("tmp_cache")
@pytest.mark.parametrize(
    ("change", "model"),
    [
        ({}, {}),
        ({}, {"base_identity": "words@other"}),
        ({}, {"prompt_name": "words@1"}),
        ({}, {"dtype": torch.bfloat16}),
        ({"kind": "query"}, {}),
        ({"prefix": "query: "}, {}),
        ({"max_length": 7}, {}),
        ({"storage": "float16"}, {}),
        ({"weights": "another adapter"}, {}),
        ({"corpus": TEXTS | {"a": Document("", "fox")}}, {}),
        ({"corpus": TEXTS | {"d": Document("", "den")}}, {}),
    ],
)
def test_whatever_changes_vectors_makes_them_anew_and_nothing_else_does(
    change: dict[str, Any], model: dict[str, Any]
) -> None:
    first, other = WordEmbedder(["red", "fox", "owl", "den"]), WordEmbedder(["red", "fox", "owl", "den"])
    before = kept_embeddings(first, TEXTS)
    vars(other).update(model)
    found = kept_embeddings(other, **{"corpus": dict(sorted(TEXTS.items())), **change})
    assert sum(other.embedded.values()) == (len(found.ids) if change or model else 0)
    assert "corpus" in change or found.vectors == pytest.approx(before.vectors, abs=1e-3)


WORDS = ("heron", "tide", "moon", "rain")
DOCUMENTS = {"a": "heron heron tide", "b": "heron", "c": "tide moon", "d": "rain", "e": "moon rain rain"}
QUERIES = {"q1": "heron", "q2": "moon", "u": "rain"}
QRELS = {"q1": {"a": 1, "b": 2}, "q2": {"c": 1, "a": 0}}


DATASET = Dataset("toy", "test")


def toy(qrels: dict[str, dict[str, int]] | None = None, documents: dict[str, str] | None = None) -> Collection:
    pairs = [(key, Document("", text)) for key, text in (DOCUMENTS if documents is None else documents).items()]
    return assemble("toy", "test", pairs, QUERIES.items(), qrels or QRELS)


def large(documents: int = 60, queries: int = 20) -> Collection:
    """Each query has two relevant documents, one of them of grade 2."""
    corpus = [(f"d{i:02d}", Document("", WORDS[i % 4])) for i in range(documents)]
    asked = [(f"q{i:02d}", WORDS[i % 4]) for i in range(queries)]
    qrels = {f"q{i:02d}": {f"d{i:02d}": 1, f"d{i + 20}": 2} for i in range(queries)}
    return assemble("large", "test", corpus, asked, qrels)


def test_what_to_know_before_scores_are_believed_is_noted(tmp_path: Path) -> None:
    (note,) = retrieval_notes(large(200), 20)
    assert note == "large: recall@100 and map count the 20 documents kept of each query"
    assert retrieval_notes(large(200), 100) == []
    lacking = toy({"q1": {"b": 1}, "q2": {"c": 0}})
    config = DenseConfig(depth=5, cutoffs=[1, 5])
    run = dense_run(WordEmbedder(WORDS), lacking, config, store_dir=tmp_path)
    scores = score_run(lacking.qrels, run, retrieval_metrics(config))
    assert scores.per_query["recall_of_retrieved@5"] == {"q1": 1.0, "q2": 0.0}
    assert "toy: judged queries without a relevant document, which count 0: 1 (q2)" in retrieval_notes(lacking, 5)


def test_grades_below_the_threshold_count_nothing_and_some_must_be_left() -> None:
    data = dense_collection(DATASET, toy(), DenseConfig(relevance_threshold=2))
    assert data.test.qrels == {"q1": {"a": 0, "b": 2}, "q2": {"c": 0, "a": 0}}
    with pytest.raises(DataError, match="no judgment reaches grade 3"):
        dense_collection(DATASET, toy(), DenseConfig(relevance_threshold=3))
    with pytest.raises(DataError, match="toy: the corpus holds no documents"):
        dense_collection(DATASET, replace(toy(), corpus={}), DenseConfig())


def test_a_sample_holds_the_relevant_documents_of_all_queries() -> None:
    config = DenseConfig(corpus_sample=50, test_size=0.2, split_seed=42)
    data = dense_collection(DATASET, large(), config)
    assert large().relevant_documents() <= data.test.corpus.keys()
    assert (len(data.test.qrels), data.pool) == (4, 50)
    assert dense_collection(DATASET, large(), config) == data
    other = dense_collection(DATASET, large(), config.model_copy(update={"split_seed": 1}))
    assert (other.test.qrels, other.test.corpus) != (data.test.qrels, data.test.corpus)


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
        dense_collection(DATASET, large(), DenseConfig(**config))


def test_ms_marco_is_split_as_it_is_published_and_needs_its_passages(tmp_path: Path) -> None:
    folder = write_msmarco(tmp_path / "passages", SMALL)
    config = DenseConfig(corpus_sample=150_000, test_size=0.2, split_seed=42)
    data = dense_collection(DATASET, load_collection(f"path:{folder}", "dev"), config)
    assert (len(data.test.qrels), data.pool) == (1, None)
    (folder / "collection.tsv").unlink()
    with pytest.raises(UsageError, match=r"candidates of top1000.dev.*put collection.tsv beside it"):
        dense_collection(DATASET, load_collection(f"path:{folder}", "dev"), config)


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
        embed_collection(model, collection, DenseConfig(), store_dir=tmp_path)
    assert "document 'x'" in words or model.embedded["document"] == 0
