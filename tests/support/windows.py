"""What stands in place of a model that orders lists: a function, or a writer that answers by rule; and a reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from unimoe.config.listwise import ListReading
from unimoe.models import lists
from unimoe.models.prompts.lists import Conversation, control_tokens
from unimoe.models.writer import Ask, Written


def in_windows(
    count: int, sort: Callable[[list[int]], Sequence[int]], reading: ListReading, *, settles: bool
) -> list[int]:
    """What ``lists.in_windows`` makes of the windows that ``sort`` returns."""

    def reorder(window: list[int]) -> Any:
        yield
        return [*sort(window)]

    steps = lists.in_windows(count, reorder, reading, settles=settles)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return list(end.value)


def sliding_windows(documents: list[int], sort: Callable[[list[int]], list[int]], size: int, step: int) -> list[int]:
    """RankGPT's loop, and one more window where that leaves out the first documents, as RankLLM has it."""
    found = list(documents)
    end, start = len(found), len(found) - size
    while start >= 0:
        found[start:end] = sort(found[start:end])
        end -= step
        start -= step
    if len(found) < size or start + step > 0:
        found[:end] = sort(found[:end])
    return found


class Oracle:
    """A writer that ranks by a key, and fails in given ways; it remembers what it was asked."""

    place, at_once, control = "here", 1, control_tokens()

    def __init__(self, says: Callable[[str], str], most: int = 10**9) -> None:
        self.says, self.room, self.asked = says, most, list[str]()

    def ask(self, conversation: Conversation, tokens: int) -> Ask:
        return Ask(conversation, tokens, sum(len(message["content"].split()) for message in conversation))

    def together(self, asks: Sequence[Ask]) -> int:
        return min(2, len(asks))

    def write(self, asks: Sequence[Ask]) -> list[Written]:
        texts = [ask.conversation[-1]["content"] for ask in asks]
        self.asked += texts
        return [Written(self.says(text), False, {"tokens": 7.0}) for text in texts]


def writing(says: Callable[[str], str], most: int = 10**9) -> Any:
    """An oracle in the place of a model."""
    return Oracle(says, most)


def texts_in(prompt: str) -> list[str]:
    """The documents of a prompt, in its order."""
    return re.findall(r"^\[\d+\] (.*)$", prompt, re.MULTILINE) or re.findall(r'^Passage \[\d+\]: "(.*)"$', prompt, re.M)
