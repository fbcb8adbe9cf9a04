"""Reranking in shards: units of work that a killed run finds again, and that several processes share.

Any ``Reranker`` is scored this way. It says how its pairs are cut into shards, so that a shard's scores depend on
nothing outside it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol

import torch

from unimoe.data.collection import Collection
from unimoe.errors import DataError, InputError
from unimoe.io import hash_parts, read_json, write_json
from unimoe.models.embedder import Advance
from unimoe.processes import ALONE, Processes
from unimoe.trec import Run

SHARD_CHARACTERS = 2**18
"""Text of one shard, each beginning counted once: half a minute for a small model on two cores."""

GPU_SHARD_CHARACTERS = 2**23
"""Text of one shard on a GPU: seconds for .6 B weights, half a minute for 8 B; larger ones would leave GPUs idle."""

Pair = tuple[str, str]
"""Query id and document id."""

TextPair = tuple[str, str]
"""Query and document, as texts."""

Candidates = Mapping[str, Mapping[str, float]]
"""A run to rerank: query id to ``{document id: first-stage score}``."""


class Reranker(Protocol):
    """Scores pairs of texts; the larger the score, the more relevant the document."""

    @property
    def token_budget(self) -> int | None:
        """Tokens of one forward pass, fewer once memory ran out; None where pairs are counted instead."""

    def cut(self, collection: Collection, candidates: Candidates) -> list[list[Pair]]:
        """Cut the candidate pairs of a collection's queries into shards, each pair once."""

    def prepare(self, pairs: Sequence[TextPair]) -> Sequence[Sequence[Any]]:
        """Return the input to score for each pair, such as its token ids.

        It is done ahead in another thread, and names the shard on disk.

        Raises:
            InputError: a pair cannot be scored; carries its index.
        """

    def score(self, prepared: Sequence[Any], advance: Advance | None = None) -> Sequence[float]:
        """Score what ``prepare`` made of some pairs, in their order.

        Args:
            prepared: of N pairs.
            advance: called with the number of pairs done.

        Raises:
            InputError: a pair cannot be scored; carries its index.
        """


@dataclass(frozen=True)
class ShardScores:
    """The scores of one shard, or of all of them.

    Attributes:
        scores: of each pair, in the order of the pairs.
        seconds: time of scoring.
    """

    scores: list[float]
    seconds: float


class ShardStore:
    """The finished shards of one evaluation, each a JSON file named by the hash of what it was computed from.

    Args:
        folder: holds nothing else; made when needed.
        fingerprint: of everything scores depend on besides the pairs: weights, dtype, device, budget, libraries.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder, self._fingerprint = folder, fingerprint

    def read(self, pairs: Sequence[Pair], prepared: Sequence[Sequence[Any]]) -> ShardScores | None:
        """Read the scores of these pairs; None where they have not been computed, or the file is damaged."""
        try:
            content = read_json(self._path(pairs, prepared))
            scores = [float(content["run"][query_id][document_id]) for query_id, document_id in pairs]
            return ShardScores(scores, float(content["seconds"]))
        except (DataError, KeyError, TypeError, ValueError):
            return None

    def write(self, pairs: Sequence[Pair], prepared: Sequence[Sequence[Any]], found: ShardScores) -> None:
        """Write the scores of a shard as part of a run."""
        run: Run = {}
        for (query_id, document_id), score in zip(pairs, found.scores, strict=True):
            run.setdefault(query_id, {})[document_id] = score
        write_json(self._path(pairs, prepared), {"run": run, "seconds": found.seconds}, indent=None)

    def clear(self) -> None:
        """Remove all shards."""
        rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # other evaluations may have shards in the parent folder
            self._folder.parent.rmdir()

    def _path(self, pairs: Sequence[Pair], prepared: Sequence[Sequence[Any]]) -> Path:
        content = (" ".join([*pair, *map(str, parts)]) for pair, parts in zip(pairs, prepared, strict=True))
        return self._folder / f"{hash_parts([self._fingerprint, *content])}.json"


def cut_shards(
    collection: Collection, candidates: Candidates, order: str, characters: int = SHARD_CHARACTERS
) -> list[list[Pair]]:
    """Cut the candidate pairs of a collection's queries into shards of whole prefix groups.

    A prefix group is the pairs whose prompts begin alike: those of a query where the prompt has the query first, else
    those of a document.

    Args:
        collection: queries and documents.
        candidates: the run to rerank.
        order: ``query_first`` or ``document_first``.
        characters: a shard ends with the group that brings its text to this size.
    """
    by = 0 if order == "query_first" else 1
    groups: dict[str, list[Pair]] = {}
    for pair in candidate_pairs(collection, candidates):
        groups.setdefault(pair[by], []).append(pair)
    shards: list[list[Pair]] = []
    room = 0
    for pairs in groups.values():
        if room <= 0:
            shards.append([])
            room = characters
        shards[-1].extend(pairs)
        room -= _characters(collection, pairs)
    return shards


def candidate_pairs(collection: Collection, candidates: Candidates) -> Iterator[Pair]:
    """Yield the candidates of every query of a collection."""
    return ((query, document) for query in collection.queries for document in candidates.get(query, {}))


def pair_texts(collection: Collection, pairs: Sequence[Pair]) -> list[TextPair]:
    """Return the texts of some pairs; a document's are its title and text."""
    return [(collection.queries[query], collection.corpus[document].full_text) for query, document in pairs]


def score_shards(
    reranker: Reranker,
    collection: Collection,
    shards: Sequence[Sequence[Pair]],
    *,
    store: ShardStore | None = None,
    processes: Processes = ALONE,
    advance: Advance | None = None,
) -> ShardScores:
    """Score the pairs of all shards: what the store has is read, the rest is computed, each process its share.

    Returns:
        The scores in the order of the shards' pairs, and the seconds of all processes together; the same in each.

    Raises:
        DataError: a pair cannot be scored, or its score is not finite; names query and document.
    """
    begins = [0, *accumulate(map(len, shards))]
    scores, seconds = torch.zeros(begins[-1], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    mine = processes.share(range(len(shards)))
    for number, prepared in zip(mine, _prepared(reranker, collection, [shards[i] for i in mine]), strict=True):
        pairs = shards[number]
        found = store.read(pairs, prepared) if store else None
        if found is None:
            found = _score(reranker, collection, pairs, prepared, advance)
            if store:
                store.write(pairs, prepared, found)
        elif advance:
            advance(len(pairs))
        scores[begins[number] : begins[number + 1]] = torch.tensor(found.scores, dtype=torch.float64)
        seconds += found.seconds
    return ShardScores(processes.total(scores).tolist(), float(processes.total(seconds)))


def prepare(reranker: Reranker, collection: Collection, pairs: Sequence[Pair]) -> Sequence[Sequence[Any]]:
    """Return what a reranker scores of some pairs.

    Raises:
        DataError: a pair cannot be scored, such as a query too long for the prompt; names query and document.
    """
    with _named(collection, pairs):
        return reranker.prepare(pair_texts(collection, pairs))


def _characters(collection: Collection, pairs: Sequence[Pair]) -> int:
    """Return the characters of a group; what its prompts share counts once."""
    queries, documents = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
    text = sum(len(collection.queries[query_id]) for query_id in queries)
    return text + sum(len(collection.corpus[document_id].full_text) for document_id in documents)


def _prepared(
    reranker: Reranker, collection: Collection, shards: Sequence[Sequence[Pair]]
) -> Iterator[Sequence[Sequence[Any]]]:
    """Prepare each shard; the next one while this one is scored."""
    with ThreadPoolExecutor(1) as ahead:
        waiting: deque[Future[Sequence[Sequence[Any]]]] = deque()
        for pairs in shards:
            waiting.append(ahead.submit(prepare, reranker, collection, pairs))
            if len(waiting) == 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _score(
    reranker: Reranker,
    collection: Collection,
    pairs: Sequence[Pair],
    prepared: Sequence[Sequence[Any]],
    advance: Advance | None,
) -> ShardScores:
    start = time.perf_counter()
    with _named(collection, pairs):
        scores = list(map(float, reranker.score(prepared, advance)))
        if len(scores) != len(pairs):
            raise DataError(
                f"query {pairs[0][0]!r}: the reranker returned {len(scores)} scores for {len(pairs)} pairs; "
                "return one for each"
            )
        for index, score in enumerate(scores):
            if not math.isfinite(score):
                raise InputError(index, f"the score is {score}; a reranker returns finite numbers")
    return ShardScores(scores, time.perf_counter() - start)


@contextmanager
def _named(collection: Collection, pairs: Sequence[Pair]) -> Iterator[None]:
    """Name the ids in errors about one of the pairs."""
    try:
        yield
    except InputError as error:
        query_id, document_id = pairs[error.index]
        raise DataError(f"{collection.name}, query {query_id!r}, document {document_id!r}: {error.reason}") from None
