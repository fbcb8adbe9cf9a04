"""What workers reply arrives at the driver: the same bits, and errors with their kind, words, and place."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from unimoe.cluster.units import UnitStore
from unimoe.cluster.worker import Compute, Part, Worker, packed, unpacked
from unimoe.core.errors import DataError, InputError, UsageError


class OwnError(Exception):
    """Cannot be made of its message."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


ERRORS: dict[str, Exception] = {
    "data": DataError("no such file\nin two lines"),
    "usage": UsageError("no such key: \ud83d"),
    "memory": torch.OutOfMemoryError("no room"),
    "value": ValueError("no number"),
    "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text"),
    "input": InputError(7, "too long"),
    "own": OwnError(1, 2),
}


def jobs_of(recipe: Mapping[str, Any], device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """The job that raises an error."""

    def fail(part: Part) -> None:
        raise ERRORS[part["error"]]

    return {"fail": fail}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_arrive_with_kind_message_and_place(tmp_path: Path, name: str) -> None:
    worker = Worker(str(tmp_path), "cpu", torch.get_num_threads())
    reply = worker.compute({"maker": f"{__name__}:jobs_of"}, "fail", {"error": name}, ("units", "key"))
    assert UnitStore(str(tmp_path)).keys("units") == set()
    found = pickle.loads(pickle.dumps(reply))
    if name == "own":  # which cannot be made again
        assert (type(found), str(found)) == (RuntimeError, "OwnError: 1 and 2")
        return
    assert (type(found), str(found)) == (type(ERRORS[name]), str(ERRORS[name]))
    assert found.__notes__[0].startswith("in ")
    if isinstance(found, InputError):
        assert (found.index, found.reason) == (7, "too long")


DTYPES = st.sampled_from([np.float16, np.float32, np.float64, np.int64, np.uint8, np.bool_])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@given(arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, min_side=0, max_side=4)))
def test_arrays_arrive_to_the_bit(value: NDArray[np.float64]) -> None:
    reply = packed(value)
    found = unpacked(reply)
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert found.tobytes() == value.tobytes()
    assert found.flags.writeable


@given(JSON)
def test_json_values_arrive(value: object) -> None:
    assert unpacked(packed(value)) == value
