"""Captions and images out of NPZ files, in either of two layouts. Nothing is ever unpickled.

The plain layout has five arrays, and of a file of captions alone the first two:

    captions        (N, Dx) numbers     embeddings of captions
    caption_ids     (N,) text           theirs, all different
    caption_image   (N,) text           the id of each caption's image
    images          (M, Dy) numbers     embeddings of images, each once
    image_ids       (M,) text           theirs, all different

The seed's layout has ``captions/embeddings``, ``captions/ids``, ``images/embeddings``, ``images/names``, and in
``metadata/embedding_dim_text`` and ``metadata/embedding_dim_image`` the dimensions. Which image a caption has is told
by ``captions.txt`` (``image,caption`` lines in the order of the captions), or else by ``captions/label``: one-hot rows
over the images, row numbers, or names. Names are compared by stem: ``Images/7.jpg``, ``7.jpg``, ``7`` are one image.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unimoe.errors import DataError
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, build_pairs
from unimoe.studies.translator.data.embedding_checks import Floats, checked_vectors, refuse_dimensions, some
from unimoe.studies.translator.data.npz_file import NpzFile
from unimoe.trec import text_lines

_IMAGE_SUFFIX = re.compile(r"\.(jpe?g|png|webp|bmp|gif|tiff?)$", re.IGNORECASE)
_NUMBERED = re.compile(r"#\d+$")
SEED_KEYS = ("captions/embeddings", "captions/ids", "images/embeddings", "images/names")
PLAIN_KEYS = ("captions", "caption_ids", "caption_image", "images", "image_ids")


def load_pairs(path: Path, captions_txt: Path | None = None, dims: tuple[int, int] | None = None) -> CaptionPairs:
    """Read captions with their images.

    Args:
        path: an NPZ file of either layout.
        captions_txt: for the seed's layout, which image each caption has; the plain one says so itself.
        dims: dimensions of captions and images that must be there, such as ``(1024, 1536)``. What the file's metadata
            says is always checked.

    Returns:
        The pairs; what has no counterpart is dropped and listed in them.

    Raises:
        DataError: the file is missing or damaged, lacks a key, has other dimensions (names the encoder that is likely
            wrong), an id twice, a vector zero or not finite, or no caption with an image.
    """
    arrays = NpzFile(path)
    if "captions/embeddings" not in arrays.keys:
        _refuse_lacking(arrays, PLAIN_KEYS)
        _refuse_dimensions(arrays, ("captions", "images"), dims)
        return build_pairs(
            arrays.read("captions"),
            arrays.texts("caption_ids"),
            arrays.texts("caption_image"),
            arrays.read("images"),
            arrays.texts("image_ids"),
            source=str(path),
        )
    _refuse_lacking(arrays, SEED_KEYS)
    _refuse_dimensions(arrays, ("captions/embeddings", "images/embeddings"), dims)
    caption_ids, names = arrays.texts("captions/ids"), arrays.texts("images/names")
    captions = arrays.shape("captions/embeddings")[0]
    if len(caption_ids) != captions:
        raise DataError(f"{path}: {len(caption_ids):,} caption ids for {captions:,} embeddings; write both anew")
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
        DataError: as ``load_pairs``, for what is there.
    """
    arrays = NpzFile(path)
    prefix = "captions/embeddings" in arrays.keys
    vectors, ids = ("captions/embeddings", "captions/ids") if prefix else ("captions", "caption_ids")
    _refuse_lacking(arrays, (vectors, ids))
    _refuse_side(arrays, vectors, "captions", dims)
    caption_ids = arrays.texts(ids)
    return caption_ids, checked_vectors(arrays.read(vectors), caption_ids, str(path), "caption")


def image_stem(name: str) -> str:
    """The name of an image without folders and suffix: ``7`` of ``Images/7.jpg``."""
    return _IMAGE_SUFFIX.sub("", name.strip().replace("\\", "/").rpartition("/")[2])


def _caption_images(
    arrays: NpzFile, captions_txt: Path | None, caption_ids: Sequence[str], stems: Sequence[str]
) -> tuple[list[str | None], list[str]]:
    """The stem of each caption's image, null where it has none, and the captions whose two sources disagree."""
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
            f"{len(listed):,} captions ({some([caption_ids[row] for row in wrong])}): its lines are in another order; "
            "give the captions.txt that the embeddings were made from"
        )
    for row in wrong:
        listed[row] = None
    return listed, [caption_ids[row] for row in wrong]


def _labels(arrays: NpzFile, captions: int, stems: Sequence[str]) -> list[str | None]:
    """What ``captions/label`` says, as stems."""
    key, shape = "captions/label", arrays.shape("captions/label")
    if shape not in {(captions,), (captions, len(stems))}:
        raise DataError(
            f"{arrays.path}: {key} has shape {shape}; it must have a row for each of {captions:,} captions, with a "
            f"column for each of {len(stems):,} images, or one number or name each"
        )
    if len(shape) == 2:
        rows = arrays.row_of_ones(key)
    else:
        array = arrays.read(key)
        if array.dtype.kind in "US":
            return [image_stem(name) for name in arrays.texts(key)]
        if array.dtype.kind not in "iu":
            raise DataError(f"{arrays.path}: {key} has type {array.dtype}; it must hold row numbers or names of images")
        rows = array.astype(np.int64)
    return [stems[row] if 0 <= row < len(stems) else None for row in rows.tolist()]


def _listed(captions_txt: Path, arrays: NpzFile, captions: int) -> list[str]:
    """The image of every line of captions.txt, as a stem."""
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
    """Image names by stem, in order."""
    stems: dict[str, str] = {}
    for name in names:
        stem = image_stem(name)
        if stem in stems:
            raise DataError(f"{path}: images {stems[stem]!r} and {name!r} share the stem {stem!r}; name them apart")
        stems[stem] = name
    return stems


def _refuse_lacking(arrays: NpzFile, keys: Sequence[str]) -> None:
    lacking = [key for key in keys if key not in arrays.keys]
    if lacking:
        raise DataError(
            f"{arrays.path}: lacks {', '.join(lacking)}; it has {', '.join(sorted(arrays.keys)) or 'no arrays'} "
            "(see the layouts in the documentation of unimoe.studies.translator.data.caption_npz)"
        )


def _refuse_dimensions(arrays: NpzFile, keys: tuple[str, str], dims: tuple[int, int] | None) -> None:
    captions, images = (None, None) if dims is None else dims
    _refuse_side(arrays, keys[0], "captions", captions)
    _refuse_side(arrays, keys[1], "images", images)


def _refuse_side(arrays: NpzFile, key: str, side: str, asked: int | None) -> None:
    """Refuse other dimensions than asked for, or than the metadata says."""
    shape, source = arrays.shape(key), f"{arrays.path}: {key}"
    if len(shape) != 2:
        raise DataError(f"{source} has shape {shape}; it must be a matrix with a row for each of the {side}")
    stated = f"metadata/embedding_dim_{'text' if side == 'captions' else 'image'}"
    if stated in arrays.keys:
        refuse_dimensions(shape[1], int(arrays.read(stated).reshape(-1)[0]), side, source, stated)
    if asked is not None:
        refuse_dimensions(shape[1], asked, side, source, "the dimensions asked for")
