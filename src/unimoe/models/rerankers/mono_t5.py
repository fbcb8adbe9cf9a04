"""monoT5: a T5 that is asked about a pair and begins its answer with ``true`` or ``false`` (Nogueira et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from unimoe.config import PromptConfig
from unimoe.core.errors import DataError
from unimoe.models.batching import FittingBatches, default_token_budget, pad_ids, to_device
from unimoe.models.device import AnswerHead, margin_of
from unimoe.models.folder import ModelFolder, find_folder, read_folder
from unimoe.models.identity import reading
from unimoe.models.kinds import MONO_T5
from unimoe.models.model import Model, model_of_pairs
from unimoe.models.model_files import load_pretrained, loading
from unimoe.models.named import OPTION, ModelSettings, register_model
from unimoe.models.own_code import or_own_code, refuse_unknown_class
from unimoe.models.pair_model import QueryFirstIds, TokenReranker
from unimoe.models.prompts import answer_ids
from unimoe.models.prompts.tokenizers import tokenize

ANSWERS = ("true", "false")
"""What says relevant and not relevant, where the prompt names no answers."""


def refuse_no_t5(folder: ModelFolder) -> None:
    """Raise a ``DataError`` about a folder without the settings of an encoder and decoder that answers."""
    folder.refuse_no_config()
    refuse_unknown_class(str(folder.root), folder.architecture, trusted=folder.trusted)
    if not (name := folder.architecture).endswith("ForConditionalGeneration"):
        what = name or "model of no known architecture"
        raise DataError(f"{folder.root}: a {what}, no T5 that answers; give a monoT5")


def load_mono_t5(
    folder: Path,
    prompt: PromptConfig,
    max_length: int,
    device: torch.device,
    dtype: torch.dtype,
    *,
    trust_remote_code: bool = False,
) -> TokenReranker:
    """Load a monoT5 from a folder; of the prompt the answers are used.

    It scores pairs by the logit of ``true`` minus that of ``false`` in the first token of its answer. The order is that
    of the published score, the logarithm of P(true). A single answer is scored by its logit.
    """
    from transformers import AutoModelForSeq2SeqLM

    remedy = "give a T5 with its tokenizer.json, or install the package sentencepiece"
    with loading(f"{folder}: cannot be loaded as a monoT5", remedy):
        found = read_folder("model.base", str(folder), folder, trust_remote_code=trust_remote_code)
        tokenizer, model, missing = load_pretrained(AutoModelForSeq2SeqLM, found, dtype)
    if found.base:
        model = model.get_base_model()  # its layers hold the adapters now
    if missing:
        raise DataError(
            f"{folder}: no weights for {missing[0]}; give a T5 that is saved with its output layer{or_own_code(model)}"
        )
    answers = answer_ids(tokenizer, prompt.answers or ANSWERS)
    model.set_output_embeddings(AnswerHead(model.get_output_embeddings(), answers))
    model.requires_grad_(False).eval().to(device)
    fitting = FittingBatches("a pair", "model.max_length")

    def scores(
        sequences: Sequence[list[int]], token_budget: int | None, batch_size: int | None
    ) -> Iterator[tuple[list[int], Tensor]]:
        def margins(batch: list[int]) -> Tensor:
            place = model.device
            ids = pad_ids([sequences[index] for index in batch], place)
            lengths = to_device(torch.tensor([len(sequences[index]) for index in batch]), place)
            logits: Tensor = model(
                input_ids=ids,
                attention_mask=(torch.arange(ids.shape[1], device=place) < lengths[:, None]).long(),
                decoder_input_ids=torch.full((len(batch), 1), model.config.decoder_start_token_id, device=place),
                use_cache=False,
            ).logits[:, 0]
            return margin_of(logits)

        budget = token_budget or default_token_budget(model.device)
        return fitting.run(sequences, margins, budget, batch_size)

    pairs = QueryFirstIds(
        lambda pairs: tokenize(tokenizer, [f"Query: {query} Document: {document}" for query, document in pairs]),
        max_length,
        suffix=tokenizer("Relevant:")["input_ids"],  # and the end of a text
    )
    return TokenReranker(model, pairs, scores, fitting)


def mono_t5_model(name: str, settings: ModelSettings) -> Model:
    """Return a T5 that says true or false about a pair."""
    settings.refuse_layers(MONO_T5)
    config, prompt = settings.experiment.model, settings.experiment.prompt
    trusted, length, place, dtype = config.trust_remote_code, config.max_length, settings.device, settings.dtype
    folder = find_folder(OPTION, name, config.revision, trust_remote_code=trusted)
    refuse_no_t5(folder)
    return model_of_pairs(
        lambda: load_mono_t5(folder.root, prompt, length, place, dtype, trust_remote_code=trusted),
        identity=f"{MONO_T5}:{folder.identity}",
        prompt=reading(MONO_T5, folder.root, length, tuple(prompt.answers or ANSWERS)),
        dtype=settings.dtype_name,
        said=f"answers {' and '.join(map(repr, prompt.answers or ANSWERS))}",
    )


register_model(MONO_T5, mono_t5_model)
