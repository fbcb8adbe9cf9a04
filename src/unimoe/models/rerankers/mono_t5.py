"""monoT5: a T5 that is asked about a pair and begins its answer with ``true`` or ``false`` (Nogueira et al. 2020)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unimoe.config import PromptConfig
from unimoe.core.errors import DataError
from unimoe.models.batching import FittingBatches, default_token_budget, pad_ids, to_device
from unimoe.models.model_files import architecture
from unimoe.models.pair_model import TextPair
from unimoe.models.prompts import yes_no_ids
from unimoe.models.prompts.tokenizers import tokenize
from unimoe.models.quiet import load_pretrained, loading
from unimoe.models.rerankers.token_scores import AnswerHead, QueryFirstIds, TokenReranker, reading

_TRUE, _FALSE = "true", "false"


def mono_t5_prompt(root: Path, prompt: PromptConfig, max_length: int) -> str:
    """Return how a folder's monoT5 reads and judges a pair; see ``reading``."""
    return reading("monot5", root, max_length, prompt.answers(_TRUE, _FALSE))


def load_mono_t5(
    folder: Path, identity: str, prompt: PromptConfig, max_length: int, device: torch.device, dtype: torch.dtype
) -> MonoT5:
    """Load a monoT5 from a folder; of the prompt the answers are used, ``true`` and ``false`` where it has none."""
    from transformers import AutoModelForSeq2SeqLM

    remedy = "give a T5 saved as safetensors, with its tokenizer.json or the package sentencepiece"
    with loading(f"{folder}: cannot be loaded as a monoT5", remedy):
        tokenizer, model, missing = load_pretrained(AutoModelForSeq2SeqLM, folder, dtype)
    if missing:
        raise DataError(f"{folder}: no weights for {missing[0]}; give a T5 that is saved with its output layer")
    answers = yes_no_ids(tokenizer, *prompt.answers(_TRUE, _FALSE))
    model.set_output_embeddings(AnswerHead(model.get_output_embeddings(), answers))
    model.requires_grad_(False).eval().to(device)
    pairs = PairsOfT5(tokenizer, max_length, tokenizer("Relevant:")["input_ids"])  # and the end of a text
    return MonoT5(model, pairs, identity, mono_t5_prompt(folder, prompt, max_length))


def refuse_no_t5(folder: Path) -> None:
    """Raise a ``DataError`` about a folder whose settings are not those of an encoder and decoder that answers."""
    name = architecture(folder)
    if not name.endswith("ForConditionalGeneration"):
        raise DataError(f"{folder}: a {name or 'model of no known architecture'}, no T5 that answers; give a monoT5")


class PairsOfT5(QueryFirstIds):
    """The token ids of ``Query: ... Document: ... Relevant:``, whose end and beginning are never cut."""

    def _bodies(self, pairs: Sequence[TextPair]) -> list[list[int]]:
        return tokenize(self._tokenizer, [f"Query: {query} Document: {document}" for query, document in pairs])


class MonoT5(TokenReranker):
    """Scores pairs by the logit of ``true`` minus that of ``false`` in the first token of a T5's answer.

    The order is that of the published score, the logarithm of P(true). The output layer is that of the two alone.
    """

    def __init__(self, model: Any, pair_ids: PairsOfT5, base_identity: str, prompt_name: str) -> None:
        super().__init__(model, pair_ids, base_identity, prompt_name)
        self._fitting = FittingBatches("a pair", "model.max_length")

    @property
    def reduced_budget(self) -> int | None:
        """Tokens of a batch after memory ran out; None before."""
        return self._fitting.reduced

    def _scores(
        self, sequences: Sequence[list[int]], token_budget: int | None, batch_size: int | None
    ) -> Iterator[tuple[list[int], Tensor]]:
        def margins(batch: list[int], _: Any) -> Tensor:
            ids = pad_ids([sequences[index] for index in batch], self.device)
            lengths = to_device(torch.tensor([len(sequences[index]) for index in batch]), self.device)
            begin = torch.full((len(batch), 1), self.model.config.decoder_start_token_id, device=self.device)
            logits: Tensor = self.model(
                input_ids=ids,
                attention_mask=(torch.arange(ids.shape[1], device=self.device) < lengths[:, None]).long(),
                decoder_input_ids=begin,
                use_cache=False,
            ).logits[:, 0]
            return logits[:, 0] - logits[:, 1]

        budget = token_budget or default_token_budget(self.device)
        return self._fitting.run(sequences, margins, budget=budget, batch_size=batch_size)
