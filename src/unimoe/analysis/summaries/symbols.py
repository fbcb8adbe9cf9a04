"""Significance, as symbols behind scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from unimoe.analysis.significance import FIRST_STAGE, ZERO_SHOT, Comparison

_MEANINGS = {
    "†": f"better than {ZERO_SHOT}",
    "¶": f"worse than {ZERO_SHOT}",
    "‡": "better than its specialist",
    "§": "worse than its specialist",
}


@dataclass(frozen=True)
class Symbols:
    """Symbols by ``task/dataset`` and arm, and the note that says what they mean.

    Attributes:
        of: ``(task/dataset, arm)`` to its symbols; absent where no comparison is significant.
        note: one sentence; empty where nothing was compared.
    """

    of: dict[tuple[str, str], str]
    note: str


def significance_symbols(comparisons: Sequence[Comparison]) -> Symbols:
    """A symbol per comparison whose Holm-corrected p lies below alpha, which is one minus the intervals' level.

    An arm with several seeds is judged by its average over seeds, an arm with one seed by that one.
    """
    decisive = [c for c in averages(comparisons) if c.baseline != FIRST_STAGE]  # the significance table has those too
    found: dict[tuple[str, str], set[str]] = {}
    for c in decisive:
        if c.p_holm < 1.0 - c.level and c.delta != 0.0:
            better, worse = ("†", "¶") if c.baseline == ZERO_SHOT else ("‡", "§")
            found.setdefault((c.key, c.system), set()).add(better if c.delta > 0 else worse)
    used = set().union(*found.values())
    return Symbols(
        of={place: "".join(symbol for symbol in _MEANINGS if symbol in symbols) for place, symbols in found.items()},
        note=_note(decisive, used) if decisive else "",
    )


def averages(comparisons: Iterable[Comparison]) -> Iterator[Comparison]:
    """One comparison per pair of arms and dataset: over averages of seeds, or of the only seed there is."""
    comparisons = tuple(comparisons)
    averaged = {(c.key, c.system, c.baseline) for c in comparisons if c.seed is None}
    for c in comparisons:
        if c.seed is None or (c.key, c.system, c.baseline) not in averaged:
            yield c


def _note(decisive: Sequence[Comparison], used: set[str]) -> str:
    alpha = f"{1.0 - decisive[0].level:g}"
    test = (
        "two-sided sign-flip permutation over queries, scores averaged over seeds, Holm-corrected, "
        f"at alpha = {alpha}, on the main metric only"
    )
    if not used:
        return f"No arm differs significantly from {ZERO_SHOT} or its specialist ({test})."
    meaning = ", ".join(f"{symbol} {words}" for symbol, words in _MEANINGS.items() if symbol in used)
    return f"Significance: {meaning}; {test}."
