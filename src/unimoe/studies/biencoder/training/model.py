"""The bi-encoder in training: an encoder of transformers, pooling, a linear layer without bias, unit length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from torch import Tensor, nn

from unimoe.config.base import EncoderConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.models.batching import pad_ids
from unimoe.models.embedder import TextKind
from unimoe.models.encoder import SentenceEncoder, load_encoder
from unimoe.studies.biencoder.config import BiEncoderConfig


class BiEncoder(nn.Module):
    """Embeds texts with gradients; weights are float32.

    Args:
        config: of the training.
        base: the encoder that is trained: a transformer and a pooling, which are shared with it.
    """

    def __init__(self, config: BiEncoderConfig, base: SentenceEncoder) -> None:
        super().__init__()
        self._base = base
        self.encoder_config = _encoder_config(config)
        transformer: Any = base.model.transformers_model
        self.transformer = transformer
        self.pooling = next(module for module in base.model if isinstance(module, Pooling))
        self.lengths: dict[TextKind, int | None] = {"query": config.query_length, "document": config.document_length}
        self.head: nn.Linear | None = None
        if config.out_dim is not None:
            width = self.pooling.pooling_output_dimension
            self.head = _linear(width, config.out_dim, config.head_init, config.seed).to(base.device)
        self.requires_grad_(True)
        _freeze(transformer, config)
        if not config.dropout:
            for part in transformer.modules():
                if isinstance(part, nn.Dropout):
                    part.p = 0.0

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._base.device

    @property
    def base(self) -> SentenceEncoder:
        """The base without the linear layer, on the same weights; this sets eval mode."""
        self.eval()
        return self._base

    def embedder(self) -> SentenceEncoder:
        """Return the model as evaluation embeds with it, on the same weights; this sets eval mode."""
        base = self.base
        modules = [base.model[0], self.pooling]
        if self.head is not None:
            dense = Dense(self.head.in_features, self.head.out_features, bias=False, activation_function=None)
            dense.linear = self.head
            modules.append(dense)
        model = SentenceTransformer(
            modules=modules,
            device=str(self.device),
            prompts={name: prompt or "" for name, prompt in base.model.prompts.items()},
            default_prompt_name=base.model.default_prompt_name,
        )
        return SentenceEncoder(model, self.encoder_config, base.base_identity, "in training")

    def forward(self, sequences: Sequence[list[int]]) -> Tensor:
        """Return unit vectors ``(N, D)`` float32 of token ids, from one padded forward pass."""
        lengths = torch.tensor([len(ids) for ids in sequences], device=self.device)
        ids = pad_ids(sequences, self.device)
        mask = torch.arange(ids.shape[1], device=self.device) < lengths[:, None]
        padding = getattr(self.transformer.config, "pad_token_id", None)
        features = {"input_ids": ids.masked_fill(~mask, padding or 0), "attention_mask": mask.long()}
        pooled: Tensor = self.pooling(self._base.model[0](features))["sentence_embedding"]
        return self.projected(pooled)

    def projected(self, pooled: Tensor) -> Tensor:
        """Return unit vectors of pooled states ``(N, H)``; their length does not matter, as the layer has no bias."""
        return nn.functional.normalize(pooled if self.head is None else self.head(pooled).float(), dim=-1)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the trainable weights by name."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def token_ids(self, texts: Sequence[str], kind: TextKind) -> list[list[int]]:
        """Return token ids as evaluation does: with the prefix of the kind, cut to its length, with special tokens."""
        prefix = self._base.prefixes[kind]
        return self._base.token_ids([prefix + text for text in texts], self.lengths[kind])


def load_biencoder(config: BiEncoderConfig, device: torch.device) -> BiEncoder:
    """Load the base of a config, with a new linear layer, on a device.

    Raises:
        DataError: the base cannot be loaded, or is more than a transformer and a pooling.
        UsageError: ``out_dim`` is above the base's width, or a length above its positions.
    """
    base = load_encoder(_encoder_config(config), device, torch.float32)
    kinds = [type(module) for module in base.model]
    if kinds[:2] != [Transformer, Pooling] or set(kinds[2:]) - {Normalize}:
        found = ", ".join(kind.__name__ for kind in kinds)
        raise DataError(
            f"encoder.base {config.encoder.base!r} is of {found}; train from an encoder of Transformer and Pooling"
        )
    pooling = base.model[1]
    assert isinstance(pooling, Pooling)  # noqa: S101
    if not pooling.include_prompt:
        raise DataError(f"encoder.base {config.encoder.base!r} does not pool its prompts; set encoder.pooling to do so")
    width = pooling.pooling_output_dimension
    if config.out_dim is not None and config.out_dim > width:
        raise UsageError(f"out_dim {config.out_dim} is above the {width} dimensions of {config.encoder.base}; lower it")
    return BiEncoder(config, base)


def _encoder_config(config: BiEncoderConfig) -> EncoderConfig:
    length = config.encoder.max_length if config.max_length is None else config.max_length
    return config.encoder.model_copy(update={"max_length": length})


def _linear(inputs: int, outputs: int, init: str, seed: int) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.Linear(inputs, outputs, bias=False)
    if init == "orthogonal":
        nn.init.orthogonal_(layer.weight, generator=torch.Generator().manual_seed(seed))
    return layer


def _freeze(transformer: Any, config: BiEncoderConfig) -> None:
    """Freeze weights as the config says, and those of the pooler, which the embedding does not use."""
    if config.freeze_base:
        transformer.requires_grad_(False)
    if config.frozen_layers:
        layers = max((m for m in transformer.modules() if isinstance(m, nn.ModuleList)), key=len, default=())
        if config.frozen_layers >= len(layers):
            raise UsageError(
                f"frozen_layers {config.frozen_layers}: {config.encoder.base} has {len(layers)} layers; lower it, "
                "or set freeze_base"
            )
        transformer.requires_grad_(False)
        for part in (*list(layers)[config.frozen_layers :], *_after(transformer, layers)):
            part.requires_grad_(True)
    for name, module in transformer.named_modules():
        if name.rpartition(".")[2] == "pooler":
            module.requires_grad_(False)


def _after(transformer: Any, layers: Any) -> list[nn.Module]:
    """Return the modules that compute after the last layer alone, such as a final norm, by a pass of two tokens."""
    inside = {module for layer in layers for module in layer.modules()}
    called: list[nn.Module] = []
    watched = [module for module in transformer.modules() if module not in inside and not list(module.children())]
    hooks = [module.register_forward_hook(lambda part, *_: called.append(part)) for module in [*watched, layers[-1]]]
    try:
        with torch.no_grad():
            transformer(input_ids=torch.zeros(1, 2, dtype=torch.long, device=transformer.device))
    finally:
        for hook in hooks:
            hook.remove()
    last = len(called) - called[::-1].index(layers[-1])
    return [part for part in called[last:] if part not in called[:last]]
