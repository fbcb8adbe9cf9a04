"""``unimoe compare`` against numbers worked by hand, ``evaluate-run``, pytrec_eval and scipy."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from scipy import stats
from support.runs import one_relevant, random_qrels, random_run, run_with_ranks, write_arms
from support.scripts import call_unimoe, successful

from unimoe.analysis.compare import compare
from unimoe.core.trec import Qrels, Run


def call(*arguments: str | Path) -> dict[str, Any]:
    done = successful(call_unimoe(*arguments))
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_verdict_worked_by_hand(tmp_path: Path) -> None:
    """Reciprocal ranks of one relevant document, two seeds, eight queries.

    Specialist: q1 to q6 rank 1, 1; q7 ranks 2, 1; q8 ranks 4, 4: sums of the seeds 6.75 and 7.25, mean 7/8.
    Joint: q1 rank 1; q2 to q7 rank 2; q8 rank 1: sum 5, mean 5/8. TIR = (7 - 5) / 7 = 2/7. Its two files
    score alike: they are one run.
    """

    def run(*ranks: int, tail: float = 0.0) -> Run:
        return run_with_ranks({f"q{i}": rank for i, rank in enumerate(ranks, start=1)}, tail=tail)

    specialist = [run(1, 1, 1, 1, 1, 1, 2, 4), run(1, 1, 1, 1, 1, 1, 1, 4)]
    joint = [run(1, 2, 2, 2, 2, 2, 2, 1, tail=tail) for tail in (0.0, 0.5)]
    a, b, q = write_arms(tmp_path, one_relevant(*(f"q{i}" for i in range(1, 9))), specialist, joint)
    found = call("compare", "--specialist", *a, "--joint", *b, "--qrels", q, "--metric", "recip_rank", "--json")
    (gate,) = found["gates"]["gates"]
    assert found["datasets"]["retrieval/q"]["metric"] == "mrr"
    assert gate["runs"] == {
        "specialist": [pytest.approx(6.75 / 8), pytest.approx(7.25 / 8)],
        "joint": [pytest.approx(5 / 8)],
    }
    assert gate["interval"]["value"] == pytest.approx(2 / 7)
    assert (gate["by_seed"], gate["std"]) == ({}, None)  # numbers of run files are no training seeds
    cases = {case["query_id"]: case for case in found["drilldown"]}
    assert found["drilldown"][0]["query_id"] == "q8"
    shares = {"q8": -0.75 / 7, "q7": 0.25 / 7} | {f"q{i}": 0.5 / 7 for i in range(2, 7)}
    assert {name: case["share"] for name, case in cases.items()} == pytest.approx(shares)
    assert cases["q7"]["first_ranks"] == {"rel": [2, 1]}
    assert cases["q7"]["second_ranks"] == {"rel": [2]}


def test_an_average_worked_by_hand() -> None:
    """Reciprocal ranks of one run of each system on two datasets, of eight and six queries.

    Differences on x: 1/2 six times, 0, -1/2, mean 5/16; on y: 3/4, 3/4, 3/4, 1/2, 1/2, 1/2, mean 5/8. So the average
    is 15/32. The squares about the means sum to 31/32 on x and to 3/32 on y. Over 7 x 8 and 5 x 6 these are the
    variances of the means; the standard error is half of the root of their sum.
    """
    runs: dict[str, dict[str, Run]] = {"good": {}, "poor": {}}
    qrels = {}
    for dataset, poor in (("x", (2, 2, 2, 2, 2, 2, 1, 1)), ("y", (4, 4, 4, 2, 2, 2))):
        queries = [f"q{number}" for number in range(len(poor))]
        good = [1] * len(poor) if dataset == "y" else [1] * 7 + [2]
        qrels[dataset] = one_relevant(*queries)
        runs["good"][dataset] = run_with_ranks(dict(zip(queries, good, strict=True)))
        runs["poor"][dataset] = run_with_ranks(dict(zip(queries, poor, strict=True)))
    found = compare(runs, qrels, baseline="poor", metrics="recip_rank")
    row = next(row for row in found.test_rows if row["dataset"] == "average of 2")
    variances = (31 / 32) / (7 * 8), (3 / 32) / (5 * 6)
    error = math.sqrt(sum(variances)) / 2
    freedom = sum(variances) ** 2 / (variances[0] ** 2 / 7 + variances[1] ** 2 / 5)
    half = stats.t.ppf(0.975, freedom) * error
    assert row["difference"] == pytest.approx(15 / 32)
    assert (row["low"], row["high"]) == pytest.approx((15 / 32 - half, 15 / 32 + half))
    assert row["p"] == row["p_corrected"] == pytest.approx(2 * stats.t.sf(15 / 32 / error, freedom))
    assert (row["system_mean"], row["baseline_mean"]) == pytest.approx(((15 / 16 + 1) / 2, (10 / 16 + 6 / 16) / 2))
    assert (row["queries"], row["wins"], row["ties"], row["losses"]) == (14, 12, 1, 1)


def by_pytrec_eval(qrels: Qrels, run: Run, measure: str) -> dict[str, float]:
    evaluated = pytrec_eval.RelevanceEvaluator(qrels, {measure}).evaluate(run)
    return {query_id: scores[measure] for query_id, scores in evaluated.items()}


@pytest.mark.parametrize(
    ("measure", "house"), [("ndcg_cut_10", "ndcg@10"), ("map", "map"), ("recall_100", "recall@100")]
)
def test_generated_runs_score_as_in_evaluate_run_and_pytrec_eval(tmp_path: Path, measure: str, house: str) -> None:
    rng = np.random.default_rng(11)
    qrels = random_qrels(25, rng)
    arms = [[random_run(qrels, noise, rng, depth=120) for _ in range(2)] for noise in (1.0, 2.0)]
    a, b, q = write_arms(tmp_path, qrels, *arms)
    found = call("compare", "--specialist", *a, "--joint", *b, "--qrels", q, "--metric", measure, "--json")
    scores = {(run["system"], run["seed"]): run["scores"] for run in found["runs"]}
    means = []
    for arm, paths, runs in (("specialist", a, arms[0]), ("joint", b, arms[1])):
        for seed, (path, run) in enumerate(zip(paths, runs, strict=True)):
            expected = by_pytrec_eval(qrels, run, measure)
            assert scores[arm, seed][house] == pytest.approx(np.mean(list(expected.values())), abs=1e-12)
            assert scores[arm, seed] == call("evaluate-run", path, q, "--json")["aggregate"]
            means.append(scores[arm, seed][house])
    tir = 1.0 - (means[2] + means[3]) / (means[0] + means[1])
    assert found["gates"]["gates"][0]["interval"]["value"] == pytest.approx(tir, abs=1e-12)


def test_single_runs_have_the_paired_t_test_as_in_pyterrier_and_ranx() -> None:
    qrels, rng = random_qrels(40, np.random.default_rng(5)), np.random.default_rng(6)
    runs = {name: random_run(qrels, noise, rng) for name, noise in (("bm25", 2.0), ("tasb", 1.8), ("mono", 1.1))}
    scores = {name: list(by_pytrec_eval(qrels, run, "ndcg_cut_10").values()) for name, run in runs.items()}
    for row in compare(runs, qrels, baseline="bm25").test_rows:
        expected = stats.ttest_rel(scores[row["system"]], scores[row["baseline"]])
        assert row["p"] == pytest.approx(expected.pvalue, rel=1e-9)
        interval = expected.confidence_interval(0.95)
        assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high), rel=1e-9)
        gaps = np.subtract(scores[row["system"]], scores[row["baseline"]])
        assert (row["wins"], row["losses"]) == ((gaps > 1e-12).sum(), (gaps < -1e-12).sum())
        assert row["holds_for"] == "queries"


def test_real_runs_score_what_is_known_of_them(unimoe_data: Path) -> None:
    pool = unimoe_data / "trec-dl19-passage-pool"
    runs = [pool / "runs" / f"{name}.trec" for name in ("splade_p_p_ensemble_distil", "d_bert_kd_tasb")]
    qrels = pool / "qrels" / "full.tsv"
    found = call("compare", "--specialist", *runs, "--joint", pool / "runs" / "bm25.trec", "--qrels", qrels, "--json")
    scores = {(run["system"], run["seed"]): run["scores"]["ndcg@10"] for run in found["runs"]}
    assert scores["joint", 0] == pytest.approx(0.5058, abs=5e-5)
    assert scores["specialist", 1] == call("evaluate-run", runs[0], qrels, "--json")["aggregate"]["ndcg@10"]
    (gate,) = found["gates"]["gates"]
    means = [(scores["specialist", 0] + scores["specialist", 1]) / 2, scores["joint", 0]]
    assert gate["interval"]["value"] == pytest.approx(1 - means[1] / means[0], abs=1e-12)
    assert gate["label"] == "INCONCLUSIVE"
    assert "one seed of joint" in gate["why"]
    assert found["comparisons"][0]["queries"] == 43
    # Below .001 by Student's t; the runs' variance is known from two runs alone, which the tail allows for.
    assert found["comparisons"][0]["p"] == pytest.approx(0.00798, abs=5e-5)
