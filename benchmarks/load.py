"""Seconds and memory of large inputs, each at two sizes, and whether the time grows in proportion.

    uv run benchmarks/load.py [--queries N] [--results N] [--judgments N] [--corpus-mib N] [--only NAME]

`evaluate-run` and `compare` read runs of many queries, `evaluate-run` judgments of many lines, `analyze` a folder of
many result files, and BM25 indexes and searches a corpus. Each runs in a process of its own on a quarter of the input
and on all of it. Inputs are generated beforehand, which the seconds leave out. A ratio of 1 is linear: it is the
processor time of the whole over that of the quarter, the start of the process left out, over the ratio of the sizes.
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Write = Callable[[Path, int], Sequence[str | Path]]
"""Writes an input of a size into a folder, and returns the arguments of Python that read it."""

_PARTS = 20_000  # sentences that documents are made of
_WORDS = 200_000


@dataclass(frozen=True)
class Case:
    """A command on an input that grows.

    Attributes:
        name: of the command.
        unit: what its size counts.
        size: of the whole input.
        write: makes the input.
    """

    name: str
    unit: str
    size: int
    write: Write


def runs(count: int) -> Write:
    """Runs of many queries with five documents each, and their judgments; ``count`` runs of one input."""

    def write(folder: Path, queries: int) -> Sequence[str | Path]:
        rng = np.random.default_rng(0)
        _write_lines(folder / "q.qrels", (f"q{q} 0 d{q % 7} 1\nq{q} 0 d{q % 5} 1\n" for q in range(queries)))
        for run in range(count):
            moved = rng.integers(0, 7, queries).tolist()
            _write_lines(folder / f"{run}.trec", (_FIVE.format(q=q, d=d) for q, d in enumerate(moved)))
        if count == 1:
            return ["evaluate-run", folder / "0.trec", folder / "q.qrels"]
        baseline, *systems = (folder / f"{run}.trec" for run in range(count))
        return ["compare", "--baseline", baseline, "--systems", *systems, "--qrels", folder / "q.qrels"]

    return write


_FIVE = "".join(f"q{{q}} Q0 d{{d}}{'0' * rank} {rank} {9 - rank}.5 load\n" for rank in range(5))


def judgments(folder: Path, lines: int) -> Sequence[str | Path]:
    """Judgments with 100 lines for each query, and a run of ten documents for each."""
    queries = max(1, lines // 100)
    _write_lines(folder / "q.qrels", (_judged(query) for query in range(queries)))
    _write_lines(
        folder / "r.trec", ("".join(f"q{q} Q0 d{7 * d} {d} {20 - d} load\n" for d in range(10)) for q in range(queries))
    )
    return ["evaluate-run", folder / "r.trec", folder / "q.qrels"]


def _judged(query: int) -> str:
    return "".join(f"q{query} 0 d{document} {int(document % 9 == 0)}\n" for document in range(100))


def results(folder: Path, files: int) -> Sequence[str | Path]:
    """Results of an experiment as large as that of ``analysis.py``, on collections of 50 queries each."""
    from analysis import BASELINES, SEEDS, TRAINED, result, sidecar
    from unimoe.results import write_result

    rng = np.random.default_rng(0)
    ids = [f"PLAIN-{number * 137}" for number in range(50)]
    seeds = [(arm, None) for arm in BASELINES] + [(arm, seed) for arm in TRAINED for seed in range(SEEDS)]
    for collection in range(max(1, files // len(seeds))):
        difficulty = rng.normal(0.5, 0.3, len(ids))
        for arm, seed in seeds:
            scores = np.clip(difficulty + rng.normal(0.0 if seed is None else 0.06, 0.15, len(ids)), 0.0, 1.0)
            write_result(folder, result(arm, seed, f"set-{collection}", ids, scores), sidecar(ids, scores))
    return ["analyze", "--output-dir", folder]


def corpus(folder: Path, mib: int) -> Sequence[str | Path]:
    """A collection in BEIR's layout: documents of six sentences, of words as frequent as in Zipf's law."""
    rng = np.random.default_rng(0)
    words = np.minimum(rng.zipf(1.2, _PARTS * 15), _WORDS).reshape(_PARTS, 15)
    parts = [" ".join(f"w{word:x}" for word in row) for row in words.tolist()]
    size, number = 0, 0
    (folder / "qrels").mkdir()
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        while size < mib * 2**20:
            for row in rng.integers(0, _PARTS, (1_000, 6)).tolist():
                text = ". ".join([parts[part] for part in row])
                size += file.write(f'{{"_id": "d{number}", "text": "{text}"}}\n')
                number += 1
    _write_lines(folder / "queries.jsonl", (f'{{"_id": "q{q}", "text": "{parts[q][:40]}"}}\n' for q in range(100)))
    judged = (f"q{q}\td{q}\t1\n" for q in range(100))
    _write_lines(folder / "qrels" / "test.tsv", ["query-id\tcorpus-id\tscore\n", *judged])
    return ["bm25", folder]


def search(folder: Path) -> None:
    """Index the corpus and search it for every query."""
    from unimoe.config import BM25Config
    from unimoe.data.sources.beir_layout import read_beir
    from unimoe.retrieval.bm25 import bm25_run

    start = time.perf_counter()
    collection = read_beir(folder, "test")
    read = time.perf_counter()
    run = bm25_run(collection, 100, BM25Config())
    print(f"{len(collection.corpus):,} documents read in {read - start:.0f} s, {sum(map(len, run.values())):,} found")


def _write_lines(path: Path, lines: Iterator[str] | Sequence[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(lines)


def measure(arguments: Sequence[str | Path]) -> tuple[float, float, float]:
    """Seconds, processor seconds and peak memory (MiB) of a command in a process of its own; any verdict will do."""
    program: list[str | Path] = [__file__, "--search"] if arguments[0] == "bm25" else ["-m", "unimoe", arguments[0]]
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        child = subprocess.Popen([sys.executable, *program, *arguments[1:]], stdout=output, stderr=output)
        _, status, usage = os.wait4(child.pid, 0)
        elapsed, child.returncode = time.perf_counter() - start, os.waitstatus_to_exitcode(status)
        output.seek(0)
        said = output.read().decode()
        if child.returncode not in (0, 10, 11, 12):
            sys.exit(f"{arguments[0]} ended with {child.returncode}: {said[-2000:]}")
    memory = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return elapsed, usage.ru_utime + usage.ru_stime, memory


def main() -> None:
    """Measure each case at a quarter and at the whole of its size."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--queries", type=int, default=1_000_000, help="of runs")
    parser.add_argument("--results", type=int, default=2_500, help="result files")
    parser.add_argument("--judgments", type=int, default=10_000_000, help="lines of judgments")
    parser.add_argument("--corpus-mib", type=int, default=256, help="MiB of documents")
    parser.add_argument("--only", action="append", default=[], help="a case; may be repeated")
    parser.add_argument("--search", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.search:
        search(given.search)
        return
    cases = (
        Case("evaluate-run", "queries", given.queries, runs(1)),
        Case("compare", "queries", given.queries, runs(2)),
        Case("judgments", "lines", given.judgments, judgments),
        Case("analyze", "files", given.results, results),
        Case("bm25", "MiB", given.corpus_mib, corpus),
    )
    found: dict[str, dict[str, float]] = {}
    for case in cases:
        if given.only and case.name not in given.only:
            continue
        measured = []
        for size in (max(1, case.size // 1000), case.size // 4, case.size):
            folder = Path(tempfile.mkdtemp(prefix="unimoe-load-"))
            try:
                measured.append(measure(case.write(folder, size)))
            finally:
                shutil.rmtree(folder)
            seconds, processor, peak = measured[-1]
            taken = f"{seconds:.1f} s ({processor:.1f} s of processors), {peak:,.0f} MiB"
            print(f"{case.name}, {size:,} {case.unit}: {taken}", flush=True)
        (_, start, _), (_, quarter, _), (seconds, whole, peak) = measured
        found[case.name] = {
            "size": case.size,
            "seconds": round(seconds, 1),
            "processor_seconds": round(whole, 1),
            "peak_mib": round(peak),
            "ratio": round((whole - start) / max(quarter - start, 1e-3) / 4, 2),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
