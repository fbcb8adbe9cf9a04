"""What translators are compared on: Flickr8k, a file, or generated pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from unimoe.config.dense import EncoderConfig
from unimoe.console import Steps, stderr
from unimoe.errors import UsageError, did_you_mean
from unimoe.studies.translator.data.caption_npz import load_pairs
from unimoe.studies.translator.data.caption_pairs import CaptionPairs

SOURCES = ("flickr8k", "generated", "generated-curved")


@dataclass(frozen=True)
class Source:
    """Pairs, and what results say about them.

    Attributes:
        name: of the data set.
        pairs: captions and images.
        texts: caption id to caption; null where there are none.
        encoder: identity of the captions' encoder; null where nobody knows.
        prompt: name and hash of its prefixes and lengths; likewise.
    """

    name: str
    pairs: CaptionPairs
    texts: Mapping[str, str] | None = None
    encoder: str | None = None
    prompt: str | None = None


def load_source(name: str, captions_txt: Path | None = None, encoder: str | None = None) -> Source:
    """Load pairs by name, with a line about what was left out.

    Args:
        name: ``flickr8k``, ``generated`` (a linear map), ``generated-curved``, or an NPZ file.
        captions_txt: which image each caption of a file belongs to, where the file does not say so itself.
        encoder: of Flickr8k's captions; by default the bundled one.

    Raises:
        UsageError: no such source.
        DataError: what it holds is malformed.
    """
    if name == "flickr8k":
        source = _flickr8k(encoder)
    elif name in SOURCES:
        from unimoe.studies.translator.training.generated import generated_pairs

        pairs, _ = generated_pairs(curvature=1.0 if name == "generated-curved" else 0.0)
        source = Source(name, pairs)
    elif name.endswith(".npz") or Path(name).exists():
        source = Source(Path(name).stem, load_pairs(Path(name), captions_txt))
    else:
        raise UsageError(
            f"--data {name}: unknown{did_you_mean(name, SOURCES)}; use {', '.join(SOURCES)} or an NPZ file"
        )
    for note in source.pairs.dropped.notes:
        stderr.print(f"note: {note}", soft_wrap=True)
    return source


def _flickr8k(encoder: str | None) -> Source:
    import torch

    from unimoe.models.encoder import load_encoder
    from unimoe.studies.translator.training.flickr8k import flickr8k_pairs

    config = EncoderConfig() if encoder is None else EncoderConfig(base=encoder)
    with Steps(1).step("flickr8k: captions embedded", None) as step:
        embedder = load_encoder(config, torch.device("cpu"), torch.float32)
        found = flickr8k_pairs(embedder, advance=step.advance)
        step.outcome = f"{len(found.pairs):,} captions of {len(found.pairs.image_ids):,} images"
    return Source("flickr8k", found.pairs, found.texts, found.encoder, found.prompt)
