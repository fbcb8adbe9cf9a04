"""Cross-encoders of sentence-transformers, which loads and runs them: one or two outputs, ``Dense``, ``LogitScore``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from unimoe.core.errors import DataError
from unimoe.models.device import AnswerHead, compute_in_float32
from unimoe.models.model_files import (
    architecture,
    label_count,
    loading,
    missing_weights,
    module_folders,
    read_settings,
    transformer_folder,
)
from unimoe.models.token_ids import add_stated_ends

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder


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
    at most; by default, and where that is less, the model's own number counts.

    Raises:
        DataError: it cannot be loaded, has no trained head, or has more than two labels.
    """
    from sentence_transformers import CrossEncoder

    refuse_no_cross_encoder(folder)
    with loading(f"{folder}: cannot be loaded as a cross-encoder", "save it with save_pretrained()"):
        model: CrossEncoder = CrossEncoder(
            str(folder),
            device=str(device),
            local_files_only=True,
            trust_remote_code=trust_remote_code,
            model_kwargs=None if dtype is None else {"dtype": dtype},
        )
        add_stated_ends(model.tokenizer, transformer_folder(folder))
        missing = missing_weights(model[0].model, transformer_folder(folder)) if len(model) == 1 else []
    if missing:
        raise DataError(f"{folder}: no weights for {missing[0]}; give a cross-encoder that was trained and saved whole")
    _refuse_labels(folder, model.num_labels)
    _score_in_float32(model)
    own = model.max_seq_length
    if max_length is not None and (own is None or own > max_length):
        model.max_seq_length = max_length
    return model.requires_grad_(False).eval().to(device)


def refuse_no_cross_encoder(folder: Path) -> None:
    """Raise a ``DataError`` about a folder whose settings are those of a model with no score or several for a pair."""
    inner, *others = module_folders(folder)
    name, heads = architecture(inner), [read_settings(other / "config.json") for other in others]
    # A Dense module behind the transformer may give the scores.
    labels = next(
        (int(head.get("out_features", 0)) for head in heads if head.get("module_output_name") == "scores"), None
    )
    if labels is None and not name.endswith(("ForSequenceClassification", "ForCausalLM")):
        raise DataError(
            f"{folder}: a {name or 'model of no known architecture'}, which has no head that scores pairs; give a "
            "cross-encoder, or train one on it with `unimoe train-cross-encoder`"
        )
    if labels is None and name.endswith("ForSequenceClassification"):
        labels = label_count(inner)
    if labels is not None:
        _refuse_labels(folder, labels)


def _refuse_labels(folder: Path, labels: int) -> None:
    if labels not in (1, 2):  # with two, as monoBERT has, label 1 says relevant and label 0 does not
        raise DataError(f"{folder}: a model of {labels} labels; ranking needs one score per pair")


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
