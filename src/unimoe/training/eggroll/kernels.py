"""Elementwise work between matrix products, compiled where that is asked for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import torch

from unimoe.errors import UsageError

COMPILERS = ("c++", "g++", "clang++")


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
