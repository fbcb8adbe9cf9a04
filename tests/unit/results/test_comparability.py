"""Arms measured differently are not compared, unless the difference is allowed by name; then everything says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.results import make_result, without_queries

from unimoe.analysis.analysis import Analysis
from unimoe.core.errors import DataError
from unimoe.results import EvalResult
from unimoe.results.comparability import ALLOWANCES
from unimoe.results.folder import Results

SCORES = [0.2, 0.4, 0.6]
KEY = "reranking/apidocs"
Change = dict[str, Any]


def of(*items: EvalResult, allow: tuple[str, ...] = ()) -> Results:
    """Results that may be compared; each of them must be one that can be written and read still."""
    found = Results(Path("outputs"), items, allow=allow)
    for result in found.everything:
        assert EvalResult.model_validate(result.model_dump()) == result
    return found


def refusal(*items: EvalResult, allow: tuple[str, ...] = ()) -> str:
    with pytest.raises(DataError) as caught:
        of(*items, allow=allow)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestAllowedByName:
    @pytest.mark.parametrize(
        ("allow", "change", "words"),
        [
            ("depth", {"identity": {"depth": 100}}, "depth differs: 10 in joint_r8 seed 0; 100 in rank_only_r8 seed 0"),
            ("max_queries", {"identity": {"max_queries": 3}}, "max_queries differs: None in joint_r8 seed 0; 3 in"),
            ("candidates", {"identity": {"first_stage": "x"}}, "first_stage differs"),
            ("candidates", {"identity": {"pool": 600}}, "pool differs"),
            ("candidates", {"hashes": {"candidates": "other"}}, "candidates hash differs"),
            ("collections", {"identity": {"split": "dev"}}, "split differs"),
            ("collections", {"hashes": {"collection": "other"}}, "collection hash differs"),
        ],
    )
    def test_a_difference_becomes_a_caveat(self, allow: str, change: Change, words: str) -> None:
        items = make_result("joint_r8", 0, SCORES), make_result("rank_only_r8", 0, SCORES, **change)
        message = refusal(*items, allow=tuple(ALLOWANCES.keys() - {allow}))
        assert message.endswith(f"or compare all the same with --allow {allow}")
        (caveat,) = of(*items, allow=(allow,)).caveats
        assert words in caveat
        assert caveat.endswith(f"(allowed by name: {allow})")

    @pytest.mark.parametrize("part", ["experiment", "base_model", "prompt", "checkpoint"])
    def test_what_makes_another_experiment_is_never_allowed(self, part: str) -> None:
        other = make_result("rank_only_r8", 0, SCORES, identity={part: "best"})
        message = refusal(make_result("joint_r8", 0, SCORES), other, allow=tuple(ALLOWANCES))
        assert f"{part.replace('_', ' ')} differs" in message
        assert "--allow" not in message

    @pytest.mark.parametrize("part", ["checkpoint", "run"])
    def test_one_content_under_two_seeds_is_no_seed_more(self, part: str) -> None:
        """It was taken without a word, while compare refused it."""
        held = enumerate(("aaaa", "bbbb", "aaaa"))
        items = [make_result("joint_r8", seed, SCORES, hashes={part: content}) for seed, content in held]
        found = f"{KEY}: joint_r8 seed 0, joint_r8 seed 2 are one {part}, content hash aaaa"
        remedy = "keep one of them, or train the other seeds, or compare all the same with --allow duplicates"
        assert refusal(*items) == f"{found}; {remedy}"
        assert of(*items, allow=("duplicates",)).caveats == (f"{found} (allowed by name: duplicates)",)


class TestOtherQueries:
    def test_are_cut_to_those_that_all_share_and_the_rest_is_listed(self) -> None:
        items = (
            make_result("joint_r8", 0, {"a": 0.1, "b": 0.2, "c": 0.6}),
            make_result("rank_only_r8", 0, {"d": 0.9, "c": 0.8, "b": 0.4}),
        )
        assert "--allow queries" in refusal(*items)
        results = of(*items, allow=("queries",))
        assert results.caveats == (
            f"{KEY}: compared on the 2 queries that all arms share (allowed by name: queries); 2 left out: a, d",
        )
        assert results["joint_r8"][0][KEY] == {"ndcg@10": pytest.approx(0.4), "mrr@10": pytest.approx(0.2)}
        assert results.scores("rank_only_r8", KEY, [0]).tolist() == [[0.4, 0.8]]
        assert results.scores("rank_only_r8", KEY, [0], "mrr@10").tolist() == [[0.2, 0.4]]
        (item,) = Analysis(results).interference
        assert item.found.value == pytest.approx((0.6 - 0.4) / 0.6)
        assert item.found.queries == 2

    def test_nothing_shared_is_refused_even_when_allowed(self) -> None:
        items = make_result("joint_r8", 0, {"a": 0.1}), make_result("rank_only_r8", 0, {"b": 0.2})
        assert "no query that every result was judged on" in refusal(*items, allow=("queries",))


class TestOtherMetrics:
    def test_are_compared_on_one_that_all_hold(self) -> None:
        other = make_result("rank_only_r8", 0, SCORES)
        swapped = {"main_metric": "mrr@10", "per_query": other.metric("mrr@10"),
                   "per_query_metrics": {"ndcg@10": list(other.per_query.values())}}  # fmt: skip
        items = make_result("joint_r8", 0, SCORES), other.model_copy(update=swapped)
        assert "main metric differs: 'ndcg@10' in joint_r8 seed 0; 'mrr@10' in rank_only_r8" in refusal(*items)
        results = of(*items, allow=("metrics",))
        assert {r.main_metric for r in results.results} == {"ndcg@10"}
        assert results.scores("rank_only_r8", KEY, [0]).tolist() == [SCORES]
        assert "main metric differs" in results.caveats[0]

    def test_none_that_all_hold_is_refused_even_when_allowed(self) -> None:
        items = make_result("joint_r8", 0, SCORES), make_result("rank_only_r8", 0, SCORES, metric="map")
        message = refusal(*items, allow=("metrics",))
        assert "no main metric (ndcg@10, map) that every result holds by query" in message


class TestTasksOfMteb:
    """Each task has an instruction of its own; on one task all arms have the same."""

    def test_prompts_may_differ_between_tasks(self) -> None:
        given: Change = {"task": "embedding", "dataset": "SciFact", "task_type": "Retrieval"}
        sts, claims = {"prompt": "sts@1"}, {"prompt": "claims@2"}
        made = [(without_queries(arm, 0, 0.7, identity=sts), make_result(arm, 0, SCORES, identity=claims, **given))
                for arm in ("emb_only_r8", "joint_r8")]  # fmt: skip
        assert len(of(*made[0], *made[1]).everything) == 4

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"identity": {"prompt": "other@1"}}, "embedding/STSBenchmark: prompt differs"),
            ({"task_type": "Summarization"}, "embedding/STSBenchmark: task type differs"),
            ({"metric": "pearson"}, "embedding/STSBenchmark: main metric differs"),
        ],
    )
    def test_arms_on_one_task_are_measured_alike(self, change: Change, words: str) -> None:
        items = without_queries("joint_r8", 0, 0.7), without_queries("emb_only_r8", 0, 0.7, **change)
        assert words in refusal(*items)

    def test_other_main_metrics_can_be_allowed_where_all_hold_one(self) -> None:
        both = without_queries("emb_only_r8", 0, 0.6, metric="pearson")
        both = both.model_copy(update={"aggregate": {"pearson": 0.6, "cosine_spearman": 0.5}})
        results = of(without_queries("joint_r8", 0, 0.7), both, allow=("metrics",))
        assert {r.main_metric for r in results.everything} == {"cosine_spearman"}
        assert any("allowed by name: metrics" in caveat for caveat in results.caveats)
