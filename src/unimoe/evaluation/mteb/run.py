"""One task of MTEB, run without its output and without changing the random state around it."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unimoe.core.errors import DataError
from unimoe.data.catalog import available, load_collection
from unimoe.data.mteb_names import beir_name, random_state_kept
from unimoe.data.source import not_at_hand
from unimoe.evaluation.model_wrappers import MTEBWrapper
from unimoe.evaluation.mteb.main_scores import grouped, main_metric
from unimoe.evaluation.reranking.rerankers import truncation_note
from unimoe.evaluation.spec import Outcome
from unimoe.metrics import DEFAULT_METRICS, Scores, score_run

if TYPE_CHECKING:
    from mteb import AbsTask


def task_at_hand(task: AbsTask) -> AbsTask | None:
    """Return a task with data from the user's folder, where it is a BEIR set found there; None otherwise."""
    from unimoe.evaluation.mteb.tasks import CollectionTask

    short = beir_name(task.metadata.name)
    if short is None or len(task.eval_splits) > 1 or available(short) is None:
        return None
    collection = load_collection(short, task.eval_splits[0])
    exclude_self = getattr(task, "ignore_identical_ids", False)
    with random_state_kept():
        return CollectionTask(collection, exclude_self=exclude_self, published=task.metadata)


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


def evaluate_task(model: MTEBWrapper[Any], task: AbsTask, folder: Path | None = None) -> Outcome:
    """Run one task, whose data is loaded, through ``mteb.evaluate``.

    Vectors or shards are kept in ``folder`` for a killed run, or in a temporary one.
    """
    with random_state_kept(), _quiet():
        from unimoe.evaluation.mteb.tasks import CollectionTask, run_task

        before = model.done
        result, rankings = run_task(model, task, folder)
        main, main_score = task.metadata.main_score, float(result.get_score())
        if not math.isfinite(main_score):  # a correlation with scores that are all equal
            raise DataError(
                f"{task.metadata.name}: {main} is not a number; the embeddings of its texts may be all equal"
            )
        run, qrels, truncated = rankings.run, rankings.qrels, rankings.truncated_queries
        level = task.relevance_level if isinstance(task, CollectionTask) else 1  # MTEB knows no other
        metric, groups = main_metric(task), rankings.groups
        metrics = DEFAULT_METRICS if groups or not qrels else tuple(dict.fromkeys((*DEFAULT_METRICS, metric)))
        scores = score_run(qrels, run, metrics, level) if qrels else Scores({}, {}, [])
        return Outcome(
            task_type=str(task.metadata.type),
            main_metric=metric,
            main_score=main_score,
            scores=grouped(scores, metric, groups) if groups else scores,
            run=run,
            qrels=qrels,
            queries=rankings.queries,
            groups={name: group.queries for name, group in groups.items()},
            mteb_json=json.loads(result.model_dump_json()),
            items=model.done - before,
            seconds=result.evaluation_time or 0.0,
            relevance_level=level,
            truncated_queries=truncated,
            notes=[truncation_note(task.metadata.name, truncated)] if truncated else [],
        )


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
