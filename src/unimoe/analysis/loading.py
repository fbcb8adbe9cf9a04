"""Every result of one output folder, read strictly and refused where its parts do not belong side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from unimoe.analysis.comparable import comparable, name_of
from unimoe.analysis.logs import Log, read_logs
from unimoe.errors import DataError
from unimoe.io import find_files
from unimoe.results import TASKS, EvalResult, by_query_id, read_result, result_path, safe_name, seed_name

Seed: TypeAlias = int | None
"""A training seed; null for arms that have none, such as BM25 and zero-shot."""

_SIDECARS = (".queries.json", ".mteb.json")


class Results(Mapping[str, dict[Seed, dict[str, dict[str, float]]]]):
    """The results of one output folder: ``{arm: {seed: {"task/dataset": {metric: mean}}}}``, and what lies behind.

    Attributes:
        output_dir: the folder that was read.
        results: the result files in full, by arm, seed, task and dataset; per-query scores and provenance included.
        without_queries: those of MTEB's tasks that have no queries, in full and in the same order. Nothing is paired
            there: they take part in no test, interval, gate or drill-down, and stand in no list of ``results``.
        everything: both together.
        logs: training logs by arm and seed.
    """

    def __init__(
        self,
        output_dir: Path,
        results: Iterable[EvalResult],
        logs: Mapping[tuple[str, Seed], Log] | None = None,
        allow: Collection[str] = (),
    ) -> None:
        """Take results that have been read; ``allow`` as in ``load_all_results``.

        Raises:
            DataError: two results claim the same place, or results that would be compared are not comparable.
            UsageError: an unknown name in ``allow``.
        """
        self.output_dir = output_dir
        self.everything = tuple(sorted(comparable(str(output_dir), list(results), allow), key=_order))
        self.results = tuple(r for r in self.everything if r.per_query)
        self.without_queries = tuple(r for r in self.everything if not r.per_query)
        self.logs = dict(logs or {})
        self._typed = {(r.config_name, r.seed, r.key): r for r in self.everything}
        if len(self._typed) < len(self.everything):
            raise DataError(f"{output_dir}: two results claim the same arm, seed, task and dataset")
        self._aggregate: dict[str, dict[Seed, dict[str, dict[str, float]]]] = {}
        self._measured: dict[str, list[EvalResult]] = {}
        for r in self.everything:
            self._aggregate.setdefault(r.config_name, {}).setdefault(r.seed, {})[r.key] = dict(r.aggregate)
            self._measured.setdefault(r.key, []).append(r)
        self._rows: dict[tuple[str, Seed, str, str], NDArray[np.float64]] = {}

    def __getitem__(self, config_name: str) -> dict[Seed, dict[str, dict[str, float]]]:
        return self._aggregate[config_name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._aggregate)

    def __len__(self) -> int:
        return len(self._aggregate)

    @property
    def dataset_keys(self) -> tuple[str, ...]:
        """Every ``task/dataset`` with scores by query: tasks in the schema's order, datasets by name."""
        return _keys(self.results)

    @property
    def keys_without_queries(self) -> tuple[str, ...]:
        """Every other ``task/dataset`` with a result, in the same order."""
        return _keys(self.without_queries)

    @property
    def caveats(self) -> tuple[str, ...]:
        """Why these results are unfit for decisions, what was allowed included; each reason once."""
        return tuple(dict.fromkeys(caveat for r in self.everything for caveat in r.caveats))

    def result(self, config_name: str, seed: Seed, key: str) -> EvalResult | None:
        """One result in full; None where it was not measured."""
        return self._typed.get((config_name, seed, key))

    def measured(self, key: str, config_name: str | None = None) -> tuple[EvalResult, ...]:
        """All results on one ``task/dataset``, of one arm or of every arm, by arm and seed."""
        return tuple(r for r in self._measured.get(key, ()) if config_name in (None, r.config_name))

    def seeds(self, config_name: str, key: str) -> tuple[int, ...]:
        """The training seeds of an arm that were measured on one ``task/dataset``, ascending."""
        return tuple(r.seed for r in self.measured(key, config_name) if r.seed is not None)

    def seeds_pair(self, arms: Iterable[str], keys: Iterable[str]) -> bool:
        """Return whether the experiment declares that equal seeds of some arms make a pair on these keys.

        The declaration is ``paired_seeds`` in the config of every result: the arms of one seed then share the order of
        the data and the initial weights. Equal seed numbers alone do not make two training runs a pair.
        """
        of_arms = [r for key in keys for arm in arms for r in self.measured(key, arm) if r.seed is not None]
        return bool(of_arms) and all(r.config.get("paired_seeds") is True for r in of_arms)

    def scores(
        self, config_name: str, key: str, seeds: Sequence[Seed], metric: str | None = None
    ) -> NDArray[np.float64]:
        """One metric of one arm as a matrix, ``(seeds, queries)``, queries by id.

        Args:
            config_name: the arm.
            key: ``task/dataset``.
            seeds: one row each.
            metric: one that the results hold by query; the main metric when left out.

        Raises:
            DataError: one of the seeds was not measured, the metric was not computed, or there are no queries.
        """
        return np.array([self._row(config_name, seed, key, metric) for seed in seeds], dtype=np.float64)

    def _row(self, config_name: str, seed: Seed, key: str, metric: str | None) -> NDArray[np.float64]:
        """Kept once made: every comparison of an arm asks for it again."""
        result = self.result(config_name, seed, key)
        if result is None:
            raise DataError(f"{self.output_dir}: no {key} result of {config_name}, {seed_name(seed)}")
        if not result.per_query:
            raise DataError(f"{self.output_dir}: {key} has no queries, and so no scores by query")
        place = (config_name, seed, key, metric or result.main_metric)
        if place not in self._rows:
            self._rows[place] = np.array(by_query_id(result.metric(place[-1])))
        return self._rows[place]


def load_all_results(
    output_dir: Path | str, allow: Collection[str] = (), only: Collection[tuple[str, str]] | None = None
) -> Results:
    """Read every result and training log below an output folder.

    Looks for ``{output_dir}/*/seed_*/results/{task}/{dataset}.json`` and ``.../logs/train.jsonl``. Arms, seeds and
    datasets may be missing; what is there must be whole and belong together.

    Args:
        output_dir: the folder of one experiment.
        allow: names of ``comparable.ALLOWANCES``: differences that do not keep arms from being compared, but become
            caveats. Other queries are then cut to those that all arms share.
        only: arms and ``task/dataset`` keys, all seeds of which are read and no logs, for a question that concerns
            these alone. When one has no result, everything is read after all, so that a refusal can name what is there.

    Raises:
        DataError: no result at all; a file that is cut short, of another schema, or not what its path says; two files
            for the same measurement; results of different experiments, base models or prompts; arms judged on
            different queries, candidates, depths, splits or pools.
        UsageError: an unknown name in ``allow``.
    """
    output_dir = Path(output_dir)
    paths = _result_files(output_dir)
    chosen = None if only is None else _chosen(paths, only)
    results = _read(output_dir, paths if chosen is None else chosen)
    return Results(output_dir, results, read_logs(output_dir) if only is None else None, allow=allow)


def _result_files(output_dir: Path) -> list[Path]:
    found = find_files(output_dir, "*/seed_*/results/*/*.json") if output_dir.exists() else []
    paths = [path for path in found if not path.name.endswith(_SIDECARS)]
    if not paths:
        raise DataError(f"{output_dir}: no results here; evaluate an arm first, or point --output-dir at an experiment")
    return paths


def _chosen(paths: Sequence[Path], only: Collection[tuple[str, str]]) -> list[Path] | None:
    """The files of these arms and keys by their paths; None where one has no file."""
    wanted = set()
    for config_name, key in only:
        task, _, dataset = key.partition("/")
        wanted.add((config_name, task, safe_name(dataset)))
    found = {path: (path.parts[-5], path.parts[-2], path.stem) for path in paths}
    return None if wanted.difference(found.values()) else [path for path, of in found.items() if of in wanted]


def _read(output_dir: Path, paths: Iterable[Path]) -> list[EvalResult]:
    """Read result files; refuse two for one measurement, and a file at another place than its content says."""
    read = [(path, read_result(path)) for path in paths]
    files: dict[tuple[str, Seed, str], Path] = {}
    for path, result in read:
        other = files.setdefault((result.config_name, result.seed, result.key), path)
        if other != path:
            raise DataError(
                f"{path} and {other} both claim to be {name_of(result)} on {result.key}; remove one of them"
            )
    for path, result in read:
        expected = result_path(output_dir, result.config_name, result.seed, result.task, result.dataset)
        if path != expected:
            raise DataError(
                f"{path} says it is {name_of(result)} on {result.key}, which belongs at {expected}; move it there"
            )
    return [result for _, result in read]


def _keys(results: Iterable[EvalResult]) -> tuple[str, ...]:
    return tuple(r.key for r in sorted({r.key: r for r in results}.values(), key=_place))


def _place(result: EvalResult) -> tuple[int, str]:
    return TASKS.index(result.task), result.dataset


def _order(result: EvalResult) -> tuple[str, int, tuple[int, str]]:
    return result.config_name, -1 if result.seed is None else result.seed, _place(result)
