"""Orders of a list by a model that sees a part of it: windows, and what is read from an answer.

RankGPT (Sun et al. 2023) slides a window from the end of the list to its beginning, so that the best documents rise.
Setwise (Zhuang et al. 2024) and pairwise (Qin et al. 2024) ranking are windows too, in which only the best one moves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

from unimoe.config.listwise import ListReading

Asked = TypeVar("Asked")
Made = TypeVar("Made")

UNPARSABLE, PARTIAL, DOUBLED = "unparsable answers", "partial answers", "doubled answers"
TRUNCATED = "truncated thoughts"
ANSWERS, SHORTENED = "answers", "shortened windows"
COUNTS = ("tokens", ANSWERS, UNPARSABLE, PARTIAL, DOUBLED, SHORTENED, TRUNCATED)
"""What rerankers that write on this machine count."""

BEGIN_OF_THOUGHT, END_OF_THOUGHT = "<think>", "</think>"

Asks = Generator[Asked, str | None, Made]
"""Asks one thing after the other, is sent the answer to each, and returns what it made of them."""

_NUMBER = r"\[\s*(\d+)\s*\]"
_CHAIN = re.compile(rf"{_NUMBER}(?:[\s>=\u2265,\u2192-]+{_NUMBER})+|\b\d+(?:\s*[>\u2192]\s*\d+)+")
_ROW = re.compile(r"^\W*(\d+)[.):]\s+(.*\d.*)$", re.MULTILINE)
_WORDS = 3  # of an answer such as "Passage 3.", which a number in a sentence is not


class ReadAnswer(NamedTuple):
    """The places of a window in the order of an answer, from 0, and what had to be repaired."""

    order: list[int]
    faults: tuple[str, ...] = ()


def answer_after_thought(text: str) -> str | None:
    """Return what follows a model's thought, the whole text where it has none; None where the thought has no end."""
    thought, end, answer = text.rpartition(END_OF_THOUGHT)
    if end:
        return answer
    return None if BEGIN_OF_THOUGHT in thought + answer else answer


def read_permutation(answer: str | None, count: int) -> ReadAnswer:
    """Read the order of ``count`` documents from an answer such as ``[2] > [3] > [1]``, and repair what is wrong.

    The rule of repair: of a number that comes twice the first counts (a doubled answer), and a number of no document
    does not count (doubled too). Documents that are missing follow in the order in which the model saw them (a partial
    answer). An answer without a document leaves that order (unparsable), and so does a sentence with a single number.
    """
    text = answer or ""
    found = _numbers(text)
    if len(found) == 1 and "[" not in text and len(text.split()) > _WORDS:
        found = []
    places = [int(number) - 1 for number in found if len(number) < 10]
    order = list(dict.fromkeys(place for place in places if 0 <= place < count))
    if not order:
        return ReadAnswer([*range(count)], (UNPARSABLE,))
    faults = [DOUBLED] * (len(found) > len(order)) + [PARTIAL] * (len(order) < count)
    return ReadAnswer([*order, *(place for place in range(count) if place not in order)], tuple(faults))


def read_best(answer: str | None, count: int) -> ReadAnswer:
    """Read the best of ``count`` documents from an answer such as ``[2]``: it changes places with the first.

    An answer that names none, or several, is unparsable, and leaves the order.
    """
    order, named = [*range(count)], {int(number) for number in _numbers(answer or "") if len(number) < 10}
    if len(named) != 1 or not named <= {*range(1, count + 1)}:
        return ReadAnswer(order, (UNPARSABLE,))
    best = named.pop() - 1
    order[0], order[best] = best, 0
    return ReadAnswer(order)


def _numbers(answer: str) -> list[str]:
    """Return the numbers by which an answer names documents.

    They are those of its longest chain such as ``[3] > [1]`` or ``3 > 1``, the last one of equal length. Without one
    they are all in brackets, else all, but not those that count its lines.
    """
    chains = [re.findall(r"\d+", found[0]) for found in _CHAIN.finditer(answer)]
    if chains:
        return max(reversed(chains), key=len)
    if bracketed := re.findall(_NUMBER, answer):
        return bracketed
    rows: list[tuple[str, str]] = _ROW.findall(answer)
    if [int(number) for number, _ in rows if len(number) < 10] == [*range(1, len(rows) + 1)]:
        answer = "\n".join(text for _, text in rows) or answer
    return re.findall(r"\d+", answer)


def in_windows(
    count: int, reorder: Callable[[list[int]], Asks[Asked, list[int]]], reading: ListReading, *, settles: bool
) -> Asks[Asked, list[int]]:
    """Return the documents of a list, as numbers from 0, in the order that a model gives them window by window.

    ``reorder`` asks about the documents of a window, and returns them in another order. ``settles`` says that each pass
    brings as many documents to their places as two windows share, which later passes leave there: so it is where the
    best of a window moves to its front.
    """
    order, (size, step, passes) = list(range(count)), reading
    for number in range(passes):
        begin = number * (size - step) if settles else 0
        end = start = count
        while start > begin:  # the last documents first; one window starts with the first of them
            start = max(begin, end - size)
            if end - start > 1:
                order[start:end] = yield from reorder(order[start:end])
            end -= step
    return order
