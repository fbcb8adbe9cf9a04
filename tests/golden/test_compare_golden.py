"""``unimoe compare`` and the standings of systems: by hand, and against ``evaluate-run``, pytrec_eval and scipy."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from support.runs import one_relevant, random_qrels, random_run, run_with_ranks, write_arms
from support.scripts import call_unimoe, successful

from unimoe.analysis.compare import compare
from unimoe.analysis.comparisons import difference
from unimoe.analysis.standings import best_of, standings_of
from unimoe.core.trec import Run


def call(*arguments: str | Path) -> Any:
    return json.loads(successful(call_unimoe(*arguments)).stdout)


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


def test_single_runs_have_the_paired_t_test_as_in_pyterrier_and_ranx() -> None:
    qrels, rng = random_qrels(40, np.random.default_rng(5)), np.random.default_rng(6)
    runs = {name: random_run(qrels, noise, rng) for name, noise in (("bm25", 2.0), ("tasb", 1.8), ("mono", 1.1))}
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut_10"})
    scores = {name: [one["ndcg_cut_10"] for one in evaluator.evaluate(run).values()] for name, run in runs.items()}
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
    mean = (scores["specialist", 0] + scores["specialist", 1]) / 2
    assert gate["interval"]["value"] == pytest.approx(1 - scores["joint", 0] / mean, abs=1e-12)
    assert gate["label"] == "INCONCLUSIVE"
    assert "one seed of joint" in gate["why"]
    assert found["comparisons"][0]["queries"] == 43
    # Below .001 by Student's t; the runs' variance is known from two runs alone, which the tail allows for.
    assert found["comparisons"][0]["p"] == pytest.approx(0.00798, abs=5e-5)


def test_standings_that_can_be_read_by_hand() -> None:
    """Four systems, three tests each: a one-sided p counts below .05 / 3, so a two-sided one below .0333."""
    means = {"a": 0.5, "b": 0.48, "c": 0.4, "d": 0.3}
    tests = {
        ("b", "a"): (-0.02, 0.40),
        ("c", "a"): (-0.1, 0.03),  # one-sided .015: c is not the best; two-sided, Holm: 2 x .03 = .06, so rank 1 may be
        ("c", "b"): (-0.08, 0.20),
        ("d", "a"): (-0.2, 0.001),
        ("d", "b"): (-0.18, 0.002),
        ("d", "c"): (-0.1, 0.06),
    }
    found = standings_of(means, tests)
    assert [(one.system, one.rank, one.ranks, one.is_among_best) for one in found] == [
        ("a", 1, (1, 3), True),
        ("b", 2, (1, 3), True),
        ("c", 3, (1, 4), False),
        ("d", 4, (3, 4), False),
    ]


def test_single_runs_are_ranked_by_the_t_tests_of_scipy() -> None:
    rng = np.random.default_rng(3)
    hard = rng.normal(0.5, 0.2, 60)
    scores = {name: hard + shift + rng.normal(0.0, 0.1, 60) for name, shift in (("x", 0.0), ("y", 0.03), ("z", 0.1))}
    tests = {}
    for first, second in combinations(scores, 2):
        of_two = difference(scores[first][None], scores[second][None])[0]
        tests[first, second] = of_two.value, of_two.p
        assert of_two.estimand == "queries"
        assert of_two.degrees_of_freedom == pytest.approx(59.0)
        assert of_two.p == pytest.approx(stats.ttest_rel(scores[first], scores[second]).pvalue, rel=1e-6)
    found = standings_of({name: float(own.mean()) for name, own in scores.items()}, tests)
    one_sided = {
        name: min(
            stats.ttest_rel(scores[other], own, alternative="greater").pvalue for other in scores if other != name
        )
        for name, own in scores.items()
    }
    assert set(best_of(found)) == {name for name, p in one_sided.items() if 2 * p >= 0.05}


def test_equal_systems_and_pairs_without_a_test_share_ranks() -> None:
    tests: dict[tuple[str, str], tuple[float, float | None]] = {("a", "b"): (0.0, None), ("a", "c"): (0.1, None)}
    found = standings_of({"a": 0.5, "b": 0.5, "c": 0.4}, tests | {("b", "c"): (0.1, 1e-9)})
    assert [(one.rank, one.ranks, one.is_among_best) for one in found] == [
        (1, (1, 3), True),
        (1, (1, 2), True),
        (3, (2, 3), False),
    ]


@given(st.lists(st.floats(0, 1), min_size=3, max_size=7), st.data())
def test_a_rank_lies_in_its_interval_and_the_highest_mean_may_be_the_best(
    means: list[float], data: st.DataObject
) -> None:
    named = {f"s{place}": mean for place, mean in enumerate(means)}
    tests = {
        (first, second): (named[first] - named[second], data.draw(st.none() | st.floats(0, 1)))
        for first, second in combinations(named, 2)
    }
    found = standings_of(named, tests)
    assert found[0].is_among_best
    assert all(one.ranks[0] <= one.rank <= one.ranks[1] for one in found)
