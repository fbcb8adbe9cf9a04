"""Prompts about a list of documents: the permutation of a window, and the best one of it.

A prompt of your own is a function as ``ListPrompt`` describes it::

    from unimoe.config.listwise import LIST_PROMPTS

    LIST_PROMPTS.add("mine", my_prompt)  # then listwise.template: mine
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Protocol

from unimoe.config.listwise import LIST_PROMPTS
from unimoe.core.errors import DataError, guarded

Conversation = list[dict[str, str]]
"""Messages with ``role`` and ``content``, after which the model writes."""


_WHO = "You are {}, an intelligent assistant that can rank passages based on their relevancy to the query."

_TRIED = ("a query", ["some text", "another one"])
"""What a prompt is tried with."""


class ListPrompt(Protocol):
    """Asks for the order of documents, which it calls ``[1]``, ``[2]``, ..., most relevant first."""

    def __call__(self, query: str, documents: Sequence[str]) -> Conversation:
        """Return the conversation."""


_HAN, _THAI = (
    r"\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff",
)
_WORD = re.compile(rf"[{_HAN}]{{1,2}}|[{_THAI}]{{1,5}}|[^\s{_HAN}{_THAI}]{{1,80}}")
"""What counts as a word: also a few characters of scripts that write no spaces, or of a text that holds none."""

_CONTROL = r"<[|\uff5c][^<>]{1,40}[|\uff5c]>|</?(?:s|think|bos|eos|start_of_turn|end_of_turn)>|\[/?INST\]|<</?SYS>>"


def control_tokens(tokens: Iterable[str] = ()) -> re.Pattern[str]:
    """Return what finds signs that steer chat models, such as ``<|im_end|>``: those given, and the usual ones."""
    own = (re.escape(token) for token in sorted(tokens, key=len, reverse=True) if len(token) > 2 and token[0] in "<[")
    return re.compile("|".join([*own, _CONTROL]))


def harmless(text: str, control: re.Pattern[str]) -> str:
    """Return a text whose signs that would steer the model are broken by a space."""
    return control.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)


def first_words(text: str, words: int) -> str:
    """Return the first words of a text."""
    text = " ".join(text.split())
    last = next(islice(_WORD.finditer(text), words - 1, None), None)
    return text[: last.end()] if last else text


def shown(text: str, words: int, control: re.Pattern[str]) -> str:
    """Return the first words of a document, whose own numbers in brackets are no names of documents."""
    return re.sub(r"\[(\s*\d+\s*)\]", r"(\1)", harmless(first_words(text, words), control))


def rank_zephyr(query: str, documents: Sequence[str]) -> Conversation:
    """Ask in one message, as RankZephyr was trained (Pradeep et al. 2023)."""
    number = len(documents)
    listed = "\n".join(f"[{place}] {text}" for place, text in enumerate(documents, start=1))
    return [
        said("system", _WHO.format("RankLLM")),
        said(
            "user",
            f"I will provide you with {number} passages, each indicated by a numerical identifier []. Rank the "
            f"passages based on their relevance to the search query: {query}.\n\n{listed}\n\nSearch Query: {query}.\n"
            f"Rank the {number} passages above based on their relevance to the search query. All the passages should "
            "be included and listed using identifiers, in descending order of relevance. The output format should be "
            "[] > [], e.g., [4] > [2]. Only respond with the ranking results, do not say any word or explain.",
        ),
    ]


def rank_gpt(query: str, documents: Sequence[str]) -> Conversation:
    """Ask in a conversation with a message for each document, as RankGPT does (Sun et al. 2023)."""
    number = len(documents)
    messages = [
        said("system", _WHO.format("RankGPT")),
        said(
            "user",
            f"I will provide you with {number} passages, each indicated by number identifier []. \nRank the passages "
            f"based on their relevance to query: {query}.",
        ),
        said("assistant", "Okay, please provide the passages."),
    ]
    for place, text in enumerate(documents, start=1):
        messages += [said("user", f"[{place}] {text}"), said("assistant", f"Received passage [{place}].")]
    question = (
        f"Search Query: {query}. \nRank the {number} passages above based on their relevance to the search query. The "
        "passages should be listed in descending order using identifiers. The most relevant passages should be listed "
        "first. The output format should be [] > [], e.g., [1] > [2]. Only response the ranking results, do not say "
        "any word or explain."
    )
    return [*messages, said("user", question)]


def best_of(query: str, documents: Sequence[str]) -> Conversation:
    """Ask for the most relevant document alone, as Setwise does (Zhuang et al. 2024), by numbers, not by letters."""
    listed = "\n\n".join(f'Passage [{place}]: "{text}"' for place, text in enumerate(documents, start=1))
    return [
        said(
            "user",
            f'Given a query "{query}", which of the following passages is the most relevant one to the query?\n\n'
            f"{listed}\n\nOutput only the identifier of the most relevant passage, such as [2]:",
        )
    ]


def in_one_message(conversation: Conversation) -> Conversation:
    """Return a conversation as one message of the user, for models that take no other roles."""
    return [said("user", "\n\n".join(message["content"] for message in conversation))]


def said(role: str, text: str) -> dict[str, str]:
    """Return a message of the ``user``, the ``assistant`` or the ``system``."""
    return {"role": role, "content": text}


def list_prompt(name: str) -> ListPrompt:
    """Return the prompt of permutations that has a name; one that a user wrote is tried and checked.

    Raises:
        DataError: it raises an error, returns no messages, or leaves out the query or a document.
    """
    prompt: ListPrompt = LIST_PROMPTS[name]
    what = f"listwise.template {name}"
    made = guarded(f"{what} raised", prompt)

    def checked(query: str, documents: Sequence[str]) -> Conversation:
        messages: Any = made(query, documents)
        if not (isinstance(messages, list) and messages and all(map(_is_message, messages))):
            raise DataError(
                f"{what}: returned {str(messages)[:80]!r}; return a list of {{'role': ..., 'content': ...}}"
            )
        return messages

    text = "\n".join(message["content"] for message in checked(*_TRIED)).casefold()
    for part in (_TRIED[0], *_TRIED[1], *(f"[{place + 1}]" for place in range(len(_TRIED[1])))):
        if part not in text:
            raise DataError(f"{what}: leaves out {part!r} of query {_TRIED[0]!r} and documents {_TRIED[1]}")
    return checked


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))


LIST_PROMPTS.add("rankzephyr", rank_zephyr)
LIST_PROMPTS.add("rankgpt", rank_gpt)
