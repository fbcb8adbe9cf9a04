from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.heads import WordEmbedder

from unimoe.core.errors import DataError
from unimoe.data.collection import Document
from unimoe.models.embedder import Vectors
from unimoe.retrieval.embeddings import cached_embeddings, encode_corpus

Floats = NDArray[np.float32]

CORPUS = {f"d{(7 * i) % 40:02}": Document("title" * (i % 3), "x" * ((13 * i) % 50)) for i in range(40)}
UNIT = 100
"""Characters: a few documents each."""


class Encoder:
    """Vectors that depend on a text and, in a low digit, on its unit, as those of batches do.

    Args:
        units: after how many it is killed.
    """

    def __init__(self, units: int = 1000, dimension: int = 6) -> None:
        self.units, self.dimension = units, dimension
        self.calls: list[list[str]] = []

    def __call__(self, texts: Sequence[str]) -> Floats:
        if len(self.calls) == self.units:
            raise KeyboardInterrupt
        self.calls.append(list(texts))
        seeds = (sum(map(ord, text)) + 1 for text in texts)
        rows = [np.random.default_rng(seed).standard_normal(self.dimension) for seed in seeds]
        return np.array(rows, dtype=np.float32) + np.float32(1e-6 * len(texts))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def encode(encoder: Encoder, folder: Path, **changes: object) -> Floats:
    settings: dict[str, object] = {"fingerprint": "one", "characters": UNIT, "corpus": CORPUS} | changes
    return np.array(encode_corpus(encoder, folder=folder, **settings).vectors)  # type: ignore[arg-type]


@pytest.fixture
def undisturbed(tmp_path: Path) -> Floats:
    return encode(Encoder(), tmp_path / "undisturbed")


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


class TestResuming:
    @pytest.mark.parametrize("units", [0, 3])
    def test_a_killed_run_goes_on_and_ends_with_the_same_bits(
        self, folder: Path, undisturbed: Floats, units: int
    ) -> None:
        killed, rest, whole = Encoder(units), Encoder(), Encoder()
        with pytest.raises(KeyboardInterrupt):
            encode(killed, folder)
        seen: list[int] = []
        assert encode(rest, folder, advance=seen.append).tobytes() == undisturbed.tobytes()
        whole_folder = folder.with_name("whole")
        encode(whole, whole_folder)
        assert killed.calls + rest.calls == whole.calls
        assert seen == [sum(map(len, killed.calls)), *map(len, rest.calls)]
        for name in ("vectors.npy", "ids.json", "store.json"):
            assert (folder / name).read_bytes() == (whole_folder / name).read_bytes()

    @pytest.mark.parametrize(
        "changes",
        [
            {"fingerprint": "another"},
            {"storage": "float16"},
            {"corpus": CORPUS | {"d03": Document("", "another text")}},
            {"corpus": {key + "x": document for key, document in CORPUS.items()}},
        ],
    )
    def test_other_work_is_started_anew_and_logged(
        self, folder: Path, changes: dict[str, object], caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(KeyboardInterrupt):
            encode(Encoder(4), folder)
        encoder = Encoder()
        found = encode(encoder, folder, **changes)
        assert sum(map(len, encoder.calls)) == len(CORPUS)
        assert "made from another model, corpus, or setting; all vectors are computed again" in caplog.text
        assert found.tobytes() == encode(Encoder(), folder.with_name("fresh"), **changes).tobytes()


class TestDamage:
    @pytest.mark.parametrize("damage", ["cut", "gone", "empty", "manifest", "pickle"])
    def test_damaged_files_are_seen_and_made_anew(
        self, folder: Path, undisturbed: Floats, damage: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(KeyboardInterrupt):
            encode(Encoder(4), folder)
        file = folder / ("store.json" if damage == "manifest" else "vectors.npy")
        content = file.read_bytes()
        if damage == "gone":
            file.unlink()
        elif damage == "pickle":
            np.save(file, np.array([{"a": 1}], dtype=object))
        else:
            file.write_bytes(b"" if damage == "empty" else content[:-30])
        with caplog.at_level(logging.WARNING):
            encoder = Encoder()
            assert encode(encoder, folder).tobytes() == undisturbed.tobytes()
        assert sum(map(len, encoder.calls)) == len(CORPUS)
        assert "all vectors are computed again" in caplog.text


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


TEXTS = {"b": "topic1 all", "a": "topic2 all noise1", "c": "topic3"}


class Counting(WordEmbedder):
    """Counts the texts it embeds."""

    done = 0

    def encode(self, texts: Sequence[str], **options: Any) -> Vectors:
        self.done += len(texts)
        return super().encode(texts, **options)


@pytest.mark.usefixtures("tmp_cache")
def test_texts_are_embedded_once() -> None:
    embedder = Counting()
    first = cached_embeddings(embedder, TEXTS, "document")
    again = cached_embeddings(embedder, dict(sorted(TEXTS.items())), "document")
    assert embedder.done == 3
    assert first.ids == again.ids == ["a", "b", "c"]
    assert np.array_equal(first.vectors, again.vectors)


@pytest.mark.usefixtures("tmp_cache")
@pytest.mark.parametrize("change", ["encoder", "prompt", "dtype", "kind", "length", "text", "id"])
def test_whatever_changes_vectors_makes_them_anew(change: str) -> None:
    cached_embeddings(WordEmbedder(), TEXTS, "document")
    other = Counting(seed=1) if change == "encoder" else Counting()
    if change == "prompt":
        other.prompt_name = "words@1"
    if change == "dtype":
        other.dtype = torch.bfloat16
    texts = TEXTS | {"text": {"a": "topic9"}, "id": {"d": "topic3"}}.get(change, {})
    cached_embeddings(
        other, texts, "query" if change == "kind" else "document", max_length=7 if change == "length" else None
    )
    assert other.done == len(texts)
