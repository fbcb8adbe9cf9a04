"""Dense search, and the vectors of a corpus that are kept for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.embedders import WordEmbedder

from unimoe.core.errors import DataError, UsageError
from unimoe.data.collection import Document
from unimoe.retrieval.dense import Backend, search
from unimoe.retrieval.embeddings import cached_embeddings, encode_corpus

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


def encode(encoder: Encoder, folder: Path, **changes: object) -> bytes:
    settings: dict[str, object] = {"fingerprint": "one", "characters": UNIT, "corpus": CORPUS} | changes
    return np.array(encode_corpus(encoder, folder=folder, **settings).vectors).tobytes()  # type: ignore[arg-type]


def test_rows_are_by_ascending_id_and_units_by_falling_length_up_to_their_size(folder: Path) -> None:
    encoder = Encoder()
    store = encode_corpus(encoder, CORPUS, folder, fingerprint="one", characters=UNIT)
    of_text = {text: row for unit in encoder.calls for text, row in zip(unit, Encoder()(unit), strict=True)}
    assert store.ids == sorted(CORPUS)
    assert store.vectors.dtype == np.float32
    for key, row in zip(store.ids, store.vectors, strict=True):
        assert row == pytest.approx(of_text[CORPUS[key].full_text], abs=1e-4)
    lengths = [len(text) for unit in encoder.calls for text in unit]
    assert lengths == sorted((len(document.full_text) for document in CORPUS.values()), reverse=True)
    for unit in encoder.calls[:-1]:
        assert UNIT <= sum(max(1, len(text)) for text in unit) < UNIT + max(1, len(unit[-1]))


@pytest.mark.parametrize("units", [0, 3])
def test_a_killed_run_goes_on_and_ends_with_the_same_bits(folder: Path, units: int) -> None:
    killed, rest, whole = Encoder(units), Encoder(), Encoder()
    with pytest.raises(KeyboardInterrupt):
        encode(killed, folder)
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
        ({}, lambda folder: (folder / "vectors.npy").write_bytes(b"")),
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


TEXTS = {"b": "red fox", "a": "owl red", "c": "den"}


@pytest.mark.usefixtures("tmp_cache")
@pytest.mark.parametrize("change", ["nothing", "encoder", "prompt", "dtype", "kind", "length", "text", "id"])
def test_whatever_changes_vectors_makes_them_anew_and_nothing_else_does(change: str) -> None:
    first, other = WordEmbedder(["red", "fox", "owl", "den"]), WordEmbedder(["red", "fox", "owl", "den"])
    before = cached_embeddings(first, TEXTS, "document")
    if change == "encoder":
        other.base_identity = "words@other"
    elif change == "prompt":
        other.prompt_name = "words@1"
    elif change == "dtype":
        other.dtype = torch.bfloat16
    texts = dict(sorted(TEXTS.items())) | {"text": {"a": "fox"}, "id": {"d": "den"}}.get(change, {})
    length = 7 if change == "length" else None
    found = cached_embeddings(other, texts, "query" if change == "kind" else "document", max_length=length)
    assert sum(other.embedded.values()) == (0 if change == "nothing" else len(texts))
    assert found.ids == sorted(texts)
    assert (change in {"text", "id"}) or np.array_equal(found.vectors, before.vectors)
