"""The report in a real browser and the tables as pdfLaTeX sets them, and that hostile names and texts stay text."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.results import QUERIES, large_results, make_result, measured, query_ids, simulate, write_experiment

from unimoe.analysis import drilldown
from unimoe.analysis.analysis import Analysis
from unimoe.analysis.drilldown import MOST_CASES, QueryCase, drill_down
from unimoe.analysis.report import write_report, write_tables
from unimoe.results import DrillDown, QueryDetail, Task, write_result
from unimoe.results.folder import Results, load_all_results

if TYPE_CHECKING:  # of the group "readers"
    from playwright.sync_api import Browser, Dialog, Page

HOSTILE = r"""<script>alert(1)</script> & a_b %d \n "q" 'r' ${x} </script><img src=x onerror=alert(2)> {{ 7*7 }}"""
ARM = "_<img src=x onerror=alert(3)>&_%"
TEXTS = (
    HOSTILE,
    "</script><script>alert(4)</script>",
    "مرحبا <b>שלום</b>",
    "line\u2028separator \u202eturned",
    "plain query",
)

Open = Callable[..., "Page"]
UNFOLD = "for (const details of document.querySelectorAll('details')) details.open = true"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two seeds, both tasks, and nothing in it that is safe to paste into HTML."""
    folder = tmp_path_factory.mktemp("hostile")
    scores = simulate(2, 20, 0.1, rng=np.random.default_rng(5))
    specialist, joint = (np.clip(of_arm, 0.0, 1.0) for of_arm in scores)
    details = {
        query_id: QueryDetail(
            text=f"{TEXTS[i % len(TEXTS)]} {i}", relevant={f"<d{i}>": 2, "e": 1}, ranks={f"<d{i}>": i + 1, "e": None}
        )
        for i, query_id in enumerate(query_ids(20))
    }
    tasks: tuple[tuple[Task, str], ...] = (("reranking", "rank_only"), ("embedding", "emb_only"))
    given: dict[str, Any] = {"dataset": HOSTILE, "identity": {"experiment": HOSTILE}}
    for task, word in tasks:
        for arm, matrix in ((f"{word}{ARM}", specialist), (f"joint{ARM}", joint)):
            for result in measured(arm, matrix, task=task, **given):
                write_result(folder, result, DrillDown(queries=details))
    return write_report(Analysis(load_all_results(folder), iterations=50))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an experiment as most people have it."""
    folder = tmp_path_factory.mktemp("plain")
    write_experiment(folder)
    return write_report(Analysis(load_all_results(folder), iterations=20))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("needs Chromium: install Debian's package chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: uv sync --group readers")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_report(browser: Browser, report: Path) -> Iterator[Open]:
    """Opens a report from disk; afterwards: no message on the console, no dialog, no request but the file itself."""
    heard: list[str] = []
    expected: list[str] = []
    contexts = []

    def refuse(dialog: Dialog) -> None:
        heard.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def opened(path: Path = report, *, unfolded: bool = True, **options: Any) -> Page:
        contexts.append(browser.new_context(**options))
        page: Page = contexts[-1].new_page()
        page.on("console", lambda message: heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("dialog", refuse)
        page.on("request", lambda request: heard.append(f"request: {request.url}"))
        expected.append(f"request: {path.as_uri()}")
        page.goto(path.as_uri())
        if unfolded:
            page.evaluate(UNFOLD)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert heard == expected


def column(page: Page, position: int) -> list[str]:
    texts: list[str] = page.locator(f"#queries tbody tr > :nth-child({position})").all_inner_texts()
    return texts


def test_hostile_names_and_texts_are_text(open_report: Open) -> None:
    page = open_report()
    assert HOSTILE in page.locator("h1").inner_text()
    assert HOSTILE in page.title()
    assert f"joint{ARM}" in page.locator("#verdicts").inner_text()
    shown = "\n".join(column(page, 2))
    for text in (TEXTS[0], TEXTS[1], TEXTS[2]):
        assert text in shown
    assert "<d7>: 8 8 → 8 8" in page.locator("#queries").inner_text()
    assert page.locator("img, b, script[src]").count() == 0
    assert page.locator("script").count() == 2


def test_without_javascript_there_is_a_table(open_report: Open) -> None:
    page = open_report(java_script_enabled=False, unfolded=False)
    assert page.locator("#queries tbody tr").count() == 25
    page.locator("#drilldown > summary").click()
    assert not page.locator("#queries-search").is_visible()
    assert "a browser with JavaScript" in page.locator("#queries-status").inner_text()
    assert page.locator(".verdict").count() == 2
    assert page.locator("main table").count() >= 4


def test_a_telephone_answers_on_its_first_screen(open_report: Open, plain: Path) -> None:
    """The page was 18,000 pixels long there, with the second finding below the first screen."""
    page = open_report(plain, viewport={"width": 390, "height": 844}, unfolded=False)
    for chosen in (".headline", ".first dd"):
        for found in page.locator(chosen).all():
            box = found.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= 844
            assert box["x"] + box["width"] <= 390
    assert page.locator(".first dt").all_inner_texts() == ["Do", "Baselines"] * 2
    assert page.evaluate("document.documentElement.scrollHeight") < 3 * 844
    assert page.locator("table").first.is_visible() is False


def test_a_box_that_hides_columns_says_so_and_keeps_the_names(open_report: Open, plain: Path) -> None:
    """p and the average were cut at 500 pixels, with nothing to say that there was more."""
    page = open_report(plain, viewport={"width": 400, "height": 800})
    page.wait_for_selector(".wide")
    boxes = page.locator(".scroll").all()
    wide = [box for box in boxes if box.evaluate("box => box.scrollWidth > box.clientWidth")]
    says = "box => getComputedStyle(box, '::before').content"
    assert ["more" in box.evaluate(says) for box in boxes] == [box in wide for box in boxes]
    tests = page.locator("#significance .scroll")
    assert tests.get_attribute("class") == "scroll wide"
    tests.evaluate("box => box.scrollTo(10000, 0)")
    name, last = (tests.locator(f"tbody tr:nth-child(2) > :{which}-child").first for which in ("first", "last"))
    for cell in (name, last):
        box = cell.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 400


def test_a_desk_shows_figures_as_wide_as_the_page_and_whole(open_report: Open, plain: Path) -> None:
    page = open_report(plain, viewport={"width": 1400, "height": 900})
    main, figure = (page.locator(chosen).first.bounding_box() for chosen in ("main", "#findings .figure"))
    assert main is not None
    assert figure is not None
    assert figure["width"] > 0.98 * main["width"]
    assert page.locator(".wide").count() == 0


def test_a_screen_reader_says_of_each_figure_what_its_caption_says(open_report: Open, plain: Path) -> None:
    page = open_report(plain)
    captions = page.locator("figcaption").all_inner_texts()
    assert len(captions) > 2
    assert [page.get_by_role("img", name=caption, exact=True).count() for caption in captions] == [1] * len(captions)


def test_search_filters_and_announces_the_count(open_report: Open) -> None:
    page = open_report()
    status = page.locator("#queries-status")
    assert status.get_attribute("aria-live") == "polite"
    assert status.inner_text() == "40 queries, 40 shown"
    search = page.get_by_label("Search texts, ids, documents")
    search.fill("PLAIN query")
    assert status.inner_text() == "8 of 40 queries match, 8 shown"
    assert all("plain query" in text for text in column(page, 2))
    page.get_by_label("Compared on").select_option(index=1)
    assert status.inner_text() == "4 of 40 queries match, 4 shown"
    assert all(text.startswith("reranking/") for text in column(page, 1))
    search.fill("<d7>")
    assert status.inner_text() == "1 of 40 queries match, 1 shown"
    search.fill("absent")
    assert status.inner_text() == "No query matches"
    assert column(page, 2) == []


@pytest.mark.usefixtures("without_figures")  # the page holds SVG
def test_a_full_tier_stays_small_and_sorts(open_report: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relevant = {f"document-{i}-of-a-long-name": 1 for i in range(40)}
    ranks: dict[str, tuple[int | None, ...]] = dict.fromkeys(relevant, (123, 4567, None))

    def with_long_texts(*given: Any) -> tuple[QueryCase, ...]:
        text = "word " * 400
        cases = drill_down(*given)
        return tuple(replace(c, text=text, relevant=relevant, first_ranks=ranks, second_ranks=ranks) for c in cases)

    monkeypatch.setattr(drilldown, "drill_down", with_long_texts)
    path = write_report(Analysis(large_results(tmp_path, seeds=2), iterations=20))
    assert path.stat().st_size < 10 * 2**20
    page = open_report(path, viewport={"width": 360, "height": 740})
    order = page.locator("details.section").evaluate_all("sections => sections.map(section => section.id)")
    assert order.index("significance") < order.index("overview") < order.index("comparison")  # then scores
    shown = re.fullmatch(r"(\d+) queries, 50 shown", page.locator("#queries-status").inner_text())
    assert shown is not None
    assert 2500 < int(shown[1]) <= MOST_CASES
    page.locator("#queries thead th", has_text=re.compile("^Difference")).locator("button").click()
    values = [float(text.replace("−", "-")) for text in column(page, 5)]
    assert values == sorted(values)
    page.get_by_role("button", name="Show more").click()
    assert page.locator("#queries tbody tr").count() == 100
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


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

HOSTILE_NAMES = (
    "<script>alert('x')</script>",
    "& % $ # _ { } ~ ^ \\",
    "\\input{stolen} \\end{table*} \\undefined",
    "[bold]x[/] *star* --- ``q'' ,, ?` !`",
    "中文数据集 한국어 العربية 😀👩‍🔬 α≥Δ",
    "x[31m\u202eevil e\u0301 café ŁódźȘ «»",
    "a_very_long_name_without_any_space" * 2,
)


def compiled(results: Results, layout: str, folder: Path) -> tuple[list[Path], str]:
    """Set all tables of results in a paper without fault; return their files and the log."""
    write_tables(Analysis(results, iterations=200))
    files = sorted((results.output_dir / "analysis" / "tables").glob("*.tex"))
    tables = "\n".join(f"\\input{{{path.as_posix()}}}\n\\clearpage" for path in files)
    document = (
        f"\\documentclass[{layout}]{{article}}{PREAMBLE}\\begin{{document}}\nText.\n{tables}\n\\end{{document}}\n"
    )
    (folder / "paper.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape", "paper.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=600, check=False)
    log = (folder / "paper.log").read_text(encoding="utf-8", errors="replace")
    assert done.returncode == 0, log[-3000:]
    wide = [m[0] for m in re.finditer(r"Overfull \\hbox \(([\d.]+)pt.*", log) if float(m[1]) > TOLERANCE]
    assert wide + re.findall(r".*(?:Float too large|Missing character).*", log) == []
    return files, log


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex; .ci/run installs it")
@pytest.mark.parametrize("layout", ["10pt", "10pt,twocolumn"])
class TestPaper:
    """The tables in a paper of one column, and in one of two."""

    def test_tables_of_fifteen_datasets_five_arms_and_five_seeds_fit_pages(self, tmp_path: Path, layout: str) -> None:
        files, log = compiled(large_results(tmp_path / "outputs", dict.fromkeys(QUERIES, 12)), layout, tmp_path)
        widths = [float(width) for width in re.findall(r"^width ([\d.]+)pt", log, flags=re.MULTILINE)]
        assert max(widths) < 570.0  # on a line of 345 pt, letters of 9 pt stay above 5.4
        assert len(widths) == sum(path.read_text().count(r"\begin{tabular}") for path in files)

    def test_hostile_names_are_set_as_text(self, tmp_path: Path, layout: str) -> None:
        rows = [
            make_result(arm, seed, [0.1 * k, 0.5, 0.6], dataset=dataset, caveats=HOSTILE_NAMES)
            for dataset in HOSTILE_NAMES
            for k, arm in enumerate(("zero_shot", "rank_only_r8", "joint_r8", *HOSTILE_NAMES[:2]))
            for seed in ((None,) if arm == "zero_shot" else (0, 1))
        ]
        _, log = compiled(Results(tmp_path / "outputs", rows), layout, tmp_path)
        assert "stolen.tex" not in log
