"""Loops over numpy arrays as machine code, for work between matrix products on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def machine_code(function: F) -> F:
    """Compile a function of numpy arrays when it is first called, and keep the code for other processes.

    Sums and products are not contracted, so that equal numbers give equal scores.
    """
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # neither the package's folder nor the user's cache can be written to
        return cast(F, numba.njit(nogil=True)(function))


def takes_machine_code(tensor: Tensor) -> bool:
    """Return whether ``machine_code`` can work on a tensor: numpy knows its dtype, and it is on the CPU."""
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)
