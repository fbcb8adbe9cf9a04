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

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import npyio
from numpy.typing import NDArray

from unimoe.core.errors import DataError, first_few
from unimoe.core.trec import text_lines
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, Floats, build_pairs, checked_vectors

_IMAGE_SUFFIX = re.compile(r"\.(jpe?g|png|webp|bmp|gif|tiff?)$", re.IGNORECASE)
_NUMBERED = re.compile(r"#\d+$")
_ORIGINAL_KEYS = ("captions/embeddings", "captions/ids", "images/embeddings", "images/names")
_PLAIN_KEYS = ("captions", "caption_ids", "images", "image_ids", "caption_image")

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


class NpzFile:
    """An NPZ file; ``keys`` names its arrays, which are read on request. Nothing is ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # np.load takes any other file for a pickle, and says so.
            self._file = npyio.NpzFile(path, allow_pickle=False)  # type: ignore[arg-type]
            self.keys = set(self._file.files)
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except Exception as error:  # numpy and zipfile raise errors of many kinds
            raise DataError(f"{path}: no NPZ file ({error}); write it with numpy.savez") from None

    def require(self, keys: Sequence[str]) -> None:
        """Refuse a file that lacks one of the keys."""
        if lacking := [key for key in keys if key not in self.keys]:
            raise DataError(
                f"{self.path}: lacks {', '.join(lacking)}; it has {', '.join(sorted(self.keys)) or 'no arrays'} "
                f"(see the layouts in the documentation of {__name__})"
            )

    def read(self, key: str) -> NDArray[Any]:
        """Read an array."""
        try:
            array: NDArray[Any] = self._file[key]
        except Exception as error:  # as above
            if "allow_pickle" in str(error):
                raise DataError(
                    f"{self.path}: {key} is an array of Python objects, which only unpickling could read; "
                    "save it again after .astype(str), or as numbers"
                ) from None
            raise DataError(f"{self.path}: {key} is damaged ({error}); write the file again") from None
        return array

    def texts(self, key: str) -> list[str]:
        """Read an array of ids; numbers become text."""
        array = self.read(key)
        if array.ndim != 1 or array.dtype.kind not in "USiu":
            raise DataError(f"{self.path}: {key} has shape {array.shape} and type {array.dtype}; it must list ids")
        try:
            return [value.decode() if isinstance(value, bytes) else str(value) for value in array.tolist()]
        except UnicodeDecodeError:
            raise DataError(f"{self.path}: {key} is not UTF-8; save it again as text") from None

    def vectors(self, key: str, side: str) -> NDArray[Any]:
        """Read the embeddings of captions or images; their dimensions must be those that the metadata state."""
        array, source = self.read(key), f"{self.path}: {key}"
        if array.ndim != 2:
            raise DataError(f"{source} has shape {array.shape}; it must be a matrix with a row for each of the {side}")
        metadata = f"metadata/embedding_dim_{'text' if side == 'captions' else 'image'}"
        if metadata in self.keys:
            stated = self.read(metadata)
            if stated.size != 1 or stated.dtype.kind not in "iuf" or not float(stated.item()).is_integer():
                raise DataError(f"{self.path}: {metadata} must be one whole number; save it again")
            check_dimensions(source, side, array.shape[1], int(stated.item()), metadata)
        return array


def check_dimensions(source: str, side: str, found: int, expected: int, by: str) -> None:
    """Refuse embeddings of another size than ``by`` says, and name the encoders that both are probably of."""
    if found != expected:
        known = _ENCODERS[side]
        likely = {size: f" (as {known[size]})" if size in known else "" for size in (found, expected)}
        raise DataError(
            f"{source}: {found} dimensions{likely[found]}, expected {expected}{likely[expected]} by {by}: the {side} "
            "were probably embedded with the wrong encoder; embed them again, or correct the expected dimensions"
        )


def load_pairs(path: Path, captions_txt: Path | None = None) -> CaptionPairs:
    """Read captions with their images from a file of either layout; ``captions_txt`` is for the original one."""
    file = NpzFile(path)
    original = "captions/embeddings" in file.keys
    keys: tuple[str, ...] = _ORIGINAL_KEYS if original else _PLAIN_KEYS
    file.require(keys)
    captions, images = file.vectors(keys[0], "captions"), file.vectors(keys[2], "images")
    caption_ids, image_ids = file.texts(keys[1]), file.texts(keys[3])
    if not original:
        return build_pairs(captions, caption_ids, file.texts(keys[4]), images, image_ids, source=str(path))
    if len(caption_ids) != len(captions):
        raise DataError(f"{path}: {len(caption_ids):,} caption ids for {len(captions):,} embeddings; write both again")
    names: dict[str, str] = {}
    for name in image_ids:
        stem = image_stem(name)
        if stem in names:
            raise DataError(f"{path}: images {names[stem]!r} and {name!r} share the stem {stem!r}; name them apart")
        names[stem] = name
    stems, contradictions = _caption_images(file, captions_txt, caption_ids, list(names))
    caption_images = [names.get(stem, stem) if stem is not None else None for stem in stems]
    return build_pairs(
        captions, caption_ids, caption_images, images, image_ids, source=str(path), contradictions=contradictions
    )


def load_captions(path: Path, dims: int) -> tuple[list[str], Floats]:
    """Read captions alone, as a test file has them: ids, and ``(N, dims)`` float32; errors as in ``load_pairs``."""
    file = NpzFile(path)
    vectors, ids = (_ORIGINAL_KEYS if "captions/embeddings" in file.keys else _PLAIN_KEYS)[:2]
    file.require((vectors, ids))
    captions, caption_ids = file.vectors(vectors, "captions"), file.texts(ids)
    by = "the captions the translator is trained on"
    check_dimensions(f"{path}: {vectors}", "captions", captions.shape[1], dims, by)
    return caption_ids, checked_vectors(captions, caption_ids, str(path), "caption")


def image_stem(name: str) -> str:
    """Return the name of an image without folders and suffix: ``7`` of ``Images/7.jpg``."""
    return _IMAGE_SUFFIX.sub("", name.strip().replace("\\", "/").rpartition("/")[2])


def _caption_images(
    file: NpzFile, captions_txt: Path | None, caption_ids: Sequence[str], stems: Sequence[str]
) -> tuple[Sequence[str | None], list[str]]:
    """Return the stem of each caption's image or None, and the captions with two sources that disagree."""
    labels = _labels(file, len(caption_ids), stems) if "captions/label" in file.keys else None
    if captions_txt is None:
        if labels is None:
            raise DataError(
                f"{file.path}: lacks captions/label, which says which image each caption has; give captions.txt"
            )
        return labels, []
    listed = [image_stem(name) for name, _ in read_captions(captions_txt)]
    if len(listed) != len(caption_ids):
        raise DataError(
            f"{captions_txt}: {len(listed):,} captions, but {file.path} has {len(caption_ids):,}; "
            "give the captions.txt that the embeddings were made from"
        )
    wrong = [other is not None and one != other for one, other in zip(listed, labels or listed, strict=True)]
    contradictions = [key for key, is_wrong in zip(caption_ids, wrong, strict=True) if is_wrong]
    if 2 * sum(wrong) > len(listed):
        raise DataError(
            f"{captions_txt} and captions/label of {file.path} name different images for {sum(wrong):,} of "
            f"{len(listed):,} captions ({first_few(contradictions)}): its lines are in another "
            "order; give the captions.txt that the embeddings were made from"
        )
    return [None if is_wrong else stem for stem, is_wrong in zip(listed, wrong, strict=True)], contradictions


def _labels(file: NpzFile, captions: int, stems: Sequence[str]) -> list[str | None]:
    """Return the images of ``captions/label`` as stems; None where a row has no image, or several."""
    key = "captions/label"
    array = file.read(key)
    if array.shape not in {(captions,), (captions, len(stems))}:
        raise DataError(
            f"{file.path}: {key} has shape {array.shape}; it must have a row for each of {captions:,} captions, with a "
            f"column for each of {len(stems):,} images, or one number or name each"
        )
    if array.ndim == 1 and array.dtype.kind in "US":
        return [image_stem(name) for name in file.texts(key)]
    if array.ndim == 2:
        array = np.where((array != 0).sum(1) == 1, (array != 0).argmax(1), -1)
    if array.dtype.kind not in "iu":
        raise DataError(f"{file.path}: {key} has type {array.dtype}; it must hold row numbers or names of images")
    return [stems[row] if 0 <= row < len(stems) else None for row in array.tolist()]


def read_captions(path: Path) -> list[tuple[str, str]]:
    """Return the image's name and the caption of every line of captions.txt; tabs may take the place of commas."""
    found = []
    for number, line in text_lines(path):
        name, *texts = next(csv.reader([line], delimiter="\t" if "\t" in line else ","))
        name = _NUMBERED.sub("", name.strip())
        if number == 1 and name.lower() in {"image", "image_name"}:
            continue
        if not name or not texts:
            raise DataError(f"{path}:{number}: a line is image,caption; this one lacks a part")
        found.append((name, ",".join(texts)))
    return found
