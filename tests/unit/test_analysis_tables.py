from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from rich.console import Console
from support.results import make_result

from unimoe.analysis.compare import Results, generate_comparison_table
from unimoe.analysis.tables import Table, escape_latex, escape_markdown
from unimoe.results import EvalResult


def table(*items: EvalResult) -> Table:
    return generate_comparison_table(Results(Path("outputs"), items))


def shown(made: Table) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(made.to_rich())
    return console.export_text()


@pytest.fixture
def three_arms() -> Table:
    return table(
        make_result("bm25", None, [0.5]),
        make_result("joint_r8", 0, [0.6]),
        make_result("joint_r8", 1, [0.8]),
        make_result("rank_only_r8", 0, [0.75], caveats=["smoke run: unfit for decisions"]),
    )


def test_markdown_has_bold_best_underlined_second_and_subscript_std(three_arms: Table) -> None:
    markdown = three_arms.to_markdown()
    assert "| rank_only_r8 | **75.00** |" in markdown
    assert "| joint_r8 | <ins>70.00</ins><sub>±14.14</sub> |" in markdown
    assert "| bm25 | 50.00 |" in markdown


def test_latex_has_booktabs_bold_best_underlined_second_and_subscript_std(three_arms: Table) -> None:
    latex = three_arms.to_latex()
    assert "\\toprule" in latex
    assert r"rank\_only\_r8 & \textbf{75.00} &" in latex
    assert r"joint\_r8 & \underline{70.00}$_{\pm 14.14}$ &" in latex
    assert latex.count("{") == latex.count("}")


def test_csv_has_full_precision(three_arms: Table) -> None:
    rows = list(csv.DictReader(io.StringIO(three_arms.to_csv())))
    joint = next(row for row in rows if row["Arm"] == "joint_r8")
    assert float(joint["ndcg@10"]) == pytest.approx(70.0)
    assert float(joint["ndcg@10 std"]) == pytest.approx(200**0.5)
    assert next(row for row in rows if row["Arm"] == "bm25")["Seeds"] == ""


def test_terminal_shows_arms_in_order_and_numbers_whole(three_arms: Table) -> None:
    text = shown(three_arms)
    assert text.index("bm25") < text.index("rank_only_r8") < text.index("joint_r8")
    assert "70.00 ±14.14" in text


@pytest.mark.parametrize("render", [Table.to_markdown, Table.to_latex, Table.to_csv, shown])
def test_facts_and_caveats_travel_with_every_form(three_arms: Table, render: object) -> None:
    assert callable(render)
    text = " ".join(render(three_arms).split())
    assert "smoke run: unfit for decisions" in text
    assert "depth 10" in text


def test_what_is_cut_stands_in_the_notes() -> None:
    cut = {"pool": 600, "max_queries": 1, "depth": None, "first_stage": None}
    made = table(make_result("joint_r8", 0, [0.5], task="embedding", identity=cut))
    assert "queries cut to 1, no candidate cut, pool of 600 documents" in made.notes[0]


def test_what_rounds_alike_shares_its_mark_and_one_arm_has_none() -> None:
    made = table(
        make_result("bm25", None, [0.50001]), make_result("joint_r8", 0, [0.5]), make_result("zero_shot", None, [0.1])
    )
    assert [row[1].mark for row in made.groups[0].rows] == ["best", "second", "best"]
    assert table(make_result("joint_r8", 0, [0.5])).groups[0].rows[0][1].mark is None


def test_an_absent_metric_is_a_dash() -> None:
    made = table(
        make_result("joint_r8", 0, [0.5], dataset="a"), make_result("joint_r8", 0, [0.5], dataset="b", metric="map")
    )
    assert made.columns == ("Arm", "ndcg@10", "mrr@10", "map", "Seeds")
    assert [group.rows[0][3].text for group in made.groups] == ["–", "50.00"]


HOSTILE = r"<script>alert('x')</script> & a_b % \c | $d$ {e} #f ~g ^h *i* `j` [k](l)"


def test_hostile_names_stay_text() -> None:
    made = table(
        make_result("joint_r8", 0, [0.5], dataset=HOSTILE), make_result("*x* | [bold]y[/]", 0, [0.4], dataset=HOSTILE)
    )
    markdown, latex = made.to_markdown(), made.to_latex()
    assert "<script>" not in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {len(made.columns) + 1}
    assert r"\textless{}script\textgreater{}" in latex
    assert r"\& a\_b \% \textbackslash{}c \textbar{} \$d\$ \{e\} \#f" in latex
    assert "[bold]y[/]" in shown(made)


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


def test_latex_escapes_once() -> None:
    assert escape_latex("\\_{}") == r"\textbackslash{}\_\{\}"
