"""The roles of arms by their names: which are baselines, which specialist belongs to which joint arm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass

from unimoe.results import Task

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

    Several joint arms may share a specialist: each way of joint training is compared with it.
    """
    arms = set(arms)
    joint = _behind(arms, "joint")
    own = {task: _behind(arms, word) for task, word in SPECIALISTS.items()}
    known = set[str]().union(*own.values())
    for task, word in SPECIALISTS.items():
        of_joint = {name: _specialist_of(name, own[task], known) for name in joint}
        alone = {name: name for name in known if name not in of_joint.values()}
        for name, specialist in sorted((of_joint | alone).items()):
            yield Pair(task, specialist=f"{word}{specialist}", joint=f"joint{name}")


def _behind(arms: Iterable[str], word: str) -> set[str]:
    """Return what follows a task word in the names of arms."""
    return {name.removeprefix(word) for name in arms if _has_word(name, word)}


def _specialist_of(joint: str, own: Set[str], known: Set[str]) -> str:
    """Return the specialist's name that this one equals or continues: ``_r8_pcgrad`` is a way to train ``_r8``.

    Args:
        joint: what follows the task word.
        own: the same of the task's specialists.
        known: the same of all specialists; the other task's say what is missing.
    """
    begun = [name for name in known if joint == name or joint.startswith(f"{name}_")]
    return max(begun, key=lambda name: (name in own, len(name)), default=joint)


def _has_word(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}_")
