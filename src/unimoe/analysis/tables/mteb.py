"""MTEB's tables: the means its leaderboard shows, every task's main score, and TIR where there are no queries."""

from __future__ import annotations

from statistics import fmean
from typing import TypeAlias

from unimoe.analysis.arms import Described, NotComputable, arm_order, without_queries
from unimoe.analysis.gates.definitions import InterferenceGate
from unimoe.analysis.gates.judging import unequal_budgets
from unimoe.analysis.tables.cells import ABSENT, Cell, Row, RowGroup, caveat_notes, marked, metric_name, row_groups
from unimoe.analysis.tables.table import Table
from unimoe.core.grouping import gathered
from unimoe.results import EvalResult
from unimoe.results.folder import Results, Seed

MAIN_SCORE = "main_score"  # MTEB's own in ``aggregate``, where the main metric is another

Run: TypeAlias = dict[str, EvalResult]  # what one seed of an arm has, by task


def mteb_table(results: Results) -> Table:
    """Return a row per arm: mean over tasks, mean over the types of tasks, and the mean of each type.

    A task counts in these means only where every shown arm and seed has it: arms compared on different tasks would
    be compared by their tasks. The table has no rows where no result is MTEB's.
    """
    arms = _runs_by_arm(results)
    named = [(arm if seed is None else f"{arm} seed {seed}", run) for arm in arms for seed, run in arms[arm].items()]
    types = {task: str(result.task_type) for _, run in named for task, result in run.items()}
    lacking = {task: ", ".join(name for name, run in named if task not in run) for task in types}
    by_type = gathered(sorted((kind, task) for task, kind in types.items() if not lacking[task]))
    shared = [task for tasks in by_type.values() for task in tasks]
    means = {  # what each column is the mean of: groups of tasks, averaged first
        "Mean (Task)": [shared],
        "Mean (TaskType)": list(by_type.values()),
        **{f"{kind} ({len(tasks)})": [tasks] for kind, tasks in by_type.items()},
    }
    columns = []
    for of in means.values():
        scores = [
            [fmean(fmean(_score(run[task]) for task in tasks) for tasks in of) for run in by_seed.values() if shared]
            for by_seed in arms.values()
        ]
        columns.append(marked([Cell.mean(by_seed) for by_seed in scores]))
    left_out = gathered((lacking[task], task) for task in sorted(types) if lacking[task])
    rows = tuple(zip(map(Cell, arms), *columns, strict=True))
    return Table(
        name="mteb",
        title="MTEB",
        caption=(
            f"MTEB: main scores × 100 over {len(shared)} {'task' if len(shared) == 1 else 'tasks'}, mean ± standard "
            "deviation over seeds, best bold, second best underlined"
        ),
        columns=("System", *means),
        groups=(RowGroup("", rows),) if rows else (),
        notes=(
            "Mean (Task): over tasks. Mean (TaskType): over the means of the types, which follow with their numbers "
            "of tasks. Only tasks that every system and seed has count. Main scores are MTEB's own.",
            *(f"Left out of the means, not measured for {of}: {', '.join(tasks)}." for of, tasks in left_out.items()),
            *caveat_notes(results),
        ),
    )


def mteb_tasks_table(results: Results) -> Table:
    """Return a row per task: the main score of every arm; tasks in blocks by type."""
    arms = _runs_by_arm(results)
    found = {task: r for by_seed in arms.values() for run in by_seed.values() for task, r in run.items()}
    rows = []
    for task, result in sorted(found.items(), key=lambda item: (str(item[1].task_type), item[0])):
        own = MAIN_SCORE in result.aggregate and result.per_query
        metric = MAIN_SCORE if own else result.main_metric
        cells = [Cell.mean([_score(run[task]) for run in by_seed.values() if task in run]) for by_seed in arms.values()]
        name = Cell(metric_name(metric), full=metric)
        rows.append((str(result.task_type), (Cell(task), name, *marked(cells))))
    return Table(
        name="mteb_tasks",
        title="MTEB by task",
        caption=(
            "MTEB by task: main scores × 100, mean ± standard deviation over seeds, best of each row bold, second best "
            "underlined"
        ),
        columns=("Task", "Main score", *arms),
        groups=row_groups(rows),
        notes=caveat_notes(results),
    )


def tir_without_queries_table(results: Results) -> Table:
    """Return TIR of every pair of arms on MTEB's tasks without queries, a row per task: a description, no test."""
    groups: list[RowGroup] = []
    notes: list[str] = []
    for pair, items in gathered((item.pair, item) for item in without_queries(results)).items():
        heading = f"{pair.task}: {pair.joint} against {pair.specialist}"
        described = [item for item in items if isinstance(item, Described)]
        rows = sorted((_described_row(results, item) for item in described), key=lambda row: (row[1].text, row[0].text))
        groups += [RowGroup(heading, tuple(rows))] if rows else []
        seeds = tuple(sorted({seed for item in described for seed in item.seeds}))
        gate = InterferenceGate.model_construct(  # not validated: MTEB's metrics are none that a gate takes
            task=pair.task, datasets=[i.dataset for i in described], specialist=pair.specialist, joint=pair.joint
        )
        notes += [f"{heading}: {warning}" for warning in unequal_budgets(results, gate, (seeds, seeds))]
        for item in items:
            if isinstance(item, NotComputable):
                notes.append(f"{heading}: no TIR on {item.dataset}, {item.reason}.")
                continue
            runs = [(arm, seed) for arm in pair.arms for seed in results.seeds(arm, f"{pair.task}/{item.dataset}")]
            if alone := [f"{arm} seed {seed}" for arm, seed in runs if seed not in item.seeds]:
                notes.append(f"{heading}: without a counterpart on {item.dataset}: {', '.join(alone)}.")
    return Table(
        name="tir_without_queries",
        title="TIR on tasks without queries",
        caption=(
            "Task interference on tasks without queries: TIR of the mean main scores ± standard deviation over seeds, "
            "without interval or test; scores × 100"
        ),
        columns=("Task", "Type", "Metric", "Seeds", "Specialist", "Joint", "Delta", "TIR (%)"),
        groups=tuple(groups),
        notes=(
            "No interval and no test: without queries nothing is paired, and seeds alone say nothing of other data. "
            "These tasks enter no gate and no TIR across datasets. Delta: joint minus specialist.",
            *notes,
            *caveat_notes(results),
        ),
    )


def _described_row(results: Results, item: Described) -> Row:
    specialist, joint = ([100 * score for score in scores] for scores in (item.specialist, item.joint))
    return (
        Cell(item.dataset),
        Cell(results.measured(f"{item.pair.task}/{item.dataset}")[0].task_type or ABSENT),
        Cell(metric_name(item.metric), full=item.metric),
        Cell.count(len(item.seeds)),
        Cell.mean(specialist),
        Cell.mean(joint),
        Cell.signed(fmean(joint) - fmean(specialist)),
        Cell.signed(100 * item.tir).with_spread(item.std and 100 * item.std),
    )


def _runs_by_arm(results: Results) -> dict[str, dict[Seed, Run]]:
    """Return MTEB's results by arm (baselines first), seed and task.

    Of embeddings alone: what a cross-encoder makes of a reranking task is in the tables of scores.
    """
    found = (r for r in results.everything if r.task == "embedding" and r.task_type is not None)
    arms: dict[str, dict[Seed, Run]] = {}
    for result in sorted(found, key=lambda r: arm_order(r.config_name)):
        arms.setdefault(result.config_name, {}).setdefault(result.seed, {})[result.dataset] = result
    return arms


def _score(result: EvalResult) -> float:
    """Return MTEB's main score × 100; correlations may be negative."""
    return 100.0 * result.aggregate.get(MAIN_SCORE, result.aggregate[result.main_metric])
