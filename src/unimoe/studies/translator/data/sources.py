"""The data that translators are trained and compared on: an NPZ file, Flickr8k, or pairs generated from a known map.

Flickr8k (Hodosh et al., 2013) is the folder ``flickr8k`` in the folder that ``UNIMOE_DATA`` names. It has
``captions.txt`` (``image,caption``), ``Flickr_8k.testImages.txt`` (a name on each line), and the CNN features (``ids``,
``embeddings``) of these 1,000 images.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unimoe.core.console import Steps, stderr
from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.trec import text_lines
from unimoe.studies.translator.data.caption_npz import NpzFile, check_dimensions, image_stem, load_pairs, read_captions
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, build_pairs

_NAMES = ("flickr8k", "generated", "generated-curved")
_FEATURES = "image-features-cnn512-test1000.npz"


@dataclass(frozen=True)
class NamedPairs:
    """Named pairs, and where known: captions by id, the encoder's identity ``id@hash``, name and hash of its prompt."""

    name: str
    pairs: CaptionPairs
    texts: Mapping[str, str] | None = None
    encoder: str | None = None
    prompt: str | None = None


def load_source(
    name: str, captions_txt: Path | None = None, encoder: str | None = None, dims: tuple[int, int] | None = None
) -> NamedPairs:
    """Load pairs by name, and print what was left out.

    The name is ``flickr8k``, ``generated`` (a linear map), ``generated-curved``, or an NPZ file. Only a file takes
    ``captions_txt``, only Flickr8k an ``encoder`` of its captions. ``dims`` are those that captions and images must
    have.
    """
    if captions_txt is not None and name in _NAMES:
        raise UsageError(f"--captions {captions_txt}: {name} says which image a caption is of; leave --captions out")
    if name == "flickr8k":
        source = _flickr8k(encoder)
    elif name in _NAMES:
        source = NamedPairs(name, generated_pairs(curvature=1.0 if name == "generated-curved" else 0.0)[0])
    elif name.endswith(".npz") or Path(name).exists():
        source = NamedPairs(Path(name).stem, load_pairs(Path(name), captions_txt))
    else:
        raise UsageError(f"--data {name}: unknown{did_you_mean(name, _NAMES)}; use {', '.join(_NAMES)} or an NPZ file")
    if dims is not None:
        both = {"captions": source.pairs.captions, "images": source.pairs.images}
        for (side, vectors), expected in zip(both.items(), dims, strict=True):
            check_dimensions(f"{name}: {side}", side, vectors.shape[1], expected, "--dims")
    for note in source.pairs.notes:
        stderr.print(f"note: {note}", soft_wrap=True)
    return source


def generated_pairs(
    images: int = 1000,
    per_image: int = 5,
    dims: tuple[int, int] = (64, 96),
    noise: float = 1.0,
    curvature: float = 0.0,
    seed: int = 0,
) -> tuple[CaptionPairs, NDArray[np.float64]]:
    """Generate captions and images from a known map ``A`` ``(Dy, Dx)``, to see what a translator recovers of it.

    The content of an image is a vector z of ``Dx`` independent normal numbers with scales from 1 down to .1. The image
    is ``A z`` plus ``curvature`` times a random quadratic map of z of the same spread; a caption is z with noise, whose
    standard deviation in every direction is ``noise`` times that of z. Returns the pairs and ``A``.
    """
    inputs, outputs = dims
    rng = np.random.default_rng(seed)
    scales = np.geomspace(1.0, 0.1, inputs)
    content = rng.standard_normal((images, inputs)) * scales
    matrix = rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)
    vectors = content @ matrix.T
    if curvature:
        factors = [content @ rng.standard_normal((inputs, outputs)) for _ in range(2)]
        squares = factors[0] * factors[1]
        vectors += curvature * vectors.std() / squares.std() * squares
    image_of = np.repeat(np.arange(images), per_image)
    captions = content[image_of] + noise * scales * rng.standard_normal((len(image_of), inputs))
    pairs = CaptionPairs(
        captions=captions.astype(np.float32),
        caption_ids=[f"g{image:05}#{number}" for image in range(images) for number in range(per_image)],
        images=vectors.astype(np.float32),
        image_ids=[f"g{image:05}" for image in range(images)],
        image_of=image_of,
    )
    return pairs, matrix


def _flickr8k(encoder: str | None) -> NamedPairs:
    """Embed the captions of Flickr8k's test split, or take them from the user's cache."""
    import torch

    from unimoe.config.base import EncoderConfig
    from unimoe.models.encoder import load_encoder
    from unimoe.retrieval.embeddings import cached_embeddings

    data = os.environ.get("UNIMOE_DATA")
    if not data:
        raise UsageError("Flickr8k: no folder given; set UNIMOE_DATA to the folder that has flickr8k in it")
    folder = Path(data, "flickr8k")
    with Steps(1).step("flickr8k: vectors of captions and images", None) as step:
        texts = _flickr8k_captions(folder)
        features = NpzFile(folder / _FEATURES)
        features.require(("ids", "embeddings"))
        config = EncoderConfig() if encoder is None else EncoderConfig(base=encoder)
        embedder = load_encoder(config, torch.device("cpu"), torch.float32)
        pairs = build_pairs(
            cached_embeddings(embedder, texts, "plain", advance=step.advance).of(list(texts)),
            list(texts),
            [image_stem(caption_id.rpartition("#")[0]) for caption_id in texts],
            features.read("embeddings"),
            [image_stem(name) for name in features.texts("ids")],
            source=str(folder),
        )
        step.outcome = f"{len(pairs):,} captions of {len(pairs.image_ids):,} images"
    return NamedPairs("flickr8k", pairs, texts, embedder.base_identity, embedder.prompt_name)


def _flickr8k_captions(folder: Path) -> dict[str, str]:
    """Return the captions of the test split by id, ``name.jpg#0`` and so on."""
    path = folder / "captions.txt"
    wanted = {image_stem(line) for _, line in text_lines(folder / "Flickr_8k.testImages.txt")}
    texts: dict[str, str] = {}
    counts = Counter[str]()
    for name, text in read_captions(path):
        if image_stem(name) in wanted:
            texts[f"{name}#{counts[name]}"] = text
            counts[name] += 1
    if not texts:
        raise DataError(f"{path}: no caption of an image of the test split; check the folder")
    return texts
