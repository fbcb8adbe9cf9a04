"""Reranks a run in shards: units of work that a killed run finds again, and that several workers share.

A ``Reranker`` scores pairs of texts. The pairs are cut into shards here, so that a shard's scores depend on nothing
outside it.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack, runtime_checkable

from pydantic import Field

from unimoe.core.errors import DataError, InputError, named_inputs
from unimoe.core.io import Strict, hash_parts, read_json, write_json
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.models.batching import ahead, batches
from unimoe.models.embedder import Advance
from unimoe.models.pair_model import TextPair

SHARD_CHARACTERS = 2**18
"""Text of one shard, each beginning counted once: half a minute for a small model on two cores."""

GPU_SHARD_CHARACTERS = 2**20
"""Text of one shard on a GPU: SciFact's 300 queries make some 40, which eight GPUs share evenly."""

Pair = tuple[str, str]
"""Query id and document id."""

Candidates = Mapping[str, Mapping[str, float]]
"""A run to rerank: query id to ``{document id: first-stage score}``."""

Cut = tuple[str, int]
"""How pairs are cut: ``query_first`` or ``document_first`` and a shard's characters, or ``length`` and its pairs."""


class Reranker(Protocol):
    """Scores pairs of texts; the larger the score, the more relevant the document.

    A subclass has ``score``. The other members have defaults for one that reads whole texts and compares the candidates
    of one query with each other; those that know more about their model cut larger shards and prepare texts ahead.
    """

    @property
    def token_budget(self) -> int | None:
        """Tokens of one forward pass, fewer once memory ran out; None where pairs are counted instead."""
        return None

    @property
    def cut_by(self) -> Cut | None:
        """How the pairs are cut into shards; None for one shard a query."""
        return None

    @abstractmethod
    def score(self, prepared: Sequence[Any], advance: Advance | None = None) -> Sequence[float]:
        """Score what ``prepare`` made of some pairs, by default their texts, in their order.

        Args:
            prepared: of N pairs.
            advance: called with the number of pairs done.

        Raises:
            InputError: a pair cannot be scored; carries its index.
        """

    def prepare(self, pairs: Sequence[TextPair]) -> Sequence[Sequence[Any]]:
        """Return the input to score for each pair, such as its token ids; an ``InputError`` carries a pair's index.

        It is done ahead in another thread, and names the shard on disk.
        """
        return pairs

    def cut(self, collection: Collection, candidates: Candidates) -> list[list[Pair]]:
        """Cut the candidate pairs of a collection's queries into shards, each pair once."""
        return cut_pairs(collection, candidates, self.cut_by)

    def truncated_queries(self, queries: Mapping[str, str]) -> list[str]:
        """Return the ids of queries so long that the model sees only their beginning, and nothing of a document."""
        return []


@runtime_checkable
class DelegatingReranker(Protocol):
    """A reranker whose model others hold, workers or a server, and score whole shards with, several at a time."""

    def score_shards(
        self, collection: Collection, shards: Sequence[Sequence[Pair]], **work: Unpack[ShardWork]
    ) -> ShardScores:
        """Score the pairs of shards that ``cut`` made, in their order."""


@dataclass(frozen=True)
class ShardScores:
    """The scores of one shard, or of all of them.

    Attributes:
        scores: of each pair, in the order of the pairs.
        seconds: time of scoring, of all workers together.
        token_budget: tokens of one forward pass, the fewest of all workers; None where pairs are counted instead.
        usage: what a server was paid for them, by name; that of stored shards included.
    """

    scores: list[float]
    seconds: float
    token_budget: int | None = None
    usage: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ShardStore:
    """The finished shards of one evaluation, each a JSON file named by the hash of what it was computed from.

    Attributes:
        folder: holds nothing else; made when needed.
        fingerprint: of what scores depend on besides the pairs: weights, prompt, dtype.
    """

    folder: Path
    fingerprint: str

    def file(self, pairs: Sequence[Pair], prepared: Sequence[Sequence[Any]]) -> Path:
        """Return the file of a shard: of these pairs, and what a reranker prepared of them."""
        content = (" ".join([*pair, *map(str, parts)]) for pair, parts in zip(pairs, prepared, strict=True))
        return self.folder / f"{hash_parts([self.fingerprint, *content])}.json"


class ShardWork(TypedDict, total=False):
    """Options of scoring shards.

    Attributes:
        store: keeps finished shards, so that a killed run can be resumed; by default none.
        advance: called with the number of pairs done, after each batch.
    """

    store: ShardStore | None
    advance: Advance | None


class _ShardFile(Strict):
    run: Run
    seconds: float
    usage: dict[str, float] = Field(default_factory=dict)


def read_shard(file: Path, pairs: Sequence[Pair]) -> ShardScores | None:
    """Read the scores of a shard's pairs; None where they have not been computed, or the file is damaged."""
    try:
        content = read_json(file, _ShardFile)
        scores = [content.run[query_id][document_id] for query_id, document_id in pairs]
    except (DataError, KeyError):
        return None
    return ShardScores(scores, content.seconds, usage=content.usage)


def write_shard(file: Path, pairs: Sequence[Pair], found: ShardScores) -> None:
    """Write the scores of a shard as part of a run."""
    run: Run = {}
    for (query_id, document_id), score in zip(pairs, found.scores, strict=True):
        run.setdefault(query_id, {})[document_id] = score
    usage = {"usage": dict(found.usage)} if found.usage else {}
    write_json(file, {"run": run, "seconds": found.seconds, **usage}, indent=None)


def cut_pairs(collection: Collection, candidates: Candidates, how: Cut | None) -> list[list[Pair]]:
    """Cut the candidate pairs of a collection's queries into shards, each pair once."""
    if how is None:
        by_query = groupby(candidate_pairs(collection, candidates), key=itemgetter(0))
        return [list(pairs) for _, pairs in by_query]
    order, size = how
    if order != "length":
        return cut_shards(collection, candidates, order, size)
    pairs = list(candidate_pairs(collection, candidates))
    lengths = [sum(map(len, texts)) for texts in pair_texts(collection, pairs)]
    falling = sorted(range(len(pairs)), key=lambda index: -lengths[index])  # pairs of similar length share a batch
    return [[pairs[index] for index in part] for part in batches(falling, size)]


def cut_shards(
    collection: Collection, candidates: Candidates, order: str, characters: int = SHARD_CHARACTERS
) -> list[list[Pair]]:
    """Cut the candidate pairs of a collection's queries into shards of whole prefix groups.

    A prefix group is the pairs whose prompts begin alike: those of a query where ``order`` is ``query_first``, those of
    a document where it is ``document_first``. A shard ends with the group that brings its text to ``characters``.
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
        # What the prompts of a group share counts once.
        room -= sum(len(collection.queries[query_id]) for query_id in {query_id for query_id, _ in pairs})
        room -= sum(len(collection.corpus[key].full_text) for key in {key for _, key in pairs})
    return shards


def shard_characters(place: object) -> int:
    """Return the text of one shard on a device."""
    return SHARD_CHARACTERS if str(place).startswith("cpu") else GPU_SHARD_CHARACTERS


def candidate_pairs(collection: Collection, candidates: Candidates) -> Iterator[Pair]:
    """Yield the candidates of every query of a collection."""
    return ((query, document) for query in collection.queries for document in candidates.get(query, {}))


def pair_texts(collection: Collection, pairs: Sequence[Pair]) -> list[TextPair]:
    """Return the texts of some pairs; a document's are its title and text."""
    return [(collection.queries[query], collection.corpus[document].full_text) for query, document in pairs]


def rerank_run(
    reranker: Reranker, collection: Collection, candidates: Candidates, **work: Unpack[ShardWork]
) -> tuple[Run, ShardScores]:
    """Rerank the candidates of every query of a collection; return the new run, and the scores shard by shard."""
    for query_id, document_id in candidate_pairs(collection, candidates):
        if document_id not in collection.corpus:
            raise DataError(
                f"candidate {document_id!r} of query {query_id!r} is no document of {collection.name}; "
                "give a run made on this corpus"
            )
    shards = reranker.cut(collection, candidates)
    found = score_shards(reranker, collection, shards, **work)
    scores = dict(zip((pair for shard in shards for pair in shard), found.scores, strict=True))
    run: Run = {query: {} for query in collection.queries}
    for query, document in candidate_pairs(collection, candidates):
        if (query, document) not in scores:
            raise DataError(
                f"query {query!r}, document {document!r}: in no shard of the reranker's cut(); return every pair once"
            )
        run[query][document] = scores[query, document]
    return run, found


def score_shards(
    reranker: Reranker, collection: Collection, shards: Sequence[Sequence[Pair]], **work: Unpack[ShardWork]
) -> ShardScores:
    """Score the pairs of all shards, in their order: what the store has is read, the rest is computed."""
    if isinstance(reranker, DelegatingReranker):
        return reranker.score_shards(collection, shards, **work)
    store, advance = work.get("store"), work.get("advance")
    scores: list[float] = []
    seconds = 0.0
    for pairs, prepared in zip(shards, ahead(partial(prepare, reranker, collection), shards), strict=True):
        file = store.file(pairs, prepared) if store else None
        found = read_shard(file, pairs) if file else None
        if found is None:
            with named_pairs(collection, pairs):
                found = timed_scores(reranker, prepared, advance)
            if file:
                write_shard(file, pairs, found)
        elif advance:
            advance(len(pairs))
        scores += found.scores
        seconds += found.seconds
    return ShardScores(scores, seconds, reranker.token_budget)


def prepare(reranker: Reranker, collection: Collection, pairs: Sequence[Pair]) -> Sequence[Sequence[Any]]:
    """Return what a reranker scores of some pairs; a ``DataError`` names the query and document that cannot be."""
    with named_pairs(collection, pairs):
        return reranker.prepare(pair_texts(collection, pairs))


def timed_scores(reranker: Reranker, prepared: Sequence[Any], advance: Advance | None = None) -> ShardScores:
    """Score what was prepared of the pairs of one shard."""
    start = time.perf_counter()
    scores = list(map(float, reranker.score(prepared, advance)))
    if len(scores) != len(prepared):
        raise InputError(
            0, f"the reranker returned {len(scores)} scores for {len(prepared)} pairs; return one for each"
        )
    for index, score in enumerate(scores):
        if not math.isfinite(score):
            raise InputError(index, f"the score is {score}; a reranker returns finite numbers")
    return ShardScores(scores, time.perf_counter() - start)


def named_pairs(collection: Collection, pairs: Sequence[Pair]) -> AbstractContextManager[None]:
    """Name the collection, query and document of a pair in the errors that carry its index."""

    def name(index: int) -> str:
        query, document = pairs[index]
        return f"{collection.name}, query {query!r}, document {document!r}"

    return named_inputs(name)
