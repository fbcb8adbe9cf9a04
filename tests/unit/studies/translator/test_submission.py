"""Submissions: every number comes back as it was, and what has no id or direction is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.translators import read_submission

from unimoe.core.errors import DataError, InputError
from unimoe.studies.translator.models.files import write_submission


def test_vectors_come_back_exactly_and_of_unit_length(tmp_path: Path) -> None:
    path, vectors = tmp_path / "submission.csv", np.random.default_rng(0).standard_normal((20, 64))
    ids = [str(row) for row in range(18)] + ['a "quoted", id', "ünï"]
    write_submission(path, ids, vectors)
    read_ids, found = read_submission(path)
    assert read_ids == ids
    assert np.array_equal(found, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    write_submission(path, ["7", "8"], np.array([[3.0, 4.0], [0.0, 2.0]], dtype=np.float32))
    assert path.read_text() == 'id,embedding\n7,"[0.59999999999999998, 0.80000000000000004]"\n8,"[0, 1]"\n'


def test_a_refused_submission_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    write_submission(path, ["a", "b"], np.eye(2))
    before = path.read_text()
    for bad in (np.nan, 0.0):
        with pytest.raises(InputError, match="zero or not finite") as raised:
            write_submission(path, ["a", "b"], np.array([[1.0, 0.0], [bad, 0.0]]))
        assert raised.value.index == 1
    with pytest.raises(DataError, match="an id is empty"):
        write_submission(path, ["a", ""], np.eye(2))
    assert path.read_text() == before
