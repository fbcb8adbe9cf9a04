"""The roles of arms by their names: baselines, the specialist of each joint arm, and the pairs that have no TIR."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import fmean, stdev
from typing import NamedTuple

from unimoe.results import Task
from unimoe.results.folder import Results

ZERO_SHOT = "zero_shot"
FIRST_STAGE = "bm25"

SPECIALISTS: dict[Task, str] = {"reranking": "rank_only", "embedding": "emb_only"}
"""The task word of the specialist each task's TIR is measured against."""

_FIRST_ARMS = (FIRST_STAGE, ZERO_SHOT, *SPECIALISTS.values(), "joint")


class Pair(NamedTuple):
    """A specialist and a joint arm: the same name behind the task word, or one that continues the specialist's."""

    task: Task
    specialist: str
    joint: str

    @property
    def arms(self) -> tuple[str, str]:
        """Both names, the specialist's first."""
        return self.specialist, self.joint


def arm_order(name: str) -> tuple[int, str]:
    """Return a sort key: baselines first, then specialists, then joint arms, then all others by name."""
    known = (i for i, word in enumerate(_FIRST_ARMS) if _has_word(name, word))
    return next(known, len(_FIRST_ARMS)), name


def has_role(name: str) -> bool:
    """Return whether the name of an arm says what it is compared with."""
    return arm_order(name)[0] < len(_FIRST_ARMS)


def pairs(arms: Iterable[str]) -> Iterator[Pair]:
    """Yield every pair that some of the arms belong to, reranking first; either side may be absent.

    Several joint arms may share a specialist: each way of joint training is compared with it. Several specialists
    without any joint arm, such as one for each loss, are compared with each other and belong to no pair.
    """

    def behind(word: str) -> set[str]:
        return {name.removeprefix(word) for name in held if _has_word(name, word)}

    held = set(arms)
    joint, own = behind("joint"), {task: behind(word) for task, word in SPECIALISTS.items()}
    known = set[str]().union(*own.values())
    for task, word in SPECIALISTS.items():
        of_joint = {}
        for name in joint:
            # The specialist's name is the same, or begins it: ``_r8_pcgrad`` is a way to train ``_r8``. The task's own
            # are preferred; those of the other task say what is missing.
            begun = [other for other in known if name == other or name.startswith(f"{other}_")]
            of_joint[name] = max(begun, key=lambda other: (other in own[task], len(other)), default=name)
        alone = {name: name for name in known if name not in of_joint.values()} if joint or len(known) == 1 else {}
        for name, specialist in sorted((of_joint | alone).items()):
            yield Pair(task, specialist=f"{word}{specialist}", joint=f"joint{name}")


def _has_word(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}_")


class NotComputable(NamedTuple):
    """A TIR that was asked for and cannot be had; ``dataset`` is None where the task has no result at all."""

    pair: Pair
    dataset: str | None
    reason: str


class Described(NamedTuple):
    """TIR on one of MTEB's tasks without queries: a description, since nothing is paired and no interval exists."""

    pair: Pair
    dataset: str
    metric: str
    seeds: tuple[int, ...]  # the training seeds that both arms have
    specialist: tuple[float, ...]  # main score by seed (0 to 1; correlations may be negative)
    joint: tuple[float, ...]  # the same

    @property
    def tir(self) -> float:
        """TIR of the mean scores."""
        return 1.0 - fmean(self.joint) / fmean(self.specialist)

    @property
    def std(self) -> float | None:
        """Standard deviation of TIR over seeds; None with one seed."""
        by_seed = [1.0 - j / s for s, j in zip(self.specialist, self.joint, strict=True)]
        return stdev(by_seed) if len(by_seed) > 1 else None


def missing_pairs(results: Results) -> tuple[NotComputable, ...]:
    """Return every pair of arms, and every dataset of a pair, for which one side has no result by query.

    Names make pairs where a task has specialists: two runs that happen to be called joint and mono lack nothing.
    """
    tasks = {key.partition("/")[0] for key in (*results.dataset_keys, *results.keys_without_queries)}
    found: list[NotComputable] = []
    for pair in () if tasks.isdisjoint(SPECIALISTS) else pairs(results):
        here = list(_places(results, pair, results.dataset_keys))
        if not here:
            both = " and ".join(pair.arms)
            reason = f"{both} have no {pair.task} result"
            if any(key.startswith(f"{pair.task}/") for key in results.keys_without_queries):
                reason = f"{both} have only tasks without queries, where nothing is paired"
            if absent := [arm for arm in pair.arms if arm not in results]:
                reason = f"there is no arm {' and no arm '.join(absent)}"
            found.append(NotComputable(pair, None, reason))
        found += [NotComputable(pair, dataset, absent) for _, dataset, absent in here if absent]
    return tuple(found)


def without_queries(results: Results) -> tuple[Described | NotComputable, ...]:
    """Return TIR of every pair of arms on MTEB's tasks without queries."""
    found: list[Described | NotComputable] = []
    for pair in pairs(results):
        for key, dataset, absent in _places(results, pair, results.keys_without_queries):
            specialist, joint = (
                {r.seed: r.aggregate[r.main_metric] for r in results.measured(key, arm) if r.seed is not None}
                for arm in pair.arms
            )
            seeds = tuple(seed for seed in specialist if seed in joint)
            why = absent
            if not why and not seeds:
                why = f"{' and '.join(pair.arms)} have no seed in common on {dataset}"
            if not why and min(specialist[seed] for seed in seeds) <= 0.0:
                why = f"{pair.specialist} does not score above 0 on {dataset}"
            if why:
                found.append(NotComputable(pair, dataset, why))
                continue
            first, second = (tuple(of[seed] for seed in seeds) for of in (specialist, joint))
            found.append(Described(pair, dataset, results.measured(key)[0].main_metric, seeds, first, second))
    return tuple(found)


def _places(results: Results, pair: Pair, keys: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the keys of a pair's task on which an arm has a result, the dataset, and which arms have none there."""
    for key in keys:
        absent = [arm for arm in pair.arms if not results.measured(key, arm)]
        if key.startswith(f"{pair.task}/") and len(absent) < len(pair.arms):
            dataset = key.partition("/")[2]
            yield key, dataset, f"{' and '.join(absent)} has no result on {dataset}" if absent else ""
