"""Runs that are one run and queries that are one query: neither makes a verdict surer without a word."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.compare_command import compare, compare_arms, words_of
from support.runs import random_qrels, random_run, write_arms

from unimoe.core.trec import Qrels, Run

GATE = """
registered: 2020-01-01T00:00:00Z
gates:
  kill: {kind: interference, task: retrieval, datasets: [q], metric: ndcg@10, specialist: specialist, joint: joint}
"""


def scaled(run: Run, factor: float) -> Run:
    return {query: {document: factor * score for document, score in scores.items()} for query, scores in run.items()}


@pytest.fixture
def good_and_poor() -> tuple[Qrels, list[Run], list[Run]]:
    rng = np.random.default_rng(3)
    qrels = random_qrels(40, rng)
    good, poor = ([random_run(qrels, noise, rng) for _ in range(3)] for noise in (0.5, 3.0))
    return qrels, good, poor


def thrice(run: Run) -> list[Run]:
    return [scaled(run, factor) for factor in (1.0, 2.0, 3.0)]


class TestRuns:
    def test_one_ranking_scaled_by_two_and_three_is_one_run(
        self, good_and_poor: tuple[Qrels, list[Run], list[Run]], tmp_path: Path
    ) -> None:
        """It was PASS with confidence .99 and exit code 0, as three seeds."""
        qrels, good, poor = good_and_poor
        arms = write_arms(tmp_path, qrels, thrice(good[0]), thrice(poor[0]))
        gates = tmp_path / "gates.yaml"
        gates.write_text(GATE, encoding="utf-8")
        done = compare_arms(arms, "--gates", gates)
        assert done.returncode == 12, done.stdout
        assert "UNDECIDED: kill (gate: INCONCLUSIVE" in done.stdout
        said = words_of(done)
        assert "one seed of specialist and joint: other training seeds cannot be judged by it" in said
        for arm in ("specialist", "joint"):
            names = f"{arm} seed 0, {arm} seed 1, {arm} seed 2"
            assert f"Note {names} have the same score on every query of retrieval/q: they are one run" in said

    def test_a_table_of_systems_counts_them_once_and_says_so(
        self, good_and_poor: tuple[Qrels, list[Run], list[Run]], tmp_path: Path
    ) -> None:
        qrels, good, poor = good_and_poor
        write_arms(tmp_path, qrels, thrice(good[0]), poor)
        given = ("--systems", f"{tmp_path}/a*.trec", f"{tmp_path}/b*.trec", "--qrels", tmp_path / "q.tsv")
        done = compare(*given, "--json")
        said = json.loads(done.stdout)
        assert {row["system"]: row["runs"] for row in said["scores"]} == {"a": 1, "b": 3}
        assert any("a seed 0, a seed 1, a seed 2 have the same score" in warning for warning in said["warnings"])
        assert "they are one run" in done.stderr
        kept = tmp_path / "kept"
        compare(*given, "--output-dir", kept)
        assert "they are one run" in compare("--results", kept).stderr
        assert "they are one run" in (kept / "analysis" / "report.md").read_text("utf-8")


class TestQueries:
    def test_real_runs_repeat_no_query(self, unimoe_data: Path) -> None:
        pool = unimoe_data / "trec-dl19-passage-pool"
        runs, qrels = sorted((pool / "runs").glob("*.trec")), pool / "qrels" / "full.tsv"
        done = compare("--systems", *runs, "--qrels", qrels, "--json")
        assert done.returncode == 0, done.stderr
        assert not any("repeat" in warning or "one run" in warning for warning in json.loads(done.stdout)["warnings"])
