"""Cross-encoders of sentence-transformers, which loads and runs them: one or two outputs, ``Dense``, ``LogitScore``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from unimoe.core.console import stderr
from unimoe.core.errors import DataError
from unimoe.models.base import position_limit
from unimoe.models.device import AnswerHead, compute_in_float32
from unimoe.models.model_files import (
    ELSEWHERE,
    architecture,
    is_decoder,
    label_count,
    loading,
    missing_weights,
    module_folders,
    or_own_code,
    read_settings,
    refuse_own_code,
    refuse_rowless,
    transformer_folder,
)
from unimoe.models.pair_model import TextPair
from unimoe.models.rerankers.labels import counts_against

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder
    from transformers import PreTrainedModel


def load_cross_encoder(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype | None = None,
    max_length: int | None = None,
    *,
    trust_remote_code: bool = False,
) -> CrossEncoder:
    """Load a cross-encoder from a folder of sentence-transformers or transformers.

    Its body computes in ``dtype``, by default the saved one, and its head in float32. Pairs have ``max_length`` tokens
    at most; by default, and where that is less, the model's own number counts. Where the names of its labels say so,
    its scores are reversed, so that the larger one is always the more relevant.

    Raises:
        DataError: it cannot be loaded, has no trained head, or has more than two labels.
    """
    from sentence_transformers import CrossEncoder

    refuse_no_cross_encoder(folder, trusted=trust_remote_code)
    with loading(f"{folder}: cannot be loaded as a cross-encoder", "save it with save_pretrained()"):
        model: CrossEncoder = CrossEncoder(
            str(folder),
            device=str(device),
            local_files_only=True,
            trust_remote_code=trust_remote_code,
            model_kwargs=None if dtype is None else {"dtype": dtype},
        )
        missing = missing_weights(model[0].model, transformer_folder(folder)) if len(model) == 1 else []
    if missing:
        raise DataError(
            f"{folder}: no weights for {missing[0]}; "
            f"give a cross-encoder that was trained and saved whole{or_own_code(model[0].model)}"
        )
    _refuse_labels(folder, model.num_labels)
    _score_in_float32(model)
    if counts_against(transformer_folder(folder), model.num_labels):
        model.append(Reversed())
    _limit_length(model, max_length)
    _pad_with_any(model)
    with loading(f"{folder}: cannot read a pair", "mend its chat template, or leave it out"):
        model.preprocess([("a", "b")])
    return model.requires_grad_(False).eval().to(device)


def refuse_no_cross_encoder(folder: Path, *, trusted: bool = False) -> None:
    """Raise an error about a folder whose settings are those of a model with no score or several for a pair."""
    inner, *others = module_folders(folder)
    refuse_own_code(inner, trusted=trusted)
    name, heads = architecture(inner), [read_settings(other / "config.json") for other in others]
    # A Dense module behind the transformer may give the scores.
    labels = next(
        (int(head.get("out_features", 0)) for head in heads if head.get("module_output_name") == "scores"), None
    )
    if labels is None and not name.endswith(("ForSequenceClassification", "ForCausalLM")):
        raise DataError(
            f"{folder}: a {name or 'model of no known architecture'}, which has no head that scores pairs; give a "
            f"cross-encoder, train one on it with `unimoe train-cross-encoder`, or {ELSEWHERE}"
        )
    if labels is None and name.endswith("ForSequenceClassification"):
        labels = label_count(inner)
    if labels is not None:
        _refuse_labels(folder, labels)
        counts_against(inner, labels)
    if labels is None and name.endswith("ForCausalLM") and not (folder / "modules.json").is_file():
        _refuse_bare_pairs(folder)


class Reversed(nn.Module):
    """Turns the scores of a classifier around: the sign of a single one, the order of two."""

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Return the features with other ``scores``."""
        scores: Tensor = features["scores"]
        return features | {"scores": scores.flip(-1) if scores.shape[-1] == 2 else -scores}


def pairs_at_once(model: CrossEncoder, most: int) -> int:
    """Return how many pairs a forward pass of a cross-encoder may have, of so many at most.

    A decoder's classifier scores the last token that is not padding, and without a token for padding one pair alone.
    """
    inner: Any = model[0].model
    padding = inner.config.get_text_config().pad_token_id
    if not type(inner).__name__.endswith("ForSequenceClassification") or not is_decoder(inner.config.model_type):
        return most
    if padding is not None and padding == model.tokenizer.pad_token_id:
        return most
    stderr.print(
        f"{inner.name_or_path}: has no token for padding, so pairs are scored one by one, without a prompt around them "
        "(if it was made of a causal reranker, set prompt.template)",
        style="dim",
        soft_wrap=True,
    )
    return 1


def refuse_rowless_texts(pairs: Sequence[TextPair], model: CrossEncoder, rowless: Mapping[int, str]) -> None:
    """Raise an ``InputError`` about the first pair of texts that holds one of the ``rowless_tokens`` of its model."""
    for number, pair in enumerate(pairs if rowless else ()):
        if any(token in text for text in pair for token in rowless.values()):
            refuse_rowless(model.preprocess([pair])["input_ids"].tolist(), rowless, number)  # without what is cut off


def _refuse_bare_pairs(folder: Path) -> None:
    settings = read_settings(folder / "tokenizer_config.json")
    if not settings.get("chat_template") and not any(folder.glob("chat_template*")):
        raise DataError(
            f"{folder}: a causal language model without a chat template, to which sentence-transformers would show "
            "bare pairs; add its chat template, or name it without cross-encoder:, and its prompt by prompt.template"
        )


def _refuse_labels(folder: Path, labels: int) -> None:
    if labels not in (1, 2):  # with two, as monoBERT has, one says relevant and the other does not
        raise DataError(f"{folder}: a model of {labels} labels; ranking needs one score per pair")


def _limit_length(model: CrossEncoder, max_length: int | None) -> None:
    """Cut pairs to so many tokens, or to the model's own number, or to its positions: to the least of these."""
    limits = (max_length, model.max_seq_length, position_limit(model[0].model))
    stated = [limit for limit in limits if limit is not None]
    if stated:
        model.max_seq_length = min(stated)


def _pad_with_any(model: CrossEncoder) -> None:
    """Name a token for padding where there is none that the model can read: the library asks for one in any case."""
    tokenizer, inner = model.tokenizer, cast("PreTrainedModel", model[0].model)
    rows = len(cast("Tensor", inner.get_input_embeddings().weight))
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id < rows:
        return
    known = inner.config.get_text_config().pad_token_id
    known = known if known is not None and 0 <= known < rows else tokenizer.eos_token_id
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(0 if known is None or known >= rows else known)


def _score_in_float32(model: CrossEncoder) -> None:
    """Let the head of a model of lower precision compute in float32."""
    from sentence_transformers.cross_encoder.modules import LogitScore

    body, *heads = model
    inner: Any = body.model
    if inner.dtype == torch.float32:
        return
    if type(inner).__name__.endswith("ForSequenceClassification"):
        prefix = inner.base_model_prefix
        heads += [module for name, module in inner.named_children() if name != prefix]
        heads += [module for name, module in inner.base_model.named_children() if name == "pooler"]
    for head in heads:
        if isinstance(head, LogitScore):
            answers = [token for token in (head.true_token_id, head.false_token_id) if token is not None]
            inner.set_output_embeddings(AnswerHead(inner.get_output_embeddings(), answers))
            head.true_token_id, head.false_token_id = 0, 1 if len(answers) > 1 else None
        else:
            compute_in_float32(head)
