"""Windows, and what is read from answers: against a reference, hand-written permutations and oracles."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from support.windows import in_windows, sliding_windows, texts_in, writing

from unimoe.config.listwise import ListwiseConfig
from unimoe.models.lists import DOUBLED, PARTIAL, UNPARSABLE, read_best, read_permutation
from unimoe.models.rerankers.listwise import ListwiseReranker


def test_windows_are_those_of_the_reference_on_random_permutations() -> None:
    draw = random.Random(0)
    for number in range(200):
        count, size = draw.randint(1, 120), draw.randint(2, 30)
        step = draw.randint(1, size)

        def permuted(window: Sequence[int], number: int = number) -> list[int]:
            """An order that depends on the window alone, as a model's answer does."""
            own = list(window)
            random.Random(f"{number} {own}").shuffle(own)
            return own

        expected = list(range(count))
        for _ in range(2):
            expected = sliding_windows(expected, permuted, size, step)
        reading = ListwiseConfig(window=size, step=step, passes=2).reading
        assert in_windows(count, permuted, reading, settles=False) == expected, (count, size, step)


@pytest.mark.parametrize(("passes", "reach"), [(1, 10), (2, 20), (5, 50)])
def test_a_perfect_oracle_gives_the_ideal_order_within_the_windows_reach(passes: int, reach: int) -> None:
    for seed in range(20):
        ideal = random.Random(seed).sample(range(95), 95)
        place = {document: rank for rank, document in enumerate(ideal)}
        reading = ListwiseConfig(passes=passes).reading
        found = in_windows(95, partial(sorted, key=place.__getitem__), reading, settles=False)
        assert found[:reach] == ideal[:reach]
        assert sorted(found) == list(range(95))


@pytest.mark.parametrize("way", ["setwise", "pairwise"])
def test_the_best_of_each_window_settles_a_place_a_pass(way: Any) -> None:
    for seed in range(20):
        ideal = random.Random(seed).sample(range(40), 40)
        place = {document: rank for rank, document in enumerate(ideal)}

        def best_first(window: Sequence[int], place: dict[int, int] = place) -> list[int]:
            best = min(window, key=place.__getitem__)
            return [best, *(document for document in window if document != best)]

        found = in_windows(40, best_first, ListwiseConfig(way=way, passes=7).reading, settles=True)
        assert found[:7] == ideal[:7]
        others = [document for document in found[7:] if document in set(range(40)) - set(ideal[:7])]
        assert others == found[7:]


@pytest.mark.parametrize(
    ("answer", "order", "faults"),
    [
        ("[2] > [3] > [1]", [1, 2, 0], ()),
        ("2, 3, 1", [1, 2, 0], ()),
        ("Of the 9 texts: [3] > [1] > [2]", [2, 0, 1], ()),
        ("[3]", [2, 0, 1], (PARTIAL,)),
        ("[3] > [3] > [1] > [2]", [2, 0, 1], (DOUBLED,)),
        ("[3] > [4] > [3]", [2, 0, 1], (DOUBLED, PARTIAL)),
        ("[0] > [7]", [0, 1, 2], (UNPARSABLE,)),
        ("I cannot rank these.", [0, 1, 2], (UNPARSABLE,)),
        ("", [0, 1, 2], (UNPARSABLE,)),
        (None, [0, 1, 2], (UNPARSABLE,)),
        ("3 > 1 > 2", [2, 0, 1], ()),
        ("Document 3, 1", [2, 0, 1], (PARTIAL,)),
        ("1. Document 3\n2. Document 1\n3. Document 2", [2, 0, 1], ()),
        ("1. [3]\n2. [1]\n3. [2]", [2, 0, 1], ()),
        ("3.\n1.\n2.", [2, 0, 1], ()),
        ("**[3]** > **[1]** > **[2]**", [2, 0, 1], ()),
        ("[3, 1, 2]", [2, 0, 1], ()),
        ('{"order": ["3", "1", "2"]}', [2, 0, 1], ()),
        ("[1] is about cats, [2] about dogs. So, as in [4] > [2]: [3] > [1] > [2]", [2, 0, 1], ()),
        ("\u0663 > \u0661 > \u0662", [2, 0, 1], ()),
        ("\u3010\uff13\u3011 > \u3010\uff11\u3011 > \u3010\uff12\u3011", [2, 0, 1], ()),
        ("[ 3 ] \u2192 [ 1 ] \u2192 [ 2 ]", [2, 0, 1], ()),
        ("Sorry, I cannot rank these 3 passages.", [0, 1, 2], (UNPARSABLE,)),
        ("C > A > B", [0, 1, 2], (UNPARSABLE,)),
        ("[" + "9" * 5000 + "] > [2]", [1, 0, 2], (DOUBLED, PARTIAL)),
    ],
)
def test_answers_are_repaired_by_the_written_rule(answer: str | None, order: list[int], faults: tuple[str]) -> None:
    assert read_permutation(answer, 3) == (order, faults)


def test_the_best_one_is_a_single_number() -> None:
    assert read_best("[2]", 3) == ([1, 0, 2], ())
    assert read_best("Passage 3.", 3) == ([2, 1, 0], ()), "it changes places with the first"
    assert read_best("I think that [2] is best, as it is of 1987.", 3) == ([1, 0, 2], ())
    for answer in ("[1] or [2]", "none", "[4]", "[0]", None):
        assert read_best(answer, 3) == ([0, 1, 2], (UNPARSABLE,)), answer


def oracle_of(seed: int, unsure: float) -> Callable[[Sequence[int]], int | None]:
    """Which of some documents is best, by the documents and their order alone: no order of all need agree with it."""

    def best(shown: Sequence[int]) -> int | None:
        draw = random.Random(f"{seed} {list(shown)}")
        return None if draw.random() < unsure else draw.choice(list(shown))

    return best


def bubbled_by_setwise(count: int, best: Callable[[Sequence[int]], int | None], children: int, k: int) -> list[int]:
    """Zhuang et al.'s bubble sort, as their code has it, without its shortcut for what the last pass left alone."""
    ranking = list(range(count))
    for i in range(k):
        start, end = len(ranking) - (children + 1), len(ranking)
        while True:
            start = max(start, i)
            if len(ranking[start:end]) > 1:
                named = best(ranking[start:end])
                place = 0 if named is None else ranking[start:end].index(named)
                ranking[start], ranking[start + place] = ranking[start + place], ranking[start]
            if start == i:
                break
            start -= children
            end -= children
    return ranking


def bubbled_by_pairs(count: int, best: Callable[[Sequence[int]], int | None], k: int) -> tuple[list[int], int]:
    """Qin et al.'s PRP-Sliding-K, and its calls: two for each comparison."""
    ranking, calls = list(range(count)), 0
    for i in range(k):
        for place in range(len(ranking) - 1, i, -1):
            upper, lower = ranking[place - 1], ranking[place]
            calls += 2
            if best([upper, lower]) == lower and best([lower, upper]) == lower:
                ranking[place - 1], ranking[place] = lower, upper
    return ranking, calls


@pytest.mark.parametrize("unsure", [0.0, 0.3])
def test_setwise_and_pairwise_are_the_published_ones_whatever_the_model_says(unsure: float) -> None:
    for seed in range(60):
        draw = random.Random(seed)
        count, k, size = draw.randint(1, 14), draw.randint(1, 10), draw.randint(2, 5)
        best = oracle_of(seed, unsure)
        for way in ("setwise", "pairwise"):
            asked: list[tuple[int, ...]] = []

            def says(prompt: str, asked: list[tuple[int, ...]] = asked, best: Any = best) -> str:
                window = [int(text.removeprefix("text ")) for text in texts_in(prompt)]
                asked.append(tuple(window))
                named = best(window)
                return "I do not know." if named is None else f"[{window.index(named) + 1}]"

            reading = {"window": size} if way == "setwise" else {}
            reranker = ListwiseReranker(writing(says), ListwiseConfig(way=way, passes=k, **reading))  # type: ignore[arg-type]
            scores = reranker.score(reranker.prepare([("q", f"text {number}") for number in range(count)]))
            found = sorted(range(count), key=lambda place: -scores[place])
            expected, calls = bubbled_by_pairs(count, best, k)
            if way == "setwise":
                expected = bubbled_by_setwise(count, best, size - 1, k)
            assert found == expected, (seed, way)
            assert len(asked) == len(set(asked)) == reranker.usage["answers"], "nothing is asked, or counted, twice"
            planned = len(reranker.asked_of([("q", f"text {number}") for number in range(count)]))
            assert len(asked) <= planned
            assert way == "setwise" or planned == calls


def test_settings_that_would_leave_documents_out_are_refused() -> None:
    for wrong in (
        {"window": 5, "step": 6},
        {"way": "setwise", "window": 4, "step": 4},
        {"way": "pairwise", "window": 3},
    ):
        with pytest.raises(ValueError, match=r"leaves out documents|compares 2 documents"):
            ListwiseConfig(**wrong)
    assert ListwiseConfig(window=7).reading == (7, 3, 1)
    assert ListwiseConfig(way="setwise", window=7).reading == (7, 6, 10)
