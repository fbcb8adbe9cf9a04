"""The processes that train together, started by ``torchrun`` or ``accelerate launch``.

    torchrun --nproc-per-node 2 scripts/train.py --arm ...

Each does its share; only the leader writes. They exchange only numbers, never pickled objects.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from unimoe.core.errors import UsageError

T = TypeVar("T")

_ARRIVAL = timedelta(minutes=5)  # enough for processes that are started together
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PATIENCE = timedelta(days=7)  # the others wait while the leader works alone


@dataclass(frozen=True)
class Processes:
    """This process's place among those that work together: its rank, 0 for the leader, and their number."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the leader, which writes."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return this process's part of a list that all have: every ``size``-th item."""
        return items[self.rank :: self.size]

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum over all processes of ``values``, CPU tensors of one shape and dtype."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            distributed.barrier()

    def leaders_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """Return the leader's dtype: a probe of the machine may choose another in each process."""
        places = torch.tensor([_DTYPES.index(dtype) if self.leads else 0])
        return _DTYPES[int(self.total(places))]


ALONE = Processes()


@contextmanager
def joined_processes() -> Iterator[Processes]:
    """Join the processes that ``torchrun`` has started; without it, this process is alone.

    accelerate's ``PartialState`` does no more, with one timeout for the meeting of processes and for their waits.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    # Its functions' defaults would keep the group that they find when a library imports them later: the group's threads
    # would outlive it, and one that frees a tensor while Python exits aborts the process (pytorch#190489).
    importlib.import_module("torch.distributed.nn.functional")
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
