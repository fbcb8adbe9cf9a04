"""Long documents by their best passage (MaxP): cuts and scores by hand."""

from __future__ import annotations

import pytest

from unimoe.config import EvaluationConfig
from unimoe.data.collection import Collection, Document, assemble
from unimoe.evaluation.reranking.passages import Passages, best_passages
from unimoe.evaluation.reranking.rerankers import FunctionReranker
from unimoe.evaluation.reranking_eval import rerank_collection

TEXTS = {
    "long": "cat cat dog dog dog rain",  # three passages of two words: cat cat, dog dog, dog rain
    "mixed": "cat dog cat dog",
    "rain": "rain rain rain cat",
    "cat#1": "dog rain",  # an id that looks like a passage's
}


def toy() -> Collection:
    documents = [(key, Document("", text)) for key, text in TEXTS.items()]
    queries = [("q", "cat"), ("long", "rain")]
    return assemble("toy", "test", documents, queries, {"q": {"long": 1}, "long": {"rain": 1}})


@pytest.mark.parametrize(
    ("text", "words", "stride", "expected"),
    [
        ("a b c d e", 2, 2, ["a b", "c d", "e"]),
        ("a b c d e", 3, 1, ["a b c", "b c d", "c d e"]),
        ("a b c d e", 4, 2, ["a b c d", "c d e"]),
        ("a b c d", 4, 2, ["a b c d"]),
        ("  a\n b  c", 2, 1, ["a\n b", "b  c"]),
        ("", 2, 1, [""]),
        ("東京は広いBM25", 3, 2, ["東京は", "は広い", "いBM25"]),
        ("서울은 아주 넓다", 2, 1, ["서울은 아주", "아주 넓다"]),
    ],
)
def test_a_text_is_cut_by_words_and_the_last_passage_ends_with_it(
    text: str, words: int, stride: int, expected: list[str]
) -> None:
    assert Passages(words, stride).cut(text) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, None), ({"passage_words": 150}, (150, 75)), ({"passage_words": 1}, (1, 1)),
     ({"passage_words": 9, "passage_stride": 9}, (9, 9))],
)  # fmt: skip
def test_half_a_passage_is_the_stride_unless_set(settings: dict[str, int], expected: tuple[int, int] | None) -> None:
    assert Passages.of(EvaluationConfig.model_validate(settings)) == expected


def share(pairs: list[tuple[str, str]]) -> list[float]:
    """The share of a passage's words that are the query."""
    return [document.split().count(query) / len(document.split()) for query, document in pairs]


def test_a_document_has_the_score_of_its_best_passage() -> None:
    candidates = {"q": {"mixed": 2.0, "long": 1.0}, "long": {"rain": 2.0, "cat#1": 1.0}}
    read: list[str] = []

    def scorer(pairs: list[tuple[str, str]]) -> list[float]:
        read.extend(document for _, document in pairs)
        return share(pairs)

    found = rerank_collection(
        FunctionReranker(scorer), toy(), candidates, passages=Passages(2, 2).of_candidates(toy(), candidates)
    )
    # Of "long" the three passages have 1, 0 and 0: whole it has 1/3, and "mixed" 1/2.
    assert found.run == {"q": {"mixed": 0.5, "long": 1.0}, "long": {"rain": 1.0, "cat#1": 0.5}}
    assert read == ["cat dog", "cat dog", "cat cat", "dog dog", "dog rain", "rain rain", "rain cat", "dog rain"]
    assert (found.items, found.aggregate["ndcg@10"]) == (8, 1.0)
    whole = rerank_collection(FunctionReranker(share), toy(), candidates)
    assert whole.run["q"] == {"mixed": 0.5, "long": 1 / 3}


def test_the_title_stands_before_every_passage() -> None:
    titled = assemble("t", "test", [("d", Document("Title", "a b c"))], [("q", "a")], {"q": {"d": 1}})
    collection, candidates = Passages(2, 1).of_candidates(titled, {"q": {"d": 1.0}})
    assert [document.full_text for document in collection.corpus.values()] == ["Title a b", "Title b c"]
    assert candidates == {"q": {"d#1": 0.0, "d#2": 0.0}}
    assert best_passages({"q": {"d#1": -3.0, "d#2": -2.0}, "r": {}}) == {"q": {"d": -2.0}, "r": {}}
