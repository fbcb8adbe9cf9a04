"""The report in a real browser: what a reader does with it, and what hostile names and texts do not."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Dialog, Locator, Page, sync_playwright
from support.large_experiments import large_results
from support.results import make_result, query_ids, simulate, write_experiment

from unimoe.analysis import drilldown
from unimoe.analysis.analysis import Analysis
from unimoe.analysis.drilldown import MOST_CASES, QueryCase, drill_down
from unimoe.analysis.gates.definitions import Gate
from unimoe.analysis.gates.findings import Finding
from unimoe.analysis.report import write_report
from unimoe.results import DrillDown, QueryDetail, Task, write_result
from unimoe.results.folder import Results, load_all_results

HOSTILE = r"""<script>alert(1)</script> & a_b %d \n "q" 'r' ${x} </script><img src=x onerror=alert(2)> {{ 7*7 }}"""
ARM = "_<img src=x onerror=alert(3)>&_%"
TEXTS = (
    HOSTILE,
    "</script><script>alert(4)</script>",
    "مرحبا <b>שלום</b>",
    "line\u2028separator \u202eturned",
    "plain query",
)

Open = Callable[..., Page]

UNFOLD = "for (const details of document.querySelectorAll('details')) details.open = true"

CONTRAST = """(elements) => elements.map((element) => {
  const parsed = (colour) => {
    const context = new OffscreenCanvas(1, 1).getContext("2d");
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (rgb) => rgb.slice(0, 3)
    .map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  let behind = element;
  while (parsed(getComputedStyle(behind).backgroundColor)[3] < 255) behind = behind.parentElement;
  const style = getComputedStyle(element);
  const text = luminance(parsed(element instanceof SVGElement ? style.fill : style.color));
  const ground = luminance(parsed(getComputedStyle(behind).backgroundColor));
  return (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
})"""


def write_hostile_experiment(folder: Path, count: int = 20) -> None:
    """Two seeds, both tasks, and nothing in it that is safe to paste into HTML."""
    rng = np.random.default_rng(5)
    specialist, joint = (np.clip(scores, 0.0, 1.0) for scores in simulate(2, count, 0.1, rng=rng))
    detail = DrillDown(
        queries={
            query_id: QueryDetail(
                text=f"{TEXTS[i % len(TEXTS)]} {i}",
                relevant={f"<d{i}>": 2, "e": 1},
                ranks={f"<d{i}>": i + 1, "e": None},
            )
            for i, query_id in enumerate(query_ids(count))
        }
    )
    specialists: dict[Task, str] = {"reranking": "rank_only", "embedding": "emb_only"}
    for task, word in specialists.items():
        for seed in (0, 1):
            for arm, matrix in ((f"{word}{ARM}", specialist), (f"joint{ARM}", joint)):
                result = make_result(
                    arm, seed, matrix[seed].tolist(), task=task, dataset=HOSTILE, identity={"experiment": HOSTILE}
                )
                write_result(folder, result, detail)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip("needs Chromium: install Debian's package chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    write_hostile_experiment(folder)
    return write_report(Analysis(load_all_results(folder), iterations=50))


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
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
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
    return page.locator(f"#queries tbody tr > :nth-child({position})").all_inner_texts()


def head(page: Page, name: str) -> Locator:
    return page.locator("#queries thead th", has_text=re.compile(rf"^{name}"))


def number(text: str) -> float:
    return float(text.replace("−", "-"))


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
    assert page.locator("main table").count() >= 5


def test_the_first_screen_tells_the_finding_and_shows_it(open_report: Open) -> None:
    page = open_report(viewport={"width": 1280, "height": 900}, unfolded=False)
    places = [page.locator(chosen).first.bounding_box() for chosen in (".headline", "#findings svg")]
    tops = [box["y"] for box in places if box]
    assert tops == sorted(tops)
    assert tops[1] < 900
    assert page.locator(".headline").count() == page.locator(".verdict[open]").count() == 2
    assert "joint_<img" in page.locator("#verdicts").inner_text()


def test_a_telephone_answers_on_its_first_screen(open_report: Open, tmp_path: Path) -> None:
    """The page was 18,000 pixels long there, with the second finding below the first screen."""
    write_experiment(tmp_path)
    path = write_report(Analysis(load_all_results(tmp_path), iterations=20))
    page = open_report(path, viewport={"width": 390, "height": 844}, unfolded=False)
    for chosen in (".headline", ".first dd"):
        for found in page.locator(chosen).all():
            box = found.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= 844
            assert box["x"] + box["width"] <= 390
    assert page.locator(".first dt").all_inner_texts() == ["Do", "Baselines"] * 2
    assert page.evaluate("document.documentElement.scrollHeight") < 3 * 844
    assert page.locator("table").first.is_visible() is False


NUMBERS = {"Specialist": 3, "Joint": 4, "Difference": 5, "Adds to TIR": 6}


@pytest.mark.parametrize(("name", "position"), NUMBERS.items())
def test_every_number_sorts_both_ways(open_report: Open, name: str, position: int) -> None:
    page = open_report()
    for _ in range(2):
        head(page, name).locator("button").click()
        order = head(page, name).get_attribute("aria-sort")
        values = [number(text) for text in column(page, position)]
        assert values == sorted(values, reverse=order == "descending")
        assert len(set(values)) > 10
        assert page.locator("#queries th[aria-sort]").count() == 1


def test_the_keyboard_alone_is_enough(open_report: Open) -> None:
    page = open_report()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.parentElement.className") == "verdict"
    page.keyboard.press("Enter")
    assert not page.locator(".verdict .headline").first.is_visible()
    search = page.get_by_label("Search texts, ids, documents")
    search.focus()
    page.keyboard.type("plain")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "queries-place"
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Difference":
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert head(page, "Difference").get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Space")
    assert head(page, "Difference").get_attribute("aria-sort") == "descending"


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read(open_report: Open, scheme: str) -> None:
    page = open_report(color_scheme=scheme)
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    assert dark == (scheme == "dark")
    for chosen in (
        "p", "h1", "h2", "dt", "dd", "td", "th", "caption", "figcaption", "summary", "button", "label",
        ".badge", ".kind", ".notes li", ".spread", "figure text",
    ):  # fmt: skip
        contrasts = page.locator(chosen).evaluate_all(CONTRAST)
        assert not contrasts or min(contrasts) >= 4.5, chosen


def test_paper_shows_what_is_filtered_with_everything_unfolded(open_report: Open) -> None:
    page = open_report(unfolded=False)
    page.locator("#drilldown > summary").click()
    page.get_by_label("Search texts, ids, documents").fill("plain")
    page.emulate_media(media="print")
    assert not page.locator("#queries-search").is_visible()
    assert page.locator("#queries tbody tr").count() == 8
    assert page.locator("#provenance dd").first.is_visible()
    assert len(page.pdf()) > 20_000
    assert page.locator("details[open]").count() == 4  # two verdicts, the picture and the queries, as before


@pytest.mark.usefixtures("without_figures")  # the page holds SVG
def test_a_full_tier_stays_small_and_sorts(open_report: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relevant = {f"document-{i}-of-a-long-name": 1 for i in range(40)}
    ranks: dict[str, tuple[int | None, ...]] = dict.fromkeys(relevant, (123, 4567, None))

    def with_long_texts(results: Results, gate: Gate, found: Finding, limit: int) -> tuple[QueryCase, ...]:
        cases = drill_down(results, gate, found, limit)
        text = "word " * 400
        return tuple(replace(c, text=text, relevant=relevant, first_ranks=ranks, second_ranks=ranks) for c in cases)

    monkeypatch.setattr(drilldown, "drill_down", with_long_texts)
    path = write_report(Analysis(large_results(tmp_path, seeds=2), iterations=20))
    assert path.stat().st_size < 10 * 2**20
    page = open_report(path, viewport={"width": 360, "height": 740})
    shown = re.fullmatch(r"(\d+) queries, 50 shown", page.locator("#queries-status").inner_text())
    assert shown is not None
    assert 2500 < int(shown[1]) <= MOST_CASES
    head(page, "Difference").locator("button").click()
    values = [number(text) for text in column(page, 5)]
    assert values == sorted(values)
    page.get_by_role("button", name="Show more").click()
    assert page.locator("#queries tbody tr").count() == 100
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
