"""Flickr8k on disk: captions, the official test split, and CNN features of its images (Hodosh et al., 2013).

The folder ``flickr8k`` in the folder that ``UNIMOE_DATA`` names has ``captions.txt`` (``image,caption``),
``Flickr_8k.testImages.txt`` (a name on each line), and the features (``ids``, ``embeddings``) of these images.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import text_lines
from unimoe.studies.translator.data.caption_npz import image_stem
from unimoe.studies.translator.data.npz_file import NpzFile

_FEATURES = "image-features-cnn512-test1000.npz"


@dataclass(frozen=True)
class Flickr8k:
    """Captions and image features of the test split, not yet matched.

    Attributes:
        texts: caption id (``name.jpg#0``) to caption, in the order of the file.
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


def read_flickr8k() -> Flickr8k:
    """Read the test split: 1,000 images.

    Raises:
        UsageError: ``UNIMOE_DATA`` is not set.
        DataError: a file is missing or malformed, or no caption is of the split's images.
    """
    data = os.environ.get("UNIMOE_DATA")
    if not data:
        raise UsageError("Flickr8k: no folder given; set UNIMOE_DATA to the folder that has flickr8k in it")
    folder = Path(data, "flickr8k")
    wanted = {image_stem(line) for _, line in text_lines(folder / "Flickr_8k.testImages.txt")}
    texts, caption_images = {}, {}
    for name, number, text in _captions(folder / "captions.txt"):
        if image_stem(name) in wanted:
            texts[f"{name}#{number}"] = text
            caption_images[f"{name}#{number}"] = image_stem(name)
    if not texts:
        raise DataError(f"{folder / 'captions.txt'}: no caption of an image of the test split; check the folder")
    features = NpzFile(folder / _FEATURES)
    for key in ("ids", "embeddings"):
        if key not in features.keys:
            raise DataError(f"{features.path}: lacks {key}; it has {', '.join(sorted(features.keys))}")
    image_ids = [image_stem(name) for name in features.texts("ids")]
    return Flickr8k(texts, caption_images, image_ids, features.read("embeddings"), str(folder))


def _captions(path: Path) -> list[tuple[str, int, str]]:
    """Return image name, number of the caption among the image's, and caption."""
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
