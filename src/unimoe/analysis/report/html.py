"""The report as one HTML file that needs nothing else: no network, no folder beside it, no server."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from unimoe.analysis.report.cards import summary, tally
from unimoe.analysis.report.contents import READING, Contents, DrawnFigure
from unimoe.analysis.tables import Table

FIRST_ROWS = 25
"""Rows of the drill-down that stand in the page itself, for readers without JavaScript."""

FOLD_ABOVE = 80
"""Longer tables are folded; print opens them."""


def render(contents: Contents, figures: Sequence[DrawnFigure]) -> str:
    """The whole page. Everything that comes from results is escaped; SVG and tables arrive escaped by their makers.

    The page's policy allows no request at all and no script but its own, by hash, so that even a name that escaped
    escaping could not run. Style stays open because SVG and HTML set colours and positions in attributes.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    script = _packaged("report.js")
    return environment.from_string(_packaged("template.html.j2")).render(
        contents=contents,
        summary=summary(contents.cards),
        tally=tally(contents.cards),
        tables=[(table, _scrolling(table), _length(table)) for table in contents.tables],
        figures=[(figure, Markup(figure.svg)) for figure in figures],  # noqa: S704 - our own drawing
        reading=READING,
        first_rows=FIRST_ROWS,
        fold_above=FOLD_ABOVE,
        style=Markup(_packaged("report.css")),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _packaged(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _scrolling(table: Table) -> Markup:
    """A wide table scrolls inside its own box, by keyboard too; its notes stay where they can be read."""
    element, end, notes = table.to_html().partition("</table>")
    box = Markup('<div class="scroll" tabindex="0" role="region" aria-label="{}">').format(table.title)
    return box + Markup(element + end) + Markup("</div>") + Markup(notes)  # noqa: S704 - escaped by the table


def _length(table: Table) -> int:
    return sum(len(group.rows) for group in table.groups)
