"""The report as one HTML file that needs nothing else, and as Markdown for a terminal, a repository or a chat."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from unimoe.analysis.formats import signed
from unimoe.analysis.report.cards import Card
from unimoe.analysis.report.provenance import Fact
from unimoe.analysis.report.queries import Queries
from unimoe.analysis.tables import Table, escape_markdown

FIRST_ROWS = 25  # rows of the drill-down that are in the page itself, for readers without JavaScript
FOLD_ABOVE = 80  # rows: longer tables are folded; print opens them


@dataclass(frozen=True)
class DrawnFigure:
    """A figure on disk, as the name of a PNG below ``figures/``, and on the page, as an ``svg`` element."""

    file: str
    caption: str
    svg: str
    inches: float  # its width in print, so that text has one size on the page as well
    leads: bool  # to the top of the page


@dataclass(frozen=True)
class Contents:
    """What the report says, figures apart."""

    experiment: str
    caveats: tuple[str, ...]
    cards: tuple[Card, ...]
    findings: tuple[str, ...]  # where no gate was judged, what comparisons of systems say; a sentence each
    origin: str  # which file registered the gates, or that none did; empty without gates
    reading: tuple[str, ...]  # how to read all that, a paragraph each
    tables: tuple[Table, ...]
    queries: Queries
    missing: tuple[str, ...]  # what the analysis would have used and did not find
    provenance: tuple[Fact, ...]

    @property
    def headlines(self) -> tuple[tuple[str, tuple[Card, ...]], ...]:
        """The cards whose sentences open the report, by what they may decide; one kind alone has no heading."""
        registered = tuple(card for card in self.cards if card.registered)
        others = tuple(card for card in self.cards if not card.registered)
        if registered and others:
            own = "Not registered: default gates for all other pairs of arms, which decide nothing"
            return ("Registered gates", registered), (own, others)
        return (("", self.cards),) if self.cards else ()


def html_page(contents: Contents, figures: Sequence[DrawnFigure]) -> str:
    """Return the whole page. Everything that comes from results is escaped; SVG and tables arrive escaped.

    The page's policy allows no request at all and no script but its own, by hash, so that even a name that escaped
    escaping could not run. Style stays open because SVG and HTML set colours and positions in attributes.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["signed"] = signed
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    script = _packaged("report.js")
    leading, others = _leading(figures)
    return environment.from_string(_packaged("report.html.j2")).render(
        contents=contents,
        tables=[(table, _scrolling(table), sum(len(g.rows) for g in table.groups)) for table in contents.tables],
        leading=[(figure, Markup(figure.svg)) for figure in leading],  # noqa: S704 - our own drawing
        figures=[(figure, Markup(figure.svg)) for figure in others],  # noqa: S704 - our own drawing
        first_rows=FIRST_ROWS,
        fold_above=FOLD_ABOVE,
        style=Markup(_packaged("report.css")),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def markdown_page(contents: Contents, figures: Sequence[DrawnFigure]) -> str:
    """Return the whole report, except for the drill-down, which needs a page that sorts and searches."""
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - Markdown
    environment.filters["escaped"] = escape_markdown
    leading, others = _leading(figures)
    template = environment.from_string(_packaged("report.md.j2"))
    page = template.render(contents=contents, leading=leading, figures=others)
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"  # parts that have nothing to say leave blank lines


def _packaged(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _leading(figures: Sequence[DrawnFigure]) -> tuple[list[DrawnFigure], list[DrawnFigure]]:
    """Return the figures for the top, or the first one where none is made for it, and the rest."""
    top = [figure for figure in figures if figure.leads] or list(figures[:1])
    return top, [figure for figure in figures if figure not in top]


def _scrolling(table: Table) -> Markup:
    """Put a wide table into a box that scrolls, by keyboard too; its notes stay where they can be read."""
    element, end, notes = table.to_html().partition("</table>")
    box = Markup('<div class="scroll" tabindex="0" role="region" aria-label="{}">').format(table.title)
    return box + Markup(element + end) + Markup("</div>") + Markup(notes)  # noqa: S704 - escaped by the table
