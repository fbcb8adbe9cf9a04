"""MTEB's tables: the means its leaderboard shows, every task's main score, and TIR where there are no queries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import fmean

from unimoe.analysis.arms import Described, NotComputable, Pair, arm_order, without_queries
from unimoe.analysis.gates.definitions import InterferenceGate
from unimoe.analysis.gates.judging import unequal_budgets
from unimoe.analysis.tables.cells import ABSENT, Cell, Row, RowGroup, caveat_notes, marked, row_groups
from unimoe.analysis.tables.table import Table
from unimoe.core.grouping import gathered
from unimoe.results import EvalResult
from unimoe.results.folder import Results, Seed

MAIN_SCORE = "main_score"  # MTEB's own in ``aggregate``, where the main metric is another


class _Scores:
    """Type and main metric of MTEB's tasks, and main scores x 100 by arm (baselines first), seed and task.

    Of embeddings alone: what a cross-encoder makes of a reranking task is in the tables of scores.
    """

    def __init__(self, results: Results) -> None:
        found = [r for r in results.everything if r.task == "embedding" and r.task_type is not None]
        self.types = {r.dataset: str(r.task_type) for r in found}
        self.metrics = {
            r.dataset: MAIN_SCORE if MAIN_SCORE in r.aggregate and r.per_query else r.main_metric for r in found
        }
        self.of_arm: dict[str, dict[Seed, dict[str, float]]] = {}
        for r in sorted(found, key=lambda r: arm_order(r.config_name)):
            self.of_arm.setdefault(r.config_name, {}).setdefault(r.seed, {})[r.dataset] = 100.0 * main_score(r)

    @property
    def runs(self) -> dict[str, dict[str, float]]:
        """Scores of every arm and seed, by what messages call them."""
        return {
            arm if seed is None else f"{arm} seed {seed}": scores
            for arm, by_seed in self.of_arm.items()
            for seed, scores in by_seed.items()
        }

    def by_type(self, tasks: Collection[str]) -> dict[str, list[str]]:
        """Return some of the tasks by type."""
        return gathered(sorted((self.types[task], task) for task in tasks))


def mteb_table(results: Results) -> Table:
    """Return a row per arm: mean over tasks, mean over the types of tasks, and the mean of each type.

    A task counts in these means only where every shown arm and seed has it: arms compared on different tasks would
    be compared by their tasks. The table has no rows where no result is MTEB's.
    """
    found = _Scores(results)
    shared = [task for task in found.types if all(task in scores for scores in found.runs.values())]
    by_type = found.by_type(shared)
    of_arms = [_averages(by_seed.values(), by_type) for by_seed in found.of_arm.values()]
    columns = [marked(column) for column in zip(*of_arms, strict=True)]
    rows = zip(map(Cell, found.of_arm), *columns, strict=True)
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
            "Mean (Task): over tasks. Mean (TaskType): over the means of the types, which follow with their numbers "
            "of tasks. Only tasks that every arm and seed has count. Main scores are MTEB's own.",
            *_left_out(found, shared),
            *caveat_notes(results),
        ),
    )


def mteb_tasks_table(results: Results) -> Table:
    """Return a row per task: the main score of every arm; tasks in blocks by type."""
    found = _Scores(results)
    return Table(
        name="mteb_tasks",
        title="MTEB by task",
        caption=(
            "MTEB by task: main scores × 100, mean ± standard deviation over seeds, best of each row bold, second best "
            "underlined"
        ),
        columns=("Task", "Main score", *found.of_arm),
        groups=row_groups(
            (kind, _task_row(found, task)) for kind, tasks in found.by_type(found.types).items() for task in tasks
        ),
        notes=caveat_notes(results),
    )


def tir_without_queries_table(results: Results) -> Table:
    """Return TIR of every pair of arms on MTEB's tasks without queries, a row per task: a description, no test."""
    found = without_queries(results)
    of_pairs = gathered((item.pair, item) for item in found if isinstance(item, Described))
    return Table(
        name="tir_without_queries",
        title="TIR on tasks without queries",
        caption=(
            "Task interference on tasks without queries: TIR of the mean main scores ± standard deviation over seeds, "
            "without interval or test; scores × 100"
        ),
        columns=("Task", "Type", "Metric", "Seeds", "Specialist", "Joint", "Delta", "TIR (%)"),
        groups=row_groups(
            (_compared(pair), row)
            for pair, items in of_pairs.items()
            for row in sorted((_described_row(results, item) for item in items), key=lambda r: (r[1].text, r[0].text))
        ),
        notes=(
            "No interval and no test: without queries nothing is paired, and seeds alone say nothing of other data. "
            "These tasks enter no gate and no TIR across datasets. Delta: joint minus specialist.",
            *(note for pair, items in of_pairs.items() for note in _unequal(results, pair, items)),
            *(note for item in found for note in _left_out_seeds(results, item)),
            *caveat_notes(results),
        ),
    )


def main_score(result: EvalResult) -> float:
    """Return MTEB's main score of a result, as MTEB has it (0 to 1; correlations may be negative)."""
    return result.aggregate.get(MAIN_SCORE, result.aggregate[result.main_metric])


def _averages(runs: Collection[Mapping[str, float]], by_type: Mapping[str, Sequence[str]]) -> list[Cell]:
    """Return one arm's mean over tasks, mean over types, and mean of each type, each over its seeds."""
    if not by_type:
        return [Cell(ABSENT)] * 2
    by_run = []
    for scores in runs:
        of_types = [fmean(scores[task] for task in tasks) for tasks in by_type.values()]
        over_tasks = fmean(scores[task] for tasks in by_type.values() for task in tasks)
        by_run.append((over_tasks, fmean(of_types), *of_types))
    return [Cell.mean(values) for values in zip(*by_run, strict=True)]


def _task_row(found: _Scores, task: str) -> Row:
    runs = (by_seed.values() for by_seed in found.of_arm.values())
    cells = [Cell.mean([scores[task] for scores in of_arm if task in scores]) for of_arm in runs]
    return Cell(task), Cell(found.metrics[task]), *marked(cells)


def _left_out(found: _Scores, shared: Sequence[str]) -> Iterator[str]:
    """Yield the tasks that count in no mean; those that the same runs lack share a line."""
    tasks = gathered(
        (", ".join(run for run, scores in found.runs.items() if task not in scores), task)
        for task in sorted(set(found.types).difference(shared))
    )
    for lacking, of_them in tasks.items():
        yield f"Left out of the means, not measured for {lacking}: {', '.join(of_them)}."


def _compared(pair: Pair) -> str:
    return f"{pair.task}: {pair.joint} against {pair.specialist}"


def _described_row(results: Results, item: Described) -> Row:
    scores = [[100 * score for score in of_arm] for of_arm in (item.specialist, item.joint)]
    return (
        Cell(item.dataset),
        Cell(results.measured(f"{item.pair.task}/{item.dataset}")[0].task_type or ABSENT),
        Cell(item.metric),
        Cell.count(len(item.seeds)),
        *map(Cell.mean, scores),
        Cell.signed(fmean(scores[1]) - fmean(scores[0])),
        Cell.signed(100 * item.tir).with_spread(item.std and 100 * item.std),
    )


def _unequal(results: Results, pair: Pair, items: Sequence[Described]) -> Iterator[str]:
    """Yield a warning where the arms saw different numbers of examples, in the words of a gate on these tasks."""
    datasets = [item.dataset for item in items]
    gate = InterferenceGate.model_construct(  # not validated: MTEB's metrics are none that a gate takes
        task=pair.task, datasets=datasets, specialist=pair.specialist, joint=pair.joint
    )
    seeds = tuple(sorted({seed for item in items for seed in item.seeds}))
    yield from (f"{_compared(pair)}: {warning}" for warning in unequal_budgets(results, gate, (seeds, seeds)))


def _left_out_seeds(results: Results, item: Described | NotComputable) -> Iterator[str]:
    """Yield why there is no TIR, or which runs have no counterpart."""
    if isinstance(item, NotComputable):
        yield f"{_compared(item.pair)}: no TIR on {item.dataset}, {item.reason}."
        return
    key = f"{item.pair.task}/{item.dataset}"
    runs = [(arm, seed) for arm in item.pair.arms for seed in results.seeds(arm, key)]
    alone = [f"{arm} seed {seed}" for arm, seed in runs if seed not in item.seeds]
    if alone:
        yield f"{_compared(item.pair)}: without a counterpart on {item.dataset}: {', '.join(alone)}."
