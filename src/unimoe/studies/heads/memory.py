"""The memory that a training step takes beside weights and data."""

from __future__ import annotations

import gc
import os
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from unimoe.studies.heads.methods import Method
from unimoe.studies.heads.pools import Batch


def step_peak_bytes(method: Method, weight: Tensor, batch: Batch) -> int:
    """Return the most that torch holds at any moment of a step beyond what it held before.

    The second step of a fresh method is measured; its state is changed. What the first step leaves (work buffers, an
    optimizer's moments) exists when the second begins, and is added. Memory that NumPy takes is not seen.
    """
    gc.collect()  # what is freed during a step would hide what the step takes
    with _profiled(weight.device) as first:
        weight, _ = method.step(weight, batch, 0)
    kept, _ = _held(first)
    with _profiled(weight.device) as second:
        method.step(weight, batch, 1)
    return kept + _held(second)[1]


def _profiled(device: torch.device) -> profile:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the library writes a line to stderr at every start and end
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler warns about its own internals
        return profile(activities=activities, profile_memory=True, acc_events=True)


def _held(profiled: profile) -> tuple[int, int]:
    """Return the bytes held at the end and the most held at any moment, both beyond the beginning."""
    recorded: Any = profiled.profiler
    events = recorded.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return max(0, held), most
