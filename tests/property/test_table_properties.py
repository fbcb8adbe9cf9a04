"""Whatever a dataset, an arm or a caveat is called, tables keep their shape and names stay names."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from unimoe.analysis.formats import p_text, signed
from unimoe.analysis.tables import Cell, RowGroup, Table, escape_latex
from unimoe.analysis.tables.cells import short_names

names = st.one_of(
    st.text(min_size=1, max_size=30),
    st.text(alphabet="\\{}$&%#_^~<>|\"'`[]*-+ a\x00\n\ud800中😀", min_size=1, max_size=30),
)


def table(names: list[str]) -> Table:
    rows = tuple((Cell(name), Cell("-1.00", value=-1.0), Cell(name)) for name in names)
    return Table("names", names[0], ("Name", names[-1], "Last"), (RowGroup(names[0], rows),), tuple(names))


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def tags_of(made: Table) -> list[str]:
    reader = Reader()
    reader.feed(made.to_html())
    return reader.tags


@given(st.lists(names, min_size=2, max_size=4))
def test_names_add_no_element_to_html_and_no_cell_to_markdown_or_csv(drawn: list[str]) -> None:
    made, plain = table(drawn), table(["a"] * len(drawn))
    assert tags_of(made) == tags_of(plain)
    lines = [line for line in made.to_markdown().split("\n") if line.startswith("|")]
    assert {line.count("|") for line in lines} == {4}
    rows = list(csv.reader(io.StringIO(made.to_csv())))
    assert [len(row) for row in rows] == [4] * (1 + len(drawn)) + [1] * len(drawn)


@given(names)
def test_latex_of_a_name_has_no_command_of_its_own(name: str) -> None:
    latex = escape_latex(name)
    latex.encode()
    rest = re.sub(r"\\(?:text[a-z]+|allowbreak|[SP])(?:\{\}|(?=\{))|\\[{}$&%#_]|\$-\$|\$\\[a-z]+\$", "", latex)
    assert not set(rest) & set('\\$&%#_^~<>|"`')
    assert rest.count("{") == rest.count("}")


@given(st.lists(st.text(alphabet="ab/", min_size=1, max_size=60), max_size=8), st.integers(8, 40))
def test_short_names_are_as_many_as_the_names(drawn: list[str], width: int) -> None:
    short = short_names(drawn, width)
    assert len(set(short.values())) == len(set(drawn))
    assert all(short[name] == name for name in drawn if len(name) <= width)


@given(st.floats(-100, 100), st.integers(0, 4))
def test_a_sign_is_true_and_zero_has_none(number: float, digits: int) -> None:
    text = signed(number, digits)
    assert float(text) == round(number, digits)
    assert (text[0] in "+-") == (float(text) != 0.0)


@given(st.one_of(st.floats(1e-4, 1), st.floats(0.0499, 0.0501)))
def test_a_p_value_as_text_is_significant_where_the_number_is(p: float) -> None:
    assert (float(p_text(p)) < 0.05) == (p < 0.05)
