"""An evaluation, and its outcome.

An ``Evaluation`` is a system on a task and a dataset, with everything that the scores depend on; an ``Outcome`` holds
the scores. Every kind of evaluation makes these two, and ``store`` writes them as a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from unimoe.config import DenseExperiment
from unimoe.core.io import hash_json
from unimoe.core.trec import Qrels, Run
from unimoe.data.collection import Collection
from unimoe.data.mteb_names import find_tasks, mteb_name
from unimoe.evaluation.mteb.main_scores import main_metric
from unimoe.evaluation.mteb.prompts import TaskCard, TaskPrompts
from unimoe.evaluation.systems.system import ZERO_SHOT_ARM, System
from unimoe.evaluation.tiers.datasets import Dataset, LoadedDataset
from unimoe.metrics import DEFAULT_METRICS, Scores, score_run
from unimoe.models.embedder import Advance
from unimoe.models.loader import weights_hash
from unimoe.results import Identity, Task, TrainingBudget

if TYPE_CHECKING:
    from mteb import AbsTask
    from mteb.abstasks.task_metadata import TaskMetadata

MTEB_CANDIDATES = "mteb"
"""What results call the first stage of MTEB's reranking tasks, whose candidates are part of the task."""

_OF_TRAINING = {"training", "lora", "arms", "seeds", "gates"}
"""Sections that say nothing about a model that no arm trains."""


def _nowhere(advance: Advance | None) -> Outcome:
    raise ValueError("the outcome of this evaluation comes from elsewhere")


@dataclass(frozen=True)
class Evaluation:
    """One system on one task and dataset: all of its ``EvalResult`` that is known before anything is scored.

    Attributes:
        main_metric: None for whatever the outcome has.
        reusable: whether the hashes tell this system from every other; where they do not, it is always evaluated again.
        size: pairs or texts that a model has to score, for the progress bar; None where only MTEB knows.
        run: evaluates; takes what is called with the number of items done. A study has outcomes from elsewhere.
    """

    system: str
    seed: int | None
    task: Task
    dataset: str
    identity: Identity
    hashes: dict[str, str]
    config: Mapping[str, Any]
    main_metric: str | None = None
    dtype: str | None = None
    caveats: Sequence[str] = ()
    task_type: str | None = None
    training: TrainingBudget | None = None
    reusable: bool = True
    size: int | None = None
    run: Callable[[Advance | None], Outcome] = _nowhere

    @property
    def title(self) -> str:
        """Task, dataset, system and seed, as progress shows them."""
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.task} {self.dataset}: {self.system}{seed}"

    @property
    def fingerprint(self) -> str:
        """The hash of what a pair's score depends on besides its tokens; batches and versions only round it."""
        return hash_json([self.identity.base_model, self.identity.prompt, self.hashes.get("checkpoint"), self.dtype])


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

    @classmethod
    def of_run(
        cls, collection: Collection, run: Any, main_metric: str, metrics: Sequence[str] = DEFAULT_METRICS, **found: Any
    ) -> Outcome:
        """Score a run over a collection; ``found`` is what else is known."""
        level = collection.relevance_level
        scores = score_run(collection.qrels, run, metrics, level)
        return cls(main_metric, run, collection.qrels, collection.queries, scores, relevance_level=level, **found)

    @property
    def aggregate(self) -> dict[str, float]:
        """Mean over judged queries, by metric, with MTEB's main score beside them; without queries that alone."""
        if self.main_score is None:
            return self.scores.aggregate
        if not self.qrels:
            return {self.main_metric: self.main_score}
        return self.scores.aggregate | {"main_score": self.main_score}

    @property
    def delta(self) -> dict[str, float]:
        """What reranking adds to the first stage, by metric."""
        before = self.first_stage.aggregate if self.first_stage else {}
        return {metric: self.scores.aggregate[metric] - value for metric, value in before.items()}


def collection_evaluation(system: System, task: Task, data: LoadedDataset) -> Evaluation:
    """Return the evaluation of a system's task on a collection."""
    dataset, card, prompt = data.dataset, None, system.prompt
    part, rule = "candidates", dataset.rule_hashes
    identity: dict[str, Any] = {"first_stage": data.first_stage.source} if task != "embedding" else {}
    if task == "reranking":
        rule, identity["depth"] = {}, dataset.depth  # the candidates' hash holds the rule
    if task == "embedding":
        name = data.collection.name  # which the task is named by, whatever folder it is read from
        card, part = _mteb_card(dataset.collection), "pool"
        prompt = _prompt_on_task(system, _mteb_card(name) or _CollectionCard(name))
        identity["pool"] = size if (size := len(data.pooled.corpus)) < data.whole_size else None
    return system_evaluation(
        system,
        task,
        card.name if card else dataset.name,
        {name: data.hashes[name] for name in ("collection", part)} | rule,
        card,
        prompt=prompt,
        split=dataset.split,
        max_queries=dataset.max_queries,
        main_metric=dataset.main_metric,
        caveats=data.caveats,
        **identity,
    )


def mteb_evaluation(system: System, task: Task, mteb_task: AbsTask) -> Evaluation:
    """Return the evaluation of a system on a task of MTEB: by embedding, or by reranking the task's candidates."""
    card = mteb_task.metadata
    return system_evaluation(
        system,
        task,
        card.name,
        {"collection": mteb_data_hash(mteb_task)},
        card,
        prompt=_prompt_on_task(system, card, task),
        split="+".join(mteb_task.eval_splits),
        first_stage=MTEB_CANDIDATES if task == "reranking" else None,
        main_metric=main_metric(mteb_task),
    )


def mteb_data_hash(task: AbsTask) -> str:
    """Return the hash of what a task is evaluated on: MTEB pins its data by a revision."""
    data = task.metadata.dataset
    return hash_json([data["path"], data["revision"], sorted(task.hf_subsets), sorted(task.eval_splits)])


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


def result_dataset(task: Task, dataset: Dataset) -> str:
    """Return the name of a dataset in results: the collection's, but in embedding MTEB's where it has one."""
    card = _mteb_card(dataset.collection) if task == "embedding" else None
    return card.name if card else dataset.name


def system_evaluation(
    system: System,
    task: Task,
    dataset: str,
    data_hashes: dict[str, str],
    card: TaskMetadata | None,
    *,
    prompt: str | None,
    main_metric: str,
    caveats: Sequence[str] = (),
    **identity: Any,
) -> Evaluation:
    """Return an evaluation of a system; ``identity`` is what ``Identity`` says of the data."""
    checkpoint, experiment = system.checkpoint, system.experiment
    trained = weights_hash(checkpoint, experiment.evaluation) if checkpoint else None
    of_no_arm = system.load is not None and checkpoint is None and system.name != ZERO_SHOT_ARM
    config = experiment.model_dump(exclude=_OF_TRAINING if of_no_arm else None)
    if checkpoint and isinstance(experiment, DenseExperiment):  # which says nothing about the arm
        config["checkpoint"] = checkpoint.config
    return Evaluation(
        system=system.name,
        seed=system.seed,
        task=task,
        dataset=dataset,
        identity=Identity(
            experiment=experiment.name,
            base_model=system.base_identity,
            checkpoint=system.which,
            prompt=prompt,
            **identity,
        ),
        hashes=data_hashes | model_hashes(system.base_identity, prompt, trained),
        config=config,
        main_metric=main_metric,
        dtype=system.dtype,
        caveats=[*experiment.caveats, *caveats],
        task_type=str(card.type) if card else None,
        training=checkpoint.training if checkpoint else None,
        reusable=system.reusable,
    )


def _mteb_card(collection: str) -> TaskMetadata | None:
    """Return MTEB's card of the task that a collection is."""
    name = mteb_name(collection)
    return find_tasks([name])[0].metadata if name else None


@dataclass
class _CollectionCard:
    """What prefixes are chosen by, for a collection that MTEB has no task of."""

    name: str
    type: str = "Retrieval"
    prompt: str = ""


def _prompt_on_task(system: System, card: TaskCard, task: Task = "embedding") -> str | None:
    """Name and hash of a system's prompt, and of what the task has in its config: prefixes, or an instruction."""
    if task == "reranking" and not system.instructed:
        return system.prompt
    prompts = TaskPrompts(system.experiment.evaluation.mteb)
    own = [prompts.instruction(card)] if task == "reranking" else prompts.of_task(card)
    if system.prompt is None or own == [None] * len(own):
        return system.prompt
    return f"{system.prompt.rpartition('@')[0]}@{hash_json([system.prompt, own])}"
