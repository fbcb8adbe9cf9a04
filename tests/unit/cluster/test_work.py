"""Replies travel as bytes: the same bits arrive, and errors of the kind that was raised."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from unimoe.cluster.work import is_error, packed, packed_error, unpacked
from unimoe.core.errors import DataError, InputError, UsageError

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
    assert not is_error(reply)


def test_arrays_that_are_views_arrive() -> None:
    value = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-1]
    np.testing.assert_array_equal(unpacked(packed(value)), value)


@given(JSON)
def test_json_values_arrive(value: object) -> None:
    assert unpacked(packed(value)) == value


def test_a_value_that_looks_like_an_error_is_none() -> None:
    value = {"error": "ValueError", "message": "", "note": ""}
    assert not is_error(packed(value))
    assert unpacked(packed(value)) == value


class OwnError(Exception):
    """Known to this module alone."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DataError("no such file\nin two lines"), DataError),
        (UsageError("no such key: \ud83d"), UsageError),
        (torch.OutOfMemoryError("no room"), torch.OutOfMemoryError),
        (ValueError("no number"), ValueError),
    ],
)
def test_errors_arrive_with_kind_message_and_place(error: Exception, kind: type[Exception]) -> None:
    reply = packed_error(error, "node-3")
    assert is_error(reply)
    with pytest.raises(kind) as raised:
        unpacked(reply)
    assert (type(raised.value), str(raised.value)) == (kind, str(error))
    assert raised.value.__notes__[0].startswith("in node-3:\n")


def test_an_input_error_keeps_its_index() -> None:
    with pytest.raises(InputError) as raised:
        unpacked(packed_error(InputError(7, "too long"), "node-3"))
    assert (raised.value.index, raised.value.reason) == (7, "too long")


@pytest.mark.parametrize("error", [OwnError("nobody knows"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text")])
def test_an_error_that_cannot_be_made_again_keeps_its_name(error: Exception) -> None:
    with pytest.raises(RuntimeError, match=type(error).__name__):
        unpacked(packed_error(error, "node-3"))
