"""Batches that fit in memory: where one does not, smaller ones are computed from then on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from unimoe.core.errors import DataError
from unimoe.models.batching import plan_batches
from unimoe.models.device import release_memory

T = TypeVar("T")

Plan = Callable[[Sequence[list[int]], int, int | None], list[list[int]]]
"""From sequences, the tokens of a batch, and the sequences of one where they count instead, to the indices of each."""

logger = logging.getLogger(__name__)


def if_it_fits(compute: Callable[[], T]) -> T | None:
    """Return what a function computes; None where memory runs out.

    cuBLAS and cuDNN report that by errors of their own, without a class.
    """
    try:
        return compute()
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "STATUS_ALLOC_FAILED" not in str(error):
            raise
    return None  # leaving the block drops the traceback, which holds the activations


def padded_tokens(sequences: Sequence[list[int]]) -> int:
    """Return the tokens of a padded batch."""
    return len(sequences) * max(map(len, sequences))


def plan_padded(sequences: Sequence[list[int]], token_budget: int, batch_size: int | None) -> list[list[int]]:
    """Group the indices of sequences into padded batches."""
    return plan_batches([len(ids) for ids in sequences], token_budget, batch_size)


class FittingBatches:
    """Computes batches, and remembers the size of one that did not fit: all later ones have at most half of it.

    Args:
        what: one of the inputs, as in ``a text``.
        setting: the key that cuts an input.
        unit: what the size of a batch counts.

    Attributes:
        reduced: the size of a batch after memory ran out; None before.
    """

    def __init__(self, what: str, setting: str, unit: str = "tokens") -> None:
        self._what, self._setting, self._unit = what, setting, unit
        self.reduced: int | None = None

    def run(
        self,
        sequences: Sequence[list[int]],
        compute: Callable[[list[int], Any], T],
        *,
        budget: int,
        batch_size: int | None,
        plan: Plan = plan_padded,
        tokens: Callable[[Sequence[list[int]]], int] = padded_tokens,
        prepare: Callable[[list[list[int]]], Iterable[Any]] | None = None,
    ) -> Iterator[tuple[list[int], T]]:
        """Yield the indices of each batch with what is computed of it.

        Args:
            sequences: token ids.
            compute: takes the indices of a batch, and what was prepared of it.
            budget: tokens of a batch.
            batch_size: sequences of a batch, instead of the budget, until memory runs out.
            plan: groups sequences into batches.
            tokens: of one batch.
            prepare: makes of the batches what ``compute`` takes of each; None where it takes nothing.

        Raises:
            DataError: a batch of one sequence does not fit in memory.
        """
        left = list(range(len(sequences)))
        while left:
            limit, size = (min(budget, self.reduced), None) if self.reduced else (budget, batch_size)
            planned = plan([sequences[index] for index in left], limit, size)
            batches, done = [[left[index] for index in batch] for batch in planned], set[int]()
            for batch, prepared in zip(batches, prepare(batches) if prepare else [None] * len(batches), strict=True):
                members = [sequences[index] for index in batch]
                values = self.attempt(partial(compute, batch, prepared), tokens(members), len(batch))
                if values is None:
                    break
                done.update(batch)
                yield batch, values
            left = [index for index in left if index not in done]

    def attempt(self, compute: Callable[[], T], size: int, inputs: int) -> T | None:
        """Return what a function computes of a batch; None where it does not fit, after which batches are smaller.

        Args:
            compute: computes the batch.
            size: of the batch.
            inputs: how many it has.

        Raises:
            DataError: the batch has one input.
        """
        found = if_it_fits(compute)
        if found is not None:
            return found
        if inputs == 1:
            length = f" of {size} tokens" if self._unit == "tokens" else ""
            raise DataError(
                f"{self._what}{length} alone does not fit in memory; lower {self._setting}, "
                "or use a smaller model or another --device"
            )
        self.reduced = size // 2
        logger.warning("out of memory: batches of at most %d %s from now on", self.reduced, self._unit)
        release_memory()
        return None
