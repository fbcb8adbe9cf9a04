"""Attention over a token tree, as an attention implementation of transformers.

The decoder runs over the packed row as over one long sequence: projections and feed-forward layers, most of the work,
process every token once and no padding. Attention is computed in blocks under masks (``tree_blocks``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unimoe.core.io import hash_parts
from unimoe.models.batching import arrays_to_device
from unimoe.models.token_tree import TokenTree, with_filling
from unimoe.models.tree_blocks import Blocks, build_blocks

NAME = "unimoe_tree"

ROUND_ROWS = 64
"""Rows of a product are a multiple of this where ``rounds_rows``."""

_HARMLESS = {"dropout", "is_causal", "position_ids", "use_cache"}
"""Arguments of attention without effect here: all is evaluated, without a cache, and causal where the layer is."""


@dataclass(frozen=True)
class PackedTree:
    """A token tree as tensors on a device.

    Attributes:
        tree: the tree.
        ids: ``(1, T)`` token ids.
        positions: ``(1, T)``.
        last: ``(N,)`` index of each sequence's last token.
        attend: computes which token sees which.
    """

    tree: TokenTree
    ids: Tensor
    positions: Tensor
    last: Tensor
    attend: Blocks

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.tree.positions) + 1

    @cached_property
    def key(self) -> str:
        """Content hash of the tree."""
        shape = [(segment.parent, segment.begin, segment.end) for segment in self.tree.segments]
        return hash_parts(map(repr, (self.tree.ids, self.tree.positions, shape)))


def rounds_rows(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether products should come in few sizes: oneDNN compiles and keeps code for each number of rows.

    On a CPU, torch takes it for all dtypes but float32. Measured in bfloat16 at 1,500 rows: a product of a new size
    takes three times as long, and keeps a megabyte.
    """
    return device.type == "cpu" and dtype != torch.float32


def pack(tree: TokenTree, device: torch.device, dtype: torch.dtype) -> PackedTree:
    """Put a tree on a device, for a model of a dtype."""
    if rounds_rows(device, dtype):
        tree = with_filling(tree, -len(tree.ids) % ROUND_ROWS)
    arrays = [np.array(part, dtype=np.int64) for part in (tree.ids, tree.positions, tree.last)]
    ids, positions, last = arrays_to_device(arrays, device)
    return PackedTree(tree, ids[None], positions[None], last, build_blocks(tree.segments, device, dtype))


class UnsupportedAttentionError(Exception):
    """A layer needs attention that packed rows do not have: a window, sinks, or a mask."""


def sees_whole_text(config: Any, longest: int | None) -> bool:
    """Return whether, by its configuration, no layer of a model has a window that ends within a text.

    Args:
        config: of the model.
        longest: tokens of a text, at most; None where that is not known.
    """
    kinds, window = set(getattr(config, "layer_types", None) or []), getattr(config, "sliding_window", None)
    wide = window is not None and longest is not None and window >= longest
    if kinds:
        return kinds <= {"full_attention", *(["sliding_attention"] if wide else [])}
    return window is None or wide


def run_tree(decoder: Any, tree: PackedTree, states: Tensor | None = None) -> Tensor:
    """Run a decoder of transformers over a packed tree, from token ids or from ``states`` ``(1, T, H)``.

    Returns:
        The final states, ``(1, T, H)``.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _uncompiled_attention())
    inputs = {"input_ids": tree.ids} if states is None else {"inputs_embeds": states}
    config, before = decoder.config, decoder.config._attn_implementation
    config._attn_implementation = NAME  # each layer reads it as it runs, and so does the making of masks
    try:
        output = decoder(**inputs, position_ids=tree.positions, use_cache=False, tree=tree)
    finally:
        config._attn_implementation = before
    hidden: Tensor = output.last_hidden_state
    return hidden


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    tree: PackedTree | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention: queries ``(1, H, T, D)``, keys ``(1, G, T, D)``, values ``(1, G, T, V)``.

    Returns:
        ``(1, T, H, V)``, and no weights.

    Raises:
        UnsupportedAttentionError: the layer has a mask or another option, or does not pass the tree on.
    """
    asked = {name for name, value in options.items() if value is not None and value is not False} - _HARMLESS
    # A window over earlier tokens changes nothing where it holds the longest text.
    if tree and "sliding_window" in asked and options["sliding_window"] >= tree.longest:
        asked -= {"sliding_window"} if getattr(module, "is_causal", False) else set()
    if asked or attention_mask is not None or tree is None:
        raise UnsupportedAttentionError(f"{type(module).__name__}: {sorted(asked)}")
    return tree.attend(query[0], key[0], value[0], scaling).unsqueeze(0), None


@cache
def _uncompiled_attention() -> Callable[..., Any]:
    """Return ``tree_attention`` as what compiled layers call and do not look into: every tree differs."""
    disable: Any = torch.compiler.disable
    function: Callable[..., Any] = disable(tree_attention)
    return function
