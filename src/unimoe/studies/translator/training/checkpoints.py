"""Loads a trained translator and evaluates it."""

from __future__ import annotations

from pathlib import Path

import torch

from unimoe.core.errors import DataError
from unimoe.studies.translator.data.caption_pairs import CaptionPairs
from unimoe.studies.translator.evaluation import translated_pairs
from unimoe.studies.translator.models.files import load_closed_form, read_translator
from unimoe.studies.translator.models.interface import Translator
from unimoe.studies.translator.models.networks import network_from
from unimoe.studies.translator.models.ranking import image_ranks, rank_metrics

NETWORK = "network"
"""Kind of a checkpoint that holds a network."""


def load_translator(folder: Path, device: torch.device | None = None) -> Translator:
    """Load a translator of any kind from its checkpoint.

    Args:
        folder: the checkpoint.
        device: where a network computes; by default the CPU.

    Raises:
        DataError: it is missing, damaged or of an unknown kind.
    """
    stored = read_translator(folder)
    if stored.kind != NETWORK:
        return load_closed_form(folder)
    try:
        loaded = network_from(stored.tensors, stored.notes)
    except (KeyError, RuntimeError) as error:
        raise DataError(f"{folder}: not a network that this unimoe makes ({error}); train it again") from None
    loaded.network.to(device or torch.device("cpu"))
    return loaded


def evaluate(translator: Translator, pairs: CaptionPairs, device: torch.device) -> dict[str, float]:
    """Return MRR, Recall@K, ranks and gallery size of validation pairs among their own unique images.

    Raises:
        DataError: a caption or image has no direction, which is named.
    """
    translated, gallery = translated_pairs(translator, pairs, "validation")
    ranks = image_ranks(translated, gallery, pairs.image_of, image_ids=pairs.image_ids, device=device)
    return rank_metrics(ranks, len(pairs.image_ids))
