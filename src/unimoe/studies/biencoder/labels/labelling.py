"""Pairs of sampled queries and what the first stage found for them, graded shard by shard into pseudo-judgments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree

from unimoe.data.collection import Collection
from unimoe.data.sources.beir_layout import write_parts
from unimoe.errors import DataError, InputError, UsageError
from unimoe.io import atomic_dir, hash_json, hash_parts, read_json, write_json
from unimoe.models.embedder import Advance
from unimoe.retrieval.bm25 import cached_bm25_run
from unimoe.studies.biencoder.config import LabelConfig
from unimoe.studies.biencoder.labels.graders import Grader
from unimoe.trec import Qrels, Run

MANIFEST = "labels.json"


@dataclass(frozen=True)
class Agreement:
    """Pseudo-positives against real judgments, over the labelled queries that have any.

    Attributes:
        queries: how many.
        pseudo: pseudo-positives.
        real: real positives, found by the first stage or not.
        found: real positives among the candidates: no grader could confirm more.
        both: pseudo-positives that are real ones. A pair without a judgment counts as not relevant.
    """

    queries: int
    pseudo: int
    real: int
    found: int
    both: int

    @property
    def precision(self) -> float:
        """Of the pseudo-positives; 0 without any."""
        return self.both / self.pseudo if self.pseudo else 0.0

    @property
    def recall(self) -> float:
        """Of the real positives; 0 without any."""
        return self.both / self.real if self.real else 0.0


def candidates_of(collection: Collection, queries: Mapping[str, str], config: LabelConfig) -> Run:
    """What the first stage finds for the queries, to the depth of the config.

    Raises:
        DataError: it finds nothing at all.
    """
    run = cached_bm25_run(replace(collection, queries=dict(queries)), config.depth, config.bm25)
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
    advance: Advance | None = None,
) -> Run:
    """P(relevant) of every candidate, in shards of queries that a killed run finds again.

    Args:
        grader: what scores pairs.
        collection: holds the documents.
        queries: id to text.
        run: the candidates of each.
        folder: of the shards.
        shard_queries: queries of one.
        advance: called with the number of pairs done.

    Raises:
        DataError: a pair cannot be scored; names it.
    """
    order, found = sorted(queries), Run()
    for begin in range(0, len(order), shard_queries):
        shard = order[begin : begin + shard_queries]
        pairs = [(query_id, document_id) for query_id in shard for document_id in run[query_id]]
        texts = [(queries[query_id], collection.corpus[document_id].full_text) for query_id, document_id in pairs]
        name = hash_parts([grader.identity, *(part for pair in (*pairs, *texts) for part in pair)])
        path = folder / f"{name}.json"
        scores = _kept(path, shard, run)
        if scores is None:
            scores = _graded(grader, pairs, texts, shard)
            write_json(path, scores, indent=None)
        found |= scores
        if advance:
            advance(len(pairs))
    return found


def grades_of(scores: Run, thresholds: Sequence[float]) -> Qrels:
    """How many thresholds each pair reaches; pairs that reach none are judged 0.

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
    """Pseudo-positives against real judgments; null where no labelled query has any."""
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


def is_written(folder: Path, fingerprint: str) -> bool:
    """Whether these very labels are in a folder.

    Raises:
        UsageError: the folder holds something else.
    """
    if not folder.exists() or not any(folder.iterdir()):
        return False
    path = folder / MANIFEST
    if not path.is_file() or read_json(path)["fingerprint"] != fingerprint:
        raise UsageError(f"{folder}: holds other labels or files; choose another --output-dir, or remove it first")
    return True


def labels_fingerprint(config: LabelConfig, collection: Collection, grader: Grader) -> str:
    """Content hash of all that the labels depend on."""
    return hash_json([config.model_dump(exclude={"shard_queries"}), collection.content_hash, grader.identity])


def write_labels(
    folder: Path,
    collection: Collection,
    queries: Mapping[str, str],
    qrels: Qrels,
    test: Collection | None,
    fingerprint: str,
) -> None:
    """Write a new collection in BEIR layout: the corpus, the labels as split ``train``, real judgments as ``test``.

    Raises:
        DataError: a labelled query is a query of the test split.
    """
    splits = {"train": {key: {d: g for d, g in grades.items() if g > 0} for key, grades in qrels.items()}}
    texts = dict(queries)
    if test is not None:
        if shared := splits["train"].keys() & test.qrels.keys():
            raise DataError(f"query {min(shared)!r} is labelled and in test_split too; label another split")
        texts |= {key: test.queries[key] for key in test.qrels}
        splits["test"] = test.qrels
    with atomic_dir(folder) as temporary:
        write_parts(temporary, collection.corpus, texts, splits)
        write_json(temporary / MANIFEST, {"fingerprint": fingerprint})


def clear_shards(folder: Path) -> None:
    """Remove the shards: what they held stands in the labels now."""
    rmtree(folder, ignore_errors=True)


def _kept(path: Path, shard: Sequence[str], run: Run) -> Run | None:
    """The scores of a shard that is done; null where it is not, or its file is damaged."""
    try:
        kept: Run = read_json(path)
    except DataError:
        return None
    whole = isinstance(kept, dict) and all(kept.get(key, {}).keys() == run[key].keys() for key in shard)
    return kept if whole else None


def _graded(
    grader: Grader, pairs: Sequence[tuple[str, str]], texts: Sequence[tuple[str, str]], shard: Sequence[str]
) -> Run:
    try:
        values = grader.probabilities(texts).tolist() if texts else []
    except InputError as error:
        query_id, document_id = pairs[error.index]
        raise DataError(f"query {query_id!r}, document {document_id!r}: {error.reason}") from None
    scores: Run = {query_id: {} for query_id in shard}
    for (query_id, document_id), value in zip(pairs, values, strict=True):
        scores[query_id][document_id] = value
    return scores
