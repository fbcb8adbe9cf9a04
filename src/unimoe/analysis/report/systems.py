"""What comparisons of systems say, as sentences: for results without a specialist and a joint arm."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean

from unimoe.analysis.comparisons import ALPHA, Comparison, average_name
from unimoe.analysis.formats import listed, metric_name, p_text, without
from unimoe.analysis.saved_comparison import NAMES
from unimoe.analysis.standings import best_of, standings
from unimoe.analysis.statistics.estimates import LEVEL
from unimoe.analysis.tables.comparisons import correction_text
from unimoe.core.grouping import gathered
from unimoe.metrics.scoring import suite_averages
from unimoe.results.folder import Results

_PLACES = 2  # most datasets and averages that have a sentence each

_Place = tuple[str, ...]  # the ``task/dataset`` key of one dataset, or those of an average


def systems_headlines(results: Results, comparisons: Sequence[Comparison]) -> list[str]:
    """Say in a few sentences which system is best, by how much, which ones may be the best, what else is significant.

    Of several datasets their average speaks. For example: "On nfcorpus, fusion has the highest nDCG@10 (35.49), 3.4
    points above bm25 [2.1, 4.8] (p .0003 after Holm), and is significantly better than bm25 and minilm." "Also
    significant: minilm above bm25 (1.2 points)."
    """
    at: dict[_Place, list[Comparison]] = gathered((c.place, c) for c in comparisons if c.main)
    averages = [place for place in at if len(place) > 1]
    places = list(dict.fromkeys(next((p for p in averages if k in p), (k,)) for k in results.dataset_keys))
    tasks = {key.partition("/")[0] for key in results.dataset_keys}
    names = {place: _name(place, name_task=len(tasks) > 1) for place in [*places, *at]}
    means = {place: _means(results, place) for place in places}
    mentioned: list[Comparison] = []
    if len(places) <= _PLACES:
        said = []
        for place in places:
            metric = metric_name(results.measured(place[0])[0].main_metric)
            sentence, about_best = _of_best(means[place], metric, at.get(place, ()))
            said.append(f"On {names[place]}, {sentence}")
            mentioned += about_best
            for found in standings(at.get(place, ())).values():
                may_be, where = best_of(found), "" if len(places) == 1 else f" on {names[place]}"
                of = f"{len(may_be)} of the {len(found)} systems" if len(may_be) > 1 else "one system alone"
                said.append(f"At {100 * LEVEL:g} % confidence {of} may be the best{where}: {listed(may_be)}.")
    else:
        best = gathered((max(of_place, key=of_place.__getitem__), names[p]) for p, of_place in means.items())
        said = [f"Highest main metric: {'; '.join(f'{system} on {listed(there)}' for system, there in best.items())}."]
    said += [f"{how}." for how in dict.fromkeys(how for c in comparisons for how in c.chosen)]
    others = [c for of_place in at.values() for c in of_place if c.significant and c not in mentioned]
    if others:
        also = "Also significant" if mentioned else "Significant"
        said.append(f"{also}: {listed(_findings(others, names, alone=len(at) == 1))}.")
    return said


def systems_reading(comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    """Explain the numbers of the sentences in plain words; the notes of the tables say what they hold for."""
    said = (
        f"Differences are in points (score x 100), on the same queries, with a {100 * LEVEL:g} % interval. p is the "
        f"probability of a difference at least as large if the systems were equal, {correction_text(comparisons)}; "
        f"below {ALPHA:g} it is called significant."
    )
    return (said,) if comparisons else ()


def _name(place: _Place, *, name_task: bool) -> str:
    task, _, dataset = place[0].partition("/")
    name = f"the {average_name(place)} datasets" if len(place) > 1 else dataset
    return f"{name} ({task})" if name_task else name


def _means(results: Results, place: _Place) -> Mapping[str, float]:
    """Return the mean of each system over all its runs on a dataset, or on each of several, as tables show it."""
    scores = dict[str, dict[str, dict[str, float]]]()
    for key in place:
        for system, runs in gathered((run.config_name, run) for run in results.measured(key)).items():
            metric = runs[0].main_metric
            scores.setdefault(system, {})[key] = {metric: fmean(run.aggregate[metric] for run in runs)}
    averages = {system: suite_averages(dict.fromkeys(place, metric), of) for system, of in scores.items()}
    return {system: average[metric] for system, average in averages.items() if average}


def _of_best(means: Mapping[str, float], metric: str, here: Sequence[Comparison]) -> tuple[str, Collection[Comparison]]:
    """Return what is said of the best system of one place, and the comparisons that this is about."""
    best, *others = sorted(means, key=lambda system: -means[system])
    score = f"{100 * means[best]:.2f}"
    if not others:
        return f"{best} is the only system: its {metric} is {score}.", ()
    if equal := [system for system in others if math.isclose(means[system], means[best], abs_tol=1e-12)]:
        return f"{listed([best, *equal])} share the highest {metric} ({score}).", ()
    of_best = {c.baseline if c.system == best else c.system: c for c in here if best in (c.system, c.baseline)}
    against = [system for system in others if system in of_best]
    said = f"{best} has the highest {metric} ({score})"
    if not against:
        return f"{said}; it was compared with none of {listed(others)}.", ()
    nearest = of_best[against[0]]
    margin = f"{abs(100 * nearest.delta):.{_digits(nearest)}f} points"
    # Where seeds pair, a difference is of the seeds that both have, and may turn round.
    side = "above" if nearest.ordered[0] == best or not nearest.delta else "by the seeds that both have below"
    said = f"{said}, {margin} {side} {against[0]} {_certainty(nearest, best)}"
    tested = [system for system in against if of_best[system].p is not None]
    if beaten := [system for system in tested if of_best[system].significant and of_best[system].ordered[0] == best]:
        said += f", and is significantly better than {listed(beaten)}"
        for names, systems in gathered((of_best[system].carried_by, system) for system in beaten).items():
            what = "it" if systems == beaten else f"the difference from {listed(systems)}"
            said += f"; {without(names)} {what} is not significant" if names else ""
    elif tested:
        said += f", and is not significantly better than {listed(tested)}"
    return f"{said}.", of_best.values()


def _findings(found: Iterable[Comparison], names: Mapping[_Place, str], *, alone: bool) -> list[str]:
    """Return significant comparisons as clauses, the surest first: by how much, or where there are several places."""
    by_pair = gathered((c.ordered, c) for c in sorted(found, key=lambda c: c.p_corrected or 0.0))
    said = []
    for (above, below), of_pair in by_pair.items():
        points = f"({abs(100 * of_pair[0].delta):.{_digits(of_pair[0])}f} points)"
        where = f"(on {listed([names[c.place] for c in of_pair])})"
        carried = [f"; {without(c.carried_by)} it is not significant" for c in of_pair if c.carried_by]
        said.append(f"{above} above {below} {points if alone else where}{''.join(carried)}")
    return said


def _certainty(c: Comparison, best: str) -> str:
    """Return interval and p of the best system against the other, or why there are none."""
    if c.interval is None or c.p_corrected is None:
        return f"(not tested: {c.unfit})"
    low, high = c.interval if c.system == best else (-c.interval[1], -c.interval[0])
    digits = _digits(c)
    p = f"p {p_text(c.p_corrected)}".replace("<0.", "< .").replace(" 0.", " .").replace("1.0000", "1")
    after = f"after {NAMES[c.correction]}" if NAMES[c.correction] else "not corrected"
    return f"[{100 * low:.{digits}f}, {100 * high:.{digits}f}] ({p} {after})"


def _digits(c: Comparison) -> int:
    """Return how many decimals keep difference and interval from rounding to 0."""
    numbers = [abs(100 * value) for value in (c.delta, *(c.difference.interval or ())) if value]
    return next((digits for digits in range(1, 5) if all(round(number, digits) for number in numbers)), 5)
