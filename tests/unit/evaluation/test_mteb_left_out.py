"""The tasks of MTEB that a suite leaves out, and when nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from unimoe.config.files import load_experiment
from unimoe.core.errors import UsageError
from unimoe.data.mteb_names import find_tasks
from unimoe.evaluation.mteb.suite import MTEBSuite
from unimoe.evaluation.runner import Evaluator
from unimoe.evaluation.systems.system import System
from unimoe.evaluation.tiers.loading import Failures
from unimoe.results import Task

LARGE, SMALL, EMBEDDED = "MindSmallReranking", "AskUbuntuDupQuestions", "SciFact"  # the last gives no candidates


def suite(*wanted: Task, max_pairs: str = "1000000") -> MTEBSuite:
    experiment = load_experiment(Path("experiments/bundled"), [f"evaluation.mteb.max_pairs={max_pairs}"])
    return MTEBSuite(Evaluator(Path()), System("joint_r8", experiment), wanted, Failures())


@pytest.mark.parametrize("names", [(LARGE,), (LARGE, EMBEDDED)])
def test_tasks_that_are_all_too_large_are_named_and_refused_unless_collections_are_evaluated(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = find_tasks(names)
    with pytest.raises(UsageError, match=r"left out \(named above\); raise evaluation\.mteb\.max_pairs"):
        suite("reranking").report_left_out(tasks, alone=True)
    alone = capsys.readouterr().err
    assert alone.count("left out: reranking MindSmallReranking, 97,008,807 pairs") == 1
    suite("reranking").report_left_out(tasks, alone=False)
    assert capsys.readouterr().err == alone


@pytest.mark.parametrize("alone", [True, False])
def test_tasks_without_candidates_are_refused(alone: bool) -> None:
    with pytest.raises(UsageError, match="none of these tasks gives candidates to rerank"):
        suite("reranking").report_left_out(find_tasks([EMBEDDED]), alone=alone)


def test_one_task_that_is_left_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    large, small, embedded = find_tasks([LARGE]), find_tasks([SMALL]), find_tasks([EMBEDDED])
    suite("reranking").report_left_out([*large, *small], alone=True)
    suite("reranking", "embedding").report_left_out(large, alone=True)
    assert capsys.readouterr().err.count("left out: ") == 2
    suite("reranking", max_pairs="null").report_left_out(large, alone=True)
    suite("embedding").report_left_out([*large, *embedded], alone=True)
    suite("reranking").report_left_out([], alone=True)
    assert capsys.readouterr().err == ""
