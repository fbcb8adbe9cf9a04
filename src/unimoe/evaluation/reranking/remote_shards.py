"""Shards of a reranker that waits for a server: several are asked at a time, and each is kept once it is paid for."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, Unpack, runtime_checkable

from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.evaluation.reranking.shards import (
    Pair,
    Reranker,
    ShardScores,
    ShardWork,
    finite_scores,
    named_pairs,
    prepare,
    read_shard,
    write_shard,
)
from unimoe.models.served.scoring import Answer
from unimoe.models.served.usage import summed


@runtime_checkable
class RemoteReranker(Reranker, Protocol):
    """A reranker that waits for a server, so that several shards are scored at a time, and counts what scores cost."""

    @property
    def shards_at_a_time(self) -> int:
        """How many shards wait together."""

    def ask(self, prepared: Sequence[Any]) -> Answer:
        """Score as ``score`` does; called in several threads."""

    def notes(self, run: Run, usage: Mapping[str, float]) -> list[str]:
        """Return what to know before a run's scores are believed, in sentences."""


def score_remote_shards(
    reranker: RemoteReranker, collection: Collection, shards: Sequence[Sequence[Pair]], **work: Unpack[ShardWork]
) -> ShardScores:
    """Score the pairs of all shards as ``score_shards`` does, in this process; an error waits for those under way."""
    store, advance = work.get("store"), work.get("advance")
    clock, window = _Clock(), 2 * reranker.shards_at_a_time

    def score(pairs: Sequence[Pair]) -> ShardScores:
        prepared = prepare(reranker, collection, pairs)
        file = store.file(pairs, prepared) if store else None
        found = read_shard(file, pairs) if file else None
        if found is None:
            with named_pairs(collection, pairs):
                answer = reranker.ask(prepared)
                found = ShardScores(finite_scores(answer.scores, pairs), clock.lap(), usage=answer.usage)
            if file:
                write_shard(file, pairs, found)
        return found

    scored: list[ShardScores] = []
    waiting: deque[Future[ShardScores]] = deque()

    def collect(until: int) -> None:
        while len(waiting) > until:
            scored.append(waiting.popleft().result())
            if advance:
                advance(len(scored[-1].scores))

    with ThreadPoolExecutor(reranker.shards_at_a_time) as threads:
        try:
            for pairs in shards:
                waiting.append(threads.submit(score, pairs))
                collect(window)
            collect(0)
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise
    scores = [score for part in scored for score in part.scores]
    seconds = math.fsum(part.seconds for part in scored)
    return ShardScores(scores, seconds, usage=summed(part.usage for part in scored))


class _Clock:
    """Divides time among shards under way together: each has the time since another one's end."""

    def __init__(self) -> None:
        self._lock, self._last = threading.Lock(), time.perf_counter()

    def lap(self) -> float:
        with self._lock:
            before, self._last = self._last, time.perf_counter()
            return self._last - before
