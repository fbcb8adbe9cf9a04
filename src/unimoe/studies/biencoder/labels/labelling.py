"""Grades the candidates of sampled queries, shard by shard, and writes them as the judgments of a new collection."""

from __future__ import annotations

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
from unimoe.models.embedder import Advance
from unimoe.retrieval.bm25 import bm25_run
from unimoe.studies.biencoder.config import LabelConfig
from unimoe.studies.biencoder.labels.graders import Grader, load_grader
from unimoe.studies.biencoder.labels.queries import sample_queries

LABELS_FILE = "labels.json"
"""The manifest of a collection whose labels ``label-pairs`` has made: a fingerprint of what they depend on."""

_AT_ONCE = 32
"""Shards under way together on a cluster."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of pseudo-positives with real judgments, over the labelled queries that have real judgments.

    Attributes:
        queries: their number.
        pseudo: pseudo-positives.
        real: real positives, among the candidates or not.
        found: real positives among the candidates, the most that a grader can confirm.
        both: pseudo-positives that are real positives. A pair without a judgment counts as not relevant.
    """

    queries: int
    pseudo: int
    real: int
    found: int
    both: int

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
    """Return P(relevant) of every candidate, computed in shards of queries that a killed run does not repeat.

    Args:
        grader: scores the pairs.
        collection: holds the documents.
        queries: id to text.
        run: the candidates of each query.
        folder: of the shards.
        shard_queries: queries of one shard.
        engine: grades the shards.
        advance: called with the number of pairs done.

    Raises:
        DataError: a pair cannot be scored; names it.
    """
    order, found = sorted(queries), dict[int, Run]()

    def grade(begin: int) -> None:
        shard = order[begin : begin + shard_queries]
        pairs = [(query_id, document_id) for query_id in shard for document_id in run[query_id]]
        texts = [(queries[query_id], collection.corpus[document_id].full_text) for query_id, document_id in pairs]
        name = hash_parts([grader.identity, *(part for pair in (*pairs, *texts) for part in pair)])
        path = folder / f"{name}.json"
        scores = _kept(path, shard, run)
        if scores is None:
            asked = replace(collection, queries={query_id: queries[query_id] for query_id in shard})
            scores = grader.probabilities(asked, run)
            write_json(path, {"scores": scores}, indent=None)
        found[begin] = scores
        if advance:
            advance(len(pairs))

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


class _ScoredShard(Strict):
    scores: Run


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


def _kept(path: Path, shard: Sequence[str], run: Run) -> Run | None:
    """Read the scores of a finished shard; None where it is missing or its file is damaged."""
    try:
        kept = read_json(path, _ScoredShard).scores
    except DataError:
        return None
    whole = all(kept.get(key, {}).keys() == run[key].keys() for key in shard)
    return kept if whole else None


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
