"""Which device and dtype to compute with, decided by measurement."""

from __future__ import annotations

import ctypes
import gc
import platform
import time
from functools import cache
from typing import Literal, get_args

import torch

from unimoe.config.base import Dtype
from unimoe.errors import UsageError
from unimoe.models.matmul import matmul_nt
from unimoe.models.processor import processor_name

DeviceName = Literal["cpu", "cuda", "mps"]

# A dtype with fewer bits must pay clearly for the digits it gives up. CPUs with bfloat16 units show 3x and more; those
# without are slower than float32.
_WORTH_IT = 1.5

# (rows, inputs, outputs) of the probe: one projection of a small language model over a batch of short texts.
_PROBE_SHAPE = (2048, 576, 1536)


def choose_device(name: str | None = None) -> torch.device:
    """The device called ``name``, or the best there is: cuda, then mps, then cpu.

    Raises:
        UsageError: an unknown device, or one this machine does not have.
    """
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name is None:
        return torch.device(next(device for device, there in present.items() if there))
    if name not in get_args(DeviceName):
        raise UsageError(f"--device {name}: unknown; use cpu, cuda or mps")
    if not present[name]:
        there = ", ".join(device for device, has in present.items() if has)
        raise UsageError(f"--device {name}: not found on this machine, which has {there}")
    return torch.device(name)


def choose_dtype(device: torch.device, setting: Dtype = "auto") -> torch.dtype:
    """The dtype to compute with: as set, or bfloat16 where a probe finds it clearly faster than float32."""
    if setting != "auto":
        dtype: torch.dtype = getattr(torch, setting)
        return dtype
    speeds = probe_speed(device.type)
    return torch.bfloat16 if speeds["bfloat16"] > _WORTH_IT * speeds["float32"] else torch.float32


@cache
def probe_speed(device: str) -> dict[str, float]:
    """Matrix-product speed in FLOP/s for float32 and bfloat16, measured for a fraction of a second each."""
    return {name: _matmul_speed(torch.device(device), getattr(torch, name)) for name in ("float32", "bfloat16")}


def release_memory() -> None:
    """Give freed memory back to the system.

    The C library keeps what a training has freed, in pieces that the next arm's tensors do not fit in, so that every
    arm would add a gigabyte.
    """
    gc.collect()
    torch.cuda.empty_cache()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def describe_device(device: torch.device) -> str:
    """One line for provenance: the GPU's name, or the processor and the threads in use."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"{device.type} ({processor_name()}, {torch.get_num_threads()} threads)"


def _matmul_speed(device: torch.device, dtype: torch.dtype, seconds: float = 0.25) -> float:
    rows, inputs, outputs = _PROBE_SHAPE
    x = torch.ones(rows, inputs, device=device, dtype=dtype)
    weight = torch.ones(outputs, inputs, device=device, dtype=dtype)
    with torch.inference_mode():
        matmul_nt(x, weight)
        _synchronize(device)
        start, rounds = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            matmul_nt(x, weight)
            _synchronize(device)
            rounds += 1
        elapsed = time.perf_counter() - start
    return 2 * rows * inputs * outputs * rounds / elapsed


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
