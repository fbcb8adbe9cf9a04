"""A finding, a table and a figure are made from the same rows, so that they give the same numbers."""

from __future__ import annotations

import csv
import html
import re
from pathlib import Path

import pytest
from support.results import write_experiment
from support.scripts import call_unimoe, successful


def rows(folder: Path, table: str) -> list[dict[str, str]]:
    """The rows of a table; its notes, which have one column, are left out."""
    with (folder / "analysis" / "tables" / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]


def drawn(folder: Path) -> list[str]:
    """The texts of the report's figures."""
    page = (folder / "analysis" / "report.html").read_text("utf-8")
    figures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert figures
    return [html.unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", "\n".join(figures))]


def said(folder: Path) -> str:
    """The report in plain text, its tables and figures left out."""
    page = (folder / "analysis" / "report.html").read_text("utf-8")
    page = re.sub(r"<(svg|table|script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page)).split())


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("example") / "out"
    successful(call_unimoe("compare", "--example", "--output-dir", folder))
    return folder


def test_each_comparison_is_drawn_with_the_numbers_of_its_row(example: Path) -> None:
    compared, figures = rows(example, "significance"), drawn(example)
    assert len(compared) == 6
    for row in compared:
        delta, low, high, p = (float(row[name]) for name in ("Delta", "Low", "High", "p (Holm)"))
        assert row["Comparison"] in figures
        assert f"{delta:+.2f} [{low:+.2f}, {high:+.2f}]" in figures
        assert f"p {p:.4f}{' *' * (p < 0.05)}".replace("p 0.0000", "p <0.0001") in figures


def test_the_headline_of_a_comparison_has_the_numbers_of_its_row(example: Path) -> None:
    of = {row["Comparison"]: row for row in rows(example, "significance")}
    scores = {row["System"]: float(row["ndcg@10"]) for row in rows(example, "comparison")}
    row = of["joint − bm25"]
    delta, low, high, p = (float(row[name]) for name in ("Delta", "Low", "High", "p (Holm)"))
    assert scores["joint"] - scores["bm25"] == pytest.approx(delta)
    headline = f"bm25 has the highest nDCG@10 ({scores['bm25']:.2f}), {-delta:.1f} points above joint"
    assert f"{headline} [{-high:.1f}, {-low:.1f}] (p {p:.4f}".replace("(p 0", "(p ") in said(example)
    assert f"specialist above zero_shot ({-float(of['zero_shot − specialist']['Delta']):.1f} points)" in said(example)
    best = [row["System"] for row in rows(example, "standings") if row["Among the best"] == "yes"]
    assert f"{len(best)} of the 4 systems may be the best: {', '.join(best[:-1])} and {best[-1]}." in said(example)


def test_the_sentence_and_the_line_of_a_gate_have_the_numbers_of_its_row(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    successful(call_unimoe("analyze", "--output-dir", tmp_path))
    judged = rows(tmp_path, "gates")
    assert len(judged) == 2
    for row in judged:
        tir, low, high = (float(row[name]) for name in ("TIR (%)", "Low", "High"))
        assert f"(TIR {tir:+.2f} %, 95 % interval [{low:+.2f}, {high:+.2f}])" in said(tmp_path)
        assert f"{tir:+.2f} [{low:+.2f}, {high:+.2f}]" in drawn(tmp_path)
        assert f"{row['Finding'].upper()}: at least {row['Bound'].removeprefix('≥ ')} %" in drawn(tmp_path)
