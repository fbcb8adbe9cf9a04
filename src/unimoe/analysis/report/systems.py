"""What comparisons of systems say, as sentences: for results without a specialist and a joint arm."""

from __future__ import annotations

import math
from collections.abc import Sequence

from unimoe.analysis.comparisons import ALPHA, Comparison
from unimoe.analysis.formats import p_text
from unimoe.analysis.statistics.estimates import LEVEL
from unimoe.core.grouping import gathered
from unimoe.results.folder import Results

_NAMED = 4  # systems that a sentence names; more are counted


def systems_headlines(results: Results, comparisons: Sequence[Comparison]) -> list[str]:
    """Say for each dataset which system is best, by how much, which ones it beats, and what else is significant.

    For example: "On nfcorpus, fusion has the highest ndcg@10 (35.49), 3.4 points above bm25 [2.1, 4.8] (p .0003 after
    Holm), and is significantly better than bm25 and minilm. Also significant: minilm above bm25 (1.2 points)."
    """
    tasks = {key.partition("/")[0] for key in results.dataset_keys}
    return [_of_dataset(results, key, comparisons, name_task=len(tasks) > 1) for key in results.dataset_keys]


def systems_reading(comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    """Explain the numbers of the sentences in plain words, a paragraph each."""
    if not comparisons:
        return ()
    rows = f"all {len(comparisons):,} comparisons" if len(comparisons) > 1 else "one comparison"
    paragraphs = [
        f"Differences are in points (score x 100), on the same queries, with a {100 * LEVEL:g} % interval. p is the "
        f"probability of a difference at least as large if the systems were equal, corrected by Holm for {rows}; below "
        f"{ALPHA:g} it is called significant."
    ]
    if any(c.alone for c in comparisons):
        paragraphs.append(
            "Of systems with one run, intervals and p hold for other queries and these very runs: another "
            "training run of the same system may score otherwise."
        )
    return tuple(paragraphs)


def _of_dataset(results: Results, key: str, comparisons: Sequence[Comparison], *, name_task: bool) -> str:
    task, _, dataset = key.partition("/")
    where = f"On {dataset} ({task})" if name_task else f"On {dataset}"
    metric = results.measured(key)[0].main_metric
    scores = gathered((r.config_name, r.aggregate[metric]) for r in results.measured(key))
    means = {arm: math.fsum(values) / len(values) for arm, values in scores.items()}
    best, *others = sorted(means, key=lambda arm: -means[arm])
    score = f"{100 * means[best]:.2f}"
    if not others:
        return f"{where}, {best} is the only system: its {metric} is {score}."
    here = [c for c in comparisons if (c.key, c.metric) == (key, metric)]
    if equal := [arm for arm in others if math.isclose(means[arm], means[best], abs_tol=1e-12)]:
        return f"{where}, {_listed([best, *equal])} share the highest {metric} ({score}).{_significant(here)}"
    said = f"{where}, {best} has the highest {metric} ({score})"
    of_best = {c.baseline if c.system == best else c.system: c for c in here if best in (c.system, c.baseline)}
    against = [arm for arm in others if arm in of_best]
    besides = _significant([c for c in here if best not in (c.system, c.baseline)])
    if not against:
        return f"{said}; it was compared with none of {_listed(others)}.{besides}"
    c = of_best[against[0]]
    digits = _digits(c)
    certainty = f"(not tested: {c.unfit})"
    if c.interval is not None and c.p_holm is not None:
        low, high = c.interval if c.system == best else (-c.interval[1], -c.interval[0])
        p = f"p {p_text(c.p_holm)}".replace("<0.", "< .").replace(" 0.", " .").replace("1.0000", "1")
        certainty = f"[{100 * low:.{digits}f}, {100 * high:.{digits}f}] ({p} after Holm)"
    beaten = [arm for arm in against if of_best[arm].significant]
    return (
        f"{said}, {abs(100 * c.delta):.{digits}f} points above {against[0]} {certainty}, and is "
        f"{'' if beaten else 'not '}significantly better than {_listed(beaten or against)}.{besides}"
    )


def _significant(comparisons: Sequence[Comparison]) -> str:
    """Return the significant ones of some comparisons as a sentence, the surest first; empty where none is."""
    said = []
    for c in sorted((c for c in comparisons if c.significant), key=lambda c: c.p_holm or 0.0):
        above, below = (c.system, c.baseline) if c.delta > 0.0 else (c.baseline, c.system)
        said.append(f"{above} above {below} ({abs(100 * c.delta):.{_digits(c)}f} points)")
    return f" Also significant: {_listed(said)}." if said else ""


def _digits(c: Comparison) -> int:
    """Return how many decimals keep difference and interval from rounding to 0."""
    numbers = [abs(100 * value) for value in (c.delta, *(c.difference.interval or ())) if value]
    return next((digits for digits in range(1, 5) if all(round(number, digits) for number in numbers)), 5)


def _listed(names: Sequence[str]) -> str:
    if len(names) > _NAMED:
        return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
