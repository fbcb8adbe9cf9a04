"""Topics that stand in several datasets: two judgments of one topic, its translations, a collection named twice.

A topic is what is drawn, so its queries on all datasets are drawn together: an average over copies of one dataset is as
uncertain as that dataset. Queries with one id are one topic, and so are queries with one text. Ids can also coincide by
chance, as those of collections that count from 1: where texts are known, they tell.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations, islice
from typing import NamedTuple, TypeAlias

import numpy as np

from unimoe.core.grouping import gathered
from unimoe.results import EvalResult, by_query_id
from unimoe.results.clusters import Codes

IdPairs: TypeAlias = Sequence[tuple[str, str]]  # ids of one query: a later one, and the first

_ASKED = 200  # queries of two datasets with one id: their texts tell whether the ids coincide by chance
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)  # Unicode's Default_Ignorable_Code_Point: soft hyphens, joiners, byte order marks, directions
SHARED, SEPARATE = "shared", "separate"  # the latter is what a result's config says where ids coincide by chance


class Asked(NamedTuple):
    """What is known of a query: its text, empty where it is not known, and its relevant documents."""

    text: str
    relevant: Mapping[str, float]


def shared_topics(queries: Sequence[Mapping[str, Asked | None]]) -> list[Codes] | None:
    """Return the number of each query's topic, by dataset and in its order; None where no topic is on two datasets.

    A query is None where nothing of it is known but its id.
    """
    parents: dict[tuple[int, str], tuple[int, str]] = {}

    def root(node: tuple[int, str]) -> tuple[int, str]:
        while (parent := parents.get(node, node)) != node:
            node = parent
        return node

    known = [{q: asked for q, asked in of.items() if asked} for of in queries]
    texts = [{q: normal(asked.text) for q, asked in of.items()} for of in known]
    by_text = [{text: q for q, text in of.items() if text} for of in texts]
    for one, other in combinations(range(len(queries)), 2):
        shared = queries[one].keys() & queries[other].keys()
        both = (q for q in queries[one] if q in shared and texts[one].get(q) and texts[other].get(q))
        asked = [*islice(both, _ASKED)]
        # The translations of a topic have other texts, but documents with the same ids.
        alike = [
            q
            for q in asked
            if texts[one][q] == texts[other][q] or known[one][q].relevant.keys() & known[other][q].relevant.keys()
        ]
        by_chance = asked and 2 * len(alike) <= len(asked)  # most queries with one id are others on each dataset
        same = [] if by_chance else [(q, q) for q in shared]
        same += [(by_text[one][text], by_text[other][text]) for text in by_text[one].keys() & by_text[other].keys()]
        for mine, theirs in same:
            parents[root((other, theirs))] = root((one, mine))
    if not parents:
        return None
    numbers: dict[tuple[int, str], int] = {}
    return [
        np.array([numbers.setdefault(root((place, q)), len(numbers)) for q in of], dtype=np.intp)
        for place, of in enumerate(queries)
    ]


def said_of_shared(codes: Sequence[Codes], task: str, *, clusters: bool) -> str:
    """Say how many topics, or clusters, stand in more than one dataset of a task."""
    places = np.bincount(np.concatenate([np.unique(of) for of in codes]))
    what, by_chance = (
        ("clusters", "") if clusters else ("topics", "; if only their ids coincide, say --topics separate")
    )
    return (
        f"{(places > 1).sum():,} of {(places > 0).sum():,} {what} stand in several {task} datasets, and are drawn with "
        f"all of them: averages count {what}{by_chance}"
    )


def repeats(facts: Iterable[tuple[Hashable, str]]) -> IdPairs:
    """Return the ids of queries of which all facts are equal, from ``(facts, query id)``."""
    return tuple((later, first) for first, *others in gathered(facts).values() for later in others)


def repeated_texts(results: Sequence[EvalResult], known: Callable[[], Mapping[str, Asked | None]]) -> IdPairs:
    """Return queries of one dataset with one text, the same relevant documents, and the same scores in each result.

    Equal scores alone prove nothing: many queries have 0 or 1 in every result. ``known`` reads what is known of them.
    """
    columns = [
        values for r in results for values in (by_query_id(r.per_query), *map(tuple, r.per_query_metrics.values()))
    ]
    alike = gathered(zip(zip(*columns, strict=True), sorted(results[0].per_query), strict=True))
    same = {query_id: scores for scores, ids in alike.items() if len(ids) > 1 for query_id in ids}
    asked = {q: of for q in same if (of := known()[q]) and of.text} if same else {}
    return repeats(((same[q], of.text, frozenset(of.relevant.items())), q) for q, of in asked.items())


def normal(text: str) -> str:
    """Return a text without what makes equal texts look different: case, space, Unicode's forms, and invisible signs.

    As Unicode's ``NFKC_Casefold``, with white space as one space.
    """
    if text.isascii():
        return " ".join(text.casefold().split())
    visible = unicodedata.normalize("NFKC", _IGNORABLE.sub("", text))
    return " ".join(unicodedata.normalize("NFKC", visible.casefold()).split())
