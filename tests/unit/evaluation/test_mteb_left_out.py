"""The tasks of MTEB that a suite leaves out, and when nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from unimoe.config.files import load_experiment
from unimoe.core.errors import UsageError
from unimoe.data.mteb_names import find_tasks
from unimoe.evaluation.chosen import ChosenData
from unimoe.evaluation.systems.system import System
from unimoe.evaluation.tiers.datasets import tier_datasets
from unimoe.results import Task

LARGE, SMALL, EMBEDDED = "MindSmallReranking", "AskUbuntuDupQuestions", "SciFact"  # the last gives no candidates


def report(*wanted: Task, names: Sequence[str] = (), alone: bool = True, max_pairs: str = "1000000") -> None:
    experiment = load_experiment(Path("experiments/bundled"), [f"evaluation.mteb.max_pairs={max_pairs}"])
    datasets = [] if alone else tier_datasets(experiment, "bundled")
    data = ChosenData(datasets, find_tasks(names) if names else [])
    data.report_left_out(System("joint_r8", experiment, lambda: None, tasks=wanted))


@pytest.mark.parametrize("names", [(LARGE,), (LARGE, EMBEDDED)])
def test_tasks_that_are_all_too_large_are_named_and_refused_unless_collections_are_evaluated(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=r"left out \(named above\); raise evaluation\.mteb\.max_pairs"):
        report("reranking", names=names)
    alone = capsys.readouterr().err
    assert alone.count("left out: reranking MindSmallReranking, 97,008,807 pairs") == 1
    report("reranking", names=names, alone=False)
    assert capsys.readouterr().err == alone


@pytest.mark.parametrize("alone", [True, False])
def test_tasks_without_candidates_are_refused(alone: bool) -> None:
    with pytest.raises(UsageError, match="none of these tasks gives candidates to rerank"):
        report("reranking", names=[EMBEDDED], alone=alone)


def test_one_task_that_is_left_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    report("reranking", names=[LARGE, SMALL])
    report("reranking", "embedding", names=[LARGE])
    assert capsys.readouterr().err.count("left out: ") == 2
    report("reranking", names=[LARGE], max_pairs="null")
    report("embedding", names=[LARGE, EMBEDDED])
    report("reranking")
    assert capsys.readouterr().err == ""
