"""Choosing the number of threads on a CPU by measuring the model.

All cores are fastest on a machine that is free. Where other work, or another virtual machine, takes a core away, every
operation waits for the thread that does not run: two threads were then 5 to 30 times as slow as one.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import torch

from unimoe.models.frozen_layers import with_modules

_AT_START = torch.get_num_threads()
_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")

_PROBE_FLOP, _PROBE_SECONDS = 2e9, 0.8
_FEWEST_TOKENS, _MOST_TOKENS = 32, 512
_WORTH_IT = 0.9
"""The part of one thread's time that all threads must stay below."""


def threads_are_free(device: torch.device) -> bool:
    """Return whether nobody has set the number of threads: no environment variable, no program, not torchrun."""
    return (
        device.type == "cpu"
        and torch.get_num_threads() == _AT_START > 1
        and os.environ.get("WORLD_SIZE", "1") == "1"
        and not any(os.environ.get(name) for name in _VARIABLES)
    )


def settle_threads(model: Any, asked: int | None = None) -> None:
    """Compute with as many threads as asked, else with the faster of one and all where nobody has set a number.

    Args:
        model: a causal language model of transformers; any other keeps the threads it has, unless some are asked for.
        asked: the option ``--threads``.
    """
    embeddings = getattr(getattr(model, "model", None), "embed_tokens", None)
    if asked is not None:
        torch.set_num_threads(asked)
    elif embeddings is not None and threads_are_free(embeddings.weight.device):
        torch.set_num_threads(faster_threads(model))


def faster_threads(model: Any) -> int:
    """Return 1 or the number of threads in use, whichever computes a layer of the model faster, in about a second."""
    all_threads = torch.get_num_threads()
    taken: dict[int, list[float]] = {1: [], all_threads: []}  # in turn, so that other work slows both alike
    layer, ids = _first_layer(model.model)
    start = time.perf_counter()
    try:
        while len(taken[1]) < 2 or time.perf_counter() - start < _PROBE_SECONDS:
            for count, seconds in taken.items():
                torch.set_num_threads(count)
                begin = time.perf_counter()
                with torch.inference_mode():
                    layer(input_ids=ids, use_cache=False)
                seconds.append(time.perf_counter() - begin)
    finally:
        torch.set_num_threads(all_threads)
    # The first round warms up.
    one, every = (statistics.median(seconds[1:]) for seconds in (taken[1], taken[all_threads]))
    return all_threads if every < _WORTH_IT * one else 1


def _first_layer(decoder: Any) -> tuple[Any, torch.Tensor]:
    """Return a decoder of one layer that shares its weights, and token ids that take it some milliseconds."""
    twin = with_modules(decoder, layers=decoder.layers[:1])
    weights = sum(weight.numel() for weight in twin.layers.parameters() if weight.dim() > 1)
    tokens = min(max(int(_PROBE_FLOP / (2 * weights)), _FEWEST_TOKENS), _MOST_TOKENS)
    return twin, torch.zeros(4, tokens // 4, dtype=torch.long, device=decoder.embed_tokens.weight.device)
