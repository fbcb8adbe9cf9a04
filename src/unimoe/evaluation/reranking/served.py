"""Reranking by a model behind a server: a shard is what one request asks, so that it is kept once it is paid for."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from itertools import compress
from math import ceil, inf
from pathlib import Path
from typing import Any

from unimoe.config import Experiment
from unimoe.config.served import ServedConfig
from unimoe.core.errors import first_few
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.data.mteb_sizes import TaskSize
from unimoe.evaluation.reranking.shards import Candidates, Pair, candidate_pairs, pair_texts
from unimoe.models.batching import batches
from unimoe.models.embedder import Advance
from unimoe.models.pair_model import TextPair
from unimoe.models.served.scoring import BOTTOM, TOP, Answer, PairScores
from unimoe.models.served.usage import CHARACTERS_PER_TOKEN, Estimate, Usage, estimate, summed, usage_text

_SAMPLE = 64
_DOCUMENTS_PER_SEARCH = 100


def served_reranker(
    url: str, settings: ServedConfig, experiment: Experiment, *, record: Path | None = None
) -> ServedReranker:
    """Return the reranker of a server.

    Args:
        url: its address, as ``https://host/v1``.
        settings: how it is asked.
        experiment: for the API ``vllm``, its ``model`` section names the tokenizer and ``prompt`` is the prompt.
        record: keeps the first answers about the probe pairs; by default a file in the user's cache.

    Raises:
        UsageError: the address or the API cannot be used, or what asks is not installed.
        DataError: the tokenizer is not available.
    """
    return ServedReranker(PairScores(url, settings, experiment.model, experiment.prompt, record), settings)


class ServedReranker:
    """Scores pairs by a server.

    Attributes:
        prompt_name: name and hash of the prompt; the server's own where it has one.
        shards_at_a_time: those whose requests wait for an answer together.
        usage: what all requests so far cost, by name.
    """

    token_budget = None
    device = "a server"

    def __init__(self, scores: PairScores, settings: ServedConfig) -> None:
        self._scores, self._settings = scores, settings
        self.name, self.prompt_name = scores.name, scores.prompt_name
        self.shards_at_a_time = settings.requests_in_flight
        self.usage: Usage = {}
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        """What results store for the base model: API, server, model, revision and fingerprint.

        Raises:
            DataError: the server does not answer, or another model answers than before.
        """
        return self._scores.identity

    def cut(self, collection: Collection, candidates: Candidates) -> list[list[Pair]]:
        """Cut into shards that one request asks about: of one query, or of prompts that begin alike where they can."""
        if self._scores.pair_ids is None:
            by_query = ([(query, document) for document in candidates.get(query, {})] for query in collection.queries)
            return [list(part) for pairs in by_query for part in batches(pairs, self._scores.batch)]
        pairs = list(candidate_pairs(collection, candidates))
        if self._scores.pair_ids.order == "document_first":
            place: dict[str, int] = {}
            pairs.sort(key=lambda pair: place.setdefault(pair[1], len(place)))
        return [list(part) for part in batches(pairs, self._scores.batch)]

    def prepare(self, pairs: Sequence[TextPair]) -> list[Any]:
        """Return what is asked about each pair: its prompt's token ids, or its texts."""
        return self._scores.prepare(pairs)

    def truncated_queries(self, queries: Mapping[str, str]) -> list[str]:
        """Return the ids of queries that leave no room for a document, where the prompt is ours."""
        if self._scores.pair_ids is None:
            return []
        return list(compress(queries, self._scores.pair_ids.too_long(queries.values())))

    def score(self, prepared: Sequence[Any], advance: Advance | None = None) -> list[float]:
        """Return the margin or raw score of each pair.

        Raises:
            InputError: the server does not answer, or not with a finite number for each pair; carries the index.
        """
        found = self.ask(prepared).scores
        if advance:
            advance(len(found))
        return found

    def ask(self, prepared: Sequence[Any]) -> Answer:
        """Return the scores of some pairs, and what they cost; errors are those of ``score``."""
        answer = self._scores.ask(prepared)
        with self._lock:
            self.usage = summed([self.usage, answer.usage])
        return answer

    def notes(self, run: Run, usage: Usage) -> list[str]:
        """Return what to know about a run's scores: what they cost, what revision they are of, and which saturate."""
        notes = [f"scored by {self.identity}: {usage_text(usage)}"] if usage else []
        if self._settings.revision is None:
            notes.append("the server's revision is not given; set served.revision, so that the result says what ran")
        ends = (BOTTOM, TOP) if self._scores.from_probability else ()
        flat = [f"{query}/{document}" for query, row in run.items() for document, s in row.items() if s in ends]
        if flat:
            notes.append(
                f"P(yes) saturates at 0 or 1, so that these pairs tie: {len(flat):,} ({first_few(flat)}); a server "
                "that rounds it to float32 does so from a margin of 17 on"
            )
        return notes

    def estimate(self, collection: Collection, candidates: Candidates) -> Estimate:
        """Return what reranking will ask; tokens are those of a sample."""
        shards = self.cut(collection, candidates)
        pairs = [pair for shard in shards for pair in shard]
        sample = self.prepare(pair_texts(collection, pairs[:: max(1, len(pairs) // _SAMPLE)]))
        tokens = sum(map(self._tokens, sample)) * len(pairs) / max(1, len(sample))
        searches = sum(ceil(len(shard) / _DOCUMENTS_PER_SEARCH) for shard in shards)
        return estimate(len(shards), tokens, self._settings, searches)

    def estimate_task(self, size: TaskSize) -> Estimate:
        """Return what reranking the candidates of a task of MTEB will ask, by its sums: queries as many for each."""
        own, asked, queries = self._scores.pair_ids, size.pairs, max(1, size.queries)
        each = size.query_characters / queries + size.document_characters / max(1, size.documents)
        prompt = 0 if own is None else len(own([("", "")])[0])
        tokens = asked * min(each / CHARACTERS_PER_TOKEN + prompt, inf if own is None else own.room + len(own.suffix))
        if own is not None:
            return estimate(ceil(asked / self._scores.batch), tokens, self._settings)
        of_query = asked / queries
        requests = round(queries * ceil(of_query / self._scores.batch))
        last = min(of_query, self._scores.batch)
        return estimate(requests, tokens, self._settings, requests * ceil(last / _DOCUMENTS_PER_SEARCH))

    def _tokens(self, item: Any) -> float:
        return len(item) if self._scores.pair_ids else sum(map(len, item)) / CHARACTERS_PER_TOKEN
