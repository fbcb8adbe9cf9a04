"""Submissions: every number comes back as it was, and what has no id or direction is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.translators import read_submission

from unimoe.core.errors import DataError, InputError
from unimoe.studies.translator.models.files import write_submission


def test_vectors_come_back_exactly_and_of_unit_length(tmp_path: Path) -> None:
    path, rng = tmp_path / "submission.csv", np.random.default_rng(0)
    vectors = rng.standard_normal((20, 64))
    ids = [str(row) for row in range(18)] + ['a "quoted", id', "ünï"]
    write_submission(path, ids, vectors)
    read_ids, found = read_submission(path)
    assert read_ids == ids
    assert np.array_equal(found, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def test_the_file_itself(tmp_path: Path) -> None:
    write_submission(tmp_path / "s.csv", ["7", "8"], np.array([[3.0, 4.0], [0.0, 2.0]], dtype=np.float32))
    assert (tmp_path / "s.csv").read_text() == (
        'id,embedding\n7,"[0.59999999999999998, 0.80000000000000004]"\n8,"[0, 1]"\n'
    )


@given(arrays(np.float64, (3, 4), elements=st.floats(-1e3, 1e3).filter(lambda value: value == 0 or abs(value) > 1e-3)))
def test_any_direction_comes_back(tmp_path_factory: pytest.TempPathFactory, vectors: np.ndarray) -> None:
    path = tmp_path_factory.mktemp("s") / "s.csv"
    if not vectors.any(axis=1).all():
        with pytest.raises(InputError):
            write_submission(path, ["a", "b", "c"], vectors)
        assert not path.exists()
    else:
        write_submission(path, ["a", "b", "c"], vectors)
        assert np.array_equal(read_submission(path)[1], vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def test_a_refused_submission_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    write_submission(path, ["a", "b"], np.eye(2))
    before = path.read_text()
    with pytest.raises(InputError) as raised:
        write_submission(path, ["a", "b"], np.array([[1.0, 0.0], [np.nan, 0.0]]))
    assert raised.value.index == 1
    with pytest.raises(DataError, match="an id is empty"):
        write_submission(path, ["a", ""], np.eye(2))
    assert path.read_text() == before
