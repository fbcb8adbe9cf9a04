"""Numbers and names as text; no number contradicts its meaning: its sign, and its side of the level of a test."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unimoe.analysis.comparisons import ALPHA

_METRICS = {"ndcg": "nDCG", "mrr": "MRR", "map": "MAP", "recall": "Recall", "p": "P", "gm_map": "log MAP"}
_NAMED = 4  # names in a sentence; more are counted


def signed(number: float, digits: int = 2, *, keep_side: bool = False) -> str:
    """Return a number with its sign; one that rounds to 0 has none, so that ``-0.00`` and ``+0.00`` never appear.

    Args:
        number: may be infinite.
        digits: decimals.
        keep_side: give as many decimals more, up to 8, as show on which side of 0 the number lies.
    """
    text = f"{number:+.{digits}f}"
    if text.strip("+-0."):
        return text.replace("inf", "∞")
    if keep_side and number != 0.0 and digits < 8:
        return signed(number, digits + 1, keep_side=True)
    return text[1:]


def p_text(p: float) -> str:
    """Return a p-value with four decimals, or as many as keep it on its side of the level of the tests."""
    if p < 0.00005:
        return "<0.0001"
    shown = (f"{p:.{digits}f}" for digits in range(4, 30))
    return next((text for text in shown if (float(text) < ALPHA) == (p < ALPHA)), repr(p))


def listed(names: Sequence[str]) -> str:
    """Return names as part of a sentence; of more than four the first three, and how many more there are."""
    if len(names) > _NAMED:
        return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def without(names: Sequence[str]) -> str:
    """Return that any one of some datasets is left out, as part of a sentence; of more than four their number."""
    return f"without {' or '.join(names) if len(names) <= _NAMED else f'any one of {len(names)} datasets'}"


def metric_name(metric: str) -> str:
    """Return a metric as papers spell it: ``nDCG@10`` for ``ndcg@10``; other names, a bare ``p`` too, as they are.

    Results hold the queries' logarithms under ``gm_map``, and their mean.
    """
    return re.sub(r"^(ndcg|mrr|map|gm_map|(recall|p)(?=@))\b", lambda name: _METRICS[name[1]], metric)
