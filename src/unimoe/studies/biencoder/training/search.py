"""Dense retrieval with the model in training: its score on dev, and the hard negatives that it or BM25 finds."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree

from unimoe.core.errors import DataError
from unimoe.core.io import Strict, read_json, write_json
from unimoe.core.trec import Run, ranked
from unimoe.data.collection import Collection
from unimoe.metrics import parse_metric, score_run
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.dense import search
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.training.pairs import TrainingPairs
from unimoe.studies.biencoder.training.sources import Source

_DEPTH = 100


def dev_score(source: Source, dev: Collection, metric: str) -> float:
    """Return the mean of a metric on dev, with the search and the measures of evaluation."""
    run = found_by(source, dev.queries, dev, max(_DEPTH, parse_metric(metric).cutoff or 0))
    return score_run(dev.qrels, run, [metric], dev.relevance_level).aggregate[metric]


def found_by(source: Source, queries: dict[str, str], collection: Collection, depth: int) -> Run:
    """Return the ``depth`` nearest documents of a collection for each query."""
    ids = sorted(collection.corpus)
    documents = {key: collection.corpus[key].full_text for key in ids}
    return search(
        source.all_vectors("query", queries),
        list(queries),
        source.all_vectors("document", documents),
        ids,
        depth,
    )


class _Mined(Strict):
    fingerprint: str
    negatives: dict[str, list[str]]


class HardNegatives:
    """Finds the documents that hard negatives are drawn from: the best of BM25 or the model that are not relevant.

    They are kept in files, so that a resumed training draws from the same documents; files of another training, by its
    fingerprint, are replaced.
    """

    def __init__(
        self, config: BiEncoderConfig, train: Collection, pairs: TrainingPairs, folder: Path, fingerprint: str
    ) -> None:
        self._config, self._train, self._pairs = config, train, pairs
        self._folder, self._fingerprint = folder, fingerprint

    def of_epoch(self, epoch: int, source: Source, begun: bool) -> dict[str, list[str]] | None:
        """Return the documents that an epoch draws from, best first, by query id; None without hard negatives.

        The source gives vectors of the model at the beginning of the epoch. A ``DataError`` says that the file of an
        epoch is missing of which steps have been taken already.
        """
        config = self._config.negatives
        if config.per_query == 0:
            return None
        generation = epoch // config.refresh_every if config.refresh_every else 0
        path = self._folder / f"{generation}.json"
        if path.exists() and (kept := read_json(path, _Mined)).fingerprint == self._fingerprint:
            return kept.negatives
        if begun or epoch != generation * (config.refresh_every or 0):
            raise DataError(f"{path}: missing; delete {self._folder.parent} to start over")
        negatives = self._search(source if generation or config.source == "model" else None)
        write_json(path, {"fingerprint": self._fingerprint, "negatives": negatives}, indent=None)
        return negatives

    def clear(self) -> None:
        """Remove the files: the training is finished."""
        rmtree(self._folder, ignore_errors=True)

    def _search(self, source: Source | None) -> dict[str, list[str]]:
        wanted, pairs = self._config.negatives, self._pairs
        most = wanted.depth + max(map(len, pairs.relevant))  # so that enough are left without the relevant ones
        texts = dict(zip(pairs.query_ids, pairs.texts, strict=True))
        if source is None:
            run = bm25_run(self._train, most, wanted.bm25, cached=True)
        else:
            run = found_by(source, texts, self._train, most)
        relevant = dict(zip(pairs.query_ids, map(set, pairs.relevant), strict=True))
        return {
            key: [document for document in ranked(run[key]) if document not in relevant[key]][
                wanted.skip : wanted.depth
            ]
            for key in pairs.query_ids
        }
