"""Threads in place of processes: what the leader and the others exchange, without starting Python again.

They compute one after the other, because a model's attention is not made for several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from unimoe.cluster.processes import Processes
from unimoe.cluster.torchrun import Torchrun, leading

_PATIENCE = 60  # seconds, after which a thread that waits in vain ends with an error


@dataclass
class Board:
    """What all threads see."""

    barrier: threading.Barrier
    message: bytes = b""
    answers: dict[int, bytes] = field(default_factory=dict)
    turn: threading.Condition = field(default_factory=threading.Condition)


@dataclass(frozen=True)
class ThreadProcesses(Processes):
    """A thread's place among those that work together."""

    board: Board = field(default_factory=lambda: Board(threading.Barrier(1)))

    def broadcast(self, message: bytes = b"") -> bytes:
        """As of processes."""
        if self.leads:
            self.board.message = message
        self.board.barrier.wait(_PATIENCE)
        found = self.board.message
        self.board.answers.clear()
        self.board.barrier.wait(_PATIENCE)
        with self.board.turn:
            assert self.board.turn.wait_for(lambda: len(self.board.answers) == self.rank, _PATIENCE)
        return found

    def gather(self, message: bytes) -> list[bytes]:
        """As of processes."""
        with self.board.turn:
            self.board.answers[self.rank] = message
            self.board.turn.notify_all()
        self.board.barrier.wait(_PATIENCE)
        found = [self.board.answers[rank] for rank in range(self.size)] if self.leads else []
        self.board.barrier.wait(_PATIENCE)
        return found


@contextmanager
def threads(size: int, serve: Callable[[Processes], None]) -> Iterator[Torchrun]:
    """Let others serve in threads, and yield the workers as the leader sees them; all have ended after the block."""
    board = Board(threading.Barrier(size))
    others = [threading.Thread(target=serve, args=(ThreadProcesses(rank, size, board),)) for rank in range(1, size)]
    for thread in others:
        thread.start()
    leader = ThreadProcesses(0, size, board)
    try:
        with leading(leader):
            yield Torchrun(leader)
    finally:
        for thread in others:
            thread.join(_PATIENCE)
        assert not any(thread.is_alive() for thread in others)
