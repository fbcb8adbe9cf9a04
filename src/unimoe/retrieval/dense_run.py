"""Embeds a corpus and its queries, and searches it: the dense run of a collection."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Unpack

from unimoe.config import Batches
from unimoe.config.dense import DenseConfig
from unimoe.core.errors import named_inputs
from unimoe.core.io import hash_json
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.models.embedder import Advance, Embedder
from unimoe.retrieval.dense import UNIT_LENGTH, search
from unimoe.retrieval.embeddings import embedding_fingerprint
from unimoe.retrieval.vector_store import Spread, encode_corpus


def dense_run(
    model: Embedder,
    collection: Collection,
    config: DenseConfig,
    *,
    store_dir: Path,
    weights: str | None = None,
    exclude_self: bool = False,
    advance: Advance | None = None,
    spread: Spread = map,
    **batches: Unpack[Batches],
) -> Run:
    """Embed a corpus and its queries, and find the documents nearest to each query.

    Args:
        model: embeds queries and documents.
        collection: queries and documents.
        config: lengths, depth, backend and storage.
        store_dir: vectors are kept below it, in a folder named by everything they depend on: a killed run is resumed
            there, and other queries over the same corpus find it embedded.
        weights: content hash of an adapter or a head, which is no part of ``model.base_identity``; None where there is
            neither. Without it, vectors of other weights would be reused.
        exclude_self: leave out the document whose id is the query's, as MTEB's tasks of some collections do.
        advance: called with the number of texts done.
        spread: embeds units of documents; see ``encode_corpus``.
        batches: the size of a forward pass; by default what suits the device.

    Raises:
        DataError: no documents, or an embedding is not finite or zero, which names the text's id.
        UsageError: the backend is not installed, or vectors cannot be written to ``store_dir``.
    """
    query_ids, texts = list(collection.queries), list(collection.queries.values())
    with named_inputs(lambda index: f"{collection.name}, query {query_ids[index]!r}"):
        # first, so that a broken model is noticed in seconds
        queries = model.encode(texts, kind="query", max_length=config.query_length, **batches)
    if advance:
        advance(len(query_ids))
    of_document: dict[str, Any] = {"kind": "document", "max_length": config.document_length, **batches}
    own = embedding_fingerprint(model, "document", config.document_length)
    fingerprint = hash_json([own, weights, config.storage])
    store = encode_corpus(
        partial(model.encode, **of_document),
        collection.corpus,
        store_dir / f"{fingerprint}-{collection.corpus_hash}",
        fingerprint=fingerprint,
        storage=config.storage,
        spread=spread,
        advance=advance,
    )
    return search(
        queries,
        query_ids,
        store.vectors,
        store.ids,
        config.depth,
        backend=config.backend,
        device=model.device,
        exclude_self=exclude_self,
        longest=UNIT_LENGTH,
    )
