"""Result files: one JSON file per arm, seed, task and dataset, and next to it texts and ranks for a drill-down.

Evaluation writes them and analysis reads them; neither imports the other. A file is written atomically, read strictly,
and never overwritten by a result of another identity.
"""

from __future__ import annotations

import math
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from unimoe.checks import Check
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import Strict, find_files, named_errors, read_json, write_json, write_line
from unimoe.core.limits import HIGHEST_GRADE, MOST, name_problem, shortened
from unimoe.results.predicted import PredictedScores

Otherwise = Literal["lowest", "highest", "judged"]
Task = Literal["reranking", "embedding", "retrieval", "crossmodal"]
TASKS: tuple[Task, ...] = get_args(Task)

TYPES_WITH_QUERIES = ("Retrieval", "Reranking")  # MTEB's types of tasks that always have scores by query

Score = Annotated[float, Field(allow_inf_nan=False, ge=-MOST, le=MOST)]

# Packages that can change a score by their version; the bundled collection is made of the last three.
_MODELS = ("torch", "transformers", "peft", "mteb", "bm25s", "rank-bm25")
PACKAGES = ("unimoe", *_MODELS, "pytrec-eval-terrier", "numpy", "scipy", "pandas")


def _named(name: str) -> str:
    if problem := name_problem(name):
        raise ValueError(f"the name {shortened(name)!r} {problem}")
    return name


class Identity(Strict):
    """What was evaluated. Two results are of the same evaluation when identity, arm and seed are equal."""

    experiment: str
    base_model: str | None = None  # id and content hash of the base weights, ``id@hash``; None for arms without a model
    checkpoint: Literal["best", "last", "none"]  # ``none`` for arms that are not trained
    split: str  # of the collection
    first_stage: str | None = None  # where candidates come from, with its parameters, such as ``bm25s(k1=0.9,b=0.4)``
    depth: int | None = None  # candidates per query; None where the whole corpus or pool is ranked
    passages: str | None = None  # words and stride of the passages that a model read; None where it read documents
    pool: int | None = None  # documents ranked, where that is a sample of the collection; None for the whole
    prompt: str | None = None  # name and content hash
    max_queries: int | None = None  # queries scored where the set was cut; None for all of them
    vectors: str | None = None  # how those of a search were cut and quantised, ``d128-int8``; None for whole ones


class TrainingBudget(Strict):
    """What an arm saw in training; arms are comparable only with equal budgets."""

    steps: int
    ranking_examples: int
    embedding_examples: int
    tokens: int


class FirstStageScores(Strict):
    """The scores of the candidates in the order of the first stage, to compare with their reranking."""

    aggregate: dict[str, Score]  # mean over judged queries, by metric; empty where the first stage gives no order
    delta: dict[str, Score]  # what reranking adds, by metric
    queries_without_candidates: list[str]  # judged queries that the first stage found nothing for; they count 0


class Provenance(Strict):
    """Where a result came from, complete enough to produce it again."""

    created: str
    git_commit: str | None = None
    git_dirty: bool | None = None
    python: str
    platform: str
    packages: dict[str, str]
    device: str
    dtype: str | None = None
    hashes: dict[str, str]  # content hashes by name: checkpoint, collection, candidates, prompt
    token_budget: int | None = None  # of one forward pass; smaller than the config's where memory ran out
    wall_time_s: Score  # seconds of scoring, model loading excluded
    items_per_s: Score | None = None  # pairs or texts scored per second; None where no model scored anything
    given: list[str]  # the options and config keys given; all others have their default
    usage: dict[str, Score] = Field(default_factory=dict)  # what a server was paid: requests, tokens, searches


class VectorIndex(Strict):
    """The vectors of documents that a dense search compared with queries."""

    dims: int
    precision: str  # float32, float16, int8 or binary, whose candidates other vectors rank
    bytes_per_vector: int  # of what all queries are compared with
    documents: int  # vectors: of passages where documents are cut
    search_ms: Score  # of a query, once vectors are in memory


class About(Strict):
    """What was evaluated, as it is known before anything is scored."""

    schema_version: Literal[1] = 1
    config_name: Annotated[str, AfterValidator(_named)]  # the arm: ``joint_r8``, ``zero_shot``, ``bm25``
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None  # of the training; None for arms that have none
    task: Task
    dataset: Annotated[str, AfterValidator(_named)]
    task_type: Annotated[str, Field(min_length=1)] | None = None  # MTEB's type (Retrieval, STS); None outside MTEB
    identity: Identity
    training: TrainingBudget | None = None
    config: dict[str, Any]  # the experiment's configuration as it was resolved
    caveats: list[str]  # why it is unfit for decisions, in words (smoke run, cut queries); empty when it is fit
    read_as: str = ""  # of a model by name: its kind, and what its files say of prompts and pooling

    @property
    def key(self) -> str:
        """Task and dataset, ``reranking/scifact``."""
        return f"{self.task}/{self.dataset}"

    @property
    def title(self) -> str:
        """Task, dataset, system and seed, as progress shows them."""
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.task} {self.dataset}: {self.config_name}{seed}"


class EvalResult(About):
    """The scores of one arm, seed and task on one dataset.

    ``per_query`` is empty where MTEB's task has no queries, as in STS or classification: then there are no
    ``per_query_metrics`` either, and the result takes part in no paired comparison.
    """

    main_metric: str
    # The mean over judged queries, by metric; without queries, MTEB's main score. ``main_score`` is MTEB's own where
    # the main metric is another.
    aggregate: dict[str, Score]
    per_query: dict[str, Score]  # main metric by query id, judged queries only
    # The other metrics by ascending query id (``by_query_id``): the ids are most of a file, and of the time to read it.
    per_query_metrics: dict[str, list[Score]]
    unjudged_queries: list[str]  # queries without judgments; they count in no mean
    first_stage: FirstStageScores | None  # before reranking; None for other tasks
    provenance: Provenance
    # The lowest grade that binary metrics counted as relevant, where their name fixes none.
    relevance_level: Annotated[int, Field(ge=1, le=HIGHEST_GRADE)] = 1
    # Ids of queries so long that the reranker saw only their beginning, and nothing of a document.
    truncated_queries: list[str] = Field(default_factory=list)
    vector_index: VectorIndex | None = None  # of a search by vectors alone
    checks: list[Check] = Field(default_factory=list)  # what the doors found of runs, judgments and collection
    # The main metric of the queries where it may be otherwise: ``lowest`` and ``highest`` under other orders of equal
    # scores, where that matters, and on ``judged`` documents alone.
    otherwise: dict[Literal["lowest", "highest", "judged"], dict[str, Score]] = Field(default_factory=dict)
    # Scores of more queries by a model's judgments; then the means of ``aggregate`` are of all these queries.
    predicted: PredictedScores | None = None

    @model_validator(mode="after")
    def _consistent(self) -> EvalResult:
        of_queries = self.task != "embedding" or self.task_type in (None, *TYPES_WITH_QUERIES)
        if not self.per_query and (of_queries or self.per_query_metrics):
            raise ValueError(f"per_query is empty, but {self.task} of type {self.task_type} has queries")
        if self.main_metric not in self.aggregate:
            raise ValueError(f"aggregate lacks the main metric {self.main_metric!r}")
        by_query = {**self.per_query_metrics, self.main_metric: [*self.per_query.values()]}
        for metric, values in by_query.items():
            if len(values) != len(self.per_query):
                raise ValueError(
                    f"per_query_metrics.{metric} has {len(values)} values for the {len(self.per_query)} of per_query"
                )
            mean = math.fsum(values) / max(1, len(values))
            if self.predicted and metric in self.predicted.weights:
                human = values if metric != self.main_metric else by_query_id(self.per_query)
                mean = self.predicted.mean(metric, dict(zip(sorted(self.per_query), human, strict=True)))
            if values and not abs(mean - self.aggregate.get(metric, math.nan)) <= 1e-9:
                raise ValueError(f"aggregate.{metric} is not the mean of the queries' values ({mean:.6f})")
        return self

    @property
    def beside_arms(self) -> bool:
        """Whether it is of a model that its config names in addition to the arms (``evaluation.systems``)."""
        evaluation = self.config.get("evaluation")
        return isinstance(evaluation, dict) and self.config_name.partition("@")[0] in (evaluation.get("systems") or {})

    def metric(self, name: str) -> dict[str, float]:
        """Return a metric by query id; a DataError where it was not computed."""
        if name == self.main_metric:
            return self.per_query
        if name not in self.per_query_metrics:
            raise DataError(f"{self.config_name}, {self.key}: no per-query {name!r}; it holds {sorted(self.aggregate)}")
        return dict(zip(sorted(self.per_query), self.per_query_metrics[name], strict=True))

    def values(self, name: str) -> list[float]:
        """Return a metric by ascending query id; a DataError where it was not computed."""
        return self.per_query_metrics[name] if name in self.per_query_metrics else by_query_id(self.metric(name))


class QueryDetail(Strict):
    """One query of a drill-down: its text and the ranks of its relevant documents."""

    text: str
    relevant: Mapping[str, int | float]
    ranks: dict[str, int | None] = Field(description="rank of each relevant document, null where it was not ranked")


class DrillDown(Strict):
    """The sidecar of a result (``{dataset}.queries.json``), so that analysis needs no collection."""

    schema_version: Literal[1] = 1
    queries: dict[str, QueryDetail]


SIDECARS = (".queries.json", ".mteb.json")  # ends of the names of files next to a result


# Result files below the folder of a seed, of an arm, and of an experiment.
_BELOW = ("results/*/*.json", "seed_*/results/*/*.json", "*/seed_*/results/*/*.json")


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
    """Return the result files of an output folder, without the files next to them; none where there is no folder."""
    found = find_files(output_dir, "*/seed_*/results/*/*.json") if output_dir.exists() else []
    return [path for path in found if not path.name.endswith(SIDECARS)]


def result_paths(path: Path) -> dict[str, Path]:
    """Return the reranking results at a path by ``task/dataset``: a file, or the folder of a seed, arm or system.

    A folder of several arms has the first stage's results with one system's, several systems are a UsageError;
    nothing is found in other folders.
    """
    if path.is_file() and path.suffix == ".json":
        return {read_result(path).key: path}
    found: dict[Path, dict[str, Path]] = {}
    for file in next(filter(None, (sorted(path.glob(pattern)) for pattern in _BELOW)), ()):
        if not file.name.endswith(SIDECARS):
            result = read_result(file)
            if result.task == "reranking" and result.identity.base_model is not None:
                found.setdefault(file.parents[2], {})[result.key] = file
    if len(found) > 1:
        systems = ", ".join(sorted(map(str, found)))
        raise UsageError(f"{path}: holds results of {len(found)} systems; name one of {systems}")
    return next(iter(found.values()), {})


def run_path(output_dir: Path, config_name: str, seed: int | None, task: str, dataset: str) -> Path:
    """Return the path of the TREC run of a result."""
    return arm_dir(output_dir, config_name, seed) / "runs" / task / f"{safe_name(dataset)}.trec"


def run_beside(path: Path) -> Path:
    """Return the path of the TREC run of a result file."""
    return path.parents[2] / "runs" / path.parent.name / f"{path.stem}.trec"


def result_beside(run: Path) -> EvalResult | None:
    """Return the result of a run that an evaluation wrote, from where ``run_beside`` puts the two; None of others."""
    place = run.absolute()
    path = place.parents[2] / "results" / place.parent.name / f"{place.stem}.json" if len(place.parents) > 2 else place
    if place.parent.parent.name != "runs" or not is_result(path):
        return None
    return read_result(path)


def is_result(path: Path) -> bool:
    """Return whether a file is a result of this program: a run may be JSON too."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with named_errors(path), path.open("rb") as file:
        return b'"schema_version"' in file.read(100)


def qrels_path(output_dir: Path, dataset: str, split: str) -> Path:
    """Return the path of a dataset's judgments in TREC layout."""
    return output_dir / "qrels" / f"{safe_name(f'{dataset}-{split}')}.qrels"


def safe_name(name: str) -> str:
    """Return a dataset's name as a file name: separators become ``-``."""
    return re.sub(r"[^\w.\-]+", "-", name).strip("-.") or "unnamed"


def write_result(output_dir: Path, result: EvalResult, detail: DrillDown | None = None) -> Path:
    """Write a result and its drill-down sidecar; a DataError where the file is of another identity or dataset."""
    path = result_path(output_dir, result.config_name, result.seed, result.task, result.dataset)
    if path.exists():
        refuse_other_identity(path, result.identity, result.dataset)
    if detail is None:
        drilldown_path(path).unlink(missing_ok=True)  # of an earlier run: its ranks may no longer be true
    else:
        write_line(drilldown_path(path), detail.model_dump())
    write_json(path, result.model_dump())  # last, so that its presence means completeness
    return path


def refuse_other_identity(path: Path, identity: Identity, dataset: str | None = None) -> None:
    """Refuse to overwrite the result at ``path`` by one of another identity or dataset, with a DataError.

    Two datasets can share a path where ``safe_name`` makes their names equal.
    """
    existing = read_result(path)
    there = {**existing.identity.model_dump(), "dataset": existing.dataset}
    here = {**identity.model_dump(), "dataset": dataset or existing.dataset}
    different = [f"{name} {there[name]!r} there, {here[name]!r} here" for name in here if there[name] != here[name]]
    if different:
        raise DataError(f"{path} holds another evaluation ({'; '.join(different)}); choose another --output-dir")


def read_result(path: Path) -> EvalResult:
    """Read one result file; a DataError where it is missing, cut short, of another schema, or inconsistent."""
    return read_json(path, EvalResult)


def drilldown_path(path: Path) -> Path:
    """Return the path of the drill-down sidecar of a result file."""
    return path.with_suffix(".queries.json")


def read_drilldown(path: Path) -> DrillDown:
    """Read the drill-down sidecar of the result file ``path``."""
    return read_json(drilldown_path(path), DrillDown)


def read_query_details(path: Path, query_ids: Iterable[str]) -> dict[str, QueryDetail]:
    """Read some queries of the sidecar of the result file ``path``; a DataError where it is broken or lacks one."""
    queries = read_drilldown(path).queries
    try:
        return {query_id: queries[query_id] for query_id in query_ids}
    except KeyError as lacking:
        raise DataError(
            f"{drilldown_path(path)}: lacks query {lacking}, which its result holds; delete both, and evaluate again"
        ) from None


@cache
def git_state() -> tuple[str | None, bool | None]:
    """Return commit and dirty flag of the clone that this package runs from; None twice where there is no clone."""
    root = Path(__file__).parents[3]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    if not (root / ".git").exists():
        return None, None
    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):  # no git, or no repository that it trusts
        return None, None


@cache
def package_versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return the installed versions of packages, found once: that takes as long as to score a small run."""
    installed = {package: list(metadata.distributions(name=package)) for package in packages}
    return {package: found[0].version if found else "not installed" for package, found in installed.items()}


@cache
def processor_name() -> str:
    """Return the processor's model name where the platform knows it, its architecture otherwise."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else ()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
