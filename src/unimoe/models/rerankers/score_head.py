"""RankLLaMA (Ma et al. 2023) and its kin: a decoder with a head of one output on the last token's state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unimoe.config import PromptConfig
from unimoe.core.errors import DataError
from unimoe.models.base import decoder_layers, decoder_of, refuse_beyond_positions, refuse_dependent_states
from unimoe.models.batched import BatchedDecoder
from unimoe.models.device import margin_of
from unimoe.models.folder import ModelFolder, find_folder, read_folder
from unimoe.models.identity import ADAPTER_SETTINGS, read_settings, reading
from unimoe.models.kinds import RANK_LLAMA
from unimoe.models.model import Model, model_of_pairs
from unimoe.models.model_files import load_pretrained, loading
from unimoe.models.named import OPTION, ModelSettings, register_model
from unimoe.models.own_code import or_own_code, refuse_unknown_class
from unimoe.models.pair_model import QueryFirstIds, TokenReranker
from unimoe.models.prompts import PairTokenizer, well_formed
from unimoe.models.reranker import TextPair
from unimoe.models.rerankers.classifiers import counts_against, turned_around


def load_score_head(
    folder: Path,
    max_length: int,
    device: torch.device,
    dtype: torch.dtype,
    key: str = "model.base",
    *,
    prompt: PromptConfig | None = None,
    trust_remote_code: bool = False,
) -> TokenReranker:
    """Load a decoder with a head of one or two outputs, or the adapter of one with its base; ``key`` holds its name.

    It scores ``query: ...`` and ``document: ...``, a pair to the tokenizer, or a ``prompt``, by the head on the last
    token's final state. What pairs share at their beginning is computed once.
    """
    with loading(f"{folder}: cannot be loaded as a decoder with a score head", "save it with save_pretrained()"):
        found = read_folder(key, str(folder), folder, trust_remote_code=trust_remote_code)
        refuse_unknown_class(str(folder), found.architecture, trusted=trust_remote_code)
        tokenizer, model, missing = _load(found, dtype)
    if missing:
        raise DataError(
            f"{folder}: no weights for {missing[0]}; "
            f"give a model that was trained and saved with its head{or_own_code(model)}"
        )
    if decoder_layers(decoder_of(model)) is None or not isinstance(getattr(model, "score", None), nn.Linear):
        raise DataError(
            f"{folder}: a {type(model).__name__}, no decoder with a score head; if it is a cross-encoder, name it by "
            "cross-encoder:"
        )
    if (labels := model.config.num_labels) not in (1, 2):
        raise DataError(f"{folder}: a model of {labels} labels; ranking needs one score per pair")
    refuse_dependent_states(model.config, max_length)
    refuse_beyond_positions(model, max_length)
    model.requires_grad_(False).eval().to(device)
    decoder, head = BatchedDecoder(model, longest=max_length), model.score
    sign = -1.0 if counts_against(found, labels) else 1.0

    def scores(
        sequences: Sequence[list[int]], token_budget: int | None, batch_size: int | None
    ) -> Iterator[tuple[list[int], Tensor]]:
        # Of two labels the last one's logit minus the first one's.
        weight = sign * margin_of(head.weight.float().flip(0).T)
        bias = 0.0 if head.bias is None else sign * margin_of(head.bias.float().flip(0))
        for batch, states in decoder.states(sequences, token_budget, batch_size):
            yield batch, states.float() @ weight + bias

    pairs = _pair_ids(tokenizer, max_length) if prompt is None else PairTokenizer(tokenizer, prompt, max_length)
    return TokenReranker(model, pairs, scores, decoder.fitting)


def _pair_ids(tokenizer: Any, max_length: int) -> QueryFirstIds:
    """Return what makes token ids of pairs as RankLLaMA reads them."""

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
    return QueryFirstIds(bodies, max_length, end)


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
    config, trusted = settings.experiment.model, settings.experiment.model.trust_remote_code
    folder = find_folder(OPTION, name, config.revision, trust_remote_code=trusted)
    length, place, dtype = config.max_length, settings.device, settings.dtype
    return model_of_pairs(
        lambda: load_score_head(folder.root, length, place, dtype, OPTION, trust_remote_code=trusted),
        identity=f"{RANK_LLAMA}:{folder.identity}",
        prompt=reading(RANK_LLAMA, folder.root, config.max_length),
        dtype=settings.dtype_name,
        said="; ".join(filter(None, ["reads 'query: ...' and 'document: ...'", turned_around(folder)])),
    )


def templated_model(folder: ModelFolder, settings: ModelSettings, identity: str) -> Model:
    """Return a classifier that was made of a causal reranker, and is asked by the experiment's prompt as that was."""
    experiment, trusted = settings.experiment, settings.experiment.model.trust_remote_code
    length, prompt = experiment.model.max_length, experiment.prompt
    place, dtype = settings.device, settings.dtype

    def load() -> TokenReranker:
        return load_score_head(folder.root, length, place, dtype, OPTION, prompt=prompt, trust_remote_code=trusted)

    return model_of_pairs(
        load,
        identity=identity,
        prompt=reading(f"{prompt.template}/{prompt.order}", folder.root, length, prompt.settings),
        dtype=settings.dtype_name,
        instructed=True,
        said="; ".join(
            filter(None, [f"pairs are put to it by prompt.template {prompt.template}", turned_around(folder)])
        ),
    )


register_model(RANK_LLAMA, score_head_model)
