"""Evolution first, gradients after: does a warm-up without gradients find a better place to start from?"""

from __future__ import annotations

from torch import Tensor

from unimoe.studies.heads.methods import Method
from unimoe.studies.heads.pools import Batch


class Hybrid:
    """Hands a head over from one method to another.

    The second method starts afresh, without moments of the first. When to hand over is a setting like any other, to be
    chosen on dev.

    Args:
        first: takes the steps before ``handoff``.
        second: takes those from ``handoff`` on.
        handoff: the first step, counted from 0, that the second takes.
    """

    def __init__(self, first: Method, second: Method, handoff: int) -> None:
        self._first, self._second, self._handoff = first, second, handoff

    def step(self, weight: Tensor, batch: Batch, step: int) -> tuple[Tensor, dict[str, float]]:
        """The step of whose turn it is; see ``Method``."""
        return (self._first if step < self._handoff else self._second).step(weight, batch, step)

    def state(self) -> dict[str, Tensor]:
        """The state of both."""
        parts = {"first": self._first.state(), "second": self._second.state()}
        return {f"{part}.{name}": value for part, state in parts.items() for name, value in state.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Give each its own back."""
        for part, method in (("first.", self._first), ("second.", self._second)):
            method.load_state({name.removeprefix(part): t for name, t in state.items() if name.startswith(part)})
