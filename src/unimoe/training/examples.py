"""The training examples of the arms as token ids, and the order of their batches.

The order depends on the seed and not on the arm: the joint arm sees the same batches as its specialists.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from unimoe.checks import Check
from unimoe.config import Experiment
from unimoe.config.training import ArmTask, EmbeddingRecipe, RankingRecipe, TrainingConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.core.grouping import gathered
from unimoe.core.io import hash_parts
from unimoe.core.trec import Run, ranked
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection
from unimoe.models.frozen_layers import FrozenStates
from unimoe.models.seen_queries import SeenQueries
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.retrieval.bm25 import bm25_run
from unimoe.training.splits import SplitQueries, checked_splits, to_train_on

TokenIds = list[int]

RANKING_STREAM, EMBEDDING_STREAM = 0, 1

# Candidates searched beyond the negatives wanted, because some candidates are relevant.
_RELEVANT_AMONG_CANDIDATES = 50


class Triple(NamedTuple):
    """A training query with its positive and its negatives, as document ids."""

    query_id: str
    positive: str
    negatives: list[str]


@dataclass(frozen=True)
class TokenizedTexts:
    """Sequences to run, with their states below the adapters where these are kept."""

    ids: Sequence[TokenIds]
    frozen: FrozenStates | None

    @classmethod
    def of(cls, model: UnimodelForExp1, ids: Sequence[TokenIds]) -> TokenizedTexts:
        """Return sequences with the states that a model keeps of them."""
        return cls(ids, model.kept_states(ids))

    def pick(self, rows: Sequence[int]) -> TokenizedTexts:
        """Return some of the sequences, in the order of ``rows``."""
        return TokenizedTexts(
            [self.ids[row] for row in rows], [self.frozen[row] for row in rows] if self.frozen else None
        )

    def __add__(self, other: TokenizedTexts) -> TokenizedTexts:
        frozen = [*self.frozen, *other.frozen] if self.frozen and other.frozen else None
        return TokenizedTexts([*self.ids, *other.ids], frozen)

    @property
    def tokens(self) -> int:
        """Tokens of all sequences, padding not counted."""
        return sum(map(len, self.ids))


@dataclass(frozen=True)
class RankingSet:
    """Yes/no prompts, grouped by query."""

    prompts: TokenizedTexts
    groups: list[list[int]]  # for each query the rows of its prompts, that of the positive first
    query_ids: list[str]  # of the queries, for errors
    labels: list[list[float]]  # for each query the grades of its documents
    batched: list[list[int]]  # queries that share a batch, as indices into ``groups``: neighbours, else each alone


@dataclass(frozen=True)
class EmbeddingSet:
    """Queries and documents to embed."""

    queries: TokenizedTexts
    documents: TokenizedTexts  # each document once
    groups: list[list[int]]  # for each query the rows of its documents, that of the positive first
    relevant: list[frozenset[int]]  # for each query the rows of documents that are relevant to it or excluded for it
    query_ids: list[str]  # of the queries, for errors


def mine_triples(collection: Collection, candidates: Run, hard: int, random: int, negatives_from: int) -> list[Triple]:
    """Choose one positive and the negatives of every query that has a relevant document, and hard ones enough.

    The positive is the document with the highest grade. Hard negatives come from the query's best candidates, random
    ones from the whole corpus; none is relevant, or excluded for the query. The choice depends on the query's id alone,
    so it is the same for every arm and seed.
    """
    everything = sorted(collection.corpus)
    triples = []
    for query_id, pool in _hard_negatives(collection, candidates, hard, negatives_from).items():
        relevant, grades = _relevant(collection, query_id), collection.qrels[query_id]
        rng = np.random.default_rng(int(hash_parts([query_id]), 16))
        negatives = _draw(rng, pool, hard, query_id)
        drawn = relevant | collection.left_out(query_id) | set(negatives)
        negatives += _draw(
            rng, [d for d in _some(rng, everything, random + len(drawn)) if d not in drawn], random, query_id
        )
        positive = min(relevant, key=lambda document_id: (-grades[document_id], document_id))
        triples.append(Triple(query_id, positive, negatives))
    if not triples:
        raise DataError(f"{collection.name}, split {collection.split}: no query has a relevant document to train on")
    return triples


def neighbourhoods(triples: Sequence[Triple], candidates: Run, size: int, depth: int) -> list[list[int]]:
    """Group queries with others that have a positive among the group's first ``depth`` candidates, as far as there are.

    Returns:
        Indices into ``triples``, each at most once, in groups of exactly ``size``.
    """
    first = {triple.query_id: ranked(candidates.get(triple.query_id, {}))[:depth] for triple in triples}
    owners = gathered((triple.positive, index) for index, triple in enumerate(triples))
    left, in_order = set(range(len(triples))), iter(range(len(triples)))
    groups = []
    while len(left) >= size:
        group: list[int] = []
        while len(group) < size:
            near = (o for member in group for d in first[triples[member].query_id] for o in owners.get(d, ()))
            chosen = next((index for index in near if index in left), None)
            group.append(next(index for index in in_order if index in left) if chosen is None else chosen)
            left.remove(group[-1])
        groups.append(group)
    return groups


def ranking_set(
    model: UnimodelForExp1, collection: Collection, triples: Sequence[Triple], batched: Sequence[Sequence[int]] = ()
) -> RankingSet:
    """Return the prompts of a ranking training set.

    ``batched`` are groups of queries as indices into ``triples``; by default each query is alone. A query takes the
    positives of its group as further negatives, except documents that are relevant to it or excluded for it.
    """
    batched = [list(group) for group in batched] or [[index] for index in range(len(triples))]
    pairs: list[tuple[str, str]] = []
    groups: list[list[int]] = []
    labels: list[list[float]] = []
    members = [(triples[index], [triples[other].positive for other in group]) for group in batched for index in group]
    for triple, nearby in members:
        grades = collection.qrels[triple.query_id]
        apart = _relevant(collection, triple.query_id) | collection.left_out(triple.query_id)
        documents = [triple.positive, *triple.negatives, *(d for d in nearby if d not in apart)]
        documents = list(dict.fromkeys(documents))
        groups.append(list(range(len(pairs), len(pairs) + len(documents))))
        labels.append([float(max(0, grades.get(d, 0))) for d in documents])
        pairs += [(collection.queries[triple.query_id], collection.corpus[d].full_text) for d in documents]
    order = iter(range(len(members)))
    return RankingSet(
        TokenizedTexts.of(model, model.pair_ids(pairs)),
        groups,
        [triple.query_id for triple, _ in members],
        labels,
        [[next(order) for _ in group] for group in batched],
    )


def embedding_set(model: UnimodelForExp1, collection: Collection, triples: Sequence[Triple]) -> EmbeddingSet:
    """Return the texts of an embedding training set."""
    rows: dict[str, int] = {}
    groups = [[rows.setdefault(d, len(rows)) for d in (t.positive, *t.negatives)] for t in triples]
    relevant = [
        frozenset(rows[d] for d in _relevant(collection, t.query_id) | collection.left_out(t.query_id) if d in rows)
        for t in triples
    ]
    return EmbeddingSet(
        queries=TokenizedTexts.of(model, model.text_ids([collection.queries[t.query_id] for t in triples], "query")),
        documents=TokenizedTexts.of(model, model.text_ids([collection.corpus[d].full_text for d in rows], "document")),
        groups=groups,
        relevant=relevant,
        query_ids=[triple.query_id for triple in triples],
    )


class TrainingData:
    """The training set of an experiment, for all its arms and seeds: a split and its BM25 candidates.

    ``dev`` are the queries that choose the best checkpoint; None where none does. ``checks`` say which queries train,
    choose or are reported at once.
    """

    def __init__(
        self,
        collection: Collection,
        candidates: Run,
        config: TrainingConfig,
        dev: Collection | None = None,
        checks: Sequence[Check] = (),
    ) -> None:
        self._collection, self._candidates, self._config, self._dev = collection, candidates, config, dev
        self.checks = checks

    @cached_property
    def content_hash(self) -> str:
        """Content hash of the texts and judgments in the examples, and in dev, which decide what a training keeps."""
        examples = self._collection.content_hash
        return hash_parts([examples, self._dev.content_hash]) if self._dev else examples

    @property
    def seen(self) -> SeenQueries:
        """What a model has seen of queries that is trained on these examples."""
        dev = self._dev.judged_queries if self._dev else {}
        return SeenQueries.of(self._collection.judged_queries.values(), dev.values())

    def ranking(self, model: UnimodelForExp1) -> RankingSet:
        """Return the ranking examples in a model's token ids."""
        recipe, batched = self._config.ranking, list[list[int]]()
        triples = self._triples(recipe, recipe.random_negatives)
        if recipe.neighbours:
            batched = neighbourhoods(triples, self._candidates, recipe.group, recipe.negatives_from)
            if not batched:
                raise DataError(
                    f"the training set has {len(triples)} queries, a group takes {recipe.group}; lower "
                    "training.ranking.neighbours, or add data"
                )
        return ranking_set(model, self._collection, triples, batched)

    def embedding(self, model: UnimodelForExp1) -> EmbeddingSet:
        """Return the embedding examples in a model's token ids."""
        return embedding_set(model, self._collection, self._triples(self._config.embedding, random=0))

    def sample(self, experiment: Experiment, tokens: int) -> tuple[Experiment, TrainingData]:
        """Return a few steps like those of an experiment, each of about so many tokens, with two of examples.

        They are what a plan times: nothing is recorded or scored in them.
        """
        training, length = self._config, experiment.model.max_length
        ranking, embedding = training.ranking, training.embedding
        prompts = ranking.group + ranking.hard_negatives + ranking.random_negatives
        groups = min(ranking.queries_per_step // ranking.group, max(1, tokens // (ranking.group * prompts * length)))
        pairs = min(embedding.pairs_per_step, max(2, tokens // ((2 + embedding.hard_negatives) * length)))
        queries = groups * ranking.group
        few = training.model_copy(
            update={
                "steps": 8, "warmup_steps": 0, "warmup_ratio": None, "accumulation_steps": 1, "evaluate_every": None,
                "conflicts": training.conflicts.model_copy(update={"measure": False}),
                "ranking": ranking.model_copy(update={"queries": 2 * queries, "queries_per_step": queries}),
                "embedding": embedding.model_copy(update={"queries": 2 * pairs, "pairs_per_step": pairs}),
            }
        )  # fmt: skip
        usable, other = self._usable(ranking), self._usable(embedding)  # of which each can be trained on
        qrels = {key: self._collection.qrels[key] for key in usable if key in other}
        collection = replace(self._collection, qrels=qrels)
        data = TrainingData(collection, self._candidates, few)
        return experiment.model_copy(update={"training": few}), data

    def refuse_too_few(self, task: ArmTask) -> None:
        """Raise ``DataError`` where the training set is smaller than a step of an arm of this task."""
        for part, (queries, per_step) in self._sizes().items():
            if task == "joint" or task.startswith(part):
                _refuse_few(queries, per_step, RANKING_STREAM if part == "rank" else EMBEDDING_STREAM)

    def in_words(self) -> str:
        """Return how many queries there are to train on, and how often each is seen: a smaller set is repeated."""
        steps = self._config.steps * self._config.accumulation_steps
        parts = []
        for part, (queries, per_step) in self._sizes().items():
            times = steps * per_step / max(1, queries)
            seen = "once" if times == 1 else f"{times:.3g} times"
            parts.append(f"{queries:,} for {'reranking' if part == 'rank' else 'embedding'}, each seen {seen}")
        recipes = (self._config.ranking, self._config.embedding)
        if lost := max(len(_trainable(self._sample(one.queries))) - len(self._usable(one)) for one in recipes):
            parts.append(f"{lost:,} left out, with fewer BM25 candidates than hard_negatives")
        return f"training queries: {'; '.join(parts)}"

    def _sizes(self) -> dict[str, tuple[int, int]]:
        """Return the queries of each task that can be trained on, and how many of them a step takes."""
        ranking, embedding = self._config.ranking, self._config.embedding
        return {
            "rank": (len(self._usable(ranking)), ranking.queries_per_step),
            "emb": (len(self._usable(embedding)), embedding.pairs_per_step),
        }

    def _usable(self, recipe: RankingRecipe | EmbeddingRecipe) -> KeysView[str]:
        sample = self._sample(recipe.queries)
        return _hard_negatives(sample, self._candidates, recipe.hard_negatives, recipe.negatives_from).keys()

    def _triples(self, recipe: RankingRecipe | EmbeddingRecipe, random: int) -> list[Triple]:
        sample = self._sample(recipe.queries)
        return mine_triples(sample, self._candidates, recipe.hard_negatives, random, recipe.negatives_from)

    def _sample(self, queries: int | None) -> Collection:
        return self._collection if queries is None else self._collection.sample_queries(queries)


def load_training_data(experiment: Experiment, reported: Collection | None = None) -> TrainingData:
    """Load the training split of an experiment with its BM25 candidates, and the dev queries if they choose.

    ``reported`` is the whole split that the experiment reports, where it is loaded already.

    Raises:
        DataError: a query trains or chooses that the experiment reports, or trains and chooses.
    """
    config, tier = experiment.training, experiment.evaluation.bundled
    collection, dev = load_collection(config.collection, config.split), None
    if config.evaluate_every:
        try:
            dev = load_collection(config.collection, config.dev.split)
        except (DataError, UsageError) as error:
            raise type(error)(f"training.dev: {error}") from None
    reported = reported or load_collection(tier.collection, tier.split)
    parts = [SplitQueries.of("train", "training.split", config.collection, collection)]
    parts += [SplitQueries.of("dev", "training.dev", config.collection, dev)] if dev else []
    parts.append(SplitQueries.of("test", "evaluation.bundled", tier.collection, reported))
    found = checked_splits(parts, drop_shared=config.drop_shared, drop="training.drop_shared")
    collection = to_train_on(collection, found.left_out[0])
    if dev:
        dev = dev.sample_queries(config.dev.queries)
    sizes = [recipe.queries for recipe in (config.ranking, config.embedding)]
    if None not in sizes:  # search candidates for sampled queries only: the larger sample holds the smaller
        collection = collection.sample_queries(max(filter(None, sizes)))
    depth = max(config.ranking.negatives_from, config.embedding.negatives_from) + _RELEVANT_AMONG_CANDIDATES
    candidates = bm25_run(collection, depth, experiment.evaluation.bm25, cached=True)
    return TrainingData(collection, candidates, config, dev, found.checks)


def batch_order(examples: int, per_step: int, steps: int, seed: int, stream: int) -> list[list[int]]:
    """Return the examples of each step: a permutation for every epoch, cut into steps across the ends of epochs.

    The streams of the two tasks have independent orders. A ``DataError`` says that one step takes more examples than
    there are.
    """
    _refuse_few(examples, per_step, stream)

    def endless() -> Iterator[int]:
        epoch = 0
        while True:
            yield from np.random.default_rng([seed, stream, epoch]).permutation(examples).tolist()
            epoch += 1

    order = endless()
    return [list(islice(order, per_step)) for _ in range(steps)]


def _refuse_few(examples: int, per_step: int, stream: int) -> None:
    if examples < per_step:
        key = "training.ranking.queries_per_step" if stream == RANKING_STREAM else "training.embedding.pairs_per_step"
        raise DataError(
            f"the training set has {examples} examples, one step takes {per_step}; lower {key}, or add data"
        )


def _relevant(collection: Collection, query_id: str) -> set[str]:
    grades = collection.qrels.get(query_id, {})
    return {document_id for document_id, grade in grades.items() if grade > 0 and document_id in collection.corpus}


def _trainable(collection: Collection) -> list[str]:
    """Return the queries that have a relevant document."""
    return [query_id for query_id in collection.queries if _relevant(collection, query_id)]


def _hard_negatives(collection: Collection, candidates: Run, wanted: int, depth: int) -> dict[str, list[str]]:
    """Return the documents that hard negatives are drawn from, of each query with a relevant document and so many.

    Where no query has so many all are returned, and drawing from them says what is missing.
    """
    found = {}
    for query_id in _trainable(collection):
        relevant = _relevant(collection, query_id)
        found[query_id] = [d for d in ranked(candidates.get(query_id, {}))[:depth] if d not in relevant]
    return {query_id: pool for query_id, pool in found.items() if len(pool) >= wanted} or found


def _draw(rng: np.random.Generator, pool: Sequence[str], count: int, query_id: str) -> list[str]:
    if len(pool) < count:
        raise DataError(
            f"query {query_id!r}: {count} negatives wanted, but only {len(pool)} documents to draw from; "
            "lower hard_negatives or random_negatives, or raise negatives_from"
        )
    return [pool[index] for index in rng.choice(len(pool), size=count, replace=False)]


def _some(rng: np.random.Generator, pool: Sequence[str], count: int) -> list[str]:
    """Return at most ``count`` different members, without copying a corpus of millions for every query."""
    return [pool[index] for index in rng.choice(len(pool), size=min(count, len(pool)), replace=False)]
