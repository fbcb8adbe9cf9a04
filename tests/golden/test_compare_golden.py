"""``unimoe compare`` against numbers worked by hand, ``evaluate-run`` and pytrec_eval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from support.results import make_result, simulate
from support.runs import one_relevant, random_qrels, random_run, run_with_ranks, write_arms
from support.scripts import call_script

import unimoe
from unimoe.analysis.crossed import crossed_interval
from unimoe.analysis.drilldown import drill_down
from unimoe.analysis.from_runs import ComparedRuns, compare_runs
from unimoe.analysis.interference import compute_interference_metrics
from unimoe.analysis.loading import Pair, Results
from unimoe.analysis.run_files import RunFiles
from unimoe.trec import Qrels, Run


def call(*arguments: str | Path) -> dict[str, Any]:
    done = call_script(str(Path(unimoe.__file__).with_name("__main__.py")), *arguments)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


class TestWorkedByHand:
    """Reciprocal ranks of one relevant document, two seeds.

    Specialist: q1 1 1, q2 1/2 1, q3 1 1, q4 1/4 1/4; means 1, 3/4, 1, 1/4, their sum 3.
    Joint: q1 1 1, q2 1/4 1/4, q3 1/2 1/2, q4 1/2 1/2; means 1, 1/4, 1/2, 1/2, their sum 9/4.
    """

    @pytest.fixture
    def compared(self, tmp_path: Path) -> ComparedRuns:
        def run(*ranks: int) -> Run:
            return run_with_ranks(dict(zip(("q1", "q2", "q3", "q4"), ranks, strict=True)))

        # The two joint runs differ behind the relevant document only, so that they are not the same run twice.
        joint = [run(1, 4, 2, 2), {q: s | {"d10": -1.0} for q, s in run(1, 4, 2, 2).items()}]
        arms = write_arms(tmp_path, one_relevant("q1", "q2", "q3", "q4"), [run(1, 2, 1, 4), run(1, 1, 1, 4)], joint)
        files = RunFiles(specialist=tuple(arms[0]), joint=tuple(arms[1]), qrels=arms[2], metric="recip_rank")
        return compare_runs(files, tmp_path)

    def test_tir(self, compared: ComparedRuns) -> None:
        (item,) = compute_interference_metrics(compared.results).measured
        assert item.metric == "mrr"
        assert item.specialist == pytest.approx((2.75 / 4, 3.25 / 4))
        assert item.joint == pytest.approx((2.25 / 4, 2.25 / 4))
        assert item.per_seed == pytest.approx((0.5 / 2.75, 1.0 / 3.25))
        assert item.crossed is not None
        assert item.crossed.estimate == pytest.approx(0.25)

    def test_shares_of_the_queries(self, compared: ComparedRuns) -> None:
        cases = drill_down(compared.results, compared.pair, "q")
        assert [case.query_id for case in cases] == ["q2", "q3", "q4"]
        assert [case.share for case in cases] == pytest.approx([0.5 / 3, 0.5 / 3, -0.25 / 3])
        assert [case.difference for case in cases] == pytest.approx([-0.5, -0.5, 0.25])
        assert cases[0].specialist_ranks == {"rel": (2, 1)}
        assert cases[0].joint_ranks == {"rel": (4, 4)}


def test_shares_sum_to_the_tir_of_the_means() -> None:
    specialist, joint = simulate(3, 500, 0.03, rng=np.random.default_rng(5))
    arms = {"rank_only_r8": specialist, "joint_r8": joint}
    items = [make_result(arm, seed, row) for arm, rows in arms.items() for seed, row in enumerate(rows)]
    pair = Pair("reranking", "rank_only_r8", "joint_r8")
    cases = drill_down(Results(Path("outputs"), items), pair, "apidocs", limit=500)
    crossed = crossed_interval(specialist, joint)
    assert crossed is not None
    assert sum(case.share for case in cases) == pytest.approx(crossed.estimate, abs=1e-9)
    assert sum(case.difference for case in cases) / 500 == pytest.approx(joint.mean() - specialist.mean(), abs=1e-9)


def means_by_pytrec_eval(qrels: Qrels, run: Run, measure: str) -> float:
    evaluated = pytrec_eval.RelevanceEvaluator(qrels, {measure}).evaluate(run)
    return float(np.mean([scores[measure] for scores in evaluated.values()]))


@pytest.mark.parametrize(
    ("measure", "house"), [("ndcg_cut_10", "ndcg@10"), ("map", "map"), ("recall_100", "recall@100")]
)
def test_generated_runs_score_as_in_evaluate_run_and_pytrec_eval(tmp_path: Path, measure: str, house: str) -> None:
    rng = np.random.default_rng(11)
    qrels = random_qrels(25, rng)
    arms = [[random_run(qrels, noise, rng, depth=120) for _ in range(2)] for noise in (1.0, 2.0)]
    a, b, q = write_arms(tmp_path, qrels, *arms)
    found = call("compare", "--specialist", *a, "--joint", *b, "--qrels", q, "--metric", measure, "--json")
    means = []
    for arm, paths, runs in (("specialist", a, arms[0]), ("joint", b, arms[1])):
        for seed, (path, run) in enumerate(zip(paths, runs, strict=True)):
            scores = found["runs"][arm][seed]["scores"]
            assert scores[house] == pytest.approx(means_by_pytrec_eval(qrels, run, measure), abs=1e-12)
            assert scores == call("evaluate-run", path, q, "--json")["aggregate"]
            means.append(scores[house])
    by_hand = [(means[0] - means[2]) / means[0], (means[1] - means[3]) / means[1]]
    assert found["tir"]["per_seed"] == pytest.approx(by_hand, abs=1e-12)
    assert found["tir"]["mean"] == pytest.approx(np.mean(by_hand), abs=1e-12)


def test_real_runs_score_what_is_known_of_them(unimoe_data: Path) -> None:
    pool = unimoe_data / "trec-dl19-passage-pool"
    runs = [pool / "runs" / f"{name}.trec" for name in ("splade_p_p_ensemble_distil", "d_bert_kd_tasb")]
    found = call("compare", "--specialist", *runs, "--joint", pool / "runs" / "bm25.trec",
                 "--qrels", pool / "qrels" / "full.tsv", "--json")  # fmt: skip
    joint = found["runs"]["joint"][0]["scores"]["ndcg@10"]
    assert joint == pytest.approx(0.5058, abs=5e-5)
    first = call("evaluate-run", runs[0], pool / "qrels" / "full.tsv", "--json")["aggregate"]["ndcg@10"]
    assert found["tir"]["per_seed"] == pytest.approx([(first - joint) / first], abs=1e-12)
    assert found["tir"]["left_out"] == ["specialist seed 2"]
    assert found["tir"]["interval"] is None
    assert found["queries"] == 43
    assert found["paired_tests"][0]["p"] < 0.001
