"""What a model of its own accord reads before a text: by the text's role, and by the task of MTEB that it is from.

A folder of sentence-transformers names prompts in its settings; MTEB's registry has those of models by their hub id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

TextKind = Literal["query", "document", "plain"]
"""The role of a text: retrieval has queries and documents, symmetric tasks (STS, clustering) have neither."""

KINDS: Mapping[str | None, TextKind] = {"query": "query", "document": "document", None: "plain"}
"""The kinds of texts by their role in a task of MTEB."""

Instruct = Callable[[Any, str | None], str | None]
"""From the card of a task, and the role of a text in it, to what the text is read with; None for no instruction."""

DOCUMENTS = ("document", "passage", "corpus")
"""The names that a prompt of documents may have, the best first."""


@dataclass(frozen=True)
class OwnPrompts:
    """The prompts of one model.

    Attributes:
        by_kind: what a text is read with that no task says more about, as ``encode_query`` and its siblings do.
        named: prompts by the names of MTEB's tasks and types, and of those with a role.
        instruct: what makes the prompt of a task where the model reads instructions; None where it reads none.
        stated: the kinds of texts whose prompt a config states, whatever the task.
    """

    by_kind: dict[TextKind, str] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    instruct: Instruct | None = None
    stated: frozenset[TextKind] = frozenset()

    def of(self, task: Any, role: str | None) -> str | None:
        """Return the prompt of a text by its task and role; None where that of its kind counts.

        A task is MTEB's card, or what has its ``name``, ``type`` and ``prompt``. The order is MTEB's. An empty
        ``prompt`` says that the task is none of MTEB's: its name then chooses nothing.
        """
        if KINDS[role] in self.stated:
            return None
        named_by_mteb = task.prompt != ""
        if self.instruct and named_by_mteb:
            prompt = self.instruct(task, role)
            return self.by_kind["plain"] if prompt is None else prompt
        for head in (task.name, task.type) if named_by_mteb else (task.type,):
            for key in ([f"{head}-{role}"] if role else []) + [head]:
                if key in self.named:
                    return self.named[key]
        return None


BARE = OwnPrompts()
"""Those of a model that has none, or reads all by its kind."""


def prompts_by_kind(prompts: Mapping[str, str | None], default: str | None) -> dict[TextKind, str]:
    """Return what queries, documents and other texts are read with, of prompts by name and the default's name.

    They are chosen as by ``encode_query``, ``encode_document`` and ``encode``, with one difference: an empty
    ``document`` is replaced by ``passage``, which models older than ``encode_document`` have.
    """
    own = {name: prompt or "" for name, prompt in prompts.items()}
    plain = own.get(default or "", "")
    documents = [own[name] for name in DOCUMENTS if name in own] or [plain]
    return {
        "query": own.get("query", plain),
        "document": next(filter(None, documents), documents[0]),
        "plain": plain,
    }
