"""Text encoders: sentence-transformers models and bare models of transformers, from a folder or the hub."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
import torch
from torch import Tensor, nn

from unimoe.config.base import EncoderConfig
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.core.io import hash_json
from unimoe.core.limits import shortened
from unimoe.models.batching import default_token_budget, to_device
from unimoe.models.embedder import Advance, TextKind, Vectors, refuse_zero_vectors
from unimoe.models.encoder_files import EncoderFiles, Pooling, read_encoder_files, read_settings
from unimoe.models.encoder_forward import EncoderForward, text_positions
from unimoe.models.memory import FittingBatches
from unimoe.models.pipeline import Gathered
from unimoe.models.prompts import well_formed
from unimoe.models.quiet import first_line, load_pretrained, quiet_loading

Head = Callable[[Tensor], Tensor]
"""A module that follows the pooling, on float32 vectors ``(N, D)``."""

_KNOWN = {
    "module_input_name": (None, "sentence_embedding"),
    "module_output_name": (None, "sentence_embedding"),
    "use_residual": (None, False),
}
"""Settings of a Dense that can change vectors, and the values that do not."""


def load_encoder(config: EncoderConfig, device: torch.device, dtype: torch.dtype) -> SentenceEncoder:
    """Load an encoder.

    Args:
        config: its name, and how texts are put to it.
        device: where it computes.
        dtype: the dtype of the transformer.

    Raises:
        DataError: it is not available, is no encoder, or its files are damaged or incomplete.
        UsageError: ``max_length`` exceeds the model's positions.
    """
    files = read_encoder_files(config)
    tokenizer, model = load_transformer(config, files, dtype)
    heads = [normalize if folder is None else dense(folder, device) for folder in files.after]
    try:
        return SentenceEncoder(config, files, tokenizer, model.to(device), heads)
    except (RuntimeError, IndexError) as error:  # torch's, of matrices whose shapes do not match
        raise DataError(
            f"encoder.base {config.base!r}: its modules do not fit together ({first_line(error)})"
        ) from None


class SentenceEncoder:
    """Embeds texts with an encoder; an ``Embedder``.

    Args:
        config: how texts are put to the model.
        files: the settings in its folder.
        tokenizer: its tokenizer.
        model: the transformers model, in eval mode, on its device.
        heads: the modules that follow the pooling.

    Attributes:
        max_length: tokens of one text, special tokens included.
        dimension: the width of a vector.
    """

    def __init__(
        self, config: EncoderConfig, files: EncoderFiles, tokenizer: Any, model: Any, heads: Sequence[Head]
    ) -> None:
        self._tokenizer, self._model, self._heads = tokenizer, model, heads
        self._fitting = FittingBatches("a text", "max_length")
        self._prefixes, self._pooling, self._unit = files.prefixes, files.pooling, files.similarity == "cosine"
        self.max_length = self._length(config, files)
        self._forward = EncoderForward(model, self.max_length)
        self.dimension = self._embed([[0]]).shape[1]
        self.base_identity = files.identity
        settings = [files.prefixes, files.pooling, self.max_length, files.lower_case, files.tokenizer_hash]
        self.prompt_name = f"{files.pooling}@{hash_json([*settings, *files.compared])}"

    @property
    def reduced_budget(self) -> int | None:
        """Tokens of a batch after memory ran out; None before."""
        return self._fitting.reduced

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self._model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the transformer; pooling and heads compute in float32."""
        dtype: torch.dtype = self._model.dtype
        return dtype

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: TextKind = "plain",
        prefix: str | None = None,
        max_length: int | None = None,
        token_budget: int | None = None,
        batch_size: int | None = None,
        advance: Advance | None = None,
    ) -> Vectors:
        """Embed texts; arguments and result as in ``Embedder``.

        Raises:
            InputError: a text has no tokens, or its embedding is not finite or zero; carries its index.
            UsageError: ``max_length`` leaves no room beside the special tokens.
            DataError: one text alone does not fit in memory.
        """
        before = self._prefixes[kind] if prefix is None else prefix
        sequences = self.token_ids([before + text for text in texts], max_length)
        gathered = Gathered(len(texts), _refuse_non_finite)
        for batch, embedded in self._fitting.run(
            sequences,
            lambda batch, _: self._embed([sequences[index] for index in batch]),
            budget=token_budget or default_token_budget(self.device),
            batch_size=batch_size,
        ):
            gathered.add(batch, embedded)
            if advance:
                advance(len(batch))
        found = gathered.values()
        if found is None:
            return np.empty((0, self.dimension), dtype=np.float32)
        vectors: Vectors = found.numpy()
        refuse_zero_vectors(vectors)
        return vectors

    def token_ids(self, texts: Sequence[str], max_length: int | None = None) -> list[list[int]]:
        """Return the token ids of texts without prefixes, special tokens added; errors are those of ``encode``."""
        length = self.max_length if max_length is None else min(self.max_length, max_length)
        special = self._tokenizer.num_special_tokens_to_add()
        if length <= special:
            raise UsageError(f"a length of {length} leaves no room beside the {special} special tokens; raise it")
        if not texts:
            return []
        sequences: list[list[int]] = self._tokenizer(
            [well_formed(text) for text in texts],
            truncation=True,
            max_length=length,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )["input_ids"]
        for index, ids in enumerate(sequences):
            if not ids:
                raise InputError(index, "the text has no tokens; remove it, or use an encoder with special tokens")
        return sequences

    @torch.inference_mode()
    def _embed(self, sequences: Sequence[list[int]]) -> Tensor:
        """Return the vectors of one batch on its device."""
        pooled = pool(self._forward(sequences), [len(ids) for ids in sequences], self._pooling)
        for head in self._heads:
            pooled = head(pooled)
        return normalize(pooled) if self._unit else pooled

    def _length(self, config: EncoderConfig, files: EncoderFiles) -> int:
        """Return the tokens of one text: the config's, else the folder's, else the tokenizer's, within the positions.

        Raises:
            UsageError: the configured length is above the positions.
        """
        positions = text_positions(self._model)
        if config.max_length is not None:
            _refuse_longer(config, positions)
            return config.max_length
        own = files.max_length or self._tokenizer.model_max_length
        if not isinstance(own, int | float) or own < 1:
            raise DataError(f"{files.transformer}: model_max_length {own!r} is no length; set encoder.max_length")
        return int(own if positions is None else min(own, positions))


def refuse_bad_length(config: EncoderConfig, files: EncoderFiles) -> None:
    """Refuse, by the files alone, a length that ``load_encoder`` refuses once it has the weights.

    Raises:
        UsageError: ``max_length`` exceeds the model's positions.
    """
    if config.max_length is None:
        return
    from transformers import AutoConfig, AutoModel

    trust, auto = {"trust_remote_code": config.trust_remote_code}, cast("Any", AutoModel)
    try:
        with quiet_loading(), torch.device("meta"):
            model = auto.from_config(AutoConfig.from_pretrained(files.transformer, **trust), **trust)
    except Exception:  # of many kinds; loading names what is damaged
        return
    _refuse_longer(config, text_positions(model))


def _refuse_longer(config: EncoderConfig, positions: int | None) -> None:
    if config.max_length is not None and positions is not None and config.max_length > positions:
        raise UsageError(f"encoder.max_length {config.max_length}: {config.base} has {positions} positions; lower it")


def _refuse_non_finite(batch: Sequence[int], vectors: Tensor) -> NoReturn:
    first = int(vectors.isfinite().all(dim=1).logical_not().nonzero()[0])
    raise InputError(batch[first], "the embedding is not finite; try encoder.dtype float32")


def load_transformer(config: EncoderConfig, files: EncoderFiles, dtype: torch.dtype) -> tuple[Any, Any]:
    """Load an encoder's tokenizer, and its model of transformers in eval mode.

    Raises:
        DataError: its files are damaged or incomplete, or it is no encoder alone.
    """
    from transformers import AutoModel

    try:
        tokenizer, model, absent = load_pretrained(
            AutoModel, files.transformer, dtype, trust_remote_code=config.trust_remote_code
        )
    except Exception as error:  # damaged files raise errors of many kinds, KeyError and plain Exception among them
        raise DataError(
            f"encoder.base {config.base!r} cannot be loaded ({first_line(error)}); "
            f"check the files in {files.transformer}"
        ) from None
    missing = [key for key in absent if "pooler" not in key.split(".")]
    if missing:
        raise DataError(f"encoder.base {config.base!r}: no weights for {missing[0]}; use a complete model")
    if model.config.is_encoder_decoder:
        raise DataError(
            f"encoder.base {config.base!r}: a {type(model).__name__} is an encoder and a decoder; use another"
        )
    if files.lower_case:
        _lower_case(tokenizer)
    return tokenizer, model.requires_grad_(False).eval()


def _lower_case(tokenizer: Any) -> None:
    from tokenizers.normalizers import Lowercase, Sequence

    fast = tokenizer.backend_tokenizer
    fast.normalizer = Sequence([Lowercase(), *([fast.normalizer] if fast.normalizer else [])])


def dense(folder: Path, device: torch.device) -> Head:
    """Load a Dense module of sentence-transformers: a linear layer and an activation.

    Raises:
        DataError: it has more than these, or its weights are missing.
    """
    path = folder / "config.json"
    settings = read_settings(path)
    name = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = _activation(name)
    if activation is None:
        raise DataError(f"{path}: activation {shortened(name)} is not supported; use another encoder")
    for key, known in _KNOWN.items():
        if settings.get(key) not in known:
            raise DataError(f"{path}: {key} {shortened(repr(settings[key]))} is not supported; use another encoder")
    weights = {name: tensor.float().to(device) for name, tensor in _read_weights(folder / "model.safetensors").items()}
    if "linear.weight" not in weights or (settings.get("bias", True) and "linear.bias" not in weights):
        raise DataError(f"{folder / 'model.safetensors'}: no linear.weight or linear.bias; save the model again")
    weight, bias = weights["linear.weight"], weights.get("linear.bias")
    return lambda vectors: activation(nn.functional.linear(vectors, weight, bias))


def _activation(name: str) -> Head | None:
    """Return an activation of torch by its dotted name; None if there is none, or it needs arguments."""
    kind = getattr(nn, name.rpartition(".")[2], None) if name.startswith("torch.nn.") else None
    if not isinstance(kind, type) or not issubclass(kind, nn.Module):
        return None
    try:
        return cast(Head, kind())
    except TypeError:
        return None


def _read_weights(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    try:
        weights: dict[str, Tensor] = load_file(path)
    except Exception as error:  # errors of the system, and safetensors' own
        raise DataError(f"{path}: cannot be read ({first_line(error)}); save the model again") from None
    return weights


def normalize(vectors: Tensor) -> Tensor:
    """Scale vectors ``(N, D)`` to unit length; a vector of zeros stays one."""
    return nn.functional.normalize(vectors, dim=-1)


def pool(states: Tensor, lengths: Sequence[int], pooling: Pooling) -> Tensor:
    """Return one float32 vector for each text, ``(N, H)``, from the states of all tokens ``(T, H)``."""
    (counts,) = to_device([np.array(lengths)], states.device)
    if pooling == "mean":
        return torch.segment_reduce(states.float(), "mean", lengths=counts)
    ends = counts.cumsum(0)
    return states[ends - counts if pooling == "cls" else ends - 1].float()
