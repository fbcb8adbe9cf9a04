"""The data of a training: lists of documents, and dev and test sets with their BM25 candidates.

A list is a query with its documents, the best first, and a label for each. Lists come from rows of MS MARCO v1.1, or
from a collection, with BM25's candidates as negatives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from unimoe.checks import Check
from unimoe.config import EvaluationConfig
from unimoe.config.losses import Loss
from unimoe.core.errors import DataError
from unimoe.core.io import hash_parts
from unimoe.core.trec import Run, ranked
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.published import MS_MARCO_LISTS
from unimoe.evaluation.datasets import Dataset, LoadedDataset, collections_of, refuse_equal_names
from unimoe.models.model_files import first_line
from unimoe.retrieval.bm25 import bm25_run, first_stage_name
from unimoe.studies.common.pool_results import RerankingPools
from unimoe.studies.common.splits import read_parts
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.training.losses.listwise import refuse_binary
from unimoe.training.splits import CheckedSplits, SplitQueries, checked_splits, to_train_on

_HELD_OUT_SEED = 12


@dataclass(frozen=True)
class LabelledList:
    """One query with the texts of its documents, by descending label, and a label for each."""

    query_id: str
    query: str
    documents: tuple[str, ...]
    labels: tuple[float, ...]


@dataclass(frozen=True)
class LabelledLists:
    """Lists, and the number of queries left out, by reason."""

    lists: tuple[LabelledList, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def content_hash(self) -> str:
        """Content hash of ids, texts and labels, in order."""
        return hash_parts(
            part
            for one in self.lists
            for part in (one.query_id, one.query, str(len(one.documents)), *one.documents, *map(repr, one.labels))
        )

    @property
    def notes(self) -> list[str]:
        """One line for each reason for which queries were left out."""
        return [f"{count:,} queries left out: {reason}" for reason, count in self.dropped.items() if count]

    def split(self, held_out: int, seed: int) -> tuple[LabelledLists, LabelledLists]:
        """Split into the lists to train on and a seeded sample of ``held_out`` others."""
        if held_out >= len(self.lists):
            raise DataError(
                f"{len(self.lists)} lists, {held_out} to be held out: none is left to train on; lower lists.held_out"
            )
        order = np.random.default_rng(seed).permutation(len(self.lists)).tolist()
        kept, chosen = (tuple(self.lists[i] for i in sorted(part)) for part in (order[held_out:], order[:held_out]))
        return replace(self, lists=kept), LabelledLists(chosen)

    def sample(self, count: int | None) -> LabelledLists:
        """Sample at most ``count`` lists by the hash of their query id, so that a larger sample holds the smaller."""
        if count is None or count >= len(self.lists):
            return self
        chosen = set(sorted(self.lists, key=lambda one: hash_parts(["lists", one.query_id]))[:count])
        return replace(self, lists=tuple(one for one in self.lists if one in chosen))


@dataclass(frozen=True)
class CrossEncoderData:
    """Lists to train on, before they are made fit for a loss, and the sets that choose and that are reported."""

    lists: LabelledLists
    dev: tuple[RerankingPools, ...]
    test: tuple[RerankingPools, ...]
    checks: tuple[Check, ...] = ()  # of queries that several of them hold


def load_cross_encoder_data(config: CrossEncoderConfig) -> CrossEncoderData:
    """Load lists, dev and test sets with their BM25 candidates."""
    evaluation = config.evaluation
    lists, own_dev, own_test = _own_parts(config)
    dev = _named(config, evaluation.dev, evaluation.dev_queries) or (own_dev,)
    test = _named(config, evaluation.test, evaluation.test_queries) or ((own_test,) if own_test is not None else ())
    found = _checked(config, lists, dev, test)
    lists = replace(lists, lists=tuple(one for one in lists.lists if one.query_id not in found.left_out[0]))
    test = tuple(one.with_checks(found.checks) for one in test)
    if not any(_can_be_ranked(one) for one in dev):
        raise DataError(
            f"{dev[0].name}: no dev query has a relevant document among its candidates, so that every score "
            "is 0; raise evaluation.depth, or name other collections in evaluation.dev"
        )
    return CrossEncoderData(lists, dev, test, found.checks)


def _checked(
    config: CrossEncoderConfig,
    lists: LabelledLists,
    dev: Sequence[RerankingPools],
    test: Sequence[RerankingPools],
) -> CheckedSplits:
    """Refuse queries that train and choose, or train or choose and are reported; say what else is shared."""
    evaluation = config.evaluation
    trains = {one.query_id: one.query for one in lists.lists}
    parts = [SplitQueries("train", "lists.source", config.lists.source, trains)]
    chooses = "evaluation.dev" if evaluation.dev else "the dev part of lists.source"
    reported = "evaluation.test" if evaluation.test else "the test part of lists.source"
    parts += [SplitQueries.of("dev", chooses, one.name, one.collection) for one in dev]
    parts += [SplitQueries.of("test", reported, one.name, one.collection) for one in test]
    stated = "evaluation.reports_dev" if evaluation.reports_dev else None
    return checked_splits(parts, drop_shared=config.drop_shared, reports_dev=stated)


def _own_parts(config: CrossEncoderConfig) -> tuple[LabelledLists, RerankingPools, RerankingPools | None]:
    """Return the lists of a source, its dev part, and its test part where it has one."""
    source, evaluation = config.lists, config.evaluation
    if source.source == MS_MARCO_LISTS:
        lists, held_out = ms_marco_lists(ms_marco_rows(), source.max_docs).split(source.held_out, _HELD_OUT_SEED)
        return lists.sample(source.queries), held_out_set(held_out.sample(evaluation.dev_queries).lists), None
    train, dev, *tests = read_parts(source.source, source.splits, tested=not evaluation.test)
    train = to_train_on(train, frozenset())
    train = train if source.queries is None else train.sample_queries(source.queries)
    candidates = bm25_run(train, source.negatives_from, source.bm25, cached=True)
    lists = collection_lists(train, candidates, source.max_docs, source.max_positives)

    def part(collection: Collection, queries: int | None) -> RerankingPools:
        if queries is not None:
            collection = collection.sample_queries(queries)
        bm25 = source.bm25.in_language(collection.language)
        run = bm25_run(collection, evaluation.depth, bm25, cached=True)
        return _pools(config, source.source, collection, run, first_stage_name(bm25))

    own_test = None if evaluation.test else part(tests[0], evaluation.test_queries)
    return lists, part(dev, evaluation.dev_queries), own_test


def _named(config: CrossEncoderConfig, names: Sequence[str], queries: int | None) -> tuple[RerankingPools, ...]:
    chosen = [pair for given in names for pair in collections_of(given)]
    refuse_equal_names(name for name, _ in chosen)
    sets = []
    for name, split in chosen:
        settings = EvaluationConfig(depth=config.evaluation.depth, bm25=config.lists.bm25)
        loaded = LoadedDataset(Dataset(name, split, settings, queries))
        sets.append(_pools(config, name, loaded.collection, loaded.candidates, loaded.first_stage.source))
    return tuple(sets)


def _pools(
    config: CrossEncoderConfig, name: str, collection: Collection, candidates: Run, first_stage: str
) -> RerankingPools:
    metric, evaluation = Dataset(name, collection.split).main_metric, config.evaluation
    return RerankingPools(name, collection, candidates, metric, first_stage, evaluation.depth, evaluation.test_queries)


def _can_be_ranked(pools: RerankingPools) -> bool:
    """Return whether any query has a relevant document among its candidates."""
    qrels, found = pools.collection.qrels, pools.candidates
    return any(grade > 0 and key in found.get(q, {}) for q in qrels for key, grade in qrels[q].items())


def held_out_set(lists: Sequence[LabelledList]) -> RerankingPools:
    """Turn lists into a collection of queries that each have their own documents as candidates, in no order.

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


def ms_marco_lists(rows: Iterable[Mapping[str, Any]], max_docs: int | None) -> LabelledLists:
    """Make lists from rows of MS MARCO v1.1: sort passages stably by label, cut, leave out queries without a positive.

    A row is ``{"query_id", "query", "passages": {"is_selected": [..], "passage_text": [..]}}``.
    """
    kept, dropped = [], 0
    for row in rows:
        texts, labels = row["passages"]["passage_text"], row["passages"]["is_selected"]
        order = sorted(range(len(labels)), key=lambda place: -labels[place])[:max_docs]
        if not labels or labels[order[0]] < 1:
            dropped += 1
            continue
        documents = tuple(texts[place] for place in order)
        own = tuple(float(labels[place]) for place in order)
        kept.append(LabelledList(str(row["query_id"]), row["query"], documents, own))
    return LabelledLists(tuple(kept), {"no passage is selected": dropped})


def collection_lists(
    collection: Collection, candidates: Run, max_docs: int | None, max_positives: int | None
) -> LabelledLists:
    """Make lists from a collection: relevant documents with their grades, then candidates as negatives.

    Relevant documents are ordered by grade, then by the first stage's rank, then by id where it did not find them. The
    best candidates without a grade above 0 fill up the list in their order: a loss that respects the input order
    learns that order too. ``max_positives`` is by default half of ``max_docs``.
    """
    if max_positives is None and max_docs is not None:
        max_positives = max(1, max_docs // 2)
    kept, dropped = [], 0
    for query_id, query in collection.queries.items():
        grades = {d: g for d, g in collection.qrels.get(query_id, {}).items() if g > 0 and d in collection.corpus}
        if not grades:
            dropped += 1
            continue
        found = ranked(candidates.get(query_id, {}))
        place = {document: number for number, document in enumerate(found)}
        positives = sorted(grades, key=lambda d: (-grades[d], place.get(d, len(found)), d))[:max_positives]
        chosen = [*positives, *(document for document in found if document not in grades)][:max_docs]
        documents = tuple(collection.corpus[document].full_text for document in chosen)
        kept.append(LabelledList(query_id, query, documents, tuple(float(grades.get(d, 0)) for d in chosen)))
    return LabelledLists(tuple(kept), {"no relevant document": dropped})


def fit_for(loss: Loss, lists: LabelledLists) -> LabelledLists:
    """Return the lists that a loss can learn from, with labels in the form that it takes.

    Lists of one document, and lists of equal labels, teach no order: they are left out and counted. Lists of equal
    labels stay where the loss learns the input order, or judges pairs alone. ``yes_no`` gets 1 for labels above 0.
    """
    counts: Counter[str] = Counter(lists.dropped)
    kept = []
    for one in lists.lists:
        if reason := _unfit(loss, one):
            counts[reason] += 1
        elif loss.name == "yes_no":
            kept.append(replace(one, labels=tuple(float(label > 0) for label in one.labels)))
        else:
            kept.append(one)
    if not kept:
        reasons = "; ".join(f"{count} with {reason}" for reason, count in counts.items() if count)
        raise DataError(f"no list is left to train {loss.name} on ({reasons or 'there was none'}); check the labels")
    refuse_binary(loss, (label for one in kept for label in one.labels))
    return LabelledLists(tuple(kept), dict(counts))


def _unfit(loss: Loss, one: LabelledList) -> str | None:
    if loss.name == "yes_no":
        return None if one.documents else "no document"
    if len(one.documents) < 2:
        return "fewer than two documents"
    return "all labels equal" if len(set(one.labels)) == 1 and not loss.teaches_order else None
