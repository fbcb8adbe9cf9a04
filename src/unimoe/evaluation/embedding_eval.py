"""Embeddings, evaluated by MTEB on tasks made from collections."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unimoe.data.collection import Collection
from unimoe.errors import DataError
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper
from unimoe.metrics import Scores, score_run
from unimoe.models.unimodel import Advance, UnimodelForExp1
from unimoe.trec import Run

if TYPE_CHECKING:
    from mteb import AbsTask, TaskResult

_LOADER_BATCH = 1024  # rows per step of MTEB's data loader; the model makes batches of its own


@dataclass(frozen=True)
class EmbeddingOutcome:
    """What an evaluation of embeddings found on one collection.

    Attributes:
        dataset: the collection's name.
        run: query id to ``{document id: cosine}``, the best 1000 of each judged query.
        scores: nDCG@10, MRR@10, MAP and recall@100, per query and on average.
        mteb_json: MTEB's own result, as JSON values; what is not a number (nAUC of equal scores) is null.
        texts: number of texts encoded.
        seconds: MTEB's evaluation time: encoding, ranking and scoring.
    """

    dataset: str
    run: Run
    scores: Scores
    mteb_json: dict[str, Any]
    texts: int
    seconds: float


def evaluate_embedding_collection(
    model: UnimodelForExp1,
    collection: Collection,
    *,
    name: str,
    identity: Mapping[str, str],
    token_budget: int | None = None,
    batch_size: int | None = None,
    exclude_self: bool = False,
    advance: Advance | None = None,
) -> EmbeddingOutcome:
    """Rank a collection by the cosine of embeddings, through ``mteb.evaluate``.

    Nothing is read from or written to MTEB's result cache, so that no score is ever stale. Documents are encoded 50,000
    at a time, MTEB's chunk: a smaller corpus in one call of the model.

    Args:
        model: the model.
        collection: what to rank; judged queries without relevant documents count 0, unjudged ones are only listed.
        name: the arm; MTEB knows the model as ``unimoe/{name}``.
        identity: what changes scores, by name: above all the content hash of the checkpoint.
        token_budget: padded tokens of one forward pass; by default what suits the device.
        batch_size: texts of one forward pass, instead of the budget.
        exclude_self: leave out the document whose id is the query's (ArguAna, Quora).
        advance: called with the number of texts done, after each batch; documents and judged queries are counted.

    Raises:
        DataError: the collection has no documents or no judgments, or an embedding is not finite.
    """
    if not collection.corpus or not collection.qrels:
        lacking = "judgments" if collection.corpus else "documents"
        raise DataError(f"{collection.name}: split {collection.split!r} has no {lacking}; nothing can be ranked")
    with _random_state_kept():
        from unimoe.evaluation.mteb_tasks import CollectionTask

        options: dict[str, Any] = {"token_budget": token_budget, "batch_size": batch_size, "advance": advance}
        encoder = MTEBEncoderWrapper(model, name=name, identity=identity, **options)
        task = CollectionTask(collection, exclude_self=exclude_self)
        result = _run_mteb(encoder, task)
    scores = score_run(collection.qrels, task.run)
    return EmbeddingOutcome(
        dataset=collection.name,
        run=task.run,
        scores=replace(scores, unjudged_queries=collection.unjudged_queries),
        mteb_json=json.loads(result.model_dump_json()),
        texts=len(collection.corpus) + len(task.run),
        seconds=result.evaluation_time or 0.0,
    )


def _run_mteb(encoder: MTEBEncoderWrapper, task: AbsTask) -> TaskResult:
    """MTEB's result for one task, computed anew and in silence."""
    import mteb

    with _quiet():
        results = mteb.evaluate(
            encoder,
            task,
            cache=None,
            co2_tracker=False,
            raise_error=True,
            show_progress_bar=False,
            encode_kwargs={"batch_size": _LOADER_BATCH, "show_progress_bar": False},
        )
    return results.task_results[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no chatter: the caller shows one bar for the whole."""
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


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """MTEB seeds every global generator, when imported and with each task; a training around it must not notice."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
