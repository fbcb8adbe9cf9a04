"""The report as one HTML file that needs nothing else, and as Markdown for a terminal, a repository or a chat."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from unimoe.analysis.report.cards import Card
from unimoe.analysis.report.provenance import Fact
from unimoe.analysis.report.queries import Queries
from unimoe.analysis.tables import Table, escape_markdown

FIRST_ROWS = 25
"""Rows of the drill-down that are in the page itself, for readers without JavaScript."""

FOLD_ABOVE = 80
"""Longer tables are folded; print opens them."""


@dataclass(frozen=True)
class DrawnFigure:
    """A figure on disk, as the name of a PNG below ``figures/``, and on the page, as an ``svg`` element.

    Attributes:
        inches: its width in print, so that text has one size on the page as well.
        leads: whether it belongs at the top.
    """

    file: str
    caption: str
    svg: str
    inches: float
    leads: bool


@dataclass(frozen=True)
class Contents:
    """What the report says, figures apart.

    Attributes:
        findings: where no gate was judged, what comparisons of systems say; a sentence each.
        origin: which file registered the gates, or that none did; empty without gates.
        reading: how to read all that, a paragraph each.
        missing: what the analysis would have used and did not find.
    """

    experiment: str
    caveats: tuple[str, ...]
    cards: tuple[Card, ...]
    findings: tuple[str, ...]
    origin: str
    reading: tuple[str, ...]
    tables: tuple[Table, ...]
    queries: Queries
    missing: tuple[str, ...]
    provenance: tuple[Fact, ...]

    @property
    def headlines(self) -> tuple[tuple[str, tuple[Card, ...]], ...]:
        """The cards whose sentences open the report, by what they may decide; one kind alone has no heading."""
        registered = tuple(card for card in self.cards if card.registered)
        others = tuple(card for card in self.cards if not card.registered)
        if registered and others:
            own = "Not registered: the rule's own gates for all else, which decide nothing"
            return ("Registered gates", registered), (own, others)
        return (("", self.cards),) if self.cards else ()


def html_page(contents: Contents, figures: Sequence[DrawnFigure]) -> str:
    """Return the whole page. Everything that comes from results is escaped; SVG and tables arrive escaped.

    The page's policy allows no request at all and no script but its own, by hash, so that even a name that escaped
    escaping could not run. Style stays open because SVG and HTML set colours and positions in attributes.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    script = _packaged("report.js")
    leading, others = _leading(figures)
    return environment.from_string(_packaged("template.html.j2")).render(
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
    return "\n\n".join(_blocks(contents, figures)) + "\n"


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


def _blocks(contents: Contents, figures: Sequence[DrawnFigure]) -> Iterator[str]:
    leading, others = _leading(figures)
    yield f"# {escape_markdown(contents.experiment)}: what the results say"
    if contents.caveats:
        yield "\n".join(f"> **Caveat:** {escape_markdown(caveat)}" for caveat in contents.caveats)
    for heading, of_kind in contents.headlines:
        if heading:
            yield f"{escape_markdown(heading)}:"
        yield "\n".join(f"- **{card.label}** {escape_markdown(card.headline)}" for card in of_kind)
    if contents.findings:
        yield "\n".join(f"- {escape_markdown(finding)}" for finding in contents.findings)
    yield from _images(leading)
    if contents.cards:
        yield "## Verdicts"
        yield escape_markdown(contents.origin)
    for card in contents.cards:
        yield from _card(card)
    if contents.reading:
        yield "### How to read this"
        yield from map(escape_markdown, contents.reading)
    for table in contents.tables:
        yield f"## {escape_markdown(table.title)}"
        yield table.to_markdown().rstrip()
    if others:
        yield "## Figures"
        yield from _images(others)
    if contents.queries.rows:
        yield "## Queries with the largest differences"
        yield f"{contents.queries.words} They are in [report.html](report.html), to sort and to search."
    yield "## What is missing"
    yield "\n".join(f"- {escape_markdown(line)}" for line in contents.missing) or "Nothing."
    yield "## Provenance"
    yield _list(contents.provenance)


def _images(figures: Iterable[DrawnFigure]) -> Iterator[str]:
    yield from (f"![{escape_markdown(figure.caption)}](figures/{figure.file})" for figure in figures)


def _card(card: Card) -> Iterator[str]:
    yield f"### {escape_markdown(card.heading)}: {card.label}"
    yield f"**{card.action}.** {escape_markdown(card.about)}"
    if card.lines or card.folded:
        yield _list((*card.lines, *card.parts, *card.folded))


def _list(facts: Iterable[Fact]) -> str:
    return "\n".join(f"- {escape_markdown(name)}: {escape_markdown(text)}" for name, text in facts)
