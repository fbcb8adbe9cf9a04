"""A worker of a cluster: holds one model at a time, computes units with it, and keeps what is finished in the store."""

from __future__ import annotations

import importlib
import json
import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch

from unimoe.cluster.units import UnitStore
from unimoe.cluster.work import Compute, packed, packed_error
from unimoe.core.io import hash_json
from unimoe.models.device import choose_device, choose_dtype, describe_device
from unimoe.results.provenance import package_versions

_SHARED = 2
"""Sets of texts that a worker keeps at hand."""

PROBE = "probe"
"""The object by which a worker sees that it reaches the driver's store; its scope has the same name."""

VERSIONS = ("unimoe", "torch", "transformers", "peft", "numpy")
"""Packages that must be the same everywhere, because they change scores."""


class Worker:
    """Computes units.

    Args:
        store: URL of the store.
        device: as ``--device``; None for the best of this machine.
        threads: of a CPU.
    """

    def __init__(self, store: str, device: str | None, threads: int) -> None:
        torch.set_num_threads(threads)
        self._store, self._device = UnitStore(store), choose_device(device)
        self._jobs: tuple[str, Mapping[str, Compute]] = ("", {})
        self._shared: dict[str, Any] = {}

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

    def compute(
        self,
        order: Mapping[str, Any],
        shared: Callable[[], Any] | None = None,
        tokens: Callable[[], Any] | None = None,
    ) -> tuple[bytes, Any]:
        """Compute a unit and return what was made of it, or the error, as bytes; and token ids that others can use.

        Args:
            order: ``recipe`` of the model, ``job`` and ``part``; ``unit`` is its place in the store, and ``shared`` the
                hash of the texts that it reads, or None.
            shared: fetches these texts.
            tokens: fetches the token ids of the part, if another worker has made them; returns None if they are lost.
        """
        try:
            part = dict(order["part"])
            if shared:
                part["shared"] = self._at_hand(order["shared"], shared)
            if tokens:
                part["prepared"] = tokens()
            reply = packed(self._jobs_of(order["recipe"])[order["job"]](part))
            if order["unit"]:
                scope, key = order["unit"]
                self._store.write(scope, key, reply)
            return reply, part.get("made")
        except Exception as error:  # of whatever kind, the driver waits for the reply
            return packed_error(error, platform.node()), None

    def _jobs_of(self, recipe: Mapping[str, Any]) -> Mapping[str, Compute]:
        """Return the jobs of a recipe; the model of the one before is let go first."""
        name = hash_json(recipe)
        if self._jobs[0] != name:
            self._jobs = ("", {})
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            module, _, maker = recipe["maker"].partition(":")
            make: Callable[..., Mapping[str, Compute]] = getattr(importlib.import_module(module), maker)
            self._jobs = (name, make(json.loads(json.dumps(recipe)), self._device, self._store))
        return self._jobs[1]

    def _at_hand(self, content: str, fetch: Callable[[], Any]) -> Any:
        if content not in self._shared:
            while len(self._shared) >= _SHARED:
                del self._shared[next(iter(self._shared))]
            self._shared[content] = fetch()
        return self._shared[content]
