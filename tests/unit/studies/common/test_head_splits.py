"""Which queries train, choose and report: never one of them twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from support.heads import topics_folder

from unimoe.core.errors import DataError, UsageError
from unimoe.studies.common.splits import SplitConfig, load_splits, task_collection


@pytest.mark.parametrize(
    ("queries", "sizes"),
    [
        (None, [36, 18, 18]),  # the published splits
        ({"train": 40, "test": 10}, [32, 8, 10]),  # a fifth of the training queries chooses
        ({"test": 50}, [20, 10, 20]),  # a test split alone is cut in three
    ],
)
def test_no_query_is_in_two_parts(tmp_path: Path, queries: dict[str, int] | None, sizes: list[int]) -> None:
    folder = topics_folder(tmp_path / "c") if queries is None else topics_folder(tmp_path / "c", queries)
    splits = load_splits(f"path:{folder}", None)
    train, dev, test = (set(part.qrels) for part in splits)
    assert [len(train), len(dev), len(test)] == sizes
    assert not train & dev
    assert not (train | dev) & test
    assert splits == load_splits(f"path:{folder}", None)


def test_splits_that_cannot_be_are_refused(tmp_path: Path) -> None:
    task = f"path:{topics_folder(tmp_path / 'c')}"
    with pytest.raises(DataError, match="is in two of train, dev and test; choose splits that differ"):
        load_splits(task, SplitConfig(dev="test"))
    with pytest.raises(DataError, match="no query is left for"):
        load_splits(f"path:{topics_folder(tmp_path / 'few', {'test': 2})}", None)
    with pytest.raises(UsageError, match="did you mean 'scifact'"):
        load_splits("scifakt", None)
    with pytest.raises(ValidationError, match="leave no query to train on"):
        SplitConfig(train=None, dev_fraction=0.5, test_fraction=0.5)


def test_a_damaged_training_split_is_no_missing_one(tmp_path: Path) -> None:
    folder = topics_folder(tmp_path / "c")
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\ntrain00\td000\thigh\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"train\.tsv"):
        load_splits(f"path:{folder}", None)


@pytest.mark.parametrize(
    ("task", "collection"),
    [("NanoMSMARCO", "nanobeir:MSMARCO"), ("nanoscifact", "nanobeir:SciFact"), ("scifact", "scifact")],
)
def test_the_names_of_nanobeir(task: str, collection: str) -> None:
    assert task_collection(task) == collection
