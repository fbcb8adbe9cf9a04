"""Topics that stand in several datasets: two judgments of one topic, its translations, a collection named twice.

A topic is what is drawn, so its queries on all datasets are drawn together: an average over copies of one dataset is as
uncertain as that dataset. Queries with one id are one topic, and so are queries with one text. Ids can also coincide by
chance, as those of collections that count from 1: where texts are known, they tell.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from unimoe.results.clusters import Codes

SHARED, SEPARATE = "shared", "separate"  # the latter is what a result's config says where ids coincide by chance


class Asked(NamedTuple):
    """What is known of a query: its text, empty where it is not known, and its relevant documents."""

    text: str
    relevant: frozenset[str]


def shared_topics(queries: Sequence[Mapping[str, Asked | None]]) -> list[Codes] | None:
    """Return the number of each query's topic, by dataset and in its order; None where no topic is on two datasets.

    A query is None where nothing of it is known but its id.
    """
    parents: dict[tuple[int, str], tuple[int, str]] = {}

    def root(node: tuple[int, str]) -> tuple[int, str]:
        while (parent := parents.get(node, node)) != node:
            node = parent
        return node

    for (one, first), (other, second) in combinations(enumerate(queries), 2):
        same = [(query_id, query_id) for query_id in first if query_id in second]
        if same and _by_chance([(first[q], second[q]) for q, _ in same]):
            same = []
        by_text = {normal(asked.text): q for q, asked in second.items() if asked and asked.text}
        same += [(q, by_text[text]) for q, asked in first.items() if asked and (text := normal(asked.text)) in by_text]
        for mine, theirs in same:
            parents[root((other, theirs))] = root((one, mine))
    if not parents:
        return None
    numbers: dict[tuple[int, str], int] = {}
    return [
        np.array([numbers.setdefault(root((place, q)), len(numbers)) for q in of], dtype=np.intp)
        for place, of in enumerate(queries)
    ]


def number_shared(codes: Sequence[Codes]) -> int:
    """Return how many topics stand in more than one dataset."""
    places = np.concatenate([np.unique(of) for of in codes])
    return int((np.bincount(places) > 1).sum())


def normal(text: str) -> str:
    """Return a text without what makes equal texts look different: case, space, and Unicode's forms."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _by_chance(pairs: Sequence[tuple[Asked | None, Asked | None]]) -> bool:
    """Return whether queries with one id are others on each dataset: most have other texts and other documents.

    The translations of a topic have other texts, but documents with the same ids.
    """
    known = [(one, other) for one, other in pairs if one and other and one.text and other.text]
    alike = sum(normal(one.text) == normal(other.text) or bool(one.relevant & other.relevant) for one, other in known)
    return bool(known) and 2 * alike <= len(known)
