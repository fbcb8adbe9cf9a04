"""The one module that imports MTEB when it is imported, which takes seconds: import it inside functions.

Makes retrieval tasks out of collections, so that MTEB evaluates them without reaching for the hub.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from unimoe.data.collection import Collection
from unimoe.io import cache_dir
from unimoe.trec import Run

# MTEB makes its result cache the moment it is imported, in the user's home unless told otherwise.
os.environ.setdefault("MTEB_CACHE", str(cache_dir("mteb")))

from datasets import Dataset
from mteb.abstasks import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.model_meta import ModelMeta, ScoringFunction

if TYPE_CHECKING:
    from mteb.types import RelevantDocumentsType

_SUBSET = "default"  # what MTEB calls the only subset of a task
_UNKNOWN_LANGUAGE = "und-Zyyy"


class CollectionTask(AbsTaskRetrieval):
    """A collection as a retrieval task of MTEB.

    As in ``trec_eval -c``, every judged query counts; the others are not searched for.

    Args:
        collection: its split becomes the task's only one.
        exclude_self: leave out the document whose id is the query's. Right where queries are documents of the corpus
            (ArguAna, Quora), wrong where ids coincide by chance.

    Attributes:
        run: query id to the cosines of its best 1000 documents; empty before the evaluation.
    """

    def __init__(self, collection: Collection, *, exclude_self: bool = False) -> None:
        self.metadata = _metadata(collection)
        self.ignore_identical_ids = exclude_self
        self.run: Run = {}
        super().__init__()
        self.dataset = {_SUBSET: {collection.split: _split_data(collection)}}
        self.data_loaded = True  # MTEB neither downloads anything nor, after the evaluation, unloads it

    def task_specific_scores(
        self,
        scores: dict[str, dict[str, float]],
        qrels: RelevantDocumentsType,
        results: dict[str, dict[str, float]],
        hf_split: str,
        hf_subset: str,
    ) -> dict[str, float]:
        """Keep the run MTEB scored, from which excluded documents are gone already; adds no score of its own."""
        self.run = results
        return {}


def model_meta(name: str, revision: str, kind: Literal["dense", "cross-encoder"]) -> ModelMeta:
    """What MTEB files a model's results under: ``name`` with a ``/`` in it, and ``revision``."""
    facts = {
        "name": name,
        "revision": revision,
        "model_type": [kind],
        "similarity_fn_name": ScoringFunction.COSINE if kind == "dense" else None,
    }
    return ModelMeta.create_empty(overwrites=facts)


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


def _metadata(collection: Collection) -> TaskMetadata:
    return TaskMetadata(
        name=collection.name,
        description=f"The collection {collection.name}, split {collection.split}.",
        type="Retrieval",
        category="t2t",
        eval_splits=[collection.split],
        eval_langs=[_UNKNOWN_LANGUAGE],
        main_score="ndcg_at_10",
        dataset={"path": collection.name, "revision": collection.content_hash},
    )
