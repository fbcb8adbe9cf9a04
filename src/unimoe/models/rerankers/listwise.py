"""``listwise:NAME``: a model that orders the candidates of a query, here or behind a server.

A causal language model writes permutations window by window. A model in jina-reranker-v3's layout scores a whole list
by its own code. See ``models.lists`` for windows and the repair of answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from unimoe.config.listwise import ListwiseConfig
from unimoe.core.io import hash_json
from unimoe.models.base import base_identity, load_base, refuse_own_code
from unimoe.models.folder import find_folder
from unimoe.models.kinds import LISTWISE
from unimoe.models.lists import Asks, ReadAnswer, in_windows, read_best, read_permutation
from unimoe.models.model import Model, model_of_reranker
from unimoe.models.named import OPTION, ModelSettings, is_served, register_model
from unimoe.models.prompts.lists import ListPrompt, best_of, list_prompt
from unimoe.models.reranker import Cut, Reranker
from unimoe.models.rerankers.list_scores import list_scores_model, scores_lists
from unimoe.models.rerankers.writing import Asking, AskingReranker
from unimoe.models.served.chat import ChatWriter
from unimoe.models.writer import Ask, LocalWriter

_NAME_TOKENS = 8  # of a document in an answer, ``[20] > ``, at most


class ListwiseReranker(AskingReranker):
    """Orders the candidates of each query; a score is minus the rank, so that no two are equal. A shard is a query."""

    kind, reads_order = LISTWISE, True

    @property
    def cut_by(self) -> Cut:
        """One query a shard, in the first stage's order."""
        return "ranked", 0

    def lists(self, prepared: Sequence[Any]) -> list[list[Any]]:
        """Return each query's pairs, which come one after the other."""
        return [list(group) for _, group in groupby(prepared, itemgetter(0))]

    def asks(self, prepared: Sequence[Any], usage: Counter[str], *, again: bool) -> Asking:
        """Ask for the order of a query's documents, and return minus the rank of each."""
        known: dict[tuple[int, ...], ReadAnswer] = {}
        settings, query = self.settings, prepared[0][0]
        all_named = settings.way == "permutation"
        read = read_permutation if all_named else read_best

        def answered(window: Sequence[int]) -> Asks[Ask, ReadAnswer]:
            """Ask about a window; one that an earlier pass has asked about has the same answer."""
            if again or tuple(window) not in known:
                texts = [prepared[number][1] for number in window]
                tokens = _NAME_TOKENS * (len(window) if all_named else 1)
                answer = yield self.fitted(partial(self._prompt, query), texts, tokens, usage)
                known[tuple(window)] = found = read(answer, len(window))
                usage.update(found.faults)
            return known[tuple(window)]

        def ordered(window: list[int]) -> Asks[Ask, list[int]]:
            found = yield from answered(window)
            return [window[place] for place in found.order]

        def better(window: list[int]) -> Asks[Ask, list[int]]:
            """Ask in both orders: a document moves up only if both answers name it."""
            first = yield from answered(window)
            if first.order == [0, 1]:
                return window
            second = yield from answered(window[::-1])
            return window if second.faults or second.order == [1, 0] else window[::-1]

        reorder = better if settings.way == "pairwise" else ordered
        order = yield from in_windows(len(prepared), reorder, settings.reading, settles=not all_named)
        rank = {document: place for place, document in enumerate(order, start=1)}
        return [-float(rank[document]) for document in range(len(prepared))]

    @cached_property
    def _prompt(self) -> ListPrompt:
        return prompt_of(self.settings)


def prompt_of(settings: ListwiseConfig) -> ListPrompt:
    """Return the prompt about a window."""
    return list_prompt(settings.template) if settings.way == "permutation" else best_of


def prompt_of_lists(settings: ListwiseConfig, max_length: int | None) -> str:
    """Return name and content hash of how lists are read, as results record it."""
    window, step, passes = settings.reading
    named = settings.template if settings.way == "permutation" else settings.way
    conversation = prompt_of(settings)("query", ["some text", "another"])
    known = [settings.model_dump(exclude={"answer"}), settings.reading, max_length, conversation]
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
        base = load_base(config, settings.device, settings.dtype)
        writer = LocalWriter(base, most, thinks=bool(lists.thought))
        return ListwiseReranker(writer, lists, prompt, usage)

    facts: dict[str, Any] = {"identity": f"{LISTWISE}:{base_identity(config)}", "prompt": prompt, "usage": usage}
    facts |= {"dtype": settings.dtype_name, "name": f"{name}.{LISTWISE}", "reads_order": True}
    said = f"listwise.way {lists.way}, windows of {lists.reading.window}"
    return model_of_reranker(load, said=said, **facts)


register_model(LISTWISE, listwise_model)
