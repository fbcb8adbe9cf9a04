"""Results and vectors of ``retrieve`` by compiled layers never mix with those of uncompiled ones."""

from __future__ import annotations

from unimoe.data.collection import Document, assemble

COLLECTION = assemble(
    "toy",
    "test",
    [("a", Document("", "heron tide")), ("b", Document("", "moon")), ("c", Document("", "rain"))],
    [("q1", "heron"), ("q2", "moon")],
    {"q1": {"a": 1}, "q2": {"b": 1}},
)
