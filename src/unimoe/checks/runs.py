"""Whether runs of several systems may be compared: the same queries, depths that a measure sees, no run twice."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from unimoe.checks import Check
from unimoe.core.errors import DataError, some_ids
from unimoe.core.trec import Grades, Run

OTHER_DEPTHS = "the runs end at different depths"


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What is known of one run on one dataset."""

    name: str  # what messages call it: the path of a file
    system: str  # the owner of the run
    digest: str  # hash of queries, rankings and scores; neither tag nor line order counts
    depth: int  # documents of the longest ranking among judged queries
    missing: list[str]  # judged queries that it lacks, in the order of the qrels


def alone(missing: Sequence[str], unjudged: Sequence[str], unordered: Sequence[str], where: str) -> Iterator[Check]:
    """Yield what one run lacks or cannot say; its scores are computed all the same."""
    for name, finding, ids in (
        ("queries", "judged queries missing from the run, counted as 0", missing),
        ("unjudged_queries", "queries without judgments, left out", unjudged),
        ("unordered", "queries whose documents all have one score, ordered by id alone", unordered),
    ):
        if ids:
            yield Check(name, "note", f"{where}: {finding}: {some_ids(ids)}", {"queries": list(ids)})


def swapped(qrels: Grades, run: Run, name: str) -> Iterator[Check]:
    """Find a run that holds grades, where the judgments hold scores: dictionaries look alike."""
    graded = all(score in range(-2, 6) for scores in run.values() for score in scores.values())
    if graded and all(any(grade % 1 for grade in grades.values()) for grades in qrels.values()):
        line = f"{name}: holds small whole numbers, as judgments do, and the judgments real ones: are the two swapped?"
        yield Check("swapped", "caveat", line, unfit=True)


def repeated(runs: Iterable[RunFacts], allow: Collection[str]) -> Iterator[Check]:
    """Find a run given twice, which fakes a seed or a tie; the results themselves name one that one system repeats."""
    first: dict[str, RunFacts] = {}
    twice = []
    for run in runs:
        one = first.setdefault(run.digest, run)
        if one is not run and ("duplicates" not in allow or one.system != run.system):
            twice.append(f"{run.name} holds the same rankings and scores as {one.name}")
    if twice:
        yield Check("duplicates", "refusal", "; ".join(twice), {"runs": len(twice)}, "give every run once")


def incomplete(runs: Sequence[RunFacts], judged: int, allow: Collection[str]) -> Iterator[Check]:
    """Find missing queries: to fill them with 0 in silence favours one system, to leave them out another."""
    found = "; ".join(f"{run.name} lacks {some_ids(run.missing)}" for run in runs if run.missing)
    if not found:
        return
    common = judged - len({query for run in runs for query in run.missing})
    data = {"judged": judged, "common": common}
    if "zeros" in allow:
        said = f"judged queries that a run lacks count 0 there (--allow zeros): {found}"
    elif "queries" not in allow:
        raise DataError(
            f"judged queries without documents: {found}; give complete runs, --allow queries to compare on the "
            f"{common:,} that all runs have, or --allow zeros to count them 0 as trec_eval -c does"
        )
    elif not common:
        raise DataError(f"no judged query is in every run: {found}; give runs of the same queries")
    else:
        said = f"compared on the {common:,} of {judged:,} judged queries that all runs have (--allow queries): {found}"
    yield Check("queries", "caveat", said, data, unfit=True)


def all_zero(names: Sequence[str], metric: str, judged: str) -> Iterator[Check]:
    """Say which runs score 0 on every query: what they say, of a joint model above all, is no finding."""
    if names:
        line = f"{metric} is 0 on every query in {', '.join(names)}: check document ids and grades in {judged}"
        yield Check("zero", "caveat", line, {"runs": list(names)}, unfit=True)


def unlike_depths(runs: Sequence[RunFacts], metric: str, cutoff: int | None) -> Iterator[Check]:
    """Find rankings of different depth, where the metric looks deeper than the shallowest."""
    if why_hidden(runs, cutoff) != OTHER_DEPTHS:
        return
    by_depth = sorted(runs, key=lambda run: run.depth)
    least, most = by_depth[0], by_depth[-1]
    line = (
        f"{least.name} ends at depth {least.depth:,}, {most.name} at {most.depth:,}, and {metric} looks deeper "
        f"than {least.depth:,}"
    )
    data = {"metric": metric, "depths": [least.depth, most.depth]}
    yield Check("depth", "refusal", line, data, f"give runs of one depth, cut all with --depth {least.depth}")


def why_hidden(runs: Sequence[RunFacts], cutoff: int | None) -> str:
    """Return why a metric sees less of the runs, or of one of them, than its name says; empty where it does not."""
    depths = {run.depth for run in runs}
    if len(depths) > 1 and (cutoff is None or cutoff > min(depths)):
        return OTHER_DEPTHS
    return f"the runs end at depth {max(depths):,}" if max(depths) < (cutoff or 0) else ""


def shallow(
    dataset: str, deepest: int, cutoffs: Mapping[str, int | None], hidden: Mapping[str, Sequence[str]]
) -> Iterator[Check]:
    """Yield which metrics look deeper than any run, and which are hidden, by the reason."""
    for metric, cutoff in cutoffs.items():
        if deepest < (cutoff or 0):
            line = f"{dataset}: {metric} is computed on rankings that end at depth {deepest:,}"
            yield Check("shallow", "note", line, {"metric": metric, "depth": deepest})
    for why, metrics in hidden.items():
        yield Check("hidden", "note", f"{dataset}: {', '.join(metrics)} not shown: {why}", {"metrics": list(metrics)})
