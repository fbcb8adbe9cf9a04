"""A worker of a cluster: holds one model at a time, computes units with it, and keeps what is finished in the store.

Work comes in parts that are JSON values, and replies travel as bytes. A part depends on nothing but the model and
itself, so that the results are the same wherever it is computed.
"""

from __future__ import annotations

import copy
import importlib
import json
import platform
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from unimoe.cluster.units import UnitStore
from unimoe.core.io import hash_json
from unimoe.core.memory import keep_freed_memory
from unimoe.models.device import choose_device, choose_dtype, describe_device
from unimoe.results import package_versions

Part = dict[str, Any]
"""Work that one worker does."""

Compute = Callable[[Part], Any]
"""What a worker makes of a part: an array, or JSON values."""

Recipe = Mapping[str, Any]
"""How a worker makes a model, as JSON values; ``maker`` is the function that does."""

PROBE = "probe"
"""The object by which a worker sees that it reaches the driver's store; its scope has the same name."""

VERSIONS = ("unimoe", "torch", "transformers", "peft", "numpy")
"""Packages that must be the same everywhere, because they change scores."""


class Worker:
    """Computes units; ``store`` is the URL of the store, ``device`` is as ``--device``."""

    def __init__(self, store: str, device: str | None, threads: int) -> None:
        torch.set_num_threads(threads)
        keep_freed_memory()
        self._store, self._device = UnitStore(store), choose_device(device)
        self._loaded: str | None = None
        self._jobs: Mapping[str, Compute] = {}

    def facts(self) -> dict[str, Any]:
        """Return what the driver must know before it uses this worker, as JSON values."""
        versions = package_versions()
        return {
            "machine": platform.node(),
            "device": describe_device(self._device),
            "dtype": str(choose_dtype(self._device, trains=True)).removeprefix("torch."),
            "versions": {name: versions[name] for name in VERSIONS},
            "sees_store": self._store.read(PROBE, PROBE) is not None,
        }

    def compute(self, recipe: Recipe, job: str, part: Part, unit: tuple[str, str] | None) -> bytes | Exception:
        """Compute a part by a job of a model, and keep it in the store before anyone hears of it.

        ``unit`` is its scope and key there, None for a reply that is not kept. An error of the work is returned and not
        raised, because Ray raises for its own reasons: a worker that died.
        """
        try:
            reply = packed(self._jobs_of(recipe)[job](dict(part)))
            if unit:
                self._store.write(*unit, reply)
            return reply
        except Exception as error:
            error.add_note(f"in {platform.node()}:\n{''.join(traceback.format_exception(error))}")
            return _sendable(error)

    def _jobs_of(self, recipe: Recipe) -> Mapping[str, Compute]:
        """Return the jobs of a recipe; the model of the one before is let go first."""
        name = hash_json(recipe)
        if self._loaded != name:
            self._loaded, self._jobs = None, {}
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            module, _, maker = recipe["maker"].partition(":")
            make: Callable[..., Mapping[str, Compute]] = getattr(importlib.import_module(module), maker)
            self._jobs = make(json.loads(json.dumps(recipe)), self._device, self._store)
            self._loaded = name
        return self._jobs


def _sendable(error: Exception) -> Exception:
    """Return an error that arrives: itself, or its words where pickle cannot make it again."""
    try:
        copy.deepcopy(error)
    except Exception:  # whatever its class does when it is made again
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def packed(value: Any) -> bytes:
    """Return what a job made as bytes: a line of JSON, and the numbers of an array."""
    if not isinstance(value, np.ndarray):
        return json.dumps({"value": value}).encode() + b"\n"
    header = {"dtype": value.dtype.str, "shape": value.shape}
    return json.dumps(header).encode() + b"\n" + np.ascontiguousarray(value).tobytes()


def unpacked(reply: bytes) -> Any:
    """Return what a job made; arrays can be written to."""
    header, _, numbers = reply.partition(b"\n")
    content = json.loads(header)
    if "value" in content:
        return content["value"]
    return np.frombuffer(numbers, dtype=content["dtype"]).reshape(content["shape"]).copy()
