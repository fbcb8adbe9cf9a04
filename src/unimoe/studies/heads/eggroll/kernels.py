"""Elementwise work between matrix products: as machine code on a CPU, compiled by torch elsewhere if asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import torch
from torch import Tensor

from unimoe.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

COMPILERS = ("c++", "g++", "clang++")


def machine_code(function: F) -> F:
    """A function of numpy arrays as code for this processor, made when it is first called and kept for other processes.

    numba brings its own compiler. Sums and products are not contracted, so that equal numbers give equal scores.
    """
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # neither the package's folder nor the user's cache can be written to
        return cast(F, numba.njit(nogil=True)(function))


def takes_machine_code(tensor: Tensor) -> bool:
    """Whether a tensor can be given to ``machine_code``: one of numpy's numbers, on the CPU."""
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)


def can_compile() -> bool:
    """Whether this machine has what torch.compile needs: a C++ compiler for the CPU, or a GPU."""
    return torch.cuda.is_available() or any(map(shutil.which, COMPILERS))


def kernel(function: Callable[..., Any], compiled: bool, *, sizes_vary: bool = False) -> Callable[..., Any]:
    """The function itself, or compiled: the same values but for the last bits.

    Args:
        function: of tensors.
        compiled: compile it when it is called first.
        sizes_vary: compile once more, for any size, where one differs from the first call's; else for every size.

    Raises:
        UsageError: there is nothing to compile with.
    """
    if not compiled:
        return function
    if not can_compile():
        raise UsageError(f"compile: no C++ compiler ({', '.join(COMPILERS)}) found; install one or leave compile out")
    return torch.compile(function, dynamic=None if sizes_vary else False)
