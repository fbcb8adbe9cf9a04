"""Processes that score together: each its share, sums in all of them, and none waited for in vain."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta

import pytest
import torch
from support.ports import free_port
from torch import distributed

from unimoe.cluster import processes
from unimoe.cluster.processes import Processes, joined_processes
from unimoe.core.errors import UsageError

# Two processes, as torchrun would start them; forked, so that torch is imported once. Each prints what it got, and
# how many threads of the group are left. Libraries that are imported meanwhile may keep what they find of it.
TOGETHER = """
import json, os, time, torch
from contextlib import suppress
from pathlib import Path
from unimoe.cluster.processes import joined_processes

def threads():
    names = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            names.append((thread / "comm").read_text())
    return sum("gloo" in name for name in names)

os.environ["RANK"] = "1" if os.fork() == 0 else "0"
with joined_processes() as here:
    import peft, sentence_transformers, torch.distributed.nn.functional
    gaps = torch.zeros(3)
    gaps[here.rank] = 0.1 + here.rank
    total = here.total(gaps).tolist()
    here.wait()
    dtype = here.leaders_dtype(torch.bfloat16 if here.leads else torch.float32)
    before = threads()
deadline = time.monotonic() + 20  # the system forgets a thread a moment after it has been joined
while threads() and time.monotonic() < deadline:
    time.sleep(0.01)
found = json.dumps([here.rank, here.size, here.leads, total, str(dtype), before > 0, threads()])
os.write(1, f"{found}\\n".encode())
"""


def announced(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """The environment that torchrun gives to the first of ``size`` processes."""
    values = {"WORLD_SIZE": size, "RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


def test_every_item_belongs_to_one_process() -> None:
    shares = [Processes(rank, 3).share(range(7)) for rank in range(3)]
    assert sorted(item for share in shares for item in share) == list(range(7))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads the threads of a process from /proc")
def test_two_processes_sum_and_follow_the_leader_and_no_thread_outlives_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    announced(monkeypatch, 2)
    done = subprocess.run([sys.executable, "-c", TOGETHER], capture_output=True, text=True, timeout=600, check=True)
    total = torch.tensor([0.1, 1.1, 0.0]).tolist()
    assert sorted(map(json.loads, done.stdout.splitlines())) == [
        [rank, 2, rank == 0, total, "torch.bfloat16", True, 0] for rank in (0, 1)
    ]


def test_fewer_than_announced_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    announced(monkeypatch, 2)
    monkeypatch.setattr(processes, "_ARRIVAL", timedelta(seconds=5))
    refusal = r"announces 2 processes, .* 1/2 clients joined.* start them with torchrun"
    with pytest.raises(UsageError, match=refusal), joined_processes():
        pass
    assert not distributed.is_initialized()
