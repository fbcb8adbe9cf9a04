"""The bi-encoder in training: an encoder of transformers, pooling, a linear layer without bias, unit length.

Its checkpoint is a folder of sentence-transformers, a manifest and a model card:
``sentence_transformers.SentenceTransformer(FOLDER)`` and ``load_encoder(EncoderConfig(base=FOLDER))`` give the same
vectors.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from huggingface_hub import ModelCardData
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from torch import Tensor, nn

from unimoe.config.base import EncoderConfig
from unimoe.config.files import parse_config
from unimoe.core.errors import DataError, UsageError, named_inputs
from unimoe.core.io import atomic_dir, ensure_dir, write_json, write_text
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.models.batching import pad_ids
from unimoe.models.embedder import Advance, Embedder, TextKind, Vectors
from unimoe.models.encoder import SentenceEncoder, load_encoder
from unimoe.models.model_files import silence_transformers
from unimoe.models.seen_queries import SeenQueries
from unimoe.retrieval.dense import search
from unimoe.retrieval.embeddings import Embedded, cached_embeddings
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.common.adapters import add_adapters, name_trained_base
from unimoe.studies.common.splits import Splits
from unimoe.studies.common.trained_model import TrainedModel, freeze_lower_layers, read_trained, write_trained
from unimoe.training.losses.listwise import bibtex
from unimoe.training.model_card import rendered

DENSE = "2_Dense"  # folder of the linear layer in a checkpoint

TextsById = Mapping[str, str]  # id to text
_MODULES = "sentence_transformers.models."


class CachedEncoder(Embedder):
    """Embeds the texts of a training with a frozen base once, in the user's cache.

    These are the corpus and the judged queries. After ``with_layer`` its vectors are those of a checkpoint, up to
    rounding: the linear layer has no bias, so it does not matter that the cached vectors have unit length.
    """

    def __init__(self, base: Embedder, config: BiEncoderConfig, splits: Splits) -> None:
        self._base = base
        self._layer: nn.Linear | None = None
        self.base_identity, self.prompt_name, self.own_prompts = base.base_identity, base.prompt_name, base.own_prompts
        queries = {key: part.queries[key] for part in splits for key in part.qrels}
        documents = {key: document.full_text for key, document in splits.train.corpus.items()}
        self._known: dict[TextKind, tuple[Embedded, dict[str, str]]] = {}  # with the id of each text
        of_kind: dict[TextKind, TextsById] = {"query": queries, "document": documents}
        for kind, texts in of_kind.items():
            embedded = cached_embeddings(base, texts, kind, max_length=_lengths(config)[kind])
            self._known[kind] = embedded, {text: key for key, text in texts.items()}

    @property
    def device(self) -> torch.device:
        """The device of the base."""
        return self._base.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the base."""
        return self._base.dtype

    def with_layer(self, checkpoint: Path) -> CachedEncoder:
        """Return an embedder of the linear layer in a checkpoint, over the same vectors."""
        trained = copy.copy(self)
        trained._layer = Dense.load(str(checkpoint), subfolder=DENSE).to(self.device).linear
        return trained

    def known(self, kind: TextKind, texts: Sequence[str]) -> Vectors:
        """Return the cached vectors of some texts ``(N, H)``."""
        embedded, ids = self._known[kind]
        return embedded.of([ids[text] for text in texts])

    @torch.no_grad()
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
        """Embed texts; arguments, result and errors as in ``Embedder``. The base runs for unknown texts alone."""
        ids = self._known[kind][1] if prefix is None and kind in self._known else {}
        old, new = [text for text in texts if text in ids], [text for text in dict.fromkeys(texts) if text not in ids]
        rows = self._base.encode(
            new, kind=kind, prefix=prefix, max_length=max_length, token_budget=token_budget, batch_size=batch_size
        )
        of_text = dict(zip(new, rows, strict=True))
        if old:
            of_text |= zip(old, self.known(kind, old), strict=True)
        vectors = np.stack([of_text[text] for text in texts])
        if self._layer is not None:
            projected = self._layer(torch.from_numpy(vectors).to(self.device))
            vectors = nn.functional.normalize(projected, dim=-1).cpu().numpy()
        return vectors


class BiEncoder(nn.Module):
    """Embeds texts with gradients; weights are float32.

    Args:
        config: of the training.
        base: the encoder that is trained: a transformer and a pooling, which are shared with it.

    Attributes:
        cached: the vectors of a frozen base, over which the linear layer alone is computed; None to run the base.
        dtype: of the forward passes.
    """

    def __init__(self, config: BiEncoderConfig, base: SentenceEncoder) -> None:
        super().__init__()
        self._base, self._config = base, config
        self.cached: CachedEncoder | None = None
        self.dtype = torch.float32
        transformer: Any = base.model.transformers_model
        self.transformer = transformer
        self.pooling = next(module for module in base.model if isinstance(module, Pooling))
        self.head: nn.Linear | None = None
        if config.out_dim is not None:
            width = self.pooling.pooling_output_dimension
            self.head = _linear(width, config.out_dim, config.head_init, config.seed).to(base.device)
        self.requires_grad_(True)
        self._freeze()
        if not config.dropout:
            for part in self.transformer.modules():
                if isinstance(part, nn.Dropout):
                    part.p = 0.0
        if config.lora:  # its dropout is its own
            add_adapters(self.transformer, config.lora, config.seed)

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
        return SentenceEncoder(model, encoder_config(self._config), base.base_identity, "in training")

    def save_transformer(self, folder: Path) -> None:
        """Write the transformer into a folder, or its adapters, which name their base as others find it."""
        self.transformer.save_pretrained(folder)
        if self._config.lora:
            name_trained_base(folder, self._config.encoder.base, self._config.encoder.revision)

    def inputs(self, kind: TextKind, texts: TextsById) -> list[Any]:
        """Return the input of a forward pass for each text: vectors of the frozen base, or token ids.

        They are those of evaluation: with the prefix of the kind, cut to its length, with special tokens.
        """
        given = list(texts.values())
        if self.cached is not None:
            return list(torch.from_numpy(self.cached.known(kind, given)))
        with named_inputs(lambda index: f"{kind} {list(texts)[index]!r}"):
            prefixed = [self._base.prefixes[kind] + text for text in given]
            return self._base.token_ids(prefixed, _lengths(self._config)[kind])

    def forward(self, inputs: Sequence[Any]) -> Tensor:
        """Return unit vectors ``(N, D)`` float32, from one padded forward pass."""
        if self.cached is not None:
            return self._projected(torch.stack(list(inputs)).to(self.device))
        lengths = torch.tensor([len(ids) for ids in inputs], device=self.device)
        ids = pad_ids(inputs, self.device)
        mask = torch.arange(ids.shape[1], device=self.device) < lengths[:, None]
        padding = getattr(self.transformer.config, "pad_token_id", None)
        features = {"input_ids": ids.masked_fill(~mask, padding or 0), "attention_mask": mask.long()}
        with self._autocast():
            pooled: Tensor = self.pooling(self._base.model[0](features))["sentence_embedding"]
            return self._projected(pooled)

    def search(self, queries: TextsById, collection: Collection, depth: int) -> Run:
        """Return the ``depth`` nearest documents of a collection for each query."""
        ids = sorted(collection.corpus)
        documents = self._vectors("document", {key: collection.corpus[key].full_text for key in ids})
        asked = self._vectors("query", queries)
        left_out = {key: collection.left_out(key) for key in queries}
        return search(asked, list(queries), documents, ids, depth, excluded=left_out)

    @torch.no_grad()
    def _vectors(self, kind: TextKind, texts: TextsById) -> Vectors:
        """Return unit vectors ``(N, D)`` as evaluation computes them, in the order of ``texts``."""
        if self.cached is not None:
            known = torch.from_numpy(self.cached.known(kind, list(texts.values())))
            vectors: Vectors = self._projected(known.to(self.device)).cpu().numpy()
            return vectors
        embedder = self.embedder()
        with named_inputs(lambda index: f"{kind} {list(texts)[index]!r}"), self._autocast():
            return embedder.encode(list(texts.values()), kind=kind, max_length=_lengths(self._config)[kind])

    def _projected(self, pooled: Tensor) -> Tensor:
        """Return unit vectors of pooled states ``(N, H)``; their length does not matter, as the layer has no bias."""
        return nn.functional.normalize(pooled if self.head is None else self.head(pooled).float(), dim=-1)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.dtype != torch.float32)

    def _freeze(self) -> None:
        """Freeze weights as the config says, and those of the pooler, which the embedding does not use."""
        config = self._config
        if config.freeze_base:
            self.transformer.requires_grad_(False)
        if config.frozen_layers:
            layers = freeze_lower_layers(self.transformer, config.frozen_layers)
            if config.frozen_layers >= layers:
                raise UsageError(
                    f"frozen_layers {config.frozen_layers}: {config.encoder.base} has {layers} layers; lower it, or "
                    "set freeze_base"
                )
        for name, module in self.transformer.named_modules():
            if name.rpartition(".")[2] == "pooler":
                module.requires_grad_(False)


def load_biencoder(config: BiEncoderConfig, device: torch.device) -> BiEncoder:
    """Load the base of a config, a transformer and a pooling, with a new linear layer, on a device."""
    base = load_encoder(encoder_config(config), device, torch.float32)
    kinds = [type(module) for module in base.model]
    if kinds[:2] != [Transformer, Pooling] or set(kinds[2:]) - {Normalize}:
        found = ", ".join(kind.__name__ for kind in kinds)
        raise DataError(
            f"encoder.base {config.encoder.base!r} is of {found}; train from an encoder of Transformer and Pooling"
        )
    if hasattr(base.model.transformers_model, "peft_config"):
        raise DataError(
            f"encoder.base {config.encoder.base!r} is an adapter; merge it into its base, and save the whole model"
        )
    pooling: Any = base.model[1]
    if not pooling.include_prompt:
        raise DataError(f"encoder.base {config.encoder.base!r} does not pool its prompts; set encoder.pooling to do so")
    width = pooling.pooling_output_dimension
    if config.out_dim is not None and config.out_dim > width:
        raise UsageError(f"out_dim {config.out_dim} is above the {width} dimensions of {config.encoder.base}; lower it")
    return BiEncoder(config, base)


def encoder_config(config: BiEncoderConfig) -> EncoderConfig:
    """Return the configuration of the encoder, with the training's length of any text."""
    length = config.encoder.max_length if config.max_length is None else config.max_length
    return config.encoder.model_copy(update={"max_length": length})


def _lengths(config: BiEncoderConfig) -> dict[TextKind, int | None]:
    return {"query": config.query_length, "document": config.document_length}


def _linear(inputs: int, outputs: int, init: str, seed: int) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.Linear(inputs, outputs, bias=False)
    if init == "orthogonal":
        nn.init.orthogonal_(layer.weight, generator=torch.Generator().manual_seed(seed))
    return layer


class BiEncoderManifest(TrainedModel):
    """The origin of a checkpoint."""

    checkpoint_version: Literal[1] = 1
    kind: Literal["biencoder"] = "biencoder"  # an adapter's manifest has none
    dtype: str  # of the forward passes in training
    facts: dict[str, float]  # epoch, dev scores and seconds

    @property
    def settings(self) -> BiEncoderConfig:
        """The configuration of the training."""
        return parse_config(BiEncoderConfig, self.config, source=f"checkpoint of {self.arm}, seed {self.seed}")


def save_checkpoint(folder: Path, model: BiEncoder, seen: SeenQueries, **fields: Any) -> None:
    """Write a checkpoint folder atomically, in place of an earlier one; ``fields`` are those of its manifest."""
    with atomic_dir(folder) as temporary, silence_transformers():
        model.save_transformer(temporary)
        encoder = model.base.model
        encoder.max_seq_length = model.base.max_length  # training has cut texts to other lengths
        encoder.tokenizer.save_pretrained(temporary)
        width = _write_modules(temporary, model)
        (model.base.seen | seen).write(temporary)
        manifest = write_trained(temporary, BiEncoderManifest, **fields)
        write_text(temporary / "README.md", _model_card(manifest, width))


def read_biencoder(folder: Path) -> BiEncoderManifest:
    """Read and verify the manifest of a checkpoint folder."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such checkpoint folder; train the bi-encoder first (unimoe train-biencoder)")
    return read_trained(folder, BiEncoderManifest, "bi-encoder")


def _write_modules(folder: Path, model: BiEncoder) -> int:
    """Write the files of sentence-transformers as servers and its versions before 6 read them; return the width."""
    width = int(model.pooling.pooling_output_dimension)
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    pooling = {
        "word_embedding_dimension": model.pooling.embedding_dimension,
        "pooling_mode": model.pooling.pooling_mode,
    }
    write_json(folder / "1_Pooling" / "config.json", pooling | {"include_prompt": True})
    if model.head is not None:
        hidden, width = width, model.head.out_features
        kinds.append(("Dense", DENSE))
        dense: dict[str, Any] = {"in_features": hidden, "out_features": width, "bias": False}
        dense["activation_function"] = "torch.nn.modules.linear.Identity"
        write_json(folder / DENSE / "config.json", dense)
        weight = model.head.weight.detach().cpu().contiguous()
        safetensors.torch.save_file({"linear.weight": weight}, folder / DENSE / "model.safetensors")
    kinds.append(("Normalize", f"{len(kinds)}_Normalize"))
    ensure_dir(folder / kinds[-1][1])
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": _MODULES + kind}
        for number, (kind, path) in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)
    length = {"max_seq_length": model.base.max_length, "do_lower_case": model.base.model[0].do_lower_case}
    write_json(folder / "sentence_bert_config.json", length)
    prefixes = {kind: model.base.prefixes[kind] for kind in ("query", "document")}
    prompts = {"prompts": prefixes, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    write_json(folder / "config_sentence_transformers.json", prompts)
    return width


def _model_card(manifest: BiEncoderManifest, width: int) -> str:
    base, adapted = manifest.base_model.rpartition("@")[0], manifest.settings.lora is not None
    known = {"base_model": base} if "/" in base and not base.startswith("bundled:") else {}
    if known and adapted:
        known["base_model_relation"] = "adapter"
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "sentence-similarity", "feature-extraction", "unimoe", *["lora"] * adapted],
        **dict[str, Any](known),
    )
    template, citation = Path(__file__).with_name("model_card.md.j2"), bibtex("oord2018representation")
    return rendered(template, data, made=manifest, base=base, width=width, citation=citation) + "\n"
