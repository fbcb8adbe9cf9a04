"""MTEB as its leaderboard shows it: the means over tasks and over types of tasks, and every task's main score."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from unimoe.analysis.loading import Results, Seed
from unimoe.analysis.summaries.arms import arm_order, caveat_notes, marked, mean_cell
from unimoe.analysis.tables import ABSENT, Cell, RowGroup, Table
from unimoe.results import EvalResult

MAIN_SCORE = "main_score"
"""MTEB's own main score in ``aggregate``, where the main metric is another."""


@dataclass(frozen=True)
class _Scores:
    """The results of MTEB's tasks.

    Attributes:
        types: type of each task.
        metrics: name of each task's main metric.
        of_arm: main score x 100 by arm, seed and task.
    """

    types: dict[str, str]
    metrics: dict[str, str]
    of_arm: dict[str, dict[Seed, dict[str, float]]]

    @property
    def arms(self) -> list[str]:
        """Baselines first."""
        return sorted(self.of_arm, key=arm_order)

    @property
    def runs(self) -> dict[str, dict[str, float]]:
        """The scores of every arm and seed, by what messages call them."""
        return {
            arm if seed is None else f"{arm} seed {seed}": scores
            for arm in self.arms
            for seed, scores in self.of_arm[arm].items()
        }

    def by_type(self, tasks: Collection[str]) -> dict[str, list[str]]:
        """Some of the tasks, by type."""
        kinds = sorted({self.types[task] for task in tasks})
        return {kind: sorted(task for task in tasks if self.types[task] == kind) for kind in kinds}


def mteb_table(results: Results) -> Table:
    """A row per arm: mean over tasks, mean over the types of tasks, and the mean of each type.

    A task counts in these means only where every shown arm and seed has it: arms compared on different tasks would
    be compared by their tasks.

    Returns:
        A table; without rows where no result is MTEB's.
    """
    found = _scores(results)
    shared = [task for task in found.types if all(task in scores for scores in found.runs.values())]
    by_type = found.by_type(shared)
    of_arms = [_averages(found.of_arm[arm].values(), by_type) for arm in found.arms]
    columns = [marked(column) for column in zip(*of_arms, strict=True)]
    rows = zip(map(Cell, found.arms), *columns, strict=True)
    number = f"{len(shared)} {'task' if len(shared) == 1 else 'tasks'}"
    return Table(
        name="mteb",
        title="MTEB",
        caption=(
            f"MTEB: main scores × 100 over {number}, mean ± standard deviation over seeds, best bold, "
            "second best underlined"
        ),
        columns=(
            *("Arm", "Mean (Task)", "Mean (TaskType)"),
            *(f"{kind} ({len(tasks)})" for kind, tasks in by_type.items()),
        ),
        groups=(RowGroup("", tuple(rows)),) if found.types else (),
        notes=(
            "Mean (Task): over tasks. Mean (TaskType): over the means of the types, which stand behind it with their "
            "numbers of tasks. Only tasks that every arm and seed has count. Main scores are MTEB's own.",
            *_left_out(found, shared),
            *caveat_notes(results),
        ),
    )


def mteb_tasks_table(results: Results) -> Table:
    """A row per task: the main score of every arm; tasks in blocks by type.

    Returns:
        A table; without rows where no result is MTEB's.
    """
    found = _scores(results)
    return Table(
        name="mteb_tasks",
        title="MTEB by task",
        caption=(
            "MTEB by task: main scores × 100, mean ± standard deviation over seeds, best of each row bold, second best "
            "underlined"
        ),
        columns=("Task", "Main score", *found.arms),
        groups=tuple(
            RowGroup(kind, tuple(_task_row(found, task) for task in tasks))
            for kind, tasks in found.by_type(found.types).items()
        ),
        notes=caveat_notes(results),
    )


def main_score(result: EvalResult) -> float:
    """MTEB's main score of a result, as MTEB has it (0 to 1; correlations may be negative)."""
    return result.aggregate.get(MAIN_SCORE, result.aggregate[result.main_metric])


def _scores(results: Results) -> _Scores:
    """Of embeddings: what a cross-encoder makes of a reranking task stands in the tables of scores alone."""
    found = _Scores({}, {}, {})
    for r in results.everything:
        if r.task_type is not None and r.task == "embedding":
            found.types[r.dataset] = r.task_type
            found.metrics[r.dataset] = MAIN_SCORE if MAIN_SCORE in r.aggregate and r.per_query else r.main_metric
            found.of_arm.setdefault(r.config_name, {}).setdefault(r.seed, {})[r.dataset] = 100.0 * main_score(r)
    return found


def _averages(runs: Collection[Mapping[str, float]], by_type: Mapping[str, Sequence[str]]) -> list[Cell]:
    """One arm's mean over tasks, mean over types, and mean of each type, each over its seeds."""
    if not by_type:
        return [Cell(ABSENT)] * 2
    by_run = []
    for scores in runs:
        of_types = [fmean(scores[task] for task in tasks) for tasks in by_type.values()]
        over_tasks = fmean(scores[task] for tasks in by_type.values() for task in tasks)
        by_run.append((over_tasks, fmean(of_types), *of_types))
    return [mean_cell(values) for values in zip(*by_run, strict=True)]


def _task_row(found: _Scores, task: str) -> tuple[Cell, ...]:
    cells = [mean_cell([scores[task] for scores in found.of_arm[arm].values() if task in scores]) for arm in found.arms]
    return Cell(task), Cell(found.metrics[task]), *marked(cells)


def _left_out(found: _Scores, shared: Sequence[str]) -> Iterator[str]:
    """Tasks that the same runs lack share a line."""
    tasks: dict[str, list[str]] = {}
    for task in sorted(set(found.types).difference(shared)):
        lacking = ", ".join(run for run, scores in found.runs.items() if task not in scores)
        tasks.setdefault(lacking, []).append(task)
    for lacking, of_them in tasks.items():
        yield f"Left out of the means, not measured for {lacking}: {', '.join(of_them)}."
