"""The bi-encoder in training: an encoder of transformers, pooling, a linear layer without bias, unit length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from unimoe.core.errors import DataError, UsageError
from unimoe.models.batching import pad_ids
from unimoe.models.embedder import TextKind
from unimoe.models.encoder import Head, SentenceEncoder, load_transformer
from unimoe.models.encoder_files import EncoderFiles, read_encoder_files
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.common.initial_weight import initial_weight


class BiEncoder(nn.Module):
    """Embeds texts with gradients; weights are float32.

    Args:
        config: of the training.
        files: settings in the folder of the base.
        tokenizer: of the base.
        transformer: of the base, a model of transformers.
    """

    def __init__(self, config: BiEncoderConfig, files: EncoderFiles, tokenizer: Any, transformer: Any) -> None:
        super().__init__()
        self.files, self.tokenizer, self.transformer = files, tokenizer, transformer
        self.lengths: dict[TextKind, int | None] = {"query": config.query_length, "document": config.document_length}
        length = config.encoder.max_length if config.max_length is None else config.max_length
        self.encoder_config = config.encoder.model_copy(update={"max_length": length})
        self.head: nn.Linear | None = None
        if config.out_dim is not None:
            self.head = _linear(int(transformer.config.hidden_size), config.out_dim, config.head_init, config.seed)
        self.requires_grad_(True)
        _freeze(transformer, config)
        if not config.dropout:
            for module in transformer.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = self.transformer.device
        return device

    def embedder(self) -> SentenceEncoder:
        """Return the model as evaluation embeds with it, on the same weights; this sets eval mode."""
        self.eval()
        head = self.head
        heads: list[Head] = [] if head is None else [lambda pooled: head(pooled).float()]
        return SentenceEncoder(self.encoder_config, self.files, self.tokenizer, self.transformer, heads)

    @cached_property
    def base(self) -> SentenceEncoder:
        """The base without the linear layer; use it in eval mode only."""
        self.eval()
        return SentenceEncoder(self.encoder_config, self.files, self.tokenizer, self.transformer, [])

    def forward(self, sequences: Sequence[list[int]]) -> Tensor:
        """Return unit vectors ``(N, D)`` float32 of token ids, from one padded forward pass."""
        lengths = torch.tensor([len(ids) for ids in sequences], device=self.device)
        ids = pad_ids(sequences, self.device)
        mask = torch.arange(ids.shape[1], device=self.device) < lengths[:, None]
        padding = getattr(self.transformer.config, "pad_token_id", None)
        output = self.transformer(input_ids=ids.masked_fill(~mask, padding or 0), attention_mask=mask.long())
        return self.projected(_pooled(output.last_hidden_state.float(), mask, lengths, self.files.pooling))

    def projected(self, pooled: Tensor) -> Tensor:
        """Return unit vectors of pooled states ``(N, H)``; their length does not matter, as the layer has no bias."""
        return nn.functional.normalize(pooled if self.head is None else self.head(pooled).float(), dim=-1)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the trainable weights by name."""
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def token_ids(self, texts: Sequence[str], kind: TextKind) -> list[list[int]]:
        """Return token ids as evaluation does: with the prefix of the kind, cut to its length, with special tokens."""
        prefix = self.files.prefixes[kind]
        return self.base.token_ids([prefix + text for text in texts], self.lengths[kind])


def load_biencoder(config: BiEncoderConfig, device: torch.device) -> BiEncoder:
    """Load the base of a config, with a new linear layer, on a device.

    Raises:
        DataError: the base cannot be loaded, is not an encoder, or has a linear layer already.
        UsageError: ``out_dim`` is above the base's hidden size, or a length above its positions.
    """
    files = replace(read_encoder_files(config.encoder), similarity="cosine")  # what training compares by
    dense = next((folder for folder in files.after if folder is not None), None)
    if dense is not None:
        raise DataError(f"{dense}: encoder.base has a linear layer already; train from an encoder without one")
    tokenizer, transformer = load_transformer(config.encoder, files, torch.float32)
    hidden = int(transformer.config.hidden_size)
    if config.out_dim is not None and config.out_dim > hidden:
        raise UsageError(
            f"out_dim {config.out_dim} is above the {hidden} dimensions of {config.encoder.base}; lower it"
        )
    return BiEncoder(config, files, tokenizer, transformer).to(device)


def _linear(inputs: int, outputs: int, init: str, seed: int) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.Linear(inputs, outputs, bias=False)
    if init == "orthogonal":
        layer.weight.data.copy_(initial_weight("orthogonal", torch.empty(0, inputs), outputs, seed))
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


def _pooled(states: Tensor, mask: Tensor, lengths: Tensor, pooling: str) -> Tensor:
    """Return one vector for each text, ``(N, H)``, from right-padded states ``(N, L, H)``."""
    if pooling == "mean":
        return (states * mask.unsqueeze(-1)).sum(dim=1) / lengths[:, None]
    rows = torch.arange(len(lengths), device=states.device)
    return states[rows, torch.zeros_like(lengths) if pooling == "cls" else lengths - 1]
