"""The contract of ``Varlen`` by ordinary matrix products, one sequence and one head after the other."""

from __future__ import annotations

import torch
from torch import Tensor


def plain_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    most_queries: int,
    most_keys: int,
    *,
    scaling: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Attend as the kernel does, and hold the caller to what the kernel asks."""
    spans = [list(zip([0, *ends], ends, strict=False)) for ends in (query_ends.tolist()[1:], key_ends.tolist()[1:])]
    assert query_ends.dtype == key_ends.dtype == torch.int32
    assert (spans[0][-1][1], spans[1][-1][1]) == (len(query), len(key)) == (len(query), len(value))
    assert most_queries == max(end - begin for begin, end in spans[0])
    assert most_keys == max(end - begin for begin, end in spans[1])
    assert not causal or query_ends is key_ends
    per_group = query.shape[1] // key.shape[1]
    output = value.new_empty(len(query), query.shape[1], value.shape[-1])
    sums = torch.empty(query.shape[1], len(query))
    for (first, last), (begin, end) in zip(*spans, strict=True):
        assert first < last
        assert begin < end
        for head in range(query.shape[1]):
            scores = query[first:last, head].float() @ key[begin:end, head // per_group].float().T * scaling
            if causal:
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
            sums[head, first:last] = scores.logsumexp(dim=1)
            mixed = scores.softmax(dim=1) @ value[begin:end, head // per_group].float()
            output[first:last, head] = mixed.to(value.dtype)
    return output, sums
