"""``listwise:NAME``: a model that orders the candidates of a query, here or behind a server.

A causal language model writes permutations window by window. A model in jina-reranker-v3's layout scores a whole list
by its own code. See ``models.lists`` for windows and the repair of answers.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any

from unimoe.config import Experiment
from unimoe.config.listwise import LIST_PROMPTS, ListwiseConfig
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.core.io import Strict, hash_json, read_json, write_json
from unimoe.core.planning import spread
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.data.mteb_names import TaskSize
from unimoe.models.base import base_identity, load_base, refuse_own_code
from unimoe.models.embedder import Advance
from unimoe.models.folder import find_folder
from unimoe.models.kinds import LISTWISE
from unimoe.models.lists import TRUNCATED, Reorder, answer_after_thought, in_windows, read_best, read_permutation
from unimoe.models.model import Model, model_of_reranker
from unimoe.models.named import OPTION, ModelSettings, is_served, register_model
from unimoe.models.prompts import well_formed
from unimoe.models.prompts.lists import Conversation, best_of, shown
from unimoe.models.reranker import (
    Candidates,
    Cut,
    Reranker,
    Shards,
    ShardScores,
    ShardStore,
    TextPair,
    pair_texts,
)
from unimoe.models.rerankers.list_scores import list_scores_model, scores_lists
from unimoe.models.served.chat import ChatWriter
from unimoe.models.served.client import RequestEstimate, Usage, estimate, usage_text
from unimoe.models.served.probe import PROBE_PAIRS, served_identity, served_name
from unimoe.models.writer import LocalWriter, Writer, Written

_NAME_TOKENS = 8  # of a document in an answer, ``[20] > ``, at most
_SAMPLE = 16  # queries of an estimate
_MOVES = 2.0  # places that a document of the probe may move: servers differ in their last bits


class _KeptAnswer(Strict):
    text: str
    cut: bool
    usage: dict[str, float]


class ListwiseReranker(Reranker):
    """Orders the candidates of each query; a score is minus the rank, so that no two are equal.

    A shard is a query. Each answer is kept as soon as it is there, so that a killed run asks for none again. ``usage``
    adds up what all answers cost, and counts windows and repairs.
    """

    reads_order = True

    def __init__(self, writer: Writer, settings: ListwiseConfig, usage: Counter[str] | None = None) -> None:
        self._writer, self._settings, self._thought = writer, settings, settings.thought or 0
        self._prompt = LIST_PROMPTS[settings.template] if settings.way == "permutation" else best_of
        self.usage = Counter[str]() if usage is None else usage
        self._counting, self._answered = threading.Lock(), 0.0
        self._store: ShardStore | None = None

    @property
    def cut_by(self) -> Cut:
        """One query a shard, in the first stage's order."""
        return "ranked", 0

    def prepare(self, pairs: Sequence[TextPair]) -> list[TextPair]:
        """Return each query, and what the model sees of its document."""
        words = self._settings.words
        return [(well_formed(query), shown(well_formed(document), words)) for query, document in pairs]

    def score(self, prepared: Sequence[TextPair], advance: Advance | None = None) -> list[float]:
        """Return minus the rank of each document in its query's list."""
        return self._listed(prepared, Counter(), advance)

    def score_shards(
        self, collection: Collection, shards: Shards, store: ShardStore | None = None, advance: Advance | None = None
    ) -> ShardScores:
        """Score shards, and keep the answers about windows in the store of the shards; see ``Reranker``."""
        self._store, self._answered = store, time.perf_counter()
        try:
            return super().score_shards(collection, shards, store=store, advance=advance)
        finally:
            self._store = None

    def shard_scores(self, prepared: Sequence[TextPair], advance: Advance | None = None) -> ShardScores:
        """Return the scores of one query's list, and what they cost."""
        begun, usage = time.perf_counter(), Counter[str]()
        scores = self._listed(prepared, usage, advance)
        before, self._answered = self._answered, time.perf_counter()  # so that times of threads add up to the wall time
        return ShardScores(scores=scores, seconds=self._answered - max(begun, before), usage=dict(usage))

    def notes(self, run: Run, usage: Usage) -> list[str]:
        """Return what the lists cost, and how many answers were repaired."""
        return [f"lists by windows of {self._settings.reading.window}: {usage_text(usage)}"] if usage else []

    def tokens_of(self, shards: Sequence[Sequence[TextPair]]) -> int:
        """Return the tokens of all windows, with the longest answers."""
        return sum(self._asked_of(shard)[1] for shard in shards)

    def _listed(self, prepared: Sequence[TextPair], usage: Counter[str], advance: Advance | None) -> list[float]:
        """Return the scores of pairs whose queries come one after the other."""
        scores: list[float] = []
        for query, group in groupby(prepared, itemgetter(0)):
            documents = [document for _, document in group]
            try:
                order = self._order(len(documents), self._reorder(query, documents, usage))
            except InputError as error:
                raise InputError(len(scores) + error.index, error.reason) from None
            rank = {document: place for place, document in enumerate(order, start=1)}
            scores += [-float(rank[document]) for document in range(len(documents))]
            if advance:
                advance(len(documents))
        with self._counting:
            self.usage.update(usage)
        return scores

    def _order(self, count: int, reorder: Reorder) -> list[int]:
        settings = self._settings
        return in_windows(count, reorder, settings.reading, settles=settings.way != "permutation")

    def _reorder(self, query: str, documents: Sequence[str], usage: Counter[str]) -> Reorder:
        """Return what orders some of the documents by asking, and counts in ``usage``."""

        def asked(window: Sequence[int]) -> list[int]:
            texts = [documents[number] for number in window]
            places = self._answer(query, texts, usage)
            return [window[place] for place in places]

        def better(window: Sequence[int]) -> list[int]:
            """Ask in both orders: documents that win once each stay where they are."""
            turned = [*reversed(window)]
            return turned if asked(window) == turned and asked(turned) == turned else [*window]

        return better if self._settings.way == "pairwise" else asked

    def _answer(self, query: str, texts: Sequence[str], usage: Counter[str]) -> list[int]:
        conversation, tokens = self._fitted(query, texts, usage)
        written = self._kept(conversation, tokens)
        usage.update({**written.usage, "windows": 1})
        answer = None if self._thought and written.cut else answer_after_thought(written.text)
        read = read_permutation if self._settings.way == "permutation" else read_best
        order, faults = read(answer, len(texts))
        usage.update(dict.fromkeys(faults, 1))
        usage.update({TRUNCATED: 1} if self._thought and written.cut else {})
        return order

    def _fitted(self, query: str, texts: Sequence[str], usage: Counter[str]) -> tuple[Conversation, int]:
        """Return the conversation about a window and the tokens of its answer; long documents lose words to fit."""
        named = _NAME_TOKENS * (len(texts) if self._settings.way == "permutation" else 1)
        tokens, words = self._thought + named, self._settings.words
        conversation: Conversation = self._prompt(query, texts)
        while not self._writer.fits(conversation, tokens):
            if words == 1:
                raise InputError(0, "the window does not fit into the model; lower listwise.window or listwise.thought")
            words = words * 3 // 4 or 1
            conversation = self._prompt(query, [" ".join(text.split()[:words]) for text in texts])
        usage.update({"shortened windows": 1} if words < self._settings.words else {})
        return conversation, tokens

    def _kept(self, conversation: Conversation, tokens: int) -> Written:
        """Return the answer to a conversation, from the store where it is there."""
        store, thinks = self._store, self._thought > 0
        if store is None:
            return self._writer.write(conversation, tokens, thinks=thinks)
        file = store.folder / f"{hash_json([store.fingerprint, conversation, tokens])}.answer.json"
        try:
            return Written(**dict(read_json(file, _KeptAnswer)))
        except DataError:  # not there, or cut short
            written = self._writer.write(conversation, tokens, thinks=thinks)
            write_json(file, _KeptAnswer(**written._asdict() | {"usage": dict(written.usage)}).model_dump())
            return written

    def _asked_of(self, prepared: Sequence[TextPair]) -> tuple[int, int]:
        """Return windows and tokens of some lists, with the longest answers, as if every answer left the order."""
        counts, both = Counter[str](), 2 if self._settings.way == "pairwise" else 1
        for query, group in groupby(prepared, itemgetter(0)):
            documents = [document for _, document in group]

            def ask(window: Sequence[int], query: str = query, documents: Sequence[str] = documents) -> Sequence[int]:
                conversation, tokens = self._fitted(query, [documents[number] for number in window], Counter())
                counts.update(windows=both, tokens=both * (self._writer.size(conversation) + tokens))
                return window

            self._order(len(documents), ask)
        return counts["windows"], counts["tokens"]


class LocalListwiseReranker(ListwiseReranker):
    """Orders by a language model on this machine."""

    def __init__(self, writer: LocalWriter, settings: ListwiseConfig, usage: Counter[str] | None = None) -> None:
        super().__init__(writer, settings, usage)
        self.place = writer.device


class ServedListwiseReranker(ListwiseReranker):
    """Orders by a chat model behind a server, some queries at a time."""

    place = "a server"

    def __init__(self, url: str, experiment: Experiment) -> None:
        served = experiment.served
        if served is None:
            how = "--set served.api=chat --set served.model=NAME"
            raise UsageError(f"{OPTION} {LISTWISE}:{url}: say what it serves with {how}")
        writer = ChatWriter(url, served)
        super().__init__(writer, experiment.listwise)
        self._client, self._served, self.at_once = writer.client, served, served.requests_in_flight
        self.name = f"{served_name(served)}.{LISTWISE}"
        self.prompt_name = prompt_of_lists(experiment.listwise, served.max_length)

    @cached_property
    def identity(self) -> str:
        """API, server, model, revision and fingerprint; see ``served_identity``."""
        return served_identity(self._client, self._probed, LISTWISE, self.prompt_name, room=_MOVES)

    def _probed(self) -> list[float]:
        counts = Counter[str]()
        scores = self._listed(self.prepare(PROBE_PAIRS), counts, None)
        if counts["unparsable answers"] == counts["windows"]:
            said = "gives no order of the probe texts; serve a model that follows the prompt"
            raise DataError(self._client.named(said))
        return scores

    def notes(self, run: Run, usage: Usage) -> list[str]:
        """Return what the lists cost, and that the server's revision is not known."""
        unknown = "the server's revision is not given; set served.revision, so that the result says what ran"
        return [*super().notes(run, usage), *([] if self._served.revision else [unknown])]

    def asked(self, collection: Collection, candidates: Candidates) -> RequestEstimate:
        """Return what the lists will ask, by a sample of the queries."""
        shards = self.cut(collection, candidates)
        sample = (pair_texts(collection, shard) for shard in spread(shards, _SAMPLE))
        return self._estimated(sample, len(shards))

    def asked_task(self, size: TaskSize) -> RequestEstimate:
        """Return what the lists of a task of MTEB will ask, by the mean of its sizes."""
        queries, documents = max(1, size.queries), max(1, size.documents)
        pair = "q" * (size.query_characters // queries), "word " * (size.document_characters // documents // 5)
        return self._estimated([[pair] * round(size.pairs / queries)], size.queries)

    def _estimated(self, sample: Iterable[Sequence[TextPair]], lists: int) -> RequestEstimate:
        found = [self._asked_of(self.prepare(pairs)) for pairs in sample]
        share = lists / max(1, len(found))
        requests, tokens = sum(windows for windows, _ in found), sum(tokens for _, tokens in found)
        return estimate(round(requests * share), tokens * share, self._served)


def prompt_of_lists(settings: ListwiseConfig, max_length: int | None) -> str:
    """Return name and content hash of how lists are read, as results record it."""
    window, step, passes = settings.reading
    named = settings.template if settings.way == "permutation" else settings.way
    known = [settings.model_dump(exclude={"answer"}), settings.reading, max_length]
    return f"{named}(window={window},step={step},passes={passes})@{hash_json(known)}"


def listwise_model(name: str, settings: ModelSettings) -> Model:
    """Return a model that orders lists: behind a server's address, by code of its own, or a causal language model."""
    experiment, config = settings.experiment, settings.experiment.model
    if is_served(name):
        settings.refuse_layers(LISTWISE)
        served = ServedListwiseReranker(name, experiment)
        facts: dict[str, Any] = {"usage": served.usage, "name": served.name, "reads_order": True}
        return Model(served.identity, served.prompt_name, rerank=lambda *_, **__: served, **facts)
    folder = find_folder(OPTION, name, config.revision, trust_remote_code=config.trust_remote_code, weights=False)
    if scores_lists(folder):
        settings.refuse_layers(LISTWISE)
        return list_scores_model(folder, settings)
    refuse_own_code(config)
    most = config.max_length if "max_length" in config.model_fields_set else None
    usage = Counter[str]()

    def load() -> Reranker:
        writer = LocalWriter(load_base(config, settings.device, settings.dtype), most)
        return LocalListwiseReranker(writer, experiment.listwise, usage)

    return model_of_reranker(
        load,
        identity=f"{LISTWISE}:{base_identity(config)}",
        prompt=prompt_of_lists(experiment.listwise, most),
        dtype=settings.dtype_name,
        name=f"{name}.{LISTWISE}",
        usage=usage,
        reads_order=True,
        said=f"listwise.way {experiment.listwise.way}, windows of {experiment.listwise.reading.window}",
    )


register_model(LISTWISE, listwise_model)
