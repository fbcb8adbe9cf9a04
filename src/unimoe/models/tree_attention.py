"""Attention over token trees, as an attention implementation of transformers.

The decoder runs over the packed row as over one long sequence: projections and feed-forward layers, most of the work,
process every token once and no padding. Attention is computed for some adjacent queries at a time, over the keys that
at least one of them sees, under a mask; or on a GPU, where asked, by one kernel for variable lengths. Of the last layer
only the last tokens are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unimoe.core.errors import UsageError
from unimoe.models.base import LIKE_LLAMA, decoder_layers, decoder_of, with_modules
from unimoe.models.batching import arrays_to_device, batches
from unimoe.models.device import without_cudnn_attention
from unimoe.models.model_files import first_line
from unimoe.models.token_tree import TokenTree, build_tree

NAME = "unimoe_tree"

ROUND_ROWS = 64
"""Rows of a product are a multiple of this where ``rounds_rows``."""

_HARMLESS = {"dropout", "is_causal", "position_ids", "use_cache"}
"""Arguments of attention without effect here: all is evaluated, without a cache, and causal where the layer is."""

_CPU_QUERIES, _GPU_QUERIES = 96, 256
"""Adjacent queries of one row of a block: few, so that few scores are computed only to be masked; more on a GPU, which
spends as long on copying the keys of rows as on their scores."""

_CPU_ROWS, _GPU_SCORES = 1, 2**26
"""Rows of a block on a CPU, so that caches hold their scores, and scores of one on a GPU, where rows share a kernel."""

_GPU_KEYS = 16
"""On a GPU the keys of a row are a multiple of this: PyTorch's kernels align rows of masks, some by a copy."""


@dataclass(frozen=True)
class Block:
    """R rows of Q adjacent queries each, and the K keys that a row may see, as places in the packed row."""

    queries: slice
    keys: Tensor  # (R, K)
    mask: Tensor  # (R, Q, K), 0 where the query sees the key and minus infinity elsewhere, in the model's dtype


@dataclass(frozen=True)
class Spans:
    """P parts of a row, each of adjacent queries, and their K keys: the whole paths that the parts end.

    A part's queries are the last tokens of its path, so attention is causal, aligned at the bottom right.
    """

    keys: Tensor  # (K,), places in the packed row
    query_starts: Tensor  # (P + 1,), int32, where each part's queries begin, and the row's end
    key_starts: Tensor  # (P + 1,), int32, where each part's keys begin, and K
    longest: int  # keys of one part at most; it has no more queries


@dataclass(frozen=True)
class PackedTree:
    """A token tree as tensors on a device, filled up with tokens of no sequence.

    Which token sees which is said by ``blocks``, or by ``spans`` where they are there.
    """

    tree: TokenTree
    ids: Tensor  # (1, T)
    positions: Tensor  # (1, T)
    last: Tensor  # (N,), the place of each sequence's last token
    blocks: list[Block]
    spans: Spans | None


_tree: ContextVar[PackedTree] = ContextVar("tree")
"""The tree that a decoder runs over. Among their arguments, compiled layers would be compiled again for each."""


@contextmanager
def running(tree: PackedTree) -> Iterator[None]:
    """Let the attention of a pass find its tree."""
    token = _tree.set(tree)
    try:
        yield
    finally:
        _tree.reset(token)


def rounds_rows(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether products should come in few sizes: oneDNN compiles and keeps code for each number of rows.

    On a CPU, torch takes it for all dtypes but float32. Measured in bfloat16 at 1,500 rows: a product of a new size
    takes three times as long, and keeps a megabyte.
    """
    return device.type == "cpu" and dtype != torch.float32


def pack(tree: TokenTree, device: torch.device, dtype: torch.dtype, *, varlen: bool = False) -> PackedTree:
    """Put a tree on a device, for a model of a dtype, to be attended by ``Spans`` or by blocks."""
    count = len(tree.ids)
    rounds_to = _GPU_QUERIES if device.type != "cpu" else ROUND_ROWS if rounds_rows(device, dtype) else 1
    filling = [0] * (-count % rounds_to)
    arrays = [np.array(part, dtype=np.int64) for part in (tree.ids + filling, tree.positions + filling)]
    last = np.array([path[-1] for path in tree.paths], dtype=np.int64)
    if varlen:
        ids, positions, last_places, *there = arrays_to_device([*arrays, last, *_paths(tree, len(filling))], device)
        return PackedTree(tree, ids[None], positions[None], last_places, [], _spans(tree, len(filling), *there))
    # A token that fills is seen by itself; the place behind the row, which stands for no key, by nobody.
    ends = np.concatenate([tree.ends, np.arange(count, count + len(filling)) + 1, [0]])
    ids, positions, last_places, ends_there = arrays_to_device([*arrays, last, ends], device)
    return PackedTree(tree, ids[None], positions[None], last_places, list(_blocks(ends, ends_there, dtype)), None)


def _paths(tree: TokenTree, filling: int) -> list[NDArray[np.int64]]:
    """Return the keys, query starts and key starts of ``Spans``; tokens that fill are one more part."""
    paths = [tree.paths[number] for number, _ in tree.parts]
    asked = [len(path) - shared for path, (_, shared) in zip(paths, tree.parts, strict=True)]
    if filling:
        paths.append(np.arange(len(tree.ids), len(tree.ids) + filling))
        asked.append(filling)
    return [np.concatenate(paths), np.cumsum([0, *asked]), np.cumsum([0, *map(len, paths)])]


def _spans(tree: TokenTree, filling: int, keys: Tensor, query_starts: Tensor, key_starts: Tensor) -> Spans:
    """Return the spans of what ``_paths`` made, on its device."""
    return Spans(keys, query_starts.int(), key_starts.int(), max(tree.longest, filling))


def _blocks(ends: NDArray[np.int64], ends_there: Tensor, dtype: torch.dtype) -> Iterator[Block]:
    """Yield the blocks of a row, with masks that the device makes from ``ends``, here and there."""
    count, device = len(ends) - 1, ends_there.device
    size, rounds_to = (_CPU_QUERIES, 1) if device.type == "cpu" else (_GPU_QUERIES, _GPU_KEYS)
    rows = []
    for begin in range(0, count, size):
        # All queries of a row share the first one's past, as long as they see anything before it.
        past = np.flatnonzero(ends[:begin] > begin)
        rows.append(np.concatenate([past, np.arange(begin, min(begin + size, count))]))
    most = _CPU_ROWS if device.type == "cpu" else max(1, _GPU_SCORES // (size * max(map(len, rows))))
    whole = count // size
    begin = 0
    for group in filter(None, (*batches(rows[:whole], most), rows[whole:])):  # the last row may be shorter
        longest = max(map(len, group))
        places = np.full((len(group), longest + -longest % rounds_to), count)
        for number, row in enumerate(group):
            places[number, : len(row)] = row
        (flat,) = arrays_to_device([places.ravel()], device)
        keys = flat.view(places.shape)
        queries = slice(begin, min(begin + len(group) * size, count))
        asked = torch.arange(queries.start, queries.stop, device=device).view(len(group), -1, 1)
        visible = (keys.unsqueeze(1) <= asked) & (asked < ends_there[keys].unsqueeze(1))
        mask = torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(visible.logical_not_(), -torch.inf)
        yield Block(queries, keys.clamp(max=count - 1), mask)
        begin = queries.stop


class UnsupportedAttentionError(Exception):
    """A layer needs attention that packed rows do not have: a window, sinks, or a mask."""


def supports_trees(model: Any, longest: int | None = None) -> bool:
    """Return whether all layers attend to all earlier tokens and let another function compute the attention.

    Sequences have ``longest`` tokens at most; None where that is not known.
    """
    config, decoder = model.config, decoder_of(model)
    kinds, window = set(getattr(config, "layer_types", None) or []), getattr(config, "sliding_window", None)
    wide = window is not None and longest is not None and window >= longest
    whole = kinds <= {"full_attention", *(["sliding_attention"] if wide else [])} if kinds else window is None or wide
    if not whole or not getattr(model, "_supports_attention_backend", False):
        return False
    weight = decoder.get_input_embeddings().weight
    try:  # one token: the configuration does not tell of sinks, capped scores and the like
        with torch.no_grad():
            run_tree(decoder, pack(build_tree([[0]]), weight.device, weight.dtype))
    except UnsupportedAttentionError:
        return False
    return True


def refuse_no_varlen(model: Any) -> None:
    """Refuse ``evaluation.varlen`` where this GPU, torch or model does not have it, by one token."""
    decoder = decoder_of(model)
    weight = decoder.get_input_embeddings().weight
    try:
        with torch.no_grad(), without_cudnn_attention:
            run_tree(decoder, pack(build_tree([[0]]), weight.device, weight.dtype, varlen=True))
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        raise UsageError(f"evaluation.varlen: {first_line(error)}; set evaluation.varlen=false") from error


def run_tree(decoder: Any, tree: PackedTree, states: Tensor | None = None) -> Tensor:
    """Return a decoder's final states ``(1, T, H)`` over a packed tree, from its token ids or from such states."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _uncompiled_attention())
    inputs = {"input_ids": tree.ids} if states is None else {"inputs_embeds": states}
    config, before = decoder.config, decoder.config._attn_implementation
    config._attn_implementation = NAME  # each layer reads it as it runs, and so does the making of masks
    try:
        with running(tree):
            output = decoder(**inputs, position_ids=tree.positions, use_cache=False, packed=True)
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
    packed: bool = False,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return attention ``(1, T, H, V)`` of queries ``(1, H, T, D)``, keys ``(1, G, T, D)``, values ``(1, G, T, V)``.

    Raises:
        UnsupportedAttentionError: the layer has a mask or another option, or does not pass ``packed`` on.
    """
    tree = _tree.get()
    asked = {name for name, value in options.items() if value is not None and value is not False} - _HARMLESS
    if getattr(module, "is_causal", False):
        # A window over earlier tokens changes nothing where it holds the longest text.
        asked -= {"sliding_window"} if (options.get("sliding_window") or 0) >= tree.tree.longest else set()
    if asked or attention_mask is not None or not packed:
        raise UnsupportedAttentionError(f"{type(module).__name__}: {sorted(asked)}")
    if tree.spans:
        return attend_by_spans(tree.spans, query[0], key[0], value[0], scaling).unsqueeze(0), None
    return attend_in_blocks(tree.blocks, query[0], key[0], value[0], scaling).unsqueeze(0), None


@cache
def _uncompiled_attention() -> Any:
    """Return ``tree_attention`` as what compiled layers call and do not look into: every tree differs."""
    disable: Any = torch.compiler.disable  # loads the compiler, which takes seconds
    return disable(tree_attention)


def attend_by_spans(spans: Spans, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Attend as ``attend_in_blocks``, by one kernel that computes no score in vain, for half dtypes on a GPU.

    A key is copied for each part whose path it is on. Work is never split along keys, so that a sequence's result
    depends on no other sequence of its batch.
    """
    varlen_attn: Any = import_module("torch.nn.attention.varlen").varlen_attn  # which older versions of torch lack
    keys, values = (states.transpose(0, 1).index_select(0, spans.keys) for states in (key, value))
    mixed: Tensor = varlen_attn(
        query.transpose(0, 1),
        keys,
        values,
        spans.query_starts,
        spans.key_starts,
        spans.longest,
        spans.longest,
        scale=scaling,
        window_size=(-1, 0),
        enable_gqa=len(key) < len(query),
        num_splits=1,
    )
    return mixed


def attend_in_blocks(blocks: Sequence[Block], query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Attend: queries ``(H, T, D)``, keys ``(G, T, D)``, values ``(G, T, V)``; return ``(T, H, V)``."""
    attend = _attend_on_cpu if query.device.type == "cpu" else _attend
    mixed = [attend(block, query[:, block.queries], key, value, scaling) for block in blocks]
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _attend(block: Block, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Return ``(RQ, H, V)`` of queries ``(H, RQ, D)``; the heads of a group are more queries of its keys.

    On an H200, repeating keys for every head and collecting them head by head took three times as long as attention.
    All heads of a token lie together: they are collected in one piece.
    """
    (rows, asked, seen), groups = block.mask.shape, len(key)
    stacked = query.reshape(groups, -1, rows, asked, query.shape[2]).permute(2, 0, 1, 3, 4).flatten(2, 3)
    keys, values = (
        states.transpose(0, 1).index_select(0, block.keys.view(-1)).view(rows, seen, groups, -1).transpose(1, 2)
        for states in (key, value)
    )
    mask = block.mask.repeat(1, len(query) // groups, 1).unsqueeze(1)
    found = nn.functional.scaled_dot_product_attention(stacked, keys, values, mask, scale=scaling)
    by_head = found.reshape(rows, groups, -1, asked, value.shape[2])
    return by_head.permute(0, 3, 1, 2, 4).reshape(rows * asked, len(query), -1)


def _attend_on_cpu(block: Block, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Attend by plain products, in bfloat16 1.5 times as fast as PyTorch's fused kernel on a CPU; R is 1."""
    keys, values = (states.index_select(1, block.keys.view(-1)) for states in (key, value))
    groups, per_group = len(keys), len(query) // len(keys)
    stacked = query.reshape(groups, -1, query.shape[-1])  # the heads of a group share their keys
    scores = torch.baddbmm(block.mask.repeat(1, per_group, 1), stacked, keys.transpose(1, 2), alpha=scaling)
    return torch.bmm(scores.softmax(dim=-1), values).view(len(query), query.shape[1], -1).transpose(0, 1)


class LastTokensLayer(nn.Module):
    """Runs a decoder's last layer over a packed tree, and returns the states of the sequences' last tokens.

    Of all other tokens the layer computes keys and values, 6 % of its work in a small Llama. Where three layers are
    adapted, that saves almost a third of a training step. ``layer`` is one of ``LIKE_LLAMA``.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.attention_type = getattr(layer, "attention_type", None)  # transformers 5.0 reads it here

    def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """Return ``(1, N, H)`` from the states ``(1, T, H)`` of the packed row."""
        layer, attention, places = self.layer, self.layer.self_attn, _tree.get().last

        def select(_: nn.Module, inputs: tuple[Tensor]) -> Tensor:
            return inputs[0][:, places]

        def spread(_: nn.Module, inputs: tuple[Tensor], queries: Tensor) -> Tensor:
            # The other tokens' queries are zeros: the tree's attention takes a query of every token.
            row = queries.new_zeros(1, hidden_states.shape[1], queries.shape[2])
            return row.index_copy(1, places, queries)

        with (
            attention.q_proj.register_forward_pre_hook(select),
            attention.q_proj.register_forward_hook(spread),
            attention.o_proj.register_forward_pre_hook(select),
        ):
            attended = attention(hidden_states=layer.input_layernorm(hidden_states), **options)[0]
        states = hidden_states[:, places] + attended
        found: Tensor = states + layer.mlp(layer.post_attention_layernorm(states))
        return found


def last_tokens_only(decoder: Any) -> tuple[Any, bool]:
    """Return a decoder of the same weights that gives a tree's last tokens alone, and True; else the same and False."""
    *layers, last = decoder_layers(decoder)
    if type(last).__module__ not in LIKE_LLAMA:
        return decoder, False
    return with_modules(decoder, layers=nn.ModuleList([*layers, LastTokensLayer(last)])), True
