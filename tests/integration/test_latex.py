"""The tables as pdfLaTeX sets them, in a paper of one column and in one of two."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.results import QUERIES, large_results, make_result, write_experiment

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.compare import Results, load_all_results
from unimoe.analysis.tables import Table
from unimoe.analysis.tables.comparisons import comparisons_table
from unimoe.analysis.tables.gates import gates_table
from unimoe.analysis.tables.mteb import mteb_table, mteb_tasks_table
from unimoe.analysis.tables.scores import generate_comparison_table, overview_table, training_table

pytestmark = [
    pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex; .ci/run installs it"),
    pytest.mark.parametrize("layout", ["10pt", "10pt,twocolumn"]),
]

PREAMBLE = r"""
\usepackage[T1]{fontenc}
\usepackage{mathptmx}
\usepackage{booktabs}
\usepackage{graphicx}
\newsavebox\measured
\let\shrink\resizebox
\renewcommand\resizebox[3]{\sbox\measured{#3}\typeout{width \the\wd\measured}\shrink{#1}{#2}{\usebox\measured}}
"""
"""Times, whose T1 fonts come with every TeX; and each table's width before it shrinks, written to the log."""

TOLERANCE = 5.0
"""Points by which a line may stick out."""

HOSTILE = (
    "<script>alert('x')</script>",
    "& % $ # _ { } ~ ^ \\",
    "\\input{stolen} \\end{table*} \\undefined",
    "[bold]x[/] *star* --- ``q'' ,, ?` !`",
    "中文数据集 한국어 العربية 😀👩‍🔬 α≥Δ",
    "x[31m\u202eevil e\u0301 café ŁódźȘ «»",
    "a_very_long_name_without_any_space" * 2,
)


def all_tables(analysis: Analysis) -> list[Table]:
    """Those with something in them."""
    results, comparisons = analysis.results, analysis.comparisons
    made = [
        gates_table(analysis.outcomes),
        overview_table(results, comparisons),
        generate_comparison_table(results, analysis.all_comparisons),
        comparisons_table(results, comparisons),
        comparisons_table(results, [c for c in comparisons if not c.parts], before_after=True),
        mteb_table(results),
        mteb_tasks_table(results),
        training_table(results),
    ]
    return [table for table in made if table.groups]


def compiled(results: Results, layout: str, folder: Path) -> tuple[list[Path], str]:
    """Set all tables of results in a paper without fault; return their files and the log."""
    for table in all_tables(Analysis(results, iterations=200)):
        table.write(folder / "tables")
    files = sorted((folder / "tables").glob("*.tex"))
    tables = "\n".join(f"\\input{{{path.as_posix()}}}\n\\clearpage" for path in files)
    document = (
        f"\\documentclass[{layout}]{{article}}{PREAMBLE}\\begin{{document}}\nText.\n{tables}\n\\end{{document}}\n"
    )
    (folder / "paper.tex").write_text(document, encoding="utf-8")
    command: Sequence[str] = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape", "paper.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=600, check=False)
    log = (folder / "paper.log").read_text(encoding="utf-8", errors="replace")
    assert done.returncode == 0, log[-3000:]
    wide = [m[0] for m in re.finditer(r"Overfull \\hbox \(([\d.]+)pt.*", log) if float(m[1]) > TOLERANCE]
    assert wide + re.findall(r".*(?:Float too large|Missing character).*", log) == []
    return files, log


def test_tables_of_a_small_experiment_fit_a_page_each(tmp_path: Path, layout: str) -> None:
    write_experiment(tmp_path / "outputs", logs=False, caveats=["smoke run: unfit for decisions"])
    files, log = compiled(load_all_results(tmp_path / "outputs"), layout, tmp_path)
    pages = re.search(r"Output written on paper\.pdf \((\d+) page", log)
    assert pages
    assert len(files) <= int(pages[1]) <= len(files) + 1  # the first float may leave the text its page


def test_tables_of_fifteen_datasets_five_arms_and_five_seeds_fit_their_pages(tmp_path: Path, layout: str) -> None:
    files, log = compiled(large_results(tmp_path / "outputs", dict.fromkeys(QUERIES, 12)), layout, tmp_path)
    widths = [float(width) for width in re.findall(r"^width ([\d.]+)pt", log, flags=re.MULTILINE)]
    assert max(widths) < 570.0  # on a line of 345 pt, letters of 9 pt stay above 5.4
    assert len(widths) == sum(path.read_text().count(r"\begin{tabular}") for path in files)


def test_hostile_names_are_set_as_text(tmp_path: Path, layout: str) -> None:
    rows = [
        make_result(arm, seed, [0.1 * k, 0.5, 0.6], dataset=dataset, caveats=HOSTILE)
        for dataset in HOSTILE
        for k, arm in enumerate(("zero_shot", "rank_only_r8", "joint_r8", *HOSTILE[:2]))
        for seed in ((None,) if arm == "zero_shot" else (0, 1))
    ]
    _, log = compiled(Results(tmp_path / "outputs", rows), layout, tmp_path)
    assert "stolen.tex" not in log
