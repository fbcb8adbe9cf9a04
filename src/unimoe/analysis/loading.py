"""Every result of one output folder, read strictly and refused where its parts do not belong side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unimoe.errors import DataError
from unimoe.results import TASKS, EvalResult, Task, read_result, result_path, seed_name

Seed: TypeAlias = int | None
"""A training seed; null for arms that have none, such as BM25 and zero-shot."""

Log: TypeAlias = tuple[dict[str, Any], ...]
"""A training log: one record per line, with at least ``step`` and ``loss``."""

_SIDECARS = (".queries.json", ".mteb.json")
_SAME_PER_DATASET = ("split", "pool", "max_queries")
_SAME_WHERE_RERANKED = ("first_stage", "depth")  # elsewhere the first stage is the system under test
_SAME_HASHES = ("collection", "candidates")


@dataclass(frozen=True)
class Pair:
    """A specialist and the joint arm that pairs with it: the same name behind the task word."""

    task: Task
    specialist: str
    joint: str


class Results(Mapping[str, dict[Seed, dict[str, dict[str, float]]]]):
    """The results of one output folder: ``{arm: {seed: {"task/dataset": {metric: mean}}}}``, and what lies behind.

    Attributes:
        output_dir: the folder that was read.
        results: the result files in full, by arm, seed, task and dataset; per-query scores and provenance included.
        logs: training logs by arm and seed.
        pairs: which arms are compared, where their names do not say; empty where they do.
    """

    def __init__(
        self,
        output_dir: Path,
        results: Iterable[EvalResult],
        logs: Mapping[tuple[str, Seed], Log] | None = None,
        pairs: Iterable[Pair] = (),
    ) -> None:
        """Take results that have been read.

        Raises:
            DataError: two results claim the same place, or results that would be compared are not comparable.
        """
        self.output_dir = output_dir
        self.results = tuple(sorted(results, key=_order))
        self.logs = dict(logs or {})
        self.pairs = tuple(pairs)
        self._typed = {(r.config_name, r.seed, r.key): r for r in self.results}
        if len(self._typed) < len(self.results):
            raise DataError(f"{output_dir}: two results claim the same arm, seed, task and dataset")
        self._aggregate: dict[str, dict[Seed, dict[str, dict[str, float]]]] = {}
        for r in self.results:
            self._aggregate.setdefault(r.config_name, {}).setdefault(r.seed, {})[r.key] = dict(r.aggregate)
        _refuse_mixture(output_dir, self.results)
        for key in self.dataset_keys:
            _refuse_incomparable(key, [r for r in self.results if r.key == key])

    def __getitem__(self, config_name: str) -> dict[Seed, dict[str, dict[str, float]]]:
        return self._aggregate[config_name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._aggregate)

    def __len__(self) -> int:
        return len(self._aggregate)

    @property
    def dataset_keys(self) -> tuple[str, ...]:
        """Every ``task/dataset`` with a result: tasks in the schema's order, datasets by name."""
        found = {r.key: (TASKS.index(r.task), r.dataset) for r in self.results}
        return tuple(sorted(found, key=found.__getitem__))

    @property
    def caveats(self) -> tuple[str, ...]:
        """Why these results are unfit for decisions, each reason once."""
        return tuple(dict.fromkeys(caveat for r in self.results for caveat in r.caveats))

    def result(self, config_name: str, seed: Seed, key: str) -> EvalResult | None:
        """One result in full; None where it was not measured."""
        return self._typed.get((config_name, seed, key))

    def measured(self, key: str, config_name: str | None = None) -> tuple[EvalResult, ...]:
        """All results on one ``task/dataset``, of one arm or of every arm, by arm and seed."""
        return tuple(r for r in self.results if r.key == key and config_name in (None, r.config_name))

    def seeds(self, config_name: str, key: str) -> tuple[int, ...]:
        """The training seeds of an arm that were measured on one ``task/dataset``, ascending."""
        return tuple(r.seed for r in self.measured(key, config_name) if r.seed is not None)

    def scores(self, config_name: str, key: str, seeds: Sequence[Seed]) -> NDArray[np.float64]:
        """Main metric of one arm as a matrix, ``(seeds, queries)``, queries by id.

        Raises:
            DataError: one of the seeds was not measured.
        """
        rows = []
        for seed in seeds:
            result = self.result(config_name, seed, key)
            if result is None:
                raise DataError(f"{self.output_dir}: no {key} result of {config_name}, {seed_name(seed)}")
            rows.append([result.per_query[query_id] for query_id in sorted(result.per_query)])
        return np.array(rows, dtype=np.float64)


def load_all_results(output_dir: Path | str) -> Results:
    """Read every result and training log below an output folder.

    Looks for ``{output_dir}/*/seed_*/results/{task}/{dataset}.json`` and ``.../logs/train.jsonl``. Arms, seeds and
    datasets may be missing; what is there must be whole and belong together.

    Raises:
        DataError: no result at all; a file that is cut short, of another schema, or not what its path says; two files
            for the same measurement; results of different experiments, base models or prompts; arms judged on
            different queries, candidates, depths, splits or pools.
    """
    output_dir = Path(output_dir)
    files: dict[tuple[str, Seed, str], Path] = {}
    results = []
    for path in sorted(output_dir.glob("*/seed_*/results/*/*.json")):
        if path.name.endswith(_SIDECARS):
            continue
        result = read_result(path)
        claim = (result.config_name, result.seed, result.key)
        if claim in files:
            raise DataError(
                f"{path} and {files[claim]} both claim to be {_name(result)} on {result.key}; remove one of them"
            )
        files[claim] = path
        results.append(result)
    if not results:
        raise DataError(f"{output_dir}: no results here; evaluate an arm first, or point --output-dir at an experiment")
    for result, path in zip(results, files.values(), strict=True):
        _refuse_misplaced(output_dir, path, result)
    return Results(output_dir, results, _read_logs(output_dir))


def _read_logs(output_dir: Path) -> dict[tuple[str, Seed], Log]:
    logs: dict[tuple[str, Seed], Log] = {}
    for path in sorted(output_dir.glob("*/seed_*/logs/train.jsonl")):
        config_name, seed = path.parts[-4], path.parts[-3].removeprefix("seed_")
        if seed.isdecimal():
            logs[config_name, int(seed)] = _read_log(path)
    return logs


def _read_log(path: Path) -> Log:
    """One record per step and task; a resumed run's repetition of a step replaces the first one.

    A last line without an end is what a killed run leaves, and is dropped.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    records: dict[tuple[int, Any], dict[str, Any]] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
            step, loss = int(record["step"]), float(record["loss"])
            records[step, record.get("task")] = record | {"step": step, "loss": loss}
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DataError(f"{path}:{number}: not a training record with step and loss; remove the line") from None
    return tuple(records[step] for step in sorted(records, key=lambda step: (step[0], str(step[1]))))


def _order(result: EvalResult) -> tuple[str, int, int, str]:
    return result.config_name, -1 if result.seed is None else result.seed, TASKS.index(result.task), result.dataset


def _name(result: EvalResult) -> str:
    return result.config_name if result.seed is None else f"{result.config_name} seed {result.seed}"


def _refuse_misplaced(output_dir: Path, path: Path, result: EvalResult) -> None:
    expected = result_path(output_dir, result.config_name, result.seed, result.task, result.dataset)
    if path != expected:
        raise DataError(
            f"{path} says it is {_name(result)} on {result.key}, which belongs at {expected}; move it there"
        )


def _refuse_mixture(output_dir: Path, results: Sequence[EvalResult]) -> None:
    """One folder holds one experiment and one base model, and each task one prompt; arms without a model have none."""
    _agree(f"{output_dir}", "experiment", results, lambda r: r.identity.experiment)
    _agree(f"{output_dir}", "base model", results, lambda r: r.identity.base_model, null_agrees=True)
    for task in TASKS:
        of_task = [r for r in results if r.task == task]
        _agree(f"{output_dir}, {task}", "prompt", of_task, lambda r: r.identity.prompt, null_agrees=True)


def _refuse_incomparable(key: str, results: Sequence[EvalResult]) -> None:
    """What stands side by side in a table must have been measured alike."""
    _agree(key, "main metric", results, lambda r: r.main_metric)
    reranked = _SAME_WHERE_RERANKED if results[0].task == "reranking" else ()
    for field in (*_SAME_PER_DATASET, *reranked):
        _agree(key, field, results, attrgetter(f"identity.{field}"))
    for part in _SAME_HASHES:
        _agree(key, f"{part} hash", results, partial(_hash_of, part), null_agrees=True)
    trained = [r for r in results if r.identity.checkpoint != "none"]
    _agree(key, "checkpoint", trained, lambda r: r.identity.checkpoint)
    for other in results[1:]:
        _same_queries(key, results[0], other)


def _hash_of(part: str, result: EvalResult) -> str | None:
    return result.provenance.hashes.get(part)


def _agree(
    where: str,
    what: str,
    results: Sequence[EvalResult],
    value_of: Callable[[EvalResult], Any],
    *,
    null_agrees: bool = False,
) -> None:
    holders: dict[Any, list[str]] = {}
    for result in results:
        value = value_of(result)
        if not (null_agrees and value is None):
            holders.setdefault(value, []).append(_name(result))
    if len(holders) > 1:
        sides = "; ".join(f"{value!r} in {_some(names)}" for value, names in holders.items())
        raise DataError(
            f"{where}: {what} differs: {sides}; results of one --output-dir must be measured alike, "
            "move the others elsewhere or evaluate again"
        )


def _same_queries(key: str, first: EvalResult, other: EvalResult) -> None:
    for here, there in ((first, other), (other, first)):
        missing = sorted(here.per_query.keys() - there.per_query.keys())
        if missing:
            raise DataError(
                f"{key}: {_name(there)} lacks {len(missing)} of the {len(here.per_query)} queries of {_name(here)} "
                f"({_some([repr(q) for q in missing])}); arms are compared on the same queries only, evaluate again"
            )


def _some(names: Sequence[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
