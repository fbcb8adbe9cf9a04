"""Token trees, in which a beginning that several sequences share is held and computed once, and attention over them.

A reranker's prompts for one query begin alike: the same instruction and query, or the same instruction and document. A
batch of them is packed into one row without padding. Sorted by their tokens, each sequence adds what it does not share
with the one before; its tokens see those of its own path, as in the sequence alone.

Attention over a tree is an attention implementation of transformers. The decoder runs over the packed row as over one
long sequence: projections and feed-forward layers, most of the work, process every token once and no padding. Attention
is computed for some adjacent queries at a time, over the keys that at least one of them sees, under a mask. Of the last
layer only the last tokens are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unimoe.models.base import LIKE_LLAMA, decoder_layers, decoder_of, with_modules
from unimoe.models.batching import arrays_to_device, batches

MIN_SHARED = 8
"""Shared tokens from which a branch pays."""


@dataclass(frozen=True)
class TokenTree:
    """N sequences in one packed row of T tokens.

    The row goes down each branch before the next, so what continues a token is all in one piece behind it.
    """

    ids: list[int]
    positions: list[int]  # of each token in its sequences, from 0
    ends: NDArray[np.int64]  # (T,), the place before which all tokens that continue a token are
    paths: list[NDArray[np.int64]]  # of each of the N sequences, the places of its tokens; no two share the last one
    parts: list[tuple[int, int]]  # in the row's order: a sequence, and how many of its first tokens were there before


def build_tree(sequences: Sequence[list[int]]) -> TokenTree:
    """Pack sequences of token ids, none of them empty, into a tree."""
    tree = TokenTree([], [], np.zeros(tree_tokens(sequences), np.int64), [np.arange(0)] * len(sequences), [])
    path = np.arange(0)
    for number, shared, length in _entries(sequences):
        begin = len(tree.ids)
        tree.ends[path[shared:]] = begin  # the branch before ends here
        tree.ids.extend(sequences[number][shared:])
        tree.positions.extend(range(shared, length))
        tree.parts.append((number, shared))
        path = tree.paths[number] = np.concatenate([path[:shared], np.arange(begin, len(tree.ids))])
    tree.ends[path] = len(tree.ids)
    return tree


def plan_trees(sequences: Sequence[list[int]], token_budget: int, batch_size: int | None = None) -> list[list[int]]:
    """Group the indices of sequences, none empty, into batches for ``build_tree``, those that begin alike together.

    A batch holds ``batch_size`` sequences, else a tree of ``token_budget`` tokens or one longer sequence. It depends on
    the token ids alone; equal sequences keep their order.
    """
    entries = list(_entries(sequences))
    batches, begin = [], 0
    while begin < len(entries):
        end = begin + batch_size if batch_size else _batch_end(entries, begin, token_budget)
        batches.append([entry.number for entry in entries[begin:end]])
        begin = end
    return batches


def tree_tokens(sequences: Sequence[list[int]]) -> int:
    """Return the tokens of a tree of sequences: the fewest of any batches, since what is shared is computed once."""
    return sum(entry.length - entry.shared for entry in _entries(sequences))


class _Entry(NamedTuple):
    """A sequence in sorted order, and how many tokens it shares with the one before."""

    number: int
    shared: int
    length: int


def _entries(sequences: Sequence[list[int]]) -> Iterator[_Entry]:
    before: list[int] = []
    for index in sorted(range(len(sequences)), key=sequences.__getitem__):
        sequence = sequences[index]
        shared = _shared(before, sequence) if before else 0
        yield _Entry(index, shared if shared >= MIN_SHARED else 0, len(sequence))
        before = sequence


def _batch_end(entries: Sequence[_Entry], begin: int, token_budget: int) -> int:
    """Return where to end a batch: tokens shared across its end are computed twice, so groups are seldom cut."""
    tokens = [entries[begin].length]
    for entry in entries[begin + 1 :]:
        if tokens[-1] + entry.length - entry.shared > token_budget:
            break
        tokens.append(tokens[-1] + entry.length - entry.shared)
    else:
        return len(entries)
    return min(
        range(begin + len(tokens), begin, -1),
        key=lambda end: (entries[end].shared + MIN_SHARED) / tokens[end - begin - 1],
    )


def _shared(first: list[int], second: list[int]) -> int:
    """Return how many first tokens two sequences share, without the last token of either."""
    low, high = 0, min(len(first), len(second)) - 1
    while low < high:  # comparing slices is quicker than comparing tokens one by one
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    return low


NAME = "unimoe_tree"

ROUND_ROWS = 64
"""Rows of a product are a multiple of this where ``rounds_rows``."""

_HARMLESS = {"dropout", "is_causal", "position_ids", "use_cache"}
"""Arguments of attention without effect here: all is evaluated, without a cache, and causal where the layer is."""

_CPU_QUERIES, _GPU_QUERIES = 96, 256
"""Adjacent queries of one row of a block: few, so that few scores are computed only to be masked; more on a GPU, which
spends as long on copying the keys of rows as on their scores."""

_CPU_ROWS, _GPU_SCORES = 1, 2**26
"""Rows of a block on a CPU, whose caches hold their scores, and scores of one on a GPU, where rows share a kernel."""

_GPU_KEYS = 16
"""On a GPU the keys of a row are a multiple of this: PyTorch's kernels align rows of masks, some by a copy."""


@dataclass(frozen=True)
class Block:
    """R rows of Q adjacent queries each, and the K keys that a row may see, as places in the packed row."""

    queries: slice
    keys: Tensor  # (R, K)
    mask: Tensor  # (R, Q, K), 0 where the query sees the key and minus infinity elsewhere, in the model's dtype


@dataclass(frozen=True)
class PackedTree:
    """A token tree as tensors on a device, filled up with tokens of no sequence."""

    tree: TokenTree
    ids: Tensor  # (1, T)
    positions: Tensor  # (1, T)
    last: Tensor  # (N,), the place of each sequence's last token
    blocks: list[Block]  # which token sees which


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


def pack(tree: TokenTree, device: torch.device, dtype: torch.dtype) -> PackedTree:
    """Put a tree on a device, for a model of a dtype."""
    count = len(tree.ids)
    rounds_to = _GPU_QUERIES if device.type != "cpu" else ROUND_ROWS if rounds_rows(device, dtype) else 1
    filling = [0] * (-count % rounds_to)
    # A token that fills is seen by itself; the place behind the row, which stands for no key, by nobody.
    ends = np.concatenate([tree.ends, np.arange(count, count + len(filling)) + 1, [0]])
    arrays = [np.array(part, dtype=np.int64) for part in (tree.ids + filling, tree.positions + filling)]
    last = np.array([path[-1] for path in tree.paths], dtype=np.int64)
    ids, positions, last_places, ends_there = arrays_to_device([*arrays, last, ends], device)
    return PackedTree(tree, ids[None], positions[None], last_places, list(_blocks(ends, ends_there, dtype)))


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
        longest = max(tree.tree.positions) + 1
        # A window over earlier tokens changes nothing where it holds the longest text.
        asked -= {"sliding_window"} if (options.get("sliding_window") or 0) >= longest else set()
    if asked or attention_mask is not None or not packed:
        raise UnsupportedAttentionError(f"{type(module).__name__}: {sorted(asked)}")
    return attend_in_blocks(tree.blocks, query[0], key[0], value[0], scaling).unsqueeze(0), None


@cache
def _uncompiled_attention() -> Any:
    """Return ``tree_attention`` as what compiled layers call and do not look into: every tree differs."""
    disable: Any = torch.compiler.disable  # loads the compiler, which takes seconds
    return disable(tree_attention)


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
