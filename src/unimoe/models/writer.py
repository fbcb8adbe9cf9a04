"""What writes answers to conversations: a causal language model on this machine, greedily; and what an answer cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unimoe.models.base import BaseModel, position_limit
from unimoe.models.batching import FittingBatches, default_token_budget
from unimoe.models.model_files import silence_transformers
from unimoe.models.prompts.lists import Conversation, in_one_message
from unimoe.models.prompts.tokenizers import first_token, tokenize

_TAIL = 16  # last tokens that are read for the end of a thought


class Written(NamedTuple):
    """An answer: its text, whether it ran out of tokens, and what it cost, by name: ``tokens``, ``requests``, ..."""

    text: str
    cut: bool
    usage: Mapping[str, float]


class Continued(NamedTuple):
    """The tokens that follow a prompt, without the one that ends a text, and whether they ran out."""

    ids: list[int]
    cut: bool


class LocalWriter:
    """Writes by a causal language model of transformers, greedily: equal prompts have equal answers.

    ``max_length`` are the tokens of prompt and answer; None for as many as the model has positions for.
    """

    at_once = 1

    def __init__(self, base: BaseModel, max_length: int | None = None) -> None:
        self._model, self.tokenizer = base.model, base.tokenizer
        stated = getattr(base.model.config.get_text_config(), "max_position_embeddings", None)
        limits = [limit for limit in (max_length, stated, position_limit(base.model)) if limit is not None]
        self.room = min(limits, default=None)
        self.fitting = FittingBatches("a prompt", "model.max_length")
        ends = base.model.generation_config.eos_token_id
        given = ends if isinstance(ends, list) else [ends]
        self._ends = sorted({end for end in (*given, base.tokenizer.eos_token_id) if end is not None})

        self.place: torch.device = base.model.device

    def fits(self, conversation: Conversation, tokens: int) -> bool:
        """Return whether prompt and answer have a place in the model."""
        return self.room is None or self.size(conversation) + tokens <= self.room

    def size(self, conversation: Conversation) -> int:
        """Return the tokens of a prompt."""
        return len(self._prompt(conversation, thinks=False))

    def write(self, conversation: Conversation, tokens: int, *, thinks: bool = False) -> Written:
        """Return an answer of so many tokens at most; ``thinks`` says whether a model that can think does so."""
        prompt = self._prompt(conversation, thinks=thinks)
        (found,) = self.follow([prompt], tokens)
        text = self.tokenizer.decode(found.ids, skip_special_tokens=True)
        return Written(text, found.cut, {"tokens": float(len(prompt) + len(found.ids))})

    @torch.inference_mode()
    def follow(
        self, prompts: Sequence[list[int]], tokens: int, until: str | None = None, budget: int | None = None
    ) -> list[Continued]:
        """Return the most probable tokens after each prompt, up to the end of a text or the word ``until``.

        ``budget`` are the tokens of a batch, prompts and answers; None for what suits the device.
        """
        found: dict[int, Continued] = {}
        most = budget or default_token_budget(self.place)

        def compute(batch: list[int]) -> list[Continued]:
            return self._batch([prompts[index] for index in batch], tokens, until)

        # Prompts that may be much shorter than their answers share a batch by what they grow to.
        grown = [[*prompt, *[0] * tokens] for prompt in prompts]
        for batch, answers in self.fitting.run(grown, compute, most):
            found |= dict(zip(batch, answers, strict=True))
        return [found[index] for index in range(len(prompts))]

    def _batch(self, prompts: Sequence[list[int]], tokens: int, until: str | None) -> list[Continued]:
        from transformers import GenerationConfig, StoppingCriteriaList

        width, padding = max(map(len, prompts)), self._ends[0] if self._ends else 0
        ids = torch.tensor([[padding] * (width - len(prompt)) + prompt for prompt in prompts], device=self.place)
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=self.place)
        # All that a model's own settings may change about the most probable words is named.
        how = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=tokens, do_sample=False, num_beams=1, repetition_penalty=1.0, no_repeat_ngram_size=0,
            eos_token_id=self._ends or None, pad_token_id=padding,
        )  # fmt: skip
        stops = StoppingCriteriaList([self._stops(until, width)] if until else [])
        with silence_transformers():
            written: Tensor = self._model.generate(
                input_ids=ids, attention_mask=mask, generation_config=how, stopping_criteria=stops, use_cache=True
            )
        return [self._read(row, until, tokens) for row in written[:, width:].tolist()]

    def _stops(self, until: str, width: int) -> Any:
        def stops(ids: Tensor, scores: Any, **_: Any) -> Tensor:
            tails = self.tokenizer.batch_decode(ids[:, max(width, ids.shape[1] - _TAIL) :])
            return torch.tensor([until in tail for tail in tails], device=ids.device)

        return stops

    def _read(self, row: list[int], until: str | None, tokens: int) -> Continued:
        """Return what was written before padding: up to the token that ends a text, or with the word that ends it."""
        end = next((place for place, token in enumerate(row) if token in self._ends), None)
        own = row if end is None else row[:end]
        done = end is not None or bool(until and until in self.tokenizer.decode(own))
        return Continued(own, cut=not done and len(own) == tokens)

    def _prompt(self, conversation: Conversation, *, thinks: bool) -> list[int]:
        """Return the token ids of a conversation in the model's own chat template, or of its texts without one."""
        from jinja2 import TemplateError

        if not self.tokenizer.chat_template:
            (ids,) = tokenize(self.tokenizer, ["\n\n".join(message["content"] for message in conversation) + "\n"])
            return first_token(self.tokenizer) + ids
        options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": thinks}
        try:
            text = self.tokenizer.apply_chat_template(conversation, **options)
        except TemplateError:  # some take no system message, or none of an assistant before a user's
            text = self.tokenizer.apply_chat_template(in_one_message(conversation), **options)
        (ids,) = tokenize(self.tokenizer, [text])
        return ids
