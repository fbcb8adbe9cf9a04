"""Collections as retrieval tasks of MTEB, evaluated without the hub, and the run of any task.

This module alone imports MTEB at its top, which takes seconds: import it inside functions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from unimoe.core.trec import Qrels, Run
from unimoe.data.collection import Collection
from unimoe.data.sources.from_mteb import import_mteb
from unimoe.evaluation.model_wrappers import MTEBEncoderWrapper, MTEBWrapper
from unimoe.evaluation.mteb.main_scores import Group, groups_of
from unimoe.evaluation.mteb.search import CandidateReranking, DenseSearch

import_mteb()  # before anything of it is imported by name

from datasets import Dataset  # noqa: E402
from mteb import AbsTask, TaskResult, evaluate  # noqa: E402
from mteb.abstasks import AbsTaskRetrieval  # noqa: E402
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402

T = TypeVar("T")

_SUBSET = "default"  # what MTEB calls the only subset of a task
_UNKNOWN_LANGUAGE = "und-Zyyy"
_LOADER_BATCH = 1024  # rows per step of MTEB's data loader; the model forms its batches itself


class CollectionTask(AbsTaskRetrieval):
    """A collection as a retrieval task of MTEB.

    As in ``trec_eval -c``, every judged query counts; the others are not searched for.

    Args:
        collection: its split becomes the task's only one.
        exclude_self: leave out the document whose id is the query's. Right where queries are documents of the corpus
            (ArguAna, Quora), wrong where ids coincide by chance.
        published: MTEB's own card of the task that the collection is; without it the collection names the task.
    """

    def __init__(
        self, collection: Collection, *, exclude_self: bool = False, published: TaskMetadata | None = None
    ) -> None:
        self.metadata = _metadata(collection, published)
        self.ignore_identical_ids = exclude_self
        self.relevance_level = collection.relevance_level
        super().__init__()
        self.dataset = {_SUBSET: {collection.split: _split_data(collection)}}
        self.data_loaded = True  # MTEB neither downloads anything nor, after the evaluation, unloads it


class Rankings:
    """Records the runs and judgments that MTEB scores, and the queries, while it runs a retrieval or reranking task.

    MTEB's prediction files still hold documents with their query's id; these runs do not. Where a task has several
    splits or subsets, query ids begin with theirs.
    """

    def __init__(self, task: AbsTask) -> None:
        self._task = task
        self._found: dict[tuple[str, str], tuple[Mapping[str, Any], Mapping[str, Any], dict[str, Group]]] = {}
        self.truncated: Mapping[tuple[str, str], list[str]] = {}
        if isinstance(task, AbsTaskRetrieval):
            own = task.task_specific_scores

            def kept(scores: Any, qrels: Any, results: Any, hf_split: str, hf_subset: str) -> dict[str, float]:
                asked = {query: grades for query, grades in qrels.items() if query in results}  # MTEB scores no other

                def score(queries: Iterable[str]) -> dict[str, float]:
                    judged, ranked = ({query: part[query] for query in queries} for part in (asked, results))
                    return own(scores, judged, ranked, hf_split=hf_split, hf_subset=hf_subset)

                groups = groups_of(task.metadata.main_score, asked, results, score)
                self._found[hf_split, hf_subset] = (asked, results, groups)
                return own(scores, qrels, results, hf_split=hf_split, hf_subset=hf_subset)

            setattr(task, "task_specific_scores", kept)  # noqa: B010 - on this task, not on its class

    @property
    def qrels(self) -> Qrels:
        """Query id to ``{document id: grade}``; empty for tasks that rank nothing."""
        return self._named(
            lambda place: {q: {d: int(grade) for d, grade in own.items()} for q, own in self._found[place][0].items()}
        )

    @property
    def run(self) -> Run:
        """Query id to ``{document id: score}``, the best 1000."""
        return self._named(
            lambda place: {q: {d: float(s) for d, s in own.items()} for q, own in self._found[place][1].items()}
        )

    @property
    def groups(self) -> dict[str, Group]:
        """The groups of queries over which the main score is a mean, by name; none where each query has a value."""

        def named(place: tuple[str, str]) -> dict[str, Group]:
            prefix, groups = self._prefix(place), self._found[place][2]
            return {name: Group(one.value, [prefix + query for query in one.queries]) for name, one in groups.items()}

        return self._named(named)

    @property
    def truncated_queries(self) -> list[str]:
        """Queries so long that a reranker saw only their beginning, sorted."""
        return sorted(self._named(lambda place: dict.fromkeys(self.truncated.get(place, ()))))

    @property
    def queries(self) -> dict[str, str]:
        """The text of each query that is ranked for, by its id; empty for tasks that rank nothing."""
        data: Any = self._task.dataset
        return self._named(
            lambda place: {str(row["id"]): str(row["text"]) for row in data[place[1]][place[0]]["queries"]}
        )

    def _named(self, of: Callable[[tuple[str, str]], Mapping[str, T]]) -> dict[str, T]:
        """Return what every split and subset has by name, together."""
        return {self._prefix(place) + name: value for place in self._found for name, value in of(place).items()}

    def _prefix(self, place: tuple[str, str]) -> str:
        return "".join(f"{part}/" for part in place) if len(self._found) > 1 else ""


def run_task(model: MTEBWrapper[Any], task: AbsTask, folder: Path | None) -> tuple[TaskResult, Rankings]:
    """Run one task; nothing is read from MTEB's result cache or written to it.

    A task that ranks documents is searched by our own search models, which keep vectors or shards in ``folder``.
    """
    task, drawn = copy.copy(task), copy.deepcopy((task.rng_state, task.np_rng))
    task.rng_state, task.np_rng = drawn  # clustering draws its samples from the task's own generator
    rankings = Rankings(task)
    search: Any = DenseSearch if isinstance(model, MTEBEncoderWrapper) else CandidateReranking
    with TemporaryDirectory(prefix="unimoe-") if folder is None else nullcontext(folder) as place:
        asked: Any = model
        if isinstance(task, AbsTaskRetrieval):
            asked = search(model, Path(place))
            rankings.truncated = asked.truncated
        results = evaluate(
            asked,
            task,
            cache=None,
            co2_tracker=False,
            raise_error=True,
            show_progress_bar=False,
            encode_kwargs={"batch_size": _LOADER_BATCH, "show_progress_bar": False},
        )
    return results.task_results[0], rankings


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
