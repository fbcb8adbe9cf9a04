"""The config of rerankers that write: those that order a list, and those that think before they score."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from unimoe.config.base import Count, Section, checked
from unimoe.core.registry import Registry

LIST_PROMPTS: Registry[Any] = Registry("prompt of lists", "unimoe.models.prompts", "unimoe.prompts")
"""Functions by name; see ``models.prompts.lists.ListPrompt``."""


class ListReading(NamedTuple):
    """How a list is read: documents of a window, the documents that the next one is further up, and passes."""

    window: int
    step: int
    passes: int


_READINGS = {
    "permutation": ListReading(20, 10, 1),
    "setwise": ListReading(4, 3, 10),
    "pairwise": ListReading(2, 1, 10),
}
"""As published: RankGPT's windows; three documents beside the best so far, and two, for the first ten places."""


class ListwiseConfig(Section):
    """How ``listwise:`` models order the candidates of a query, and ``reasoning:`` models think.

    Attributes:
        way: what a window is asked for: all its documents in order (``permutation``), the best one (``setwise``), or
            the better of two, asked in both orders (``pairwise``).
        window: documents that the model sees together, from the end of the list upwards; a number from
            ``evaluation.depth`` on is one pass over the whole list. Null for 20, 4 and 2.
        step: documents from a window to the next one; null for half a window, and one less than it for ``setwise``.
        passes: how often the windows go through the list; null for 1, and 10 for ``setwise`` and ``pairwise``, where
            each pass settles the next place.
        template: the prompt of permutations: ``rankzephyr``, one message, or ``rankgpt``, a conversation.
        words: of a document that the model sees, fewer where the window would not fit into the model.
        thought: tokens that the model may think before it answers; null for none in lists, and 1024 with
            ``reasoning:``.
        answer: how ``reasoning:`` scores after the thought: the ``margin`` of the prompt's answers, or the stated
            ``grade`` from 0 to 3, which a model behind a server needs.
    """

    way: Literal["permutation", "setwise", "pairwise"] = "permutation"
    window: Annotated[int, Field(ge=2)] | None = None
    step: Count | None = None
    passes: Count | None = None
    template: Annotated[str, checked(LIST_PROMPTS.checked)] = "rankzephyr"
    words: Count = 300
    thought: Annotated[int, Field(ge=0)] | None = None
    answer: Literal["margin", "grade"] = "margin"

    @model_validator(mode="after")
    def _leaves_nothing_out(self) -> ListwiseConfig:
        window, step, _ = self.reading
        if step > window - (self.way != "permutation"):
            raise ValueError(f"step {step} leaves out documents between windows of {window}; lower it")
        if self.way == "pairwise" and window != 2:
            raise ValueError(f"window {window}: pairwise compares 2 documents; leave it out, or take way setwise")
        return self

    @property
    def reading(self) -> ListReading:
        """Windows, step and passes, those of the way where none are set."""
        usual = _READINGS[self.way]
        window = self.window or usual.window
        step = self.step or (max(1, window // 2) if self.way == "permutation" else window - 1)
        return ListReading(window, step, self.passes or usual.passes)
