"""What writes answers to conversations: a causal language model on this machine, greedily; and what an answer cost."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unimoe.models.base import BaseModel, position_limit, rotation_limit
from unimoe.models.batching import FittingBatches
from unimoe.models.lists import BEGIN_OF_THOUGHT
from unimoe.models.model_files import silence_transformers
from unimoe.models.prompts.lists import Conversation, control_tokens, in_one_message
from unimoe.models.prompts.tokenizers import first_token, tokenize

_TAIL = 16  # last tokens that are read for the beginning or end of a thought

CPU_WRITING, GPU_WRITING = 8192, 2**17
"""Tokens of prompts and answers that are written together: each has a state in all layers, 128 KiB in one of Mistral
7B. A machine's memory for them is read for every token, and so are the weights, whether for one text or for many."""


class Ask(NamedTuple):
    """A conversation to answer: the tokens of its longest answer, a thought included, and those of both together."""

    conversation: Conversation
    tokens: int
    size: int


class Written(NamedTuple):
    """An answer: its text, whether it ran out of tokens, and what it cost, by name: ``tokens``, ``requests``, ..."""

    text: str
    cut: bool
    usage: Mapping[str, float]


class Continued(NamedTuple):
    """The tokens that follow a prompt, without the one that ends a text, and whether they ran out."""

    ids: list[int]
    cut: bool


_Text = tuple[list[int], int]
"""The token ids of a prompt, and the tokens of its longest answer."""


def _padded(texts: Sequence[_Text]) -> int:
    """Return the tokens of a batch, which is padded to the longest prompt and the longest answer."""
    return len(texts) * (max(len(prompt) for prompt, _ in texts) + max(tokens for _, tokens in texts))


class LocalWriter:
    """Writes by a causal language model of transformers, greedily: equal prompts have equal answers.

    ``max_length`` are the tokens of prompt and answer; None for as many as the model has positions for. ``thinks`` says
    whether a model that can think does so.
    """

    at_once = 1

    def __init__(self, base: BaseModel, max_length: int | None = None, *, thinks: bool = False) -> None:
        self._model, self.tokenizer, self._thinks = base.model, base.tokenizer, thinks
        config = base.model.config.get_text_config()
        stated = getattr(config, "max_position_embeddings", None)
        self.room = min(filter(None, (max_length, stated, position_limit(base.model))), default=None)
        turning, _ = rotation_limit(config) or (None, "")
        self._batch_room = min(filter(None, (self.room, turning)), default=sys.maxsize)
        self.fitting = FittingBatches("a prompt", "model.max_length", plan=self._plan, size=_padded)
        ends = base.model.generation_config.eos_token_id
        given = ends if isinstance(ends, list) else [ends]
        self._ends = sorted({end for end in (*given, base.tokenizer.eos_token_id) if end is not None})
        self.place: torch.device = base.model.device
        self.budget = CPU_WRITING if self.place.type == "cpu" else GPU_WRITING
        self.control = control_tokens(str(token) for token in base.tokenizer.added_tokens_decoder.values())

    def ask(self, conversation: Conversation, tokens: int) -> Ask:
        """Return a conversation with its tokens."""
        return Ask(conversation, tokens, len(self._prompt(conversation)) + tokens)

    def together(self, asks: Sequence[Ask]) -> int:
        """Return how many, of the first ones, are answered in one batch."""
        budget = min(self.budget, self.fitting.reduced or self.budget)
        return self._first(((ask.size - ask.tokens, ask.tokens) for ask in asks), budget)

    def _first(self, sizes: Iterable[tuple[int, int]], budget: int) -> int:
        """Return how many, of the first texts, make a batch, by the tokens of their prompts and longest answers.

        A batch goes on until the longest answer ends, from the longest prompt: all of it must have positions.
        """
        count = prompt = answer = 0
        for own, most in sizes:
            prompt, answer = max(prompt, own), max(answer, most)
            if count and ((prompt + answer) * (count + 1) > budget or prompt + answer > self._batch_room):
                break
            count += 1
        return count

    def _plan(self, texts: Sequence[_Text], budget: int, _: int | None) -> list[list[int]]:
        """Group the indices of texts into batches, the longest first."""
        left, batches = sorted(range(len(texts)), key=lambda index: -_padded([texts[index]])), list[list[int]]()
        while left:
            count = self._first(((len(texts[index][0]), texts[index][1]) for index in left), budget)
            batches.append(left[:count])
            left = left[count:]
        return batches

    def write(self, asks: Sequence[Ask]) -> list[Written]:
        """Return the answers to conversations, written together."""
        prompts = [self._prompt(ask.conversation) for ask in asks]
        found = self.follow(prompts, [ask.tokens for ask in asks])
        return [self._written(prompt, one) for prompt, one in zip(prompts, found, strict=True)]

    def _written(self, prompt: list[int], found: Continued) -> Written:
        opened = self.tokenizer.decode(prompt[-_TAIL:]).rstrip().endswith(BEGIN_OF_THOUGHT)  # by the chat template
        text = self.tokenizer.decode(found.ids, skip_special_tokens=True)
        usage = {"tokens": float(len(prompt) + len(found.ids))}
        return Written(BEGIN_OF_THOUGHT * opened + text, found.cut, usage)

    @torch.inference_mode()
    def follow(self, prompts: Sequence[list[int]], tokens: Sequence[int], until: str | None = None) -> list[Continued]:
        """Return the most probable tokens after each prompt, up to the end of a text or the word ``until``.

        ``tokens`` are the most of each.
        """
        if not any(tokens):
            return [Continued([], cut=True) for _ in prompts]
        texts, found = [*zip(prompts, tokens, strict=True)], dict[int, Continued]()

        def compute(batch: list[int]) -> list[Continued]:
            return self._batch([texts[index] for index in batch], until)

        for batch, answers in self.fitting.run(texts, compute, self.budget):
            found |= dict(zip(batch, answers, strict=True))
        return [found[index] for index in range(len(prompts))]

    def _batch(self, texts: Sequence[_Text], until: str | None) -> list[Continued]:
        from transformers import GenerationConfig, StoppingCriteriaList

        width, padding = max(len(prompt) for prompt, _ in texts), self._ends[0] if self._ends else 0
        ids, mask = torch.full((len(texts), width), padding), torch.zeros(len(texts), width, dtype=torch.long)
        for row, (prompt, _) in enumerate(texts):
            ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = torch.tensor(prompt), 1
        # All that a model's own settings may change about the most probable words is named.
        how = GenerationConfig(  # type: ignore[no-untyped-call]
            max_new_tokens=max(tokens for _, tokens in texts), do_sample=False, num_beams=1, repetition_penalty=1.0,
            no_repeat_ngram_size=0, eos_token_id=self._ends or None, pad_token_id=padding,
        )  # fmt: skip
        stops = StoppingCriteriaList([self._stops(until, width)] if until else [])
        ids, mask = ids.to(self.place), mask.to(self.place)
        with silence_transformers():
            written: Tensor = self._model.generate(
                input_ids=ids, attention_mask=mask, generation_config=how, stopping_criteria=stops, use_cache=True
            )
        rows = zip(written[:, width:].tolist(), texts, strict=True)
        return [self._read(row[:tokens], until, tokens) for row, (_, tokens) in rows]

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

    def _prompt(self, conversation: Conversation) -> list[int]:
        """Return the token ids of a conversation in the model's own chat template, or of its texts without one."""
        from jinja2 import TemplateError

        if not self.tokenizer.chat_template:
            (ids,) = tokenize(self.tokenizer, ["\n\n".join(message["content"] for message in conversation) + "\n"])
            return first_token(self.tokenizer) + ids
        options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": self._thinks}
        try:
            text = self.tokenizer.apply_chat_template(conversation, **options)
        except TemplateError:  # some take no system message, or none of an assistant before a user's
            text = self.tokenizer.apply_chat_template(in_one_message(conversation), **options)
        (ids,) = tokenize(self.tokenizer, [text])
        return ids
