"""The splits of a training, and dense retrieval with the current model while it runs."""

from __future__ import annotations

from dataclasses import replace

from unimoe.data.collection import Collection
from unimoe.errors import UsageError
from unimoe.metrics import from_grade, score_run
from unimoe.models.embedder import Advance
from unimoe.retrieval.dense import search
from unimoe.studies.biencoder.config import BiEncoderConfig, DevConfig
from unimoe.studies.biencoder.training.sources import Source
from unimoe.studies.common.splits import Splits, load_splits
from unimoe.trec import Run

_DEPTH = 100
_UNIT = 1.001  # length of an embedding, and a little for rounding


def biencoder_splits(config: BiEncoderConfig) -> Splits:
    """The collection of a training in three parts, over its sample of the corpus.

    Raises:
        UsageError: no such collection or split, or the sample cannot hold the relevant documents.
        DataError: a part has no query.
    """
    splits = load_splits(config.collection, config.splits)
    if config.corpus_sample is None:
        return splits
    qrels = {key: grades for part in splits for key, grades in part.qrels.items()}
    try:
        corpus = replace(splits.train, qrels=qrels).pool(config.corpus_sample).corpus
    except UsageError as error:
        raise UsageError(f"corpus_sample: {error}") from None
    return Splits(*(replace(part, corpus=corpus) for part in splits))


def dev_collection(dev: Collection, config: DevConfig, threshold: int) -> Collection:
    """The dev queries that are looked at, over the documents that are searched.

    Raises:
        UsageError: the pool cannot hold the relevant documents.
        DataError: no judgment reaches the threshold.
    """
    if config.queries is not None:
        dev = dev.sample_queries(config.queries)
    if config.pool is not None:
        try:
            dev = dev.pool(config.pool)
        except UsageError as error:
            raise UsageError(f"dev.pool: {error}") from None
    qrels = from_grade(dev.qrels, threshold)
    judged = {key: text for key, text in dev.queries.items() if key in qrels}
    return replace(dev, queries=judged, qrels=qrels)


def dev_score(source: Source, dev: Collection, metric: str, advance: Advance | None = None) -> float:
    """The mean of a metric on dev, by the search and the measures of evaluation."""
    run = found_by(source, dev.queries, dev, _DEPTH, advance)
    return score_run(dev.qrels, run, [metric], dev.relevance_level).aggregate[metric]


def found_by(
    source: Source, queries: dict[str, str], collection: Collection, depth: int, advance: Advance | None = None
) -> Run:
    """The ``depth`` nearest documents of a collection for each query, best first."""
    ids = sorted(collection.corpus)
    documents = {key: collection.corpus[key].full_text for key in ids}
    return search(
        source.all_vectors("query", queries, advance),
        list(queries),
        source.all_vectors("document", documents, advance),
        ids,
        depth,
        longest=_UNIT,
    )
