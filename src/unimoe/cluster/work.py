"""Work that a worker of a cluster does: parts that are JSON values, and replies that travel as bytes.

A part depends on nothing but the model and itself, so that the results are the same wherever it is computed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Part = dict[str, Any]
"""Work that one worker does."""

Compute = Callable[[Part], Any]
"""What a worker makes of a part: an array, or JSON values."""

Recipe = Mapping[str, Any]
"""How a worker makes a model, as JSON values; ``maker`` is the function that does."""


def packed(value: Any) -> bytes:
    """Return what a job made as bytes: a line of JSON, and the numbers of an array."""
    if not isinstance(value, np.ndarray):
        return json.dumps({"value": value}).encode() + b"\n"
    header = {"dtype": value.dtype.str, "shape": value.shape}
    return json.dumps(header).encode() + b"\n" + np.ascontiguousarray(value).tobytes()


def unpacked(reply: bytes) -> Any:
    """Return what a job made; arrays can be written to."""
    header, _, numbers = reply.partition(b"\n")
    content = json.loads(header)
    if "value" in content:
        return content["value"]
    return np.frombuffer(numbers, dtype=content["dtype"]).reshape(content["shape"]).copy()
