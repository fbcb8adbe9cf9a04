"""What rerankers that write have in common: answers that are kept and counted, written here or by a server."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from unimoe.config.listwise import ListwiseConfig
from unimoe.core.errors import DataError, InputError
from unimoe.core.io import Strict, hash_json, read_json, write_json
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
_MOVES = 2.0  # places, or grades, that a probe's answer may move: servers differ in their last bits

Asking = Asks[Ask, list[float]]
"""Asks about one list, and returns its scores; the answer to each is the text after a thought."""


class _KeptAnswer(Strict):
    text: str
    cut: bool
    usage: dict[str, float]


class WritingReranker(Reranker):
    """Scores by what a model writes; a subclass has ``scored`` and ``tokens_of``.

    ``usage`` adds up what all answers cost, and counts answers, those that were repaired, and thoughts that were cut.
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
        self.usage = Counter[str]() if usage is None else usage
        self._counting, self._answered = threading.Lock(), 0.0

    @abstractmethod
    def scored(self, prepared: Sequence[Any], usage: Counter[str], advance: Advance | None) -> list[float]:
        """Return the scores of what was prepared, and count in ``usage``."""

    def score(self, prepared: Sequence[Any], advance: Advance | None = None) -> list[float]:
        """Return the scores of what was prepared."""
        return self.shard_scores(prepared, advance).scores

    def shard_scores(self, prepared: Sequence[Any], advance: Advance | None = None) -> ShardScores:
        """Return the scores of a shard, and what they cost."""
        begun, usage = time.perf_counter(), Counter[str]()
        scores = self.scored(prepared, usage, advance)
        return self.counted(scores, usage, begun)

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
        if isinstance(self.writer, ChatWriter) and self.writer.client.settings.revision is None:
            notes.append("the server's revision is not given; set served.revision, so that the result says what ran")
        return notes


class _List:
    """One list, which begins at the pair of a number, and what its model is asked about it, step by step."""

    def __init__(self, begin: int, steps: Asking, usage: Counter[str]) -> None:
        self.begin, self.usage, self.begun = begin, usage, time.perf_counter()
        self._steps = steps
        self.scores: list[float] | None = None
        self.answer(None)

    def answer(self, text: str | None) -> None:
        """Go on with an answer, up to what is asked next, or the scores."""
        try:
            with _in_list(self.begin):
                self.ask = self._steps.send(text)
        except StopIteration as end:
            self.scores = end.value


@contextmanager
def _in_list(begin: int) -> Iterator[None]:
    """Let an error about a pair of a list carry the pair's index among those of all lists."""
    try:
        yield
    except InputError as error:
        raise InputError(begin + error.index, error.reason) from None


class AskingReranker(WritingReranker):
    """Scores lists by the answers to conversations about them, of which each waits for the one before.

    A model on this machine answers about many lists together, and a server about each in a thread. Each answer is kept
    as soon as it is there, so that a killed run asks for none again.
    """

    kind = ""
    _store: ShardStore | None = None

    @abstractmethod
    def lists(self, prepared: Sequence[TextPair]) -> list[list[TextPair]]:
        """Return pairs in lists, each of which a model is asked about apart from the others."""

    @abstractmethod
    def asks(self, prepared: Sequence[TextPair], usage: Counter[str], *, again: bool) -> Asking:
        """Ask about one list; count repairs in ``usage``. ``again``: also what its answers have said before."""

    def prepare(self, pairs: Sequence[TextPair]) -> list[TextPair]:
        """Return what the model sees of each query and document."""
        control, words = self.writer.control, self.settings.words
        return [
            (harmless(well_formed(query), control), shown(well_formed(text), words, control)) for query, text in pairs
        ]

    def scored(self, prepared: Sequence[TextPair], usage: Counter[str], advance: Advance | None) -> list[float]:
        """Return the scores of lists that are asked about together."""
        lists = self.lists(prepared)
        found: dict[int, list[float]] = {}
        for one in self._finished(zip(accumulate(map(len, lists), initial=0), lists, strict=False)):
            found[one.begin] = one.scores or []
            usage.update(one.usage)
            if advance:
                advance(len(found[one.begin]))
        return [score for begin in sorted(found) for score in found[begin]]

    def score_shards(
        self, collection: Collection, shards: Shards, store: ShardStore | None = None, advance: Advance | None = None
    ) -> ShardScores:
        """Score shards, each of which is a list; see ``Reranker``."""
        self._store, self._answered = store, time.perf_counter()
        try:
            if self.at_once > 1:
                return super().score_shards(collection, shards, store=store, advance=advance)
            with named_pairs(collection, [pair for shard in shards for pair in shard]):
                return joined(self._of_shards(collection, shards, store, advance))
        finally:
            self._store = None

    def _of_shards(
        self, collection: Collection, shards: Shards, store: ShardStore | None, advance: Advance | None
    ) -> list[ShardScores]:
        """Return the scores of shards in their order, of which those that the store lacks are asked about together."""
        found: dict[int, ShardScores] = {}
        files: dict[int, Path | None] = {}

        def missing() -> Iterator[tuple[int, Sequence[TextPair]]]:
            begins = accumulate(map(len, shards), initial=0)
            ready = ahead(lambda shard: self.looked_up(collection, shard, store), shards)
            for begin, (prepared, file, kept) in zip(begins, ready, strict=False):
                if kept is None:
                    files[begin] = file
                    yield begin, [(query, text) for query, text in prepared]
                else:
                    finished(begin, kept)

        def finished(begin: int, scores: ShardScores) -> None:
            found[begin] = scores
            if advance:
                advance(len(scores.scores))

        for one in self._finished(missing()):
            scores = self.counted(one.scores or [], one.usage, one.begun)
            if file := files[one.begin]:
                write_json(file, scores.model_dump())
            finished(one.begin, scores)
        return [found[begin] for begin in sorted(found)]

    def _finished(self, lists: Iterable[tuple[int, Sequence[TextPair]]]) -> Iterator[_List]:
        """Yield each list, given with the number of its first pair, once it has scores.

        The first ones are asked about first, as many together as the writer takes.
        """
        waiting: list[_List] = []
        more = iter(lists)
        while True:
            while self.writer.together([one.ask for one in waiting]) == len(waiting) and (given := next(more, None)):
                usage = Counter[str]()
                begun = _List(given[0], self.asks(given[1], usage, again=False), usage)
                if begun.scores is None:
                    waiting.append(begun)
                else:  # of one document
                    yield begun
            if not waiting:
                return
            now = waiting[: self.writer.together([one.ask for one in waiting])]
            with _in_list(now[0].begin):
                answers = self._kept([one.ask for one in now])
            for one, written in zip(now, answers, strict=True):
                one.answer(self._read(written, one.usage))
            yield from (one for one in now if one.scores is not None)
            waiting = [one for one in waiting if one.scores is None]

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
                found[file] = Written(**dict(read_json(file, _KeptAnswer)))
        lacking = {file: ask for file, ask in zip(files, asks, strict=True) if file not in found}
        for file, written in zip(lacking, self.writer.write([*lacking.values()]) if lacking else [], strict=True):
            write_json(file, written._asdict() | {"usage": dict(written.usage)})
            found[file] = written
        return [found[file] for file in files]

    def tokens_of(self, shards: Sequence[Sequence[TextPair]]) -> int:
        """Return the tokens of all prompts and longest answers."""
        return sum(ask.size for shard in shards for ask in self.asked_of(shard))

    def asked_of(self, prepared: Sequence[TextPair]) -> list[Ask]:
        """Return all that may be asked about some lists: all windows of all passes."""
        asked: list[Ask] = []
        for pairs in self.lists(prepared):
            one = _List(0, self.asks(pairs, Counter(), again=True), Counter())
            while one.scores is None:
                asked.append(one.ask)
                one.answer("[2]")  # after which pairwise has to ask in the other order too
        return asked

    def fitted(
        self, prompt: Callable[[Sequence[str]], Conversation], texts: Sequence[str], tokens: int, usage: Counter[str]
    ) -> Ask:
        """Return what is asked about texts, which lose words until prompt, thought and answer fit into the model."""
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
        asks = [ask for asked in found for ask in asked]
        tokens, written = (share * sum(amounts) for amounts in ((a.size for a in asks), (a.tokens for a in asks)))
        return estimate(round(share * len(asks)), tokens, self.writer.client.settings, written=written)
