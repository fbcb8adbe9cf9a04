"""Collections as retrieval tasks of MTEB, evaluated without the hub, and the run of any task.

This module alone imports MTEB at its top, which takes seconds: import it inside functions.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from unimoe.core.errors import DataError
from unimoe.core.trec import Qrels, Run, plain_grades, plain_run
from unimoe.data.collection import Collection, Document
from unimoe.data.sources.from_mteb import import_mteb
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper
from unimoe.evaluation.mteb.main_scores import Group, grouped, groups_of, main_metric
from unimoe.evaluation.mteb.search import TaskSearch
from unimoe.evaluation.spec import Outcome
from unimoe.metrics import DEFAULT_METRICS, Scores, score_run
from unimoe.models.reranker import truncation_note
from unimoe.results.runs.scoring import checked_scores

import_mteb()  # before anything of it is imported by name

from datasets import Dataset  # noqa: E402
from mteb import AbsTask, evaluate  # noqa: E402
from mteb.abstasks import AbsTaskRetrieval  # noqa: E402
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402

_SUBSET = "default"  # what MTEB calls the only subset of a task
_UNKNOWN_LANGUAGE = "und-Zyyy"
_LOADER_BATCH = 1024  # rows per step of MTEB's data loader; the model forms its batches itself


class CollectionTask(AbsTaskRetrieval):
    """A collection as a retrieval task of MTEB.

    As in ``trec_eval -c``, every judged query counts; the others are not searched for. ``published`` is MTEB's own card
    of the task that the collection is; without it the collection names the task.
    """

    def __init__(self, collection: Collection, *, published: TaskMetadata | None = None) -> None:
        self.metadata = _metadata(collection, published)
        self.ignore_identical_ids = bool(collection.excludes_self)
        self.relevance_level, self.excluded = collection.relevance_level, collection.excluded
        self.checks = collection.checks
        self.passages: Mapping[str, Document] | None = None  # of the documents, to be embedded in their place
        super().__init__()
        self.dataset = {_SUBSET: {collection.split: _split_data(collection)}}
        self.data_loaded = True  # MTEB neither downloads anything nor, after the evaluation, unloads it


def run_task(model: MTEBEncoderWrapper | MTEBCrossEncoderWrapper, task: AbsTask, folder: Path | None) -> Outcome:
    """Run one task; nothing is read from MTEB's result cache or written to it.

    A task that ranks documents is searched by our own search model, which keeps vectors or shards in ``folder``.
    """
    task, drawn = copy.copy(task), copy.deepcopy((task.rng_state, task.np_rng))
    task.rng_state, task.np_rng = drawn  # clustering draws its samples from the task's own generator
    before, rankings, asked = model.done, Rankings(task), cast("Any", model)
    with TemporaryDirectory(prefix="unimoe-") if folder is None else nullcontext(folder) as place:
        if isinstance(task, AbsTaskRetrieval):
            asked = TaskSearch(model, Path(place))
            asked.excluded, asked.passages = getattr(task, "excluded", {}), getattr(task, "passages", None)
        (result,) = evaluate(
            asked,
            task,
            cache=None,
            co2_tracker=False,
            raise_error=True,
            show_progress_bar=False,
            encode_kwargs={"batch_size": _LOADER_BATCH, "show_progress_bar": False},
        ).task_results
    main_score, name = float(result.get_score()), task.metadata.name
    if not math.isfinite(main_score):  # a correlation with scores that are all equal
        raise DataError(
            f"{name}: {task.metadata.main_score} is not a number; the embeddings of its texts may be all equal"
        )
    truncated: Mapping[tuple[str, str], list[str]] = getattr(asked, "truncated", {})
    cut = sorted(rankings.name(key, *at) for at, keys in truncated.items() for key in keys)
    run, qrels, groups, metric = rankings.run, rankings.qrels, rankings.groups, main_metric(task)
    level = task.relevance_level if isinstance(task, CollectionTask) else 1  # MTEB knows no other
    metrics = DEFAULT_METRICS if groups or not qrels else tuple(dict.fromkeys((*DEFAULT_METRICS, metric)))
    scores = Scores({}, {}, [])
    if groups:  # which have values of their own, so that nothing can be said of a query's ties
        scores = score_run(qrels, run, metrics, level)
    elif qrels:
        scores = checked_scores(plain_grades(qrels), plain_run(run), [metric, *metrics], level, name)
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
        truncated_queries=cut,
        notes=[truncation_note(name, cut)] if cut else [],
    )


class Rankings:
    """Records the runs and judgments that MTEB scores, and the queries, while it runs a retrieval or reranking task.

    MTEB's prediction files still hold documents with their query's id; these runs do not. Where a task has several
    splits or subsets, query ids begin with theirs.

    Attributes:
        groups: of queries over which the main score is a mean; none where each query has a value.
    """

    def __init__(self, task: AbsTask) -> None:
        self.run: Run = {}
        self.qrels: Qrels = {}
        self.queries: dict[str, str] = {}
        self.groups: dict[str, Group] = {}
        self._several = len(task.eval_splits) * len(task.hf_subsets) > 1
        if isinstance(task, AbsTaskRetrieval):
            setattr(task, "task_specific_scores", partial(self._scores, task, task.task_specific_scores))  # noqa: B010

    def name(self, query: str, split: str, subset: str) -> str:
        """Return the id of a query."""
        return f"{split}/{subset}/{query}" if self._several else query

    def _scores(
        self,
        task: AbsTaskRetrieval,
        own: Callable[..., dict[str, float]],
        scores: Any,
        qrels: Mapping[str, Mapping[str, Any]],
        results: Mapping[str, Mapping[str, Any]],
        hf_split: str,
        hf_subset: str,
    ) -> dict[str, float]:
        """Take what is scored, and return the task's own scores of it."""

        def score(queries: Iterable[str]) -> dict[str, float]:
            judged, ranked = ({query: part[query] for query in queries} for part in (asked, results))
            return own(scores, judged, ranked, hf_split=hf_split, hf_subset=hf_subset)

        named = partial(self.name, split=hf_split, subset=hf_subset)
        asked = {query: grades for query, grades in qrels.items() if query in results}  # MTEB scores no other
        for name, group in groups_of(task.metadata.main_score, asked, results, score).items():
            self.groups[named(name)] = Group(group.value, list(map(named, group.queries)))
        for query, grades in asked.items():
            self.qrels[named(query)] = {key: int(grade) for key, grade in grades.items()}
        for query, found in results.items():
            self.run[named(query)] = {key: float(value) for key, value in found.items()}
        data: Any = task.dataset
        self.queries |= {named(str(row["id"])): str(row["text"]) for row in data[hf_subset][hf_split]["queries"]}
        return own(scores, qrels, results, hf_split=hf_split, hf_subset=hf_subset)


def _split_data(collection: Collection) -> RetrievalSplitData:
    qrels = {query: grades for query, grades in collection.qrels.items() if grades}
    corpus = {
        "id": list(collection.corpus),
        "title": [document.title for document in collection.corpus.values()],
        "text": [document.text for document in collection.corpus.values()],
    }
    queries = {"id": list(qrels), "text": [collection.queries[query] for query in qrels]}
    return RetrievalSplitData(
        corpus=Dataset.from_dict(corpus),
        queries=Dataset.from_dict(queries),
        # Negative grades count 0, as in unimoe.metrics; trec_eval crashes on a query that has no others.
        relevant_docs={q: {d: max(0, grade) for d, grade in grades.items()} for q, grades in qrels.items()},
        top_ranked=None,
    )


def _metadata(collection: Collection, published: TaskMetadata | None) -> TaskMetadata:
    """Return MTEB's card of the task, with the collection as its data, by content hash."""
    data: Any = {"path": collection.name, "revision": collection.content_hash}
    if published is not None:
        return published.model_copy(update={"dataset": data, "eval_splits": [collection.split]})
    return TaskMetadata(
        name=collection.name,
        description=f"The collection {collection.name}, split {collection.split}.",
        type="Retrieval",
        category="t2t",
        eval_splits=[collection.split],
        eval_langs=[_UNKNOWN_LANGUAGE],
        main_score="ndcg_at_10",
        prompt="",  # it has no instruction; without this MTEB's own models would look for that of its type
        dataset=data,
    )
