"""The data of a training: its splits, the queries with their positives, and the batches of every epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import Run, ranked
from unimoe.data.collection import Collection
from unimoe.metrics.scoring import from_grade
from unimoe.results.topics import normal
from unimoe.studies.biencoder.config import BiEncoderConfig, BiEncoderDevConfig, NegativesConfig
from unimoe.studies.common.splits import Splits, load_splits
from unimoe.training.splits import relevant_by_text


@dataclass(frozen=True)
class TrainingPairs:
    """The training queries with their relevant documents; all lists but the ids go with them."""

    query_ids: list[str]  # ascending
    texts: list[str]
    relevant: list[frozenset[str]]  # documents of the corpus that are relevant to any query of equal text
    own: list[list[str]]  # documents relevant to the query itself, of which one is drawn
    dropped: int  # queries left out because they have no positive

    def __len__(self) -> int:
        return len(self.query_ids)


@dataclass(frozen=True)
class PairBatch:
    """Queries and all their documents."""

    queries: list[int]  # their places among the training queries, Q of them
    documents: list[str]  # N ids, each once: the positives, then hard negatives
    positives: Tensor  # (Q, N) bool
    excluded: Tensor  # (Q, N) bool, neither positive nor negative


def biencoder_splits(config: BiEncoderConfig) -> Splits:
    """Load the train, dev and test queries of a training, over its sample of the corpus."""
    splits = load_splits(config.collection, config.splits, drop_shared=config.drop_shared)
    if config.corpus_sample is None:
        return splits
    qrels = {key: grades for part in splits for key, grades in part.qrels.items()}
    try:
        corpus = replace(splits.train, qrels=qrels).pool(config.corpus_sample).corpus
    except UsageError as error:
        raise UsageError(f"corpus_sample: {error}") from None
    return Splits(*(replace(part, corpus=corpus) for part in splits))


def dev_collection(dev: Collection, config: BiEncoderDevConfig, threshold: int) -> Collection:
    """Return the dev queries that are scored, over the documents that are searched."""
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


def training_pairs(collection: Collection, threshold: int) -> TrainingPairs:
    """Return the queries of a split that have a positive in the corpus, of the threshold's grade at least."""
    own = {
        query_id: sorted(key for key, grade in grades.items() if grade >= threshold and key in collection.corpus)
        for query_id, grades in sorted(collection.qrels.items())
    }
    kept = [query_id for query_id, found in own.items() if found]
    if not kept:
        raise DataError(
            f"{collection.name}: no query of split {collection.split!r} has a positive in the corpus (grade "
            f"{threshold} or higher); lower relevance_threshold, or check the judgments"
        )
    known = relevant_by_text(collection, threshold)
    return TrainingPairs(
        query_ids=kept,
        texts=[collection.queries[query_id] for query_id in kept],
        relevant=[known[query_id] for query_id in kept],
        own=[own[query_id] for query_id in kept],
        dropped=len(own) - len(kept),
    )


def batches_per_epoch(pairs: TrainingPairs, config: BiEncoderConfig) -> int:
    """Return the number of full batches in an epoch; the queries left over differ from epoch to epoch."""
    return max(1, len(pairs) // config.batch_size)


def unjudged(pairs: TrainingPairs, run: Run, config: NegativesConfig) -> list[list[str]]:
    """Return the documents that hard negatives of each query are drawn from: the best of a run without the relevant."""
    return [
        [key for key in ranked(run[query_id]) if key not in relevant][config.skip : config.depth]
        for query_id, relevant in zip(pairs.query_ids, pairs.relevant, strict=True)
    ]


def epoch_batches(
    pairs: TrainingPairs, config: BiEncoderConfig, epoch: int, negatives: Sequence[Sequence[str]] = ()
) -> list[PairBatch]:
    """Draw the batches of an epoch, which depend on the seed alone: order, one positive a query, hard negatives.

    ``negatives`` are the documents that those of each query are drawn from; empty for no hard negatives.
    """
    random = np.random.default_rng([config.seed, epoch])
    order = random.permutation(len(pairs)).tolist()
    positive = [own[int(random.integers(len(own)))] for own in pairs.own]
    hard = [_draw(random, found, config) for found in negatives]
    size = min(config.batch_size, len(pairs))
    return [
        _batch(pairs, order[begin : begin + size], positive, hard, config)
        for begin in range(0, batches_per_epoch(pairs, config) * size, size)
    ]


def _draw(random: np.random.Generator, found: Sequence[str], config: BiEncoderConfig) -> list[str]:
    count = min(config.negatives.per_query, len(found))
    return [found[place] for place in random.choice(len(found), count, replace=False)] if count else []


def _batch(
    pairs: TrainingPairs,
    queries: list[int],
    positive: Sequence[str],
    hard: Sequence[Sequence[str]],
    config: BiEncoderConfig,
) -> PairBatch:
    drawn: dict[str, set[str]] = {}
    for query in queries:  # queries of equal text share their positives
        drawn.setdefault(normal(pairs.texts[query]), set()).add(positive[query])
    documents = [positive[query] for query in queries]
    documents += [key for query in queries for key in hard[query]] if hard else []
    documents = list(dict.fromkeys(documents))
    targets, known = [], []
    for query in queries:
        mine = drawn[normal(pairs.texts[query])]
        targets.append([key in mine for key in documents])
        known.append([key in pairs.relevant[query] and key not in mine for key in documents])
    positives, others = torch.tensor(targets), torch.tensor(known)
    rule = config.loss.known_positives
    return PairBatch(
        queries=queries,
        documents=documents,
        positives=positives | others if rule == "positive" else positives,
        excluded=others if rule == "mask" else torch.zeros_like(others),
    )
