"""Split the queries of a collection into those that train, choose settings, and report; by query, never by row."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Field, model_validator

from unimoe.config.base import Section
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_parts
from unimoe.data.catalog import load_collection, refuse_unknown
from unimoe.data.collection import Collection, refuse_shared_queries
from unimoe.data.sources.nanobeir import NANOBEIR

_NANO_NAMES = {f"Nano{name.partition(':')[2]}".lower(): name for name in NANOBEIR}


class Splits(NamedTuple):
    """The three parts of a collection's queries, over one corpus."""

    train: Collection
    dev: Collection
    test: Collection


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


def load_splits(task: str, config: SplitConfig | None) -> Splits:
    """Load a collection, by a name of the catalogue or a NanoBEIR task's, in three parts.

    Without a configuration these are the published ones if there is a train split, else parts of the test split.
    """
    name = task_collection(task)
    refuse_unknown(name)
    given = SplitConfig() if config is None else config
    if config is None:
        train, dev = (_split_or_none(name, split) for split in ("train", "dev"))
    else:
        train, dev = (None if split is None else load_collection(name, split) for split in (given.train, given.dev))
    test = load_collection(name, given.test)
    if train is None:
        test, dev, train = _parted(test, given.test_fraction, given.dev_fraction)
    elif dev is None:
        dev, train = _parted(train, given.dev_fraction)
    splits = Splits(train, dev, test)
    _refuse_unfit(splits)
    return splits


def _split_or_none(name: str, split: str) -> Collection | None:
    """Load a split; return None where the collection has none of that name. Damaged data is still an error."""
    if name.startswith("ir_datasets:"):  # its id names the split already
        return None
    try:
        return load_collection(name, split)
    except UsageError:
        return None


def _parted(collection: Collection, *fractions: float) -> list[Collection]:
    """Divide the judged queries into parts of these sizes and the rest; a query's place depends on its id alone."""
    order = sorted(collection.qrels, key=lambda query_id: hash_parts(["head split", query_id]))
    parts, begin = [], 0
    for end in (*(round(fraction * len(order)) for fraction in fractions), len(order)):
        parts.append(collection.with_queries({*order[begin : begin + end]}))
        begin += end
    return parts


def _refuse_unfit(splits: Splits) -> None:
    for part, collection in splits._asdict().items():
        if not collection.qrels:
            raise DataError(
                f"{collection.name}: no query is left for {part}; there are too few, change splits.dev_fraction "
                "or splits.test_fraction, or take a larger collection"
            )
    refuse_shared_queries(splits._asdict())
