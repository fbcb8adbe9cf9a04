"""Base models: bundled, from a folder or from the hub, whole or their first layers; and what their settings say."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from unimoe.config import ModelConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_json
from unimoe.models.bundled import BUNDLED_ID, BUNDLED_LAYERS
from unimoe.models.folder import ModelFolder, find_folder
from unimoe.models.model_files import folders_tokenizer, load_pretrained, loading
from unimoe.models.own_code import or_own_code, refuse_unknown_class

_ONLY_KIND = "full_attention"
_FACTORS = {"logit_scale": ("cohere", 1), "lm_head_multiplier": ("falcon_h1", 1), "logits_scaling": ("granite", -1)}
"""Settings that multiply logits, or divide them (-1), in models of a kind that begins so."""

LIKE_LLAMA = {
    f"transformers.models.{name}.modeling_{name}" for name in ("llama", "mistral", "qwen2", "qwen3", "smollm3")
}
"""Modules of layers that add their attention and then their feed-forward part, each after one norm, and do no more."""

_REMEDY = "check the id or folder, or connect to the hub"


@dataclass(frozen=True)
class BaseModel:
    """A base causal language model, ready to be adapted: of transformers, in eval mode, all weights frozen."""

    model: Any
    tokenizer: Any
    identity: str  # name and content hash of all files, ``id@hash``; ``id:layers@hash`` with ``model.layers``
    adapted: bool = False  # whether its layers hold adapters of its folder, in addition to the weights

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(decoder_layers(decoder_of(self.model)))


def load_base(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> BaseModel:
    """Load the base model of a config."""
    from transformers import AutoModelForCausalLM

    folder = find_base(config)
    if not (config.trust_remote_code and "AutoModelForCausalLM" in (folder.config.get("auto_map") or {})):
        refuse_unknown_class(f"model.base {config.base!r}", folder.architecture, trusted=config.trust_remote_code)
    identity = _identity(config, folder)
    kept = None if config.layers is None else _configuration(config)
    remedy = f"delete {folder.root}, and run again" if folder.is_bundled else _REMEDY
    with loading(f"model.base {config.base!r} cannot be loaded", remedy):
        tokenizer, model, missing = load_pretrained(AutoModelForCausalLM, folder, dtype, config=kept)
    if folder.base:
        model = model.get_base_model()  # its layers hold the adapters now
    if missing:
        raise DataError(
            f"model.base {config.base!r}: no weights for {min(missing)}; "
            f"use a causal language model that is saved with its output layer{or_own_code(model)}"
        )
    if decoder_layers(decoder_of(model)) is None:
        raise DataError(f"{config.base}: a {type(model).__name__} has no decoder layers at model.layers; use another")
    model.requires_grad_(False).eval().to(device)
    if device.type == "cuda":
        use_one_kernel_norms(model)
    return BaseModel(model, tokenizer, identity, adapted=folder.base is not None)


class OneKernelNorm(nn.Module):
    """A norm of Llama's kind, in one kernel of a GPU: transformers' six take a quarter of a pass over 0.6 B weights."""

    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states, normalised in float32 and multiplied by the weight."""
        return nn.functional.rms_norm(states, self.weight.shape, self.weight, self.variance_epsilon)


def use_one_kernel_norms(model: Any) -> None:
    """Let the norms of a model ``LIKE_LLAMA`` compute in one kernel, with the weights they have."""
    for module in model.modules():
        if type(module).__module__ in LIKE_LLAMA and type(module).__name__.endswith("RMSNorm"):
            module.__class__ = OneKernelNorm


def load_tokenizer(config: ModelConfig) -> Any:
    """Load the tokenizer of a base model alone."""
    with loading(f"model.base {config.base!r}: its tokenizer cannot be loaded", _REMEDY):
        return folders_tokenizer(find_base(config, weights=False))


def find_base(config: ModelConfig, *, weights: bool = True) -> ModelFolder:
    """Find the folder of a base model; without ``weights`` those of the hub are not downloaded."""
    if config.base.startswith("bundled:") and config.base != BUNDLED_ID:
        raise DataError(f"model.base {config.base!r}: unknown; the bundled model is {BUNDLED_ID}")
    trust = config.trust_remote_code
    return find_folder("model.base", config.base, config.revision, trust_remote_code=trust, weights=weights)


def base_identity(config: ModelConfig) -> str:
    """Return the identity of a base model without loading it."""
    return _identity(config, find_base(config, weights=False))


def _identity(config: ModelConfig, folder: ModelFolder) -> str:
    if config.layers is None:
        return folder.identity
    return f"{folder.label}:{config.layers}@{hash_json([folder.content, config.layers])}"


def decoder_of(model: Any) -> Any:
    """Return what gives a causal language model's final states, such as Llama's ``model``; None with an encoder."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return None
    stack = getattr(model, "model", None) or getattr(model, "base_model", None)
    return getattr(stack, "decoder", stack)  # OPT has one more module around it


def decoder_layers(decoder: Any) -> Any:
    """Return the layers of a stack, which GPT-2 calls ``h``; None where it has none."""
    return getattr(decoder, "layers", getattr(decoder, "h", None))


def with_modules(decoder: Any, **modules: nn.Module) -> Any:
    """Return a shallow copy with some child modules replaced; it shares the others, and all weights."""
    twin = copy.copy(decoder)
    twin._modules = {**decoder._modules, **modules}
    return twin


def base_layers(config: ModelConfig) -> list[str]:
    """Return the kind of each layer that is kept of a base model."""
    if config.base == BUNDLED_ID:  # known before its half minute of preparation
        return [_ONLY_KIND] * _kept_layers(config, BUNDLED_LAYERS)
    return layer_kinds(_configuration(config).get_text_config())


def model_type(config: ModelConfig) -> str:
    """Return the kind of a base model as transformers names it, such as ``qwen3``, by its configuration."""
    return "llama" if config.base == BUNDLED_ID else str(_configuration(config).model_type)


def base_architecture(config: ModelConfig) -> str:
    """Return the class that a base model was saved as, by its configuration; an empty string where it names none."""
    return "LlamaForCausalLM" if config.base == BUNDLED_ID else str((_configuration(config).architectures or [""])[0])


def _configuration(config: ModelConfig) -> Any:
    """Return the configuration by which transformers builds a base model, of the kept layers alone."""
    from transformers import AutoConfig

    with loading(f"model.base {config.base!r}: its configuration cannot be read", _REMEDY):
        place = find_base(config, weights=False).whole.inner
        found: Any = AutoConfig.from_pretrained(place, trust_remote_code=config.trust_remote_code)
        text = found.get_text_config()
        kept = _kept_layers(config, text.num_hidden_layers)
        if kept < text.num_hidden_layers:
            for name in per_layer_settings(text):
                setattr(text, name, getattr(text, name)[:kept])
            text.num_hidden_layers = kept
    return found


def refuse_own_code(config: ModelConfig) -> None:
    """Refuse a base model that needs code of its own which may not run, before hours of other work."""
    if config.trust_remote_code or config.base == BUNDLED_ID:
        return
    folder = find_base(config, weights=False)
    if folder.config.get("auto_map"):  # else its load alone tells, and nothing has to be imported for this
        _configuration(config)
        refuse_unknown_class(f"model.base {config.base!r}", folder.architecture, trusted=False)


def _kept_layers(config: ModelConfig, layers: int) -> int:
    if config.layers is not None and config.layers > layers:
        raise UsageError(
            f"model.layers {config.layers}: {config.base} has {layers} layers; give {layers} at most, or null for all"
        )
    return config.layers or layers


@dataclass(frozen=True)
class BaseSizes:
    """How large the kept layers of a base model are; tied weights count once."""

    parameters: int
    embedding_parameters: int
    width: int  # of the final states, which embeddings have too


def base_sizes(config: ModelConfig) -> BaseSizes:
    """Return the sizes of a base model by its configuration, without its weights."""
    import transformers

    found = _configuration(config)
    with loading(f"model.base {config.base!r}: its class cannot be built", _REMEDY), torch.device("meta"):
        model = getattr(transformers, base_architecture(config))(found)
    embeddings = model.get_input_embeddings().weight
    return BaseSizes(sum(weight.numel() for weight in model.parameters()), embeddings.numel(), embeddings.shape[1])


def layer_kinds(config: Any) -> list[str]:
    """Return the kind of each layer of a decoder, such as ``sliding_attention``, by its configuration."""
    return getattr(config, "layer_types", None) or [_ONLY_KIND] * config.num_hidden_layers


def per_layer_settings(config: Any) -> list[str]:
    """Return the names of a decoder's settings that have an entry for each layer, such as kinds of attention."""
    lists = {name: value for name, value in vars(config).items() if isinstance(value, list | tuple)}
    sized = [name for name, value in lists.items() if len(value) == config.num_hidden_layers]
    return sorted(name for name in sized if not name.endswith("token_id") and name != "architectures")


def logit_changes(config: Any) -> tuple[float, float | None]:
    """Return by what a model multiplies the products of states and output matrix, and the bound of its soft cap."""
    factor = 1.0
    for setting in (*_FACTORS, "output_multiplier", "logits_soft_cap", "output_logit_soft_cap"):
        value = getattr(config, setting, None)
        if value in (None, 1):
            continue
        kind, exponent = _FACTORS.get(setting, ("", 0))
        if not exponent or not config.model_type.startswith(kind):
            raise UsageError(
                f"a {config.model_type} model changes its logits ({setting}), which its yes/no margin would miss"
            )
        factor *= float(value) ** exponent
    return factor, getattr(config, "final_logit_softcapping", None)


def is_bidirectional(config: Any) -> bool:
    """Return whether the tokens of a decoder see those after them, by its configuration."""
    everywhere = getattr(config, "use_bidirectional_attention", None) in (True, "all")
    return everywhere or not getattr(config, "is_causal", True)


def position_limit(model: Any) -> int | None:
    """Return the tokens of a model's longest sequence by its table of positions; None where it has none that ends.

    Rotations and relative positions have no end. RoBERTa and its relatives count from the padding's id plus one.
    """
    for module in model.modules():
        for name in ("position_embeddings", "wpe", "embed_positions"):
            table = module._modules.get(name)
            if isinstance(table, nn.Embedding):
                padding = getattr(module, "padding_idx", None) if name == "position_embeddings" else None
                before = getattr(table, "offset", 0) if padding is None else padding + 1
                return table.num_embeddings - int(before)
    return None


def refuse_beyond_positions(model: Any, max_length: int) -> None:
    """Raise a ``UsageError`` about sequences that are longer than a model's table of positions."""
    limit = position_limit(model)
    if limit is not None and max_length > limit:
        raise UsageError(f"model.max_length {max_length}: this model has {limit} positions; lower it to {limit}")


def refuse_dependent_states(config: Any, max_length: int) -> None:
    """Raise a ``UsageError`` about a decoder with states that depend on later tokens, or on a batch's longest text."""
    if is_bidirectional(config):
        raise UsageError(
            f"a {config.model_type} model of bidirectional attention is scored and embedded as a causal one here; "
            "name it with encoder: to embed"
        )
    limit, name = rotation_limit(config) or (max_length, "")
    if max_length > limit:
        raise UsageError(
            f"model.max_length {max_length}: beyond {limit} tokens a {config.model_type} model of {name} RoPE "
            f"rotates all texts of a batch by the longest; lower it to {limit}"
        )


def rotation_limit(config: Any) -> tuple[int, str] | None:
    """Return the tokens beyond which a decoder rotates all texts of a batch by the longest, and its kind of RoPE."""
    stated = getattr(config, "rope_parameters", None) or {}
    found = []
    for kind in [stated] if "rope_type" in stated else filter(lambda each: isinstance(each, dict), stated.values()):
        if (name := kind.get("rope_type")) == "longrope":
            found.append((int(kind["original_max_position_embeddings"]), name))
        elif name == "dynamic":
            found.append((int(config.max_position_embeddings), name))
    return min(found, default=None)
