"""Text encoders: models of sentence-transformers and bare models of transformers, from a folder or the hub.

``SentenceTransformer`` loads and computes them, whatever their modules are. What is added here: batches of a budget of
tokens, sorted by length, and smaller ones where memory runs out; a transformer in low precision under pooling and heads
in float32; prefixes of the config; and errors that say what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unimoe.config.base import EncoderConfig
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.core.io import hash_json
from unimoe.models.base import BaseSizes
from unimoe.models.batching import FittingBatches, default_token_budget, gather, to_device
from unimoe.models.bundled import bundled_encoder_folder
from unimoe.models.device import compute_in_float32
from unimoe.models.embedder import Advance, Embedder, TextKind, Vectors, refuse_zero_vectors
from unimoe.models.folder import ModelFolder, find_folder, loadable
from unimoe.models.identity import module_folders, read_settings, settings_hash
from unimoe.models.model_files import loading, missing_weights, refuse_another_vocabulary
from unimoe.models.prompts import well_formed

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

POOLINGS = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", "none")
"""Names of sentence-transformers' poolings; ``none`` where the first module gives a vector for a text."""

META = torch.device("meta")
"""Where an encoder has no weights: it is loaded in a moment, knows its settings and sizes, and embeds nothing."""

_LONGEST = 10**6
"""Tokens of a text where a model sets no limit."""


def load_encoder(
    config: EncoderConfig, device: torch.device, dtype: torch.dtype, key: str = "encoder"
) -> SentenceEncoder:
    """Load an encoder, to compute on ``device``, or ``META``; errors name ``key``, the place of its settings."""
    from sentence_transformers.base.modules import Transformer

    if config.base.startswith("bundled:"):
        bundled_encoder_folder(config.base, f"{key}.base")  # refuses the bundled language model
    trust = config.trust_remote_code
    folder = find_folder(f"{key}.base", config.base, config.revision, trust_remote_code=trust)
    settings = folder.commit or settings_hash(folder.root)
    with loading(f"{key}.base {config.base!r} cannot be loaded", f"check the files in {folder.root}", key):
        model = load_modules("SentenceTransformer", config, folder, device, dtype)
        part = model.transformers_model
        if part is None:  # embeddings of words or tokens, which come in the dtype of the file
            model[0].to(dtype)
        elif isinstance(model[0], Transformer) and part.config.is_encoder_decoder:
            raise ValueError(f"a {type(part).__name__} is an encoder and a decoder; use another encoder")
    return SentenceEncoder(model, config, folder.identity, settings, key)


def encoder_sizes(config: EncoderConfig) -> BaseSizes:
    """Return the sizes of an encoder, without reading its weights; errors are those of ``load_encoder``."""
    encoder = load_encoder(config, META, torch.float32)
    part = encoder.model.transformers_model
    embeddings = encoder.model[0] if part is None else part.get_input_embeddings()
    parameters, own = (sum(weight.numel() for weight in each.parameters()) for each in (encoder.model, embeddings))
    return BaseSizes(parameters, own, encoder.dimension)


class SentenceEncoder(Embedder):
    """Embeds texts with an encoder.

    Attributes:
        model: the encoder, in eval mode, on its device.
        prefixes: of a query, a document and a plain text.
        pooling: names of its poolings, joined by ``+``.
        max_length: tokens of one text, special tokens included.
        dimension: the width of a vector.
    """

    dimension: int

    def __init__(
        self, model: SentenceTransformer, config: EncoderConfig, identity: str, settings: str, key: str = "encoder"
    ) -> None:
        from sentence_transformers.sentence_transformer.modules import Pooling

        if model.similarity_fn_name not in ("cosine", "dot"):
            raise DataError(
                f"{key}.base {config.base!r}: its similarity_fn_name is {model.similarity_fn_name}, and dense search "
                "compares by cosine or dot product; use another encoder"
            )
        self.model, self._unit = model, model.similarity_fn_name == "cosine"
        self._fitting = FittingBatches("a text", "max_length")
        self.prefixes = _prefixes(config, model)
        modes = next((module.pooling_mode for module in model if isinstance(module, Pooling)), "none")
        self.pooling = modes if isinstance(modes, str) else "+".join(modes)
        self.max_length = text_length(config, model, key)
        if self.device == META:
            self.dimension = int(model.get_embedding_dimension() or 0)
        else:  # Matrices whose shapes do not match, no pooling, or one without a mode show with a text.
            remedy = "use an encoder that SentenceTransformer can encode with"
            with loading(f"{key}.base {config.base!r}: its modules do not fit together", remedy):
                self.dimension = self._embed(["a"], "", "plain").shape[1]
        self.base_identity = identity
        self.prompt_name = f"{self.pooling}@{hash_json([self.prefixes, self.pooling, self.max_length, settings])}"

    @property
    def reduced_budget(self) -> int | None:
        """Tokens of a batch after memory ran out; None before."""
        return self._fitting.reduced

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the transformer."""
        return next(self.model.parameters()).dtype

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
        """Embed texts; see ``Embedder``."""
        before = self.prefixes[kind] if prefix is None else prefix
        fine = [well_formed(text) for text in texts]
        embedded = self._fitting.run(
            self.token_ids([before + text for text in fine], max_length),
            lambda batch: self._embed([fine[index] for index in batch], before, kind),
            token_budget or default_token_budget(self.device),
            batch_size,
        )
        reason = "the embedding is not finite; try encoder.dtype float32"
        vectors: Vectors = gather((len(texts), self.dimension), embedded, reason, advance).numpy()
        refuse_zero_vectors(vectors)
        return vectors

    def token_ids(self, texts: Sequence[str], max_length: int | None = None) -> list[list[int]]:
        """Return the token ids of texts without prefixes, special tokens added; errors are those of ``encode``.

        Texts are cut to this length until the next call.
        """
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerBase

        length = self.max_length if max_length is None else min(self.max_length, max_length)
        tokenizer, texts = self.model.tokenizer, [well_formed(text) for text in texts]
        if isinstance(tokenizer, Tokenizer):  # that of a static embedding, which reads no special tokens
            tokenizer.enable_truncation(length)
            sequences = [encoding.ids for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]
        elif isinstance(tokenizer, PreTrainedTokenizerBase):
            self.model.max_seq_length = length
            special = tokenizer.num_special_tokens_to_add()
            if length <= special:
                raise UsageError(f"a length of {length} leaves no room beside the {special} special tokens; raise it")
            alone = dict.fromkeys(("return_attention_mask", "return_token_type_ids", "verbose"), False)
            sequences = tokenizer(texts, truncation=True, **alone)["input_ids"] if texts else []
        else:  # of words
            self.model.max_seq_length = length
            sequences = [tokenizer.tokenize(text)[:length] for text in texts]
        if [] in sequences:
            reason = "the text has no tokens; remove it, or use an encoder with special tokens"
            raise InputError(sequences.index([]), reason)
        return sequences

    @torch.inference_mode()
    def _embed(self, texts: list[str], prefix: str, kind: TextKind) -> Tensor:
        """Return the vectors of one batch on its device."""
        # As encode_query and encode_document do: some models have a route of each.
        task = {} if kind == "plain" else {"task": kind}
        read = self.model.preprocess(texts, prompt=prefix or None, **task)
        features = {
            name: to_device(value, self.device) if isinstance(value, Tensor) else value for name, value in read.items()
        }
        vectors = self.model(features, **task)["sentence_embedding"].float()[:, : self.model.truncate_dim]
        return nn.functional.normalize(vectors, dim=-1) if self._unit else vectors


def load_modules(
    kind: str, config: EncoderConfig, folder: ModelFolder, device: torch.device, dtype: torch.dtype
) -> Any:
    """Load a whole model of sentence-transformers by its class; what follows its transformer computes in float32."""
    import sentence_transformers
    from sentence_transformers.sentence_transformer.modules import Pooling

    place = {"device_map": "meta"} if device == META else {}
    with loadable(folder) as root:
        model: Any = getattr(sentence_transformers, kind)(
            str(root),
            device=None if place else str(device),
            local_files_only=True,
            trust_remote_code=config.trust_remote_code,
            model_kwargs={"dtype": dtype, **place},
        )
    folders = module_folders(folder.root)
    _refuse_incomplete(model, folder)
    poolings = [index for index, module in enumerate(model) if isinstance(module, Pooling)]
    if config.pooling != "auto":
        if not poolings:
            raise ValueError("it has no pooling to replace; leave encoder.pooling at auto")
        mode = "lasttoken" if config.pooling == "last" else config.pooling
        for index in poolings:
            model[index] = Pooling(model[index].embedding_dimension, mode)
    for index, module in enumerate(model):
        if index > 0:
            compute_in_float32(module)
            rounded = dtype != torch.float32 and index < len(folders)
            if rounded and any(weight.device != META for weight in module.parameters()):
                module.load_torch_weights(str(folders[index]), model=module)  # again, in float32
    return model.requires_grad_(False).eval()


def _refuse_incomplete(model: Any, folder: ModelFolder) -> None:
    """Raise a ``ValueError`` where a transformer in a model's first folder, or a route of it, lacks weights."""
    from sentence_transformers.base.modules import Transformer

    inner = folder.inner
    places = [(model[0], inner)]
    for route, names in read_settings(inner / "router_config.json").get("structure", {}).items():
        places += zip(model[0].sub_modules[route], (inner / name for name in names), strict=True)
    for module, place in places:
        if isinstance(module, Transformer) and (folder.base or (place / "config.json").is_file()):
            part: Any = module.model
            refuse_another_vocabulary(module.tokenizer, part)
            if missing := [name for name in missing_weights(part, place, folder) if "pooler" not in name.split(".")]:
                raise ValueError(f"no weights for {missing[0]}; use a complete model")


def _prefixes(config: EncoderConfig, model: SentenceTransformer) -> dict[TextKind, str]:
    """Return the config's prefixes; where it has none, the model's, chosen as ``encode_query`` and its siblings do.

    One difference: an empty ``document`` is replaced by ``passage``, which models older than ``encode_document`` have.
    """
    own = {name: well_formed(prompt or "") for name, prompt in model.prompts.items()}
    document = next(filter(None, (own.get(name) for name in ("document", "passage", "corpus"))), "")
    return {
        "query": own.get("query", "") if config.query_prefix is None else config.query_prefix,
        "document": document if config.document_prefix is None else config.document_prefix,
        "plain": own.get(model.default_prompt_name or "", ""),
    }


def text_length(config: EncoderConfig, model: Any, key: str) -> int:
    """Return the tokens of one text: the config's at ``key``, else the model's, within its positions where they end."""
    part: Any = model.transformers_model
    stated = None if part is None else getattr(part.config.get_text_config(), "max_position_embeddings", None)
    positions = int(stated or 0)
    for module in part.modules() if positions else ():  # RoBERTa and its relatives count from the padding's id plus one
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and isinstance(getattr(module, "position_embeddings", None), nn.Embedding):
            positions -= padding + 1
            break
    if config.max_length is not None:
        if positions and 0 < positions < config.max_length:
            raise UsageError(f"{key}.max_length {config.max_length}: {config.base} has {positions} positions; lower it")
        return config.max_length
    cut = getattr(model.tokenizer, "truncation", None)  # of a static embedding's tokenizer
    own = cut["max_length"] if isinstance(cut, dict) else model.max_seq_length
    return int(min(limit for limit in (own, positions, _LONGEST) if isinstance(limit, int | float) and limit >= 1))
