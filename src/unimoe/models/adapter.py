"""LoRA adapters through PEFT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unimoe.config.training import LoraConfig
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.core.io import hash_json
from unimoe.models.adapter_files import put_adapter
from unimoe.models.base import BaseModel, decoder_layers, decoder_of
from unimoe.models.identity import content_hash
from unimoe.models.model_files import first_line, silence_transformers
from unimoe.models.own_code import ELSEWHERE


def add_lora(base: BaseModel, config: LoraConfig, seed: int) -> Any:
    """Add new adapters, initialised from ``seed``, to a base model and return the PEFT model.

    The adapters have the base model's dtype: float32 adapters on a bfloat16 base spend more time in conversions than in
    arithmetic. Training keeps float32 master copies instead.
    """
    import peft

    _refuse_adapted(base)
    first_layer = config.first_of(base.layers)
    refuse_unknown_modules(config.target_modules, decoder_layers(decoder_of(base.model)))
    torch.manual_seed(seed)
    settings = peft.LoraConfig(
        r=config.r,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=list(config.target_modules),
        layers_to_transform=list(range(first_layer, base.layers)),
        task_type="CAUSAL_LM",
    )
    try:
        with silence_transformers():
            model = peft.get_peft_model(base.model, settings, autocast_adapter_dtype=False)
    except ValueError as error:
        raise UsageError(f"lora.target_modules: {first_line(error)}") from None
    return model


def refuse_unknown_modules(wanted: Sequence[str], layers: nn.Module) -> None:
    """Refuse names that no linear layer among some modules has: PEFT ignores one as long as another matches."""
    from transformers.pytorch_utils import Conv1D  # GPT-2's

    linear = [name for name, module in layers.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    known = sorted({name.rpartition(".")[2] for name in linear})
    for module in wanted:
        if module.rpartition(".")[2] not in known:
            close = did_you_mean(module, known) or f"; there is {', '.join(known)}"
            raise UsageError(f"lora.target_modules: no linear layer {module!r} in this model{close}")


def load_lora(base: BaseModel, folder: Path) -> Any:
    """Add the adapters saved in ``folder`` to a base model, frozen, and return the PEFT model."""
    _refuse_adapted(base)
    return put_adapter(base.model, folder, base.identity)


def adapted_identity(base: str, folder: Path) -> str:
    """Return how results know a base of this identity with the adapters saved in ``folder``."""
    return f"{folder.resolve().name}@{hash_json([content_hash(folder), base])}"


def _refuse_adapted(base: BaseModel) -> None:
    if base.adapted:
        raise UsageError(f"{base.identity} is an adapter and gets no other; merge it into its base, and save that")


def merge_lora(base: BaseModel, exact: BaseModel, folder: Path) -> None:
    """Add the adapters saved in ``folder`` to the weights of a base model.

    They are merged into ``exact``, the same model in float32, which is used up.
    """
    merged = load_lora(exact, folder).merge_and_unload()
    base.model.load_state_dict(merged.state_dict())


def adapted_model(model: Any) -> Any:
    """Return the model of transformers inside one of PEFT, with the adapters in its layers; any other as it is."""
    if not hasattr(model, "get_base_model"):
        return model
    settings = model.active_peft_config
    if settings.is_prompt_learning:
        raise UsageError(
            f"a PEFT model of {settings.peft_type.value} puts states of its own before every text, which would be "
            "missed; give one whose adapters are in its layers, such as LoRA's"
        )
    return model.get_base_model()


def output_layer(model: Any) -> Any:
    """Return the layer of a causal language model that gives logits, which no adapter may change."""
    head = model.get_output_embeddings()
    if head is None:
        raise UsageError(f"a {type(model).__name__} gives no logits of tokens; give a causal language model")
    if not isinstance(getattr(head, "weight", None), Tensor):  # MiniCPM's layerwise reranker has a head for each layer
        raise UsageError(f"a {type(model).__name__} has no output matrix that gives the logits of tokens; {ELSEWHERE}")
    if hasattr(head, "get_base_layer") and not getattr(head, "merged", False):
        raise UsageError(
            "adapters of PEFT on the output layer would be missed; give what their model's merge_and_unload() returns"
        )
    return head


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name, sorted."""
    return {name: weight for name, weight in sorted(model.named_parameters()) if weight.requires_grad}
