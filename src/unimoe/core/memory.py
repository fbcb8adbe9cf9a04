"""How the C library of this process keeps memory: for programs to set, and never for a library call."""

from __future__ import annotations

import ctypes
import platform


def keep_freed_memory() -> None:
    """Let the C library keep freed tensors for the next ones, in this whole process.

    By default glibc hands every new one out page by page: in bfloat16, with AMX, a layer of a small model takes
    1.3 to 1.8 times as long. The commands call this, and workers of a cluster; a program of your own may.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: bytes of the largest tensor that is kept, glibc's maximum
        library.mallopt(-1, 2**29)  # M_TRIM_THRESHOLD: bytes of free memory that go back to the system
