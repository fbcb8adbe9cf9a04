"""Cross-encoders of sentence-transformers, which loads and runs them: one or two outputs, ``Dense``, ``LogitScore``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unimoe.core.errors import DataError
from unimoe.models.batching import FittingBatches, batches, gather
from unimoe.models.device import AnswerHead, compute_in_float32
from unimoe.models.embedder import Advance
from unimoe.models.folder import ModelFolder, find_folder, loadable, read_folder
from unimoe.models.identity import module_folders, read_settings, reading
from unimoe.models.kinds import CROSS_ENCODER
from unimoe.models.model import Model, model_of_reranker
from unimoe.models.model_files import loading, missing_weights
from unimoe.models.named import OPTION, ModelSettings, register_model
from unimoe.models.prompts import well_formed
from unimoe.models.reranker import Cut, Reranker, TextPair

_BATCH_SIZE = 32  # pairs of one forward pass
_SHARD_BATCHES = 64
"""Batches of a shard of pairs in falling length: shards change no batch."""

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

    found = read_folder("model.base", str(folder), folder, trust_remote_code=trust_remote_code)
    refuse_no_cross_encoder(found)
    with loading(f"{folder}: cannot be loaded as a cross-encoder", "save it with save_pretrained()"):
        with loadable(found) as place:
            model: CrossEncoder = CrossEncoder(
                str(place),
                device=str(device),
                local_files_only=True,
                trust_remote_code=trust_remote_code,
                model_kwargs=None if dtype is None else {"dtype": dtype},
            )
        missing = missing_weights(model[0].model, found.inner, found) if len(model) == 1 or found.base else []
    if missing:
        raise DataError(f"{folder}: no weights for {missing[0]}; give a cross-encoder that was trained and saved whole")
    _refuse_labels(folder, model.num_labels)
    _score_in_float32(model)
    own = model.max_seq_length
    if max_length is not None and (own is None or own > max_length):
        model.max_seq_length = max_length
    return model.requires_grad_(False).eval().to(device)


def refuse_no_cross_encoder(found: ModelFolder) -> None:
    """Raise a ``DataError`` about a folder whose settings are those of a model with no score or several for a pair."""
    found.refuse_no_config()
    folder, name = found.root, found.architecture
    heads = [read_settings(other / "config.json") for other in module_folders(folder)[1:]]
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
        labels = found.labels
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


class CrossEncoderReranker(Reranker):
    """Scores pairs by the logit of a cross-encoder of sentence-transformers, which cuts the longer side of a pair.

    Of two labels it is the logit of label 1 minus that of label 0. A forward pass has ``batch_size`` pairs, fewer once
    memory ran out.
    """

    logits = True

    def __init__(self, model: CrossEncoder, batch_size: int) -> None:
        self._model, self._batch_size, self.place = model, batch_size, model.device
        self._fitting = FittingBatches("a pair", "model.max_length", "pairs", plan=_longest_first, size=len)

    @property
    def cut_by(self) -> Cut:
        """Falling length, so that pairs of similar length share a batch."""
        return "length", _SHARD_BATCHES * self._batch_size

    def score(self, prepared: Sequence[TextPair], advance: Advance | None = None) -> list[float]:
        """Return the logit of each pair."""
        pairs = [(well_formed(query), well_formed(document)) for query, document in prepared]

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

    def load() -> CrossEncoderReranker:
        loaded = load_cross_encoder(
            folder.root, settings.device, settings.dtype, config.max_length, trust_remote_code=trusted
        )
        return CrossEncoderReranker(loaded, batch_size)

    return model_of_reranker(
        load,
        identity=f"{CROSS_ENCODER}:{folder.identity}",
        prompt=reading("cross_encoder", folder.root, config.max_length),
        dtype=settings.dtype_name,
    )


register_model(CROSS_ENCODER, cross_encoder_model)
