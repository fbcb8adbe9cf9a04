"""RankLLaMA (Ma et al. 2023) and its kin: a decoder whose last token's state a head of one output scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unimoe.core.errors import DataError
from unimoe.core.io import hash_json
from unimoe.models.base import refuse_dependent_states
from unimoe.models.batched import BatchedDecoder
from unimoe.models.model_files import (
    find_model,
    load_pretrained,
    load_tokenizer,
    loading,
    model_identity,
    read_settings,
    weights_hash,
)
from unimoe.models.pair_model import QueryFirstIds, TextPair, TokenReranker
from unimoe.models.prompts import well_formed

KIND = "rankllama"
_ADAPTER = "adapter_config.json"


def score_head_identity(key: str, base: str, root: Path, commit: str | None) -> str:
    """Return how results know a model: by its weights, and by its base where the folder holds an adapter alone."""
    own = model_identity(KIND, base, root, commit)
    if not (root / _ADAPTER).is_file():
        return own
    folder, below = _adapted_base(key, root)
    return f"{own.rpartition('@')[0]}@{hash_json([own, below or weights_hash(folder)])}"


def load_score_head(
    folder: Path, max_length: int, device: torch.device, dtype: torch.dtype, key: str = "model.base"
) -> TokenReranker:
    """Load a decoder with a head of one output, or the adapter of one with its base; ``key`` holds its name.

    It scores ``query: ...`` and ``document: ...``, a pair to the tokenizer, by the head on the last token's final
    state. What pairs share at their beginning is computed once.
    """
    with loading(f"{folder}: cannot be loaded as a decoder with a score head", "save it with save_pretrained()"):
        tokenizer, model, missing = _load(folder, dtype, key)
    if missing:
        raise DataError(f"{folder}: no weights for {missing[0]}; give a model that was trained and saved with its head")
    if not hasattr(getattr(model, "model", None), "layers") or not hasattr(model, "score"):
        raise DataError(
            f"{folder}: a {type(model).__name__}, no decoder with a score head; if it is a cross-encoder, name it by "
            "cross-encoder:"
        )
    if (labels := model.config.num_labels) != 1:
        raise DataError(f"{folder}: a model of {labels} labels; ranking needs one score per pair")
    refuse_dependent_states(model.config, max_length)
    model.requires_grad_(False).eval().to(device)
    decoder, head = BatchedDecoder(model, longest=max_length), model.score

    def scores(
        sequences: Sequence[list[int]], token_budget: int | None, batch_size: int | None
    ) -> Iterator[tuple[list[int], Tensor]]:
        bias = 0.0 if head.bias is None else head.bias.float()
        for batch, states in decoder.states(sequences, token_budget, batch_size):
            yield batch, states.float() @ head.weight[0].float() + bias

    def bodies(pairs: Sequence[TextPair]) -> list[list[int]]:
        queries, documents = zip(*pairs, strict=True)
        found: list[list[int]] = tokenizer(
            [well_formed(f"query: {query}") for query in queries],
            [well_formed(f"document: {document}") for document in documents],
            return_attention_mask=False,
            verbose=False,
        )["input_ids"]
        return [ids[: len(ids) - len(end)] for ids in found]

    end: list[int] = tokenizer("a", "a", verbose=False)["input_ids"][-1:]
    end = end if end == [tokenizer.eos_token_id] else []  # which some tokenizers put after every text
    pairs = QueryFirstIds(bodies, max_length, end)
    return TokenReranker(model, pairs, scores, decoder.fitting)


def _load(folder: Path, dtype: torch.dtype, key: str) -> tuple[Any, Any, list[str]]:
    from transformers import AutoModelForSequenceClassification

    if not (folder / _ADAPTER).is_file():
        return load_pretrained(AutoModelForSequenceClassification, folder, dtype)
    from peft import PeftModel

    root, _ = _adapted_base(key, folder)
    auto: Any = AutoModelForSequenceClassification
    own = (folder / "tokenizer_config.json").is_file()
    tokenizer = load_tokenizer(folder if own else root)
    bare = auto.from_pretrained(root, num_labels=1, dtype=dtype, use_safetensors=True)
    untrained = bare.score.weight.clone()
    model: Any = PeftModel.from_pretrained(bare, str(folder)).merge_and_unload()
    return tokenizer, model, ["score.weight"] if torch.equal(model.score.weight, untrained) else []


def _adapted_base(key: str, folder: Path) -> tuple[Path, str | None]:
    settings = read_settings(folder / _ADAPTER)
    base = settings.get("base_model_name_or_path")
    if settings.get("task_type") != "SEQ_CLS" or not base:
        raise DataError(
            f"{folder / _ADAPTER}: no adapter of a score head (its task_type is {settings.get('task_type')!r}); give "
            "one of task_type SEQ_CLS that names its base model"
        )
    return find_model(f"{key} {folder}: its base model", str(base), settings.get("revision"))
