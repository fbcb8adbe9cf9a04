"""Text encoders: models of sentence-transformers and bare models of transformers, from a folder or the hub.

``SentenceTransformer`` loads and computes them, whatever their modules are. What is added here: batches of a budget of
tokens, sorted by length, and smaller ones where memory runs out; a transformer in low precision under pooling and heads
in float32; prefixes of the config; and errors that say what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unimoe.config.base import EncoderConfig
from unimoe.core.console import stderr
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.core.io import hash_json
from unimoe.models.adapter_files import load_library_model
from unimoe.models.base import BaseSizes, is_bidirectional
from unimoe.models.batching import FittingBatches, default_token_budget, gather, to_device
from unimoe.models.bundled import bundled_encoder_folder
from unimoe.models.device import compute_in_float32
from unimoe.models.embedder import Advance, Embedder, TextKind, Vectors, refuse_zero_vectors
from unimoe.models.folder import ModelFolder, find_folder
from unimoe.models.identity import module_folders, read_settings, settings_hash
from unimoe.models.kinds import ENCODER, LATE, SPARSE, is_decoder
from unimoe.models.model_files import loading, missing_weights, refuse_another_vocabulary
from unimoe.models.own_prompts import OwnPrompts, Registered, find_registered, prompts_by_kind, prompts_said
from unimoe.models.prompts import well_formed
from unimoe.models.seen_queries import seen_by
from unimoe.models.token_ids import TextFeatures, add_ends, add_stated_ends, embedding_rows, refuse_tokens_without_rows

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
    if not (folder.root / "modules.json").is_file():
        folder.refuse_no_config()
    settings = folder.commit or settings_hash(folder.root)
    with loading(f"{key}.base {config.base!r} cannot be loaded", f"check the files in {folder.root}", key):
        model = load_modules("SentenceTransformer", config, folder, device, dtype)
        part = model.transformers_model
        if part is None:  # embeddings of words or tokens, which come in the dtype of the file
            model[0].to(dtype)
        elif isinstance(model[0], Transformer) and part.config.is_encoder_decoder:
            raise ValueError(f"a {type(part).__name__} is an encoder and a decoder; use another encoder")
        _refuse_unstated_pooling(config, folder, part, key)
    registered = find_registered(config.base) if folder.commit else None
    if registered:
        _set_as_registered(model, registered)
    encoder = SentenceEncoder(model, config, folder.identity, settings, key, registered)
    if key != "model":  # its kind, and what it overrules, is said with the model's name
        encoder.caveats = _overruled(config, folder)
    encoder.seen = seen_by(folder.root)
    for line in encoder.caveats if device != META else ():
        stderr.print(line, style="yellow", soft_wrap=True)
    return encoder


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
        own_prompts: what it reads before a text of a task.
        prefixes: of a query, a document and a plain text.
        pooling: names of its poolings, joined by ``+``.
        max_length: tokens of one text, special tokens included.
        dimension: the width of a vector.
        said: in one line, what was found: prompts and who states them, pooling and length.
    """

    dimension: int

    def __init__(
        self,
        model: SentenceTransformer,
        config: EncoderConfig,
        identity: str,
        settings: str,
        key: str = "encoder",
        registered: Registered | None = None,
    ) -> None:
        from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding

        if model.similarity_fn_name not in ("cosine", "dot"):
            raise DataError(
                f"{key}.base {config.base!r}: its similarity_fn_name is {model.similarity_fn_name}, and dense search "
                "compares by cosine or dot product; use another encoder"
            )
        self.model, self._unit = model, model.similarity_fn_name == "cosine"
        self._fitting = FittingBatches("a text", "max_length")
        self.own_prompts = _own_prompts(config, model, registered)
        self.prefixes = self.own_prompts.by_kind
        self._settings = dict(registered.settings) if registered else {}
        modes = next((module.pooling_mode for module in model if isinstance(module, Pooling)), "none")
        self.pooling = modes if isinstance(modes, str) else "+".join(modes)
        self.max_length = text_length(config, model, key)
        part, first = model.transformers_model, model[0]
        self._rows = None if part is None else embedding_rows(part)
        if isinstance(first, StaticEmbedding):
            self._rows = first.embedding.num_embeddings
        if self.device == META:
            self.dimension = int(model.get_embedding_dimension() or 0)
        else:  # Matrices of shapes that do not match, no pooling, or one without a mode show with a text.
            remedy = "use an encoder that SentenceTransformer can encode with"
            with loading(f"{key}.base {config.base!r}: its modules do not fit together", remedy):
                self.dimension = self._embed(self.model.preprocess(["a"]), {}).shape[1]
        self.base_identity = identity
        read = [self.prefixes, self.pooling, self.max_length, settings, *filter(None, [self._settings])]
        self.prompt_name = f"{self.pooling}@{hash_json(read)}"
        said = prompts_said(self.own_prompts, registered, "of its folder")
        self.said = f"{said}; {self.pooling} pooling; {self.max_length:,} tokens"

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
        sequences = self.token_ids([before + text for text in fine], max_length)
        # As encode_query and encode_document do: some models have a route of each.
        task = {} if kind == "plain" else {"task": kind}
        features = TextFeatures(self.model, fine, sequences, {"prompt": before or None, **task})
        embedded = self._fitting.run(
            sequences,
            lambda batch: self._embed(features.of(batch), task),
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
            refuse_tokens_without_rows(sequences, self._rows)
        elif isinstance(tokenizer, PreTrainedTokenizerBase):
            self.model.max_seq_length = length
            special = tokenizer.num_special_tokens_to_add()
            if length <= special:
                raise UsageError(f"a length of {length} leaves no room beside the {special} special tokens; raise it")
            alone = dict.fromkeys(("return_attention_mask", "return_token_type_ids", "verbose"), False)
            sequences = tokenizer(texts, truncation=True, **alone)["input_ids"] if texts else []
            refuse_tokens_without_rows(sequences, self._rows, tokenizer)
        else:  # of words
            self.model.max_seq_length = length
            sequences = [tokenizer.tokenize(text)[:length] for text in texts]
        if [] in sequences:
            reason = "the text has no tokens; remove it, or use an encoder with special tokens"
            raise InputError(sequences.index([]), reason)
        return sequences

    @torch.inference_mode()
    def _embed(self, read: Mapping[str, Any], task: Mapping[str, str]) -> Tensor:
        """Return the vectors of one batch on its device, from what the model reads."""
        features = {
            name: to_device(value, self.device) if isinstance(value, Tensor) else value for name, value in read.items()
        }
        vectors = self.model(features, **task)["sentence_embedding"].float()[:, : self.model.truncate_dim]
        if self._settings.get("layer_norm"):
            vectors = nn.functional.layer_norm(vectors, vectors.shape[1:])
        return nn.functional.normalize(vectors, dim=-1) if self._unit else vectors


def load_modules(
    kind: str, config: EncoderConfig, folder: ModelFolder, device: torch.device, dtype: torch.dtype
) -> Any:
    """Load a whole model of sentence-transformers by its class; what follows its transformer computes in float32."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    place = {"device_map": "meta"} if device == META else {}
    model = load_library_model(
        kind,
        folder,
        device=None if place else str(device),
        trust_remote_code=config.trust_remote_code,
        model_kwargs={"dtype": dtype, **place},
    )
    folders = module_folders(folder.library_root)
    _complete(model, folder)
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


def _complete(model: Any, folder: ModelFolder) -> None:
    """Raise a ``ValueError`` where a transformer in a model's first folder, or a route of it, lacks weights.

    Its tokenizer gets the tokens around a text that it states.
    """
    from sentence_transformers.base.modules import Transformer

    inner = folder.inner
    places = [(model[0], inner)]
    for route, names in read_settings(inner / "router_config.json").get("structure", {}).items():
        places += zip(model[0].sub_modules[route], (inner / name for name in names), strict=True)
    for module, place in places:
        if isinstance(module, Transformer) and (folder.base or (place / "config.json").is_file()):
            part: Any = module.model
            refuse_another_vocabulary(module.tokenizer, part)
            add_stated_ends(module.tokenizer, place if place != inner else folder.tokenizer_root)
            if missing := [name for name in missing_weights(part, place, folder) if "pooler" not in name.split(".")]:
                raise ValueError(f"no weights for {missing[0]}; use a complete model")


def _own_prompts(config: EncoderConfig, model: SentenceTransformer, registered: Registered | None) -> OwnPrompts:
    """Return a model's prompts: the config's prefixes, else the registry's prompts, else those of the model's files."""
    folders, default = model.prompts, model.default_prompt_name
    if registered:
        own = registered.own_prompts(folders, default)
    else:
        own = OwnPrompts(prompts_by_kind(folders, default), {name: text or "" for name, text in folders.items()})
    given: dict[TextKind, str | None] = {"query": config.query_prefix, "document": config.document_prefix}
    stated = {kind: prefix for kind, prefix in given.items() if prefix is not None}
    return replace(own, by_kind=own.by_kind | stated, stated=frozenset(stated))


def _overruled(config: EncoderConfig, folder: ModelFolder) -> tuple[str, ...]:
    """Return the caveat of a model that its files say is no encoder of one vector for a text."""
    if not folder.is_other_than(ENCODER):
        return ()
    remedy = f"; write {folder.kind}:{config.base} to search with that" if folder.kind in (SPARSE, LATE) else ""
    return (f"{config.base}: read as encoder, and its files say {folder.kind}{remedy}",)


def _refuse_unstated_pooling(config: EncoderConfig, folder: ModelFolder, part: Any, key: str) -> None:
    """Refuse a decoder without a pooling in its folder: the library would take the mean of all tokens."""
    kind = read_settings(folder.root / "config_sentence_transformers.json").get("model_type", "SentenceTransformer")
    stated = (folder.root / "modules.json").is_file() and kind == "SentenceTransformer"
    if part is None or stated or config.pooling != "auto":
        return
    own = part.config.get_text_config()
    if is_decoder(own.model_type) and not is_bidirectional(own):
        raise UsageError(
            f"{key}.base {config.base}: a {type(part).__name__} is a decoder, and its folder does not say how its "
            f"states become one vector; set {key}.pooling=last, or mean, as it was trained"
        )


def _set_as_registered(model: SentenceTransformer, registered: Registered) -> None:
    """Set prompts, tokenizer, pooling and width as the registry's loader does."""
    from sentence_transformers.sentence_transformer.modules import Pooling

    settings, tokenizer = registered.settings, model.tokenizer
    if registered.reads:  # so that a model that is trained from this one is saved with them
        own = registered.own_prompts(model.prompts, model.default_prompt_name)
        model.prompts = {**own.named, "query": own.by_kind["query"], "document": own.by_kind["document"]}
        default = registered.default or model.default_prompt_name
        model.default_prompt_name = default if default in model.prompts else None
    add_ends(tokenizer, first=settings.get("add_bos_token", False), last=settings.get("add_eos_token", False))
    if "padding_side" in settings:
        tokenizer.padding_side = settings["padding_side"]
    if "max_seq_length" in settings:
        model.max_seq_length = settings["max_seq_length"]
    if "embed_dim" in settings:
        model.truncate_dim = settings["embed_dim"]
    for module in model:
        if isinstance(module, Pooling):
            module.include_prompt = settings.get("include_prompt", module.include_prompt)


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
        if not 0 < positions < config.max_length:
            return config.max_length
        if model.device != META:  # which is loaded to be described, in addition to the one that embeds
            said = f"{key}.max_length {config.max_length}: {config.base} has {positions} positions, which are used"
            stderr.print(said, style="dim", soft_wrap=True)
        return positions
    cut = getattr(model.tokenizer, "truncation", None)  # of a static embedding's tokenizer
    own = cut["max_length"] if isinstance(cut, dict) else model.max_seq_length
    return int(min(limit for limit in (own, positions, _LONGEST) if isinstance(limit, int | float) and limit >= 1))
