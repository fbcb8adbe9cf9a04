"""Split the queries of a collection into those that train, choose settings, and report; by query, never by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Annotated, NamedTuple

from pydantic import Field, model_validator

from unimoe.checks import Check
from unimoe.config.base import Section
from unimoe.core.errors import DataError, UsageError
from unimoe.core.grouping import gathered
from unimoe.core.io import hash_parts
from unimoe.data.catalog import load_collection, refuse_unknown
from unimoe.data.collection import Collection
from unimoe.data.sources.nanobeir import NANOBEIR
from unimoe.results.topics import normal
from unimoe.training.splits import Role, SplitQueries, checked_splits, to_train_on

_NANO_NAMES = {f"Nano{name.partition(':')[2]}".lower(): name for name in NANOBEIR}


class Splits(NamedTuple):
    """The three parts of a collection's queries, over one corpus."""

    train: Collection
    dev: Collection
    test: Collection

    @property
    def by_part(self) -> dict[Role, Collection]:
        """The three by what they do."""
        return {"train": self.train, "dev": self.dev, "test": self.test}


class SplitConfig(Section):
    """The splits of a collection that train, choose and report.

    Attributes:
        train: the split that trains.
        dev: the split that chooses settings and the best step; null takes ``dev_fraction`` of the training queries.
        test: the split that is reported.
        dev_fraction: share of the queries of ``train`` that becomes dev, by a hash of their ids.
        test_fraction: if ``train`` is null, all three are parts of the split ``test``: this fraction of its queries is
            the test, then ``dev_fraction`` is dev, and the rest trains.
    """

    train: str | None = "train"
    dev: str | None = None
    test: str = "test"
    dev_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.4

    @model_validator(mode="after")
    def _all_three(self) -> SplitConfig:
        if self.train is None and self.dev is not None:
            raise ValueError("dev can name a split only where train names one; leave dev out")
        if self.train is None and self.dev_fraction + self.test_fraction >= 1:
            raise ValueError("dev_fraction and test_fraction leave no query to train on; lower them")
        return self


def task_collection(task: str) -> str:
    """Return the catalogue's name of a task: ``NanoMSMARCO`` is ``nanobeir:MSMARCO``."""
    return _NANO_NAMES.get(task.lower(), task)


def load_splits(task: str, config: SplitConfig | None, *, drop_shared: bool = False) -> Splits:
    """Load a collection in three parts that share no query; dev and test carry what was found.

    ``drop_shared`` leaves queries out of training that dev or test have by text; else they are a caveat in published
    sets, and a ``DataError`` in others. See ``read_parts``.
    """
    name, splits = task_collection(task), Splits(*read_parts(task, config))
    parts = [SplitQueries.of(part, part, name, collection) for part, collection in splits.by_part.items()]
    found = checked_splits(parts, drop_shared=drop_shared)
    splits = splits._replace(train=to_train_on(splits.train, found.left_out[0]))
    _refuse_empty(splits)
    return with_checks(splits, found.checks)


def with_checks(splits: Splits, found: Sequence[Check]) -> Splits:
    """Return splits with dev and test that carry what was found of shared queries into their results."""
    dev, test = (replace(part, checks=(*part.checks, *found)) for part in (splits.dev, splits.test))
    return splits._replace(dev=dev, test=test)


def read_parts(task: str, config: SplitConfig | None, *, tested: bool = True) -> list[Collection]:
    """Load a collection, by a name of the catalogue or a NanoBEIR task's, in three parts, and compare no queries.

    Without a configuration these are the published ones if there is a train split, else parts of the test split. One
    with a train split that is not ``tested`` needs no test split, and has two parts.
    """
    name = task_collection(task)
    refuse_unknown(name)
    given = SplitConfig() if config is None else config
    if config is None:
        train, dev = (_split_or_none(name, split) for split in ("train", "dev"))
    else:
        train, dev = (None if split is None else load_collection(name, split) for split in (given.train, given.dev))
    tests = [_reported(name, given.test)] if tested or train is None else []
    if train is None:
        tests[0], dev, train = _parted(tests[0], given.test_fraction, given.dev_fraction)
    elif dev is None:
        dev, train = _parted(train, given.dev_fraction)
    parts = [train, dev, *tests]
    _refuse_empty(parts)
    return parts


def _reported(name: str, split: str) -> Collection:
    try:
        return load_collection(name, split)
    except UsageError as error:
        remedy = "set splits.test to the one to report (a cross-encoder can report others by evaluation.test)"
        raise UsageError(f"{error}; {remedy}") from None


def _split_or_none(name: str, split: str) -> Collection | None:
    """Load a split; return None where the collection has none of that name. Damaged data is still an error."""
    if name.startswith("ir_datasets:"):  # its id names the split already
        return None
    try:
        return load_collection(name, split)
    except UsageError:
        return None


def _parted(collection: Collection, *fractions: float) -> list[Collection]:
    """Divide the judged queries into parts of about these sizes and the rest, by a hash of their ids.

    Queries of equal text are in one part, that of the first of them.
    """
    order = sorted(collection.qrels, key=lambda query_id: hash_parts(["head split", query_id]))
    ends = [*accumulate(round(fraction * len(order)) for fraction in fractions), len(order)]
    parts: list[set[str]] = [set() for _ in ends]
    placed = place = 0
    for alike in gathered((normal(collection.queries[query_id]), query_id) for query_id in order).values():
        while placed >= ends[place]:
            place += 1
        parts[place].update(alike)
        placed += len(alike)
    return [collection.with_queries(part) for part in parts]


def _refuse_empty(parts: Sequence[Collection]) -> None:
    """Refuse a part without a query."""
    for part, collection in zip(("train", "dev", "test"), parts, strict=False):
        if not collection.qrels:
            raise DataError(
                f"{collection.name}: no query is left for {part}; there are too few, change splits.dev_fraction "
                "or splits.test_fraction, or take a larger collection"
            )
