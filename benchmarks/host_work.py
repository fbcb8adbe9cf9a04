"""What the host does before a GPU can compute: milliseconds for each 16k tokens, on one thread.

    uv run benchmarks/host_work.py

From token ids to the tensors that the kernels of a batch take, with a GPU's settings, on random token ids: sequences
are sorted into batches of 16,384 tokens, shared beginnings become a tree, and the tree index tensors, as torch's kernel
for sequences of many lengths takes them. A GPU at 60 % of an H100's peak computes such a batch in 24 ms for .6 B
weights.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from unimoe.models.batching import GPU_TOKENS
from unimoe.models.device import describe_device
from unimoe.models.token_tree import build_tree, plan_trees
from unimoe.models.tree_attention import pack
from unimoe.models.tree_levels import fused_varlen

CPU, VOCABULARY, ROUNDS = torch.device("cpu"), 150_000, 9

Sequences = Sequence[list[int]]


def reranking(rng: random.Random) -> Sequences:
    """Prompts of 500 tokens: one beginning, 4 queries, 100 candidates of each."""
    beginning = tokens(rng, 60)
    queries = [beginning + tokens(rng, 20) for _ in range(4)]
    return [query + tokens(rng, 420) for query in queries for _ in range(100)]


def embedding(rng: random.Random) -> Sequences:
    """Texts of 512 tokens."""
    return [tokens(rng, 512) for _ in range(320)]


def long_documents(rng: random.Random) -> Sequences:
    """Two documents of 8,192 tokens."""
    return [tokens(rng, 8192) for _ in range(2)]


def tokens(rng: random.Random, count: int) -> list[int]:
    """Return random token ids."""
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def host_ms(sequences: Sequences) -> float:
    """Milliseconds for each 16k tokens that a device computes; the median of some rounds."""
    count = sum(len(build_tree([sequences[index] for index in batch]).ids) for batch in _plan(sequences))

    def work() -> None:
        for batch in _plan(sequences):
            pack(build_tree([sequences[index] for index in batch]), CPU, torch.bfloat16, fused_varlen)

    work()
    return statistics.median(_seconds(work) for _ in range(ROUNDS)) * 1000 * GPU_TOKENS / count


def _plan(sequences: Sequences) -> list[list[int]]:
    return plan_trees(sequences, GPU_TOKENS)


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print one JSON object as the last line."""
    torch.set_num_threads(1)
    makers = {"rerank_host_ms": reranking, "embed_host_ms": embedding, "long_host_ms": long_documents}
    print(f"{describe_device(CPU)}, torch {torch.__version__}")
    found = {name: round(host_ms(make(random.Random(0))), 2) for name, make in makers.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
