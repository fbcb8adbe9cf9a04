"""Loads the data of a training: lists, and dev and test sets with their BM25 candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unimoe.core.errors import DataError
from unimoe.core.io import hash_parts
from unimoe.core.trec import Run
from unimoe.data.catalog import main_metric
from unimoe.data.collection import Collection, Document, assemble
from unimoe.evaluation.tiers.datasets import Dataset, LoadedDataset, collections_of, refuse_equal_names
from unimoe.models.quiet import first_line
from unimoe.retrieval.bm25 import bm25_run, first_stage_name
from unimoe.studies.common.pool_results import RerankingPools
from unimoe.studies.common.splits import load_splits
from unimoe.studies.cross_encoder.config import MS_MARCO_LISTS, CrossEncoderConfig
from unimoe.studies.cross_encoder.training.lists import LabelledList, Lists, collection_lists, ms_marco_lists

_HELD_OUT_SEED = 12


@dataclass(frozen=True)
class CrossEncoderData:
    """The data of one training.

    Attributes:
        lists: to train on, before they are made fit for a loss.
        dev: these choose the checkpoint.
        test: these are reported.
    """

    lists: Lists
    dev: tuple[RerankingPools, ...]
    test: tuple[RerankingPools, ...]


def load_cross_encoder_data(config: CrossEncoderConfig) -> CrossEncoderData:
    """Load lists, dev and test sets with their BM25 candidates.

    Raises:
        UsageError: no such collection or split.
        DataError: the source cannot be loaded or is malformed, a part of it has no query, or dev can choose nothing.
    """
    evaluation = config.evaluation
    lists, own_dev, own_test = _own_parts(config)
    dev = _named(config, evaluation.dev, evaluation.dev_queries) or (own_dev,)
    if not any(_can_be_ranked(one) for one in dev):
        raise DataError(
            f"{dev[0].name}: no dev query has a relevant document among its candidates, so that every score "
            "is 0; raise evaluation.depth, or name other collections in evaluation.dev"
        )
    test = _named(config, evaluation.test, evaluation.test_queries) or ((own_test,) if own_test is not None else ())
    return CrossEncoderData(lists, dev, test)


def _own_parts(config: CrossEncoderConfig) -> tuple[Lists, RerankingPools, RerankingPools | None]:
    """Return the lists of a source, its dev part, and its test part where it has one."""
    source, evaluation = config.lists, config.evaluation
    if source.source == MS_MARCO_LISTS:
        lists, held_out = ms_marco_lists(ms_marco_rows(), source.max_docs).split(source.held_out, _HELD_OUT_SEED)
        return lists.sample(source.queries), held_out_set(held_out.sample(evaluation.dev_queries).lists), None
    splits = load_splits(source.source, source.splits)
    train = splits.train if source.queries is None else splits.train.sample_queries(source.queries)
    candidates = bm25_run(train, source.negatives_from, source.bm25, cached=True)
    lists = collection_lists(train, candidates, source.max_docs, source.max_positives)

    def part(collection: Collection, queries: int | None) -> RerankingPools:
        if queries is not None:
            collection = collection.sample_queries(queries)
        run = bm25_run(collection, evaluation.depth, source.bm25, cached=True)
        return _pools(config, source.source, collection, run, first_stage_name(source.bm25))

    return lists, part(splits.dev, evaluation.dev_queries), part(splits.test, evaluation.test_queries)


def _named(config: CrossEncoderConfig, names: Sequence[str], queries: int | None) -> tuple[RerankingPools, ...]:
    sets = []
    chosen = [pair for given in names for pair in collections_of(given)]
    refuse_equal_names(name for name, _ in chosen)
    for name, split in chosen:
        loaded = LoadedDataset(Dataset(name, split, config.evaluation.depth, config.lists.bm25, queries))
        sets.append(_pools(config, name, loaded.collection, loaded.candidates, loaded.first_stage.source))
    return tuple(sets)


def _pools(
    config: CrossEncoderConfig, name: str, collection: Collection, candidates: Run, first_stage: str
) -> RerankingPools:
    metric, evaluation = main_metric(name, collection.split), config.evaluation
    return RerankingPools(name, collection, candidates, metric, first_stage, evaluation.depth, evaluation.test_queries)


def _can_be_ranked(pools: RerankingPools) -> bool:
    """Return whether any query has a relevant document among its candidates."""
    qrels, found = pools.collection.qrels, pools.candidates
    return any(grade > 0 and key in found.get(q, {}) for q in qrels for key, grade in qrels[q].items())


def held_out_set(lists: Sequence[LabelledList]) -> RerankingPools:
    """Turn lists into a collection whose queries each have their own documents as candidates, in no order.

    Documents are named by a hash, so that ties in score do not fall back to the order of the list.
    """
    documents: dict[str, Document] = {}
    run: Run = {}
    qrels: dict[str, dict[str, int]] = {}
    for one in lists:
        names = [hash_parts([one.query_id, text]) for text in one.documents]
        documents |= {name: Document("", text) for name, text in zip(names, one.documents, strict=True)}
        run[one.query_id] = dict.fromkeys(names, 0.0)
        qrels[one.query_id] = {name: int(label) for name, label in zip(names, one.labels, strict=True)}
    queries = ((one.query_id, one.query) for one in lists)
    collection = assemble(MS_MARCO_LISTS, "held_out", documents.items(), queries, qrels)
    return RerankingPools(MS_MARCO_LISTS, collection, run, "ndcg@10", "the list itself", max(map(len, run.values())))


def ms_marco_rows() -> Any:
    """Load the training rows of ``microsoft/ms_marco``, v1.1, from the hub or its cache."""
    from datasets import load_dataset

    try:
        return load_dataset("microsoft/ms_marco", "v1.1", split="train")
    except Exception as error:  # the hub's client ends in errors of many kinds
        raise DataError(
            f"lists.source {MS_MARCO_LISTS}: microsoft/ms_marco cannot be loaded ({first_line(error)}); connect to the "
            "hub, or set lists.source to a collection such as apidocs"
        ) from None
