"""Before and after: deltas by hand, intervals that hold, and what cannot be compared refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from support.gates import register
from support.results import make_result

from unimoe.analysis.before_after import (
    ArmDelta,
    before_after_table,
    compare_arms,
    print_before_after,
    refuse_unknown_arm,
)
from unimoe.analysis.gates.judging import judge
from unimoe.analysis.loading import Results
from unimoe.errors import DataError, UsageError
from unimoe.results import EvalResult, Task, by_query_id, write_result

RETRIEVAL: Task = "retrieval"


def measured(arm: str, scores: list[float], seed: int | None = None, dataset: str = "toy") -> EvalResult:
    identity = {"checkpoint": "none" if seed is None else "last"}
    result = make_result(arm, seed, scores, task=RETRIEVAL, dataset=dataset, identity=identity)
    recall = {query_id: min(1.0, 2 * score) for query_id, score in result.per_query.items()}
    mean = math.fsum(recall.values()) / len(recall)
    metrics = {
        "per_query_metrics": result.per_query_metrics | {"recall_cap@10": by_query_id(recall)},
        "aggregate": result.aggregate | {"recall_cap@10": mean},
    }
    return EvalResult.model_validate(result.model_dump() | metrics)


def both(before: list[float], after: list[float]) -> Results:
    return Results(Path("out"), [measured("bm25", before), measured("minilm", after)])


class TestNumbers:
    def test_by_hand(self) -> None:
        found = compare_arms(both([0.2, 0.4, 0.6, 0.0], [0.3, 0.4, 0.4, 0.4]), "bm25", "minilm", ["ndcg@10"])
        (delta,) = found
        assert (delta.key, delta.before, delta.after, delta.metric) == ("retrieval/toy", "bm25", "minilm", "ndcg@10")
        assert (delta.queries, delta.wins, delta.ties, delta.losses) == (4, 2, 1, 1)
        assert [delta.before_mean, delta.after_mean] == pytest.approx([0.3, 0.375])
        assert delta.delta == pytest.approx(0.075)
        assert delta.low < delta.delta < delta.high
        assert 0.0 < delta.p <= 1.0

    def test_with_many_queries_the_interval_is_students(self) -> None:
        rng = np.random.default_rng(0)
        before = rng.uniform(0.0, 0.6, 800)
        after = before + rng.normal(0.03, 0.1, 800)
        (delta,) = compare_arms(both(before.tolist(), after.tolist()), "bm25", "minilm", ["ndcg@10"])
        student = stats.ttest_rel(after, before).confidence_interval(0.95)
        assert delta.low == pytest.approx(student.low, abs=4e-4)
        assert delta.high == pytest.approx(student.high, abs=4e-4)
        assert delta.p < 0.001

    def test_skewed_differences_have_a_skewed_interval(self) -> None:
        after = [0.0] * 45 + [0.9] * 5  # the bootstrap-t reaches further to the long tail's side
        (delta,) = compare_arms(both([0.0] * 50, after), "bm25", "minilm", ["ndcg@10"])
        assert delta.high - delta.delta > 1.2 * (delta.delta - delta.low)

    def test_intervals_cover_the_truth(self) -> None:
        rng, covered = np.random.default_rng(1), 0
        for _ in range(200):
            before = rng.uniform(0.0, 1.0, 30)
            after = before + rng.exponential(0.1, 30) - 0.1  # skewed, of mean 0
            (delta,) = compare_arms(
                both(before.tolist(), after.tolist()), "bm25", "minilm", ["ndcg@10"], iterations=1000
            )
            covered += delta.low <= 0.0 <= delta.high
        assert 180 <= covered <= 199  # 190 expected, sd 3.1

    def test_no_difference_has_an_interval_of_no_width(self) -> None:
        (same,) = compare_arms(both([0.1, 0.5, 0.9], [0.1, 0.5, 0.9]), "bm25", "minilm", ["ndcg@10"])
        assert (same.delta, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)

    def test_one_query_bounds_nothing(self) -> None:
        (delta,) = compare_arms(both([0.1], [0.5]), "bm25", "minilm", ["ndcg@10"])
        assert (delta.low, delta.high, delta.p) == (-math.inf, math.inf, 1.0)

    def test_seeds_are_averaged_by_query_first(self) -> None:
        arms = [measured("trained", scores, seed) for seed, scores in enumerate([[0.2, 0.6], [0.4, 0.2]])]
        results = Results(Path("out"), [measured("before", [0.1, 0.3]), *arms])
        (delta,) = compare_arms(results, "before", "trained", ["ndcg@10"])
        assert delta.after_mean == pytest.approx(0.35)
        assert (delta.wins, delta.ties, delta.losses) == (2, 0, 0)  # .3 against .1, .4 against .3

    def test_metrics_by_default_are_all_that_both_hold_the_main_one_first(self) -> None:
        found = compare_arms(both([0.2, 0.4], [0.3, 0.1]), "bm25", "minilm")
        assert [delta.metric for delta in found] == ["ndcg@10", "mrr@10", "recall_cap@10"]

    def test_a_metric_alone_is_the_same_as_among_others(self) -> None:
        rng = np.random.default_rng(2)
        results = both(rng.uniform(0, 1, 40).tolist(), rng.uniform(0, 1, 40).tolist())
        together = compare_arms(results, "bm25", "minilm")[2]
        (alone,) = compare_arms(results, "bm25", "minilm", ["recall_cap@10"])
        assert (alone.metric, alone.p, alone.delta) == (together.metric, together.p, together.delta)
        assert (alone.low, alone.high) == pytest.approx((together.low, together.high), rel=1e-6)


class TestWhatIsCompared:
    RESULTS = Results(
        Path("out"),
        [
            *(measured("bm25", [0.2, 0.4], dataset=name) for name in ("one", "two")),
            measured("minilm", [0.3, 0.4], dataset="two"),
            measured("minilm", [0.3, 0.4], dataset="three"),
            measured("alone", [0.3, 0.4], dataset="four"),
        ],
    )

    def test_datasets_with_both_arms(self) -> None:
        found = compare_arms(self.RESULTS, "bm25", "minilm", ["ndcg@10"])
        assert [delta.key for delta in found] == ["retrieval/two"]

    def test_an_unknown_arm_names_the_closest(self) -> None:
        for before, after in (("mb25", "minilm"), ("minilm", "mb25")):
            with pytest.raises(UsageError, match=r"unknown arm 'mb25' \(did you mean 'bm25'\?\); there is alone, bm25"):
                compare_arms(self.RESULTS, before, after)

    @pytest.mark.parametrize(
        ("before", "after", "given", "error", "message"),
        [
            ("bm25", "bm25", {}, UsageError, "compared with itself"),
            ("bm25", "minilm", {"level": 1.0}, UsageError, "choose a value between 0 and 1"),
            ("bm25", "alone", {}, DataError, "both bm25 and alone; bm25 has retrieval/one, retrieval/two"),
            ("bm25", "minilm", {"keys": ["retrieval/one"]}, DataError, "no dataset with results of both"),
            ("bm25", "minilm", {"metrics": ["recall_cap@5"]}, DataError, "no per-query 'recall_cap@5'"),
        ],
    )
    def test_what_cannot_be_is_refused(
        self, before: str, after: str, given: dict[str, object], error: type[Exception], message: str
    ) -> None:
        with pytest.raises(error, match=message):
            compare_arms(self.RESULTS, before, after, **given)  # type: ignore[arg-type]


class TestTable:
    def test_points_signs_and_the_name_of_the_interval(self) -> None:
        results = both([0.2, 0.4, 0.6, 0.0], [0.3, 0.4, 0.4, 0.4])
        table = before_after_table(results, compare_arms(results, "bm25", "minilm", ["ndcg@10"]))
        (group,) = table.groups
        assert group.heading == "retrieval/toy: bm25 → minilm (4 queries)"
        assert [cell.text for cell in group.rows[0]][:4] == ["ndcg@10", "30.00", "37.50", "+7.50"]
        assert group.rows[0][-1].text == "2/1/1"
        assert "bootstrap-t" in table.notes[0]
        assert "±" not in table.to_markdown()

    def test_an_infinite_bound_can_be_printed(self) -> None:
        results = both([0.1], [0.5])
        assert "∞" in before_after_table(results, compare_arms(results, "bm25", "minilm")).to_markdown()

    def test_no_deltas_give_an_empty_table(self) -> None:
        nothing: tuple[ArmDelta, ...] = ()
        assert before_after_table(both([0.1], [0.5]), nothing).groups == ()


class TestFolder:
    def test_prints_what_was_measured_and_names_what_was_not(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_result(tmp_path, measured("bm25", [0.2, 0.4], dataset="one"))
        for dataset in ("one", "two"):
            write_result(tmp_path, measured("minilm", [0.3, 0.4], dataset=dataset))
        print_before_after(tmp_path, "bm25", ["minilm"], ["retrieval/one", "retrieval/two"])
        printed = capsys.readouterr()
        assert "retrieval/one: bm25 → minilm" in printed.out
        assert "retrieval/two" not in printed.out
        assert "retrieval/two: no result of bm25 to compare with" in printed.err
        print_before_after(tmp_path, "minilm", ["minilm"], ["retrieval/one"])
        print_before_after(tmp_path, "bm25", ["minilm"], [])
        assert capsys.readouterr().out == ""

    def test_an_arm_is_looked_for_before_any_work(self, tmp_path: Path) -> None:
        refuse_unknown_arm(tmp_path / "absent", "bm25", ["bm25"])
        with pytest.raises(UsageError, match=r"unknown arm 'bm52' \(did you mean 'bm25'\?\); there is bm25"):
            refuse_unknown_arm(tmp_path / "absent", "bm52", ["bm25"])
        write_result(tmp_path, measured("minilm-frozen", [0.2]))
        refuse_unknown_arm(tmp_path, "minilm-frozen", ["bm25"])
        with pytest.raises(UsageError, match=r"did you mean 'minilm-frozen'\?\); there is bm25, minilm-frozen"):
            refuse_unknown_arm(tmp_path, "minilm-frozn", ["bm25"])


def test_a_gate_judges_capped_recall(tmp_path: Path) -> None:
    """PASS where every query gains more than the margin, in the metric of the gate alone."""
    base = {"task": "retrieval", "datasets": ["toy"], "metric": "recall_cap@10"}
    gate = base | {"kind": "superiority", "system": "minilm", "baseline": "bm25", "margin": 0.1}
    rng = np.random.default_rng(4)
    before = rng.uniform(0.1, 0.2, 60)
    results = both(before.tolist(), (before + rng.uniform(0.08, 0.12, 60)).tolist())  # doubled in recall_cap@10
    judgment = judge(results, register(tmp_path, **gate), "it")
    assert judgment.label == "PASS"
    assert judgment.found.interval is not None
    assert judgment.found.interval.estimate == pytest.approx(
        compare_arms(results, "bm25", "minilm", ["recall_cap@10"])[0].delta
    )
