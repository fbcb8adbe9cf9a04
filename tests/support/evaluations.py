"""Evaluations by the command, with its collections and its cache in one folder, and the files that they leave."""

from __future__ import annotations

from pathlib import Path

from support.scripts import Done, call_script

from unimoe.core.trec import Run, read_run
from unimoe.results import EvalResult, read_result, result_path, run_path

Finished = tuple[Path, Done]
"""An output folder, and how the command ended that wrote it."""


def evaluate(data: Path, *options: str | Path, cache: str | Path = "cache") -> Done:
    return call_script("evaluate.py", *options, UNIMOE_DATA=str(data), UNIMOE_CACHE=str(data / cache))


def result_of(
    output_dir: Path, arm: str, dataset: str = "toy", task: str = "reranking", seed: int | None = None
) -> EvalResult:
    return read_result(result_path(output_dir, arm, seed, task, dataset))


def run_of(output_dir: Path, arm: str, dataset: str = "toy", task: str = "reranking") -> Run:
    return read_run(run_path(output_dir, arm, None, task, dataset))
