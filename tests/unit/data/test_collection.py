"""A collection is checked when it is assembled, and its parts depend on ids and a seed alone."""

from __future__ import annotations

from itertools import pairwise

import pytest

from unimoe.core.errors import UsageError
from unimoe.data.collection import Collection, Document, assemble

DOCUMENTS = [(f"d{i}", Document("", f"text {i}")) for i in range(20)]
QUERIES = [(f"q{i}", f"query {i}") for i in range(10)]
QRELS = {f"q{i}": {f"d{i}": 1, "d19": 0} for i in range(10)}


@pytest.fixture
def collection() -> Collection:
    return assemble("toy", "test", DOCUMENTS, QUERIES, QRELS)


@pytest.fixture
def reordered() -> Collection:
    return assemble("other name", "test", DOCUMENTS[::-1], QUERIES[::-1], dict(reversed(QRELS.items())))


def test_duplicates_are_counted_and_the_first_is_kept() -> None:
    documents = [("d", Document("", "one")), ("d", Document("", "one")), ("d", Document("", "two"))]
    found = assemble("toy", "test", documents, [("q", "a"), ("q", "b")], {"q": {"d": 1}})
    assert (found.corpus, found.queries) == ({"d": Document("", "one")}, {"q": "a"})
    assert found.problems == {
        "duplicate documents": ["d", "d"],
        "conflicting documents": ["d"],
        "duplicate queries": ["q"],
        "conflicting queries": ["q"],
    }


def test_dangling_judgments_and_empty_texts_are_counted_and_kept() -> None:
    documents = [("d", Document("only a title", " ")), ("e", Document("", ""))]
    found = assemble("toy", "test", documents, [("q", "a"), ("u", " ")], {"q": {"d": 1, "gone": 2}})
    assert found.corpus["d"].full_text == "only a title"
    assert found.qrels == {"q": {"d": 1, "gone": 2}}
    assert found.unjudged_queries == ["u"]
    assert found.oddities == (
        "judgments of unknown documents: 1 (gone); empty documents: 2 (d, e); "
        "empty queries: 1 (u); unjudged queries: 1 (u)"
    )


def test_hashes_ignore_order_and_see_every_change(collection: Collection, reordered: Collection) -> None:
    assert reordered.content_hash == collection.content_hash
    changed = [
        assemble("toy", "dev", DOCUMENTS, QUERIES, QRELS),
        assemble("toy", "test", [*DOCUMENTS[:-1], ("d19", Document("", "new"))], QUERIES, QRELS),
        assemble("toy", "test", DOCUMENTS, [*QUERIES[:-1], ("q9", "new")], QRELS),
        assemble("toy", "test", DOCUMENTS, QUERIES, {**QRELS, "q9": {"d9": 2, "d19": 0}}),
    ]
    assert len({collection.content_hash, *(other.content_hash for other in changed)}) == 5


def test_a_larger_sample_keeps_the_smaller(collection: Collection) -> None:
    samples = [collection.sample_queries(n, seed=3) for n in range(1, 11)]
    for small, large in pairwise(samples):
        assert small.qrels.keys() < large.qrels.keys()
    assert [len(sample.queries) for sample in samples] == list(range(1, 11))
    assert samples[0].corpus == collection.corpus
    assert collection.sample_queries(99).qrels == collection.qrels


def test_a_pool_holds_every_relevant_document_and_grows(collection: Collection) -> None:
    small, large = collection.pool(12, seed=1), collection.pool(15, seed=1)
    assert {f"d{i}" for i in range(10)} < small.corpus.keys() < large.corpus.keys()
    assert (len(small.corpus), len(large.corpus)) == (12, 15)
    assert collection.pool(99).corpus == collection.corpus
    assert small.qrels == collection.qrels


def test_a_split_by_query_loses_none_and_depends_on_the_seed_alone(
    collection: Collection, reordered: Collection
) -> None:
    train, test = collection.split_queries(0.3, seed=42)
    assert (len(train.qrels), len(test.qrels)) == (7, 3)
    assert not train.qrels.keys() & test.qrels.keys()
    assert train.qrels | test.qrels == collection.qrels
    assert train.queries.keys() == train.qrels.keys()
    assert train.corpus == test.corpus == collection.corpus
    assert reordered.split_queries(0.3, seed=42)[1].qrels == test.qrels
    assert len({frozenset(collection.split_queries(0.3, seed)[1].qrels) for seed in range(8)}) > 1


def test_a_part_that_cannot_be_is_refused(collection: Collection) -> None:
    for size in (0.0, 1.0, -0.5):
        with pytest.raises(UsageError, match="choose between 0 and 1"):
            collection.split_queries(size)
    with pytest.raises(UsageError, match=r"of 10 judged queries, 0\.95 for testing leaves none to train on"):
        collection.split_queries(0.95)
    with pytest.raises(UsageError, match=r"pool of 9 documents cannot hold the 10 relevant ones; ask for at least 10"):
        collection.pool(9)
    with pytest.raises(UsageError, match="at least 1"):
        collection.sample_queries(0)
