"""Submissions: every number comes back as it was, and a wrong file is refused with its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from unimoe.core.errors import DataError, InputError
from unimoe.studies.translator.submission import read_submission, write_submission

HEAD = "id,embedding\n"


def test_vectors_come_back_exactly_and_of_unit_length(tmp_path: Path) -> None:
    path, rng = tmp_path / "submission.csv", np.random.default_rng(0)
    vectors = rng.standard_normal((20, 64))
    ids = [str(row) for row in range(18)] + ['a "quoted", id', "ünï"]
    write_submission(path, ids, vectors)
    read_ids, found = read_submission(path, 64)
    assert read_ids == ids
    assert np.array_equal(found, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def test_the_file_itself(tmp_path: Path) -> None:
    write_submission(tmp_path / "s.csv", ["7", "8"], np.array([[3.0, 4.0], [0.0, 2.0]], dtype=np.float32))
    assert (tmp_path / "s.csv").read_text() == (
        'id,embedding\n7,"[0.59999999999999998, 0.80000000000000004]"\n8,"[0, 1]"\n'
    )


def test_long_embeddings_are_read(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((2, 8000))
    write_submission(tmp_path / "s.csv", ["a", "b"], vectors)
    assert read_submission(tmp_path / "s.csv", 8000)[1].shape == (2, 8000)


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "1: the header must be id,embedding"),
        ('key,embedding\n1,"[1.0]"\n', "1: the header must be"),
        (HEAD, "no captions"),
        (HEAD + "1,1.0,0.0\n", "2: 3 fields, a line has 2"),
        (HEAD + '1,"[1.0, 0.0"\n', "2: the embedding is no list"),
        (HEAD + "1,1.0\n", "2: the embedding is no list"),
        (HEAD + '1,"[[1.0, 0.0]]"\n', "2: the embedding is no list"),
        (HEAD + '1,"[""1.0""]"\n', "2: the embedding is no list"),
        (HEAD + '1,"[]"\n', "2: the embedding is no list"),
        (HEAD + '1,"[NaN, 0.0]"\n', "2: a number of the embedding is not finite"),
        (HEAD + '1,"[1.0, 0.0]"\n2,"[1.0]"\n', "3: 1 dimensions, expected 2"),
        (HEAD + '1,"[1.0, 1.0]"\n', r"2: the embedding of '1' has length 1\.41421, not 1"),
        (HEAD + '1,"[1.0]"\n1,"[1.0]"\n', "id '1' occurs twice"),
        (HEAD + ',"[1.0]"\n', "an id is empty"),
        (HEAD + '1,"[1.0]\n', "not a CSV file"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "s.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as raised:
        read_submission(path)
    assert str(raised.value).startswith(str(path))


def test_other_dimensions_than_wanted(tmp_path: Path) -> None:
    write_submission(tmp_path / "s.csv", ["a"], np.ones((1, 3)))
    with pytest.raises(DataError, match="2: 3 dimensions, expected 1536"):
        read_submission(tmp_path / "s.csv", 1536)
    with pytest.raises(DataError, match="no such file"):
        read_submission(tmp_path / "gone.csv")


def test_a_refused_submission_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    write_submission(path, ["a", "b"], np.eye(2))
    before = path.read_text()
    with pytest.raises(InputError) as raised:
        write_submission(path, ["a", "b"], np.array([[1.0, 0.0], [np.nan, 0.0]]))
    assert raised.value.index == 1
    for ids in (["a"], ["a", "a"], ["a", ""]):
        with pytest.raises(DataError):
            write_submission(path, ids, np.eye(2))
    assert path.read_text() == before
