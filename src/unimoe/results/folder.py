"""Every result of one output folder, read strictly and refused where its parts do not belong side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unimoe.core.errors import DataError, path_of
from unimoe.core.grouping import gathered
from unimoe.results import (
    TASKS,
    EvalResult,
    Otherwise,
    QueryDetail,
    by_query_id,
    read_query_details,
    read_result,
    result_files,
    result_path,
    safe_name,
    seed_name,
)
from unimoe.results.clusters import Clusters, Codes, Groups, by_cluster, cluster_sums
from unimoe.results.comparability import comparable, name_of, refuse_other_labels, remarks
from unimoe.results.logs import Log, read_logs
from unimoe.results.topics import SEPARATE, Asked, IdPairs, repeated_texts, said_of_shared, shared_topics

if TYPE_CHECKING:
    import pandas as pd

    from unimoe.metrics import MetricLike

Seed: TypeAlias = int | None  # of a training; None for arms that have none, such as BM25 and zero-shot
Details: TypeAlias = Mapping[str, QueryDetail]  # what is known of the queries of one arm and seed, by query id


class Results(dict[str, dict[Seed, dict[str, dict[str, float]]]]):
    """The results of one output folder: ``{arm: {seed: {"task/dataset": {metric: mean}}}}``, and what lies behind.

    ``everything`` has the result files in full, by arm, seed, task and dataset: ``results``, and those of MTEB's tasks
    ``without_queries``, where nothing is paired: they take part in no test, interval, gate or drill-down.

    Runs of one arm with the same main metric on every query are one run, or they would fake seeds: ``measured`` and
    ``seeds`` have the first of them, and ``notes`` names all. Scores scaled by 2, or another order of documents that
    the metric does not see, have another hash.
    """

    def __init__(
        self,
        output_dir: Path,
        results: Iterable[EvalResult],
        logs: Mapping[tuple[str, Seed], Log] | None = None,
        allow: Collection[str] = (),
        details: Mapping[tuple[str, Seed, str], Details] | None = None,
        repeated_queries: Mapping[str, IdPairs] | None = None,
        clusters: Clusters | None = None,
        groups: Groups | None = None,
    ) -> None:
        """Take results that have been read; ``allow`` and errors are those of ``load_all_results``.

        ``details`` are texts and ranks of queries that no sidecar holds. ``repeated_queries`` are those of rankings by
        ``task/dataset``; by default they are found by their texts. ``clusters`` and ``groups`` are those of queries.
        """
        super().__init__()
        self.output_dir = output_dir
        self.allow = tuple(allow)
        self.everything = tuple(sorted(comparable(str(output_dir), list(results), allow), key=_order))
        self.results = tuple(r for r in self.everything if r.per_query)
        self.without_queries = tuple(r for r in self.everything if not r.per_query)
        self.logs = dict(logs or {})
        self.details = dict(details or {})
        self.clusters = clusters
        self.groups = groups
        self._typed = {(r.config_name, r.seed, r.key): r for r in self.everything}
        if len(self._typed) < len(self.everything):
            raise DataError(f"{output_dir}: two results claim the same arm, seed, task and dataset")
        self._measured: dict[str, list[EvalResult]] = {}
        self._of_arm: dict[tuple[str, str], list[EvalResult]] = {}  # the same by key and arm
        self._first: dict[tuple[str, Seed, str], Seed] = {}  # by arm, seed and key: the first seed with the same scores
        for r in self.everything:
            self.setdefault(r.config_name, {}).setdefault(r.seed, {})[r.key] = dict(r.aggregate)
            earlier = self._of_arm.setdefault((r.key, r.config_name), [])
            same = (o for o in earlier if o.per_query == r.per_query and o.predicted == r.predicted and r.per_query)
            first = next(same, r)
            self._first[r.config_name, r.seed, r.key] = first.seed
            if first is r:
                earlier.append(r)
                self._measured.setdefault(r.key, []).append(r)
        for key, of_key in self._measured.items():
            refuse_other_labels(key, of_key, in_clusters=clusters is not None)
        self._repeated_queries = dict(repeated_queries or {})
        self._rows: dict[tuple[str, Seed, str, str], NDArray[np.float64]] = {}
        self._codes: dict[str, Codes] = {}
        self._otherwise: dict[tuple[str, Seed, str, str], NDArray[np.float64]] = {}
        self._topics: dict[tuple[str, ...], list[Codes] | None] = {}
        self._asked: dict[str, dict[str, Asked | None]] = {}

    @property
    def dataset_keys(self) -> tuple[str, ...]:
        """Every ``task/dataset`` with scores by query: tasks in the schema's order, datasets by name."""
        return _keys(self.results)

    @property
    def keys_without_queries(self) -> tuple[str, ...]:
        """Every other ``task/dataset`` with a result, in the same order."""
        return _keys(self.without_queries)

    @property
    def firsts(self) -> tuple[EvalResult, ...]:
        """The first result on each of the ``dataset_keys``, to tell what all results there share."""
        return tuple(self._measured[key][0] for key in self.dataset_keys)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What to read the numbers with, why they are unfit for decisions included; each line once.

        What holds of some systems alone names them.
        """
        doors = remarks(self.results)
        of_systems = gathered((caveat, r.config_name) for r in self.everything for caveat in r.caveats)
        unfit = (
            caveat if caveat in doors or {*systems} == {*self} else f"{', '.join(dict.fromkeys(systems))}: {caveat}"
            for caveat, systems in of_systems.items()
        )
        return tuple(dict.fromkeys([*unfit, *doors]))

    def frame(self, metrics: MetricLike | Iterable[MetricLike] = ()) -> pd.DataFrame:
        """Return the scores by query in rows ``system, seed, task, dataset, metric, query, score``.

        Results without queries have no row, and arms without a seed have ``<NA>`` for it.

        Args:
            metrics: by default the main one of each dataset; else names, or ``"all"``. A result that lacks one has
                no row for it.

        Raises:
            UsageError: an unknown metric.
            DataError: no result holds one of them.
        """
        import pandas as pd  # only loaded by those who ask for a frame

        from unimoe.metrics import canonical_metrics

        wanted = () if metrics == "all" else canonical_metrics(metrics)
        rows: list[tuple[object, ...]] = []
        for r in self.results:
            held = {r.main_metric: by_query_id(r.per_query), **r.per_query_metrics}
            shown = held if metrics == "all" else wanted or [r.main_metric]
            place = (r.config_name, r.seed, r.task, r.dataset)
            rows += [(*place, metric, sorted(r.per_query), held[metric]) for metric in shown if metric in held]
        if absent := [metric for metric in wanted if all(row[4] != metric for row in rows)]:
            raise DataError(f"{self.output_dir}: no result holds {absent[0]!r} by query; evaluate again with it")
        frame = pd.DataFrame(rows, columns=["system", "seed", "task", "dataset", "metric", "query", "score"])
        frame = frame.astype({"seed": "Int64"}).explode(["query", "score"], ignore_index=True)
        return frame.astype({"query": "str", "score": "float64"})

    def result(self, config_name: str, seed: Seed, key: str) -> EvalResult | None:
        """Return one result in full; None where it was not measured."""
        return self._typed.get((config_name, seed, key))

    def measured(self, key: str, config_name: str | None = None) -> tuple[EvalResult, ...]:
        """Return the runs on one ``task/dataset``, of one arm or of every arm, by arm and seed."""
        return tuple(self._measured.get(key, ()) if config_name is None else self._of_arm.get((key, config_name), ()))

    def seeds(self, config_name: str, key: str) -> tuple[int, ...]:
        """Return the training seeds of an arm's runs on one ``task/dataset``, ascending."""
        return tuple(r.seed for r in self.measured(key, config_name) if r.seed is not None)

    def seeds_of_all(self, config_name: str, keys: Sequence[str]) -> tuple[int, ...]:
        """Return the seeds of an arm that have a result on each key, ascending, also those that repeat a run."""
        held = sorted(seed for seed in self.get(config_name, {}) if seed is not None)
        return tuple(seed for seed in held if all((config_name, seed, key) in self._typed for key in keys))

    def distinct(self, config_name: str, keys: Sequence[str], seeds: Iterable[int]) -> tuple[int, ...]:
        """Return those of some seeds with a result on each key that repeat no other run on all keys, ascending."""
        found: dict[tuple[Seed, ...], int] = {}
        for seed in sorted(seeds):
            found.setdefault(tuple(self._first[config_name, seed, key] for key in keys), seed)
        return tuple(found.values())

    def notes(self, keys: Sequence[str], arms: Collection[str] | None = None) -> Iterator[str]:
        """Yield which runs, of some arms or of all, are one run, which queries repeat another, which topics are shared.

        Datasets of one task may share topics: tasks are never averaged.
        """
        for task, of_task in gathered((key.partition("/")[0], key) for key in keys).items():
            if codes := self.topics(of_task):
                yield said_of_shared(codes, task, clusters=self.clusters is not None)
        for key in keys:
            same = gathered(
                ((r.config_name, self._first[r.config_name, r.seed, key]), name_of(r))
                for r in self.results
                if r.key == key and (arms is None or r.config_name in arms)
            )
            for names in (", ".join(names) for names in same.values() if len(names) > 1):
                yield f"{names} have the same score on every query of {key}: they are one run and count once"
            if key not in self._repeated_queries:
                self._repeated_queries[key] = repeated_texts(self._measured[key], partial(self._known, key))
            pairs, total = self._repeated_queries[key], len(self._measured[key][0].per_query)
            for again, first in pairs[:1]:
                yield (
                    f"{len(pairs):,} of {total:,} queries of {key} repeat another, such as {again!r} and {first!r}: "
                    "these are no independent draws, and intervals are too narrow"
                )

    def topics(self, keys: Sequence[str]) -> list[Codes] | None:
        """Return the number of each query's topic on some datasets, or of each cluster; None where they share none.

        Results of a config that says ``topics: separate`` share none but clusters.
        """
        place = tuple(keys)
        if len(keys) > 1 and place not in self._topics:
            if self.clusters:
                of_clusters = [dict.fromkeys(self.clusters.of[q] for q in self.queries(key)) for key in keys]
                self._topics[place] = shared_topics(of_clusters)
            elif any(self._measured[key][0].config.get("topics") == SEPARATE for key in keys):
                self._topics[place] = None
            else:
                self._topics[place] = shared_topics([self._known(key) for key in keys])
        return self._topics.get(place)

    def queries(self, key: str) -> list[str]:
        """Return the ids of the queries on one ``task/dataset``, ascending: with a model's judgments, all of them."""
        first = self._measured[key][0]
        return first.predicted.queries if first.predicted else sorted(first.per_query)

    def labelled(self, key: str) -> NDArray[np.bool_] | None:
        """Return which of the ``queries`` have human judgments; None where there are no others."""
        first = self._measured[key][0]
        return first.predicted.labelled(first.per_query) if first.predicted else None

    def _known(self, key: str) -> dict[str, Asked | None]:
        """Return what is known of the queries on a ``task/dataset``, by ascending id: of the first whole sidecar."""
        if key not in self._asked:
            details: Details = {}
            for r in self._measured[key]:
                try:
                    details = self.query_details(r.config_name, r.seed, key, r.per_query)
                except DataError:  # no sidecar; the drill-down says which cannot be read
                    continue
                break
            known = {q: Asked(of.text, of.relevant) for q, of in details.items()}
            self._asked[key] = {q: known.get(q) for q in self.queries(key)}
        return self._asked[key]

    def seeds_pair(self, arms: Iterable[str], keys: Iterable[str]) -> bool:
        """Return whether the configs of all results declare the same ``paired_seeds``: equal seeds are then a pair.

        Arms of one seed share the order of the data and the initial weights, which equal numbers do not imply. It is
        true, or a text that says what a seed decides: a study's arms pair where that is the same.
        """
        of_arms = [r for key in keys for arm in arms for r in self.measured(key, arm) if r.seed is not None]
        declared = [r.config.get("paired_seeds") for r in of_arms]
        return any(declared) and all(one == declared[0] for one in declared)

    @property
    def pools_runs(self) -> bool:
        """Whether the configs of all results declare ``pool_runs``: arms of one recipe share the variance of a run."""
        declared = [bool(r.config.get("pool_runs")) for r in self.results if r.seed is not None]
        return bool(declared) and all(declared)

    def query_details(self, config_name: str, seed: Seed, key: str, query_ids: Iterable[str]) -> Details:
        """Return texts and ranks of some queries of a result; a DataError where its sidecar cannot be read."""
        if self.details:
            return self.details[config_name, seed, key]
        task, _, dataset = key.partition("/")
        return read_query_details(result_path(self.output_dir, config_name, seed, task, dataset), query_ids)

    def codes(self, key: str) -> Codes | None:
        """Return the number of the cluster of each query on one ``task/dataset``, by id; None without clusters."""
        if self.clusters is None:
            return None
        if key not in self._codes:  # every comparison asks again
            self._codes[key] = self.clusters.codes(sorted(self._measured[key][0].per_query))
        return self._codes[key]

    @property
    def cluster_numbers(self) -> dict[str, int] | None:
        """The number of clusters on each ``task/dataset``; None without any."""
        codes = {key: self.codes(key) for key in self.dataset_keys}
        return {key: int(of.max()) + 1 for key, of in codes.items() if of is not None} or None

    def shares(self, key: str) -> NDArray[np.float64] | float:
        """Return the size of each cluster on one ``task/dataset`` over their mean size; 1 without clusters."""
        codes = self.codes(key)
        return 1.0 if codes is None else cluster_sums(np.ones(len(codes)), codes)

    def draws(
        self, config_name: str, key: str, seeds: Sequence[Seed], metric: str | None = None
    ) -> NDArray[np.float64]:
        """Return ``scores`` by what is drawn: queries, or whole clusters; with a model's judgments, of all queries.

        The mean over columns is the system's score.
        """
        scores, codes, labelled = self.scores(config_name, key, seeds, metric), self.codes(key), self.labelled(key)
        if labelled is None:
            return scores if codes is None else by_cluster(scores, codes)
        rows = []
        for seed, human in zip(seeds, scores, strict=True):
            result = self._typed[config_name, seed, key]
            if result.predicted:
                rows.append(result.predicted.columns(metric or result.main_metric, human, labelled))
        return np.array(rows)

    def otherwise(self, key: str, variants: Mapping[str, Otherwise]) -> Results | None:
        """Return the same with ``variants`` of some arms' scores on one ``task/dataset``; None where none has any."""
        rows = {}
        for r in chain.from_iterable(self.measured(key, arm) for arm in variants):
            place = (r.config_name, r.seed, key, variants[r.config_name])
            if (values := r.otherwise.get(place[-1])) is not None:
                if place not in self._otherwise:  # every comparison of an arm asks again
                    self._otherwise[place] = np.array(by_query_id({**r.per_query, **values}))
                rows[(*place[:-1], r.main_metric)] = self._otherwise[place]
        if not rows:
            return None
        other = copy(self)
        other._rows = self._rows | rows
        return other

    def scores(
        self, config_name: str, key: str, seeds: Sequence[Seed], metric: str | None = None
    ) -> NDArray[np.float64]:
        """Return a metric of an arm, by default the main one, as a matrix ``(seeds, queries)``, queries by id.

        A seed that was not measured, a metric that was not computed, or a dataset without queries is a DataError.
        """
        rows = []
        for seed in seeds:
            result = self.result(config_name, seed, key)
            if result is None:
                raise DataError(f"{self.output_dir}: no {key} result of {config_name}, {seed_name(seed)}")
            if not result.per_query:
                raise DataError(f"{self.output_dir}: {key} has no queries, and so no scores by query")
            place = (config_name, seed, key, metric or result.main_metric)
            if place not in self._rows:  # every comparison of an arm asks again
                self._rows[place] = np.array(result.values(place[-1]))
            rows.append(self._rows[place])
        return np.array(rows, dtype=np.float64)


def load_all_results(
    output_dir: Path | str, allow: str | Collection[str] = (), only: Collection[tuple[str, str]] | None = None
) -> Results:
    """Read every result and training log below an output folder.

    Arms, seeds and datasets may be missing; what is there must be whole and belong together.

    Args:
        output_dir: the folder of one experiment: ``{output_dir}/{arm}/seed_{N}/results/{task}/{dataset}.json``.
        allow: a name of ``comparability.ALLOWANCES``, or several: differences that become caveats, not refusals.
        only: arms and ``task/dataset`` keys; their seeds alone are read, and no logs. Where one has no result,
            everything is read, so that a refusal can name what is there.

    Raises:
        DataError: no result, a broken or misplaced one, or results that ``comparability`` refuses.
        UsageError: an unknown name in ``allow``.
    """
    output_dir = path_of(output_dir, "the output folder")
    paths = result_files(output_dir)
    if not paths:
        raise DataError(f"{output_dir}: no results here; evaluate an arm first, or point --output-dir at an experiment")
    if only is not None:
        wanted = {(arm, task, safe_name(dataset)) for arm, key in only for task, _, dataset in [key.partition("/")]}
        found = {path: (path.parts[-5], path.parts[-2], path.stem) for path in paths}
        if wanted <= set(found.values()):
            paths = [path for path, place in found.items() if place in wanted]
    logs = read_logs(output_dir) if only is None else None
    clusters, groups = Clusters.kept(output_dir), Groups.kept(output_dir)
    allowed = tuple(allow) if isinstance(allow, Iterable) and not isinstance(allow, str) else (allow,)
    results = Results(output_dir, _read(output_dir, paths), logs, allow=allowed, clusters=clusters, groups=groups)
    for of_queries in filter(None, (clusters, groups)):
        of_queries.refuse_others({first.key: first.per_query for first in results.firsts}, whole=only is None)
    return results


def _read(output_dir: Path, paths: Sequence[Path]) -> Iterator[EvalResult]:
    """Yield results; refuse a file at another place than its content says, such as a second one for a measurement."""
    for path in paths:
        result = read_result(path)
        expected = result_path(output_dir, result.config_name, result.seed, result.task, result.dataset)
        if path != expected:
            remedy = "remove one of the two" if expected in paths else "move it there"
            raise DataError(
                f"{path} says it is {name_of(result)} on {result.key}, which belongs at {expected}; {remedy}"
            )
        yield result


def _keys(results: Iterable[EvalResult]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(r.key for r in sorted(results, key=_place)))


def _place(result: EvalResult) -> tuple[int, str]:
    return TASKS.index(result.task), result.dataset


def _order(result: EvalResult) -> tuple[str, int, tuple[int, str]]:
    return result.config_name, -1 if result.seed is None else result.seed, _place(result)
