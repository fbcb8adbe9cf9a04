"""Vectors that a server was paid for are kept, and blank texts are embedded."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.model_server import ModelServer, serve
from support.served import COLLECTION, embedder

from unimoe.core.errors import InputError
from unimoe.models.served.embedder import ServedEmbedder

TEXTS = [document.full_text for document in COLLECTION.corpus.values()]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serve() as running:
        yield running


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNIMOE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def known(server: ModelServer, tmp_path: Path, **others: Any) -> ServedEmbedder:
    """An embedder whose model has answered about the probe texts, as in every evaluation."""
    found = embedder(server, tmp_path, batch=3, **others)
    assert found.base_identity
    server.asked.clear()
    return found


def asked(server: ModelServer) -> list[str]:
    return [text for _, body in server.asked for text in body["input"]]


@pytest.mark.parametrize("in_flight", [1, 3])
def test_a_stopped_embedding_pays_for_no_text_twice(server: ModelServer, tmp_path: Path, in_flight: int) -> None:
    expected = embedder(server, tmp_path, batch=3).encode(TEXTS)
    first = known(server, tmp_path, requests_in_flight=in_flight)
    server.fails = lambda body: "NaN" if TEXTS[7] in body else None
    with pytest.raises(InputError) as refused:
        first.encode(TEXTS)
    assert 6 <= refused.value.index <= 8
    paid = asked(server)
    assert len(paid) >= 6
    server.fails = lambda body: None
    done: list[int] = []
    again = known(server, tmp_path)
    found = again.encode(TEXTS, advance=done.append)
    assert sorted(paid + asked(server)) == sorted(TEXTS)
    assert sum(done) == len(TEXTS)
    assert again.usage["requests"] == 3 + len(server.asked)  # three about the probe texts
    np.testing.assert_array_equal(found, expected)


def test_another_model_is_asked_again(server: ModelServer, tmp_path: Path, cache: Path) -> None:
    known(server, tmp_path).encode(TEXTS)
    files = [*cache.glob("served/vectors/*/*.npy")]
    assert len(files) == 4
    known(server, tmp_path).encode(TEXTS)
    assert not server.asked
    server.change_model()
    (tmp_path / "openai-embed.json").unlink()
    known(server, tmp_path).encode(TEXTS)
    assert len(server.asked) == 4


def test_vectors_are_kept_for_two_weeks(server: ModelServer, tmp_path: Path, cache: Path) -> None:
    known(server, tmp_path).encode(TEXTS)
    old, *_ = files = [*cache.glob("served/vectors/*/*.npy")]
    os.utime(old, (time.time() - 15 * 24 * 3600,) * 2)
    known(server, tmp_path)
    assert [*cache.glob("served/vectors/*/*.npy")] == [file for file in files if file != old]


@pytest.mark.parametrize("api", ["openai", "tei-embed"])
def test_a_blank_text_is_embedded_as_a_full_stop(api: str, server: ModelServer, tmp_path: Path) -> None:
    vectors = embedder(server, tmp_path, api).encode(["", " \n", ".", "a"])
    np.testing.assert_array_equal(vectors[:2], vectors[[2, 2]])
    assert (vectors[3] != vectors[2]).any()


def test_a_text_that_is_too_long_for_openai_is_cut_and_no_other_is_paid_for_twice(
    server: ModelServer, tmp_path: Path
) -> None:
    long = "naïve " * 100
    server.fails = lambda body: "too long" if body.count("ve na") > 40 else None
    with pytest.raises(InputError, match=r"400.*maximum context.*set a lower .* or served\.max_length"):
        known(server, tmp_path, requests_in_flight=1).encode([*TEXTS[:6], long])
    paid = asked(server)
    assert len(paid) == 6
    again = known(server, tmp_path, max_length=60)
    found = again.encode([*TEXTS[:6], long])
    (sent,) = asked(server)
    assert long.startswith(sent)
    assert 179 <= len(sent.encode()) <= 180
    np.testing.assert_allclose(found, embedder(server, tmp_path).encode([*TEXTS[:6], sent]), atol=1e-6)
    assert again.prompt_name != embedder(server, tmp_path).prompt_name
