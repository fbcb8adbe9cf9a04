"""The report as Markdown, for a terminal, a repository or a chat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from unimoe.analysis.report.cards import Card, summary
from unimoe.analysis.report.contents import READING, Contents, DrawnFigure
from unimoe.analysis.report.provenance import Fact
from unimoe.analysis.tables import escape_markdown


def render(contents: Contents, figures: Sequence[DrawnFigure]) -> str:
    """The whole report but for the drill-down, which needs a page that sorts and searches."""
    return "\n\n".join(_blocks(contents, figures)) + "\n"


def _blocks(contents: Contents, figures: Sequence[DrawnFigure]) -> Iterator[str]:
    yield f"# {escape_markdown(contents.experiment)}: what the results say"
    if contents.caveats:
        yield "\n".join(f"> **Caveat:** {escape_markdown(caveat)}" for caveat in contents.caveats)
    yield escape_markdown(summary(contents.cards))
    yield "## Verdicts"
    yield escape_markdown(contents.gates)
    for card in contents.cards:
        yield from _card(card)
    yield "### How to read this"
    yield from map(escape_markdown, READING)
    for table in contents.tables:
        yield f"## {escape_markdown(table.title)}"
        yield table.to_markdown().rstrip()
    if figures:
        yield "## Figures"
        yield from (f"![{escape_markdown(figure.caption)}](figures/{figure.file})" for figure in figures)
    if contents.queries.rows:
        yield "## Queries that carry the TIR"
        yield f"{contents.queries.words} They stand in [report.html](report.html), to sort and to search."
    yield "## What is missing"
    yield "\n".join(f"- {escape_markdown(line)}" for line in contents.missing) or "Nothing."
    yield "## Provenance"
    yield _listed(contents.provenance)


def _card(card: Card) -> Iterator[str]:
    yield f"### {escape_markdown(card.heading)}: {card.badge.label}"
    yield f"**{card.badge.action}.** {escape_markdown(card.consequence)}" + (
        f"\n{escape_markdown(card.about)}" if card.about else ""
    )
    if card.lines or card.folded:
        yield _listed((*card.lines, *card.folded))


def _listed(facts: Iterable[Fact]) -> str:
    return "\n".join(f"- {escape_markdown(name)}: {escape_markdown(text)}" for name, text in facts)
