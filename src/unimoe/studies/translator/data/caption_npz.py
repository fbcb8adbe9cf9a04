"""Captions and images from NPZ files, in either of two layouts.

The plain layout has five arrays; a file of captions alone has the first two:

    captions        (N, Dx) numbers     embeddings of captions
    caption_ids     (N,) text           their ids, all different
    caption_image   (N,) text           the id of each caption's image
    images          (M, Dy) numbers     embeddings of images, each once
    image_ids       (M,) text           their ids, all different

The original layout has ``captions/embeddings``, ``captions/ids``, ``images/embeddings``, ``images/names``, and the
dimensions in ``metadata/embedding_dim_text`` and ``metadata/embedding_dim_image``. The image of each caption comes from
``captions.txt`` (``image,caption`` lines in the order of the captions), or else from ``captions/label``: one-hot rows
over the images, row numbers, or names. Names are compared by stem: ``Images/7.jpg``, ``7.jpg``, ``7`` are one image.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from unimoe.core.errors import DataError, first_few
from unimoe.core.trec import text_lines
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, Floats, build_pairs, checked_vectors
from unimoe.studies.translator.data.npz_file import NpzFile

Dims: TypeAlias = tuple[int, int]  # of captions and of images

OPTION = "--dims"

_IMAGE_SUFFIX = re.compile(r"\.(jpe?g|png|webp|bmp|gif|tiff?)$", re.IGNORECASE)
_NUMBERED = re.compile(r"#\d+$")
_ORIGINAL_KEYS = ("captions/embeddings", "captions/ids", "images/embeddings", "images/names")
_PLAIN_KEYS = ("captions", "caption_ids", "caption_image", "images", "image_ids")

_ENCODERS = {
    "captions": {
        384: "all-MiniLM-L6-v2, e5-small or bge-small",
        512: "a CLIP ViT-B text tower",
        768: "all-mpnet-base-v2, bert-base, roberta-base, e5-base or a CLIP ViT-L text tower",
        1024: "roberta-large-nli-stsb-mean-tokens, bert-large, e5-large or bge-m3",
        1536: "text-embedding-3-small, or DINOv2 giant, which embeds images",
        3072: "text-embedding-3-large",
    },
    "images": {
        384: "DINOv2 small",
        512: "a CLIP ViT-B image tower or ResNet-18",
        768: "DINOv2 base, ViT-B or a CLIP ViT-L image tower",
        1024: "DINOv2 large, ViT-L, or roberta-large, which embeds texts",
        1536: "DINOv2 giant",
        2048: "ResNet-50",
        4096: "VGG-16's last hidden layer",
    },
}
"""Encoders by embedding dimensions, for messages that name the encoder that is likely wrong."""


def load_pairs(path: Path, captions_txt: Path | None = None, dims: Dims | None = None) -> CaptionPairs:
    """Read captions with their images from a file of either layout.

    Args:
        path: the NPZ file.
        captions_txt: the image of each caption, for the original layout; the plain layout has its own.
        dims: the dimensions of captions and of images that are expected.

    Raises:
        DataError: the file is missing or damaged, lacks a key, has other dimensions than ``dims`` or its metadata say
            (the message names the encoder that is likely wrong), an id twice, a vector zero or not finite, or no
            caption with an image.
    """
    arrays = NpzFile(path)
    of_captions, of_images = dims or (None, None)
    if "captions/embeddings" not in arrays.keys:
        _require(arrays, _PLAIN_KEYS)
        _check_dimensions(arrays, "captions", "captions", of_captions, OPTION)
        _check_dimensions(arrays, "images", "images", of_images, OPTION)
        return build_pairs(
            arrays.read("captions"),
            arrays.texts("caption_ids"),
            arrays.texts("caption_image"),
            arrays.read("images"),
            arrays.texts("image_ids"),
            source=str(path),
        )
    _require(arrays, _ORIGINAL_KEYS)
    _check_dimensions(arrays, "captions/embeddings", "captions", of_captions, OPTION)
    _check_dimensions(arrays, "images/embeddings", "images", of_images, OPTION)
    caption_ids, names = arrays.texts("captions/ids"), arrays.texts("images/names")
    captions = arrays.shape("captions/embeddings")[0]
    if len(caption_ids) != captions:
        raise DataError(f"{path}: {len(caption_ids):,} caption ids for {captions:,} embeddings; write both again")
    stems = _stems(names, path)
    named, contradictions = _caption_images(arrays, captions_txt, caption_ids, list(stems))
    return build_pairs(
        arrays.read("captions/embeddings"),
        caption_ids,
        [None if stem is None else stems.get(stem, stem) for stem in named],
        arrays.read("images/embeddings"),
        names,
        source=str(path),
        contradictions=contradictions,
    )


def load_captions(path: Path, dims: int | None = None) -> tuple[list[str], Floats]:
    """Read captions alone, as a test file has them: ids, and ``(N, Dx)`` float32.

    Raises:
        DataError: as in ``load_pairs``, or the captions do not have ``dims`` dimensions.
    """
    arrays = NpzFile(path)
    original = "captions/embeddings" in arrays.keys
    vectors, ids = _ORIGINAL_KEYS[:2] if original else _PLAIN_KEYS[:2]
    _require(arrays, (vectors, ids))
    _check_dimensions(arrays, vectors, "captions", dims, "the captions the translator is trained on")
    caption_ids = arrays.texts(ids)
    return caption_ids, checked_vectors(arrays.read(vectors), caption_ids, str(path), "caption")


def image_stem(name: str) -> str:
    """Return the name of an image without folders and suffix: ``7`` of ``Images/7.jpg``."""
    return _IMAGE_SUFFIX.sub("", name.strip().replace("\\", "/").rpartition("/")[2])


def _caption_images(
    arrays: NpzFile, captions_txt: Path | None, caption_ids: Sequence[str], stems: Sequence[str]
) -> tuple[list[str | None], list[str]]:
    """Return the stem of each caption's image or None, and the captions whose two sources disagree."""
    labels = _labels(arrays, len(caption_ids), stems) if "captions/label" in arrays.keys else None
    if captions_txt is None:
        if labels is None:
            raise DataError(
                f"{arrays.path}: lacks captions/label, which says which image each caption has; give captions.txt"
            )
        return labels, []
    listed: list[str | None] = [*_listed(captions_txt, arrays, len(caption_ids))]
    if labels is None:
        return listed, []
    both = zip(listed, labels, strict=True)
    wrong = [row for row, (one, other) in enumerate(both) if other is not None and one != other]
    if 2 * len(wrong) > len(listed):
        raise DataError(
            f"{captions_txt} and captions/label of {arrays.path} name different images for {len(wrong):,} of "
            f"{len(listed):,} captions ({first_few([caption_ids[row] for row in wrong])}): its lines are in another "
            "order; give the captions.txt that the embeddings were made from"
        )
    for row in wrong:
        listed[row] = None
    return listed, [caption_ids[row] for row in wrong]


def _labels(arrays: NpzFile, captions: int, stems: Sequence[str]) -> list[str | None]:
    """Return the images of ``captions/label`` as stems."""
    key, shape = "captions/label", arrays.shape("captions/label")
    if shape not in {(captions,), (captions, len(stems))}:
        raise DataError(
            f"{arrays.path}: {key} has shape {shape}; it must have a row for each of {captions:,} captions, with a "
            f"column for each of {len(stems):,} images, or one number or name each"
        )
    if len(shape) == 2:
        rows = arrays.column_of_one(key)
    else:
        array = arrays.read(key)
        if array.dtype.kind in "US":
            return [image_stem(name) for name in arrays.texts(key)]
        if array.dtype.kind not in "iu":
            raise DataError(f"{arrays.path}: {key} has type {array.dtype}; it must hold row numbers or names of images")
        rows = array.astype(np.int64)
    return [stems[row] if 0 <= row < len(stems) else None for row in rows.tolist()]


def _listed(captions_txt: Path, arrays: NpzFile, captions: int) -> list[str]:
    """Return the image of every line of captions.txt as a stem."""
    found = []
    for number, line in text_lines(captions_txt):
        separator = "\t" if "\t" in line else ","
        name, found_separator, _ = line.partition(separator)
        if number == 1 and name.strip().lower() in {"image", "image_name"}:
            continue
        if not name.strip() or not found_separator:
            raise DataError(f"{captions_txt}:{number}: a line is image,caption; this one lacks a part")
        found.append(image_stem(_NUMBERED.sub("", name.strip())))
    if len(found) != captions:
        raise DataError(
            f"{captions_txt}: {len(found):,} captions, but {arrays.path} has {captions:,}; "
            "give the captions.txt that the embeddings were made from"
        )
    return found


def _stems(names: Sequence[str], path: Path) -> dict[str, str]:
    """Return image names by stem, in order."""
    stems: dict[str, str] = {}
    for name in names:
        stem = image_stem(name)
        if stem in stems:
            raise DataError(f"{path}: images {stems[stem]!r} and {name!r} share the stem {stem!r}; name them apart")
        stems[stem] = name
    return stems


def _require(arrays: NpzFile, keys: Sequence[str]) -> None:
    lacking = [key for key in keys if key not in arrays.keys]
    if lacking:
        raise DataError(
            f"{arrays.path}: lacks {', '.join(lacking)}; it has {', '.join(sorted(arrays.keys)) or 'no arrays'} "
            "(see the layouts in the documentation of unimoe.studies.translator.data.caption_npz)"
        )


def _check_dimensions(arrays: NpzFile, key: str, side: str, wanted: int | None, wanted_by: str) -> None:
    """Compare the dimensions of captions or images with the file's metadata, and with those wanted."""
    shape, source = arrays.shape(key), f"{arrays.path}: {key}"
    if len(shape) != 2:
        raise DataError(f"{source} has shape {shape}; it must be a matrix with a row for each of the {side}")
    metadata = f"metadata/embedding_dim_{'text' if side == 'captions' else 'image'}"
    stated = arrays.whole_number(metadata) if metadata in arrays.keys else None
    for expected, by in ((stated, metadata), (wanted, wanted_by)):
        if expected is not None and expected != shape[1]:
            raise DataError(
                f"{source}: {shape[1]} dimensions{_encoder(side, shape[1])}, expected {expected}"
                f"{_encoder(side, expected)} by {by}: the {side} were probably embedded with the wrong encoder; "
                "embed them again, or correct the expected dimensions"
            )


def _encoder(side: str, dimensions: int) -> str:
    known = _ENCODERS[side].get(dimensions)
    return f" (as {known})" if known else ""
