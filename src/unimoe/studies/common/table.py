"""The tables of a study: one row per arm with its tested scores, and one row per setting tried on dev."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any, TypeVar

from unimoe.analysis.comparisons import difference, estimate_of_mean
from unimoe.analysis.formats import metric_name, signed
from unimoe.analysis.statistics.estimates import holm
from unimoe.analysis.statistics.variance import Array
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.analysis.tables.cells import caveat_notes, marked
from unimoe.results.folder import Results
from unimoe.studies.common.family import Family
from unimoe.studies.common.study import ChosenSetting, system_called

Asked = TypeVar("Asked", bound=Hashable)

TESTED = (
    "Differences, their 95 % intervals and p are of the model of variance, for other queries and other seeds (queries "
    "alone where neither arm has several seeds); p is corrected by Holm over all differences of this table. "
)
"""What the p of a study's table holds for; a family adds which seeds pair."""

NO_DIFFERENCE = (Cell(ABSENT), Cell(ABSENT), Cell(ABSENT))  # of an arm that is compared with nothing


def differences(asked: Mapping[Asked, tuple[Array, Array, bool]]) -> dict[Asked, tuple[Cell, Cell, Cell]]:
    """Compare arms in pairs; all of them are one family, that of the table which shows them.

    Args:
        asked: scores ``(seeds, queries)`` of system and baseline on the same queries, one row for an arm without
            seeds, and whether row i of one belongs to row i of the other.

    Returns:
        System minus baseline in points, its 95 % interval, and the two-sided p after Holm.
    """
    found = {name: difference(system, baseline, paired=paired) for name, (system, baseline, paired) in asked.items()}
    p_values = {name: each.p for name, (each, unfit) in found.items() if not unfit and each.p is not None}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    cells = {}
    for name, (each, unfit) in found.items():
        ends = [signed(100.0 * end, 1, keep_side=True) for end in (not unfit and each.interval) or ()]
        cells[name] = Cell.signed(100.0 * each.value), Cell(" to ".join(ends) or ABSENT), Cell.p(corrected.get(name))
    return cells


def of_seeds(results: Results, seeds: Collection[int]) -> Results:
    """Return the results of these seeds and of arms without seeds: the folder may hold those of a longer study."""
    kept = [one for one in results.results if one.seed is None or one.seed in seeds]
    return Results(results.output_dir, kept, allow=results.allow, clusters=results.clusters, groups=results.groups)


def pair_up(results: Results, key: str, system: str, baseline: str) -> bool:
    """Return whether the seeds of two arms pair on one ``task/dataset``: the same ones, and declared to."""
    alike = results.seeds(system, key) == results.seeds(baseline, key)
    return alike and results.seeds_pair((system, baseline), [key])


def mean_of(scores: Array) -> Cell:
    """Return the mean over seeds of scores ``(seeds, queries)`` in points, with the SD of the seeds' means."""
    return Cell.mean((100.0 * scores.mean(axis=1)).tolist())


def study_table(family: Family[Any, Any], results: Results, chosen: Mapping[str, ChosenSetting], key: str) -> Table:
    """Return one row per arm on a ``task/dataset``: scores, tests against baselines, costs, and the chosen setting."""
    study, untrained, (task, _, dataset) = family.study, [*family.untrained()], key.partition("/")
    results = of_seeds(results, study.seeds)
    seeds = sorted({one.seed for one in results.results if one.seed is not None})
    names = [name for name in (*untrained, *study.arms) if results.measured(key, name)]
    scores = {
        metric: {name: family.scores(results, name, key, seeds, metric) for name in names} for metric in family.metrics
    }
    main, metric = scores[family.metrics[0]], metric_name(family.metrics[0])
    called = [system_called(name, untrained) for name in study.baselines]
    baselines = [name for name in called if name in names and len(names) > 1]
    pairs = [(name, other) for other in baselines for name in names if name != other]
    found = differences({(a, b): (main[a], main[b], pair_up(results, key, a, b)) for a, b in pairs})
    means = {metric: marked([mean_of(rows) for rows in by_arm.values()]) for metric, by_arm in scores.items()}
    more = {name: family.columns(results, name, key, chosen[name].config if name in chosen else None) for name in names}
    extra = [*dict.fromkeys(column for own in more.values() for column in own)]
    rows = []
    for place, name in enumerate(names):
        own = chosen.get(name)
        dev = own.on_dev if own else []
        gains = [100.0 * (one["val"] - one["start"]) for one in dev if "start" in one]
        interval = (f"{100.0 * end:.1f}" for end in estimate_of_mean(main[name]).interval or ())
        rows.append(
            (
                Cell(name),
                Cell.count(len(results.seeds(name, key)) or None),
                Cell.mean([100.0 * one["start"] for one in dev if "start" in one]),
                Cell.mean([100.0 * one["val"] for one in dev]),
                Cell.signed(sum(gains) / len(gains) if gains else None),
                *(means[metric][place] for metric in family.metrics),
                Cell(" to ".join(interval) or ABSENT),
                *(cell for other in baselines for cell in found.get((name, other), NO_DIFFERENCE)),
                *(more[name].get(column, Cell(ABSENT)) for column in extra),
                Cell(own.setting.name if own and own.setting.name else ABSENT),
            )
        )
    columns = ["arm", "seeds", "start", "dev", "gain", *map(metric_name, family.metrics), "95 % interval"]
    for place, other in enumerate(baselines):
        columns += [f"vs {other}", "interval" + " " * place, "p" + " " * place]
    of_task = [task] if any(not other.startswith(f"{task}/") for other in family.keys) else []
    where = ", ".join([dataset, *of_task])
    of_dataset = [dataset.replace(":", "-").replace("/", "-")] if len(family.datasets) > 1 else []
    return Table(
        name="-".join(["arms", *of_task, *of_dataset]),
        caption=f"{study.name} on {where}: {metric} over {next(iter(main.values())).shape[1]:,} test queries, "
        f"{len(seeds)} seeds.",
        columns=(*columns, *extra, "setting"),
        groups=(RowGroup("", tuple(rows)),),
        notes=(
            "Scores x 100, mean over seeds ± SD. start, dev, gain: on dev before training, at the best step, and their "
            "difference; of the chosen setting's one tuning run, chosen by it, or of all trainings where there was one "
            f"setting. The interval is that of {metric}, for other seeds and other queries (queries alone where there "
            "are not several seeds).",
            *([TESTED] if baselines else []),
            *family.notes(),
            *(f"{name}: {arm.description}." for name, arm in study.arms.items() if arm.description and name in names),
            *caveat_notes(results),
        ),
        csv_only=frozenset({"setting"}),
        title=study.name,
    )


def settings_table(family: Family[Any, Any], chosen: Mapping[str, ChosenSetting]) -> Table:
    """Return one row per setting that was tried on dev, the best of each arm first."""
    rows = []
    for arm, own in chosen.items():
        for name, facts in sorted(own.tried.items(), key=lambda item: -item[1]["val"]):
            dev, start = 100 * facts["val"], 100 * facts["start"] if "start" in facts else None
            rows.append(
                (
                    Cell(f"{arm} (chosen)" if name == own.setting.name else arm),
                    Cell(name or ABSENT),
                    Cell.number(start, ".2f"),
                    Cell.number(dev, ".2f"),
                    Cell.signed(None if start is None else dev - start),
                    Cell.number(facts.get("best"), "g"),
                    Cell.number(facts.get("seconds"), ".1f"),
                )
            )
    return Table(
        name="settings",
        caption=f"{family.study.name}: settings on dev, seed {family.study.seed_of_tuning}.",
        columns=("arm", "setting", "start", "dev", "gain", "best at", "s"),
        groups=(RowGroup("", tuple(rows)),),
        notes=(
            "Scores x 100, of the best step or epoch on dev; 0: training helped nowhere. start: before training. s: "
            "of the steps alone.",
        ),
        title="Settings on dev",
    )
