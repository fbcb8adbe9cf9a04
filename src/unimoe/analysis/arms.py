"""The roles of arms by their names: baselines, the specialist of each joint arm, and the pairs that have no TIR."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean, stdev

from unimoe.results import Task
from unimoe.results.folder import Results

ZERO_SHOT = "zero_shot"
FIRST_STAGE = "bm25"

SPECIALISTS: dict[Task, str] = {"reranking": "rank_only", "embedding": "emb_only"}
"""The task word of the specialist each task's TIR is measured against."""

_FIRST_ARMS = (FIRST_STAGE, ZERO_SHOT, *SPECIALISTS.values(), "joint")


@dataclass(frozen=True)
class Pair:
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


@dataclass(frozen=True)
class NotComputable:
    """A TIR that was asked for and cannot be had; ``dataset`` is None where the task has no result at all."""

    pair: Pair
    dataset: str | None
    reason: str


@dataclass(frozen=True)
class Described:
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
        here = _keys_of(results, pair, results.dataset_keys)
        both = " and ".join(pair.arms)
        if not here:
            reason = f"{both} have no {pair.task} result"
            if any(key.startswith(f"{pair.task}/") for key in results.keys_without_queries):
                reason = f"{both} have only tasks without queries, where nothing is paired"
            if absent := [arm for arm in pair.arms if arm not in results]:
                reason = f"there is no arm {' and no arm '.join(absent)}"
            found.append(NotComputable(pair, None, reason))
        absences = ((key.partition("/")[2], _absent(results, pair, key)) for key in here)
        found += [NotComputable(pair, dataset, absent) for dataset, absent in absences if absent]
    return tuple(found)


def without_queries(results: Results) -> tuple[Described | NotComputable, ...]:
    """Return TIR of every pair of arms on MTEB's tasks without queries."""
    return tuple(
        _described(results, pair, key)
        for pair in pairs(results)
        for key in _keys_of(results, pair, results.keys_without_queries)
    )


def _keys_of(results: Results, pair: Pair, keys: Iterable[str]) -> list[str]:
    """Return the keys of a pair's task on which either arm has a result."""
    of_task = (key for key in keys if key.startswith(f"{pair.task}/"))
    return [key for key in of_task if any(results.measured(key, arm) for arm in pair.arms)]


def _absent(results: Results, pair: Pair, key: str) -> str:
    """Say which arms have no result on a dataset; empty where both have one."""
    absent = [arm for arm in pair.arms if not results.measured(key, arm)]
    return f"{' and '.join(absent)} has no result on {key.partition('/')[2]}" if absent else ""


def _described(results: Results, pair: Pair, key: str) -> Described | NotComputable:
    dataset, both = key.partition("/")[2], " and ".join(pair.arms)
    if absent := _absent(results, pair, key):
        return NotComputable(pair, dataset, absent)
    specialist, joint = (
        {r.seed: r.aggregate[r.main_metric] for r in results.measured(key, arm) if r.seed is not None}
        for arm in pair.arms
    )
    seeds = tuple(seed for seed in specialist if seed in joint)
    if not seeds:
        return NotComputable(pair, dataset, f"{both} have no seed in common on {dataset}")
    first, second = (tuple(of[seed] for seed in seeds) for of in (specialist, joint))
    if min(first) <= 0.0:
        return NotComputable(pair, dataset, f"{pair.specialist} does not score above 0 on {dataset}")
    return Described(pair, dataset, results.measured(key)[0].main_metric, seeds, first, second)
