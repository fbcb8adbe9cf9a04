"""Dense retrieval as the command ``retrieve`` asks: an encoder, BM25 and their fusion on some collections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from unimoe.config import DenseExperiment
from unimoe.core.console import Steps, stdout
from unimoe.core.errors import UsageError
from unimoe.core.io import hash_json
from unimoe.core.trec import Run
from unimoe.data.catalog import load_collection
from unimoe.evaluation.engines import Engine, LocalEngine, Purpose
from unimoe.evaluation.recipes import arm_recipe, encoder_recipe
from unimoe.evaluation.retrieval_eval import (
    DenseCollection,
    cut_run,
    dense_collection,
    evaluate_retrieval,
    retrieval_notes,
    retrieval_outcome,
)
from unimoe.evaluation.runner import Evaluation, Evaluator
from unimoe.evaluation.spec import EvaluationSpec, Outcome, model_hashes
from unimoe.evaluation.systems.retriever import (
    Retriever,
    checkpoint_retriever,
    encoder_retriever,
    fused_name,
    served_settings,
)
from unimoe.evaluation.systems.system import BM25
from unimoe.evaluation.tiers.datasets import Dataset, chosen_datasets
from unimoe.evaluation.tiers.loading import Failures, report_oddities
from unimoe.models.embedder import Advance
from unimoe.results import EvalResult, Identity, Task, result_path
from unimoe.retrieval import bm25
from unimoe.retrieval.bm25 import bm25_run, first_stage_name
from unimoe.retrieval.fusion import reciprocal_rank_fusion

TASK: Task = "retrieval"


@dataclass(frozen=True)
class RetrievalRequest:
    """What the command was asked to search.

    The arm of the checkpoint embeds, else the config's encoder. ``given`` are options given by hand, for provenance.
    """

    config: DenseExperiment
    checkpoint: Path | None
    name: str
    datasets: tuple[str, ...]
    max_queries: int | None
    given: list[str]


@dataclass(frozen=True)
class RetrievalReport:
    """What was searched by which arms, as ``task/dataset``, and what could not be."""

    arms: list[str]
    keys: list[str]
    failures: Failures


def run_retrieval(request: RetrievalRequest, device: torch.device, engine: Engine | None = None) -> RetrievalReport:
    """Search every collection with the encoder, BM25 and their fusion; print a line for each result on stdout.

    Returns:
        What was searched.

    Raises:
        UnimoeError: the encoder, a collection or the output folder cannot be used.
    """
    experiment, engine = request.config, engine or LocalEngine()
    datasets = _datasets(request)
    bm25_engine(experiment)  # refused now, not after the first collection
    if request.checkpoint is None:
        dtype = engine.dtype(device, experiment.encoder.dtype)
        if served_settings(experiment):
            engine.refuse_server()
        retriever = encoder_retriever(experiment, request.name, device, dtype)
        recipe = encoder_recipe(experiment, dtype)
    else:
        retriever = checkpoint_retriever(experiment, request.checkpoint, request.name, device)
        recipe = arm_recipe(experiment.evaluation, request.checkpoint)
    retriever = replace(retriever, recipe=recipe)
    evaluator = Evaluator(Path(experiment.output_dir), request.given, engine)
    evaluator.store.refuse_other_experiments(experiment.name, retriever.base_identity, retriever.prompt)
    fused = experiment.retrieval.fuse_depth is not None
    steps = Steps((2 + fused) * len(datasets))
    keys = []
    failures = Failures()
    for dataset in datasets:
        with failures.kept(dataset.name):
            collection = load_collection(dataset.collection, dataset.split)
            report_oddities(dataset, collection, collection.oddities)
            data = dense_collection(collection, experiment.retrieval, request.max_queries)
            arms = list(DatasetArms(experiment, dataset, data, retriever, engine))
            for arm in arms:
                evaluator.store.refuse_taken(arm.spec)  # all of them before the first is searched
            for arm in arms:
                _print_result(Path(experiment.output_dir), evaluator.take(arm, steps))
            keys.append(f"{TASK}/{dataset.name}")
    names = [retriever.name, *([fused_name(retriever.name)] if fused else [])]
    return RetrievalReport(names, keys, failures)


def bm25_engine(experiment: DenseExperiment) -> bm25.Engine:
    """Return the implementation of BM25 that is compared and fused with the encoder.

    Raises:
        UsageError: the first stage cannot search.
    """
    setting = experiment.evaluation.first_stage
    if setting == "bm25s":
        return "bm25s"
    if setting == "rank_bm25":
        return "rank_bm25"
    raise UsageError(f"evaluation.first_stage={setting}: retrieval searches with BM25 itself; use bm25s or rank_bm25")


class DatasetArms:
    """The arms of one retriever on one collection: BM25 on the same documents, the encoder, and their fusion."""

    def __init__(
        self,
        experiment: DenseExperiment,
        dataset: Dataset,
        data: DenseCollection,
        retriever: Retriever,
        engine: Engine | None = None,
    ) -> None:
        self._experiment, self._dataset, self._data, self._retriever = experiment, dataset, data, retriever
        self._engine = engine or LocalEngine()
        self._config = experiment.retrieval
        self._depth = max(self._config.depth, self._config.fuse_depth or 0)  # both sides of the fusion are searched to
        self._embedded: Outcome | None = None

    def __iter__(self) -> Iterator[Evaluation]:
        """Yield the evaluation of each arm."""
        queries = len(self._data.test.queries)
        texts = queries + len(self._data.test.corpus)
        yield Evaluation(self._spec(BM25), queries, self._search_words)
        yield Evaluation(self._spec(self._retriever.name), texts, self._described(self._search_vectors))
        if self._config.fuse_depth is not None:
            yield Evaluation(self._spec(fused_name(self._retriever.name)), texts, self._described(self._fuse))

    def _spec(self, name: str) -> EvaluationSpec:
        retriever, config, data = self._retriever, self._config, self._data
        encodes, searches_words = name != BM25, name != retriever.name
        settings: list[object] = [config.depth, sorted(set(config.cutoffs))]
        if encodes:
            settings.append(config.storage)
        if encodes and searches_words:
            settings += [config.fuse_depth, config.fuse_k]
        words = first_stage_name(self._experiment.evaluation.bm25, bm25_engine(self._experiment))
        trained = retriever.checkpoint if encodes else None
        weights = trained.adapter_hash if trained else None
        base_model, prompt = (retriever.base_identity, retriever.prompt) if encodes else (None, None)
        hashes = {"collection": data.test.content_hash, "settings": hash_json(settings)} | self._dataset.rule_hashes
        return EvaluationSpec(
            system=name,
            seed=trained.seed if trained else None,
            task=TASK,
            dataset=self._dataset.name,
            identity=Identity(
                experiment=self._experiment.name,
                base_model=base_model,
                checkpoint=trained.which if trained else "none",
                split=data.test.split,
                first_stage=words if searches_words else None,
                depth=None,
                pool=data.pool,
                prompt=prompt,
                max_queries=self._dataset.max_queries,
            ),
            hashes=hashes | model_hashes(base_model, prompt, weights),
            config=self._experiment.model_dump() | ({"checkpoint": trained.config} if trained else {}),
            main_metric=self._dataset.main_metric,
            dtype=retriever.dtype if encodes else None,
            caveats=[*self._experiment.caveats, *data.caveats],
            training=trained.training if trained else None,
        )

    def _described(self, search: Callable[[Advance | None], Outcome]) -> Callable[[Advance | None], Outcome]:
        """Add what embeds to the outcome of a search."""
        budget = self._experiment.evaluation.token_budget
        return lambda advance: replace(search(advance), device=self._retriever.device, token_budget=budget)

    def _search_words(self, advance: Advance | None) -> Outcome:
        start = time.perf_counter()
        return self._scored(self._bm25_run(advance), start)

    def _search_vectors(self, advance: Advance | None) -> Outcome:
        outcome, depth = self._embed(advance), self._config.depth
        if depth == self._depth:
            return outcome
        cut = self._scored(outcome.run, time.perf_counter())
        notes = retrieval_notes(self._data.test, depth)
        return replace(cut, items=outcome.items, seconds=outcome.seconds, notes=notes)

    def _fuse(self, advance: Advance | None) -> Outcome:
        runs = [self._bm25_run(None), self._embed(advance).run]
        start = time.perf_counter()
        cut = [cut_run(run, self._config.fuse_depth or self._depth) for run in runs]
        return self._scored(reciprocal_rank_fusion(cut, depth=self._config.depth, k=self._config.fuse_k), start)

    def _bm25_run(self, advance: Advance | None) -> Run:
        """Rank the same documents by BM25, once; later calls read the cache."""
        return bm25_run(
            self._data.test,
            self._depth,
            self._experiment.evaluation.bm25,
            engine=bm25_engine(self._experiment),
            exclude_self=self._dataset.exclude_self,
            advance=advance,
            cached=True,
        )

    def _embed(self, advance: Advance | None) -> Outcome:
        """Embed and search once for the encoder and the fusion, and not at all if both results exist."""
        if self._embedded is None:
            evaluation, checkpoint = self._experiment.evaluation, self._retriever.checkpoint
            weights = checkpoint.adapter_hash if checkpoint else None
            spec, batches = self._spec(self._retriever.name), evaluation.batches
            held = self._engine.held(self._retriever, Purpose.of(spec), batches)
            outcome = evaluate_retrieval(
                held.model,
                self._data.test,
                self._config.model_copy(update={"depth": self._depth}),
                store_dir=Path(self._experiment.output_dir) / "vectors",
                weights=weights,
                exclude_self=self._dataset.exclude_self,
                advance=advance,
                workers=held.workers,
                **evaluation.batches,
            )
            self._embedded = replace(outcome, main_metric=self._dataset.main_metric)
        return self._embedded

    def _scored(self, run: Run, start: float) -> Outcome:
        outcome = retrieval_outcome(self._data.test, cut_run(run, self._config.depth), self._config)
        seconds = time.perf_counter() - start
        return replace(outcome, main_metric=self._dataset.main_metric, items=0, seconds=seconds)


def _datasets(request: RetrievalRequest) -> list[Dataset]:
    if not request.datasets:
        raise UsageError("--datasets is empty; name collections, for example --datasets scifact,nfcorpus")
    return chosen_datasets(request.config, request.datasets, request.max_queries)


def _print_result(output_dir: Path, result: EvalResult) -> None:
    """Print a line about a result: main metric, capped recall, file."""
    metrics = [
        result.main_metric,
        *(metric for metric in result.aggregate if metric.startswith("recall_of_retrieved@")),
    ]
    shown = ", ".join(f"{metric} {result.aggregate[metric]:.4f}" for metric in metrics)
    path = result_path(output_dir, result.config_name, result.seed, result.task, result.dataset)
    stdout.print(f"{result.key} {result.config_name}: {shown}  {path}", soft_wrap=True)
