"""What is compared: the judgments of datasets, the runs of systems, and how these are scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import Field

from unimoe.checks import Check
from unimoe.core.errors import DataError, UsageError, did_you_mean, first_few, some_ids
from unimoe.core.io import Strict, hash_file, hash_json, read_json
from unimoe.core.limits import name_problem, shortened
from unimoe.core.trec import Grades, Subtopics
from unimoe.data.collection import describe_qrels
from unimoe.data.sources.beir_layout import split_files
from unimoe.formats.qrels import load_qrels, read_subtopics
from unimoe.formats.runs import load_run
from unimoe.metrics import MetricLike, canonical_metrics, parse_metric
from unimoe.metrics.scoring import checked_level
from unimoe.results.topics import SEPARATE, SHARED

RunContent: TypeAlias = Any  # a path, or whatever of Python ``read_run`` takes
QrelsContent: TypeAlias = Any  # a path, or whatever of Python ``read_qrels`` takes

# The help of ``compare --allow`` says what each means.
ALLOWANCES = ("queries", "zeros", "depth", "duplicates", "ranks")


@dataclass(frozen=True)
class JudgedDataset:
    """One dataset as its judgments."""

    dataset: str
    name: str  # as messages call the judgments: the path of a file
    qrels: Grades
    content_hash: str
    level: int  # the lowest grade that binary measures count as relevant
    stated: int | None  # the level that the user or the file's own description states
    texts: Mapping[str, str] | None = None  # of queries; None where none are given
    subtopics: Subtopics | None = None  # where a metric needs them and the file names them
    metric: str | None = None  # the main metric here, where the comparison's is not
    predicted: JudgedDataset | None = None  # a model's judgments of more queries, these among them
    checks: tuple[Check, ...] = ()  # what is known of the judgments

    def with_predicted(self, content: QrelsContent, metrics: Sequence[MetricLike] = ()) -> JudgedDataset:
        """Return the same with a model's judgments, as ``predicted_by`` reads them."""
        return replace(self, predicted=self.predicted_by(content, metrics))

    def predicted_by(self, content: QrelsContent, metrics: Sequence[MetricLike] = ()) -> JudgedDataset:
        """Read a model's judgments, which must cover these queries and others: else a DataError."""
        read = judgments(content, self.dataset, None, metrics)
        name = read.name if isinstance(content, Path) else f"predicted {read.name}"
        model = replace(read, name=name, level=read.stated or self.level)  # a model's grades have a scale of their own
        if lacking := [query for query in self.qrels if query not in model.qrels]:
            raise DataError(
                f"{model.name}: no judgments of {some_ids(lacking)}, which {self.name} judges; the model must judge "
                "them too, which shows how it errs"
            )
        if len(model.qrels) == len(self.qrels):
            raise DataError(f"{model.name}: judges no query that {self.name} does not; leave it out, or judge more")
        if len(self.qrels) < 2:
            raise DataError(f"{self.name}: judges one query; two or more must show how the model errs")
        return model


@dataclass(frozen=True)
class RunSource:
    """One run, which is one seed of a system on a dataset."""

    system: str
    judged: JudgedDataset
    seed: int | None  # counted from 0 in the order given; None of a system that is not one of many trainings
    name: str  # as messages call it: the path of a file
    content: RunContent


@dataclass(frozen=True)
class Scoring:
    """How the runs of a comparison are scored; a UsageError where metrics, allowances or depth make no sense."""

    metrics: tuple[str, ...]  # those asked for, in any spelling; the first is the main metric
    others: tuple[str, ...] = ()  # shown too where the rankings of all runs are deep enough
    depth: int | None = None  # score only this many documents of each query
    allow: tuple[str, ...] = ()  # what would be refused otherwise, of ``ALLOWANCES``
    paired: bool = False  # whether run i of all systems shares data order and initial weights
    pool_runs: bool = False  # whether the runs of all systems, of one recipe, share one variance
    topics: str | None = None  # whether queries with one id or text on several datasets are one topic, or ``separate``

    def __post_init__(self) -> None:
        for name in ("metrics", "others"):
            object.__setattr__(self, name, canonical_metrics(getattr(self, name)))
        for name in self.allow:
            if name not in ALLOWANCES:
                hint = did_you_mean(name, ALLOWANCES)
                raise UsageError(f"--allow {name}: unknown{hint}; use {', '.join(ALLOWANCES)}")
        if {"queries", "zeros"} <= set(self.allow):
            raise UsageError(
                "--allow queries leaves out what --allow zeros counts as 0; give the one that suits the runs"
            )
        if self.topics not in (None, SHARED, SEPARATE):
            raise UsageError(f"topics {self.topics!r}: unknown; use {SHARED} or {SEPARATE}")
        if self.paired and self.pool_runs:
            raise UsageError("runs that pair have one variance already; leave out --pool-runs, or --paired")
        if not self.metrics:
            raise UsageError("no metric to compare by; name one, such as ndcg@10")
        refuse_depth(self.depth)

    def on(self, judged: JudgedDataset) -> Scoring:
        """Return how runs on a dataset are scored, which may have a main metric of its own."""
        return self if judged.metric is None else replace(self, metrics=(judged.metric, *self.metrics[1:]))

    @property
    def main(self) -> str:
        """The metric that heads the tables."""
        return self.metrics[0]

    @property
    def every(self) -> tuple[str, ...]:
        """The metrics asked for, then the others."""
        return tuple(dict.fromkeys((*self.metrics, *self.others)))


def judgments(
    content: QrelsContent, dataset: str | None = None, level: int | None = None, metrics: Sequence[MetricLike] = ()
) -> JudgedDataset:
    """Read the judgments of a dataset; its name and level are by default those stated of the file, else its stem and 1.

    Where one of the ``metrics`` needs subtopics and the file names them, a document's grade is its highest for any.

    A UsageError where the level is below 1 or the name cannot be a dataset's, a DataError where the file is malformed.
    """
    if level is not None:
        level = checked_level(level, "--relevance-level")
    subtopics: Subtopics | None = None
    checks: tuple[Check, ...] = ()
    qrels: Grades
    if isinstance(content, Path):
        folder = Path(str(content).removeprefix("path:").partition("@")[0])
        if folder.is_dir() and not content.is_file():
            files = first_few([str(path) for path in split_files(folder).values()]) or "one of TREC or a table"
            raise UsageError(f"{content}: this is a folder, and a run is scored by a file of judgments; give {files}")
        described = describe_qrels(content)
        if any(parse_metric(metric).of_subtopics for metric in metrics):
            subtopics = read_subtopics(content)
        if subtopics:
            qrels = {key: {d: max(of.values()) for d, of in found.items()} for key, found in subtopics.items()}
        else:
            qrels = load_qrels(content)
        name, content_hash = str(content), hash_file(content)
        dataset = dataset or described.name or Path(content.name.removesuffix(".gz")).stem
        level, checks = level or described.relevance_level, _said_of_labels(content)
    else:
        name = f"qrels of {dataset or 'the dataset'}"
        qrels = load_qrels(content, name)
        content_hash = hash_json(qrels)
    refuse_empty(name, qrels)
    if problem := name_problem(dataset or "dataset"):
        raise UsageError(f"a dataset cannot be named {shortened(str(dataset))!r}, which {problem}; give --dataset NAME")
    known: dict[str, Any] = {"subtopics": subtopics, "checks": checks}
    return JudgedDataset(dataset or "dataset", name, qrels, content_hash, level or 1, level, **known)


class LabelsMade(Strict):
    """What the file next to a model's judgments says of the model; ``unimoe label`` writes it."""

    model: str = ""
    caveats: list[str] = Field(default_factory=list)


def labels_path(qrels: Path) -> Path:
    """Return where it lies; ``FILE.json`` is a description, which a person may write."""
    return qrels.with_name(f"{qrels.name}.labels.json")


def _said_of_labels(qrels: Path) -> tuple[Check, ...]:
    """Return the caveats of the model that judged."""
    path = labels_path(qrels)
    made = read_json(path, LabelsMade) if path.is_file() else LabelsMade()
    judged = f"{qrels.name}, judged by {made.model.rpartition('@')[0]}"
    return tuple(Check("labels", "caveat", f"{judged}: {line}", unfit=True) for line in made.caveats)


def judged_by(content: RunContent, datasets: Sequence[JudgedDataset]) -> list[JudgedDataset]:
    """Return the datasets of which a run holds judged queries; all of them where it holds none, which is refused."""
    held = load_run(content, "the run").run
    return [judged for judged in datasets if not judged.qrels.keys().isdisjoint(held)] or list(datasets)


def refuse_draws(system: str, dataset: str, runs: Sequence[str]) -> None:
    """Refuse several runs of a system without training, of which there are no draws, by a UsageError."""
    if len(runs) > 1:
        raise UsageError(
            f"{system} is untrained, and has {len(runs)} runs on {dataset} ({runs[0]}, {runs[1]}); give one run, or do "
            "not name it with --untrained"
        )


def refuse_depth(depth: int | None) -> None:
    """Refuse a depth that is no whole number above 0, with a UsageError."""
    whole = hasattr(depth, "__index__")
    if depth is not None and (not whole or depth < 1):
        problem = "leaves no document to score" if whole else "is no whole number"
        raise UsageError(f"--depth {depth} {problem}; use at least 1")


def refuse_empty(name: str, content: Grades) -> None:
    """Refuse judgments or a run without content, with a DataError."""
    if not content:
        raise DataError(f"{name}: no line in it; there is nothing to score")
