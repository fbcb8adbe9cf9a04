from __future__ import annotations

from pathlib import Path

import pytest

from unimoe.config import BM25Config
from unimoe.core.errors import DataError
from unimoe.core.trec import read_run
from unimoe.data.collection import Collection, Document, assemble
from unimoe.retrieval.bm25 import Engine, bm25_run

PARAMS = BM25Config()
both_engines = pytest.mark.parametrize("engine", ["bm25s", "rank_bm25"])


def toy(texts: dict[str, str], queries: dict[str, str]) -> Collection:
    documents = [(key, Document("", text)) for key, text in texts.items()]
    return assemble("toy", "test", documents, queries.items(), {key: {"x": 1} for key, text in queries.items() if text})


@both_engines
def test_only_documents_that_share_a_word_are_ranked(engine: Engine) -> None:
    texts = {"a": "red fox", "b": "blue whale", "c": "red", "d": "whale", "e": ""}
    run = bm25_run(toy(texts, {"q": "red deer"}), 10, PARAMS, engine=engine)
    assert list(run["q"]) == ["c", "a"]
    assert all(type(score) is float and score > 0 for score in run["q"].values())


@both_engines
@pytest.mark.parametrize("query", ["", "the of", "zebra"])
def test_a_query_without_known_words_has_no_candidates(query: str, engine: Engine) -> None:
    collection = toy({"a": "red", "empty": "", "stop": "the"}, {"q": "red", "nothing": query})
    run = bm25_run(collection, 10, PARAMS, engine=engine)
    assert {key: list(found) for key, found in run.items()} == {"q": ["a"], "nothing": []}


@both_engines
def test_ties_break_by_id_descending_also_at_the_cut(engine: Engine) -> None:
    texts = dict.fromkeys(("d1", "d10", "d2", "d9"), "red")
    collection = toy(texts, {"q": "red"})
    assert list(bm25_run(collection, 10, PARAMS, engine=engine)["q"]) == ["d9", "d2", "d10", "d1"]
    assert list(bm25_run(collection, 2, PARAMS, engine=engine)["q"]) == ["d9", "d2"]
    reordered = toy(dict(reversed(texts.items())), {"q": "red"})
    assert bm25_run(reordered, 2, PARAMS, engine=engine) == bm25_run(collection, 2, PARAMS, engine=engine)


@both_engines
def test_self_matches_go_before_the_cut(engine: Engine) -> None:
    texts = {"q": "red fox", "b": "red fox runs", "c": "red fox runs far", "d": "whale", "e": "owl"}
    texts |= {f"z{i}": "other" for i in range(5)}  # a word of half the corpus has no weight in rank_bm25
    collection = toy(texts, {"q": "red fox", "unknown": "red fox"})
    assert list(bm25_run(collection, 2, PARAMS, engine=engine)["q"]) == ["q", "b"]
    without = bm25_run(collection, 2, PARAMS, engine=engine, exclude_self=True)
    assert list(without["q"]) == ["b", "c"]
    assert list(without["unknown"]) == ["q", "b"]


COLLECTION = toy({"a": "red fox", "b": "red"}, {"q": "red", "none": "zebra"})


@both_engines
def test_the_cache_serves_the_same_run(tmp_cache: Path, engine: Engine) -> None:
    ranked_queries: list[int] = []
    runs = [
        bm25_run(COLLECTION, 5, PARAMS, engine=engine, cached=True, advance=ranked_queries.append) for _ in range(3)
    ]
    assert runs[0] == runs[1] == runs[2] == bm25_run(COLLECTION, 5, PARAMS, engine=engine)
    assert runs[2]["none"] == {}
    assert ranked_queries == [1, 1]
    (path,) = tmp_cache.rglob("*.trec")
    assert read_run(path)["q"] == runs[0]["q"]


def test_a_damaged_cache_file_is_named(tmp_cache: Path) -> None:
    bm25_run(COLLECTION, 5, PARAMS, cached=True)
    (path,) = tmp_cache.rglob("*.trec")
    path.write_text("not a run")
    with pytest.raises(DataError, match=r"\.trec:1: .*; delete it, and run again"):
        bm25_run(COLLECTION, 5, PARAMS, cached=True)


def test_another_setting_or_collection_has_another_cache_file(tmp_cache: Path) -> None:
    bm25_run(COLLECTION, 5, PARAMS, cached=True)
    bm25_run(COLLECTION, 6, PARAMS, cached=True)
    bm25_run(COLLECTION, 5, BM25Config(b=0.5), cached=True)
    bm25_run(COLLECTION, 5, BM25Config(stemmer="none"), cached=True)
    bm25_run(COLLECTION, 5, PARAMS, exclude_self=True, cached=True)
    bm25_run(COLLECTION, 5, PARAMS, engine="rank_bm25", cached=True)
    bm25_run(toy({"a": "red fox", "b": "blue"}, dict(COLLECTION.queries)), 5, PARAMS, cached=True)
    bm25_run(toy({"a": "red fox", "b": "red"}, {"q": "red", "none": "zebras"}), 5, PARAMS, cached=True)
    assert len([*tmp_cache.rglob("*.trec")]) == 8
