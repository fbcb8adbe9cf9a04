"""LoRA for trained models of sentence-transformers: its settings, new adapters, and the base that their files name.

The library saves a model with adapters as a folder of them, and loads its base with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from unimoe.config.base import BUNDLED_ENCODER, Count, Section
from unimoe.core.errors import UsageError
from unimoe.models.adapter_files import name_base
from unimoe.models.identity import transformer_folder
from unimoe.models.model_files import first_line, silence_transformers

_BUNDLED_ON_HUB = "sentence-transformers/all-MiniLM-L6-v2"
_POOLER = r"(.*\.)?pooler(\..*)?"


class AdapterConfig(Section):
    """LoRA: the base keeps its weights, and products of two small matrices that are added to them train.

    Attributes:
        rank: rank of the products.
        alpha: their scale; they are multiplied by ``alpha / rank``.
        dropout: probability of dropout on each adapter's input, in training.
        target_modules: names of the linear layers that get an adapter, or ``all-linear``; null for PEFT's choice for
            the architecture, in most of them the queries and values of attention.
    """

    rank: Annotated[int, Field(ge=1, le=4096)] = 8
    alpha: Count = 16
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: Annotated[list[str], Field(min_length=1)] | Literal["all-linear"] | None = None


def add_adapters(transformer: Any, config: AdapterConfig, seed: int, heads: Sequence[str] = ()) -> None:
    """Freeze a transformer, and add new adapters, initialised from ``seed``, and copies of its heads, which train.

    A pooler gets no adapter: it is one of the heads, or the embedding does not use it.
    """
    import peft
    import torch

    from unimoe.models.adapter import refuse_unknown_modules

    wanted = config.target_modules
    if isinstance(wanted, list):
        refuse_unknown_modules(wanted, transformer)
    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=wanted,
        exclude_modules=_POOLER,
        modules_to_save=list(heads) or None,
        task_type="SEQ_CLS" if heads else "FEATURE_EXTRACTION",
    )
    transformer.requires_grad_(False)
    device = transformer.device
    # Random numbers of their own: dropout and the heads draw what they draw without adapters.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), silence_transformers():
        torch.manual_seed(seed)
        try:
            transformer.add_adapter(settings)
        except ValueError as error:
            if wanted is None:
                kind = transformer.config.model_type
                raise UsageError(
                    f"lora.target_modules: PEFT has no choice for {kind}; set it to all-linear, or to names of layers"
                ) from None
            raise UsageError(f"lora.target_modules: {first_line(error)}") from None


def name_trained_base(folder: Path, base: str, revision: str | None) -> None:
    """Name the base, called so in a config, in the adapter's settings in a folder, as the libraries find it."""
    if base == BUNDLED_ENCODER:
        base = _BUNDLED_ON_HUB
    elif Path(base).is_dir():
        base = str(transformer_folder(Path(base)))
    name_base(folder, base, revision)
