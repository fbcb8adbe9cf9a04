"""Training data without judgments: queries are sampled, and a reranker grades their candidates.

The grades are written as judgments of a new collection.
"""

from __future__ import annotations

import heapq
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree

import torch

from unimoe.core.console import Steps, stderr, stdout
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import Strict, atomic_dir, hash_json, hash_parts, read_json, write_json
from unimoe.core.trec import Qrels, Run
from unimoe.data.catalog import load_collection
from unimoe.data.collection import COLLECTION_FILE, Collection, sidecar_path
from unimoe.data.languages import ENGLISH
from unimoe.data.sources.beir_layout import write_parts
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.system import System, checkpoint_loader, named_system, trained_system
from unimoe.models.checkpoint import read_checkpoint
from unimoe.models.embedder import Advance
from unimoe.models.kinds import CROSS_ENCODER
from unimoe.models.loader import weights_hash
from unimoe.models.named import OPTION, ModelSettings, default_experiment, is_checkpoint
from unimoe.models.reranker import Reranker, ShardStore, rerank_run
from unimoe.retrieval.bm25 import bm25_run
from unimoe.studies.biencoder.config import LabelConfig, SamplingConfig

LABELS_FILE = "labels.json"
"""The manifest of a collection whose labels ``label-pairs`` has made: a fingerprint of what they depend on."""

_AT_ONCE = 32  # shards under way together on a cluster


def label_pairs(config: LabelConfig, folder: Path, device: torch.device, engine: Engine | None = None) -> None:
    """Sample queries, find and grade candidates, write a collection, and print its size and agreement."""
    engine = engine or Engine()
    collection = load_collection(config.collection, config.split)
    test = load_collection(config.collection, config.test_split) if config.test_split else None
    queries, counts = sample_queries(collection.queries, config.sampling)
    passed, reasons = counts.pop(""), "".join(f"; {reason}: {count:,}" for reason, count in sorted(counts.items()))
    stderr.print(f"{len(queries):,} of {passed:,} queries that pass{reasons}", soft_wrap=True)
    if test and (shared := queries.keys() & test.qrels.keys()):
        raise DataError(f"query {min(shared)!r} is to be labelled and in test_split too; label another split")
    sampled, shards = replace(collection, queries=queries), folder.with_name(f".{folder.name}.shards")
    grader = load_grader(config, device, engine)
    identity = grader_identity(grader)
    fingerprint = hash_json([config.model_dump(exclude={"shard_queries"}), collection.content_hash, identity])
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
            reranker = engine.model(grader, f"label by {grader.name}", identity).reranker()
            store, parts, scores = ShardStore(shards, identity), sorted(queries), Run()

            def grade(begin: int) -> None:
                part = {key: queries[key] for key in parts[begin : begin + config.shard_queries]}
                scores.update(
                    probabilities(reranker, grader.name, replace(sampled, queries=part), run, store, step.advance)
                )

            engine.run((partial(grade, at) for at in range(0, len(parts), config.shard_queries)), _AT_ONCE)
            qrels = grades_of(scores, config.thresholds)
            _write_labels(folder, sampled, qrels, test, fingerprint)
            rmtree(shards, ignore_errors=True)
    _print_labels(qrels, len(config.thresholds), collection.qrels)
    stdout.print(f"{'collection':<16}path:{folder}", soft_wrap=True)


def sample_queries(queries: Mapping[str, str], config: SamplingConfig) -> tuple[dict[str, str], Counter[str]]:
    """Sample among the queries that pass the rules; count those that do not by reason, those that do under ``""``.

    A query's place depends on its id and the seed alone: a larger sample adds queries and removes none.
    """
    counts: Counter[str] = Counter()
    seen: set[str] = set()
    passed = []
    for query_id in sorted(queries):
        plain = " ".join(queries[query_id].casefold().split())
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


def load_grader(config: LabelConfig, device: torch.device, engine: Engine) -> System:
    """Return the reranker that a config names; its model is loaded when it is needed."""
    name = config.reranker
    if is_checkpoint(name):
        checkpoint = read_checkpoint(Path(name))
        experiment = checkpoint.experiment
        system = trained_system(experiment, checkpoint_loader(experiment, checkpoint, device), Path(name))
    else:
        experiment = default_experiment(name)
        model = experiment.model.model_copy(update={"max_length": config.max_length})
        model.model_fields_set.discard("max_length")  # that of pairs: an encoder, which grades none, has its own
        experiment = experiment.model_copy(update={"model": model, "prompt": config.prompt})
        # Cross-encoders are small, and their grades stay the same on every machine.
        dtype = torch.float32 if name.startswith(f"{CROSS_ENCODER}:") else engine.dtype(device, model.dtype)
        system = named_system(name, ModelSettings(experiment, device, dtype))
    if "reranking" not in system.tasks:
        raise UsageError(f"{OPTION} {name}: embeds and does not rerank; name a reranker")
    return system


def grader_identity(system: System) -> str:
    """Return the content hash of everything that the grades depend on besides the texts.

    Where nothing tells the model from every other it is another one each time, so that no grade is used again.
    """
    checkpoint = system.checkpoint
    adapter = weights_hash(checkpoint, checkpoint.experiment.evaluation) if checkpoint else None
    model = system.model
    assert model is not None  # noqa: S101 - for the type checker
    known = [model.identity, model.prompt, f"torch.{model.dtype}", adapter]
    return hash_json(known if model.reusable else [*known, secrets.token_hex()])


def probabilities(
    reranker: Reranker, name: str, collection: Collection, run: Run, store: ShardStore, advance: Advance | None = None
) -> Run:
    """Return P(relevant) of every candidate; a killed run does not repeat the shards that the store has.

    The scores of a reranker of unimoe's families are logits; others return probabilities.
    """
    found, _ = rerank_run(reranker, collection, run, store=store, advance=advance)
    if reranker.logits:
        return {
            query_id: dict(zip(scores, torch.tensor([*scores.values()]).float().sigmoid().tolist(), strict=True))
            for query_id, scores in found.items()
        }
    for query_id, scores in found.items():
        for document_id, score in scores.items():
            if not 0 <= score <= 1:
                raise DataError(
                    f"query {query_id!r}, document {document_id!r}: {name} returned {score:g}; "
                    "return P(relevant), from 0 to 1"
                )
    return found


def grades_of(scores: Run, thresholds: Sequence[float]) -> Qrels:
    """Grade each pair by the number of thresholds that it reaches; refuse that none reaches the lowest."""
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


def _write_labels(folder: Path, sampled: Collection, qrels: Qrels, test: Collection | None, fingerprint: str) -> None:
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
        write_json(temporary / LABELS_FILE, {"fingerprint": fingerprint})


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
