"""What hard negatives are drawn from: BM25's or the model's best that are not relevant, found once per generation."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree

from unimoe.data.collection import Collection
from unimoe.errors import DataError
from unimoe.io import read_json, write_json
from unimoe.retrieval.bm25 import cached_bm25_run
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.biencoder.training.pairs import TrainingPairs
from unimoe.studies.biencoder.training.search import found_by
from unimoe.studies.biencoder.training.sources import Source
from unimoe.trec import ranked


class HardNegatives:
    """Keeps what was found in files, so that a resumed training draws from the same documents.

    Args:
        config: of the training.
        train: the training queries and the corpus.
        pairs: what must not be a negative.
        folder: of the files.
        fingerprint: of the training; files of another are made anew.
    """

    def __init__(
        self, config: BiEncoderConfig, train: Collection, pairs: TrainingPairs, folder: Path, fingerprint: str
    ) -> None:
        self._config, self._train, self._pairs = config, train, pairs
        self._folder, self._fingerprint = folder, fingerprint

    def of_epoch(self, epoch: int, source: Source, begun: bool) -> dict[str, list[str]] | None:
        """What an epoch draws from, best first, by query id; null where none are wanted.

        Args:
            epoch: from 0.
            source: the model as it is at the epoch's beginning.
            begun: whether the epoch has gone on from there.

        Raises:
            DataError: the file of an epoch that has begun is missing.
        """
        config = self._config.negatives
        if config.per_query == 0:
            return None
        generation = epoch // config.refresh_every if config.refresh_every else 0
        path = self._folder / f"{generation}.json"
        if path.exists() and (kept := read_json(path))["fingerprint"] == self._fingerprint:
            negatives: dict[str, list[str]] = kept["negatives"]
            return negatives
        if begun or epoch != generation * (config.refresh_every or 0):
            raise DataError(f"{path}: missing; delete {self._folder.parent} to start over")
        negatives = self._search(source if generation or config.source == "model" else None)
        write_json(path, {"fingerprint": self._fingerprint, "negatives": negatives}, indent=None)
        return negatives

    def clear(self) -> None:
        """Remove the files: the training is over."""
        rmtree(self._folder, ignore_errors=True)

    def _search(self, source: Source | None) -> dict[str, list[str]]:
        wanted, pairs = self._config.negatives, self._pairs
        most = wanted.depth + max(map(len, pairs.relevant))  # so that enough are left without the relevant ones
        texts = dict(zip(pairs.query_ids, pairs.texts, strict=True))
        if source is None:
            run = cached_bm25_run(self._train, most, wanted.bm25)
        else:
            run = found_by(source, texts, self._train, most)
        relevant = dict(zip(pairs.query_ids, map(set, pairs.relevant), strict=True))
        return {
            key: [document for document in ranked(run[key]) if document not in relevant[key]][
                wanted.skip : wanted.depth
            ]
            for key in pairs.query_ids
        }
