"""RankLLaMA (Ma et al. 2023) and its kin: a decoder whose last token's state a head of one output scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unimoe.config import PromptConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_json
from unimoe.models.base import decoder_layers, decoder_of, refuse_beyond_positions, refuse_dependent_states
from unimoe.models.batched import BatchedDecoder
from unimoe.models.device import margin_of
from unimoe.models.model_files import (
    architecture,
    find_model,
    is_decoder,
    load_pretrained,
    loading,
    model_identity,
    or_own_code,
    read_settings,
    refuse_own_code,
    rowless_tokens,
    weights_hash,
)
from unimoe.models.pair_model import QueryFirstIds, TextPair, TokenReranker
from unimoe.models.prompts import PairTokenizer, well_formed
from unimoe.models.rerankers.labels import counts_against

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
        tokenizer, model, missing = _load(folder, dtype, key, trust_remote_code)
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
    sign = -1.0 if counts_against(folder, labels) else 1.0
    # Of two labels the last one's logit minus the first one's.
    weight = sign * margin_of(head.weight.float().flip(0).T)
    bias = 0.0 if head.bias is None else sign * margin_of(head.bias.float().flip(0))

    def scores(
        sequences: Sequence[list[int]], token_budget: int | None, batch_size: int | None
    ) -> Iterator[tuple[list[int], Tensor]]:
        for batch, states in decoder.states(sequences, token_budget, batch_size):
            yield batch, states.float() @ weight + bias

    pairs = _pair_ids(tokenizer, max_length) if prompt is None else PairTokenizer(tokenizer, prompt, max_length)
    return TokenReranker(model, pairs, scores, decoder.fitting, rowless=rowless_tokens(tokenizer, model))


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


def reads_prompt(folder: Path, prompt: PromptConfig) -> bool:
    """Return whether the pairs of a classifier become a prompt of ours: it was made of a causal reranker.

    A conversion keeps the causal model's head on yes and no as the head of a classifier, whose folder does not say
    what it was asked. That is ``prompt.template``, if it is set. What sentence-transformers has saved is read as that
    library reads it.

    Raises:
        UsageError: nothing says what it was asked.
    """
    settings = read_settings(folder / "config.json")
    if not architecture(folder).endswith("ForSequenceClassification") or not is_decoder(settings.get("model_type")):
        return False
    if any((folder / name).is_file() for name in ("modules.json", "config_sentence_transformers.json")):
        return False
    if "template" in prompt.model_fields_set:
        return True
    # The mark of a library that saved the settings alone, and which a conversion may have kept.
    if "sentence_transformers" in settings or settings.get("pad_token_id") is None:
        return False
    raise UsageError(
        f"{folder}: a {architecture(folder)}, which does not say how pairs were put to it: if it was converted from a "
        "causal reranker, such as Qwen3's, give its prompt by --set prompt.template=qwen3 (or another); write "
        "rankllama: if it reads as RankLLaMA; save it by sentence-transformers' CrossEncoder if it reads bare pairs"
    )


def _load(folder: Path, dtype: torch.dtype, key: str, trusted: bool) -> tuple[Any, Any, list[str]]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    if not (folder / _ADAPTER).is_file():
        refuse_own_code(folder, trusted=trusted)
        return load_pretrained(AutoModelForSequenceClassification, folder, dtype, trust_remote_code=trusted)
    from peft import PeftModel

    root, _ = _adapted_base(key, folder)
    auto: Any = AutoModelForSequenceClassification
    own = (folder / "tokenizer_config.json").is_file()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder if own else root)
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
