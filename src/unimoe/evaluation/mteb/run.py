"""Runs one task of MTEB, quietly and without touching anybody's random state, and says what came out."""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unimoe.data.catalog import available, load_collection
from unimoe.data.source import not_at_hand
from unimoe.errors import DataError
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper
from unimoe.evaluation.mteb.names import beir_name
from unimoe.metrics import Scores, score_run
from unimoe.models.embedder import Advance
from unimoe.trec import Qrels, Run

if TYPE_CHECKING:
    from mteb import AbsTask

_OUR_NAMES = {"ndcg_at_10": "ndcg@10", "map_at_1000": "map", "mrr_at_10": "mrr@10", "recall_at_100": "recall@100"}


@dataclass(frozen=True)
class TaskOutcome:
    """What MTEB found on one task.

    Attributes:
        dataset: the task's name.
        task_type: MTEB's type of the task.
        main_metric: the main score by our name where we have it by query (``ndcg@10``), else by MTEB's.
        main_score: MTEB's main score, the mean over splits and subsets.
        scores: nDCG@10, MRR@10, MAP and recall@100, per query and on average; null for tasks without queries.
        run: query id to ``{document id: score}``, the best 1000 of each judged query; empty for tasks without queries.
        qrels: the judgments; likewise.
        queries: their texts; likewise.
        mteb_json: MTEB's own result, as JSON values; what is not a number (nAUC of equal scores) is null.
        items: texts encoded, or pairs scored.
        seconds: MTEB's evaluation time: scoring by the model, ranking, measuring.
        relevance_level: the lowest grade that binary metrics of ``scores`` counted as relevant.
    """

    dataset: str
    task_type: str
    main_metric: str
    main_score: float
    scores: Scores | None
    run: Run
    qrels: Qrels
    queries: dict[str, str]
    mteb_json: dict[str, Any]
    items: int
    seconds: float
    relevance_level: int = 1

    @property
    def ranked_scores(self) -> Scores:
        """The scores of a task that has queries, as every collection has."""
        if self.scores is None:
            raise ValueError(f"{self.dataset} has no queries")
        return self.scores


class Counted:
    """Counts the items done, and passes the news on."""

    def __init__(self, advance: Advance | None) -> None:
        self.done = 0
        self._advance = advance

    def __call__(self, done: int) -> None:
        """``done`` more items."""
        self.done += done
        if self._advance:
            self._advance(done)


def task_at_hand(task: AbsTask) -> AbsTask | None:
    """A task with the data of the user's folder, where it is a BEIR set that is there; None otherwise.

    Raises:
        DataError: the folder's data is malformed.
    """
    from unimoe.evaluation.mteb.tasks import CollectionTask

    short = beir_name(task.metadata.name)
    if short is None or len(task.eval_splits) > 1 or available(short) is None:
        return None
    collection = load_collection(short, task.eval_splits[0])
    exclude_self = getattr(task, "ignore_identical_ids", False)
    with random_state_kept():
        return CollectionTask(collection, exclude_self=exclude_self, published=task.metadata)


def load_from_hub(task: AbsTask) -> None:
    """Load a task's data, where it is not loaded yet, by MTEB's own loader.

    Raises:
        UnavailableError: it cannot be had; says what to do.
    """
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
    model: MTEBEncoderWrapper | MTEBCrossEncoderWrapper, task: AbsTask, counted: Counted | None = None
) -> TaskOutcome:
    """Run one task, whose data is loaded, through ``mteb.evaluate``.

    Args:
        model: the adapter.
        task: the task.
        counted: what the adapter tells its progress to.

    Raises:
        DataError: an embedding or a score is not finite; the task has no data or no judged query.
    """
    with random_state_kept(), _quiet():
        from unimoe.evaluation.mteb.tasks import CollectionTask, Rankings, for_one_run, query_texts, run_task

        task = for_one_run(task)
        before, rankings = counted.done if counted else 0, Rankings(task)
        result = run_task(model, task)
        main, main_score = task.metadata.main_score, float(result.get_score())
        if not math.isfinite(main_score):  # a correlation with scores that are all equal
            raise DataError(
                f"{task.metadata.name}: {main} is not a number; the embeddings of its texts may be all equal"
            )
        run, qrels = rankings.run, rankings.qrels
        level = task.relevance_level if isinstance(task, CollectionTask) else 1  # MTEB knows no other
        scores = score_run(qrels, run, relevance_level=level) if qrels else None
        return TaskOutcome(
            dataset=task.metadata.name,
            task_type=str(task.metadata.type),
            main_metric=_OUR_NAMES.get(main, "ndcg@10") if scores else main,
            main_score=main_score,
            scores=scores,
            run=run,
            qrels=qrels,
            queries=query_texts(task) if qrels else {},
            mteb_json=json.loads(result.model_dump_json()),
            items=(counted.done if counted else 0) - before,
            seconds=result.evaluation_time or 0.0,
            relevance_level=level,
        )


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
def random_state_kept() -> Iterator[None]:
    """MTEB seeds every global generator, when imported and with each task; a training around it must not notice."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
