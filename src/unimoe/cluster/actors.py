"""Ray's part: a cluster, and an actor on each GPU or on some CPUs, which Ray starts again where it died."""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from unimoe.cluster.worker import Worker
from unimoe.core.advice import install_extra
from unimoe.core.errors import UsageError

_ANSWER = 10.0
"""Seconds in which a cluster's head must accept a connection."""

_PASSED_ON = (
    *("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "TOKENIZERS_PARALLELISM", "TRANSFORMERS_VERBOSITY", "HF_HUB_OFFLINE"),
    "KINETO_LOG_LEVEL",
)
"""Settings of libraries that workers take from the driver's environment."""


class WorkerLostError(Exception):
    """A worker's process or machine died while it computed."""


class RayActors:
    """The actors of a driver on the cluster ``auto`` or ``HOST:PORT``; None starts Ray on this machine alone.

    There are ``most`` of them, or as many as the cluster has room for; the other arguments are those of ``Worker``.
    """

    def __init__(
        self, address: str | None, store: str, device: str | None, threads: int, most: int | None = None
    ) -> None:
        self._ray, self._most = _connected(address), most
        self._store, self._device, self._threads = store, device, threads
        runtime = self._ray.get_runtime_context

        class Actor(Worker):
            def facts(self) -> dict[str, Any]:
                return {**super().facts(), "node": runtime().get_node_id()}

        # Ray starts a dead actor again wherever there is room, now or once a machine joins; calls wait for it.
        self._actor = self._ray.remote(max_restarts=-1, max_task_retries=-1)(Actor)

    def nodes(self) -> set[str]:
        """Return the ids of the machines that live; Ray needs some seconds to miss one."""
        return {node["NodeID"] for node in self._alive()}

    def room(self) -> int:
        """Return how many workers the cluster has room for, those that it has included."""
        kind, share = ("GPU", 1) if self._on_gpus() else ("CPU", self._threads)
        room = sum(int(node["Resources"].get(kind, 0) // share) for node in self._alive())
        return room if self._most is None else min(room, self._most)

    def hire(self) -> Any:
        """Return a new actor, which starts when there is room."""
        share = {"num_gpus": 1} if self._on_gpus() else {"num_cpus": self._threads}
        with _in_one_line("Ray makes no worker"):
            return self._actor.options(**share).remote(self._store, self._device, self._threads)

    def facts(self, actor: Any) -> dict[str, Any]:
        """Return an actor's facts, which it says once it is started, or started again."""
        facts: dict[str, Any] = self._reply(actor.facts.remote())
        return facts

    def compute(self, actor: Any, order: Sequence[Any]) -> bytes | Exception:
        """Let an actor compute a unit; ``order`` are the arguments of ``Worker.compute``.

        Ray would try a lost unit again on its own actor: its machine may never come back. So no try follows here, and
        the driver gives the unit to the next free actor.
        """
        reply: bytes | Exception = self._reply(actor.compute.options(max_task_retries=0).remote(*order))
        return reply

    def _reply(self, call: Any) -> Any:
        """Wait for what a call returns; a ``WorkerLostError`` says that the worker died."""
        try:
            return call.future().result()
        except self._ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            reason = lines[-1][:300] if lines else type(error).__name__
            own = isinstance(error, self._ray.exceptions.RayTaskError)  # raised by our code, which it is not meant to
            if own or getattr(error, "actor_init_failed", False):
                raise UsageError(f"a worker could not start: {reason}") from None
            raise WorkerLostError(reason) from None

    def close(self) -> None:
        """Let all actors go."""
        self._ray.shutdown()

    def _alive(self) -> list[dict[str, Any]]:
        with _in_one_line("Ray's cluster does not answer"):
            return [node for node in self._ray.nodes() if node["Alive"]]

    def _on_gpus(self) -> bool:
        with _in_one_line("Ray's cluster does not answer"):
            return self._device == "cuda" or (not self._device and self._ray.cluster_resources().get("GPU", 0) > 0)


def _connected(address: str | None) -> Any:
    """Start or join a cluster, and return the module ``ray``."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # no call after the end starts a cluster
    # Below `uv run`, Ray would send the current folder to the workers and run a copy of it with packages of its own.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    try:
        import ray
    except ImportError:
        raise UsageError(f"--engine ray needs Ray: {install_extra('cluster')}") from None
    options: dict[str, Any] = {} if address else {"include_dashboard": False}
    options["runtime_env"] = {"env_vars": {name: os.environ[name] for name in _PASSED_ON if name in os.environ}}
    host, _, port = (address or "").rpartition(":")
    where = f"--address {address}: no Ray cluster answers" if address else "Ray does not start on this machine"
    remedy = (
        "start one with `ray start --head`, or leave --address out for this machine alone"
        if address
        else "end what an earlier run left with `ray stop --force`, free memory and room in /tmp, or leave --engine out"
    )
    own, began = signal.getsignal(signal.SIGTERM), not ray.is_initialized()
    try:
        if host and port.isdecimal() and "/" not in host:  # where nobody listens, Ray would try for minutes
            socket.create_connection((host, int(port)), timeout=_ANSWER).close()
        with _in_one_line(where, remedy):
            ray.init(
                address=address or "local",  # None would join a cluster that somebody else has started here
                log_to_driver=False,
                logging_level=logging.ERROR,
                namespace="unimoe",
                **options,
            )
    except (OSError, OverflowError) as error:
        raise UsageError(f"{where} ({_line_of(error)}); {remedy}") from None
    except UsageError:
        if began:
            with suppress(Exception):  # what did start
                ray.shutdown()
        raise
    finally:
        with suppress(ValueError, TypeError):  # in a thread of a program, which cannot set one; of no Python's
            signal.signal(signal.SIGTERM, own)  # Ray's ends with 15 and prints a stack
    return ray


@contextmanager
def _in_one_line(where: str, remedy: str = "look at Ray's logs in /tmp/ray, and run again") -> Iterator[None]:
    """Turn errors of Ray, plain ``Exception`` among them, into a ``UsageError``; workers keep what is finished."""
    try:
        yield
    except Exception as error:
        raise UsageError(f"{where} ({_line_of(error)}); {remedy}") from None


def _line_of(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
