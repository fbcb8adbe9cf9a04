"""Reranking in shards: units of work that a killed run finds again, and that several processes share.

A shard is made of whole prefix groups, the pairs whose questions begin alike: those of a query where the prompt puts
the query first, those of a document otherwise. Batches never cross a shard, so its scores depend on nothing outside it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from shutil import rmtree

import torch

from unimoe.data.collection import Collection
from unimoe.errors import DataError, InputError
from unimoe.io import hash_parts, read_json, write_json
from unimoe.models.embedder import Advance
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.processes import ALONE, Processes
from unimoe.trec import Run

SHARD_CHARACTERS = 2**18
"""Text of one shard, each beginning counted once: half a minute for a small model on two cores."""

Pair = tuple[str, str]
"""Query id and document id."""

Sequences = list[list[int]]


@dataclass(frozen=True)
class ShardScores:
    """What came out of one shard.

    Attributes:
        gaps: logit gap of each pair, in the order of the pairs.
        seconds: time of scoring.
    """

    gaps: list[float]
    seconds: float


class ShardStore:
    """The finished shards of one measurement, each a JSON file named by the content hash of what it was computed from.

    Args:
        folder: theirs alone; made when needed.
        fingerprint: of everything scores depend on besides the token ids: weights, dtype, device, budget, libraries.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder, self._fingerprint = folder, fingerprint

    def read(self, pairs: Sequence[Pair], sequences: Sequences) -> ShardScores | None:
        """The scores of these pairs; null where they have not been computed, or the file is damaged."""
        try:
            content = read_json(self._path(pairs, sequences))
            gaps = [float(content["run"][query_id][document_id]) for query_id, document_id in pairs]
            return ShardScores(gaps, float(content["seconds"]))
        except (DataError, KeyError, TypeError, ValueError):
            return None

    def write(self, pairs: Sequence[Pair], sequences: Sequences, scores: ShardScores) -> None:
        """Keep the scores of a shard, as the piece of a run."""
        run: Run = {}
        for (query_id, document_id), gap in zip(pairs, scores.gaps, strict=True):
            run.setdefault(query_id, {})[document_id] = gap
        write_json(self._path(pairs, sequences), {"run": run, "seconds": scores.seconds}, indent=None)

    def clear(self) -> None:
        """Remove all shards: what they held stands in a result now."""
        rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # others may be there
            self._folder.parent.rmdir()

    def _path(self, pairs: Sequence[Pair], sequences: Sequences) -> Path:
        content = (" ".join([*pair, *map(str, ids)]) for pair, ids in zip(pairs, sequences, strict=True))
        return self._folder / f"{hash_parts([self._fingerprint, *content])}.json"


def cut_shards(
    collection: Collection,
    candidates: Mapping[str, Mapping[str, float]],
    order: str,
    characters: int = SHARD_CHARACTERS,
) -> list[list[Pair]]:
    """All candidate pairs of a collection's queries, in shards of whole prefix groups.

    Args:
        collection: queries and documents.
        candidates: a run: query id to ``{document id: first-stage score}``.
        order: ``query_first`` or ``document_first``: what the prompt's order groups by.
        characters: a shard ends with the group that brings its text to this size.
    """
    by = 0 if order == "query_first" else 1
    groups: dict[str, list[Pair]] = {}
    for query_id in collection.queries:
        for document_id in candidates.get(query_id, {}):
            pair = (query_id, document_id)
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


def question_ids(model: UnimodelForExp1, collection: Collection, pairs: Sequence[Pair]) -> Sequences:
    """The token ids of the pairs' questions.

    Raises:
        DataError: a query is too long for the prompt; names the pair.
    """
    with _named(pairs):
        return model.pair_ids([(collection.queries[q], collection.corpus[d].full_text) for q, d in pairs])


def score_shards(
    model: UnimodelForExp1,
    collection: Collection,
    shards: Sequence[Sequence[Pair]],
    *,
    store: ShardStore | None = None,
    processes: Processes = ALONE,
    token_budget: int | None = None,
    batch_size: int | None = None,
    advance: Advance | None = None,
) -> ShardScores:
    """Score the pairs of all shards: what the store has is read, the rest is computed, each process its share.

    Returns:
        The gaps in the order of the shards' pairs, and the seconds all processes took together; the same in each.

    Raises:
        DataError: a query is too long for the prompt, or a score is not finite; names query and document.
    """
    begins = [0, *accumulate(map(len, shards))]
    gaps, seconds = torch.zeros(begins[-1]), torch.zeros(1, dtype=torch.float64)
    mine = processes.share(range(len(shards)))
    for number, sequences in zip(mine, _tokenised(model, collection, [shards[i] for i in mine]), strict=True):
        pairs = shards[number]
        scores = store.read(pairs, sequences) if store else None
        if scores is None:
            scores = _score(model, pairs, sequences, token_budget, batch_size, advance)
            if store:
                store.write(pairs, sequences, scores)
        elif advance:
            advance(len(pairs))
        gaps[begins[number] : begins[number + 1]] = torch.tensor(scores.gaps)
        seconds += scores.seconds
    return ShardScores(processes.total(gaps).tolist(), float(processes.total(seconds)))


def _characters(collection: Collection, pairs: Sequence[Pair]) -> int:
    """Text of a group, what its questions share counted once."""
    queries, documents = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
    text = sum(len(collection.queries[query_id]) for query_id in queries)
    return text + sum(len(collection.corpus[document_id].full_text) for document_id in documents)


def _tokenised(model: UnimodelForExp1, collection: Collection, shards: Sequence[Sequence[Pair]]) -> Iterator[Sequences]:
    """The token ids of each shard's questions; the next shard's are made while this one's are scored."""
    with ThreadPoolExecutor(1) as ahead:
        waiting: deque[Future[Sequences]] = deque()
        for pairs in shards:
            waiting.append(ahead.submit(question_ids, model, collection, pairs))
            if len(waiting) == 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _score(
    model: UnimodelForExp1,
    pairs: Sequence[Pair],
    sequences: Sequences,
    token_budget: int | None,
    batch_size: int | None,
    advance: Advance | None,
) -> ShardScores:
    start = time.perf_counter()
    with _named(pairs):
        gaps = model.rerank_ids(sequences, token_budget=token_budget, batch_size=batch_size, advance=advance)
    return ShardScores(gaps.tolist(), time.perf_counter() - start)


@contextmanager
def _named(pairs: Sequence[Pair]) -> Iterator[None]:
    """Errors about one of the pairs name its ids."""
    try:
        yield
    except InputError as error:
        query_id, document_id = pairs[error.index]
        raise DataError(f"query {query_id!r}, document {document_id!r}: {error.reason}") from None
