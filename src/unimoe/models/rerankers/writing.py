"""What rerankers that write have in common: answers that are kept and counted, written here or by a server."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from unimoe.config.listwise import ListwiseConfig
from unimoe.core.errors import DataError, InputError
from unimoe.core.io import hash_json, read_json, write_json
from unimoe.core.planning import spread
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.data.mteb_names import TaskSize
from unimoe.models.batching import ahead
from unimoe.models.embedder import Advance
from unimoe.models.lists import (
    ANSWERS,
    END_OF_THOUGHT,
    SHORTENED,
    TRUNCATED,
    UNPARSABLE,
    Asks,
    answer_after_thought,
)
from unimoe.models.model import Model
from unimoe.models.prompts import well_formed
from unimoe.models.prompts.lists import Conversation, first_words, harmless, shown
from unimoe.models.reranker import (
    Candidates,
    Reranker,
    Shards,
    ShardScores,
    ShardStore,
    TextPair,
    joined,
    named_pairs,
    pair_texts,
)
from unimoe.models.served.chat import ChatWriter
from unimoe.models.served.client import Client, RequestEstimate, Usage, estimate, usage_text
from unimoe.models.served.probe import PROBE_PAIRS, served_identity, served_name
from unimoe.models.writer import Ask, LocalWriter, Written

_SAMPLE = 16  # shards of an estimate

Asking = Asks[Ask, list[float]]
"""Asks about one list, and returns its scores; the answer to each is the text after a thought."""


class WritingReranker(Reranker):
    """Scores by what a model writes; a subclass has ``shard_scores`` and ``tokens_of``.

    ``usage`` adds up what all answers cost, and counts answers, those that were repaired, and thoughts that were cut.
    ``client`` is that of a writer behind a server.
    """

    def __init__(
        self,
        writer: LocalWriter | ChatWriter,
        settings: ListwiseConfig,
        prompt_name: str = "",
        usage: Counter[str] | None = None,
    ) -> None:
        self.writer, self.settings, self.prompt_name = writer, settings, prompt_name
        self.place, self.at_once, self.thought = writer.place, writer.at_once, settings.thought or 0
        self.client = writer.client if isinstance(writer, ChatWriter) else None
        self.usage = Counter[str]() if usage is None else usage
        self._counting, self._answered = threading.Lock(), 0.0

    def score(self, prepared: Sequence[Any], advance: Advance | None = None) -> list[float]:
        """Return the scores of what was prepared."""
        return self.shard_scores(prepared, advance).scores

    def counted(self, scores: list[float], usage: Counter[str], begun: float) -> ShardScores:
        """Return scores with their cost and time, of which those of all shards add up to the wall time."""
        with self._counting:
            self.usage.update(usage)
            before, self._answered = self._answered, time.perf_counter()
        return ShardScores(scores=scores, seconds=self._answered - max(begun, before), usage=dict(usage))

    def notes(self, run: Run, usage: Usage) -> list[str]:
        """Return what the answers cost, how many were repaired, and whether a server's revision is not known."""
        thought = f", thoughts of at most {self.thought:,} tokens" if self.thought else ""
        notes = [f"written answers{thought}: {usage_text(usage)}"] if usage else []
        if self.client and self.client.settings.revision is None:
            notes.append("the server's revision is not given; set served.revision, so that the result says what ran")
        return notes


class _List:
    """One list, which begins at the pair of a number, and what its model is asked about it, step by step."""

    def __init__(self, begin: int, steps: Asking, usage: Counter[str]) -> None:
        self.begin, self.usage, self.begun = begin, usage, time.perf_counter()
        self._steps, self.done, self.scores = steps, False, list[float]()
        self.answer(None)

    def answer(self, text: str | None) -> None:
        """Take an answer; then hold the next question, or the scores."""
        try:
            with _in_list(self.begin):
                self.ask = self._steps.send(text)
        except StopIteration as end:
            self.done, self.scores = True, end.value


@contextmanager
def _in_list(begin: int) -> Iterator[None]:
    """Let an error about a pair of a list carry the pair's index among those of all lists."""
    try:
        yield
    except InputError as error:
        raise type(error)(begin + error.index, error.reason) from None


class AskingReranker(WritingReranker):
    """Scores lists by the answers to conversations about them, of which each waits for the one before.

    A model on this machine answers about many lists together, and a server about each in a thread. Each answer is kept
    as soon as it is there, so that a killed run asks for none again.
    """

    kind, moves = "", 2.0
    """What is asked for, and by how many places or grades a probe's answer may move: servers differ in last bits."""

    unread = "no answer that can be read for {} about the probe texts; serve a model that does"
    """What a server gives that is refused."""

    _store: ShardStore | None = None

    @abstractmethod
    def lists(self, prepared: Sequence[Any]) -> list[list[Any]]:
        """Return pairs in lists, each of which a model is asked about apart from the others."""

    @abstractmethod
    def asks(self, prepared: Sequence[Any], usage: Counter[str], *, again: bool) -> Asking:
        """Ask about one list; count repairs in ``usage``. ``again``: also what its answers have said before."""

    def prepare(self, pairs: Sequence[TextPair]) -> Sequence[Sequence[Any]]:
        """Return what the model sees of each query and document."""
        control, words = self.writer.control, self.settings.words
        return [
            (harmless(well_formed(query), control), shown(well_formed(text), words, control)) for query, text in pairs
        ]

    def shard_scores(self, prepared: Sequence[Any], advance: Advance | None = None) -> ShardScores:
        """Return the scores of lists that are asked about together."""
        return self._scored(self._numbered(prepared), {}, {}, advance)

    def score_shards(
        self, collection: Collection, shards: Shards, store: ShardStore | None = None, advance: Advance | None = None
    ) -> ShardScores:
        """Score shards, each of which is a list; here those that the store lacks are asked about together."""
        found: dict[int, ShardScores] = {}
        files: dict[int, Path | None] = {}

        def missing() -> Iterator[tuple[int, Sequence[Any]]]:
            begins = accumulate(map(len, shards), initial=0)
            ready = ahead(lambda shard: self.looked_up(collection, shard, store), shards)
            for begin, (prepared, file, kept) in zip(begins, ready, strict=False):
                if kept is None:
                    files[begin] = file
                    yield begin, prepared
                    continue
                found[begin] = kept
                if advance:
                    advance(len(prepared))

        self._store = store
        try:
            if self.client:
                return super().score_shards(collection, shards, store=store, advance=advance)
            with named_pairs(collection, [pair for shard in shards for pair in shard]):
                return self._scored(missing(), found, files, advance)
        finally:
            self._store = None

    def _scored(
        self,
        numbered: Iterator[tuple[int, Sequence[Any]]],
        found: dict[int, ShardScores],
        files: Mapping[int, Path | None],
        advance: Advance | None,
    ) -> ShardScores:
        """Return the scores found and those of other lists, each with a number and written to its file, in order."""
        for one in self._finished(numbered):
            found[one.begin] = scores = self.counted(one.scores, one.usage, one.begun)
            if file := files.get(one.begin):
                write_json(file, scores.model_dump())
            if advance:
                advance(len(one.scores))
        return joined([found[begin] for begin in sorted(found)])

    def _numbered(self, prepared: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
        """Yield each list with the number of its first pair."""
        lists = self.lists(prepared)
        return zip(accumulate(map(len, lists), initial=0), lists, strict=False)

    def _finished(self, numbered: Iterator[tuple[int, Sequence[Any]]]) -> Iterator[_List]:
        """Yield each list once it has scores; the first ones are asked about first, as many as the writer takes."""
        waiting: list[_List] = []
        while True:
            yield from (one for one in waiting if one.done)
            waiting = [one for one in waiting if not one.done]
            together = self.writer.together([one.ask for one in waiting])
            if together == len(waiting) and (given := next(numbered, None)):
                usage = Counter[str]()
                waiting.append(_List(given[0], self.asks(given[1], usage, again=False), usage))
            elif waiting:
                with _in_list(waiting[0].begin):
                    answers = self._kept([one.ask for one in waiting[:together]])
                for one, written in zip(waiting, answers, strict=False):
                    one.answer(self._read(written, one.usage))
            else:
                return

    def _read(self, written: Written, usage: Counter[str]) -> str | None:
        """Return the text after a thought; None where the thought has no end."""
        usage.update({**written.usage, ANSWERS: 1})
        answer = answer_after_thought(written.text)
        if written.cut and self.thought and END_OF_THOUGHT not in written.text:
            answer = None  # of a model that marks no thoughts
        usage.update([TRUNCATED] * (answer is None))
        return answer

    def _kept(self, asks: Sequence[Ask]) -> list[Written]:
        """Return answers from the store, and those that it lacks from the model."""
        store = self._store
        if store is None:
            return self.writer.write(asks)
        named = [hash_json([store.fingerprint, ask.conversation, ask.tokens]) for ask in asks]
        files = [store.folder / f"{name}.answer.json" for name in named]
        found: dict[Path, Written] = {}
        for file in files:
            with suppress(DataError):  # not there, or cut short
                found[file] = read_json(file, Written)
        lacking = {file: ask for file, ask in zip(files, asks, strict=True) if file not in found}
        for file, written in zip(lacking, self.writer.write([*lacking.values()]) if lacking else [], strict=True):
            write_json(file, written._asdict())
            found[file] = written
        return [found[file] for file in files]

    def tokens_of(self, shards: Sequence[Sequence[Any]]) -> int:
        """Return the tokens of all prompts and longest answers."""
        return sum(ask.size for shard in shards for ask in self.asked_of(shard))

    def asked_of(self, prepared: Sequence[Any]) -> list[Ask]:
        """Return all that may be asked about some lists: all windows of all passes."""
        asked: list[Ask] = []
        for begin, pairs in self._numbered(prepared):
            one = _List(begin, self.asks(pairs, Counter(), again=True), Counter())
            while not one.done:
                asked.append(one.ask)
                one.answer("[2]")  # after which pairwise has to ask in the other order too
        return asked

    def fitted(
        self, prompt: Callable[[Sequence[str]], Conversation], texts: Sequence[str], tokens: int, usage: Counter[str]
    ) -> Ask:
        """Return the question about texts; cut their words until prompt, thought and answer fit into the model."""
        words, room = self.settings.words, self.writer.room
        ask = self.writer.ask(prompt(texts), self.thought + tokens)
        while room is not None and ask.size > room:
            if words == 1:
                raise InputError(
                    0, f"the prompt does not fit into {room:,} tokens; lower listwise.window or listwise.thought"
                )
            words = words * 3 // 4 or 1
            ask = self.writer.ask(prompt([first_words(text, words) for text in texts]), self.thought + tokens)
        usage.update([SHORTENED] * (words < self.settings.words))
        return ask

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
        assert self.client  # noqa: S101 - a local writer has no address to be asked at
        name = f"{served_name(self.client.settings)}.{self.kind}"
        facts: dict[str, Any] = {"usage": self.usage, "name": name, "reads_order": self.reads_order}
        return Model(self.identity, self.prompt_name, rerank=lambda *_, **__: self, **facts)

    @cached_property
    def identity(self) -> str:
        """API, server, model, revision and fingerprint of a writer behind a server; see ``served_identity``."""
        client = self.client
        assert client  # noqa: S101
        return served_identity(client, lambda: self._probed(client), self.kind, self.prompt_name, room=self.moves)

    def _probed(self, client: Client) -> list[float]:
        found = sorted(self._finished(self._numbered(self.prepare(PROBE_PAIRS))), key=lambda one: one.begin)
        if all(one.usage[UNPARSABLE] == one.usage[ANSWERS] for one in found):
            raise DataError(client.named(f"gives {self.unread.format(self.kind)}"))
        return [score for one in found for score in one.scores]

    def _estimated(self, sample: Iterable[Sequence[TextPair]], shards: int) -> RequestEstimate | None:
        if self.client is None:
            return None
        found = [self.asked_of(self.prepare(pairs)) for pairs in sample]
        share = shards / max(1, len(found))
        asks = [ask for asked in found for ask in asked]
        tokens, written = (share * sum(amounts) for amounts in ((a.size for a in asks), (a.tokens for a in asks)))
        return estimate(round(share * len(asks)), tokens, self.client.settings, written=written)
