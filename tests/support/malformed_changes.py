"""What makes a sound folder malformed: files that are replaced, edited, or packed by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.caption_pairs import seed_arrays
from support.json_files import read_plain, write_plain

RUN = "q1 Q0 d1 1 2 t\nq1 Q0 d2 2 1 t\nq2 Q0 d1 1 3 t\n"
QRELS = "q1 0 d1 1\nq2 0 d2 1\n"
GATES = """registered: 2026-01-01
gates:
  kill: {kind: interference, task: reranking, datasets: [apidocs], metric: ndcg@10,
         specialist: rank_only_r8, joint: joint_r8}
"""
RESULT = "outputs/joint_r8/seed_1/results/reranking/apidocs.json"
LOG = "outputs/joint_r8/seed_1/logs/train.jsonl"
LONG = "x" * 300
DEEP = "[" * 100_000

SCORE = ("evaluate-run", "r.trec", "q.qrels")
JUDGE = ("analyze", "verdicts", "--output-dir", "outputs", "--gates", "gates.yaml")
ANALYZE = ("analyze", "tables", "--output-dir", "outputs")
TRAIN = ("train", "--arm", "joint_r8", "--seed", "1", "--output-dir", "trained", "--config")
RETRIEVE = (
    "retrieve", "--output-dir", "found", "--device", "cpu", "--set", "retrieval.depth=2", "--set",
    "retrieval.cutoffs=[1]",
)  # fmt: skip
TRANSLATE = ("train-translator", "--train", "pairs.npz", "--output-dir", "trained", "--device", "cpu")


Change = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """A malformed input: what to change in a sound folder, and the command that then reads it."""

    command: tuple[str, ...]
    change: Change = lambda folder: None


def file(name: str, content: str | bytes) -> Change:
    """Put this content in the place of a file."""
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

    return change


def keys(name: str, **changed: Any) -> Change:
    """Set keys of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / name
        write_plain(path, read_plain(path) | changed)

    return change


def edited(name: str, edit: Callable[[bytes], bytes]) -> Change:
    """Put what ``edit`` makes of a file's bytes in its place."""

    def change(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(edit(content))

    return change


def arrays(**changed: Any) -> Change:
    """Change arrays of the NPZ file; ``_`` in a key stands for ``/``."""
    renamed = {key.replace("_", "/", 1): value for key, value in changed.items()}

    def change(folder: Path) -> None:
        np.savez(folder / "pairs.npz", **{**seed_arrays(), **renamed})

    return change
