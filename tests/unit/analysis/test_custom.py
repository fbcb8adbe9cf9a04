"""What Python alone can ask of results: gates given as data, and a statistic of one's own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.results import make_result, write_experiment

import unimoe
from unimoe.analysis.compare import compute_significance
from unimoe.analysis.gates.definitions import InterferenceGate, load_gates
from unimoe.core.errors import DataError, UnimoeError, UsageError
from unimoe.results.folder import Results

GATE = {
    "kind": "interference", "task": "reranking", "specialist": "rank_only_r8", "joint": "joint_r8",
    "datasets": ["apidocs"], "metric": "ndcg@10",
}  # fmt: skip
RNG = np.random.default_rng(0)


def results(paired: bool = False, **arms: np.ndarray) -> Results:
    """Results of arms with their scores, ``(runs, queries)``."""
    made = (make_result(arm, seed, s, paired_seeds=paired) for arm, rows in arms.items() for seed, s in enumerate(rows))
    return Results(Path("here"), made)


class TestJudge:
    def test_a_gate_is_the_same_as_data_as_an_object_and_from_a_file(self, tmp_path: Path) -> None:
        write_experiment(tmp_path, tir=0.2, queries=200)
        given, path = {"own": GATE | {"looks": [3]}}, tmp_path / "own.yaml"
        path.write_text(yaml.safe_dump({"registered": "2026-01-01", "gates": given}), encoding="utf-8")
        as_object = {"own": InterferenceGate.model_validate(given["own"])}
        forms: list[Any] = [given, as_object, path, str(path), load_gates(path)]
        found = [unimoe.judge(tmp_path, form)[0] for form in forms]
        assert {(one.name, one.label, one.look, one.found.value) for one in found} == {
            ("own", "PASS", 3, found[0].found.value)
        }
        assert [one.registered for one in found] == [False, False, True, True, True]
        assert unimoe.judge(unimoe.load_all_results(tmp_path), given)[0].label == "PASS"

    def test_without_gates_those_registered_judge_else_default_ones(self, tmp_path: Path) -> None:
        write_experiment(tmp_path)
        assert [one.name for one in unimoe.judge(tmp_path)] == ["reranking.joint_r8", "embedding.joint_r8"]
        text = yaml.safe_dump({"registered": "2026-01-01", "gates": {"own": GATE}})
        (tmp_path / "gates.yaml").write_text(text, encoding="utf-8")
        assert [(one.name, one.registered) for one in unimoe.judge(tmp_path)] == [("own", True)]

    @pytest.mark.parametrize(
        ("gates", "words"),
        [
            ({"own": GATE | {"pass": 1}}, "gates.own.pass: unknown key.*known here: .*pass_at"),
            (["own"], "gates: must be a section"),
            ({"own": GATE}, r"gate 'own': .*rank_only_r8"),
        ],
    )
    def test_a_gate_that_is_malformed_or_has_no_results_is_named(self, gates: Any, words: str) -> None:
        with pytest.raises(UnimoeError, match=words) as error:
            unimoe.judge(results(joint_r8=RNG.random((3, 9))), gates)
        assert "\n" not in str(error.value)


class TestStatistic:
    def test_the_mean_has_the_interval_of_the_bootstrap_beside_the_test(self) -> None:
        first, second = np.random.default_rng(0).random((2, 1, 300))
        given = results(a=first, b=second)
        found = unimoe.compare_statistic(given, np.mean, "a", "b", iterations=4000)
        (checked,) = compute_significance(given, iterations=4000)
        sign = 1 if checked.system == "a" else -1
        assert found.difference == pytest.approx(sign * checked.delta)
        assert checked.check_interval is not None
        assert sorted(sign * end for end in checked.check_interval) == pytest.approx([found.low, found.high], abs=3e-3)

    def test_runs_vary_beside_queries_and_in_pairs_where_they_pair(self) -> None:
        """Scores of a run are those of another plus a constant: queries alone say nothing of that."""
        queries, runs = RNG.random(400) / 2, np.array([[0.0], [0.2], [0.4]])
        reversed_runs = results(a=queries + runs, b=(queries + runs[::-1]) / 2)
        several = unimoe.compare_statistic(reversed_runs, np.mean, "a", "b", iterations=500)
        one_run = results(a=(queries + runs)[1:2], b=queries[None] / 2 + 0.1)
        single = unimoe.compare_statistic(one_run, np.mean, "a", "b")
        assert several.high - several.low > 5 * (single.high - single.low)
        paired = results(True, a=queries + runs + 0.1, b=queries + runs)
        found = unimoe.compare_statistic(paired, np.mean, "a", "b", iterations=500)
        assert (found.low, found.high) == pytest.approx((0.1, 0.1))

    def test_one_of_several_datasets_is_named(self) -> None:
        made = [make_result(arm, None, RNG.random(20), dataset=name) for arm in "ab" for name in ("one", "two")]
        given = Results(Path("here"), made)
        for dataset, key in (("two", "reranking/two"), ("reranking/one", "reranking/one")):
            assert unimoe.compare_statistic(given, np.median, "a", "b", dataset=dataset, iterations=9).key == key
        for missing, number in ((None, 2), ("three", 0)):
            with pytest.raises(UsageError, match=rf"names {number} of those with .*: reranking/one, reranking/two"):
                unimoe.compare_statistic(given, np.median, "a", "b", dataset=missing)

    @pytest.mark.parametrize(
        ("change", "error", "words"),
        [
            ({"function": lambda scores: scores}, UsageError, "the statistic returned ndarray; return one number"),
            ({"function": lambda scores: None}, UsageError, "returned NoneType"),
            ({"function": lambda scores: math.nan}, DataError, "the statistic is nan for some draw of 20 queries"),
            ({"function": "mean"}, UsageError, "the statistic is a str; give a function"),
            ({"system": "alpa"}, UsageError, r"unknown arm 'alpa' \(did you mean 'alpha'\?\)"),
            ({"iterations": 0}, UsageError, "iterations 0"),
            ({"results": {}}, UsageError, "the results are a dict"),
        ],
    )
    def test_what_cannot_be_compared_is_refused(
        self, change: dict[str, Any], error: type[Exception], words: str
    ) -> None:
        given = results(alpha=RNG.random((1, 20)), beta=RNG.random((1, 20)))
        asked: dict[str, Any] = {"results": given, "function": np.mean, "system": "alpha", "baseline": "beta"}
        with pytest.raises(error, match=words):
            unimoe.compare_statistic(**asked | change)
