"""Reranks a run in shards: units of work that a killed run finds again, and that several workers share.

A ``Reranker`` scores pairs of texts. The pairs are cut into shards here, so that a shard's scores depend on nothing
outside it.
"""

from __future__ import annotations

import math
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from ctypes import c_float
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import Field

from unimoe.core.errors import DataError, InputError, first_few, named_inputs
from unimoe.core.grouping import gathered
from unimoe.core.io import Strict, WriteLine, hash_parts, read_json, write_line, written_behind
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.models.batching import ahead, batches
from unimoe.models.embedder import Advance

if TYPE_CHECKING:
    from unimoe.data.mteb_names import TaskSize
    from unimoe.models.served.client import RequestEstimate

TextPair = tuple[str, str]
"""Query and document, as texts."""

SHARD_CHARACTERS = 2**18
"""Text of one shard, each beginning counted once: half a minute for a small model on two cores."""

GPU_SHARD_CHARACTERS = 2**20
"""Text of one shard on a GPU: SciFact's 300 queries make some 40, which eight GPUs share evenly."""

Pair = tuple[str, str]
"""Query id and document id."""

Shards = Sequence[Sequence[Pair]]

Candidates = Mapping[str, Mapping[str, float]]
"""A run to rerank: query id to ``{document id: first-stage score}``."""

LookedUp = tuple[Sequence[Sequence[Any]], Path | None, "ShardScores | None"]
"""What was prepared of a shard, its file in the store, and its scores where they are there."""

Cut = tuple[str, int]
"""How pairs are cut: ``query_first`` or ``document_first`` and a shard's characters, or ``length`` and its pairs.

By ``ranked`` and a shard's characters, it has those of whole queries, each in the first stage's order.
"""


class ShardScores(Strict):
    """The scores of one shard, or of all of them.

    Attributes:
        scores: of each pair, in the order of the pairs.
        seconds: time of scoring; the sum over the shards that threads score at a time, the mean over workers.
        token_budget: tokens of one forward pass, the fewest of all workers; None where pairs are counted instead.
        usage: what a server was paid for them, by name; that of stored shards included.
    """

    scores: list[float]
    seconds: float
    token_budget: int | None = None
    usage: dict[str, float] = Field(default_factory=dict)


class Reranker(ABC):
    """Scores pairs of texts; the larger the score, the more relevant the document.

    A subclass has ``score``. The other members have defaults for one that reads whole texts and compares the candidates
    of one query with each other; those that know more about their model cut larger shards and prepare texts ahead.
    """

    at_once = 1
    """Shards that are scored at a time, each by a thread, where a model elsewhere does the work."""

    place: torch.device | str = "not known"
    """Where it computes; a description where torch does not know the place."""

    reads_order = False
    """Whether scores depend on the order of a query's candidates, as where a model reads all of them together."""

    logits = False
    """Whether its scores are logits, as those of unimoe's families are; others say what theirs are."""

    @abstractmethod
    def score(self, prepared: Sequence[Any], advance: Advance | None = None) -> Sequence[float]:
        """Score what ``prepare`` made of some pairs, by default their texts, in their order.

        ``advance`` is called with the number of pairs done. An ``InputError`` carries the index of a pair that cannot
        be scored.
        """

    @property
    def cut_by(self) -> Cut:
        """How the pairs are cut into shards; by default one shard a query."""
        return "query_first", 0

    @property
    def token_budget(self) -> int | None:
        """Tokens of one forward pass, fewer once memory ran out; None where pairs are counted instead."""
        return None

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

    def notes(self, run: Run, usage: Mapping[str, float]) -> list[str]:
        """Return what to know before a run's scores are believed, in sentences; ``usage`` is what they cost."""
        return []

    def asked(self, collection: Collection, candidates: Candidates) -> RequestEstimate | None:
        """Return what a server will be asked to rerank candidates; None without one."""
        return None

    def asked_task(self, size: TaskSize) -> RequestEstimate | None:
        """Return what a server will be asked to rerank the candidates of a task of MTEB; None without one."""
        return None

    def tokens_of(self, shards: Sequence[Sequence[Any]]) -> int | None:
        """Return the tokens that a model on this machine reads and writes for some shards; None where not known."""
        return None

    def shard_scores(self, prepared: Sequence[Any], advance: Advance | None = None) -> ShardScores:
        """Score what was prepared of the pairs of one shard; refuse scores that are none."""
        start = time.perf_counter()
        scores = list(map(float, self.score(prepared, advance)))
        if len(scores) != len(prepared):
            raise InputError(
                0, f"the reranker returned {len(scores)} scores for {len(prepared)} pairs; return one for each"
            )
        for index, score in enumerate(scores):
            if not math.isfinite(score):
                raise InputError(index, f"the score is {score}; a reranker returns finite numbers")
        return ShardScores(scores=scores, seconds=time.perf_counter() - start)

    def score_shards(
        self, collection: Collection, shards: Shards, store: ShardStore | None = None, advance: Advance | None = None
    ) -> ShardScores:
        """Score the pairs of all shards, in their order: what the store has is read, the rest is computed.

        Beside a model on this machine, threads prepare and look up the next shards, and write the last one.
        """
        in_threads = self.at_once > 1  # which report nothing: the caller's thread does, of whole shards

        def looked_up(shard: Sequence[Pair]) -> LookedUp:
            return self.looked_up(collection, shard, store)

        def finished(shard: Sequence[Pair], looked: LookedUp, write: WriteLine) -> ShardScores:
            prepared, file, found = looked
            if found is None:
                with named_pairs(collection, shard):
                    found = self.shard_scores(prepared, None if in_threads else advance)
                if file:  # at once: an answer of a server is paid for, whatever becomes of the others
                    write(file, found.model_dump())
            elif advance and not in_threads:
                advance(len(shard))
            return found

        all_found: list[ShardScores] = []
        with written_behind() as behind:
            if in_threads:
                made = ahead(lambda shard: finished(shard, looked_up(shard), write_line), shards, self.at_once)
            else:
                ready = ahead(looked_up, shards)
                made = (finished(shard, looked, behind) for shard, looked in zip(shards, ready, strict=True))
            with closing(made):
                for shard, found in zip(shards, made, strict=True):
                    all_found.append(found)
                    if advance and in_threads:
                        advance(len(shard))
        return joined(all_found, self.token_budget)

    def looked_up(self, collection: Collection, shard: Sequence[Pair], store: ShardStore | None) -> LookedUp:
        """Return what is prepared of a shard, its file, and its scores where the store has them."""
        prepared = prepare(self, collection, shard)
        file = store.file(shard, prepared) if store else None
        return prepared, file, read_shard(file) if file else None


def joined(parts: Sequence[ShardScores], token_budget: int | None = None) -> ShardScores:
    """Return the scores of shards as those of one, with their time and cost."""
    usage = Counter[str]()
    for part in parts:
        usage.update(part.usage)
    scores = [score for part in parts for score in part.scores]
    seconds = sum(part.seconds for part in parts)
    return ShardScores(scores=scores, seconds=seconds, token_budget=token_budget, usage=dict(usage))


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


def read_shard(file: Path) -> ShardScores | None:
    """Read the scores of a shard; None where they have not been computed, or the file is damaged."""
    try:
        return read_json(file, ShardScores)
    except DataError:
        return None


def cut_pairs(collection: Collection, candidates: Candidates, how: Cut) -> list[list[Pair]]:
    """Cut the candidate pairs of a collection's queries into shards, each pair once.

    By ``length`` a shard has pairs of similar length. Else it has whole prefix groups, the pairs of prompts that begin
    alike: those of a query where the order is ``query_first`` or, best candidate first, ``ranked``; those of a document
    where it is ``document_first``. Such a shard ends with the group that brings its text to its size.
    """
    order, size = how
    pairs = list(candidate_pairs(collection, candidates))
    if order == "length":
        lengths = [sum(map(len, texts)) for texts in pair_texts(collection, pairs)]
        longest_first = sorted(range(len(pairs)), key=lambda index: -lengths[index])
        return [[pairs[index] for index in part] for part in batches(longest_first, size)]
    groups = gathered((pair[order == "document_first"], pair) for pair in pairs)
    shards: list[list[Pair]] = []
    room, before = 0, None
    for key, group in groups.items():
        text = None
        if order == "ranked":
            text, scores = re.sub(r"\W+", "", collection.queries[key]), candidates[key]
            group.sort(key=lambda pair: -c_float(scores[pair[1]]).value)
        # A worker tells lists apart by their queries' texts, in which it may replace signs: two may look alike to it.
        if room <= 0 or (text is not None and text == before):
            shards.append([])
            room = size
        shards[-1].extend(group)
        before = text
        # What the prompts of a group share counts once.
        room -= sum(len(collection.queries[query_id]) for query_id in {query_id for query_id, _ in group})
        room -= sum(len(collection.corpus[key].full_text) for key in {key for _, key in group})
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


def prepare(reranker: Reranker, collection: Collection, pairs: Sequence[Pair]) -> Sequence[Sequence[Any]]:
    """Return what a reranker scores of some pairs; a ``DataError`` names the query and document that cannot be."""
    with named_pairs(collection, pairs):
        return reranker.prepare(pair_texts(collection, pairs))


def named_pairs(collection: Collection, pairs: Sequence[Pair]) -> AbstractContextManager[None]:
    """Name the collection, query and document of a pair in the errors that carry its index."""
    return named_inputs(lambda index: "{}, query {!r}, document {!r}".format(collection.name, *pairs[index]))


def rerank_run(
    reranker: Reranker,
    collection: Collection,
    candidates: Candidates,
    *,
    store: ShardStore | None = None,
    advance: Advance | None = None,
) -> tuple[Run, ShardScores]:
    """Rerank the candidates of every query of a collection; return the new run, and the scores shard by shard.

    ``store`` keeps finished shards, so that a killed run can be resumed; ``advance`` is called with the number of pairs
    done.
    """
    for query_id, document_id in candidate_pairs(collection, candidates):
        if document_id not in collection.corpus:
            raise DataError(
                f"candidate {document_id!r} of query {query_id!r} is no document of {collection.name}; "
                "give a run made on this corpus"
            )
    shards = reranker.cut(collection, candidates)
    found = reranker.score_shards(collection, shards, store=store, advance=advance)
    scores = dict(zip((pair for shard in shards for pair in shard), found.scores, strict=True))
    run: Run = {query: {} for query in collection.queries}
    for query, document in candidate_pairs(collection, candidates):
        if (query, document) not in scores:
            raise DataError(
                f"query {query!r}, document {document!r}: in no shard of the reranker's cut(); return every pair once"
            )
        run[query][document] = scores[query, document]
    return run, found


def truncation_note(name: str, truncated: Sequence[str]) -> str:
    """Return a sentence about the queries of a dataset that a reranker sees only the beginning of."""
    return (
        f"{name}: queries that fill the whole prompt, of which the model sees the beginning and no document: "
        f"{len(truncated):,} ({first_few(truncated)}); raise model.max_length to read them whole"
    )
