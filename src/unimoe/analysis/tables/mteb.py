"""MTEB's tables: the means its leaderboard shows, and every task's main score."""

from __future__ import annotations

from statistics import fmean
from typing import TypeAlias

from unimoe.analysis.arms import arm_order
from unimoe.analysis.formats import metric_name
from unimoe.analysis.tables.cells import Cell, RowGroup, caveat_notes, marked, row_groups
from unimoe.analysis.tables.table import Table
from unimoe.core.grouping import gathered
from unimoe.results import EvalResult
from unimoe.results.folder import Results, Seed

MAIN_SCORE = "main_score"  # MTEB's own in ``aggregate``, where the main metric is another

ResultsByTask: TypeAlias = dict[str, EvalResult]  # what one seed of an arm has, by task


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


def _runs_by_arm(results: Results) -> dict[str, dict[Seed, ResultsByTask]]:
    """Return MTEB's results by arm (baselines first), seed and task.

    Of embeddings alone: what a cross-encoder makes of a reranking task is in the tables of scores.
    """
    found = (r for r in results.everything if r.task == "embedding" and r.task_type is not None)
    arms: dict[str, dict[Seed, ResultsByTask]] = {}
    for result in sorted(found, key=lambda r: arm_order(r.config_name)):
        arms.setdefault(result.config_name, {}).setdefault(result.seed, {})[result.dataset] = result
    return arms


def _score(result: EvalResult) -> float:
    """Return MTEB's main score × 100; correlations may be negative."""
    return 100.0 * result.aggregate.get(MAIN_SCORE, result.aggregate[result.main_metric])
