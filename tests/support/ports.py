"""Ports for processes that a test starts."""

from __future__ import annotations

import os
import random
import socket


def free_port() -> int:
    """A port that is free now and that the system gives to nobody who asks for any: another for every worker."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = range(10_000 + 1000 * worker, 11_000 + 1000 * worker)
    for port in random.sample(ports, len(ports)):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("no port is free")
