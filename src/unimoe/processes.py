"""The processes that train or score together, as ``torchrun`` or ``accelerate launch`` starts them.

    torchrun --nproc-per-node 2 scripts/evaluate.py --checkpoint ...

Each does its share; the leader alone writes. Only numbers travel between them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from unimoe.errors import UsageError

T = TypeVar("T")

_ARRIVAL = timedelta(minutes=5)  # processes that are started together are there by then
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PATIENCE = timedelta(days=7)  # followers wait while the leader does what is not shared


@dataclass(frozen=True)
class Processes:
    """This process among those that work together.

    Attributes:
        rank: from 0; 0 leads.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of a list that all of them have: every ``size``-th item."""
        return items[self.rank :: self.size]

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of every process's ``values``, a CPU tensor of one shape and dtype, in all of them."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def each(self, value: int) -> list[int]:
        """Every process's ``value``, by rank."""
        values = torch.zeros(self.size, dtype=torch.long)
        values[self.rank] = value
        every: list[int] = self.total(values).tolist()
        return every

    def leader_says(self, answer: bool) -> bool:
        """The leader's answer, in all processes: they wait for it."""
        flag = torch.tensor([int(answer and self.leads)])
        return bool(self.total(flag))

    def leaders_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The leader's choice, in all processes: a probe of the machine may find otherwise in each."""
        places = torch.tensor([_DTYPES.index(dtype) if self.leads else 0])
        return _DTYPES[int(self.total(places))]


ALONE = Processes()


@contextmanager
def joined_processes() -> Iterator[Processes]:
    """Join the processes that ``torchrun`` has started; one process where it has not.

    Raises:
        UsageError: fewer processes answer than were announced.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        store, rank, _ = next(iter(rendezvous("env://", timeout=_ARRIVAL)))
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=_PATIENCE)
    except (ValueError, distributed.DistError) as error:
        raise UsageError(
            f"WORLD_SIZE announces {size} processes, which did not find each other ({error}); start them with torchrun"
        ) from None
    try:
        yield Processes(rank, size)
    finally:
        distributed.destroy_process_group()
