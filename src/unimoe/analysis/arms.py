"""The roles of arms by their names: baselines, the specialist of each joint arm, and the pairs that have no TIR."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from unimoe.results import Task
from unimoe.results.folder import Results

ZERO_SHOT = "zero_shot"
FIRST_STAGE = "bm25"

SPECIALISTS: dict[Task, str] = {"reranking": "rank_only", "embedding": "emb_only"}
"""The task word of the specialist each task's TIR is measured against."""

_FIRST_ARMS = (FIRST_STAGE, ZERO_SHOT, *SPECIALISTS.values(), "joint")


class ArmPair(NamedTuple):
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


def pairs(arms: Iterable[str]) -> Iterator[ArmPair]:
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
            yield ArmPair(task, specialist=f"{word}{specialist}", joint=f"joint{name}")


def _has_word(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}_")


class NotComputable(NamedTuple):
    """A TIR that was asked for and cannot be had; ``dataset`` is None where the task has no result at all."""

    pair: ArmPair
    dataset: str | None
    reason: str


def missing_pairs(results: Results) -> tuple[NotComputable, ...]:
    """Return every pair of arms, and every dataset of a pair, for which one side has no result by query.

    Names make pairs where a task has specialists: two runs that happen to be called joint and mono lack nothing.
    """
    tasks = {key.partition("/")[0] for key in (*results.dataset_keys, *results.keys_without_queries)}
    found: list[NotComputable] = []
    for pair in () if tasks.isdisjoint(SPECIALISTS) else pairs(results):
        lacking = {
            key.partition("/")[2]: [arm for arm in pair.arms if not results.measured(key, arm)]
            for key in results.dataset_keys
            if key.startswith(f"{pair.task}/")
        }
        here = {dataset: arms for dataset, arms in lacking.items() if len(arms) < len(pair.arms)}
        if not here:
            both = " and ".join(pair.arms)
            reason = f"{both} have no {pair.task} result"
            if any(key.startswith(f"{pair.task}/") for key in results.keys_without_queries):
                reason = f"{both} have only tasks without queries, where nothing is paired"
            if absent := [arm for arm in pair.arms if arm not in results]:
                reason = f"there is no arm {' and no arm '.join(absent)}"
            found.append(NotComputable(pair, None, reason))
        for dataset, arms in here.items():
            found += [NotComputable(pair, dataset, f"{arm} has no result on {dataset}") for arm in arms]
    return tuple(found)
