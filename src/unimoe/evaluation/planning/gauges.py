"""What a plan counts of a model that is not one of token ids, and how it probes the model's speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, TypeVar

from unimoe.data.collection import Collection
from unimoe.data.mteb_sizes import TaskSize
from unimoe.evaluation.reranking.shards import Candidates, prepare
from unimoe.models.batching import batches
from unimoe.models.served.usage import Estimate

T = TypeVar("T")

_PROBE_SECONDS, _PROBE_ITEMS, _SAMPLES = 5.0, 16, 256


class ItemGauge:
    """Counts and probes the pairs of a ``Reranker``, or the texts of an ``Embedder``.

    Args:
        model: one of them.
    """

    def __init__(self, model: Any) -> None:
        self._model, self._embeds = model, callable(getattr(model, "encode", None))

    @property
    def unit(self) -> str:
        """What is counted."""
        return "texts" if self._embeds else "pairs"

    def pairs(self, collection: Collection, candidates: Candidates) -> list[Any]:
        """Return what the reranker scores of some queries' first pairs, in parts of one query, as a function wants."""
        asked = spread([query for query in collection.queries if candidates.get(query)], _SAMPLES // _PROBE_ITEMS)
        parts = [[(query, document) for document in islice(candidates[query], _PROBE_ITEMS)] for query in asked]
        return [prepare(self._model, collection, part) for part in parts]

    def texts(self, texts: Sequence[str]) -> list[Any]:
        """Return some texts, from the whole of a list, in parts."""
        return list(batches(spread(texts, _SAMPLES), _PROBE_ITEMS))

    def described(self, words: Sequence[str], size: TaskSize) -> list[Any]:
        """Return pairs or texts of a task's mean length, made of some words, in parts: no collection is at hand."""
        texts = [" ".join([*words[begin % len(words) :], *words, str(begin)]) for begin in range(4 * _PROBE_ITEMS)]
        queries, documents = (
            [_of_length(text, characters // max(1, count)) for text in texts]
            for characters, count in (
                (size.query_characters, size.queries), (size.document_characters, size.documents),
            )
        )  # fmt: skip
        if self._embeds:
            share = size.queries / max(1, size.queries + size.documents)
            among = [int((index + 1) * share) > int(index * share) for index in range(len(texts))]  # spread evenly
            made = [query if asks else text for asks, query, text in zip(among, queries, documents, strict=True)]
        else:
            made = self._model.prepare(list(zip(queries, documents, strict=True)))
        return list(batches(made, _PROBE_ITEMS))

    def seconds(self, amounts: Sequence[int], samples: Sequence[Sequence[Any]]) -> float:
        """Return how long some amounts of pairs or texts take, by a sample of each: their lengths differ."""
        measured = [(amount, sample) for amount, sample in zip(amounts, samples, strict=True) if sample]
        return sum(amount / self.speed(sample, _PROBE_SECONDS / len(measured)) for amount, sample in measured)

    def speed(self, sample: Sequence[Any], seconds: float = _PROBE_SECONDS) -> float:
        """Return the pairs or texts per second of a sample, measured for some seconds."""
        run: Callable[[Sequence[Any]], Any] = self._model.encode if self._embeds else self._model.score
        return probed_speed(run, sample, len, seconds)


class ServedGauge(ItemGauge):
    """Counts what a reranker or embedder behind a server will be asked, and probes nothing, which would cost.

    Attributes:
        asked: an estimate for each dataset so far.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.asked: list[Estimate] = []

    def pairs(self, collection: Collection, candidates: Candidates) -> list[Any]:
        """Count a dataset's pairs; return none to probe with."""
        self.asked.append(self._model.estimate(collection, candidates))
        return []

    def texts(self, texts: Sequence[str]) -> list[Any]:
        """Count a dataset's texts; return none to probe with."""
        self.asked.append(self._model.estimate(texts))
        return []

    def described(self, words: Sequence[str], size: TaskSize) -> list[Any]:
        """Return none to probe with."""
        return []

    def task(self, size: TaskSize) -> None:
        """Count a task of MTEB."""
        texts, characters = size.queries + size.documents, size.query_characters + size.document_characters
        by_sums = self._model.estimate_of(texts, characters) if self._embeds else self._model.estimate_task(size)
        self.asked.append(by_sums)

    def total(self) -> str:
        """Return what will be asked for all datasets, in words."""
        prices = [one.price for one in self.asked if one.price is not None]
        requests, tokens = sum(one.requests for one in self.asked), sum(one.tokens for one in self.asked)
        return str(Estimate(requests, tokens, sum(prices) if prices else None))


def gauge_of(model: Any) -> ItemGauge:
    """Return what counts the items of a model that is not one of token ids."""
    return ServedGauge(model) if callable(getattr(model, "estimate", None)) else ItemGauge(model)


def probed_speed(
    run: Callable[[Sequence[T]], object],
    sample: Sequence[Sequence[T]],
    amount: Callable[[Sequence[T]], int],
    seconds: float = _PROBE_SECONDS,
) -> float:
    """Return how much of a sample a function does per second; no part of it is done twice.

    Args:
        run: does a part.
        sample: parts, of which as many are done as the time allows; the last one is the warm-up.
        amount: returns how much a part is.
        seconds: the time.
    """
    parts = list(sample)
    if len(parts) > 1:
        run(parts.pop())  # a warm-up
    done, start = 0, time.perf_counter()
    for part in parts:
        run(part)
        done += amount(part)
        if time.perf_counter() - start > seconds:
            break
    return done / (time.perf_counter() - start)


def _of_length(text: str, characters: int) -> str:
    return (text * (1 + characters // len(text)))[: max(1, characters)]


def spread(items: Sequence[T], count: int) -> Sequence[T]:
    """Return about ``count`` items, from the whole of a list."""
    return items[:: max(1, len(items) // count)]
