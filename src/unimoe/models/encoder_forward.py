"""The token states of many texts, computed as one row without padding where the architecture allows it.

Linear layers, most of the work, then process no padding. Attention needs no mask: it is computed for groups of texts of
one length, which are adjacent because batches are sorted by length. Architectures whose attention asks for more
(windows, relative positions) take transformers' own padded path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unimoe.models.batching import pad_ids, to_device
from unimoe.models.tree_attention import (
    UnsupportedAttentionError,
    attention_by,
    refuse_unsupported,
    same_states,
    sees_whole_text,
)

NAME = "unimoe_packed"


@dataclass(frozen=True)
class Group:
    """``count`` adjacent texts of ``length`` tokens each, in the row from ``begin`` on."""

    begin: int
    count: int
    length: int

    @property
    def end(self) -> int:
        """One past the last token."""
        return self.begin + self.count * self.length


class EncoderForward:
    """Runs an encoder over batches of token ids.

    Args:
        model: a model of transformers, in eval mode, whose first output is the final states.
        longest: tokens of a text, at most.

    Attributes:
        first_position: the position of a text's first token: above 0 where the model reserves some, as RoBERTa does.
        packs: whether batches are rows without padding.
    """

    def __init__(self, model: Any, longest: int) -> None:
        self._model = model
        self.first_position = _first_position(model)
        self.packs = _can_pack(model, longest) and self._packs_faithfully()

    def __call__(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Return the final states of all T tokens, text after text, ``(T, H)``; fastest if sorted by length."""
        return self._packed(sequences) if self.packs else self._padded(sequences)

    @property
    def _device(self) -> torch.device:
        device: torch.device = self._model.device
        return device

    def _packed(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        lengths = [len(ids) for ids in sequences]
        ids = np.concatenate([np.array(ids, dtype=np.int64) for ids in sequences])
        positions = np.concatenate([self._positions(ids) for ids in sequences])
        row, places = to_device([ids, positions], self._device)
        with attention_by(packed_attention, NAME, self._model.config):
            output = self._model(input_ids=row[None], position_ids=places[None], groups=_groups(lengths))
        states: Tensor = output.last_hidden_state[0]
        return states

    def _positions(self, ids: Sequence[int]) -> NDArray[np.int64]:
        """Return the positions of a text; RoBERTa and its relatives do not count padding tokens in it."""
        if self.first_position == 0:
            return np.arange(len(ids))
        padding = self.first_position - 1
        counts = np.array(ids) != padding
        positions: NDArray[np.int64] = counts.cumsum() * counts + padding
        return positions

    def _padded(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        lengths = torch.tensor([len(ids) for ids in sequences], device=self._device)
        ids = pad_ids(sequences, self._device)
        mask = torch.arange(ids.shape[1], device=self._device) < lengths[:, None]
        padding = getattr(self._model.config, "pad_token_id", None)
        output = self._model(input_ids=ids.masked_fill(~mask, padding or 0), attention_mask=mask.long())
        states: Tensor = output.last_hidden_state[mask]
        return states

    @torch.inference_mode()
    def _packs_faithfully(self) -> bool:
        """Return whether a packed row of a few tokens has the states of the padded path."""
        vocabulary = self._model.get_input_embeddings().num_embeddings
        ids = [vocabulary // divisor for divisor in range(2, 10)]
        sequences = [ids[:4], ids[2:6], ids[5:]]
        try:
            packed = self._packed(sequences)
        except (UnsupportedAttentionError, TypeError):  # a TypeError: the layers do not pass the groups on
            return False
        return same_states(packed, torch.cat([self._padded([ids]) for ids in sequences]))


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    groups: Sequence[Group] | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention: queries ``(1, H, T, D)``, keys and values ``(1, G, T, D)``.

    Returns:
        ``(1, T, H, D)``, and no weights.

    Raises:
        UnsupportedAttentionError: the layer asks for more, or does not pass the groups on.
    """
    longest = max((group.length for group in groups or ()), default=0)
    refuse_unsupported(module, attention_mask, groups, options, longest)
    assert groups is not None  # noqa: S101
    causal = bool(getattr(module, "is_causal", False))
    output = query.new_empty(query.shape[2], query.shape[1], value.shape[-1])
    for group in groups:
        q, k, v = (
            states[0, :, group.begin : group.end].view(-1, group.count, group.length, states.shape[-1]).transpose(0, 1)
            for states in (query, key, value)
        )
        mixed = nn.functional.scaled_dot_product_attention(
            q,
            k,
            v,
            scale=scaling,
            is_causal=causal,
            enable_gqa=len(k[0]) < len(q[0]),
        )
        output[group.begin : group.end].view(group.count, group.length, *output.shape[1:]).copy_(mixed.transpose(1, 2))
    return output.unsqueeze(0), None


def _groups(lengths: Sequence[int]) -> list[Group]:
    """Return the runs of equal lengths."""
    groups: list[Group] = []
    for length, run in groupby(lengths):
        groups.append(Group(groups[-1].end if groups else 0, sum(1 for _ in run), length))
    return groups


def _can_pack(model: Any, longest: int) -> bool:
    """Return whether layers let another function attend and, by the config, all attend to the whole text."""
    return bool(getattr(model, "_supports_attention_backend", False)) and sees_whole_text(model.config, longest)


def text_positions(model: Any) -> int | None:
    """Return the tokens of the longest text that a model has positions for; None where there is no end."""
    stated: int | None = getattr(model.config, "max_position_embeddings", None)
    return None if not stated or stated < 1 else stated - _first_position(model)


def _first_position(model: Any) -> int:
    """Return the first position: RoBERTa and its relatives count from the padding's id plus one."""
    for module in model.modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and isinstance(getattr(module, "position_embeddings", None), nn.Embedding):
            return padding + 1
    return 0
