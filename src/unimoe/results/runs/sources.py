"""What a run is scored from: the judgments of a dataset, and the run's own content, from files or dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_file, hash_json
from unimoe.core.limits import name_problem, shortened
from unimoe.core.trec import Qrels, Run, read_qrels
from unimoe.data.collection_card import describe_qrels
from unimoe.metrics.scoring import checked_level, whole_grades

RunContent: TypeAlias = Path | Mapping[str, Mapping[str, float]]
QrelsContent: TypeAlias = Path | Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Judgments:
    """The judgments of one dataset."""

    dataset: str
    name: str  # as messages call the judgments: the path of a file
    qrels: Qrels
    content_hash: str
    level: int  # the lowest grade that binary measures count as relevant
    stated: int | None  # the level that the user or the file's own description states
    texts: Mapping[str, str] | None = None  # of queries; None where none are given


@dataclass(frozen=True)
class RunSource:
    """One run, which is one seed of a system on a dataset."""

    system: str
    judged: Judgments
    seed: int  # counted from 0 in the order given
    name: str  # as messages call it: the path of a file
    content: RunContent


def judgments(content: QrelsContent, dataset: str | None = None, level: int | None = None) -> Judgments:
    """Read the judgments of a dataset; its name and level are by default those stated of the file, else its stem and 1.

    Raises:
        UsageError: a level below 1.
        DataError: the file is missing, malformed or empty.
    """
    if level is not None:
        checked_level(level, "--relevance-level")
    if isinstance(content, Path):
        described = describe_qrels(content)
        qrels, name, content_hash = read_qrels(content), str(content), hash_file(content)
        dataset = dataset or described.name or Path(content.name.removesuffix(".gz")).stem
        level = level or described.relevance_level
    else:
        qrels = whole_grades(content)
        name, content_hash = f"qrels of {dataset or 'the dataset'}", hash_json(qrels)
    refuse_empty(name, qrels)
    if problem := name_problem(dataset or "dataset"):
        raise UsageError(f"a dataset cannot be named {shortened(str(dataset))!r}, which {problem}; give --dataset NAME")
    return Judgments(dataset or "dataset", name, qrels, content_hash, level or 1, level)


def refuse_empty(name: str, content: Qrels | Run) -> None:
    """Refuse a run or qrels without a line."""
    if not content:
        raise DataError(f"{name}: no line in it; there is nothing to score")
