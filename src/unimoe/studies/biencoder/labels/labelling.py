"""Samples queries, grades their candidates shard by shard, and writes the grades as judgments of a new collection."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shutil import rmtree

import torch

from unimoe.core.console import Steps, stderr, stdout
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import Strict, atomic_dir, hash_json, hash_parts, read_json, write_json
from unimoe.core.trec import Qrels, Run
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection
from unimoe.data.sources.beir_layout import write_parts
from unimoe.evaluation.engines import Engine, LocalEngine
from unimoe.evaluation.reranking.shards import ShardStore
from unimoe.models.embedder import Advance
from unimoe.retrieval.bm25 import bm25_run
from unimoe.studies.biencoder.config import LabelConfig, SamplingConfig
from unimoe.studies.biencoder.labels.graders import Grader, load_grader

LABELS_FILE = "labels.json"
"""The manifest of a collection whose labels ``label-pairs`` has made: a fingerprint of what they depend on."""

_AT_ONCE = 32
"""Shards under way together on a cluster."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of pseudo-positives with real judgments, over the labelled queries that have real judgments."""

    queries: int
    pseudo: int  # pseudo-positives
    real: int  # real positives, among the candidates or not
    found: int  # real positives among the candidates, the most that a grader can confirm
    both: int  # pseudo-positives that are real positives; a pair without a judgment counts as not relevant

    @property
    def precision(self) -> float:
        """Share of the pseudo-positives that are real; 0 without any."""
        return self.both / self.pseudo if self.pseudo else 0.0

    @property
    def recall(self) -> float:
        """Share of the real positives that are pseudo-positives; 0 without any."""
        return self.both / self.real if self.real else 0.0


def label_pairs(config: LabelConfig, folder: Path, device: torch.device, engine: Engine | None = None) -> None:
    """Sample queries, find and grade candidates, write a collection, and print its size and agreement.

    Raises:
        UnimoeError: the collection or the reranker cannot be loaded, or no label is left to write.
    """
    engine = engine or LocalEngine()
    collection = load_collection(config.collection, config.split)
    test = load_collection(config.collection, config.test_split) if config.test_split else None
    sampled = sample_queries(collection.queries, config.sampling)
    reasons = "".join(f"; {reason}: {count:,}" for reason, count in sorted(sampled.rejected.items()))
    stderr.print(f"{len(sampled.queries):,} of {sampled.passed:,} queries that pass{reasons}", soft_wrap=True)
    if test and (shared := sampled.queries.keys() & test.qrels.keys()):
        raise DataError(f"query {min(shared)!r} is to be labelled and in test_split too; label another split")
    grader, shards = load_grader(config, device, engine), folder.with_name(f".{folder.name}.shards")
    fingerprint = _labels_fingerprint(config, collection, grader)
    done = _is_written(folder, fingerprint)
    steps = Steps(2)
    with steps.step(f"{config.collection}: BM25, {config.depth:,} deep", None) as step:
        run = candidates_of(collection, sampled.queries, config)
        pairs = sum(map(len, run.values()))
        step.outcome = f"{pairs:,} pairs"
    with steps.step(f"{config.reranker}: pairs graded", pairs) as step:
        if done:
            kept = load_collection(f"path:{folder}", "train").qrels
            qrels = {key: dict.fromkeys(found, 0) | kept.get(key, {}) for key, found in run.items() if found}
            step.outcome = "already done"
        else:
            scores = probabilities(
                grader, collection, sampled.queries, run, shards, config.shard_queries, engine, step.advance
            )
            qrels = grades_of(scores, config.thresholds)
            _write_labels(folder, collection, sampled.queries, qrels, test, fingerprint)
            rmtree(shards, ignore_errors=True)
    _print_labels(qrels, len(config.thresholds), agreement(qrels, collection.qrels), folder)


@dataclass(frozen=True)
class SampledQueries:
    """A sample of the queries that passed the rules."""

    queries: dict[str, str]  # id to text, by ascending id
    rejected: dict[str, int]  # number of queries that did not pass, by reason
    passed: int  # number of queries that passed, sampled or not


def sample_queries(queries: Mapping[str, str], config: SamplingConfig) -> SampledQueries:
    """Sample among the queries that pass the rules.

    A query's place depends on its id and the seed alone: a larger sample adds queries and removes none. A ``DataError``
    says that none passes.
    """
    rejected: Counter[str] = Counter()
    seen: set[str] = set()
    passed = []
    for query_id in sorted(queries):
        text = queries[query_id]
        plain = " ".join(text.casefold().split())
        reason = _flaw(text, config) or ("a duplicate" if plain in seen else None)
        if reason is None:
            seen.add(plain)
            passed.append(query_id)
        else:
            rejected[reason] += 1
    if not passed:
        found = ", ".join(f"{reason} {count}" for reason, count in rejected.most_common())
        raise DataError(f"none of {len(queries)} queries passes ({found or 'there are none'}); loosen sampling")
    wanted = len(passed) if config.queries is None else config.queries
    chosen = heapq.nsmallest(wanted, passed, key=lambda key: hash_parts(["pseudo labels", str(config.seed), key]))
    return SampledQueries({key: queries[key] for key in sorted(chosen)}, dict(rejected), len(passed))


def _flaw(text: str, config: SamplingConfig) -> str | None:
    """Return the rule that a query breaks; None where it passes."""
    words = text.split()
    if len(words) < config.min_words:
        return "too few words"
    if len(words) > config.max_words or len(text) > config.characters:
        return "too long"
    visible = "".join(words)
    if any(not character.isprintable() for character in visible) or "\ufffd" in visible:
        return "characters that cannot be printed"
    if sum(map(str.isalnum, visible)) < config.letters * len(visible):
        return "too few letters"
    return None


def candidates_of(collection: Collection, queries: Mapping[str, str], config: LabelConfig) -> Run:
    """Return the candidates that the first stage finds for the queries, to the depth of the config.

    Raises:
        DataError: it finds nothing at all.
    """
    run = bm25_run(replace(collection, queries=dict(queries)), config.depth, config.bm25, cached=True)
    if not any(run.values()):
        raise DataError(f"{collection.name}: the first stage finds no document for any of {len(queries)} queries")
    return run


def probabilities(
    grader: Grader,
    collection: Collection,
    queries: Mapping[str, str],
    run: Run,
    folder: Path,
    shard_queries: int,
    engine: Engine,
    advance: Advance | None = None,
) -> Run:
    """Return P(relevant) of every candidate, so many queries at a time; a killed run does not repeat finished shards.

    ``advance`` is called with the number of pairs done.

    Raises:
        DataError: a pair cannot be scored; names it.
    """
    order, found, store = sorted(queries), dict[int, Run](), ShardStore(folder, grader.identity)

    def grade(begin: int) -> None:
        asked = {query_id: queries[query_id] for query_id in order[begin : begin + shard_queries]}
        found[begin] = grader.probabilities(replace(collection, queries=asked), run, store)
        if advance:
            advance(sum(len(run[query_id]) for query_id in asked))

    engine.run((partial(grade, begin) for begin in range(0, len(order), shard_queries)), _AT_ONCE)
    return {query_id: scores for _, part in sorted(found.items()) for query_id, scores in part.items()}


def grades_of(scores: Run, thresholds: Sequence[float]) -> Qrels:
    """Grade each pair by the number of thresholds that it reaches.

    Raises:
        DataError: no pair reaches the lowest threshold.
    """
    qrels = {
        query_id: {key: sum(value >= threshold for threshold in thresholds) for key, value in found.items()}
        for query_id, found in scores.items()
        if found
    }
    if not any(grade for grades in qrels.values() for grade in grades.values()):
        best = max((value for found in scores.values() for value in found.values()), default=0.0)
        raise DataError(
            f"no pair reaches the threshold {thresholds[0]:g}, the highest P(yes) is {best:.3f}; lower thresholds, or "
            "take another reranker"
        )
    return qrels


def agreement(pseudo: Qrels, real: Qrels) -> Agreement | None:
    """Compare pseudo-positives with real judgments; None where no labelled query has any."""
    shared = pseudo.keys() & real.keys()
    if not shared:
        return None
    counts = [0, 0, 0, 0]
    for query_id in shared:
        chosen = {key for key, grade in pseudo[query_id].items() if grade > 0}
        relevant = {key for key, grade in real[query_id].items() if grade > 0}
        for place, part in enumerate((chosen, relevant, relevant & pseudo[query_id].keys(), chosen & relevant)):
            counts[place] += len(part)
    return Agreement(len(shared), *counts)


class _LabelsMade(Strict):
    fingerprint: str


def _is_written(folder: Path, fingerprint: str) -> bool:
    """Return whether a folder already holds these labels; refuse one that holds other files."""
    if not folder.exists() or not any(folder.iterdir()):
        return False
    path = folder / LABELS_FILE
    if not path.is_file() or read_json(path, _LabelsMade).fingerprint != fingerprint:
        raise UsageError(f"{folder}: holds other labels or files; choose another --output-dir, or remove it first")
    return True


def _labels_fingerprint(config: LabelConfig, collection: Collection, grader: Grader) -> str:
    return hash_json([config.model_dump(exclude={"shard_queries"}), collection.content_hash, grader.identity])


def _write_labels(
    folder: Path,
    collection: Collection,
    queries: Mapping[str, str],
    qrels: Qrels,
    test: Collection | None,
    fingerprint: str,
) -> None:
    """Write a new collection in BEIR layout: the corpus, the labels as split ``train``, real judgments as ``test``."""
    splits = {"train": {key: {d: g for d, g in grades.items() if g > 0} for key, grades in qrels.items()}}
    texts = dict(queries)
    if test is not None:
        texts |= {key: test.queries[key] for key in test.qrels}
        splits["test"] = test.qrels
    with atomic_dir(folder) as temporary:
        write_parts(temporary, collection.corpus, texts, splits)
        write_json(temporary / LABELS_FILE, {"fingerprint": fingerprint})


def _print_labels(qrels: Qrels, highest: int, found: Agreement | None, folder: Path) -> None:
    grades = [grade for judged in qrels.values() for grade in judged.values()]
    for grade in range(highest, 0, -1):
        stdout.print(f"{f'grade {grade}':<16}{grades.count(grade):,} pairs")
    queries = sum(any(judged.values()) for judged in qrels.values())
    stdout.print(f"{'queries':<16}{queries:,} with a pseudo-positive")
    if found is None:
        stdout.print("agreement       no labelled query has real judgments")
    else:
        stdout.print(
            f"{'precision':<16}{found.precision:.4f} ({found.both:,} of {found.pseudo:,} pseudo-positives are judged "
            f"relevant, {found.queries:,} queries; what is not judged counts as not relevant)\n"
            f"{'recall':<16}{found.recall:.4f} (of {found.real:,} judged relevant, {found.found:,} of which are "
            "candidates)",
            soft_wrap=True,
        )
    stdout.print(f"{'collection':<16}path:{folder}", soft_wrap=True)
