"""The data that translators are trained and compared on: an NPZ file, Flickr8k, or pairs generated from a known map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unimoe.core.console import Steps, stderr
from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.studies.translator.data.caption_npz import OPTION, Dims, load_pairs
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, build_pairs
from unimoe.studies.translator.data.flickr8k import read_flickr8k

_NAMES = ("flickr8k", "generated", "generated-curved")


@dataclass(frozen=True)
class Source:
    """Pairs, and what results say about them.

    Attributes:
        name: of the data set.
        pairs: captions and images.
        texts: caption id to caption, if known.
        encoder: identity of the captions' encoder, ``id@hash``, if known.
        prompt: name and hash of the encoder's prefixes and lengths, if known.
        origin: the arguments of ``load_source`` as JSON values, with whole paths, for other processes.
    """

    name: str
    pairs: CaptionPairs
    texts: Mapping[str, str] | None = None
    encoder: str | None = None
    prompt: str | None = None
    origin: Mapping[str, str | None] = field(default_factory=dict)


def load_source(
    name: str, captions_txt: Path | None = None, encoder: str | None = None, dims: Dims | None = None
) -> Source:
    """Load pairs by name, and print what was left out.

    Args:
        name: ``flickr8k``, ``generated`` (a linear map), ``generated-curved``, or an NPZ file.
        captions_txt: the image of each caption of a file, unless the file says so itself.
        encoder: of Flickr8k's captions; by default the bundled one.
        dims: the dimensions of captions and of images that are expected.

    Raises:
        UsageError: no such source.
        DataError: its content is malformed, or has other dimensions.
    """
    if captions_txt is not None and name in _NAMES:
        raise UsageError(f"--captions {captions_txt}: {name} says which image a caption is of; leave --captions out")
    if name == "flickr8k":
        source = _flickr8k(encoder)
    elif name in _NAMES:
        source = Source(name, generated_pairs(curvature=1.0 if name == "generated-curved" else 0.0)[0])
    elif name.endswith(".npz") or Path(name).exists():
        source = Source(Path(name).stem, load_pairs(Path(name), captions_txt, dims))
    else:
        raise UsageError(f"--data {name}: unknown{did_you_mean(name, _NAMES)}; use {', '.join(_NAMES)} or an NPZ file")
    found = source.pairs.captions.shape[1], source.pairs.images.shape[1]
    if dims is not None and dims != found:
        has, expected = ("{} and {}".format(*pair) for pair in (found, dims))
        raise DataError(f"{name}: captions and images have {has} dimensions, {OPTION} expects {expected}; correct it")
    for note in source.pairs.dropped.notes:
        stderr.print(f"note: {note}", soft_wrap=True)
    whole = name if name in _NAMES else str(Path(name).resolve())
    captions = None if captions_txt is None else str(captions_txt.resolve())
    return replace(source, origin={"name": whole, "captions_txt": captions, "encoder": encoder})


def generated_pairs(
    images: int = 1000,
    per_image: int = 5,
    dims: tuple[int, int] = (64, 96),
    noise: float = 1.0,
    curvature: float = 0.0,
    seed: int = 0,
) -> tuple[CaptionPairs, NDArray[np.float64]]:
    """Generate captions and images from a known map, to see what a translator recovers.

    The content of an image is a vector z of ``Dx`` independent normal numbers with scales from 1 down to .1. The image
    is ``A z`` plus ``curvature`` times a random quadratic map of z of the same spread; a caption is z with noise.

    Args:
        images: how many.
        per_image: captions of each.
        dims: of captions and of images, ``(Dx, Dy)``.
        noise: standard deviation of a caption's noise over that of z, the same in every direction.
        curvature: 0 for a linear map, which a closed form can recover.
        seed: of everything.

    Returns:
        The pairs, and the map ``A``, ``(Dy, Dx)``.
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


def _flickr8k(encoder: str | None) -> Source:
    """Embed the captions of Flickr8k's test split, or take them from the user's cache."""
    import torch

    from unimoe.config.base import EncoderConfig
    from unimoe.models.encoder import load_encoder
    from unimoe.retrieval.embeddings import cached_embeddings

    with Steps(1).step("flickr8k: vectors of captions and images", None) as step:
        data = read_flickr8k()
        config = EncoderConfig() if encoder is None else EncoderConfig(base=encoder)
        embedder = load_encoder(config, torch.device("cpu"), torch.float32)
        ids = list(data.texts)
        pairs = build_pairs(
            cached_embeddings(embedder, data.texts, "plain", advance=step.advance).of(ids),
            ids,
            [data.caption_images[caption_id] for caption_id in ids],
            data.images,
            data.image_ids,
            source=data.source,
        )
        step.outcome = f"{len(pairs):,} captions of {len(pairs.image_ids):,} images"
    return Source("flickr8k", pairs, data.texts, embedder.base_identity, embedder.prompt_name)
