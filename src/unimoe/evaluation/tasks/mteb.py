"""MTEB's own tasks: the reranking of their candidates, or the embedding of their texts."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unimoe.checks import lines
from unimoe.checks.texts import concerned
from unimoe.config import Experiment
from unimoe.core.errors import UsageError
from unimoe.core.grouping import gathered
from unimoe.core.io import hash_json
from unimoe.data.catalog import available, load_collection
from unimoe.data.mteb_names import beir_name, find_tasks, random_state_kept
from unimoe.data.source import not_at_hand
from unimoe.evaluation.datasets import failure_reason
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper, MTEBWrapper
from unimoe.evaluation.mteb.main_scores import main_metric
from unimoe.evaluation.mteb.prompts import TaskPrompts, prompt_on_task
from unimoe.evaluation.spec import Evaluation, Outcome, Work, described, with_seen
from unimoe.evaluation.system import System
from unimoe.models.device import describe_device
from unimoe.models.embedder import Advance, Embedder
from unimoe.models.model import as_embedder, as_unimodel
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import Task

if TYPE_CHECKING:
    from mteb import AbsTask

RERANKING_TYPES = ("Reranking", "InstructionReranking")
"""Types of tasks that a cross-encoder can do: the candidates are given."""


def describe(system: System, task: Task, mteb_task: AbsTask) -> Evaluation:
    """Return the evaluation of a system on a task of MTEB."""
    card, model, prompts = mteb_task.metadata, system.model, TaskPrompts(system.experiment.evaluation.mteb)
    assert model is not None  # noqa: S101 - for the type checker
    own = prompts.of_task(card, model.own_prompts)
    if task == "reranking":
        own = [prompts.instruction(card) if model.instructed else None]
    identity = {"split": "+".join(mteb_task.eval_splits), "prompt": prompt_on_task(model.prompt, own)}
    if task == "reranking":
        identity["first_stage"] = "mteb"  # candidates are part of the task
    return described(
        system,
        task,
        partial(_run, mteb_task),
        identity=identity,
        hashes={"collection": mteb_data_hash(mteb_task)},
        dataset=card.name,
        task_type=str(card.type),
        main_metric=main_metric(mteb_task),
        caveats=lines(concerned(getattr(mteb_task, "checks", ()), by_words=False), "caveat"),
    )


def _run(mteb_task: AbsTask, evaluation: Evaluation, work: Work) -> Outcome:
    settings, model = evaluation.system.experiment.evaluation, work.loaded
    if not work.engine.reads(mteb_task):
        embedder = model.embedder()
        data = mteb_data_hash(mteb_task)
        outcome = work.engine.mteb_by_worker(embedder, mteb_task, settings.mteb, data, adapted(evaluation))
        return embedded(outcome, evaluation, embedder)
    options: dict[str, Any] = {**adapted(evaluation), "prompts": TaskPrompts(settings.mteb), "advance": work.advance}
    if evaluation.about.task == "embedding":
        embedder = model.embedder()
        outcome = evaluate_task(MTEBEncoderWrapper(embedder, **options), mteb_task, work.folder)
        return embedded(_with_seen(outcome, evaluation), evaluation, embedder)
    outcome = evaluate_task(MTEBCrossEncoderWrapper(model, **options), mteb_task, work.folder)
    outcome = _with_seen(outcome, evaluation)
    reranker = model.reranker(**settings.batches)
    facts: dict[str, Any] = {"token_budget": reranker.token_budget, "device": describe_device(reranker.place)}
    return replace(outcome, queries_without_candidates=[], **facts)


def _with_seen(outcome: Outcome, evaluation: Evaluation) -> Outcome:
    about, model = evaluation.about, evaluation.system.model
    return with_seen(outcome, model.seen, about.config_name, about.dataset) if model else outcome


def adapted(evaluation: Evaluation) -> dict[str, Any]:
    """Return arguments of an adapter to MTEB, as JSON values."""
    identity = evaluation.hashes | {"dtype": str(evaluation.dtype)}
    batches = evaluation.system.experiment.evaluation.batches
    return {"name": evaluation.about.config_name, "identity": identity, **batches}


def embedded(outcome: Outcome, evaluation: Evaluation, embedder: Embedder) -> Outcome:
    """Return an outcome with what its result says of the embedder."""
    budget = embedder.budget(**evaluation.system.experiment.evaluation.batches)
    return replace(outcome, token_budget=budget, device=describe_device(embedder.place))


@dataclass(frozen=True)
class MTEBOutcome:
    """What MTEB found on several tasks by name, and why others have no score; these are part of no mean."""

    tasks: dict[str, Outcome]
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def main_scores(self) -> dict[str, float]:
        """MTEB's main score of each task, by name."""
        return {name: task.main_score for name, task in self.tasks.items() if task.main_score is not None}

    @property
    def mean_by_type(self) -> dict[str, float]:
        """Mean main score of each type of tasks."""
        return mean_by_type([(str(self.tasks[name].task_type), score) for name, score in self.main_scores.items()])

    @property
    def mean(self) -> float:
        """Mean main score over tasks, MTEB's ``Mean (Task)``; NaN without tasks."""
        scores = self.main_scores.values()
        return math.fsum(scores) / len(scores) if scores else math.nan


def mean_by_type(scores: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the mean score of each type of tasks, in the order of their names."""
    return {kind: math.fsum(own) / len(own) for kind, own in sorted(gathered(scores).items())}


def evaluate_mteb(
    model: Any,
    tokenizer: Any,
    config: Experiment,
    tasks: Sequence[str] = ("fast",),
    *,
    cross_encoder: bool = False,
    name: str = "model",
    advance: Advance | None = None,
) -> MTEBOutcome:
    """Evaluate a model on tasks of MTEB, one after the other.

    A task that is a BEIR set is read from the folder under ``UNIMOE_DATA`` where there is one; others come from the
    hub. Nothing is read from MTEB's result cache, so that no score is ever stale.

    Args:
        model: a causal language model of transformers, with or without adapters, or an ``Embedder``.
        tokenizer: the model's; not read for an ``Embedder``, which has its own.
        config: its ``prompt``, ``model.max_length`` and ``evaluation`` sections are used. An encoder reads its own
            prompts unless ``evaluation.mteb`` sets others.
        tasks: names of tasks or benchmarks: ``SciFact``, ``MTEB(eng, v2)``; ``fast`` stands for SciFact, NFCorpus and
            FiQA2018, ``full`` for the 41 tasks of MTEB(eng, v2).
        cross_encoder: rerank the candidates of reranking tasks by yes/no judgements, instead of embedding.
        name: what MTEB's results call the model.
        advance: called with the number of texts or pairs done.

    Raises:
        UsageError: an unknown task or prefix key, a task about more than text, or a cross-encoder's task without
            candidates.
    """
    embedder, settings = as_embedder(model), config.evaluation.mteb
    instructed = embedder is None or isinstance(model, UnimodelForExp1)  # decoders are trained on instructions
    if not instructed and "task_instruction" not in settings.model_fields_set:
        settings = settings.model_copy(update={"task_instruction": None})
    prompts, chosen = TaskPrompts(settings), find_tasks(tasks)
    prompts.refuse_unknown_keys()
    options: dict[str, Any] = {"name": name, "prompts": prompts, "advance": advance, **config.evaluation.batches}
    wrapped: MTEBWrapper[Any]
    if cross_encoder:
        for task in chosen:
            if task.metadata.type not in RERANKING_TYPES:
                raise UsageError(
                    f"{task.metadata.name} is a task of type {task.metadata.type}, which gives no candidates to "
                    "rerank; let the model embed there, or name reranking tasks"
                )
        wrapped = MTEBCrossEncoderWrapper(as_unimodel(model, tokenizer, config), **options)
    else:
        wrapped = MTEBEncoderWrapper(embedder or as_unimodel(model, tokenizer, config), **options)
    outcome = MTEBOutcome({})
    for task in chosen:
        try:
            ready = task_at_hand(task) or task
            load_from_hub(ready)
            found = evaluate_task(wrapped, ready)
            found = with_seen(found, embedder.seen, name, task.metadata.name) if embedder else found
            found.notes.extend(lines(found.found, "caveat"))
            outcome.tasks[task.metadata.name] = found
        except Exception as error:  # the other tasks are still worth having
            outcome.failures[task.metadata.name] = failure_reason(error)
    return outcome


def task_at_hand(task: AbsTask) -> AbsTask | None:
    """Return a task with data from the user's folder, where it is a BEIR set found there; None otherwise."""
    from unimoe.evaluation.mteb.tasks import CollectionTask

    short = beir_name(task.metadata.name)
    if short is None or len(task.eval_splits) > 1 or available(short) is None:
        return None
    collection, rule = load_collection(short, task.eval_splits[0]), getattr(task, "ignore_identical_ids", False)
    with random_state_kept():
        return CollectionTask(replace(collection, excludes_self=rule), published=task.metadata)


def mteb_data_hash(task: AbsTask) -> str:
    """Return the hash of what a task is evaluated on: MTEB pins its data by a revision."""
    data = task.metadata.dataset
    return hash_json([data["path"], data["revision"], sorted(task.hf_subsets), sorted(task.eval_splits)])


def load_from_hub(task: AbsTask) -> None:
    """Load a task's data by MTEB's own loader, unless it is loaded."""
    if task.data_loaded:
        return
    try:
        with random_state_kept(), _quiet():
            task.load_data()
    except Exception as error:
        advice = "connect to the network, or copy the Hugging Face cache of a machine that has it"
        if short := beir_name(task.metadata.name):
            advice += f", or put the BEIR folder {short} under UNIMOE_DATA"
        raise not_at_hand(f"mteb:{task.metadata.name}", advice, error) from None


def evaluate_task(
    model: MTEBEncoderWrapper | MTEBCrossEncoderWrapper, task: AbsTask, folder: Path | None = None
) -> Outcome:
    """Run one task, with its data loaded, through ``mteb.evaluate``.

    Vectors or shards are kept in ``folder`` for a killed run, or in a temporary one.
    """
    with random_state_kept(), _quiet():
        from unimoe.evaluation.mteb.tasks import run_task

        return run_task(model, task, folder)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence progress bars and log messages: the caller shows one bar for the whole."""
    import datasets

    logger = logging.getLogger("mteb")
    level, bars = logger.level, not datasets.are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            datasets.enable_progress_bars()
