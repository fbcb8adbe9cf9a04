"""Loading a base model: bundled, from a folder, or from the hub."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from unimoe.config import ModelConfig
from unimoe.errors import DataError
from unimoe.io import hash_file, hash_json, hash_parts
from unimoe.models.bundled import BUNDLED_ID, bundled_weights_hash, folder_named, prepared_bundled_model
from unimoe.models.matmul import quicken
from unimoe.models.quiet import first_line, load_pretrained

_SHORT = 192


@dataclass(frozen=True)
class BaseModel:
    """A base causal language model, ready to be adapted.

    Attributes:
        model: the transformers model, in eval mode, all weights frozen.
        tokenizer: its tokenizer.
        identity: logical id and content hash of the weights, ``id@hash``: the same on every machine, whatever the
            cache path, and different for other weights under the same id.
    """

    model: Any
    tokenizer: Any
    identity: str

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return len(self.model.model.layers)


def load_base(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> BaseModel:
    """Load the base model of a config.

    Raises:
        DataError: the model is not available, is no causal language model, or its files are damaged.
    """
    folder, identity = _locate(config)
    model, tokenizer = _load(config, folder, dtype)
    if not hasattr(getattr(model, "model", None), "layers"):
        raise DataError(f"{config.base}: a {type(model).__name__} has no decoder layers at model.layers; use another")
    model.requires_grad_(False).eval().to(device)
    quicken(model)
    model.set_attn_implementation(_attention(device, config.max_length))
    return BaseModel(model, tokenizer, identity or f"{config.base}@{_hub_hash(config, model)}")


def base_identity(config: ModelConfig) -> str | None:
    """Return the identity of a base model without loading it; None where only the hub knows it."""
    return _locate(config)[1]


@dataclass(frozen=True)
class BaseSizes:
    """How large a base model is.

    Attributes:
        parameters: all of them, tied ones once.
        embedding_parameters: those of the input embeddings.
        width: of the final states, which embeddings have too.
    """

    parameters: int
    embedding_parameters: int
    width: int


def base_sizes(config: ModelConfig) -> BaseSizes:
    """Return the sizes of a base model by its configuration, without its weights.

    Raises:
        DataError: the configuration is not available.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    source, _ = _locate(config)
    options = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    try:
        auto: Any = AutoModelForCausalLM
        with torch.device("meta"):
            model = auto.from_config(AutoConfig.from_pretrained(source, **options))
    except Exception as error:
        raise DataError(f"model.base {config.base!r}: its configuration cannot be read ({_reason(error)})") from None
    embeddings = model.get_input_embeddings().weight
    return BaseSizes(sum(weight.numel() for weight in model.parameters()), embeddings.numel(), embeddings.shape[1])


def _attention(device: torch.device, max_length: int) -> str:
    """Choose PyTorch's fused attention, except for short sequences on a CPU, where matrix products are faster.

    Measured on two cores with bfloat16 units at 96 tokens: 1.2 times the pairs per second, 1.3 times the training
    tokens. From about 256 tokens on, the quadratic intermediates cost more than they save.
    """
    return "eager" if device.type == "cpu" and max_length <= _SHORT else "sdpa"


def _locate(config: ModelConfig) -> tuple[str, str | None]:
    if config.base == BUNDLED_ID:
        prepared = prepared_bundled_model()
        return str(prepared), f"{BUNDLED_ID}@{bundled_weights_hash(prepared)}"
    if config.base.startswith("bundled:"):
        raise DataError(f"model.base {config.base!r}: unknown; the bundled model is {BUNDLED_ID}")
    folder = folder_named("model.base", config.base)
    if folder is not None:
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise DataError(f"{config.base}: no .safetensors file; save the model with save_pretrained()")
        return config.base, f"{folder.resolve().name}@{hash_parts(hash_file(file) for file in files)}"
    return config.base, None


def _load(config: ModelConfig, source: str, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM

    options = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    try:
        tokenizer, model, missing = load_pretrained(AutoModelForCausalLM, source, dtype, **options)
    except Exception as error:  # damaged files raise errors of many kinds, KeyError and plain Exception among them
        raise DataError(
            f"model.base {config.base!r} cannot be loaded ({_reason(error)}); "
            "check the id or folder, or connect to the hub"
        ) from None
    if missing:
        raise DataError(
            f"model.base {config.base!r}: no weights for {min(missing)}; "
            "use a causal language model that is saved with its output layer"
        )
    return model, tokenizer


def _reason(error: Exception) -> str:
    if "ignore_mismatched_sizes" in str(error):
        return "its weights have other shapes than its config.json says"
    return first_line(error)


def _hub_hash(config: ModelConfig, model: Any) -> str:
    """Return a hub model's commit; without one (an old cache), a hash of the sums of its weights."""
    commit = getattr(model.config, "_commit_hash", None)
    if commit:
        return str(commit)[:16]
    sums = {name: float(weight.double().sum()) for name, weight in model.state_dict().items()}
    return hash_json([config.base, sums])
