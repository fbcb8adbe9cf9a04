"""RankLLaMA (Ma et al. 2023) and its kin: a decoder whose last token's state a head of one output scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unimoe.core.errors import DataError
from unimoe.models.base import refuse_dependent_states
from unimoe.models.batched import BatchedDecoder
from unimoe.models.folder import ModelFolder, find_folder, read_folder
from unimoe.models.identity import ADAPTER_SETTINGS, read_settings, reading
from unimoe.models.kinds import RANK_LLAMA
from unimoe.models.model import Model, model_of_pairs
from unimoe.models.model_files import load_pretrained, loading
from unimoe.models.named import OPTION, ModelSettings, register_model
from unimoe.models.pair_model import QueryFirstIds, TokenReranker
from unimoe.models.prompts import well_formed
from unimoe.models.reranker import TextPair


def load_score_head(
    folder: Path, max_length: int, device: torch.device, dtype: torch.dtype, key: str = "model.base"
) -> TokenReranker:
    """Load a decoder with a head of one output, or the adapter of one with its base; ``key`` holds its name.

    It scores ``query: ...`` and ``document: ...``, a pair to the tokenizer, by the head on the last token's final
    state. What pairs share at their beginning is computed once.
    """
    with loading(f"{folder}: cannot be loaded as a decoder with a score head", "save it with save_pretrained()"):
        tokenizer, model, missing = _load(read_folder(key, str(folder), folder), dtype)
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


def _load(folder: ModelFolder, dtype: torch.dtype) -> tuple[Any, Any, list[str]]:
    from transformers import AutoModelForSequenceClassification

    if folder.base is None:
        return load_pretrained(AutoModelForSequenceClassification, folder, dtype)
    place = folder.inner / ADAPTER_SETTINGS
    if (task := read_settings(place).get("task_type")) != "SEQ_CLS":
        raise DataError(
            f"{place}: no adapter of a score head (its task_type is {task!r}); give one of task_type SEQ_CLS"
        )
    tokenizer, model, missing = load_pretrained(AutoModelForSequenceClassification, folder, dtype, num_labels=1)
    return tokenizer, model.merge_and_unload(), missing


def score_head_model(name: str, settings: ModelSettings) -> Model:
    """Return a decoder with a head of one output on its last token, or an adapter of one."""
    settings.refuse_layers(RANK_LLAMA)
    config = settings.experiment.model
    folder = find_folder(OPTION, name, config.revision)
    return model_of_pairs(
        lambda: load_score_head(folder.root, config.max_length, settings.device, settings.dtype, OPTION),
        identity=f"{RANK_LLAMA}:{folder.identity}",
        prompt=reading(RANK_LLAMA, folder.root, config.max_length),
        dtype=settings.dtype_name,
    )


register_model(RANK_LLAMA, score_head_model)
