"""The table type in its formats, and numbers and names as text."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.results import make_result

from unimoe.analysis.compare import Results, generate_comparison_table
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table, escape_latex, escape_markdown
from unimoe.analysis.tables.cells import short_names


class TestLatex:
    def test_has_booktabs_bold_best_underlined_second_and_subscript_std(self) -> None:
        arms = (("bm25", None, 0.5), ("joint_r8", 0, 0.6), ("joint_r8", 1, 0.8), ("rank_only_r8", 0, 0.75))
        rows = [make_result(arm, seed, [score]) for arm, seed, score in arms]
        latex = generate_comparison_table(Results(Path("outputs"), rows)).to_latex()
        assert "\\toprule" in latex
        assert r"rank\_only\_r8 & \textbf{75.00} &" in latex
        assert r"joint\_r8 & \underline{70.00} & $_{\pm 14.14}$ &" in latex
        assert r"r@{}l" in latex  # what stands behind a number does not move its decimals

    def test_a_group_longer_than_a_page_is_cut(self) -> None:
        rows = tuple((Cell(f"row {i}"), Cell("1.00", value=1.0)) for i in range(100))
        latex = Table("long", "Long", ("Name", "Value"), (RowGroup("all", rows),)).to_latex()
        assert latex.count(r"\begin{table}") == latex.count(r"\emph{all}") == 3
        assert [latex.count(f"row {i} &") for i in range(100)] == [1] * 100

    def test_notes_are_below_the_float_and_long_ones_text_behind_it(self) -> None:
        group = RowGroup("", tuple((Cell(f"{i}"),) for i in range(10)))
        short, long = (Table("notes", "Notes", ("Name",), (group,), ("word " * n,)).to_latex() for n in (20, 2000))
        assert short.index("word word") < short.index(r"\end{table}")
        assert long.index("word word") > long.index(r"\end{table}")

    def test_headings_of_many_columns_are_rotated(self) -> None:
        row = (Cell("scifact"), *(Cell("70.00", value=70.0) for _ in range(12)))
        columns = ("Dataset", *(f"joint_variant_{i}" for i in range(12)))
        latex = Table("upright", "Upright", columns, (RowGroup("", (row,)),)).to_latex()
        assert latex.count(r"\rotatebox{90}") == 12
        assert r"\rotatebox" not in Table("level", "Level", columns[:12], (RowGroup("", (row[:12],)),)).to_latex()

    @pytest.mark.parametrize(
        ("text", "escaped"),
        [
            ("\\_{}", r"\textbackslash{}\_\{\}"),
            ("[a]*", "{[}a{]}{*}"),
            ("a--b", "a-{}-b"),
            ("``q''", r"\textasciigrave{}\textasciigrave{}q'{}'"),
            ("cafe\u0301", "café"),
            ("中文 α", r"\texttt{U+4E2D U+6587} \texttt{U+03B1}"),
            ("x" * 50, "x" * 39 + r"\allowbreak{}" + "x" * 11),
        ],
    )
    def test_escapes(self, text: str, escaped: str) -> None:
        assert escape_latex(text) == escaped


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("joint_r8 missing", "joint_r8 missing"),
        ("_x_", r"\_x\_"),
        ("a\nb", "a b"),
        ("a|b", "a&#124;b"),
        ("**b**", r"\*\*b\*\*"),
    ],
)
def test_markdown_escapes(text: str, escaped: str) -> None:
    assert escape_markdown(text) == escaped


@pytest.mark.parametrize(("value", "text"), [(-0.001, "-0.001"), (0.0, "0.00"), (-0.0, "0.00"), (1e-12, "0.00000000")])
def test_the_end_of_an_interval_stays_on_its_side_of_zero(value: float, text: str) -> None:
    assert Cell.signed(value, keep_side=True).text == text


@pytest.mark.parametrize(("p", "text"), [(0.05, "0.0500"), (0.00004, "<0.0001"), (None, ABSENT)])
def test_p_stays_on_its_side_of_the_level(p: float | None, text: str) -> None:
    assert Cell.p(p).text == text


def test_long_names_lose_what_they_share_and_no_two_become_alike() -> None:
    cut = short_names(["scifact-with-bm25-test", "nfcorpus-with-bm25-test"], 12)
    assert list(cut.values()) == ["scifa…5-test", "nfcor…5-test"]
    names = [f"{a}{'x' * 20}{b}{'y' * 20}" for a in "pq" for b in "mn"]
    assert len(set(short_names(names, 12).values())) == 4
    taken = short_names(["/data/beir/scifact", "…eir/scifact"], 12)
    assert taken == {"/data/beir/scifact": "/data…cifact", "…eir/scifact": "…eir/scifact"}
