"""Orders of a list by a model that sees a part of it: windows, and what is read from an answer.

RankGPT (Sun et al. 2023) slides a window from the end of the list to its beginning, so that the best documents rise.
Setwise (Zhuang et al. 2024) and pairwise (Qin et al. 2024) ranking are windows too, in which only the best one moves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from unimoe.config.listwise import ListReading

UNPARSABLE, PARTIAL, DOUBLED = "unparsable answers", "partial answers", "doubled answers"
TRUNCATED = "truncated thoughts"
ANSWERS, SHORTENED = "answers", "shortened windows"
COUNTS = ("tokens", ANSWERS, UNPARSABLE, PARTIAL, DOUBLED, SHORTENED, TRUNCATED)
"""What rerankers that write on this machine count."""

END_OF_THOUGHT = "</think>"

Reorder = Callable[[Sequence[int]], Sequence[int]]
"""Takes the documents of a window, as numbers in the list, and returns them in another order."""


class ReadAnswer(NamedTuple):
    """The places of a window in the order of an answer, from 0, and what had to be repaired."""

    order: list[int]
    faults: tuple[str, ...] = ()


def answer_after_thought(text: str) -> str | None:
    """Return what follows a model's thought, the whole text where it has none; None where the thought has no end."""
    thought, end, answer = text.rpartition(END_OF_THOUGHT)
    if end:
        return answer
    return None if "<think>" in thought + answer else answer


def read_permutation(answer: str | None, count: int) -> ReadAnswer:
    """Read the order of ``count`` documents from an answer such as ``[2] > [3] > [1]``, and repair what is wrong.

    Numbers in brackets count, else all numbers. The rule of repair: of a number that comes twice the first counts
    (a doubled answer), and a number of no document does not count (doubled too). Documents that are missing follow in
    the order in which the model saw them (a partial answer). An answer without a document leaves that order
    (unparsable).
    """
    found = re.findall(r"\[(\d+)\]", answer or "") or re.findall(r"\d+", answer or "")
    places = [int(number) - 1 for number in found if len(number) < 10]
    order = list(dict.fromkeys(place for place in places if 0 <= place < count))
    if not order:
        return ReadAnswer([*range(count)], (UNPARSABLE,))
    faults = [DOUBLED] * (len(found) > len(order)) + [PARTIAL] * (len(order) < count)
    return ReadAnswer([*order, *(place for place in range(count) if place not in set(order))], tuple(faults))


def read_best(answer: str | None, count: int) -> ReadAnswer:
    """Read the best of ``count`` documents from an answer such as ``[2]``: it comes first, the others keep their order.

    An answer that names none, or several, is unparsable, and leaves the order.
    """
    order, faults = read_permutation(answer, count)
    named = set(re.findall(r"\d+", answer or ""))
    if UNPARSABLE in faults or len(named) > 1:
        return ReadAnswer([*range(count)], (UNPARSABLE,))
    return ReadAnswer(order)


def windows(count: int, size: int, step: int, begin: int = 0) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each window of a list, the last documents first; one of them starts at ``begin``."""
    end, start = count, count
    while start > begin:
        start = max(begin, end - size)
        yield start, end
        end -= step


def in_windows(count: int, reorder: Reorder, reading: ListReading, *, settles: bool) -> list[int]:
    """Return the documents of a list, as numbers from 0, in the order that a model gives them window by window.

    ``settles`` says that each pass brings as many documents to their places as two windows share, which later passes
    leave there: so it is where the best of a window moves to its front.
    """
    order, (size, step, passes) = list(range(count)), reading
    for number in range(passes):
        for start, end in windows(count, size, step, number * (size - step) if settles else 0):
            if end - start > 1:
                order[start:end] = reorder(order[start:end])
    return order
