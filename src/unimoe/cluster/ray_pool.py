"""Workers on a Ray cluster: one actor for each GPU, or for some CPUs."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from unimoe.cluster.dispatch import Arrived, Event, Lost, Replied, Seat
from unimoe.cluster.schedule import Unit
from unimoe.core.errors import UsageError

_ANSWER = 10.0
"""Seconds in which a cluster's head must accept a connection."""

_LOOK = 1.0
"""Seconds between two looks at the machines of the cluster."""

_TOKENS = 1024
"""Units whose token ids stay in the cluster's memory."""

_DOUBT = 10.0
"""Seconds in which a lost machine shows in Ray's list; a worker whose machine is still there after them crashed."""

_PASSED_ON = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_VERBOSITY", "HF_HUB_OFFLINE")
"""Settings of libraries that workers take from the driver's environment."""


@dataclass(frozen=True)
class Hire:
    """How workers are made.

    Attributes:
        store: URL of the store.
        device: as ``--device``.
        threads: of a worker on CPUs.
        most: workers; None for as many as the cluster has room for.
    """

    store: str
    device: str | None
    threads: int
    most: int | None = None


@dataclass(frozen=True)
class _Doubt:
    """A lost worker, until it is known whether its machine is lost."""

    seat: Seat
    unit: Unit | None
    reason: str
    until: float


class RayPool:
    """The actors of a driver.

    Args:
        address: of the cluster: ``auto``, ``HOST:PORT``; None starts Ray on this machine alone.
        hire: how workers are made.

    Raises:
        UsageError: ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, address: str | None, hire: Hire) -> None:
        self._ray, self._hire = _connected(address), hire
        self._actor = self._ray.remote(max_restarts=0, max_task_retries=0)(_actor_class())
        self._coming: dict[Any, Any] = {}  # reference of its facts -> actor
        self._working: dict[Any, tuple[Seat, Unit]] = {}
        self._made: dict[Any, Any] = {}  # reference of a reply -> that of token ids, which stay where they were made
        self._tokens: OrderedDict[str, Any] = OrderedDict()
        self._doubts: list[_Doubt] = []
        self._looked, self._alive = 0.0, set[str]()
        self._actors = 0

    def start(self, seat: Seat, unit: Unit) -> None:
        """Let a worker compute a unit."""
        shared = [unit.shared] if unit.shared is not None else []  # in a list: the worker fetches it when it must
        known = self._tokens.get(unit.order["part"].get("tokens"))
        reply, made = seat.handle.compute.options(num_returns=2).remote(
            unit.order, shared, [] if known is None else [known]
        )
        self._working[reply] = (seat, unit)
        if known is None:
            self._made[reply] = made

    def share(self, value: Any) -> Any:
        """Put a value into the cluster's memory, whence it travels once to each machine; return its handle."""
        return self._ray.put(value)

    def wait(self, seconds: float) -> list[Event]:
        """Return what happened, as soon as something did or the time is over."""
        if time.monotonic() - self._looked > _LOOK:
            self._look()
        waited = [*self._coming, *self._working]
        events = self._settled()
        if not waited:
            return events
        done, left = self._ray.wait(waited, num_returns=1, timeout=0 if events else seconds)
        if done and left:
            done += self._ray.wait(left, num_returns=len(left), timeout=0)[0]
        for reference in done:
            events += self._arrived(reference) if reference in self._coming else self._replied(reference)
        return events

    def close(self) -> None:
        """Let all workers go."""
        self._ray.shutdown()

    def _look(self) -> None:
        """Find out which machines live, and hire where there is room."""
        self._looked = time.monotonic()
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        self._alive = {node["NodeID"] for node in nodes}
        gpus = self._on_gpus(nodes)
        room = sum(int(node["Resources"].get("GPU" if gpus else "CPU", 0) // self._share(gpus)) for node in nodes)
        wanted = room if self._hire.most is None else min(room, self._hire.most)
        options = {"num_gpus": 1} if gpus else {"num_cpus": self._hire.threads}
        for _ in range(wanted - self._actors):
            hire = self._hire
            actor = self._actor.options(**options).remote(hire.store, hire.device, hire.threads)
            self._coming[actor.facts.remote()] = actor
            self._actors += 1

    def _on_gpus(self, nodes: list[Mapping[str, Any]]) -> bool:
        wanted = self._hire.device
        return wanted == "cuda" or (wanted is None and any(node["Resources"].get("GPU") for node in nodes))

    def _share(self, gpus: bool) -> int:
        return 1 if gpus else self._hire.threads

    def _arrived(self, reference: Any) -> list[Event]:
        actor = self._coming.pop(reference)
        try:
            facts = self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            self._actors -= 1
            if error.actor_init_failed:
                raise UsageError(f"a worker could not start: {_last_line(error)}") from None
            return []  # its machine went as it came
        return [Arrived(Seat(actor, facts))]

    def _replied(self, reference: Any) -> list[Event]:
        seat, unit = self._working.pop(reference)
        made = self._made.pop(reference, None)
        try:
            reply = self._ray.get(reference)
            self._keep(unit.order["part"].get("tokens"), made)
            return [Replied(seat, unit, reply)]
        except self._ray.exceptions.RayError as error:
            self._actors -= 1
            reason = _last_line(error)
            if getattr(error, "preempted", False):
                return [Lost(seat, unit, False, reason)]
            self._doubts.append(_Doubt(seat, unit, reason, time.monotonic() + _DOUBT))
            return []

    def _keep(self, tokens: str | None, made: Any) -> None:
        """Keep token ids in the cluster's memory, for other checkpoints with the same tokenizer and prompt."""
        if tokens is not None and made is not None:
            self._tokens[tokens] = made
            if len(self._tokens) > _TOKENS:
                self._tokens.popitem(last=False)

    def _settled(self) -> list[Event]:
        """Return the lost workers of which it is known by now whether their machine is lost."""
        events: list[Event] = []
        for doubt in list(self._doubts):
            gone = doubt.seat.facts["node"] not in self._alive
            if doubt.unit and (gone or time.monotonic() > doubt.until):
                self._doubts.remove(doubt)
                events.append(Lost(doubt.seat, doubt.unit, not gone, doubt.reason))
        return events


def _connected(address: str | None) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Below `uv run`, Ray would send the current folder to the workers and run a copy of it with packages of its own.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    try:
        import ray
    except ImportError:
        raise UsageError("--engine ray needs Ray; install unimoe[cluster]") from None
    _refuse_silence(address)
    options: dict[str, Any] = {} if address else {"include_dashboard": False}
    options["runtime_env"] = {"env_vars": {name: os.environ[name] for name in _PASSED_ON if name in os.environ}}
    try:
        with _own_sigterm():
            ray.init(
                address=address or "local",  # None would join a cluster that somebody else has started here
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace="unimoe",
                **options,
            )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise _no_cluster(address, error) from None
    return ray


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces by one that ends with 15 and prints a stack."""
    before = signal.getsignal(signal.SIGTERM)
    came = False
    try:
        yield
    except SystemExit as end:
        if end.code != signal.SIGTERM:
            raise
        came = True
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
    if came:
        signal.raise_signal(signal.SIGTERM)


def _refuse_silence(address: str | None) -> None:
    """Refuse an address where nobody listens; Ray would try for minutes.

    Raises:
        UsageError: nobody does.
    """
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from None


def _no_cluster(address: str | None, error: Exception) -> UsageError:
    return UsageError(
        f"--address {address}: no Ray cluster answers ({' '.join(str(error).split())[:200]}); start one with "
        "`ray start --head`, or leave --address out for this machine alone"
    )


def _actor_class() -> type:
    """Return the class of the actors; the worker is imported where it runs."""
    import ray

    class Actor:
        def __init__(self, store: str, device: str | None, threads: int) -> None:
            from unimoe.cluster.worker import Worker

            self._worker = Worker(store, device, threads)

        def facts(self) -> dict[str, Any]:
            return {**self._worker.facts(), "node": ray.get_runtime_context().get_node_id()}

        def compute(self, order: Mapping[str, Any], shared: list[Any], tokens: list[Any]) -> tuple[bytes, Any]:
            def fetched() -> Any:
                try:
                    return ray.get(tokens[0])
                except ray.exceptions.RayError:  # the machine that made them is lost
                    return None

            texts = (lambda: ray.get(shared[0])) if shared else None
            return self._worker.compute(order, texts, fetched if tokens else None)

    return Actor


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
