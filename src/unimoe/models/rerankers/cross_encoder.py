"""Cross-encoders of sentence-transformers, which loads and runs them: one or two outputs, ``Dense``, ``LogitScore``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from unimoe.core.console import stderr
from unimoe.core.errors import DataError
from unimoe.models.adapter_files import load_library_model
from unimoe.models.base import position_limit
from unimoe.models.batching import FittingBatches, batches, gather
from unimoe.models.device import AnswerHead, compute_in_float32
from unimoe.models.embedder import Advance
from unimoe.models.folder import ModelFolder, find_folder, read_folder
from unimoe.models.identity import module_folders, read_settings, reading
from unimoe.models.kinds import CROSS_ENCODER, is_decoder
from unimoe.models.model import Model, model_of_reranker
from unimoe.models.model_files import loading, missing_weights
from unimoe.models.named import OPTION, ModelSettings, register_model
from unimoe.models.own_code import ELSEWHERE, or_own_code, refuse_unknown_class
from unimoe.models.prompts import well_formed
from unimoe.models.reranker import Cut, Reranker, TextPair
from unimoe.models.rerankers.classifiers import (
    bare_pairs,
    counts_against,
    has_chat_template,
    reads_prompt,
    turned_around,
)
from unimoe.models.rerankers.score_head import templated_model
from unimoe.models.token_ids import add_stated_ends, embedding_rows, refuse_tokens_without_rows

_BATCH_SIZE = 32  # pairs of one forward pass
_SHARD_BATCHES = 64
"""Batches of a shard of pairs in falling length: shards change no batch."""

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
    found = read_folder("model.base", str(folder), folder, trust_remote_code=trust_remote_code)
    refuse_no_cross_encoder(found)
    with loading(f"{folder}: cannot be loaded as a cross-encoder", "save it with save_pretrained()"):
        model: CrossEncoder = load_library_model(
            "CrossEncoder",
            found,
            device=str(device),
            trust_remote_code=trust_remote_code,
            model_kwargs=None if dtype is None else {"dtype": dtype},
        )
        add_stated_ends(model.tokenizer, found.tokenizer_root)
        missing = missing_weights(model[0].model, found.inner, found)
        if len(model) > 1:  # its other modules read the states of all tokens, or the logits of a language model
            missing = [name for name in missing if "pooler" not in name.split(".")]
    if missing:
        raise DataError(
            f"{folder}: no weights for {missing[0]}; "
            f"give a cross-encoder that was trained and saved whole{or_own_code(model[0].model)}"
        )
    _refuse_labels(folder, model.num_labels)
    _score_in_float32(model)
    if counts_against(found, model.num_labels):
        model.append(Reversed())
    _limit_length(model, max_length)
    _pad_with_any(model)
    with loading(f"{folder}: cannot read a pair", "mend its chat template, or leave it out"):
        model.preprocess([("a", "b")])
    model.requires_grad_(False).eval().to(device)
    with loading(f"{folder}: cannot score a pair", "save it again, with the tokenizer that it was trained with"):
        model.predict([("a", "b")], show_progress_bar=False)
    return model


def refuse_no_cross_encoder(found: ModelFolder) -> None:
    """Raise an error about a folder with the settings of a model with no score or several for a pair."""
    found.refuse_no_config()
    folder, name = found.root, found.architecture
    refuse_unknown_class(str(folder), name, trusted=found.trusted)
    heads = [read_settings(other / "config.json") for other in module_folders(found.library_root)[1:]]
    # A Dense module behind the transformer may give the scores.
    labels = next(
        (int(head.get("out_features", 0)) for head in heads if head.get("module_output_name") == "scores"), None
    )
    adds_head = found.base is not None  # an adapter may bring the head, which shows when it is loaded
    if labels is None and not adds_head and not name.endswith(("ForSequenceClassification", "ForCausalLM")):
        raise DataError(
            f"{folder}: a {name or 'model of no known architecture'}, which has no head that scores pairs; give a "
            f"cross-encoder, train one on it with `unimoe train-cross-encoder`, or {ELSEWHERE}"
        )
    if labels is None and name.endswith("ForSequenceClassification"):
        labels = found.labels
    if labels is not None:
        _refuse_labels(folder, labels)
        counts_against(found, labels)
    elif not has_chat_template(found) and name.endswith("ForCausalLM") and not (folder / "modules.json").is_file():
        raise DataError(
            f"{folder}: a causal language model without a chat template, to which sentence-transformers would show "
            "bare pairs; add its chat template, or write yes-no: and its prompt by prompt.template"
        )


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
    line = f"{inner.name_or_path}: has no token for padding, so pairs are scored one by one"
    stderr.print(line, style="dim", soft_wrap=True)
    return 1


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


class CrossEncoderReranker(Reranker):
    """Scores pairs by the logit of a cross-encoder of sentence-transformers, which cuts the longer side of a pair.

    Of two labels it is the logit of label 1 minus that of label 0. A forward pass has ``batch_size`` pairs, fewer once
    memory ran out.
    """

    logits = True

    def __init__(self, model: CrossEncoder, batch_size: int) -> None:
        self._model, self._batch_size, self.place = model, batch_size, model.device
        self._rows = embedding_rows(model[0].model)
        added = model.tokenizer.get_added_vocab()
        self._rowless = [token for token, index in added.items() if index >= self._rows]
        self._fitting = FittingBatches("a pair", "model.max_length", "pairs", plan=_longest_first, size=len)

    @property
    def cut_by(self) -> Cut:
        """Falling length, so that pairs of similar length share a batch."""
        return "length", _SHARD_BATCHES * self._batch_size

    def score(self, prepared: Sequence[TextPair], advance: Advance | None = None) -> list[float]:
        """Return the logit of each pair."""
        pairs = [(well_formed(query), well_formed(document)) for query, document in prepared]
        self._refuse_rowless(pairs)

        def logits(batch: list[int]) -> Tensor:
            found: Tensor = self._model.predict(
                [pairs[index] for index in batch],
                batch_size=len(batch),
                show_progress_bar=False,
                activation_fn=nn.Identity(),
                convert_to_tensor=True,
            ).float()
            return found[:, 1] - found[:, 0] if found.ndim > 1 else found

        reason = "its score is not finite; the weights are damaged, or the training diverged"
        scored = self._fitting.run(pairs, logits, self._batch_size)
        scores: list[float] = gather((len(pairs),), scored, reason, advance).tolist()
        return scores

    def _refuse_rowless(self, pairs: Sequence[TextPair]) -> None:
        """Raise an ``InputError`` about the first pair with a token that the model has no embedding for."""
        for number, pair in enumerate(pairs if self._rowless else ()):
            if any(token in text for text in pair for token in self._rowless):
                ids = self._model.preprocess([pair])["input_ids"].tolist()  # without what is cut off
                refuse_tokens_without_rows(ids, self._rows, self._model.tokenizer, number)


def _longest_first(pairs: Sequence[TextPair], size: int, _: int | None) -> list[list[int]]:
    order = sorted(range(len(pairs)), key=lambda index: -sum(map(len, pairs[index])))
    return [list(batch) for batch in batches(order, size)]


def cross_encoder_model(name: str, settings: ModelSettings) -> Model:
    """Return a cross-encoder that sentence-transformers loads, such as MiniLM's, BGE's, or our own."""
    settings.refuse_layers(CROSS_ENCODER)
    config, batch_size = settings.experiment.model, settings.experiment.evaluation.batch_size or _BATCH_SIZE
    trusted = config.trust_remote_code
    folder = find_folder(OPTION, name, config.revision, trust_remote_code=trusted)
    refuse_no_cross_encoder(folder)
    identity, prompt = f"{CROSS_ENCODER}:{folder.identity}", settings.experiment.prompt
    if reads_prompt(folder, prompt):
        return templated_model(folder, settings, identity)

    def load() -> CrossEncoderReranker:
        loaded = load_cross_encoder(
            folder.root, settings.device, settings.dtype, config.max_length, trust_remote_code=trusted
        )
        if "max_length" in config.model_fields_set and (own := loaded.max_seq_length or 0) < config.max_length:
            stderr.print(f"{name}: reads {own} tokens of a pair, and no {config.max_length}", style="dim")
        return CrossEncoderReranker(loaded, pairs_at_once(loaded, batch_size))

    return model_of_reranker(
        load,
        identity=identity,
        prompt=reading("cross_encoder", folder.root, config.max_length),
        dtype=settings.dtype_name,
        said=turned_around(folder),
        caveats=bare_pairs(folder),
    )


register_model(CROSS_ENCODER, cross_encoder_model)
