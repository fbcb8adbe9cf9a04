"""Float32 products on a CPU by torch.mm (MKL) and by oneDNN, whichever of them ``matmul_nt`` takes on this processor.

    uv run benchmarks/matmul.py

The shapes are those of the package's own products: documents with directions, a block of a corpus with queries, a bank
of images with captions. Both take turns; what is printed is torch.mm's time over oneDNN's. The JSON's ``vs_mm`` is the
median over shapes of torch.mm's time over that of ``matmul_nt``: 1 where it takes MKL anyway.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch

from unimoe.models import matmul
from unimoe.models.device import describe_device
from unimoe.models.matmul import matmul_nt, takes_onednn

SHAPES = {
    "EGGROLL: documents, directions": (1600, 272, 384),
    "dense search: a block, 1 query": (21_845, 1, 384),
    "dense search: a block, 64 queries": (21_845, 64, 384),
    "dense search: a block, 256 queries": (21_845, 256, 384),
    "translator: captions, images": (512, 30_000, 1536),
    "translator: weights, images": (512, 1536, 30_000),
}
"""Rows, columns and what they share."""

ROUNDS, SECONDS = 9, 0.05


def per_call(work: Callable[[], object]) -> float:
    """Seconds of a call, over so many that a clock can tell."""
    start, calls = time.perf_counter(), 0
    while time.perf_counter() - start < SECONDS:
        work()
        calls += 1
    return (time.perf_counter() - start) / calls


def ratios(rows: int, columns: int, inner: int) -> list[float]:
    """torch.mm's time over oneDNN's, ascending."""
    left, right, out = torch.randn(rows, inner), torch.randn(columns, inner), torch.empty(rows, columns)

    def by_mkl() -> object:
        return torch.mm(left, right.T, out=out)

    def by_onednn() -> object:
        return matmul_nt(left, right)

    per_call(by_mkl), per_call(by_onednn)
    return sorted(per_call(by_mkl) / per_call(by_onednn) for _ in range(ROUNDS))


def main() -> None:
    """Measure with all threads and with one, and print one JSON object as the last line."""
    taken = takes_onednn(torch.empty(1))
    matmul._onednn_is_faster = lambda: True  # type: ignore[assignment]
    print(f"{describe_device(torch.device('cpu'))}, torch {torch.__version__}; products go to", end=" ")
    print("oneDNN" if taken else "MKL")
    medians: list[float] = []
    for threads in sorted({torch.get_num_threads(), 1}, reverse=True):
        torch.set_num_threads(threads)
        print(f"torch.mm's time over oneDNN's, {threads} thread(s), {ROUNDS} rounds")
        for name, shape in SHAPES.items():
            found = ratios(*shape)
            medians.append(statistics.median(found))
            print(f"  {name:35} {medians[-1]:.2f}, {found[0]:.2f} to {found[-1]:.2f}")
    print(json.dumps({"vs_mm": round(statistics.median(medians), 2) if taken else 1.0}))


if __name__ == "__main__":
    main()
