"""``unimoe evaluate-run``: any run file against any qrels file, and bad input answered in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.scripts import Done, assert_refused, call_unimoe

from unimoe.core.trec import Qrels, Run, write_qrels, write_run

# q1: the relevant document comes second. q2: first. q3: not in the run. q9: not judged.
QRELS: Qrels = {"q1": {"d1": 1}, "q2": {"d1": 2, "d2": 1}, "q3": {"d1": 1}}
RUN: Run = {"q1": {"d1": 1.0, "d2": 2.0}, "q2": {"d1": 2.0, "d3": 1.0}, "q9": {"d1": 1.0}}
Files = tuple[Path, Path]


def evaluate_run(*arguments: str | Path) -> Done:
    return call_unimoe("evaluate-run", *arguments)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    write_run(tmp_path / "some.trec", RUN, tag="some")
    write_qrels(tmp_path / "qrels.txt", QRELS)
    return tmp_path / "some.trec", tmp_path / "qrels.txt"


def test_means_the_number_of_queries_and_warnings(files: Files) -> None:
    done = evaluate_run(*files, "--relevance-level", "1")
    assert done.returncode == 0
    # nDCG of q1 is 1/log2(3) = .6309, of q2 2/(2 + 1/log2(3)) = .7602, of q3 0
    assert done.stdout.splitlines() == [
        "ndcg@10          0.4637",
        "mrr@10           0.5000",
        "map              0.3333",
        "recall@100       0.5000",
        "queries          3",
        "relevance level  1",
    ]
    assert done.stderr.splitlines() == [
        "warning: judged queries missing from the run, counted as 0: 1 (q3)",
        "warning: queries without judgments, left out: 1 (q9)",
    ]


def test_json(files: Files) -> None:
    done = evaluate_run(*files, "--json", "--metric", "mrr", "--depth", "1")
    assert json.loads(done.stdout) == {
        "run": str(files[0]),
        "qrels": str(files[1]),
        "depth": 1,
        "queries": 3,
        "relevance_level": 1,
        "aggregate": {"mrr": pytest.approx(1 / 3, abs=1e-15)},
        "per_query": {"mrr": {"q1": 0.0, "q2": 1.0, "q3": 0.0}},
        "missing_queries": ["q3"],
        "unjudged_queries": ["q9"],
        "unordered_queries": [],
        "notes": [
            "grades up to 2 in qrels.txt: mrr counts grade 1 as relevant; TREC DL counts from 2: --relevance-level 2"
        ],
    }


def test_a_level_given_goes_before_one_stated_and_that_before_1(files: Files) -> None:
    def found(*options: str) -> tuple[int, float]:
        read = json.loads(evaluate_run(*files, "--json", "--metric", "mrr", *options).stdout)
        return read["relevance_level"], round(read["aggregate"]["mrr"], 9)

    at_1, at_2 = 1 / 2, round(1 / 3, 9)  # q1 1/2, q2 1, q3 0; at level 2 nothing is relevant to q1
    assert found() == (1, at_1)
    assert found("--relevance-level", "2") == (2, at_2)
    files[1].with_name("qrels.txt.json").write_text('{"relevance_level": 2}')
    assert found() == (2, at_2)
    assert found("--relevance-level", "1") == (1, at_1)


def test_a_run_without_order_is_not_cut(files: Files) -> None:
    write_run(files[0], {"q1": {"d1": 0.0, "d2": 0.0, "d3": 0.0}, "q2": {"d1": 0.0}}, tag="some")
    assert_refused(evaluate_run(*files, "--depth", "2"), 3, "some.trec", "--depth 2", "one score")
    assert evaluate_run(*files, "--depth", "3").returncode == 0
