"""The progress bar of a training that may resume an earlier run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from unimoe.core.console import Step

Fitted = TypeVar("Fitted")


def fit_with_progress(fit: Callable[[Callable[[int, Any], None]], Fitted], total: int, step: Step) -> Fitted:
    """Train, and move the progress bar past the steps that an earlier run has taken.

    Args:
        fit: trains, and calls its argument after each step with the number of steps taken and facts about the last.
        total: steps of the whole training.
        step: its progress bar moves.
    """
    taken = 0

    def on_step(number: int, _: Any) -> None:
        nonlocal taken
        step.advance(number - taken)
        taken = number

    found = fit(on_step)
    step.advance(total - taken)
    return found
