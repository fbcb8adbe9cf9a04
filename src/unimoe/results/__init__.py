"""Result files: one JSON file per arm, seed, task and dataset.

Evaluation writes them and analysis reads them; neither imports the other. A file is written atomically, read strictly,
and never overwritten by a result of another identity.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from unimoe.core.errors import DataError
from unimoe.core.io import Strict, find_files, read_json, write_json
from unimoe.core.limits import HIGHEST_GRADE, MOST, name_problem, shortened
from unimoe.results.details import DrillDown, drilldown_path, write_drilldown

Task = Literal["reranking", "embedding", "retrieval", "crossmodal"]
TASKS: tuple[Task, ...] = get_args(Task)

TYPES_WITH_QUERIES = ("Retrieval", "Reranking")
"""MTEB's types of tasks whose results always hold scores by query."""

Score = Annotated[float, Field(allow_inf_nan=False, ge=-MOST, le=MOST)]


def _named(name: str) -> str:
    if problem := name_problem(name):
        raise ValueError(f"the name {shortened(name)!r} {problem}")
    return name


class Identity(Strict):
    """What was evaluated. Two results are of the same evaluation when identity, arm and seed are equal.

    Attributes:
        experiment: name of the experiment the arm belongs to.
        base_model: logical id and content hash of the base weights, ``id@hash``; None for arms without a model.
        checkpoint: which checkpoint of the arm; ``none`` for arms that are not trained.
        split: the collection's split that was scored.
        first_stage: where the candidates come from, with its parameters, for example ``bm25s(k1=0.9,b=0.4)``.
        depth: candidates per query; None where the whole corpus or pool is ranked.
        pool: documents ranked, where that is a sample of the collection; None for the whole.
        prompt: name and content hash of the prompt.
        max_queries: queries scored where the set was cut; None for all of them.
    """

    experiment: str
    base_model: str | None
    checkpoint: Literal["best", "last", "none"]
    split: str
    first_stage: str | None
    depth: int | None
    pool: int | None
    prompt: str | None
    max_queries: int | None


class TrainingBudget(Strict):
    """What an arm saw in training; arms are comparable only with equal budgets."""

    steps: int
    ranking_examples: int
    embedding_examples: int
    tokens: int


class FirstStageScores(Strict):
    """The scores of the candidates in the order of the first stage, to compare with their reranking.

    Attributes:
        aggregate: mean over judged queries, by metric; empty where the first stage gives no order.
        delta: what reranking adds, by metric.
        queries_without_candidates: judged queries that the first stage found nothing for; they count 0.
    """

    aggregate: dict[str, Score]
    delta: dict[str, Score]
    queries_without_candidates: list[str]


class Provenance(Strict):
    """Where a result came from, complete enough to produce it again.

    Attributes:
        hashes: content hashes by name: checkpoint, collection, candidates, prompt.
        token_budget: tokens of one forward pass; None without a model. Smaller than the config's where memory ran out.
        wall_time_s: seconds of scoring, model loading excluded.
        items_per_s: pairs (reranking) or texts (embedding) scored per second; None where no model scored anything.
        given: the options and config keys given by hand; all others have their default.
        usage: what a server was paid for the scores, by name: requests, tokens, searches; empty without one.
    """

    created: str
    git_commit: str | None
    git_dirty: bool | None
    python: str
    platform: str
    packages: dict[str, str]
    device: str
    dtype: str | None
    hashes: dict[str, str]
    token_budget: int | None
    wall_time_s: Score
    items_per_s: Score | None
    given: list[str]
    usage: dict[str, Score] = Field(default_factory=dict)


class EvalResult(Strict):
    """The scores of one arm, seed and task on one dataset.

    Attributes:
        config_name: the arm, for example ``joint_r8``, ``zero_shot`` or ``bm25``.
        seed: the training seed; None for arms that have none.
        task_type: MTEB's type of the task (Retrieval, Reranking, STS, Classification, ...); None outside MTEB.
        per_query: main metric by query id, judged queries only. Empty where MTEB's task has no queries, as in STS or
            classification: then there are no ``per_query_metrics`` either, and the result takes part in no paired
            comparison.
        per_query_metrics: the other metrics, each a list of values by ascending query id (``by_query_id``): the ids
            are most of a file of dictionaries, and of the time to read it.
        aggregate: mean over judged queries, by metric; without queries, MTEB's main score. ``main_score`` is MTEB's
            own main score, where the main metric is another.
        unjudged_queries: queries without judgments; they count in no mean.
        first_stage: scores of the candidates before reranking; None for other tasks.
        truncated_queries: ids of queries so long that the reranker saw only their beginning, and nothing of a document.
        relevance_level: the lowest grade that binary metrics counted as relevant, where their name fixes none.
        caveats: why the result is unfit for decisions, in words (smoke run, cut queries); empty when it is fit.
        config: the experiment's configuration as it was resolved.
    """

    schema_version: Literal[1] = 1
    config_name: Annotated[str, AfterValidator(_named)]
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None
    task: Task
    dataset: Annotated[str, AfterValidator(_named)]
    task_type: Annotated[str, Field(min_length=1)] | None = None
    main_metric: str
    aggregate: dict[str, Score]
    per_query: dict[str, Score]
    per_query_metrics: dict[str, list[Score]]
    unjudged_queries: list[str]
    first_stage: FirstStageScores | None
    caveats: list[str]
    identity: Identity
    training: TrainingBudget | None
    config: dict[str, Any]
    provenance: Provenance
    relevance_level: Annotated[int, Field(ge=1, le=HIGHEST_GRADE)] = 1
    truncated_queries: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> EvalResult:
        if not self.per_query:
            self._refuse_lost_queries()
        if self.main_metric not in self.aggregate:
            raise ValueError(f"aggregate lacks the main metric {self.main_metric!r}")
        for metric, values in self.per_query_metrics.items():
            if len(values) != len(self.per_query):
                raise ValueError(
                    f"per_query_metrics.{metric} has {len(values)} values for the {len(self.per_query)} of per_query"
                )
        by_query = {**self.per_query_metrics, self.main_metric: [*self.per_query.values()]} if self.per_query else {}
        for metric, values in by_query.items():
            mean = math.fsum(values) / len(values)
            if not abs(mean - self.aggregate.get(metric, math.nan)) <= 1e-9:
                raise ValueError(f"aggregate.{metric} is not the mean of the queries' values ({mean:.6f})")
        return self

    def _refuse_lost_queries(self) -> None:
        """Refuse a result without queries, unless MTEB's tasks of its type have none."""
        if self.task_type is None:
            raise ValueError("per_query is empty, and no task_type says that the task has no queries")
        if self.task_type in TYPES_WITH_QUERIES or self.task != "embedding":
            raise ValueError(f"per_query is empty, but {self.task} of type {self.task_type} has queries")
        if self.per_query_metrics:
            raise ValueError("per_query is empty, but per_query_metrics is not")

    @property
    def key(self) -> str:
        """Task and dataset, ``reranking/scifact``."""
        return f"{self.task}/{self.dataset}"

    @property
    def beside_arms(self) -> bool:
        """Whether it is of a model that its config names beside the arms (``evaluation.systems``)."""
        evaluation = self.config.get("evaluation")
        return isinstance(evaluation, dict) and self.config_name in (evaluation.get("systems") or {})

    def metric(self, name: str) -> dict[str, float]:
        """Return the per-query values of any metric that this result holds.

        Raises:
            DataError: the metric was not computed.
        """
        if name == self.main_metric:
            return self.per_query
        if name not in self.per_query_metrics:
            raise DataError(f"{self.config_name}, {self.key}: no per-query {name!r}; it holds {sorted(self.aggregate)}")
        return dict(zip(sorted(self.per_query), self.per_query_metrics[name], strict=True))


SIDECARS = (".queries.json", ".mteb.json")
"""Ends of the names of files beside a result."""


def by_query_id(values: Mapping[str, float]) -> list[float]:
    """Return the values of ``{query id: value}`` by ascending query id, as ``per_query_metrics`` holds them."""
    return [values[query_id] for query_id in sorted(values)]


def seed_name(seed: int | None) -> str:
    """Return the folder name of a seed: ``seed_3``, or ``seed_none`` for arms that have none."""
    return "seed_none" if seed is None else f"seed_{seed}"


def arm_dir(output_dir: Path, config_name: str, seed: int | None) -> Path:
    """Return the folder of one arm and seed, with checkpoint, results, runs and logs."""
    return output_dir / config_name / seed_name(seed)


def result_path(output_dir: Path, config_name: str, seed: int | None, task: str, dataset: str) -> Path:
    """Return the path of the result of one arm, seed, task and dataset."""
    return arm_dir(output_dir, config_name, seed) / "results" / task / f"{safe_name(dataset)}.json"


def result_files(output_dir: Path) -> list[Path]:
    """Return the result files of an output folder, without the files beside them; none where there is no folder."""
    found = find_files(output_dir, "*/seed_*/results/*/*.json") if output_dir.exists() else []
    return [path for path in found if not path.name.endswith(SIDECARS)]


def run_path(output_dir: Path, config_name: str, seed: int | None, task: str, dataset: str) -> Path:
    """Return the path of the TREC run of a result."""
    return arm_dir(output_dir, config_name, seed) / "runs" / task / f"{safe_name(dataset)}.trec"


def run_beside(path: Path) -> Path:
    """Return the path of the TREC run of a result file."""
    return path.parents[2] / "runs" / path.parent.name / f"{path.stem}.trec"


def result_beside(run: Path) -> Path:
    """Return the path of the result of a TREC run, if an evaluation wrote it: the inverse of ``run_beside``."""
    task = run.absolute().parent
    return task.parent.parent / "results" / task.name / f"{run.stem}.json"


def qrels_path(output_dir: Path, dataset: str, split: str) -> Path:
    """Return the path of a dataset's judgments in TREC layout."""
    return output_dir / "qrels" / f"{safe_name(f'{dataset}-{split}')}.qrels"


def safe_name(name: str) -> str:
    """Return a dataset's name as a file name: separators become ``-``."""
    return re.sub(r"[^\w.\-]+", "-", name).strip("-.") or "unnamed"


def write_result(output_dir: Path, result: EvalResult, detail: DrillDown | None = None) -> Path:
    """Write a result and its drill-down sidecar; the result comes last, so that its presence means completeness.

    Raises:
        DataError: the file holds a result of another identity or dataset.
    """
    path = result_path(output_dir, result.config_name, result.seed, result.task, result.dataset)
    if path.exists():
        refuse_other_identity(path, result.identity, result.dataset)
    if detail is None:
        drilldown_path(path).unlink(missing_ok=True)  # of an earlier run: its ranks may no longer be true
    else:
        write_drilldown(path, detail)
    write_json(path, result.model_dump())
    return path


def refuse_other_identity(path: Path, identity: Identity, dataset: str | None = None) -> None:
    """Refuse to overwrite the result at ``path`` by one of another identity or dataset.

    Two datasets can share a path where ``safe_name`` makes their names equal.

    Raises:
        DataError: identity or dataset differ, or the file is damaged.
    """
    existing = read_result(path)
    there = {**existing.identity.model_dump(), "dataset": existing.dataset}
    here = {**identity.model_dump(), "dataset": existing.dataset if dataset is None else dataset}
    different = [f"{name} {there[name]!r} there, {here[name]!r} here" for name in here if there[name] != here[name]]
    if different:
        raise DataError(f"{path} holds another evaluation ({'; '.join(different)}); choose another --output-dir")


def read_result(path: Path) -> EvalResult:
    """Read one result file strictly.

    Raises:
        DataError: the file is missing, cut short, of another schema version, or breaks the schema.
    """
    return read_json(path, EvalResult)
