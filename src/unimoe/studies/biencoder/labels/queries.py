"""Chooses the queries to label: simple rules, then a seeded sample."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from unimoe.core.errors import DataError
from unimoe.core.io import hash_parts
from unimoe.studies.biencoder.config import SamplingConfig


@dataclass(frozen=True)
class SampledQueries:
    """A sample of the queries that passed the rules.

    Attributes:
        queries: id to text, by ascending id.
        rejected: number of queries that did not pass, by reason.
        passed: number of queries that passed, sampled or not.
    """

    queries: dict[str, str]
    rejected: dict[str, int]
    passed: int


def sample_queries(queries: Mapping[str, str], config: SamplingConfig) -> SampledQueries:
    """Sample among the queries that pass the rules.

    A query's place depends on its id and the seed alone: a larger sample adds queries and removes none.

    Args:
        queries: id to text.
        config: the rules, and the number wanted.

    Raises:
        DataError: none passes.
    """
    rejected: Counter[str] = Counter()
    seen: set[str] = set()
    passed = []
    for query_id in sorted(queries):
        text = queries[query_id]
        plain = " ".join(text.casefold().split())
        reason = _flaw(text, config) or ("a duplicate" if plain in seen else None)
        if reason is None:
            seen.add(plain)
            passed.append(query_id)
        else:
            rejected[reason] += 1
    if not passed:
        found = ", ".join(f"{reason} {count}" for reason, count in rejected.most_common())
        raise DataError(f"none of {len(queries)} queries passes ({found or 'there are none'}); loosen sampling")
    wanted = len(passed) if config.queries is None else config.queries
    chosen = heapq.nsmallest(wanted, passed, key=lambda key: hash_parts(["pseudo labels", str(config.seed), key]))
    return SampledQueries({key: queries[key] for key in sorted(chosen)}, dict(rejected), len(passed))


def _flaw(text: str, config: SamplingConfig) -> str | None:
    """Return the rule that a query breaks; None where it passes."""
    words = text.split()
    if len(words) < config.min_words:
        return "too few words"
    if len(words) > config.max_words or len(text) > config.characters:
        return "too long"
    visible = "".join(words)
    if any(not character.isprintable() for character in visible) or "\ufffd" in visible:
        return "characters that cannot be printed"
    if sum(map(str.isalnum, visible)) < config.letters * len(visible):
        return "too few letters"
    return None
