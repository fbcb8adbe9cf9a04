"""Token ids as a model's files mean them: the tokens around every text, those without an embedding, and batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from unimoe.core.errors import InputError


def add_stated_ends(tokenizer: Any, source: str | Path, **options: Any) -> None:
    """Let a tokenizer add the first and last token that its files state: ``add_bos_token`` and ``add_eos_token``.

    Since its fifth version transformers goes by the file of the tokenizer alone, so that e5-mistral and its kin lose
    the token at the end that holds their embedding. ``options`` find the settings of a ``source`` on the hub.
    """
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    stated = get_tokenizer_config(source, **options)
    add_ends(tokenizer, first=stated.get("add_bos_token") is True, last=stated.get("add_eos_token") is True)


def add_ends(tokenizer: Any, *, first: bool = False, last: bool = False) -> None:
    """Let a tokenizer put its first and its last token around every text, where it does not do so yet."""
    if not (first or last) or not tokenizer.is_fast:  # the others heed their settings
        return
    ids, (bare,) = (tokenizer("a", verbose=False)["input_ids"], _without_ends(tokenizer, ["a"]))
    begin = next((at for at in range(len(ids)) if ids[at : at + len(bare)] == bare), None)
    if begin is None or not bare:
        return
    before, after = ids[:begin], ids[begin + len(bare) :]
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if first and bos is not None and bos not in before:
        before = [bos, *before]
    if last and eos is not None and eos not in after:
        after = [*after, eos]
    if len(before) + len(bare) + len(after) == len(ids):
        return
    tokens = {str(index): index for index in (*before, *after)}
    around = [[f"{index}:{side}" for index in part] for side in (0, 1) for part in (before, after)]
    single, second = [*around[0], "$A:0", *around[1]], [*around[2], "$B:1", *around[3]]
    special = [
        {"id": name, "ids": [index], "tokens": [tokenizer.convert_ids_to_tokens(index)]}
        for name, index in tokens.items()
    ]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=single, pair=single + second, special_tokens=special
    )


def embedding_rows(model: Any) -> int:
    """Return how many tokens a model of transformers has an embedding for."""
    rows: int = model.get_input_embeddings().weight.shape[0]
    return rows


def refuse_tokens_without_rows(
    sequences: Sequence[Sequence[int]], rows: int | None, tokenizer: Any = None, first: int = 0
) -> None:
    """Raise an ``InputError`` about the first text with a token that a model of so many rows has no embedding for.

    Tokens that were added to a tokenizer may have none, and a text may hold one by chance, such as ``<unused>``.
    ``first`` is the number of the first text.
    """
    if rows is None or (tokenizer is not None and len(tokenizer) <= rows):
        return
    for index, ids in enumerate(sequences, first):
        if (largest := max(ids, default=0)) >= rows:
            token = (
                f"{largest:,}" if tokenizer is None else f"{tokenizer.convert_ids_to_tokens(largest)!r} ({largest:,})"
            )
            raise InputError(
                index,
                f"the text holds the token {token}, and the model has embeddings for {rows:,} tokens; take it out",
            )


def _without_ends(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    found: list[list[int]] = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    return found


class TextFeatures:
    """What a model reads of batches of texts: their token ids, where those give what the library gives.

    The library tokenises each batch again, which takes longer than a small model on a GPU. Both are made of the first
    batches, until they are equal in one that has padding; where they differ, the library makes all. So it does for a
    first module of somebody else, which may change texts that are in later batches alone.
    """

    def __init__(self, model: Any, texts: list[str], sequences: list[list[int]], asked: dict[str, Any]) -> None:
        from sentence_transformers.base.modules import Transformer

        self._model, self._texts, self._sequences, self._asked = model, texts, sequences, asked
        self._types = False
        own = getattr(type(model[0]), "preprocess", None) is Transformer.preprocess
        self._equal: bool | None = None if own else False  # None until both were compared
        self._others: dict[str, Any] = {}  # what the library adds, for all batches alike

    def of(self, batch: list[int]) -> dict[str, Any]:
        """Return the features of a batch."""
        if self._equal:
            return {**self._padded(batch), **self._others}
        read: dict[str, Any] = dict(self._model.preprocess([self._texts[index] for index in batch], **self._asked))
        if self._equal is None:
            tensors = {name: value for name, value in read.items() if isinstance(value, Tensor)}
            self._others = {name: value for name, value in read.items() if name not in tensors}
            self._types = "token_type_ids" in tensors
            own = self._padded(batch)
            if own.keys() != tensors.keys() or not all(torch.equal(own[name], tensors[name]) for name in own):
                self._equal = False
            elif not bool(own["attention_mask"].all()):
                self._equal = True
        return read

    def _padded(self, batch: list[int]) -> dict[str, Tensor]:
        """Return token ids and their mask, padded as the tokenizer does, and types where the library has them."""
        tokenizer, rows = self._model.tokenizer, [torch.tensor(self._sequences[index]) for index in batch]
        side, filler = getattr(tokenizer, "padding_side", "right"), getattr(tokenizer, "pad_token_id", None) or 0
        ids = pad_sequence(rows, batch_first=True, padding_value=filler, padding_side=side)
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side=side)
        types = {"token_type_ids": torch.zeros_like(ids)} if self._types else {}
        return {"input_ids": ids, "attention_mask": mask, **types}
