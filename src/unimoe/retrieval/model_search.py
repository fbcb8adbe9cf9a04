"""Ranks a whole corpus by a model, as a first stage: an encoder, a sparse encoder, or late interaction.

All searches are exact. An encoder's is ``dense_run``. A matcher encodes a unit of documents and compares it with all
queries at once, so that neither memory nor disk holds the encodings of a corpus; a file keeps the best of each query,
from which a killed search goes on. The user's cache keeps finished rankings, and an encoder's vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from unimoe.config import Batches, DenseConfig
from unimoe.config.base import EncoderConfig
from unimoe.core.console import Steps
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import cache_dir, hash_json
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.models.device import choose_device, choose_dtype, release_memory
from unimoe.models.embedder import Advance
from unimoe.models.encoder import META, SentenceEncoder, load_encoder
from unimoe.models.matcher import MATCHERS, Matcher, SparseModel, find_matcher, load_matcher
from unimoe.models.tensor_files import read_tensors, save_tensors
from unimoe.retrieval.bm25 import cached_run
from unimoe.retrieval.dense import dense_run
from unimoe.retrieval.embeddings import UNIT_CHARACTERS, cut_units, is_kept, kept_folder

Keys = NDArray[np.int64]

_SCORES = 2**25
"""Scores of all queries with a part of the corpus, about, which are in memory at a time."""


@dataclass(frozen=True)
class ModelSearch:
    """A ranking by the model of ``encoder``, whose settings are at ``key`` in configs.

    A base such as ``sparse:FOLDER`` names a matcher. It computes on ``device``, None for the best of this machine.
    """

    encoder: EncoderConfig
    key: str
    device: torch.device | None = None

    def run(self, collection: Collection, depth: int, *, exclude_self: bool) -> Run:
        """Rank a collection's documents for each of its queries, and keep the first ``depth``."""
        path = self.path(collection, depth, exclude_self=exclude_self)
        progress = path.with_suffix(".safetensors")  # of a matcher, until the run is whole

        def search() -> Run:
            texts, kept = len(collection.queries) + len(collection.corpus), self.holds_vectors(collection)
            with Steps(1).step(f"first stage {collection.name}: {self.encoder.base}", texts) as step:
                model: Any = self.load()
                how: dict[str, Any] = {"exclude_self": exclude_self, "advance": step.advance}
                if isinstance(model, Matcher):
                    found = matcher_run(model, collection, depth, progress, **how)
                else:
                    found = dense_run(model, collection, DenseConfig(depth=depth, cutoffs=[depth]), **how)
                step.outcome = f"{len(collection.queries) if kept else texts:,} texts embedded"
            release_memory()
            return found

        found = cached_run(path, collection, self.name, search)
        progress.unlink(missing_ok=True)
        return found

    def path(self, collection: Collection, depth: int, *, exclude_self: bool) -> Path:
        """Return where ``run`` keeps the ranking; where it exists, nothing has to be encoded."""
        data = [collection.corpus_hash, collection.queries_hash, depth, exclude_self]
        return cache_dir("dense") / f"{hash_json([self.name, data])}.trec"

    def holds_vectors(self, collection: Collection) -> bool:
        """Return whether an evaluation has kept the vectors of a collection's documents."""
        if self._named[0]:
            return False
        return is_kept(kept_folder(self._without_weights, collection.corpus, "document", dtype=self._place[1]))

    def load(self) -> Any:
        """Load the model."""
        matcher, config = self._named
        if matcher is None:
            return load_encoder(config, *self._place, self.key)
        return load_matcher(matcher, f"{self.key}.base", config, *self._place)

    @cached_property
    def name(self) -> str:
        """Name, hash and dtype of the model; the hash is of all that a ranking depends on besides texts and dtype."""
        matcher, config = self._named
        if matcher is None:
            base, prompt = self._without_weights.base_identity, self._without_weights.prompt_name
        else:
            _, base, prompt = find_matcher(matcher, f"{self.key}.base", config)
        dtype = str(self._place[1]).removeprefix("torch.")
        return f"{base.rpartition('@')[0]}@{hash_json([base, prompt])},{dtype}"

    @cached_property
    def _named(self) -> tuple[type[Matcher] | None, EncoderConfig]:
        """The matcher that the base names, and the settings without its kind."""
        kind, colon, rest = self.encoder.base.partition(":")
        matcher = MATCHERS.get(kind) if colon else None
        base = rest if matcher else self.encoder.base
        if not base:
            raise UsageError(f"{self.key}.base: names no model; set it to a hub id or a folder")
        return matcher, self.encoder.model_copy(update={"base": base})

    @cached_property
    def _without_weights(self) -> SentenceEncoder:
        return load_encoder(self.encoder, META, torch.float32, self.key)

    @cached_property
    def _place(self) -> tuple[torch.device, torch.dtype]:
        device = self.device or choose_device()
        return device, choose_dtype(device, self.encoder.dtype)


def matcher_run(
    model: Matcher,
    collection: Collection,
    depth: int,
    progress: Path,
    *,
    exclude_self: bool = False,
    advance: Advance | None = None,
    **batches: Unpack[Batches],
) -> Run:
    """Find the ``depth`` documents of highest score for every query, by a search of all documents.

    Of a sparse encoder only documents that share a word with the query are kept, as of BM25. Ties, also those at the
    cut, break by document id descending, as in trec_eval. ``progress`` is a file of this search alone.
    """
    query_ids, ids = list(collection.queries), sorted(collection.corpus)
    left_out = [collection.left_out(query_id, exclude_self=exclude_self) for query_id in query_ids]
    most = depth + max(map(len, left_out), default=0)
    queries = model.encode(list(collection.queries.values()), kind="query", advance=advance, **batches)
    lengths = [len(collection.corpus[key].full_text) for key in ids]
    mean = max(1, sum(lengths) // max(1, len(lengths)))
    characters = min(UNIT_CHARACTERS, mean * max(1, _SCORES // max(1, len(query_ids))))
    units = cut_units(lengths, characters)
    done, best = 0, np.empty((len(query_ids), 0), dtype=np.int64)
    if progress.exists():
        done, best = _read(progress, characters)
    if advance:
        advance(sum(map(len, units[:done])))
    for number, unit in enumerate(units[done:], start=done + 1):
        texts = [collection.corpus[ids[row]].full_text for row in unit]
        scores = model.similarity(queries, model.encode(texts, advance=advance, **batches))
        if not np.isfinite(scores).all():
            query, place = np.argwhere(~np.isfinite(scores))[0]
            which = f"{collection.name}, query {query_ids[query]!r}, document {ids[unit[place]]!r}"
            raise DataError(f"{which}: the score is not finite; try dtype float32, or another model")
        kept = np.concatenate([best, _keys(scores, unit)], axis=1)
        cut = max(0, kept.shape[1] - most)
        best = np.partition(kept, cut, axis=1)[:, cut:].copy()  # a view would keep the whole
        state = {"finished": str(number), "characters": str(characters)}
        save_tensors(progress, {"best": torch.from_numpy(best)}, state)
    run: Run = {}
    for query_id, but, row in zip(query_ids, left_out, best, strict=True):
        scores, rows = _scores(np.sort(row)[::-1])
        ranked = zip((ids[place] for place in rows.tolist()), scores.tolist(), strict=True)
        found = {key: score for key, score in ranked if key not in but}
        if model.kind == SparseModel.kind:
            found = {key: score for key, score in found.items() if score > 0}
        run[query_id] = dict(islice(found.items(), depth))
    return run


def _keys(scores: NDArray[np.float32], rows: NDArray[np.int64]) -> Keys:
    """Return integers in the order of trec_eval: by score, equal scores by row, of which the higher comes first."""
    bits = (scores + np.float32(0)).view(np.int32).astype(np.int64)  # the sum makes 0 of -0
    return ((np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)) << 32) | rows


def _scores(keys: Keys) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the scores and rows that ``_keys`` made integers of."""
    bits = keys >> 32
    return np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int32).view(np.float32), keys & 0xFFFFFFFF


def _read(progress: Path, characters: int) -> tuple[int, Keys]:
    """Return how many units are done, and the best documents of them."""
    try:
        tensors, texts = read_tensors(progress)
        if texts["characters"] != str(characters):
            raise ValueError("other parts of the corpus")
        return int(texts["finished"]), tensors["best"].numpy()
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise DataError(f"{progress} is damaged or of another version ({error}); delete it, and run again") from None
