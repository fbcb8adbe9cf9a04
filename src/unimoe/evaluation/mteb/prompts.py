"""What a model reads with a text of a task of MTEB: from the config, from the task's instruction, or the model's own.

An encoder reads a prefix before the text, a reranker an instruction in its prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from unimoe.config import MTEBConfig
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.core.io import hash_json
from unimoe.data.mteb_names import random_state_kept, task_names, task_types
from unimoe.models.own_prompts import BARE, OwnPrompts

_ROLES = ("query", "document")


class TaskPrompts:
    """Chooses the prefix of a text by its task and its role in it, from the settings of ``evaluation.mteb``.

    A task is given as MTEB's ``TaskMetadata``, or what has its ``name``, ``type`` and ``prompt``. That is an
    instruction: a text, one text for each role, None for that of its type, or empty for none.
    """

    def __init__(self, config: MTEBConfig) -> None:
        self._config = config

    def prefix(self, task: Any, role: str | None, own: OwnPrompts = BARE) -> str | None:
        """Return the prefix of a text by its role, None in tasks without any.

        ``own`` are the model's prompts; None means the model's own for any task.
        """
        for key in _keys(task, role):
            if key in self._config.prompts:
                return self._config.prompts[key]
        template = self._config.task_instruction
        instruction = None if template is None or role == "document" else _instruction(task, role)
        return template.replace("{instruction}", instruction) if template and instruction else own.of(task, role)

    def instruction(self, task: Any, given: str | None = None) -> str | None:
        """Return the instruction that a reranker reads with a query; None means its own prompt's.

        It is the prefix that the config has for the task's queries, without the words of ``task_instruction`` around
        it; else, unless ``task_instruction`` is None, the one given with the query, the task's, or that of its type.
        """
        template = self._config.task_instruction
        before, _, after = (template or "{instruction}").partition("{instruction}")
        for key in _keys(task, "query"):
            if (written := self._config.prompts.get(key)) is not None:
                if written.startswith(before) and written.endswith(after):
                    written = written.removeprefix(before).removesuffix(after)
                return written.strip() or None
        return None if template is None else given or _instruction(task, "query")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that decide the prefixes, for content hashes."""
        return self._config.model_dump(include={"task_instruction", "prompts"})

    def of_task(self, task: Any, own: OwnPrompts = BARE) -> list[str | None]:
        """Return the prefixes of a task for queries, documents and texts without a role, for content hashes."""
        return [self.prefix(task, role, own) for role in (*_ROLES, None)]

    def refuse_unknown_keys(self, collections: Iterable[str] = ()) -> None:
        """Refuse a prefix in the config that no task would ever use, nor one of ``collections``, evaluated as tasks."""
        if not self._config.prompts:
            return
        with random_state_kept():
            heads = {*task_names(), *task_types(), *collections}
        for key in self._config.prompts:
            head, _, role = key.rpartition("-")
            if key not in heads and key not in _ROLES and not (role in _ROLES and head in heads):
                near = did_you_mean(head if role in _ROLES else key, sorted(heads))
                raise UsageError(f"evaluation.mteb.prompts: {key!r} is no task, type of tasks or role of MTEB{near}")


def prompt_on_task(prompt: str | None, own: Sequence[str | None]) -> str | None:
    """Return name and hash of a system's prompt, and of what it reads on a task in place of its own or in addition."""
    if prompt is None or not any(text is not None for text in own):
        return prompt
    return f"{prompt.rpartition('@')[0]}@{hash_json([prompt, list(own)])}"


def _keys(task: Any, role: str | None) -> Iterator[str]:
    """Yield the keys in MTEB's order, except that a key without a role applies to no documents."""
    for head in (task.name, task.type):
        if role is not None:
            yield f"{head}-{role}"
        if role != "document":
            yield head
    if role is not None:
        yield role


def _instruction(task: Any, role: str | None) -> str | None:
    """Return MTEB's instruction for a task, or for its type where it has none, as Qwen3-Embedding is scored."""
    written: Any = task.prompt
    if isinstance(written, dict):
        written = next(iter(written.values()), None) if role is None else written.get(role)
    elif written is None:
        from mteb.abstasks.abstask import get_abstask_prompt

        written = get_abstask_prompt(task.name)
    return written or None
