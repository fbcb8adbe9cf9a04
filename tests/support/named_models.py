"""A folder with a model of each kind and functions that score, and ``evaluate --model`` on its collections."""

from __future__ import annotations

from pathlib import Path

from support.scripts import Done, call_script

from unimoe.results import EvalResult, read_result

FUNCTIONS = """
from unimoe.evaluation.reranking.shards import Reranker

def longest(pairs):
    return [float(len(document)) for query, document in pairs]

def named(pairs):
    return longest(pairs)
named.identity = "longest, version 1"

def raising(pairs):
    return pairs[0][2]

def wide(pairs):
    return [[1.0, 2.0] for pair in pairs]

def short(pairs):
    return [1.0]

def words(pairs):
    return ["a"] * len(pairs)

def imaginary(pairs):
    return [1j] * len(pairs)

def nan(pairs):
    return [float("nan")] * len(pairs)

def moving(pairs):
    import os
    os.makedirs("elsewhere", exist_ok=True)
    os.chdir("elsewhere")
    return longest(pairs)

def leaving(pairs):
    raise SystemExit(0)

def of_one_query(pairs):
    assert len({query for query, _ in pairs}) == 1
    return longest(pairs)

def unnamed(pairs):
    return longest(pairs)
unnamed.identity = 7

class Own:
    # It lacks all but the method.

    def score(self, pairs):
        return longest(pairs)

class Broken(Own):
    def score(self, pairs):
        raise RuntimeError("no such luck")

class Losing(Reranker):
    def score(self, prepared, advance=None):
        return longest(prepared)

    def cut(self, collection, candidates):
        return super().cut(collection, candidates)[1:]

own, broken, losing = Own(), Broken(), Losing()
number = 3
"""


def evaluate(data: Path, model: str, output_dir: Path | None, *more: str) -> Done:
    chosen = [] if "--dataset" in more else ["--dataset", "toy"]
    place = [] if output_dir is None else ["--output-dir", str(output_dir)]
    exact = ["--set", "model.dtype=float32"] if "--config" not in more else []
    return call_script(
        "evaluate.py", "--model", model, *chosen, *place, *exact, *more,
        UNIMOE_DATA=str(data), UNIMOE_CACHE=str(data / "cache"),
    )  # fmt: skip


def result_of(output_dir: Path, arm: str, task: str = "reranking", dataset: str = "toy") -> EvalResult:
    return read_result(output_dir / arm / "seed_none" / "results" / task / f"{dataset}.json")
