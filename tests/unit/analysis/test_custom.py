"""What Python alone can ask of results: gates given as data, a statistic of one's own, parity of two folders."""

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
from unimoe.core.errors import DataError, UsageError
from unimoe.results.folder import Results

GATE = {
    "kind": "interference", "task": "reranking", "specialist": "rank_only_r8", "joint": "joint_r8",
    "datasets": ["apidocs"], "metric": "ndcg@10",
}  # fmt: skip
RNG = np.random.default_rng(0)


def results(**arms: np.ndarray) -> Results:
    """Results of arms with their scores, ``(runs, queries)``."""
    return Results(
        Path("here"), [make_result(arm, seed, s) for arm, rows in arms.items() for seed, s in enumerate(rows)]
    )


class TestJudge:
    def test_a_gate_is_the_same_as_data_as_an_object_and_from_a_file(self, tmp_path: Path) -> None:
        write_experiment(tmp_path, tir=0.2, queries=200)
        (tmp_path / "own.yaml").write_text(
            yaml.safe_dump({"registered": "2026-01-01", "gates": {"own": GATE | {"looks": [3]}}}), encoding="utf-8"
        )
        given = {"own": GATE | {"looks": [3]}}
        forms: list[Any] = [
            given,
            {"own": InterferenceGate.model_validate(given["own"])},
            tmp_path / "own.yaml",
            str(tmp_path / "own.yaml"),
            load_gates(tmp_path / "own.yaml"),
        ]
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
            ({"own": GATE | {"looks": [5, 3]}}, r"gates.own.looks: \[5, 3\] does not ascend"),
            ({"own": 3}, "gates.own"),
            ({}, "gates: must not be empty"),
            (["own"], "gates: must be a section"),
        ],
    )
    def test_a_malformed_gate_is_named_by_its_key(self, gates: Any, words: str) -> None:
        with pytest.raises(UsageError, match=words) as error:
            unimoe.judge(results(a=RNG.random((3, 9))), gates)
        assert "\n" not in str(error.value)

    def test_a_gate_without_results_is_refused(self) -> None:
        with pytest.raises(DataError, match=r"gate 'own': .*rank_only_r8"):
            unimoe.judge(results(joint_r8=RNG.random((3, 9))), {"own": GATE})


class TestParity:
    def test_a_folder_without_results_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=f"{tmp_path}: no reranking results here"):
            unimoe.parity(tmp_path, tmp_path / "other")


class TestCompareStatistic:
    def test_the_mean_has_the_interval_of_the_bootstrap_of_means(self) -> None:
        first, second = np.random.default_rng(0).random((2, 1, 300))  # the same whatever runs before
        given = results(a=first, b=second)
        found = unimoe.compare_statistic(given, np.mean, "a", "b", iterations=4000)
        (checked,) = compute_significance(given, iterations=4000)
        assert checked.baseline == "b" or checked.system == "b"
        sign = 1 if checked.system == "a" else -1
        assert found.difference == pytest.approx(sign * checked.delta)
        assert checked.check_interval is not None
        assert sorted(sign * end for end in checked.check_interval) == pytest.approx([found.low, found.high], abs=3e-3)

    def test_runs_vary_beside_queries_and_in_pairs_where_they_pair(self) -> None:
        """Scores of a run are those of another plus a constant: queries alone say nothing of that."""
        queries, runs = RNG.random(400) / 2, np.array([[0.0], [0.2], [0.4]])
        several = unimoe.compare_statistic(
            results(a=queries + runs, b=(queries + runs[::-1]) / 2), np.mean, "a", "b", iterations=500
        )
        single = unimoe.compare_statistic(
            results(a=(queries + runs)[1:2], b=queries[None] / 2 + 0.1), np.mean, "a", "b"
        )
        assert several.high - several.low > 5 * (single.high - single.low)
        paired = Results(
            Path("here"),
            [
                make_result(arm, seed, queries + shift, paired_seeds=True)
                for arm, extra in (("a", 0.1), ("b", 0.0))
                for seed, shift in enumerate((runs + extra).ravel())
            ],
        )
        found = unimoe.compare_statistic(paired, np.mean, "a", "b", iterations=500)
        assert (found.low, found.high) == pytest.approx((0.1, 0.1))

    def test_one_of_several_datasets_is_named(self) -> None:
        given = Results(
            Path("here"),
            [make_result(arm, None, RNG.random(20), dataset=name) for arm in "ab" for name in ("one", "two")],
        )
        assert unimoe.compare_statistic(given, np.median, "a", "b", dataset="two", iterations=9).key == "reranking/two"
        key = "reranking/one"
        assert unimoe.compare_statistic(given, np.median, "a", "b", dataset=key, iterations=9).key == key
        for dataset, number in ((None, 2), ("three", 0)):
            with pytest.raises(UsageError, match=rf"names {number} of those with .*: reranking/one, reranking/two"):
                unimoe.compare_statistic(given, np.median, "a", "b", dataset=dataset)

    def test_takes_a_comparison_of_runs(self) -> None:
        qrels = {f"q{i}": {"d": 1} for i in range(30)}
        runs = {arm: {query: {"d": RNG.random(), "e": 0.5} for query in qrels} for arm in ("x", "y")}
        found = unimoe.compare_statistic(
            unimoe.compare(runs, qrels, metrics="mrr"), lambda scores: (scores < 0.6).mean(), "x", "y", iterations=99
        )
        assert (found.key, found.metric) == ("retrieval/dataset", "mrr")

    @pytest.mark.parametrize(
        ("function", "error", "words"),
        [
            (lambda scores: scores, UsageError, "the statistic returned ndarray; return one number"),
            (lambda scores: None, UsageError, "returned NoneType"),
            (lambda scores: 1j, UsageError, "returned complex"),
            (lambda scores: math.nan, DataError, "the statistic is nan for some draw of 20 queries"),
        ],
    )
    def test_what_is_no_number_is_refused(self, function: Any, error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words):
            unimoe.compare_statistic(results(a=RNG.random((1, 20)), b=RNG.random((1, 20))), function, "a", "b")

    def test_unknown_systems_and_no_iterations_are_refused(self) -> None:
        given = results(alpha=RNG.random((1, 20)), beta=RNG.random((1, 20)))
        with pytest.raises(UsageError, match=r"unknown arm 'alpa' \(did you mean 'alpha'\?\)"):
            unimoe.compare_statistic(given, np.mean, "alpa", "beta")
        for iterations in (0, 2.5):
            with pytest.raises(UsageError, match=f"iterations {iterations}"):
                unimoe.compare_statistic(given, np.mean, "alpha", "beta", iterations=iterations)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="the statistic is a str; give a function"):
            unimoe.compare_statistic(given, "mean", "alpha", "beta")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="the results are a dict"):
            unimoe.compare_statistic({}, np.mean, "alpha", "beta")  # type: ignore[arg-type]
