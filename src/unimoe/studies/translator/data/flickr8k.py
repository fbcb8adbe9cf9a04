"""Flickr8k as it lies on disk: captions, the official split, and CNN features of images (Hodosh et al., 2013).

The folder has ``captions.txt`` (``image,caption``), ``Flickr_8k.testImages.txt`` and ``Flickr_8k.devImages.txt`` (a
name a line), and ``image-features-*.npz`` (``ids``, ``embeddings``) for the images of a split.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unimoe.errors import DataError, UsageError
from unimoe.studies.translator.data.caption_npz import image_stem
from unimoe.studies.translator.data.npz_file import NpzFile
from unimoe.trec import text_lines

Split = Literal["test", "dev"]

_FEATURES = {"test": "image-features-cnn512-test1000.npz", "dev": "image-features-cnn512-dev100.npz"}


@dataclass(frozen=True)
class Flickr8k:
    """Captions and image features of one official split, not yet matched.

    Attributes:
        texts: caption id (``name.jpg#0``) to caption, of the split's images, in the order of the file.
        caption_images: caption id to the stem of its image.
        image_ids: stems of the images that have features.
        images: their features, ``(M, Dy)``.
        source: the folder, for messages.
    """

    texts: dict[str, str]
    caption_images: dict[str, str]
    image_ids: list[str]
    images: NDArray[np.floating]
    source: str


def read_flickr8k(folder: Path | None = None, split: Split = "test") -> Flickr8k:
    """Read one official split.

    Args:
        folder: with the files; null for ``flickr8k`` in the folder that ``UNIMOE_DATA`` names.
        split: ``test`` (1,000 images) or ``dev`` (features of 100).

    Raises:
        UsageError: no folder is named.
        DataError: a file is missing or malformed, or no caption is of the split's images.
    """
    folder = folder or _default_folder()
    wanted = {image_stem(line) for _, line in text_lines(folder / f"Flickr_8k.{split}Images.txt")}
    texts, caption_images = {}, {}
    for name, number, text in _captions(folder / "captions.txt"):
        if image_stem(name) in wanted:
            texts[f"{name}#{number}"] = text
            caption_images[f"{name}#{number}"] = image_stem(name)
    if not texts:
        raise DataError(f"{folder / 'captions.txt'}: no caption of an image of the {split} split; check the folder")
    features = NpzFile(folder / _FEATURES[split])
    for key in ("ids", "embeddings"):
        if key not in features.keys:
            raise DataError(f"{features.path}: lacks {key}; it has {', '.join(sorted(features.keys))}")
    image_ids = [image_stem(name) for name in features.texts("ids")]
    return Flickr8k(texts, caption_images, image_ids, features.read("embeddings"), str(folder))


def _default_folder() -> Path:
    data = os.environ.get("UNIMOE_DATA")
    if not data:
        raise UsageError("Flickr8k: no folder given; set UNIMOE_DATA to the folder that has flickr8k in it")
    return Path(data, "flickr8k")


def _captions(path: Path) -> list[tuple[str, int, str]]:
    """Image name, number of the caption among the image's, and caption."""
    found, counts = [], dict[str, int]()
    for line, fields in enumerate(csv.reader(text for _, text in text_lines(path)), start=1):
        if line == 1 and fields == ["image", "caption"]:
            continue
        if len(fields) < 2 or not fields[0]:
            raise DataError(f"{path}:{line}: a line is image,caption; this one has {len(fields)} fields")
        number = counts.get(fields[0], 0)
        counts[fields[0]] = number + 1
        found.append((fields[0], number, ",".join(fields[1:])))
    return found
