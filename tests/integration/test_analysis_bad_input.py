"""What the analysis says of folders that are wrong, and of those that only hold little."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.results import make_result, without_queries, write_experiment
from support.scripts import Done, assert_refused, call_script, successful

from unimoe.results import write_result

SCORES = [0.2, 0.4, 0.6]
RESULT = "joint_r8/seed_1/results/reranking/apidocs.json"
GATE = """
registered: 2026-01-01
gates:
  kill: {kind: interference, task: reranking, datasets: [apidocs], metric: ndcg@10, specialist: rank_only_r8,
         joint: joint_r8}
"""
EMBEDDING_GATE = GATE.replace("rank_only_r8", "emb_only_r8").replace("reranking", "embedding")


def analyze(folder: Path, *arguments: str) -> Done:
    return call_script("analyze_results.py", *arguments, "--output-dir", folder)


def two_arms(folder: Path, scores: dict[str, list[float]]) -> None:
    """Arms of two seeds with the same scores."""
    for arm, of_arm in scores.items():
        for seed in (0, 1):
            write_result(folder, make_result(arm, seed, of_arm))


def test_settings_that_matplotlib_refuses_are_named(tmp_path: Path) -> None:
    write_experiment(tmp_path / "results", logs=False)
    (tmp_path / "rc").write_bytes(b"\xff\xfe")
    command = [sys.executable, "-m", "unimoe", "analyze", "figures", "--output-dir", "results"]
    for variable, value, words in (
        ("MPLBACKEND", "nonsense", "MPLBACKEND"),
        ("MATPLOTLIBRC", "rc", "matplotlibrc"),
    ):
        own = {**os.environ, variable: value}
        done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
        last = done.stderr.splitlines()[-1]
        assert last.startswith("error: matplotlib, which draws the figures, refuses its settings: ")
        assert words in last


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda path: path.with_name("copy.json").write_bytes(path.read_bytes()),
            ("copy.json says it is joint_r8 seed 1", "remove one of the two"),
        ),
        (lambda path: path.rename(path.with_name("elsewhere.json")), ("elsewhere.json says", "belongs at", RESULT)),
        (a_folder, (RESULT, "cannot be read (Is a directory)")),
    ],
    ids=["twice", "misplaced", "a folder for a file"],
)
def test_one_file_that_is_wrong_is_named(
    tmp_path: Path, change: Callable[[Path], object], words: tuple[str, ...]
) -> None:
    write_experiment(tmp_path, logs=False)
    change(tmp_path / RESULT)
    assert_refused(analyze(tmp_path), 3, *words)
    assert not (tmp_path / "analysis").exists()


def test_no_results_and_a_name_that_allows_nothing_are_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        assert_refused(analyze(folder), 3, "no results here; evaluate an arm first", "point --output-dir at an")
    two_arms(tmp_path, {"joint_r8": SCORES})
    assert_refused(analyze(tmp_path, "tables", "--allow", "querys"), 2, "did you mean 'queries'?")


def tasks_without_queries(folder: Path) -> None:
    for arm, score in (("emb_only_r8", 0.8), ("joint_r8", 0.6)):
        for seed in (0, 1):
            write_result(folder, without_queries(arm, seed, score))


LITTLE: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "one arm": (
        lambda folder: two_arms(folder, {"rank_only_r8": SCORES}),
        ("No TIR of reranking on apidocs: joint_r8 has no result on apidocs",),
    ),
    "a baseline alone": (
        lambda folder: write_result(folder, make_result("bm25", None, SCORES)),
        ("On apidocs, bm25 is the only system",),
    ),
    "one seed": (
        lambda folder: write_experiment(folder, seeds=(0,), logs=False),
        (
            "UNDECIDED: reranking.joint_r8 (gate: INCONCLUSIVE",
            "one seed of rank_only_r8 and joint_r8: other training seeds cannot be",
        ),
    ),
    "one query": (
        lambda folder: write_experiment(folder, queries=1, logs=False),
        ("INCONCLUSIVE", "the arms differ on 1 of 1 queries, and fewer than 6 cannot decide"),
    ),
    "tasks without queries alone": (
        tasks_without_queries,
        ("No TIR of embedding: emb_only_r8 and joint_r8 have only tasks without queries, where nothing is paired",),
    ),
    "a specialist at zero": (
        lambda folder: two_arms(folder, {"rank_only_r8": [0.0] * 3, "joint_r8": [0.4] * 3}),
        ("INCONCLUSIVE", "joint_r8 cannot be compared with rank_only_r8 on apidocs"),
    ),
}


@pytest.mark.parametrize("case", LITTLE)
def test_little_is_no_error_and_the_report_says_what_cannot_be_had(tmp_path: Path, case: str) -> None:
    make, words = LITTLE[case]
    make(tmp_path)
    done = successful(analyze(tmp_path, "report", "--iterations", "100"))
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in " ".join(done.stdout.split())
    report = (tmp_path / "analysis" / "report.md").read_text(encoding="utf-8")
    assert "## What is missing" in report
    assert not {"nan", "inf"} & set(report.lower().split())


class TestTasksWithoutQueries:
    def test_give_tables_and_no_verdict(self, tmp_path: Path) -> None:
        tasks_without_queries(tmp_path)
        said = " ".join(successful(analyze(tmp_path, "tables", "--iterations", "100")).stdout.split())
        for words in ("MTEB by task", "STSBenchmark", "80.00 ±0.00"):
            assert words in said
        assert "MTEB: main scores" in successful(analyze(tmp_path, "all", "--iterations", "100")).stdout

    @pytest.mark.parametrize(
        ("gate", "words"),
        [
            (GATE, "no results of arm 'rank_only_r8'"),
            (EMBEDDING_GATE, "no embedding/apidocs result of emb_only_r8; it has only tasks without queries"),
            (EMBEDDING_GATE.replace("apidocs", "STSBenchmark"), "STSBenchmark has no queries: nothing is paired"),
        ],
    )
    def test_take_no_gate(self, tmp_path: Path, gate: str, words: str) -> None:
        tasks_without_queries(tmp_path)
        gates = tmp_path / "gates.yaml"
        gates.write_text(gate)
        assert_refused(analyze(tmp_path, "verdicts", "--gates", str(gates)), 3, str(gates), "'kill'", words)
        assert_refused(analyze(tmp_path, "verdicts", "--gates", str(gates), "--advisory"), 3, "'kill'")
