"""The memory of this process, as the kernel counts it; for the scripts beside this one."""

from __future__ import annotations

from pathlib import Path


def memory_mib(which: str) -> float:
    """``VmRSS``, what this process holds, or ``VmHWM``, the most it held since ``forget_peak``."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{which}:"))


def forget_peak() -> None:
    """Let ``VmHWM`` start again."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
