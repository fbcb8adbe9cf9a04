"""What ``retrieve`` does once its options are read: an encoder, BM25 and their fusion on some collections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from unimoe.config.dense import DenseExperiment
from unimoe.console import Steps, stderr, stdout
from unimoe.data.catalog import UnavailableError, load_collection, refuse_unknown
from unimoe.data.collection import Collection
from unimoe.errors import UsageError
from unimoe.evaluation.dataset_names import collections_of, refuse_equal_names
from unimoe.evaluation.level_notes import collection_note
from unimoe.evaluation.retrieval_arms import DatasetArms, bm25_engine
from unimoe.evaluation.retrieval_eval import RetrievalOutcome, dense_collection
from unimoe.evaluation.retrieval_results import TASK, ArmOnDataset, RetrievalResults
from unimoe.evaluation.retrievers import checkpoint_retriever, encoder_retriever
from unimoe.evaluation.tiers import Dataset
from unimoe.models.embedder import Advance
from unimoe.results import read_result


@dataclass(frozen=True)
class RetrievalRequest:
    """What was asked for.

    Attributes:
        config: the experiment; its encoder embeds where no checkpoint is given.
        checkpoint: a checkpoint folder, whose arm embeds.
        names: of the arm and of its fusion with BM25.
        datasets: collections by name.
        max_queries: queries of each, at most.
        given: for provenance.
    """

    config: DenseExperiment
    checkpoint: Path | None
    names: tuple[str, str]
    datasets: tuple[str, ...]
    max_queries: int | None
    given: list[str]


@dataclass(frozen=True)
class RetrievalReport:
    """What was done.

    Attributes:
        arms: the encoder, and its fusion with BM25 where there is one.
        keys: ``task/dataset`` of the collections that were searched.
        missing: how many could not be had.
    """

    arms: list[str]
    keys: list[str]
    missing: int


def run_retrieval(request: RetrievalRequest, device: torch.device) -> RetrievalReport:
    """Search every collection with the encoder, BM25 and their fusion; prints a line for each result on stdout.

    Raises:
        UnimoeError: the encoder, a collection or the output folder cannot be used.
    """
    experiment = request.config
    datasets = _datasets(request)
    bm25_engine(experiment)  # refused now, not after the first collection
    if request.checkpoint is None:
        retriever = encoder_retriever(experiment, request.names, device)
    else:
        retriever = checkpoint_retriever(experiment, request.checkpoint, request.names, device)
    results = RetrievalResults(Path(experiment.output_dir), request.given)
    results.refuse_strangers(experiment.name, retriever.base_identity, retriever.prompt)
    fused = experiment.retrieval.fuse_depth is not None
    steps = Steps((2 + fused) * len(datasets))
    keys = []
    for dataset in datasets:
        try:
            collection = load_collection(dataset.collection, dataset.split)
        except UnavailableError as error:
            stderr.print(f"not available: {error}", style="yellow", soft_wrap=True)
            continue
        if problems := collection.problems.summary():
            stderr.print(f"{dataset.name}: {problems}", style="dim", soft_wrap=True)
        if note := collection_note(dataset.collection, collection):
            stderr.print(f"warning: {note}", style="yellow", soft_wrap=True)
        data = dense_collection(collection, experiment.retrieval, request.max_queries)
        arms = list(DatasetArms(experiment, dataset, data, retriever))
        done = [results.is_done(measured) for measured, _, _ in arms]  # so that a taken place is found out at once
        for (measured, size, measure), is_done in zip(arms, done, strict=True):
            if is_done:
                steps.skip(_step_name(measured))
            else:
                _measure(results, measured, data.test, size, measure, steps)
            _report(results.path(measured))
        keys.append(f"{TASK}/{dataset.name}")
    names = [retriever.name, *([retriever.fused_name] if fused else [])]
    return RetrievalReport(names, keys, len(datasets) - len(keys))


def _measure(
    results: RetrievalResults,
    measured: ArmOnDataset,
    collection: Collection,
    size: int,
    measure: Callable[[Advance], RetrievalOutcome],
    steps: Steps,
) -> None:
    """Measure one arm and write its result; says on stderr what to know about it."""
    with steps.step(_step_name(measured), size) as step:
        outcome = measure(step.advance)
        result = results.write(measured, collection, outcome)
        step.outcome = f"{result.main_metric} {result.aggregate[result.main_metric]:.4f}"
    for note in outcome.notes:
        stderr.print(note, style="dim", soft_wrap=True)


def _step_name(measured: ArmOnDataset) -> str:
    seed = "" if measured.seed is None else f", seed {measured.seed}"
    return f"{TASK} {measured.dataset}: {measured.arm}{seed}"


def _report(path: Path) -> None:
    """One line per result: main metric, capped recall, where."""
    result = read_result(path)
    metrics = [
        result.main_metric,
        *(metric for metric in result.aggregate if metric.startswith("recall_of_retrieved@")),
    ]
    shown = ", ".join(f"{metric} {result.aggregate[metric]:.4f}" for metric in metrics)
    stdout.print(f"{result.key} {result.config_name}: {shown}  {path}", soft_wrap=True)


def _datasets(request: RetrievalRequest) -> list[Dataset]:
    """The collections by name, each once.

    Raises:
        UsageError: no such collection, one is named with two splits, or two have one name in results.
    """
    if not request.datasets:
        raise UsageError("--datasets is empty; name collections, for example --datasets scifact,nfcorpus")
    splits: dict[str, str] = {}
    for collection, split in (pair for name in request.datasets for pair in collections_of(name)):
        refuse_unknown(collection)
        if splits.setdefault(collection, split) != split:
            raise UsageError(
                f"{collection} is named with the splits {splits[collection]} and {split}; "
                "search them one after the other, into two output folders"
            )
    refuse_equal_names(splits)
    evaluation = request.config.evaluation
    return [
        Dataset(
            collection=collection,
            split=split,
            depth=request.config.retrieval.depth,
            queries=None,
            pool=None,
            bm25=evaluation.bm25,
            max_queries=request.max_queries,
            first_stage=evaluation.first_stage,
        )
        for collection, split in splits.items()
    ]
