"""Predictions that mteb kept of models, as runs, judged by the data and the main measure of each task.

``mteb.evaluate(..., prediction_folder=FOLDER)`` writes ``{TASK}_predictions.json`` with a ranking for each query and
the name of the model. A public model is no draw of many trainings: its runs have no seed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unimoe.checks.texts import concerned
from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.grouping import gathered
from unimoe.core.io import hash_json
from unimoe.core.trec import Run
from unimoe.data.catalog import load_collection
from unimoe.data.sources.from_mteb import import_mteb
from unimoe.evaluation.datasets import Dataset
from unimoe.formats.runs import read_predictions
from unimoe.metrics import canonical_metric
from unimoe.results.runs.sources import JudgedDataset, RunSource

_END = "_predictions.json"
_DEFAULT = "ndcg@10"  # where mteb does not know the task, or has no values by query


@dataclass(frozen=True)
class Predicted:
    """One model's rankings on one subset and split of a task."""

    path: Path
    model: str
    task: str
    subset: str
    split: str
    run: Run

    @property
    def collection(self) -> str:
        """What the catalogue calls the data."""
        return f"mteb:{self.task}" if self.subset == "default" else f"mteb:{self.task}:{self.subset}"


def find_predictions(folders: Sequence[Path]) -> tuple[list[Predicted], list[str]]:
    """Read every file of predictions in some folders, and say why others hold no rankings.

    Raises:
        DataError: a folder is missing, or holds no such file.
    """
    found, problems = list[Predicted](), list[str]()
    for folder in dict.fromkeys(map(Path, folders)):
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; give the prediction_folder of mteb.evaluate")
        paths = sorted(folder.rglob(f"*{_END}"))
        if not paths:
            raise DataError(f"{folder}: no file TASK{_END} in it; give the prediction_folder of mteb.evaluate")
        for path in paths:
            try:
                predictions = read_predictions(path)
            except DataError as error:
                problems.append(str(error))
                continue
            task, model = path.name.removesuffix(_END), predictions.model or path.parent.name
            found += [Predicted(path, model, task, *place, run) for place, run in predictions.runs.items()]
    return found, problems


def prediction_sources(
    found: Sequence[Predicted], given: Mapping[str, JudgedDataset], metric: str | None
) -> tuple[list[RunSource], list[str]]:
    """Return the runs of every model on every dataset, with the judgments of each, and why some have none.

    Args:
        found: what ``find_predictions`` gives.
        given: judgments by dataset or task, for what mteb cannot load.
        metric: what was asked for; None for the main measure of each task.

    Raises:
        UsageError: judgments are given of a dataset that has no predictions.
    """
    datasets = _datasets(found)
    known = {*datasets.values(), *(one.task for one in found)}
    if unknown := next((name for name in given if name not in known), None):
        raise UsageError(
            f"--dataset {unknown}: no predictions{did_you_mean(unknown, known)}; there is {', '.join(known)}"
        )
    names, sources, problems = _system_names(found), list[RunSource](), list[str]()
    for dataset, members in gathered((datasets[_place(one)], one) for one in found).items():
        try:
            judged, left_out = _judgments(members[0], given.get(dataset) or given.get(members[0].task))
        except (DataError, UsageError) as error:
            problems.append(f"{dataset}: {error}; or give its judgments by --dataset {dataset}=QRELS")
            continue
        judged = replace(judged, dataset=dataset, metric=metric or _main_metric(members[0].task))
        for one in sorted(members, key=lambda one: names[_system(one)]):
            run = {q: {key: of[key] for key in of if key not in left_out(q)} for q, of in one.run.items()}
            sources.append(RunSource(names[_system(one)], judged, None, str(one.path), run))
    return sources, problems


def _place(one: Predicted) -> tuple[str, str, str]:
    return one.task, one.subset, one.split


def _system(one: Predicted) -> tuple[str, Path]:
    return one.model, one.path.parent


def _datasets(found: Sequence[Predicted]) -> dict[tuple[str, str, str], str]:
    """Name datasets by their task, and by subset and split where a task has several."""
    subsets = gathered((one.task, one.subset) for one in found)
    splits = gathered(((one.task, one.subset), one.split) for one in found)
    names = {}
    for one in found:
        parts = [one.task]
        parts += [one.subset] if len(set(subsets[one.task])) > 1 else []
        parts += [one.split] if len(set(splits[one.task, one.subset])) > 1 else []
        names[_place(one)] = "-".join(parts)
    return names


def _system_names(found: Sequence[Predicted]) -> dict[tuple[str, Path], str]:
    """Name models without their organisation, with it or with their folder where that would name two alike.

    A model that one folder holds of one task and another of the next is one system.
    """
    of_model = gathered((one.model, one) for one in found)
    short = gathered((model.rpartition("/")[2], model) for model in of_model)
    names = {}
    for model, of in of_model.items():
        name = model.rpartition("/")[2] if len(short[model.rpartition("/")[2]]) == 1 else model.replace("/", "-")
        twice = len({(one.path.parent, _place(one)) for one in of}) > len({_place(one) for one in of})
        for one in of:
            names[_system(one)] = f"{name}-{one.path.parent.name}" if twice else name
    for alike in gathered((name, system) for system, name in names.items()).values():
        if len({folder for _, folder in alike}) > 1 and len({model for model, _ in alike}) > 1:
            raise UsageError(f"{alike[0][1]} and {alike[1][1]} hold models of one name; rename one of the folders")
    return names


def _judgments(one: Predicted, given: JudgedDataset | None) -> tuple[JudgedDataset, Callable[[str], Collection[str]]]:
    """Return judgments that are given, else those of mteb's data, and what mteb leaves out when it scores a query.

    Predictions hold a query's own document, which tasks such as ArguAna's do not count.
    """
    if given is not None:
        own = Dataset(f"mteb:{one.task}", one.split).exclude_self if find_spec("mteb") else False
        return given, lambda query: [query] if own else []
    whole = Dataset(one.collection, one.split)
    found = whole.with_rule(load_collection(one.collection, one.split))
    stated = found.relevance_level if found.level_stated else None
    level, content = found.relevance_level, hash_json(found.qrels)
    caveats = (check for check in concerned(found.checks, by_words=False) if check.weight == "caveat")
    known: dict[str, Any] = {"texts": found.queries, "checks": tuple(replace(check, unfit=True) for check in caveats)}
    judged = JudgedDataset(one.task, one.collection, found.qrels, content, level, stated, **known)
    return judged, found.left_out


def _main_metric(task: str) -> str:
    """Return the main measure of a task by its name here; nDCG@10 where mteb is not installed or does not know it."""
    if find_spec("mteb") is None:
        return _DEFAULT
    from unimoe.evaluation.mteb.main_scores import main_metric  # with torch, which the light install lacks

    with suppress(KeyError, UsageError):  # a task that mteb lacks, and a main score that is no measure of a ranking
        return canonical_metric(main_metric(import_mteb().get_task(task)))
    return _DEFAULT
