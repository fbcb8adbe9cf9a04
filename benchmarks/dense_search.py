"""Exact dense search against FAISS's IndexFlatIP: the top 100 of a million vectors.

    uv run benchmarks/dense_search.py

Both search 1,000,000 seeded random unit vectors of 384 float32 numbers, mapped from a file (ours) or added to the index
beforehand (FAISS), with the same number of threads. Ours starts from the queries' vectors and ends with a run, checks
of the input and exact scores included; FAISS ends with its arrays of scores and row numbers.

Below the times, it prints the time of what no exact search can avoid: reading every vector once, and the matrix
product.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
from pathlib import Path

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from timing import in_turn, seconds
from unimoe.models.device import describe_device
from unimoe.retrieval.dense import search

Floats = NDArray[np.float32]

ROWS, WIDTH, DEPTH = 1_000_000, 384, 100
PAIRS, MAIN = {1: 9, 64: 5, 256: 1}, 64
ROUNDS = 7


def unit_vectors(rows: int, rng: np.random.Generator) -> Floats:
    """Random directions, ``(rows, WIDTH)``."""
    vectors = rng.standard_normal((rows, WIDTH), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def write_corpus(path: Path, rows: int) -> None:
    """Write a file of random vectors, a block at a time."""
    vectors = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, WIDTH))
    for block, begin in enumerate(range(0, rows, 50_000)):
        vectors[begin : begin + 50_000] = unit_vectors(
            len(vectors[begin : begin + 50_000]), np.random.default_rng(block)
        )


def private_mib() -> float:
    """Memory of this process alone, without mapped files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:"))


def peak_extra_mib(vectors: Floats, ids: list[str], queries: Floats) -> float:
    """The most private memory that a search holds beyond what was there before, looked at every 5 milliseconds."""
    before, seen, over = private_mib(), [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            seen.append(private_mib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    search(queries, query_ids(queries), vectors, ids, DEPTH)
    over.set()
    watcher.join()
    return max(seen) - before


def query_ids(queries: Floats) -> list[str]:
    """A name for each query."""
    return [str(number) for number in range(len(queries))]


def compare(queries: Floats, vectors: Floats, ids: list[str], index: faiss.IndexFlatIP) -> tuple[float, float, float]:
    """Our median seconds, the median ratio of ours over FAISS's, and the share of FAISS's documents that ours holds."""
    names = query_ids(queries)
    run = search(queries, names, vectors, ids, DEPTH)
    _, found = index.search(queries, DEPTH)
    shared = [len({ids[row] for row in rows} & run[name].keys()) for name, rows in zip(names, found, strict=True)]
    taken = in_turn(
        f"{len(queries)} queries, FAISS against ours",
        lambda: index.search(queries, DEPTH),
        lambda: search(queries, names, vectors, ids, DEPTH),
        PAIRS[len(queries)],
    )
    return taken.peer, taken.ratio, sum(shared) / (len(names) * DEPTH)


def floors(vectors: Floats) -> tuple[float, float]:
    """Bytes read per second, and float32 operations per second of the product with MAIN queries, at their fastest."""
    rows = torch.from_numpy(vectors[:100_000].copy())

    def product(queries: int) -> float:
        columns, out = torch.ones(queries, WIDTH), torch.empty(len(rows), queries)

        def once() -> None:
            torch.mm(rows, columns.T, out=out)

        once()
        return statistics.median(seconds(once) for _ in range(ROUNDS))

    return rows.nbytes / product(1), 2 * rows.numel() * MAIN / product(MAIN)


def main() -> None:
    """Measure and print one JSON object as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=ROWS, help="vectors of the corpus")
    rows = parser.parse_args().rows
    faiss.omp_set_num_threads(torch.get_num_threads())
    print(f"{describe_device(torch.device('cpu'))}, torch {torch.__version__}, faiss {faiss.__version__}")
    print(f"{rows:,} x {WIDTH} float32, {rows * WIDTH * 4 / 1e9:.2f} GB, top {DEPTH}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder, "vectors.npy"), rows)
        vectors, ids = np.load(Path(folder, "vectors.npy"), mmap_mode="r"), [f"{row:07}" for row in range(rows)]
        queries = unit_vectors(max(PAIRS), np.random.default_rng(10**6))
        search(queries[:1], ["warm"], vectors, ids, DEPTH)
        extra_mib = peak_extra_mib(vectors, ids, queries[:MAIN])
        index = faiss.IndexFlatIP(WIDTH)
        for begin in range(0, rows, 50_000):
            index.add(np.ascontiguousarray(vectors[begin : begin + 50_000]))
        measured = {count: compare(queries[:count], vectors, ids, index) for count in PAIRS}
        bandwidth, speed = floors(vectors)
    reading, product = rows * WIDTH * 4 / bandwidth, 2 * rows * WIDTH * MAIN / speed
    print(
        f"floor: read once at {bandwidth / 1e9:.1f} GB/s {reading * 1e3:.0f} ms, ours takes "
        f"{measured[1][0] / reading:.2f} times that for one query; product at {speed / 1e9:.0f} GFLOP/s "
        f"{product * 1e3:.0f} ms, ours takes {measured[MAIN][0] / product:.2f} times that for {MAIN}"
    )
    print(
        json.dumps(
            {
                "vs_faiss": round(measured[MAIN][1], 3),
                "vs_faiss_one_query": round(measured[1][1], 3),
                "recall_vs_faiss": round(measured[MAIN][2], 4),
                "peak_extra_mib": round(extra_mib),
            }
        )
    )


if __name__ == "__main__":
    main()
