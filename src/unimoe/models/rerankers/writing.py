"""What rerankers that write have in common: answers that are kept and counted, written here or by a server."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from unimoe.config.listwise import ListwiseConfig
from unimoe.core.errors import DataError
from unimoe.core.io import Strict, hash_json, read_json, write_json
from unimoe.core.planning import spread
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.data.mteb_names import TaskSize
from unimoe.models.embedder import Advance
from unimoe.models.lists import ANSWERS, TRUNCATED, UNPARSABLE, answer_after_thought
from unimoe.models.model import Model
from unimoe.models.prompts.lists import Conversation
from unimoe.models.reranker import Candidates, Reranker, Shards, ShardScores, ShardStore, TextPair, pair_texts
from unimoe.models.served.chat import ChatWriter
from unimoe.models.served.client import Client, RequestEstimate, Usage, estimate, usage_text
from unimoe.models.served.probe import PROBE_PAIRS, served_identity, served_name
from unimoe.models.writer import LocalWriter, Written

_SAMPLE = 16  # shards of an estimate
_MOVES = 2.0  # places, or grades, that a probe's answer may move: servers differ in their last bits


class _KeptAnswer(Strict):
    text: str
    cut: bool
    usage: dict[str, float]


class WritingReranker(Reranker):
    """Scores by what a model writes; a subclass has ``scored`` and ``asked_of``.

    Each answer is kept as soon as it is there, so that a killed run asks for none again. ``usage`` adds up what all
    answers cost, and counts answers, those that were repaired, and thoughts that were cut.
    """

    kind = ""

    def __init__(
        self,
        writer: LocalWriter | ChatWriter,
        settings: ListwiseConfig,
        prompt_name: str = "",
        usage: Counter[str] | None = None,
    ) -> None:
        self.writer, self.settings, self.prompt_name = writer, settings, prompt_name
        self.place, self.at_once, self.thought = writer.place, writer.at_once, settings.thought or 0
        self.usage = Counter[str]() if usage is None else usage
        self._counting, self._answered = threading.Lock(), 0.0
        self._store: ShardStore | None = None

    @abstractmethod
    def scored(self, prepared: Sequence[Any], usage: Counter[str], advance: Advance | None) -> list[float]:
        """Return the scores of what was prepared, and count in ``usage``."""

    @abstractmethod
    def asked_of(self, prepared: Sequence[Any]) -> tuple[int, int]:
        """Return how many answers what was prepared takes, and the tokens of prompts and longest answers."""

    def score(self, prepared: Sequence[Any], advance: Advance | None = None) -> list[float]:
        """Return the scores of what was prepared."""
        return self._counted(prepared, Counter(), advance)

    def score_shards(
        self, collection: Collection, shards: Shards, store: ShardStore | None = None, advance: Advance | None = None
    ) -> ShardScores:
        """Score shards, and keep answers in their store; see ``Reranker``."""
        self._store, self._answered = store, time.perf_counter()
        try:
            return super().score_shards(collection, shards, store=store, advance=advance)
        finally:
            self._store = None

    def shard_scores(self, prepared: Sequence[Any], advance: Advance | None = None) -> ShardScores:
        """Return the scores of a shard, and what they cost."""
        begun, usage = time.perf_counter(), Counter[str]()
        scores = self._counted(prepared, usage, advance)
        before, self._answered = self._answered, time.perf_counter()  # so that times of threads add up to the wall time
        return ShardScores(scores=scores, seconds=self._answered - max(begun, before), usage=dict(usage))

    def ask(self, conversation: Conversation, tokens: int, usage: Counter[str]) -> str | None:
        """Return the answer to a conversation, after its thought; None where the thought has no end."""
        written = self._kept(conversation, self.thought + tokens)
        usage.update({**written.usage, ANSWERS: 1})
        cut = written.cut and self.thought > 0
        usage.update({TRUNCATED: 1} if cut else {})
        return None if cut else answer_after_thought(written.text)

    def notes(self, run: Run, usage: Usage) -> list[str]:
        """Return what the answers cost, how many were repaired, and whether a server's revision is not known."""
        thought = f", thoughts of at most {self.thought:,} tokens" if self.thought else ""
        notes = [f"written answers{thought}: {usage_text(usage)}"] if usage else []
        if isinstance(self.writer, ChatWriter) and self.writer.client.settings.revision is None:
            notes.append("the server's revision is not given; set served.revision, so that the result says what ran")
        return notes

    def tokens_of(self, shards: Sequence[Sequence[Any]]) -> int:
        """Return the tokens of all prompts and longest answers."""
        return sum(self.asked_of(shard)[1] for shard in shards)

    def asked(self, collection: Collection, candidates: Candidates) -> RequestEstimate | None:
        """Return what a server will be asked, by a sample of the shards."""
        shards = self.cut(collection, candidates)
        return self._estimated((pair_texts(collection, shard) for shard in spread(shards, _SAMPLE)), len(shards))

    def asked_task(self, size: TaskSize) -> RequestEstimate | None:
        """Return what a server will be asked for a task of MTEB, by the mean of its sizes."""
        queries, documents = max(1, size.queries), max(1, size.documents)
        pair = "q" * (size.query_characters // queries), "word " * (size.document_characters // documents // 5)
        return self._estimated([[pair] * round(size.pairs / queries)], size.queries)

    def served(self) -> Model:
        """Return the model of a writer behind a server, which is asked about fixed texts at once."""
        name = f"{served_name(self._client.settings)}.{self.kind}"
        facts: dict[str, Any] = {"usage": self.usage, "name": name, "reads_order": self.reads_order}
        return Model(self.identity, self.prompt_name, rerank=lambda *_, **__: self, **facts)

    @cached_property
    def identity(self) -> str:
        """API, server, model, revision and fingerprint of a writer behind a server; see ``served_identity``."""
        return served_identity(self._client, self._probed, self.kind, self.prompt_name, room=_MOVES)

    @property
    def _client(self) -> Client:
        """Of a writer behind a server."""
        assert isinstance(self.writer, ChatWriter)  # noqa: S101 - a local writer has no address to be asked at
        return self.writer.client

    def _probed(self) -> list[float]:
        counts = Counter[str]()
        scores = self.scored(self.prepare(PROBE_PAIRS), counts, None)
        if counts[UNPARSABLE] == counts[ANSWERS]:
            said = f"gives no answer that can be read for {self.kind} about the probe texts; serve a model that does"
            raise DataError(self._client.named(said))
        return scores

    def _estimated(self, sample: Iterable[Sequence[TextPair]], shards: int) -> RequestEstimate | None:
        if not isinstance(self.writer, ChatWriter):
            return None
        found = [self.asked_of(self.prepare(pairs)) for pairs in sample]
        share = shards / max(1, len(found))
        requests, tokens = sum(answers for answers, _ in found), sum(tokens for _, tokens in found)
        return estimate(round(requests * share), tokens * share, self.writer.client.settings)

    def _counted(self, prepared: Sequence[Any], usage: Counter[str], advance: Advance | None) -> list[float]:
        scores = self.scored(prepared, usage, advance)
        with self._counting:
            self.usage.update(usage)
        return scores

    def _kept(self, conversation: Conversation, tokens: int) -> Written:
        """Return the answer to a conversation, from the store where it is there."""
        store, thinks = self._store, self.thought > 0
        if store is None:
            return self.writer.write(conversation, tokens, thinks=thinks)
        file = store.folder / f"{hash_json([store.fingerprint, conversation, tokens])}.answer.json"
        try:
            return Written(**dict(read_json(file, _KeptAnswer)))
        except DataError:  # not there, or cut short
            written = self.writer.write(conversation, tokens, thinks=thinks)
            write_json(file, written._asdict() | {"usage": dict(written.usage)})
            return written
