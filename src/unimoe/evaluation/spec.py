"""An evaluation, and its outcome.

An ``Evaluation`` is a system on a task and a dataset, with everything that the scores depend on; an ``Outcome`` holds
the scores. Every kind of evaluation makes these two, and ``store`` writes them as a result, which is what the
evaluation is ``About`` and its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unimoe.checks import Check
from unimoe.config import DenseExperiment
from unimoe.core.io import hash_json
from unimoe.core.trec import Qrels, Run
from unimoe.data.collection import Collection
from unimoe.evaluation.system import ZERO_SHOT_ARM, System
from unimoe.metrics import DEFAULT_METRICS, Scores
from unimoe.models.embedder import Advance
from unimoe.models.loader import weights_hash
from unimoe.models.model import Model
from unimoe.models.seen_queries import SeenQueries
from unimoe.results import About, Identity, Otherwise, Task, VectorIndex
from unimoe.results.runs.scoring import CheckedScores, checked_scores

if TYPE_CHECKING:
    from unimoe.evaluation.engines import Engine


@dataclass(frozen=True)
class Work:
    """What an evaluation is run with.

    Attributes:
        model: None for the first stage alone; on a cluster a stand-in for the workers'.
        engine: where it computes.
        folder: of what a killed evaluation finds again; None where that may be another system's.
        advance: called with the number of pairs or texts done.
    """

    model: Model | None
    engine: Engine
    folder: Path | None
    advance: Advance

    @property
    def loaded(self) -> Model:
        """The model, of any system but the first stage alone."""
        assert self.model is not None  # noqa: S101 - for the type checker
        return self.model


@dataclass(frozen=True)
class Evaluation:
    """One system on one task and dataset.

    Attributes:
        about: what its result says that is known before anything is scored.
        hashes: content hashes, by name, of what the scores depend on.
        main_metric: None for whatever the outcome has.
        dtype: of the model; None where that is not known.
        reusable: whether the hashes tell this system from every other; where they do not, it is always evaluated again.
        size: pairs or texts that a model has to score, for the progress bar; None where only MTEB knows.
        of: the system; None where the outcome comes from elsewhere, as in a study.
        run: scores it, given itself; None where the outcome comes from elsewhere.
    """

    about: About
    hashes: dict[str, str]
    main_metric: str | None = None
    dtype: str | None = None
    reusable: bool = True
    size: int | None = None
    of: System | None = None
    run: Callable[[Evaluation, Work], Outcome] | None = None

    @property
    def system(self) -> System:
        """The system, of an evaluation that can be run."""
        assert self.of is not None  # noqa: S101 - for the type checker
        return self.of

    @property
    def fingerprint(self) -> str:
        """The hash of what a pair's score depends on besides its tokens; batches and versions only round it."""
        identity = self.about.identity
        return hash_json([identity.base_model, identity.prompt, self.hashes.get("checkpoint"), self.dtype])


@dataclass(frozen=True)
class Outcome:
    """What an evaluation found; ``EvalResult`` and its ``Provenance`` say what the fields are that they have too.

    Attributes:
        run: query id to ``{document id: score}``; empty for tasks without queries, as are the next two.
        queries: the texts of the judged queries, at least.
        items: pairs or texts that a model scored; None where there is no model.
        seconds: time of scoring.
        queries_without_candidates: None where nothing was reranked.
        main_score: MTEB's main score, the mean over splits and subsets; None outside MTEB, as is ``task_type``.
        mteb_json: MTEB's own result as JSON values, with None for what is no number (nAUC of equal scores).
        notes: what to know before the scores are believed, in sentences.
        groups: the ids of the queries that have one value together, by the name that ``scores`` has it under; empty
            where each query has its own.
        found: what was found of data that no spec knows, such as the queries of MTEB's tasks.
    """

    main_metric: str
    run: Run
    qrels: Qrels
    queries: Mapping[str, str]
    scores: Scores
    items: int | None = None
    seconds: float = 0.0
    relevance_level: int = 1
    device: str = "cpu"
    token_budget: int | None = None
    first_stage: Scores | None = None
    queries_without_candidates: list[str] | None = None
    truncated_queries: list[str] = field(default_factory=list)
    main_score: float | None = None
    mteb_json: dict[str, Any] = field(default_factory=dict)
    task_type: str | None = None
    notes: list[str] = field(default_factory=list)
    usage: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    vector_index: VectorIndex | None = None
    found: Sequence[Check] = ()

    @property
    def checks(self) -> list[Check]:
        """What was found of the data and of the scores, for the result."""
        return [*self.found, *self.scores.checks]

    @classmethod
    def of_run(
        cls, collection: Collection, run: Any, main_metric: str, metrics: Sequence[str] = DEFAULT_METRICS, **found: Any
    ) -> Outcome:
        """Score a run over a collection; ``found`` is what else is known."""
        level = collection.relevance_level
        scores = checked_scores(collection.qrels, run, [main_metric, *metrics], level, collection.name)
        return cls(main_metric, run, collection.qrels, collection.queries, scores, relevance_level=level, **found)

    @property
    def aggregate(self) -> dict[str, float]:
        """Mean over judged queries, by metric, with MTEB's main score; without queries that alone."""
        if self.main_score is None:
            return self.scores.aggregate
        if not self.qrels:
            return {self.main_metric: self.main_score}
        return self.scores.aggregate | {"main_score": self.main_score}

    @property
    def otherwise(self) -> dict[Otherwise, dict[str, float]]:
        """What ``EvalResult`` keeps of ties and unjudged documents; of runs alone."""
        return self.scores.otherwise(self.qrels) if isinstance(self.scores, CheckedScores) else {}

    @property
    def delta(self) -> dict[str, float]:
        """What reranking adds to the first stage, by metric."""
        before = self.first_stage.aggregate if self.first_stage else {}
        return {metric: self.scores.aggregate[metric] - value for metric, value in before.items()}


def model_hashes(base_model: str | None, prompt: str | None, checkpoint: str | None) -> dict[str, str]:
    """Return the content hashes of what computes scores, by name.

    Base model and prompt are given as ``name@hash``, the checkpoint by the content hash of what was trained.
    """
    known = {
        "base_model": base_model and base_model.rpartition("@")[2],
        "prompt": prompt and prompt.rpartition("@")[2],
        "checkpoint": checkpoint,
    }
    return {name: value for name, value in known.items() if value}


_OF_TRAINING = {"training", "lora", "arms", "seeds", "gates"}
"""Sections that say nothing about a model that no arm trains."""


def described(
    system: System,
    task: Task,
    run: Callable[[Evaluation, Work], Outcome],
    *,
    identity: dict[str, Any],
    hashes: dict[str, str],
    dataset: str,
    main_metric: str | None,
    size: int | None = None,
    caveats: list[str] | None = None,
    task_type: str | None = None,
) -> Evaluation:
    """Return the evaluation of a system's task that ``run`` does; the rest is what the data say of it."""
    model, checkpoint, experiment = system.model, system.checkpoint, system.experiment
    trained = weights_hash(checkpoint, experiment.evaluation) if checkpoint else None
    of_no_arm = model is not None and checkpoint is None and system.name != ZERO_SHOT_ARM
    config = experiment.model_dump(exclude=_OF_TRAINING if of_no_arm else None)
    if checkpoint and isinstance(experiment, DenseExperiment):  # which says nothing about the arm
        config["checkpoint"] = checkpoint.config
    if system.order is not None:  # equal numbers are equal orders, and nothing else that a seed decides
        config["paired_seeds"] = "the order of the candidates"
    base, dtype, own = (model.identity, model.dtype, model.prompt) if model else (None, None, None)
    known = {"prompt": own, **identity}
    about = About(
        config_name=system.name,
        seed=system.seed,
        task=task,
        dataset=dataset,
        task_type=task_type,
        identity=Identity(experiment=experiment.name, base_model=base, checkpoint=system.which, **known),
        training=checkpoint.training if checkpoint else None,
        config=config,
        read_as=model.said if model else "",
        caveats=[*experiment.caveats, *(model.caveats if model else ()), *(caveats or ())],
    )
    hashes |= model_hashes(base, known["prompt"], trained)
    reusable = model is None or model.reusable
    return Evaluation(about, hashes, main_metric, dtype, reusable, size, system, run)


def seen_before(system: System, collection: Collection) -> list[str]:
    """Return the caveats of a model on judged queries that trained or chose it, whatever their collection is called."""
    return system.model.seen.caveats(collection.judged_queries) if system.model else []


def with_seen(outcome: Outcome, seen: SeenQueries, system: str, dataset: str) -> Outcome:
    """Return an outcome that says which of its queries the system has seen: MTEB's are known once they are scored."""
    asked = {query: outcome.queries[query] for query in outcome.qrels}
    found = [
        Check("seen queries", "caveat", f"{system} on {dataset}: {line}", unfit=True) for line in seen.caveats(asked)
    ]
    return replace(outcome, found=[*outcome.found, *found])


def rule_hashes(collection: Collection) -> dict[str, str]:
    """Return what hashes say of documents with their query's id: nothing where these are kept."""
    return {"identical_ids": "left out"} if collection.excludes_self else {}
