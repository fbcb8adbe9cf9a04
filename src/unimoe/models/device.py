"""Choosing a device and, by measuring its speed, a dtype; and heads in float32 on models of lower precision."""

from __future__ import annotations

import ctypes
import gc
import math
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ContextDecorator
from functools import cache
from threading import Lock
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from unimoe.config.base import Dtype
from unimoe.core.console import stderr
from unimoe.core.errors import UsageError
from unimoe.results import processor_name

DeviceName = Literal["cpu", "cuda", "mps"]

_WORTH_IT = 1.3
"""Speed-up from which bfloat16 is worth its lost digits.

Measured: 1.5 to 2.5 on a Xeon with AMX and on an EPYC of AMD's Zen 4. Another processor with avx512_bf16, without AMX,
had .57 to .68 of float32's speed: such flags tell too little, so that a probe decides.
"""

_QUIET, _LOADED = 0.75, 0.5
"""Where a process has less of its threads' time, and work waits for more of the cores, other work shares them."""

_PROBE_SHAPE, _PROBE_SECONDS = (2048, 576, 1536), 0.5
"""Rows, inputs and outputs: a projection of a small language model over a batch of short texts."""

_ATTENTION: Any = torch.backends.cuda


class _WithoutCudnnAttention(ContextDecorator):
    """Keeps torch from cuDNN's attention while a call computes, in whatever thread, and then leaves torch as it was.

    For each new shape it builds a plan, on an H200 for 150 ms, and few batches have the shape of another.
    """

    def __init__(self) -> None:
        self._lock, self._calls, self._given = Lock(), 0, True

    def __enter__(self) -> None:
        with self._lock:
            if self._calls == 0:
                self._given = _ATTENTION.cudnn_sdp_enabled()
                _ATTENTION.enable_cudnn_sdp(False)
            self._calls += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._calls -= 1
            if self._calls == 0:
                _ATTENTION.enable_cudnn_sdp(self._given)


without_cudnn_attention = _WithoutCudnnAttention()


def choose_device(name: str | None = None) -> torch.device:
    """Return the device called ``name``, or the best of this machine: cuda, then mps, then cpu."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name is None:
        return torch.device(next(device for device, there in present.items() if there))
    if name not in get_args(DeviceName):
        raise UsageError(f"--device {name}: unknown; use cpu, cuda or mps")
    if not present[name]:
        there = ", ".join(device for device, has in present.items() if has)
        raise UsageError(f"--device {name}: not found on this machine, which has {there}")
    return torch.device(name)


def choose_dtype(device: torch.device, setting: Dtype = "auto", *, trains: bool = False) -> torch.dtype:
    """Return the dtype to compute in: the setting, or the half one where a probe finds it clearly faster than float32.

    It is bfloat16, and float16 on GPUs that only emulate bfloat16 (T4, V100), except for training: small gradients
    vanish in float16.
    """
    if setting != "auto":
        dtype: torch.dtype = getattr(torch, setting)
        return dtype
    (_, whole), (half, faster) = probe_speed(device.type).items()
    if faster <= _WORTH_IT * whole or (trains and half == "float16"):
        return torch.float32
    chosen: torch.dtype = getattr(torch, half)
    return chosen


def use_threads(count: int | None) -> None:
    """Compute on a CPU with so many threads; None leaves torch's own number."""
    if count is not None:
        torch.set_num_threads(count)


def probe_speed(device: str) -> dict[str, float]:
    """Measure the speed of matrix products in FLOP/s for float32 and the half dtype of a device, for half a second.

    The two alternate, so that other work on the machine slows both alike; the median forgets the first, slow one.
    """
    return _probe(device)[0]


def other_work(device: str) -> str:
    """Say in a clause that other work slowed the probe of a CPU; empty on a quiet machine, and for a GPU.

    Threads that wait for a processor show it at once; how many wait, over a minute, tells it from threads that a
    product does not use.
    """
    share = _probe(device)[1]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if device != "cpu" or share >= _QUIET or load < _LOADED * (os.cpu_count() or 1):
        return ""
    return (
        f"measured on a busy machine: other work left {share:.0%} of the processors' time, load average {load:.1f}; "
        "measure again when it is quiet"
    )


def warn_of_other_work(device: str) -> None:
    """Say on stderr that an estimate, which is printed now, was measured beside other work."""
    if slowed := other_work(device):
        stderr.print(slowed, style="yellow", soft_wrap=True)


@cache
def _probe(device: str) -> tuple[dict[str, float], float]:
    """Return what ``probe_speed`` does, and which part of its threads' time the process had."""
    place, (rows, inputs, outputs) = torch.device(device), _PROBE_SHAPE
    x, weight = torch.ones(rows, inputs, device=place), torch.ones(outputs, inputs, device=place)
    given = {name: (x.to(getattr(torch, name)), weight.to(getattr(torch, name))) for name in ("float32", _half(device))}
    taken: dict[str, list[float]] = {name: [] for name in given}
    start, used = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        while time.perf_counter() - start < _PROBE_SECONDS:
            for name, (left, right) in given.items():
                begin = time.perf_counter()
                left @ right.T
                synchronize(place)
                taken[name].append(time.perf_counter() - begin)
    share = (time.process_time() - used) / (time.perf_counter() - start) / torch.get_num_threads()
    return {name: 2 * math.prod(_PROBE_SHAPE) / statistics.median(seconds) for name, seconds in taken.items()}, share


def _half(device: str) -> str:
    emulated = device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    return "float16" if emulated else "bfloat16"


def release_memory() -> None:
    """Return freed memory to the system: its pieces are too small for the next arm's tensors, which adds a gigabyte."""
    gc.collect()
    torch.cuda.empty_cache()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def describe_device(device: torch.device | str) -> str:
    """Return the GPU's name, or the processor and the threads in use, for provenance; a description as it is given."""
    if isinstance(device, str):
        return device
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    threads = torch.get_num_threads()
    return f"{device.type} ({processor_name()}, {threads} {'thread' if threads == 1 else 'threads'})"


def synchronize(device: torch.device) -> None:
    """Wait until a device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


class AnswerHead(nn.Module):
    """Computes the float32 logits of a few tokens, in their order, as the output layer ``head`` of a model does.

    In bfloat16 they have 8 bits, and would tie.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, head: Any, tokens: Sequence[int]) -> None:
        super().__init__()
        rows, bias = list(tokens), getattr(head, "bias", None)
        self.register_buffer("weight", head.weight[rows].detach().float())
        self.register_buffer("bias", None if bias is None else bias[rows].detach().float())

    def forward(self, states: Tensor) -> Tensor:
        """Return logits ``(..., N)`` of states ``(..., H)``."""
        return nn.functional.linear(states.float(), self.weight, self.bias)


def margin_of(values: Tensor) -> Tensor:
    """Return what the first answer has more than the second, for values ``(..., 2)``; of ``(..., 1)`` its own."""
    return values[..., 0] - values[..., 1] if values.shape[-1] == 2 else values[..., 0]


def compute_in_float32(module: nn.Module) -> None:
    """Give a module float32 weights, and cast to float32 what it is called with."""
    module.float().register_forward_pre_hook(lambda _, arguments: tuple(map(_float32, arguments)))


def _float32(value: Any) -> Any:
    if isinstance(value, Mapping):  # the features that modules of sentence-transformers pass on
        return {name: _float32(feature) for name, feature in value.items()}
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
