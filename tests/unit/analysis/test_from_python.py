"""Analysis from Python: comparisons, gates as data, statistics of one's own, parity, and parts computed once."""

from __future__ import annotations

import doctest
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau
from support.results import INTERFERENCE, gate_file, make_result, query_ids, write_experiment
from support.runs import random_qrels, random_run

import unimoe
from unimoe.analysis import compare as public
from unimoe.analysis.compare import compute_significance
from unimoe.analysis.comparisons import difference
from unimoe.analysis.gates.definitions import InterferenceGate, load_gates
from unimoe.analysis.parity import Parity, Scored, compare_dataset, parity
from unimoe.cli.parity import parity_json, parity_lines, verdict_line
from unimoe.core.errors import DataError, UnimoeError, UsageError
from unimoe.core.trec import Run, write_run
from unimoe.results import result_path, result_paths, run_path, write_result
from unimoe.results.folder import Results

QRELS = random_qrels(20, np.random.default_rng(1))


@pytest.fixture
def runs() -> dict[str, list[Run]]:
    rng, noises = np.random.default_rng(2), {"bm25": [2.0], "mono": [0.7] * 3, "duo": [0.5] * 2}
    return {name: [random_run(QRELS, noise, rng) for noise in of_system] for name, of_system in noises.items()}


def test_the_example_of_the_docstring_is_true() -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(public.compare, globs={"compare": public.compare})
    assert doctest.DocTestRunner().run(example) == doctest.TestResults(failed=0, attempted=len(example.examples))


def test_several_datasets_by_name(runs: dict[str, list[Run]]) -> None:
    half = {query_id: grades for query_id, grades in QRELS.items() if int(query_id[1:]) % 2}
    systems = {name: {"whole": of, "half": [{q: run[q] for q in half} for run in of]} for name, of in runs.items()}
    found = public.compare(systems, {"whole": QRELS, "half": half})
    assert found.results.dataset_keys == ("retrieval/half", "retrieval/whole")
    assert found.tests()["dataset"].tolist() == [*["half"] * 3, *["whole"] * 3, *["average of 2"] * 3]
    assert set(found.frame()["queries"]) == {10, 20}
    assert found.table("datasets").columns == ("System", "#", "half", "whole", "Average")
    assert len(found.table().groups) == 2
    with pytest.raises(UsageError, match="layout 'wide': unknown; use systems or datasets"):
        found.table("wide")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="bm25 has no run on half"):
        public.compare(systems | {"bm25": {"whole": runs["bm25"]}}, {"whole": QRELS, "half": half})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"baseline": "bm52"}, "unknown arm 'bm52' (did you mean 'bm25'?)"),
        ({"baseline": 3}, "unknown arm '3'"),
        ({"clusters": ["q1"]}, "clusters: list; give {query id: cluster id}"),
        ({"pairs": "some"}, "pairs 'some': unknown; use all or baseline"),
        ({"correction": "sidak"}, "correction 'sidak': unknown; use holm or bh or bonferroni or none"),
        ({"metrics": []}, "no metric to compare by"),
        ({"allow": ["queries", "zeros"]}, "give the one that suits the runs"),
        ({"chosen": {"mono": ["duo", "z"]}}, "no system 'z'"),
        ({"chosen": {"mono": ["mono"]}}, "mono from 1 settings; give the number tried"),
        ({"chosen": {"mono": 10**320}}, "2 to 1,000,000,000, or dev"),
        ({"chosen": {"mono": "test"}}, "write dev, a number of settings"),
        ({"chosen": ["mono"]}, "give {system: dev"),
        ({"depth": 2.5}, "--depth 2.5 is no whole number"),
        ({"systems": [{}, {}]}, "the systems are a list; give a dictionary"),
        ({"systems": {1: {"q1": {"d": 1.0}}, "b": []}}, "a system cannot be named 1, which is no text"),
        ({"systems": {"a": {"q1": {"d": 1.0}}, "b": []}}, "no run of b; give one or more"),
        ({"systems": {"a": {"q1": {"d": 1.0}}, "b": None}}, "b run 0: NoneType is no table; give a path, a frame"),
        ({"systems": {"a": {"q1": {"d": 1.0}}, "b": {7: {"d": 1.0}}}}, "query 7: the id 7 is no text; write '7'"),
    ],
)
def test_wrong_wishes(runs: dict[str, list[Run]], options: dict[str, Any], words: str) -> None:
    asked: dict[str, Any] = {"systems": runs, "qrels": QRELS} | options
    with pytest.raises(UnimoeError) as refusal:
        public.compare(**asked)
    assert words in str(refusal.value)


def test_one_allowance_needs_no_list(runs: dict[str, list[Run]]) -> None:
    (first, *others) = runs["mono"]
    short = runs | {"mono": [{q: of for q, of in first.items() if q != next(iter(QRELS))}, *others]}
    assert public.compare(short, QRELS, allow="zeros").results.caveats


RNG = np.random.default_rng(0)


def results(paired: bool = False, **arms: np.ndarray) -> Results:
    """Results of arms with their scores, ``(runs, queries)``."""
    made = (make_result(arm, seed, s, paired_seeds=paired) for arm, rows in arms.items() for seed, s in enumerate(rows))
    return Results(Path("here"), made)


class TestJudge:
    def test_a_gate_is_the_same_as_data_as_an_object_from_a_file_and_registered(self, tmp_path: Path) -> None:
        write_experiment(tmp_path, tir=0.2, queries=200)
        given, path = {"own": INTERFERENCE | {"looks": [3]}}, gate_file(tmp_path, own=INTERFERENCE | {"looks": [3]})
        as_object = {"own": InterferenceGate.model_validate(given["own"])}
        forms: list[Any] = [given, as_object, path, str(path), load_gates(path), None]
        found = [unimoe.judge(tmp_path, form)[0] for form in forms]
        assert {(one.name, one.label, one.look, one.found.value) for one in found} == {
            ("own", "PASS", 3, found[0].found.value)
        }
        assert [one.registered for one in found] == [False, False, True, True, True, True]
        assert unimoe.judge(unimoe.load_all_results(tmp_path), given)[0].verdict == "PASS"

    def test_gates_of_the_present_folder_are_not_its_own(self, tmp_path: Path, monkeypatch: Any, runs: Any) -> None:
        monkeypatch.chdir(gate_file(tmp_path, own=INTERFERENCE).parent)
        assert unimoe.judge(public.compare(runs, QRELS)) == ()

    def test_a_gate_that_is_malformed_or_has_no_results_is_named(self) -> None:
        gates: Any
        for gates, words in (
            ({"own": INTERFERENCE | {"pass": 1}}, "gates.own.pass: unknown key.*known here: .*pass_at"),
            (["own"], "gates: must be a section"),
            ({"own": INTERFERENCE}, r"gate 'own': .*rank_only_r8"),
        ):
            with pytest.raises(UnimoeError, match=words):
                unimoe.judge(results(joint_r8=RNG.random((3, 9))), gates)


class TestStatistic:
    @pytest.mark.parametrize("runs", [1, 3])
    @pytest.mark.parametrize("paired", [False, True])
    def test_the_mean_has_the_interval_of_the_test(self, runs: int, paired: bool) -> None:
        rng = np.random.default_rng(0)
        queries, of_runs = rng.random(300), rng.normal(0, 0.02, (2, runs, 1))
        first, second = 0.8 * queries + of_runs + rng.normal(0, 0.1, (2, runs, 300))
        given = results(paired, a=first, b=second)
        found = unimoe.compare_statistic(given, np.mean, "a", "b")
        (tested,) = compute_significance(given)
        sign = 1 if tested.system == "a" else -1
        assert found.difference == pytest.approx(sign * tested.delta)
        assert tested.interval is not None
        width = tested.interval[1] - tested.interval[0]
        ends = sorted(sign * end for end in tested.interval)
        assert [found.low, found.high] == pytest.approx(ends, abs=0.03 * width)

    def test_three_runs_that_differ_widen_a_percentile_as_much_as_a_mean(self) -> None:
        """The variance of three runs, with two degrees of freedom: no resample of them shows that."""
        rng = np.random.default_rng(1)
        missed = 0
        for _ in range(200):
            queries = rng.normal(0.5, 0.2, 100) + rng.normal(0, 0.05, (2, 100))
            of_runs = rng.normal(0, 0.03, (2, 3, 1))
            first, second = queries[:, None] + of_runs
            found = unimoe.compare_statistic(
                results(a=first, b=second), lambda s: np.percentile(s, 10), "a", "b", iterations=100
            )
            missed += not found.low <= 0 <= found.high
        assert missed <= 18  # 5 % are 10; 18 or fewer come in 99 % of samples

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

    def test_what_cannot_be_compared_is_refused(self) -> None:
        given = results(alpha=RNG.random((1, 20)), beta=RNG.random((1, 20)))
        asked: dict[str, Any] = {"results": given, "function": np.mean, "system": "alpha", "baseline": "beta"}
        change: dict[str, Any]
        for change, words in (
            ({"function": lambda scores: scores}, "the statistic returned ndarray; return one number"),
            ({"function": lambda scores: math.nan}, "the statistic is nan for some draw of 20 queries"),
            ({"function": lambda scores: 1 / 0}, r"the statistic raised ZeroDivisionError: .* \(test_from_python"),
            ({"function": "mean"}, "the statistic is a str; give a function"),
            ({"system": "alpa"}, r"unknown arm 'alpa' \(did you mean 'alpha'\?\)"),
            ({"iterations": 1}, "iterations 1"),
            ({"results": {}}, "the results are a dict"),
        ):
            with pytest.raises(UnimoeError, match=words):
                unimoe.compare_statistic(**asked | change)


KEY = "reranking/apidocs"
QUERIES = query_ids(12)
EQUAL = (np.linspace(0.1, 0.9, 12),) * 2


def scores(seed: int = 0) -> Run:
    """Twelve candidates of every query, no two with one score."""
    rng = np.random.default_rng(seed)
    return {query: {f"d{n:02d}": float(score) for n, score in enumerate(rng.normal(size=12))} for query in QUERIES}


def compared(first: Run, second: Run, measures: Any = EQUAL, collections: str = "cc") -> Parity:
    sides = (
        Scored(make_result(name, None, dict(zip(QUERIES, values, strict=True)), hashes={"collection": held}), run)
        for name, run, values, held in zip("ab", (first, second), measures, collections, strict=True)
    )
    return compare_dataset(KEY, *sides)


class TestNumbers:
    def test_taus_are_scipys_on_each_query(self) -> None:
        one, other = scores(0), scores(1)
        found = compared(one, other)
        taus = {q: kendalltau([*one[q].values()], [*other[q].values()]).statistic for q in QUERIES}
        assert found.kendall_mean == pytest.approx(np.mean([*taus.values()]))
        assert found.kendall_lowest is not None
        assert found.kendall_lowest[0] == pytest.approx(min(taus.values()))
        assert taus[found.kendall_lowest[1]] == min(taus.values())

    def test_what_orders_nothing_agrees_with_none_but_its_like_and_one_document_has_no_order(self) -> None:
        flat = {query: dict.fromkeys(own, 1.0) for query, own in scores().items()}
        assert compared(flat, flat).kendall_mean == 1.0
        assert compared(flat, scores()).kendall_mean == 0.0
        single = {query: {"d00": own["d00"]} for query, own in scores().items()}
        found = compared(single, single)
        assert (found.kendall_mean, found.kendall_lowest) == (None, None)
        assert not any("Kendall" in line for line in parity_lines(found))

    def test_the_measure_has_the_interval_of_the_analysis(self) -> None:
        values = np.random.default_rng(3).uniform(size=(2, 12))
        found = compared(scores(), scores(), values)
        expected, unfit = difference(values[1][None], values[0][None])
        assert (found.measure.value, found.measure.interval, found.unfit) == (expected.value, expected.interval, unfit)
        assert found.measure.value == pytest.approx(values[1].mean() - values[0].mean())
        low, high = expected.interval or (0, 0)
        assert f"[{low:+.4f}, {high:+.4f}]" in parity_lines(found)[-1]

    def test_another_scale_with_the_same_order_is_named(self) -> None:
        squashed = {q: {d: 1 / (1 + np.exp(-s)) for d, s in own.items()} for q, own in scores().items()}
        assert "as a margin and a probability are" in verdict_line([compared(scores(), squashed)], 1e-3, 0.0)
        assert "as a margin" not in verdict_line([compared(scores(), scores(1))], 1e-3, 0.0)

    def test_the_largest_difference_is_placed_and_within_a_tolerance_above_its_share(self) -> None:
        moved = scores()
        moved["q003"]["d05"] += 0.5
        found = compared(scores(), moved)
        every = [score for own in moved.values() for score in own.values()]
        share = 0.5 / (max(every) - min(every))
        assert [parity_json([found], factor * share, 1.0)["within"] for factor in (1.01, 0.99)] == [True, False]
        (one,) = parity_json([found], 0.6, 1.0)["datasets"]
        assert (one["largest_difference"], one["relative_difference"]) == pytest.approx((0.5, share))
        assert (one["largest_at"], one["kendall_lowest_query"]) == ({"query": "q003", "document": "d05"}, "q003")
        assert one["systems"] == ["a (smollm2@0123456789abcdef)", "b (smollm2@0123456789abcdef)"]


def test_other_pairs_and_collections_are_refused() -> None:
    less = scores()
    del less["q005"]["d03"]
    with pytest.raises(DataError, match="query 'q005', document 'd03' was scored by a alone; evaluate both on the"):
        compared(scores(), less)
    with pytest.raises(DataError, match="document 'd03' was scored by b alone"):
        compared(less, scores())
    with pytest.raises(DataError, match="two collections of one name"):
        compared(scores(), scores(), collections="cd")
    with pytest.raises(DataError, match="the first system has reranking/a, the second reranking/b"):
        parity({"reranking/a": Path()}, {"reranking/b": Path()})


class TestPlaces:
    def write(self, output_dir: Path, arm: str, seed: int | None = None) -> Path:
        write_result(output_dir, make_result(arm, seed, dict.fromkeys(QUERIES, 0.5)))
        place = (output_dir, arm, seed, "reranking", "apidocs")
        write_run(run_path(*place), scores(), arm)
        return result_path(*place)

    def test_a_file_and_the_folders_above_it_are_the_same_system(self, tmp_path: Path) -> None:
        file = self.write(tmp_path, "mine")
        self.write(tmp_path, "bm25")
        for place in (file, file.parents[2], file.parents[3], tmp_path):
            assert result_paths(place) == {KEY: file}
        for places in ((file, tmp_path), (str(file.parents[2]), result_paths(file))):
            (found,) = parity(*places)
            assert (found.largest, found.relative, found.kendall_mean, found.top_changed) == (0.0, 0.0, 1.0, [])
        run_path(tmp_path, "mine", None, "reranking", "apidocs").unlink()
        with pytest.raises(DataError, match=r"apidocs\.trec is missing.*run `unimoe evaluate` again"):
            parity(file, file)
        with pytest.raises(DataError, match=r"nowhere: no reranking results here; name a result file"):
            parity(file, tmp_path / "nowhere")

    def test_several_systems_have_to_be_told(self, tmp_path: Path) -> None:
        for arm, seed in (("joint_r8", 0), ("joint_r8", 1), ("zero_shot", None)):
            self.write(tmp_path, arm, seed)
        with pytest.raises(UsageError, match=r"holds results of 3 systems; name one of .*seed_0, .*seed_1, "):
            result_paths(tmp_path)
        assert list(result_paths(tmp_path / "joint_r8" / "seed_1")) == [KEY]
