"""Training data without judgments: queries are sampled, and a reranker grades their candidates.

The grades are written as judgments of a new collection.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from unimoe.config.labels import SamplingConfig, TrainingLabelConfig
from unimoe.core.console import Steps, stderr, stdout
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import Strict, atomic_dir, hash_json, hash_parts, read_json, write_json
from unimoe.core.trec import Qrels
from unimoe.data.catalog import load_collection
from unimoe.data.collection import COLLECTION_FILE, Collection, sidecar_path
from unimoe.data.languages import ENGLISH
from unimoe.data.sources.beir_layout import write_parts
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.labels import kept_shards, load_grader
from unimoe.results.topics import normal
from unimoe.retrieval.bm25 import bm25_run

LABELS_FILE = "labels.json"
"""The manifest of a collection with labels: who made them, and a fingerprint of what they depend on."""


def label_sample(config: TrainingLabelConfig, folder: Path, device: torch.device, engine: Engine) -> None:
    """Sample queries, find and grade candidates, write a collection, and print its size and agreement."""
    collection = load_collection(config.collection, config.split)
    test = load_collection(config.collection, config.test_split) if config.test_split else None
    queries, counts = sample_queries(_not_in(test, collection.queries), config.sampling)
    passed, reasons = counts.pop(""), "".join(f"; {reason}: {count:,}" for reason, count in sorted(counts.items()))
    stderr.print(f"{len(queries):,} of {passed:,} queries that pass{reasons}", soft_wrap=True)
    if test and (shared := queries.keys() & test.qrels.keys()):
        raise DataError(f"query {min(shared)!r} is to be labelled and in test_split too; label another split")
    sampled = replace(collection, queries=queries)
    grader = load_grader(config, device, engine)
    settings = config.model_dump(exclude={"shard_queries", "served", "listwise"})  # the last two: in the identity
    fingerprint = hash_json([settings, collection.content_hash, grader.identity])
    done = _is_written(folder, fingerprint)
    steps = Steps(2)
    with steps.step(f"{config.collection}: BM25, {config.depth:,} deep", None) as step:
        run = bm25_run(sampled, config.depth, config.bm25, cached=True)
        if not any(run.values()):
            raise DataError(f"{collection.name}: the first stage finds no document for any of {len(queries)} queries")
        pairs = sum(map(len, run.values()))
        step.outcome = f"{pairs:,} pairs"
    with steps.step(f"{config.reranker}: pairs graded", pairs) as step:
        if done:
            kept = load_collection(f"path:{folder}", "train").qrels
            qrels = {key: dict.fromkeys(found, 0) | kept.get(key, {}) for key, found in run.items() if found}
            step.outcome = "already done"
        else:
            with kept_shards(folder) as shards:
                graded = grader.grade(sampled, run, shards, step.advance)
                qrels = graded.qrels
                if not any(grade for grades in qrels.values() for grade in grades.values()):
                    raise DataError(f"{config.reranker}: grades all pairs 0; take another model, or more queries")
                own, usage = grader.model, dict(graded.usage)
                known: dict[str, Any] = {"model": own.identity, "prompt": own.prompt, "said": own.said, "usage": usage}
                made = _LabelsMade(fingerprint=fingerprint, **known)
                _write_labels(folder, sampled, qrels, test, made)
    if grader.model.reads_order:
        stdout.print(f"{'lists':<16}{len(qrels):,} of {sum(map(len, qrels.values())):,} documents, by rank")
    else:
        _print_labels(qrels, grader.highest, collection.qrels)
    grader.say_caveats(queries)
    stdout.print(f"{'collection':<16}path:{folder}", soft_wrap=True)


def _not_in(test: Collection | None, queries: Mapping[str, str]) -> dict[str, str]:
    """Return the queries without those whose text a query of another id in ``test`` has; say on stderr how many."""
    theirs = {normal(text) for key, text in test.judged_queries.items() if key not in queries} if test else set()
    kept = {key: text for key, text in queries.items() if normal(text) not in theirs}
    if lacking := len(queries) - len(kept):
        stderr.print(f"{lacking:,} queries left out, whose texts are in test_split under other ids", soft_wrap=True)
    return kept


def sample_queries(queries: Mapping[str, str], config: SamplingConfig) -> tuple[dict[str, str], Counter[str]]:
    """Sample among the queries that pass the rules; count those that do not by reason, those that do under ``""``.

    A query's place depends on its id and the seed alone: a larger sample adds queries and removes none.
    """
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    passed = []
    for query_id in sorted(queries):
        plain = normal(queries[query_id])
        reason = _flaw(queries[query_id], config) or ("a duplicate" if plain in seen else "")
        counts[reason] += 1
        if not reason:
            seen.add(plain)
            passed.append(query_id)
    if not passed:
        found = ", ".join(f"{reason} {count}" for reason, count in counts.most_common())
        raise DataError(f"none of {len(queries)} queries passes ({found or 'there are none'}); loosen sampling")
    wanted = len(passed) if config.queries is None else config.queries
    chosen = heapq.nsmallest(wanted, passed, key=lambda key: hash_parts(["pseudo labels", str(config.seed), key]))
    return {key: queries[key] for key in sorted(chosen)}, counts


def _flaw(text: str, config: SamplingConfig) -> str:
    """Return the rule that a query breaks; empty where it passes."""
    words = text.split()
    if len(words) < config.min_words:
        return "too few words"
    if len(words) > config.max_words or len(text) > config.characters:
        return "too long"
    visible = "".join(words)
    if any(not character.isprintable() for character in visible) or "\ufffd" in visible:
        return "characters that cannot be printed"
    return "too few letters" if sum(map(str.isalnum, visible)) < config.letters * len(visible) else ""


class _LabelsMade(Strict):
    """The teacher's identity, how it reads, and what it cost; the fingerprint is of all that labels depend on."""

    fingerprint: str
    model: str = ""
    prompt: str | None = None
    said: str = ""
    usage: dict[str, float] = Field(default_factory=dict)


def _is_written(folder: Path, fingerprint: str) -> bool:
    """Return whether a folder already holds these labels; refuse one that holds other files."""
    if not folder.exists() or not any(folder.iterdir()):
        return False
    path = folder / LABELS_FILE
    if not path.is_file() or read_json(path, _LabelsMade).fingerprint != fingerprint:
        raise UsageError(f"{folder}: holds other labels or files; choose another --output-dir, or remove it first")
    return True


def _write_labels(folder: Path, sampled: Collection, qrels: Qrels, test: Collection | None, made: _LabelsMade) -> None:
    """Write a new collection in BEIR layout: the corpus, the labels as split ``train``, real judgments as ``test``."""
    splits = {"train": {key: {d: g for d, g in grades.items() if g > 0} for key, grades in qrels.items()}}
    texts, excluded = dict(sampled.queries), dict(sampled.excluded)
    if test is not None:
        texts |= {key: test.queries[key] for key in test.qrels}
        excluded |= test.excluded
        splits["test"] = test.qrels
    with atomic_dir(folder) as temporary:
        write_parts(temporary, sampled.corpus, texts, splits, excluded=excluded)
        if sampled.language != ENGLISH:
            write_json(temporary / COLLECTION_FILE, {"language": sampled.language})
        if test is not None and test.level_stated:
            write_json(sidecar_path(temporary / "qrels" / "test.tsv"), {"relevance_level": test.relevance_level})
        write_json(temporary / LABELS_FILE, made.model_dump())


def _print_labels(qrels: Qrels, highest: int, real: Qrels) -> None:
    """Print how many labels there are, and how they agree with real judgments where labelled queries have any."""
    grades = [grade for judged in qrels.values() for grade in judged.values()]
    for grade in range(highest, 0, -1):
        stdout.print(f"{f'grade {grade}':<16}{grades.count(grade):,} pairs")
    stdout.print(f"{'queries':<16}{sum(any(judged.values()) for judged in qrels.values()):,} with a pseudo-positive")
    shared = qrels.keys() & real.keys()
    if not shared:
        stdout.print("agreement       no labelled query has real judgments")
        return
    pseudo = {(query, key) for query in shared for key, grade in qrels[query].items() if grade > 0}
    relevant = {(query, key) for query in shared for key, grade in real[query].items() if grade > 0}
    found, both = sum(key in qrels[query] for query, key in relevant), len(pseudo & relevant)
    stdout.print(
        f"{'precision':<16}{both / max(1, len(pseudo)):.4f} ({both:,} of {len(pseudo):,} pseudo-positives are judged "
        f"relevant, {len(shared):,} queries; what is not judged counts as not relevant)\n"
        f"{'recall':<16}{both / max(1, len(relevant)):.4f} (of {len(relevant):,} judged relevant, {found:,} of which "
        "are candidates)",
        soft_wrap=True,
    )
