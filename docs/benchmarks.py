"""Write docs/benchmarks.md and its figure from benchmarks/history.jsonl.

uv run python docs/benchmarks.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
HISTORY = DOCS.parent / "benchmarks" / "history.jsonl"
FIGURE = "figures/benchmarks.svg"

HEAD = """# Benchmarks over time

This page shows what each script of `benchmarks/` found at each commit where it was run. It shows you a slower step, or
an interval that covers less, before a user meets it.

`make benchmarks` runs all scripts, which takes hours, and appends a line each to `benchmarks/history.jsonl`.
`make benchmarks-short` runs the short ones at small sizes, once a week in CI. Numbers of two machines, or of other
arguments, are not compared: each has a curve of its own. [Performance](performance.md) has the ratios that the manual
claims.
"""
_WIDTH, _HEIGHT, _COLUMNS = 320, 110, 3

Series = dict[tuple[str, str, str, str], list[tuple[str, str, float]]]
"""Date, commit and value by script, arguments, machine and name of the number."""


def numbers(found: dict[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of what a script found, with the names that lead to them."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from numbers(value, f"{before}{name}, ")
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "reps":
            yield before + name, float(value)


def series(lines: list[dict[str, Any]]) -> Series:
    """Return the curves of a history, in its order."""
    curves: Series = {}
    for line in lines:
        facts = line["machine"]
        place = f"{facts['accelerator'] or facts['processor']}, {facts['cores']} cores"
        commit = f"{(line['commit'] or 'unknown')[:8]}{'+' if line['dirty'] else ''}"
        for name, value in numbers({**line["found"], "seconds in all": line["seconds"]}):
            key = (line["script"], " ".join(line["arguments"]), place, name)
            curves.setdefault(key, []).append((line["date"], commit, value))
    return curves


def _panel(title: str, below: str, values: list[float]) -> str:
    low, high = min(values), max(values)
    step = (_WIDTH - 40) / max(len(values) - 1, 1)
    places = [(20 + step * at, 85 - 40 * ((value - low) / (high - low) if high > low else 0.5))
              for at, value in enumerate(values)]  # fmt: skip
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in places)
    return (
        f'<text x="20" y="16" font-weight="bold">{escape(title)}</text><text x="20" y="30">{escape(below)}</text>'
        f'<polyline points="{line}" fill="none" stroke="#1f77b4"/><g fill="#1f77b4">{dots}</g>'
        f'<text x="20" y="103">{low:g} to {high:g}, last {values[-1]:g}</text>'
    )


def figure(curves: Series) -> str:
    """Return an SVG with a panel for each curve, over the runs in their order."""
    rows = -(-len(curves) // _COLUMNS) or 1
    panels = [
        f'<g transform="translate({_WIDTH * (at % _COLUMNS)},{_HEIGHT * (at // _COLUMNS)})">'
        f"{_panel(f'{script} {arguments}'.strip(), f'{name} ({place})', [value for *_, value in found])}</g>"
        for at, ((script, arguments, place, name), found) in enumerate(curves.items())
    ]
    size = f'viewBox="0 0 {_WIDTH * _COLUMNS} {_HEIGHT * rows}" width="{_WIDTH * _COLUMNS}"'
    style = 'font-family="sans-serif" font-size="11" fill="#333"'
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    return "\n".join([begin, '<rect width="100%" height="100%" fill="#fff"/>', *panels, "</svg>\n"])


def page(curves: Series) -> str:
    """Return the page: the figure, and a row for each curve."""
    if not curves:
        return f"{HEAD}\nNothing has been run yet.\n"
    rows = []
    for (script, arguments, place, name), found in curves.items():
        date, commit, last = found[-1]
        before = f"{found[-2][2]:g}" if len(found) > 1 else "–"
        what = f"`{script} {arguments}`".replace(" `", "`")
        rows.append(f"| {what} | {name} | {last:g} | {before} | {len(found)} | {date}, `{commit}` | {place} |")
    return (
        f"{HEAD}\n![A panel for each number, over the runs]({FIGURE})\n\n"
        "| script | number | last | before | runs | when, at which commit (+: with changes) | machine |\n"
        "|---|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def main() -> None:
    """Write both."""
    curves = series([json.loads(line) for line in HISTORY.read_text(encoding="utf-8").splitlines()])
    (DOCS / FIGURE).write_text(figure(curves), encoding="utf-8", newline="\n")
    (DOCS / "benchmarks.md").write_text(page(curves), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
