"""Reranking by a model behind a server: a shard is what one request asks, so that it is kept once it is paid for."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain, compress, groupby
from operator import itemgetter
from typing import Any

from unimoe.config import Experiment, PromptConfig
from unimoe.config.served import APIS, ServedConfig
from unimoe.core.errors import UsageError, first_few
from unimoe.core.io import hash_json
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.data.mteb_names import TaskSize
from unimoe.models.base import load_tokenizer
from unimoe.models.batching import batches
from unimoe.models.embedder import Advance
from unimoe.models.prompts import PairTokenizer, answer_ids, own_answers, prompt_name, well_formed
from unimoe.models.reranker import (
    Candidates,
    Pair,
    Reranker,
    Shards,
    ShardScores,
    ShardStore,
    TextPair,
    candidate_pairs,
    pair_texts,
)
from unimoe.models.served.api import API, BOTTOM, TOP, margin, number
from unimoe.models.served.client import CHARACTERS_PER_TOKEN, Client, RequestEstimate, Usage, estimate, usage_text
from unimoe.models.served.probe import PROBE_PAIRS, served_identity, served_name

_PROBE_PROMPT, _PROBE_LENGTH = PromptConfig(template="plain", instruction=""), 512
"""Of the probe pairs, whatever the configured prompt: it is no other model that is asked otherwise."""

_SAMPLE = 64
_DOCUMENTS_PER_SEARCH = 100


class ServedReranker(Reranker):
    """Scores pairs by a server: raw scores of texts, or the margin of our own prompts.

    For the API ``vllm``, the experiment's ``model`` section names the tokenizer and ``prompt`` is the prompt. The other
    arguments are those of ``ServedEmbedder``. ``prompt_name`` is the server's own where it has one, and ``usage`` is
    what all requests so far cost, by name.
    """

    place = "a server"

    def __init__(self, url: str, settings: ServedConfig, experiment: Experiment) -> None:
        api: API = APIS[settings.api]
        endpoint = api.prompts or api.rerank
        if endpoint is None:
            raise UsageError(f"served.api {settings.api}: it does not rerank; use one that does, such as vllm or tei")
        self._client, self._settings, self._endpoint = Client(url, settings), settings, endpoint
        self.at_once, self._answered = settings.requests_in_flight, 0.0
        self._batch = endpoint.items(settings)
        self._read = margin if endpoint.probability else number
        self.logits = endpoint.probability or endpoint.raw
        self.name = served_name(settings)
        self.usage = self._client.usage
        self._tokenizer: PairTokenizer | None = None  # where the prompt is ours
        self._probe: Sequence[Any]
        if api.prompts:
            model, prompt = experiment.model, experiment.prompt
            tokenizer = load_tokenizer(model)
            self._tokenizer = PairTokenizer(tokenizer, prompt, model.max_length)
            self._yes_no = tuple(answer_ids(tokenizer, own_answers(prompt)))
            if len(self._yes_no) == 1:  # the server answers a share of the answers' probability, which is then 1
                raise UsageError(
                    f"served.api {settings.api}: scores two answers by their probabilities, not one by its logit; give "
                    "two in prompt.answers, or score the model here"
                )
            self._probe = PairTokenizer(tokenizer, _PROBE_PROMPT, _PROBE_LENGTH)(PROBE_PAIRS)
            self.prompt_name = prompt_name(prompt, model.max_length)
        else:
            self._probe = self.prepare(PROBE_PAIRS)
            self.prompt_name = f"server@{hash_json(settings.max_length)}"
        self._asked = settings.max_length, api.prompts and [experiment.model.base, *self._yes_no]

    @cached_property
    def identity(self) -> str:
        """What results store for the base model: API, server, model, revision and fingerprint.

        A DataError says that the server does not answer, or that another model answers than before.
        """
        return served_identity(self._client, lambda: self.score(self._probe), "rerank", *self._asked)

    def cut(self, collection: Collection, candidates: Candidates) -> list[list[Pair]]:
        """Cut into shards that one request asks about: of one query, or of prompts that begin alike where they can."""
        pairs = list(candidate_pairs(collection, candidates))
        if self._tokenizer and self._tokenizer.order == "document_first":
            place: dict[str, int] = {}
            pairs.sort(key=lambda pair: place.setdefault(pair[1], len(place)))
        return self._in_requests(pairs)

    def prepare(self, pairs: Sequence[TextPair]) -> list[Any]:
        """Return what is asked about each pair: its prompt's token ids, or its texts."""
        if self._tokenizer:
            return list(self._tokenizer(pairs))
        return [(well_formed(query), well_formed(document)) for query, document in pairs]

    def truncated_queries(self, queries: Mapping[str, str]) -> list[str]:
        """Return the ids of queries that leave no room for a document, where the prompt is ours."""
        return list(compress(queries, self._tokenizer.too_long(queries.values()))) if self._tokenizer else []

    def score(self, prepared: Sequence[Any], advance: Advance | None = None) -> list[float]:
        """Return the margin or raw score of each pair; errors are those of ``Client.ask``."""
        found = self._client.ask_all(self._ask, self._in_requests(prepared), advance)
        return [score for scores, _ in found for score in scores]

    def score_shards(
        self, collection: Collection, shards: Shards, store: ShardStore | None = None, advance: Advance | None = None
    ) -> ShardScores:
        """Score the shards that ``cut`` made, each by one request; see ``Reranker``."""
        self._answered = time.perf_counter()
        return super().score_shards(collection, shards, store=store, advance=advance)

    def shard_scores(self, prepared: Sequence[Any], advance: Advance | None = None) -> ShardScores:
        """Return the scores of one request's pairs, what they cost, and the time since another one's answer."""
        scores, usage = self._ask(prepared)
        before, self._answered = self._answered, time.perf_counter()  # so that times add up to the wall time
        if advance:
            advance(len(scores))
        return ShardScores(scores=scores, seconds=self._answered - before, usage=dict(usage))

    def notes(self, run: Run, usage: Usage) -> list[str]:
        """Return what to know about a run's scores: what they cost, what revision they are of, and which saturate."""
        notes = [f"scored by {self.identity}: {usage_text(usage)}"] if usage else []
        if self._settings.revision is None:
            notes.append("the server's revision is not given; set served.revision, so that the result says what ran")
        ends = (BOTTOM, TOP) if self._endpoint.probability else ()
        flat = [f"{query}/{document}" for query, row in run.items() for document, s in row.items() if s in ends]
        if flat:
            notes.append(
                f"P(yes) saturates at 0 or 1, so that these pairs tie: {len(flat):,} ({first_few(flat)}); a server "
                "that rounds it to float32 does so from a margin of 17 on"
            )
        return notes

    def asked(self, collection: Collection, candidates: Candidates) -> RequestEstimate:
        """Return what reranking will ask; tokens are those of a sample."""
        shards = self.cut(collection, candidates)
        pairs = list(chain.from_iterable(shards))
        sample = self.prepare(pair_texts(collection, pairs[:: max(1, len(pairs) // _SAMPLE)]))
        lengths = sum(map(len, sample if self._tokenizer else chain.from_iterable(sample)))
        tokens = lengths if self._tokenizer else lengths / CHARACTERS_PER_TOKEN
        searches = sum(math.ceil(len(shard) / _DOCUMENTS_PER_SEARCH) for shard in shards)
        return estimate(len(shards), tokens * len(pairs) / max(1, len(sample)), self._settings, searches)

    def asked_task(self, size: TaskSize) -> RequestEstimate:
        """Return what reranking the candidates of a task of MTEB will ask, by its sums: queries as many for each."""
        own, queries = self._tokenizer, max(1, size.queries)
        each = size.query_characters / queries + size.document_characters / max(1, size.documents)
        tokens = each / CHARACTERS_PER_TOKEN
        if own:
            tokens = min(tokens + len(own([("", "")])[0]), own.room + len(own.suffix))
            return estimate(math.ceil(size.pairs / self._batch), size.pairs * tokens, self._settings)
        of_query = size.pairs / queries
        requests = round(queries * math.ceil(of_query / self._batch))
        searches = requests * math.ceil(min(of_query, self._batch) / _DOCUMENTS_PER_SEARCH)
        return estimate(requests, size.pairs * tokens, self._settings, searches)

    def _in_requests(self, pairs: Sequence[Any]) -> list[list[Any]]:
        """Cut pairs into those of one request; one about texts has a single query."""
        groups = [pairs] if self._tokenizer else [list(group) for _, group in groupby(pairs, itemgetter(0))]
        return [list(part) for group in groups for part in batches(group, self._batch)]

    def _ask(self, prepared: Sequence[Any]) -> tuple[list[float], Usage]:
        """Ask about pairs by one request, which have a single query where they are texts."""
        asked = (prepared, self._yes_no) if self._tokenizer else (prepared[0][0], [text for _, text in prepared])
        return self._client.ask(self._endpoint, self._read, len(prepared), *asked)
