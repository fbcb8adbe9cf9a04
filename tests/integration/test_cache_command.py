"""``unimoe cache``: what it lists, what it removes, and what it leaves."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import filelock
import pytest
from support.embedders import WordEmbedder
from support.reranking import invented
from support.scripts import Done, assert_refused, call_unimoe, successful

from unimoe.config import BM25Config, DenseConfig
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.dense import dense_run

DAY = 24 * 3600


def use_vectors() -> None:
    """Search by vectors, which are kept."""
    collection = invented()
    words = sorted({word for document in collection.corpus.values() for word in document.full_text.split()})
    dense_run(WordEmbedder(words), collection, DenseConfig(depth=5, cutoffs=[1]))


@pytest.fixture
def cache(tmp_cache: Path) -> Path:
    """Vectors of a week ago, a run of today, and a download."""
    use_vectors()
    bm25_run(invented(), 10, BM25Config(), cached=True)
    week_ago = time.time() - 7 * DAY
    for path in (tmp_cache / "vectors").rglob("*"):
        os.utime(path, (week_ago, week_ago))
    (tmp_cache / "collections" / "zips").mkdir(parents=True)
    (tmp_cache / "collections" / "zips" / "a.zip").write_bytes(bytes(2**20))
    return tmp_cache


def call(cache: Path, *arguments: str) -> Done:
    return call_unimoe("cache", *arguments, UNIMOE_CACHE=str(cache))


def listed(cache: Path, *arguments: str) -> Any:
    return json.loads(successful(call(cache, *arguments, "--json")).stdout)


def kinds(cache: Path, *arguments: str) -> list[str]:
    return [one["kind"] for one in listed(cache, *arguments)["entries"]]


def test_a_line_says_what_is_kept_of_which_model_and_collection_and_how_large(cache: Path) -> None:
    found = listed(cache)
    assert found["folder"] == str(cache)
    runs, download, vectors = found["entries"]
    assert (runs["model"], runs["collection"]) == ("bm25s(k1=0.9,b=0.4,stemmer=english)", "invented")
    assert (vectors["model"], vectors["collection"]) == (WordEmbedder.base_identity, "invented")
    assert vectors["bytes"] == sum(path.stat().st_size for path in (cache / "vectors").rglob("*") if path.is_file())
    assert vectors["last_use"] == pytest.approx(time.time() - 7 * DAY, abs=60)
    assert (download["kind"], download["bytes"]) == ("collections", 2**20)
    lines = successful(call(cache)).stdout.splitlines()
    assert lines[0].split() == ["kind", "name", "model", "collection", "MiB", "last", "use"]
    assert lines[3].startswith(f"vectors      {vectors['name']}")
    assert lines[4] == "3 entries, 1.0 MiB"


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ([], ["collections"]),
        (["--kind", "vectors"], ["bm25", "collections"]),
        (["--older-than", "6.5"], ["bm25", "collections"]),
        (["--older-than", "7.5"], ["bm25", "collections", "vectors"]),
        (["invented", "--kind", "bm25"], ["collections", "vectors"]),
        (["words@0123456789abcdef"], ["bm25", "collections"]),
        (["--kind", "collections", "--kind", "bm25"], ["vectors"]),
    ],
)
def test_clear_removes_what_is_chosen_and_says_how_much(cache: Path, chosen: list[str], left: list[str]) -> None:
    done = successful(call(cache, "clear", *chosen))
    assert kinds(cache) == left
    removed = 3 - len(left)
    assert f"removing {removed} entr" in done.stderr
    assert done.stdout.startswith(f"removed {removed} entr")


def test_what_a_server_was_paid_for_goes_only_where_its_kind_is_named(cache: Path) -> None:
    answers = cache / "served" / "vectors"
    answers.mkdir(parents=True)
    (answers / "one.npy").write_bytes(b"paid")
    (made_from,) = (cache / "vectors").glob("*/made_from.json")
    made_from.write_text(json.dumps({"model": "served:openai:host:big@0123", "collection": "invented"}))
    assert call(cache, "clear", "vectors").returncode == 2
    successful(call(cache, "clear"))
    assert kinds(cache) == ["collections", "served", "vectors"]
    successful(call(cache, "clear", "--kind", "vectors", "served:openai:host:big"))
    assert kinds(cache) == ["collections", "served"]


def test_what_a_running_evaluation_writes_is_kept_and_age_counts_from_the_last_use(cache: Path) -> None:
    (folder,) = (path for path in (cache / "vectors").iterdir() if path.is_dir())
    with filelock.FileLock(folder.parent / f".{folder.name}.lock"):
        done = call(cache, "clear")
    assert_refused(done, 4, f"kept, since it is in use: {folder.name}", silent=False)
    assert kinds(cache) == ["collections", "vectors"]
    assert kinds(cache, "--older-than", "1") == ["vectors"]
    use_vectors()
    assert kinds(cache, "--older-than", "1") == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["clear", "invenetd"], "invenetd: "),
        (["clear", "--kind", "vector"], "did you mean 'vectors'?"),
        (["clear", "--older-than", "-1"], "older-than"),
        (["remove"], "remove"),
    ],
)
def test_bad_input_is_one_line(cache: Path, arguments: list[str], words: str) -> None:
    done = call(cache, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(kinds(cache)) == 3
