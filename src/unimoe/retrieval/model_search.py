"""Ranks a whole corpus by a model: an encoder as a first stage, a sparse encoder, or late interaction.

All searches are exact, of documents or of their passages. An encoder's is that of ``dense``. A matcher encodes a unit
of documents and compares it with all queries at once, so that neither memory nor disk holds the encodings of a corpus;
a file keeps the best of each query, from which a killed search goes on. The user's cache keeps finished rankings, and
an encoder's vectors.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from unimoe.config import Batches, DenseConfig
from unimoe.config.base import EncoderConfig
from unimoe.core.console import Step, Steps
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import cache_dir, hash_json
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.models.device import choose_device, choose_dtype, release_memory
from unimoe.models.embedder import Advance
from unimoe.models.encoder import META, SentenceEncoder, load_encoder
from unimoe.models.matcher import MATCHERS, Matcher, SparseModel, find_matcher, load_matcher
from unimoe.models.seen_queries import SeenQueries, seen_by
from unimoe.models.tensor_files import read_tensors, save_tensors
from unimoe.retrieval.bm25 import cached_run, kept_run, run_path
from unimoe.retrieval.dense import embed_collection
from unimoe.retrieval.embeddings import UNIT_CHARACTERS, cut_units, is_kept
from unimoe.retrieval.passages import Passages, as_read, by_document

_SCORES = 2**25
"""Scores of all queries with a part of the corpus, about, which are in memory at a time."""


@dataclass(frozen=True)
class ModelSearch:
    """A ranking by the model of ``encoder``; its settings are at ``key`` in configs.

    A base such as ``sparse:FOLDER`` names a matcher. It computes on ``device``, None for the best of this machine. A
    document has the score of the best of its ``passages``; None where it is read whole.
    """

    encoder: EncoderConfig
    key: str
    device: torch.device | None = None
    passages: Passages | None = None

    def run(self, collection: Collection, depth: int, *, advance: Advance | None = None) -> Run:
        """Rank a collection's documents for each of its queries, and keep the first ``depth``.

        Its progress is a step of its own, unless it is reported to ``advance``.
        """
        path = self._path(collection)
        progress = run_path(path, depth).with_suffix(".safetensors")  # of a matcher, until the run is whole

        def search() -> Run:
            read = as_read(collection, self.passages)
            items = len(read.queries) + len(read.corpus)
            title = f"first stage {collection.name}: {self.encoder.base}"
            with nullcontext(Step(advance)) if advance else Steps(1).step(title, items) as step:
                model: Any = self.load()
                if isinstance(model, Matcher):
                    found = matcher_run(model, read, depth, progress, advance=step.advance)
                else:
                    config = DenseConfig(depth=depth, cutoffs=[depth])
                    embedded = embed_collection(model, read, config, advance=step.advance)
                    found, items = embedded.nearest(config), embedded.items
                step.outcome = f"{items:,} texts embedded"
            release_memory()
            return found

        found = cached_run(path, depth, collection, self.name, search)
        progress.unlink(missing_ok=True)
        return found

    def _path(self, collection: Collection) -> Path:
        """Return where ``run`` keeps rankings; their names end with the depth."""
        data = [collection.corpus_hash, collection.queries_hash, bool(collection.excludes_self)]
        return cache_dir("dense") / hash_json([self.name, data])

    def left_to_encode(self, collection: Collection, depth: int) -> list[str]:
        """Return the texts that ``run`` has to encode, those of queries first; none where the ranking is kept."""
        if kept_run(self._path(collection), depth):
            return []
        read = as_read(collection, self.passages)
        kept = self._named[0] is None and is_kept(self._without_weights, read.corpus, dtype=self._place[1])
        return [*read.queries.values(), *(part.full_text for part in ([] if kept else read.corpus.values()))]

    def load(self) -> Any:
        """Load the model."""
        matcher, config = self._named
        if matcher is None:
            return load_encoder(config, *self._place, self.key)
        return load_matcher(matcher, f"{self.key}.base", config, *self._place)

    @cached_property
    def name(self) -> str:
        """Name, hash, dtype and passages; the hash is of all that a ranking depends on besides texts and these."""
        base, prompt = self.identity
        dtype = str(self._place[1]).removeprefix("torch.")
        cut = f",passages={self.passages.words}/{self.passages.stride}" if self.passages else ""
        return f"{base.rpartition('@')[0]}@{hash_json([base, prompt])},{dtype}{cut}"

    @cached_property
    def identity(self) -> tuple[str, str]:
        """The names by which results know the model's weights and its settings."""
        matcher, config = self._named
        if matcher is None:
            return self._without_weights.base_identity, self._without_weights.prompt_name
        return find_matcher(matcher, f"{self.key}.base", config)[1:]

    @property
    def seen(self) -> SeenQueries:
        """The queries that trained and chose the model, as far as its folder says."""
        matcher, config = self._named
        if matcher is None:
            return self._without_weights.seen
        return seen_by(find_matcher(matcher, f"{self.key}.base", config)[0].root)

    @property
    def caveats(self) -> tuple[str, ...]:
        """Why its ranking may not be that of the model that people mean."""
        return self._without_weights.caveats if self._named[0] is None else ()

    @property
    def said(self) -> str:
        """How the model is read, in one line."""
        matcher, config = self._named
        if matcher is None:
            return self._without_weights.said
        return f"{matcher.kind}: {find_matcher(matcher, f'{self.key}.base', config)[0].because}"

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
    advance: Advance | None = None,
    **batches: Unpack[Batches],
) -> Run:
    """Find the ``depth`` documents of highest score for every query, by a search of all, or of passages (``as_read``).

    Of a sparse encoder only documents that share a word with the query are kept, as of BM25. Ties, also those at the
    cut, break by document id descending, as in trec_eval. ``progress`` is a file of this search alone.
    """
    read, parts = collection.corpus, by_document(collection.corpus)
    query_ids, ids = list(collection.queries), sorted(parts)
    left_out = [collection.left_out(query_id) for query_id in query_ids]
    most = depth + max(map(len, left_out), default=0)
    queries = model.encode(list(collection.queries.values()), kind="query", advance=advance, **batches)
    lengths = [sum(len(read[part].full_text) for part in parts[key]) for key in ids]
    mean = max(1, sum(lengths) // max(1, len(lengths)))
    characters = min(UNIT_CHARACTERS, mean * max(1, _SCORES // max(1, len(query_ids))))
    units = cut_units(lengths, characters)
    done, best, rows = 0, np.empty((len(query_ids), 0), np.float32), np.empty((len(query_ids), 0), np.int64)
    if progress.exists():
        done, best, rows = _read(progress, characters)
    if advance:
        advance(sum(len(parts[ids[row]]) for unit in units[:done] for row in unit))
    for number, unit in enumerate(units[done:], start=done + 1):
        of_each = [parts[ids[row]] for row in unit]
        texts = [read[part].full_text for part in chain.from_iterable(of_each)]
        scores = model.similarity(queries, model.encode(texts, advance=advance, **batches))
        scores = np.maximum.reduceat(scores, np.cumsum([0, *map(len, of_each[:-1])]), axis=1)
        if not np.isfinite(scores).all():
            query, place = np.argwhere(~np.isfinite(scores))[0]
            which = f"{collection.name}, query {query_ids[query]!r}, document {ids[unit[place]]!r}"
            raise DataError(f"{which}: the score is not finite; try dtype float32, or another model")
        best = np.concatenate([best, scores], axis=1)
        rows = np.concatenate([rows, np.broadcast_to(unit, scores.shape)], axis=1)
        order = np.lexsort((rows, best))[:, -most:]  # of equal scores the higher row comes last
        best, rows = np.take_along_axis(best, order, axis=1), np.take_along_axis(rows, order, axis=1)
        state = {"finished": str(number), "characters": str(characters)}
        save_tensors(progress, {"scores": torch.from_numpy(best), "rows": torch.from_numpy(rows)}, state)
    run: Run = {}
    for query_id, but, own, places in zip(query_ids, left_out, best[:, ::-1], rows[:, ::-1], strict=True):
        ranked = zip((ids[place] for place in places.tolist()), own.tolist(), strict=True)
        found = {key: score for key, score in ranked if key not in but}
        if model.kind == SparseModel.kind:
            found = {key: score for key, score in found.items() if score > 0}
        run[query_id] = dict(islice(found.items(), depth))
    return run


def _read(progress: Path, characters: int) -> tuple[int, NDArray[np.float32], NDArray[np.int64]]:
    """Return how many units are done, and the best scores of each query in them with their documents."""
    try:
        tensors, texts = read_tensors(progress)
        if texts["characters"] != str(characters):
            raise ValueError("other parts of the corpus")
        return int(texts["finished"]), tensors["scores"].numpy(), tensors["rows"].numpy()
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise DataError(f"{progress} is damaged or of another version ({error}); delete it, and run again") from None
