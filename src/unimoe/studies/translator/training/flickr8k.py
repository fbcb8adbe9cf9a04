"""Flickr8k as pairs: captions embedded by an encoder, images as the CNN features that the collection comes with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unimoe.models.embedder import Advance, Embedder
from unimoe.retrieval.embeddings import cached_embeddings
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, build_pairs
from unimoe.studies.translator.data.flickr8k import Split, read_flickr8k


@dataclass(frozen=True)
class EmbeddedPairs:
    """Pairs with what drill-downs and results say about them.

    Attributes:
        pairs: captions and images.
        texts: caption id to caption.
        encoder: identity of the encoder of the captions, ``id@hash``.
        prompt: name and hash of its prefixes and lengths.
    """

    pairs: CaptionPairs
    texts: Mapping[str, str]
    encoder: str
    prompt: str


def flickr8k_pairs(
    embedder: Embedder, folder: Path | None = None, split: Split = "test", advance: Advance | None = None
) -> EmbeddedPairs:
    """The captions and images of one official split; embeddings of captions are kept in the user's cache.

    Args:
        embedder: of the captions, such as ``unimoe.models.encoder.load_encoder`` gives by name.
        folder: of the collection; null for ``flickr8k`` in the folder that ``UNIMOE_DATA`` names.
        split: ``test`` (1,000 images) or ``dev`` (100).
        advance: called with the number of captions embedded.

    Raises:
        UsageError: no folder is named.
        DataError: a file is missing or malformed, or no caption has an image.
    """
    data = read_flickr8k(folder, split)
    ids = list(data.texts)
    pairs = build_pairs(
        cached_embeddings(embedder, data.texts, "plain", advance=advance).of(ids),
        ids,
        [data.caption_images[caption_id] for caption_id in ids],
        data.images,
        data.image_ids,
        source=data.source,
    )
    return EmbeddedPairs(pairs, data.texts, embedder.base_identity, embedder.prompt_name)
