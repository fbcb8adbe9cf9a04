"""Scores of pairs by a server: raw scores of texts, or the margin of our own prompts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from unimoe.config import ModelConfig, PromptConfig
from unimoe.config.served import APIS, ServedConfig
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.core.io import hash_json
from unimoe.models.base import load_tokenizer
from unimoe.models.batching import batches
from unimoe.models.pair_model import TextPair
from unimoe.models.prompts import PairTokenizer, prompt_name, well_formed, yes_no_ids
from unimoe.models.served.api import API, number
from unimoe.models.served.asking import Asker, Request
from unimoe.models.served.client import Client
from unimoe.models.served.probe import PROBE_PAIRS, fingerprint, identity, record_file, served_name
from unimoe.models.served.usage import Usage, summed

_PROBE_PROMPT, _PROBE_LENGTH = PromptConfig(template="plain", instruction=""), 512
"""Of the probe pairs, whatever the configured prompt: it is no other model that is asked otherwise."""

TOP, BOTTOM = 37.0, -746.0
"""The margins of P(yes) 1 and 0: beyond those of the numbers next to them, 36.7 and -744.4, which are exact."""


@dataclass(frozen=True)
class Answer:
    """What a server answered about some pairs.

    Attributes:
        scores: of each pair.
        usage: what the answer cost, by name.
    """

    scores: list[float]
    usage: Usage


class PairScores:
    """Asks a server for the scores of pairs.

    Args:
        url: its address.
        settings: how it is asked.
        model: the base model whose tokenizer makes token ids, for APIs that take them.
        prompt: the prompt, for the same.
        record: keeps the first answers about the probe pairs; by default a file in the user's cache.

    Attributes:
        name: of the arm.
        batch: pairs of one request.
        pair_ids: makes the prompts; None where the server has the prompt.
        prompt_name: name and hash of the prompt.
        from_probability: whether margins come from a probability, which saturates.

    Raises:
        UsageError: the API does not rerank, the batch is too large for it, or what asks is not installed.
    """

    def __init__(
        self, url: str, settings: ServedConfig, model: ModelConfig, prompt: PromptConfig, record: Path | None = None
    ) -> None:
        api: API = APIS[settings.api]
        endpoint = api.prompts or api.rerank
        if endpoint is None:
            raise UsageError(f"served.api {settings.api}: it does not rerank; use one that does, such as vllm or tei")
        self._probe: Sequence[Any]
        self._client, self._settings, self._body = Client(url, settings), settings, endpoint.body
        self._asker = Asker(self._client, settings, endpoint, _margin if endpoint.probability else number)
        self.from_probability = endpoint.probability
        self.name = served_name(settings)
        self.batch = self._asker.batch
        self.pair_ids: PairTokenizer | None = None
        self.prompt_name = f"server@{hash_json(settings.max_length)}"
        if api.prompts:
            tokenizer = load_tokenizer(model)
            self.pair_ids = PairTokenizer(tokenizer, prompt, model.max_length)
            self._yes_no = yes_no_ids(tokenizer, *prompt.answers("yes", "no"))
            self._probe = PairTokenizer(tokenizer, _PROBE_PROMPT, _PROBE_LENGTH)(PROBE_PAIRS)
            self.prompt_name = prompt_name(prompt, model.max_length)
        else:
            self._probe = self.prepare(PROBE_PAIRS)
        asked = [settings.max_length, api.prompts and [model.base, *self._yes_no]]
        self._record = record or record_file(self._client, settings, "rerank", asked)

    @cached_property
    def identity(self) -> str:
        """What results store for the base model; the server is asked about the probe pairs.

        Raises:
            DataError: the server does not answer, or another model answers than before.
        """
        try:
            found = self.ask(self._probe).scores
        except InputError as error:
            raise DataError(error.reason) from None
        return identity(self._client, self._settings, fingerprint(self._client, self._settings, found, self._record))

    def prepare(self, pairs: Sequence[TextPair]) -> list[Any]:
        """Return what is asked about each pair: its prompt's token ids, or its texts."""
        if self.pair_ids:
            return list(self.pair_ids(pairs))
        return [(well_formed(query), well_formed(document)) for query, document in pairs]

    def ask(self, prepared: Sequence[Any]) -> Answer:
        """Return the scores of what ``prepare`` made of some pairs, and what they cost.

        Raises:
            InputError: the server does not answer, or not with a finite number for each pair; carries the index.
        """
        answers = sorted(self._asker.ask(list(self._requests(prepared))), key=itemgetter(0))
        return Answer([score for _, scores, _ in answers for score in scores], summed(usage for *_, usage in answers))

    def _requests(self, prepared: Sequence[Any]) -> Iterator[Request]:
        """Yield the requests about pairs; one about texts has a single query."""
        by_query = [(None, prepared)] if self.pair_ids else groupby(prepared, itemgetter(0))
        begin = 0
        for query, pairs in by_query:
            for items in batches(list(pairs), self.batch):
                asked = (items, self._yes_no) if query is None else (query, [document for _, document in items])
                yield Request(begin, len(items), self._body(self._settings, *asked))
                begin += len(items)


def _margin(value: Any, index: int) -> float:
    probability = number(value, index)
    if not 0 <= probability <= 1:
        raise InputError(index, f"answered {probability:g} as a probability")
    if probability in {0, 1}:
        return TOP if probability else BOTTOM
    return math.log(probability) - math.log1p(-probability)
