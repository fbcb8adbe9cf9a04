"""``listwise:NAME``: a model that orders the candidates of a query, here or behind a server.

A causal language model writes permutations window by window. A model in jina-reranker-v3's layout scores a whole list
by its own code. See ``models.lists`` for windows and the repair of answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from unimoe.config.listwise import LIST_PROMPTS, ListwiseConfig
from unimoe.core.errors import InputError
from unimoe.core.io import hash_json
from unimoe.models.base import base_identity, load_base, refuse_own_code
from unimoe.models.embedder import Advance
from unimoe.models.folder import find_folder
from unimoe.models.kinds import LISTWISE
from unimoe.models.lists import ANSWERS, SHORTENED, Reorder, in_windows, read_best, read_permutation
from unimoe.models.model import Model, model_of_reranker
from unimoe.models.named import OPTION, ModelSettings, is_served, register_model
from unimoe.models.prompts import well_formed
from unimoe.models.prompts.lists import Conversation, best_of, shown
from unimoe.models.reranker import Cut, Reranker, TextPair
from unimoe.models.rerankers.list_scores import list_scores_model, scores_lists
from unimoe.models.rerankers.writing import WritingReranker
from unimoe.models.served.chat import ChatWriter
from unimoe.models.writer import LocalWriter

_NAME_TOKENS = 8  # of a document in an answer, ``[20] > ``, at most


class ListwiseReranker(WritingReranker):
    """Orders the candidates of each query; a score is minus the rank, so that no two are equal. A shard is a query."""

    kind, reads_order = LISTWISE, True

    @property
    def cut_by(self) -> Cut:
        """One query a shard, in the first stage's order."""
        return "ranked", 0

    def prepare(self, pairs: Sequence[TextPair]) -> list[TextPair]:
        """Return each query, and what the model sees of its document."""
        words = self.settings.words
        return [(well_formed(query), shown(well_formed(document), words)) for query, document in pairs]

    def scored(self, prepared: Sequence[TextPair], usage: Counter[str], advance: Advance | None) -> list[float]:
        """Return minus the rank of each document in its query's list; a query's pairs come one after the other."""
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
        return scores

    def asked_of(self, prepared: Sequence[TextPair]) -> tuple[int, int]:
        """Return answers and tokens of some lists, as if every answer left the order."""
        counts, both = Counter[str](), 2 if self.settings.way == "pairwise" else 1

        def asked(query: str, documents: Sequence[str]) -> Reorder:
            def count(window: Sequence[int]) -> Sequence[int]:
                conversation, tokens = self._fitted(query, [documents[number] for number in window], Counter())
                size = self.writer.size(conversation) + self.thought + tokens
                counts.update({ANSWERS: both, "tokens": both * size})
                return window

            return count

        for query, group in groupby(prepared, itemgetter(0)):
            documents = [document for _, document in group]
            self._order(len(documents), asked(query, documents))
        return counts[ANSWERS], counts["tokens"]

    def _order(self, count: int, reorder: Reorder) -> list[int]:
        settings = self.settings
        return in_windows(count, reorder, settings.reading, settles=settings.way != "permutation")

    def _reorder(self, query: str, documents: Sequence[str], usage: Counter[str]) -> Reorder:
        """Return what orders some of the documents by asking, and counts in ``usage``."""
        read = read_permutation if self.settings.way == "permutation" else read_best

        def asked(window: Sequence[int]) -> list[int]:
            conversation, tokens = self._fitted(query, [documents[number] for number in window], usage)
            order, faults = read(self.ask(conversation, tokens, usage), len(window))
            usage.update(faults)
            return [window[place] for place in order]

        def better(window: Sequence[int]) -> list[int]:
            """Ask in both orders: documents that win once each stay where they are."""
            turned = [*reversed(window)]
            return turned if asked(window) == turned and asked(turned) == turned else [*window]

        return better if self.settings.way == "pairwise" else asked

    def _fitted(self, query: str, texts: Sequence[str], usage: Counter[str]) -> tuple[Conversation, int]:
        """Return the conversation about a window and the tokens of its answer; long documents lose words to fit."""
        prompt = LIST_PROMPTS[self.settings.template] if self.settings.way == "permutation" else best_of
        tokens = _NAME_TOKENS * (len(texts) if self.settings.way == "permutation" else 1)
        conversation, words = prompt(query, texts), self.settings.words
        while not self.writer.fits(conversation, self.thought + tokens):
            if words == 1:
                raise InputError(0, "the window does not fit into the model; lower listwise.window or listwise.thought")
            words = words * 3 // 4 or 1
            conversation = prompt(query, [" ".join(text.split()[:words]) for text in texts])
        usage.update([SHORTENED] * (words < self.settings.words))
        return conversation, tokens


def prompt_of_lists(settings: ListwiseConfig, max_length: int | None) -> str:
    """Return name and content hash of how lists are read, as results record it."""
    window, step, passes = settings.reading
    named = settings.template if settings.way == "permutation" else settings.way
    known = [settings.model_dump(exclude={"answer"}), settings.reading, max_length]
    return f"{named}(window={window},step={step},passes={passes})@{hash_json(known)}"


def listwise_model(name: str, settings: ModelSettings) -> Model:
    """Return a model that orders lists: behind a server's address, by code of its own, or a causal language model."""
    config, lists, usage = settings.experiment.model, settings.experiment.listwise, Counter[str]()
    if is_served(name):
        settings.refuse_layers(LISTWISE)
        writer = ChatWriter.named(f"{LISTWISE}:", name, settings.experiment.served)
        prompt = prompt_of_lists(lists, writer.client.settings.max_length)
        return ListwiseReranker(writer, lists, prompt).served()
    folder = find_folder(OPTION, name, config.revision, trust_remote_code=config.trust_remote_code, weights=False)
    if scores_lists(folder):
        settings.refuse_layers(LISTWISE)
        return list_scores_model(folder, settings)
    refuse_own_code(config)
    most = config.max_length if "max_length" in config.model_fields_set else None
    prompt = prompt_of_lists(lists, most)

    def load() -> Reranker:
        writer = LocalWriter(load_base(config, settings.device, settings.dtype), most)
        return ListwiseReranker(writer, lists, prompt, usage)

    facts: dict[str, Any] = {"identity": f"{LISTWISE}:{base_identity(config)}", "prompt": prompt, "usage": usage}
    facts |= {"dtype": settings.dtype_name, "name": f"{name}.{LISTWISE}", "reads_order": True}
    said = f"listwise.way {lists.way}, windows of {lists.reading.window}"
    return model_of_reranker(load, said=said, **facts)


register_model(LISTWISE, listwise_model)
