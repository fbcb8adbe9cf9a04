"""What the analysis says of folders that are wrong, and of those that only hold little."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from support.json_files import read_plain, write_plain
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


def two_arms(folder: Path) -> None:
    """Two comparable arms of two seeds."""
    for seed in (0, 1):
        for arm in ("joint_r8", "rank_only_r8"):
            write_result(folder, make_result(arm, seed, SCORES))


def edit(change: Callable[[Path], object]) -> Callable[[Path], None]:
    """A whole experiment with one file changed."""

    def make(folder: Path) -> None:
        write_experiment(folder, logs=False)
        change(folder / RESULT)

    return make


def copied(path: Path) -> None:
    path.with_name("copy.json").write_bytes(path.read_bytes())


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere.json"))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def test_control_characters_in_a_result_reach_the_report(tmp_path: Path) -> None:
    write_experiment(tmp_path, logs=False)
    raw = read_plain(tmp_path / RESULT)
    write_plain(tmp_path / RESULT, raw | {"caveats": ["a \x1b[31mred\x00 caveat"]})
    done = successful(analyze(tmp_path, "report", "--iterations", "50"))
    assert "Glyph" not in done.stderr
    assert "[31mred" in (tmp_path / "analysis" / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("variable", "value", "words"), [("MPLBACKEND", "nonsense", "MPLBACKEND"), ("MATPLOTLIBRC", "rc", "matplotlibrc")]
)
def test_settings_that_matplotlib_refuses_are_named(tmp_path: Path, variable: str, value: str, words: str) -> None:
    write_experiment(tmp_path / "results", logs=False)
    (tmp_path / "rc").write_bytes(b"\xff\xfe")
    done = in_own_process(tmp_path, **{variable: value})
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert last.startswith("error: matplotlib, which draws the figures, refuses its settings: ")
    assert words in last


def test_settings_of_matplotlib_change_no_figure(tmp_path: Path) -> None:
    two_arms(tmp_path)
    figures = []
    settings: tuple[dict[Any, Any], ...] = ({}, {"text.usetex": True, "font.size": 40, "savefig.dpi": 7})
    for own in settings:
        with matplotlib.rc_context(own):
            assert analyze(tmp_path, "figures").returncode == 0
        figures.append({path.name: path.read_bytes() for path in (tmp_path / "analysis" / "figures").iterdir()})
    assert figures[0] == figures[1]


def in_own_process(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "unimoe", "analyze", "figures", "--output-dir", "results"]
    variables = {**os.environ, **environment}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


BROKEN: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "no results": (lambda folder: folder.mkdir(exist_ok=True), ("no results here; evaluate an arm first",)),
    "no folder": (lambda folder: folder.rmdir(), ("no results here", "point --output-dir at an experiment")),
    "claimed twice": (edit(copied), (RESULT, "copy.json", "both claim to be joint_r8 seed 1 on reranking/apidocs")),
    "misplaced": (edit(moved), ("elsewhere.json", "belongs at", RESULT)),
    "a folder for a file": (edit(a_folder), (RESULT, "cannot be read (Is a directory)")),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_folder_that_is_wrong_is_one_line_and_exit_code_3(tmp_path: Path, case: str) -> None:
    make, words = BROKEN[case]
    folder = tmp_path / "outputs"
    folder.mkdir()
    make(folder)
    assert_refused(analyze(folder), 3, *words)
    assert not (folder / "analysis").exists()


def test_a_name_that_allows_nothing_is_wrong_usage(tmp_path: Path) -> None:
    two_arms(tmp_path)
    assert_refused(analyze(tmp_path, "tables", "--allow", "querys"), 2, "did you mean 'queries'?")


LITTLE: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "one arm": (
        lambda folder: [write_result(folder, make_result("rank_only_r8", s, SCORES)) for s in (0, 1)],
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
        lambda folder: [
            write_result(folder, without_queries(arm, seed, score))
            for arm, score in (("emb_only_r8", 0.8), ("joint_r8", 0.6))
            for seed in (0, 1)
        ],
        ("No TIR of embedding: emb_only_r8 and joint_r8 have only tasks without queries, where nothing is paired",),
    ),
    "a specialist at zero": (
        lambda folder: [
            write_result(folder, make_result(arm, seed, [score] * 3))
            for arm, score in (("rank_only_r8", 0.0), ("joint_r8", 0.4))
            for seed in (0, 1)
        ],
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
    assert "nan" not in report.lower().split()
    assert "inf" not in report.lower().split()


def test_tasks_without_queries_alone_give_tables_and_no_verdict(tmp_path: Path) -> None:
    LITTLE["tasks without queries alone"][0](tmp_path)
    done = successful(analyze(tmp_path, "tables", "--iterations", "100"))
    for words in ("MTEB by task", "TIR of the mean main scores", "STSBenchmark", "25.00 ±0.00"):
        assert words in " ".join(done.stdout.split())
    whole = successful(analyze(tmp_path, "all", "--iterations", "100"))
    assert "MTEB: main scores" in whole.stdout


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        (GATE, "no results of arm 'rank_only_r8'"),
        (EMBEDDING_GATE, "no embedding/apidocs result of emb_only_r8; it has only tasks without queries"),
        (EMBEDDING_GATE.replace("apidocs", "STSBenchmark"), "embedding/STSBenchmark has no queries: nothing is paired"),
    ],
)
def test_no_gate_can_be_judged_on_tasks_without_queries(tmp_path: Path, gate: str, words: str) -> None:
    LITTLE["tasks without queries alone"][0](tmp_path)
    gates = tmp_path / "gates.yaml"
    gates.write_text(gate)
    assert_refused(analyze(tmp_path, "verdicts", "--gates", str(gates)), 3, str(gates), "'kill'", words)
    assert_refused(analyze(tmp_path, "verdicts", "--gates", str(gates), "--advisory"), 3, "'kill'")
