"""Texts as arrays: every text comes back as it was."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unimoe.cluster.texts import PairTexts, TextTable

ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=12)  # lone surrogates among them


@given(st.dictionaries(ANY_TEXT, ANY_TEXT, max_size=12))
def test_every_text_comes_back_in_order(texts: dict[str, str]) -> None:
    table = pickle.loads(pickle.dumps(TextTable.of(texts)))
    assert list(table.items()) == list(texts.items())
    assert len(table) == len(texts)
    assert dict(table) == texts


def test_empty_texts_take_no_room() -> None:
    table = TextTable.of({"a": "", "b": "text", "c": "", "d": ""})
    assert [table[key] for key in "dcba"] == ["", "", "text", ""]
    assert table.letters.nbytes == 4


def test_an_unknown_id_is_a_key_error() -> None:
    table = TextTable.of({"a": "x"})
    assert "b" not in table
    with pytest.raises(KeyError):
        table["b"]


OTHERS = [
    {"a": "x"},
    {"a": "x", "b": ""},
    {"b": "x", "a": ""},
    {"a": "", "b": "x"},
    {"ax": "", "b": ""},
    {"a": "\ud83d"},
    {"a": "\\ud83d"},
    {},
]


def test_other_texts_have_another_hash() -> None:
    hashes = [TextTable.of(texts).content for texts in OTHERS]
    assert len(set(hashes)) == len(OTHERS)
    assert hashes == [TextTable.of(texts).content for texts in OTHERS]


def test_queries_are_not_documents() -> None:
    one, other = TextTable.of({"a": "x"}), TextTable.of({"a": "y"})
    assert PairTexts(one, other).content != PairTexts(other, one).content


def test_letters_are_read_where_they_are() -> None:
    """Ray gives workers arrays that cannot be written to."""
    table = TextTable.of({"a": "x", "b": "日本"})
    for array in (table.letters, table.ends):
        array.setflags(write=False)
    assert table["b"] == "日本"
