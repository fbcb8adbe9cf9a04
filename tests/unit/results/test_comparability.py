"""Arms measured differently are not compared, unless the difference is allowed by name; then everything says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.results import make_result, without_queries

from unimoe.analysis.analysis import Analysis
from unimoe.core.errors import DataError
from unimoe.results import EvalResult, write_result
from unimoe.results.folder import load_all_results

SCORES = [0.2, 0.4, 0.6]
KEY = "reranking/apidocs"


def refusal(folder: Path, *allow: str) -> str:
    with pytest.raises(DataError) as caught:
        load_all_results(folder, allow)
    message = str(caught.value)
    assert "\n" not in message
    return message


class TestAllowedByName:
    @pytest.mark.parametrize(
        ("allow", "change", "words"),
        [
            ("depth", {"identity": {"depth": 100}}, "depth differs: 10 in joint_r8 seed 0; 100 in rank_only_r8 seed 0"),
            (
                "max_queries",
                {"identity": {"max_queries": 3}},
                "max_queries differs: None in joint_r8 seed 0; 3 in rank_only_r8",
            ),
            ("candidates", {"identity": {"first_stage": "x"}}, "first_stage differs"),
            ("candidates", {"identity": {"pool": 600}}, "pool differs"),
            ("candidates", {"hashes": {"candidates": "other"}}, "candidates hash differs"),
            ("collections", {"identity": {"split": "dev"}}, "split differs"),
            ("collections", {"hashes": {"collection": "other"}}, "collection hash differs"),
        ],
    )
    def test_a_difference_becomes_a_caveat(
        self, tmp_path: Path, allow: str, change: dict[str, Any], words: str
    ) -> None:
        write_result(tmp_path, make_result("joint_r8", 0, SCORES))
        write_result(tmp_path, make_result("rank_only_r8", 0, SCORES, **change))
        message = refusal(tmp_path, *({"queries", "depth", "max_queries", "candidates", "collections"} - {allow}))
        assert message.endswith(f"or compare all the same with --allow {allow}")
        (caveat,) = load_all_results(tmp_path, [allow]).caveats
        assert load_all_results(tmp_path, allow).caveats == (caveat,)
        assert words in caveat
        assert caveat.endswith(f"(allowed by name: {allow})")

    @pytest.mark.parametrize("part", ["experiment", "base_model", "prompt", "checkpoint"])
    def test_what_makes_another_experiment_is_never_allowed(self, tmp_path: Path, part: str) -> None:
        write_result(tmp_path, make_result("joint_r8", 0, SCORES))
        write_result(tmp_path, make_result("rank_only_r8", 0, SCORES, identity={part: "best"}))
        message = refusal(tmp_path, "queries", "candidates", "metrics", "depth", "collections")
        assert f"{part.replace('_', ' ')} differs" in message
        assert "--allow" not in message


class TestDuplicates:
    """One checkpoint under three seeds is one seed; it was taken without a word, while compare refused it."""

    def write(self, folder: Path, *contents: str, part: str = "checkpoint") -> None:
        for seed, content in enumerate(contents):
            write_result(folder, make_result("joint_r8", seed, SCORES, hashes={part: content}))

    @pytest.mark.parametrize("part", ["checkpoint", "run"])
    def test_one_content_under_two_seeds_is_refused(self, tmp_path: Path, part: str) -> None:
        self.write(tmp_path, "aaaa", "bbbb", "aaaa", part=part)
        assert refusal(tmp_path) == (
            f"{KEY}: joint_r8 seed 0, joint_r8 seed 2 are one {part}, content hash aaaa; keep one of them, or train "
            "the other seeds, or compare all the same with --allow duplicates"
        )

    def test_it_can_be_allowed_and_is_then_a_caveat(self, tmp_path: Path) -> None:
        self.write(tmp_path, "aaaa", "aaaa")
        (caveat,) = load_all_results(tmp_path, ["duplicates"]).caveats
        assert caveat.endswith("are one checkpoint, content hash aaaa (allowed by name: duplicates)")


class TestOtherQueries:
    def test_are_cut_to_those_that_all_share_and_the_rest_is_listed(self, tmp_path: Path) -> None:
        write_result(tmp_path, make_result("joint_r8", 0, {"a": 0.1, "b": 0.2, "c": 0.6}))
        write_result(tmp_path, make_result("rank_only_r8", 0, {"d": 0.9, "c": 0.8, "b": 0.4}))
        assert "--allow queries" in refusal(tmp_path)
        results = load_all_results(tmp_path, ["queries"])
        assert results.caveats == (
            f"{KEY}: compared on the 2 queries that all arms share (allowed by name: queries); 2 left out: a, d",
        )
        assert results["joint_r8"][0][KEY] == {"ndcg@10": pytest.approx(0.4), "mrr@10": pytest.approx(0.2)}
        assert results.scores("rank_only_r8", KEY, [0]).tolist() == [[0.4, 0.8]]
        assert results.scores("rank_only_r8", KEY, [0], "mrr@10").tolist() == [[0.2, 0.4]]
        (item,) = Analysis(results).interference
        assert item.found.value == pytest.approx((0.6 - 0.4) / 0.6)
        assert item.found.queries == 2

    def test_what_is_cut_is_a_whole_result_still(self, tmp_path: Path) -> None:
        write_result(tmp_path, make_result("joint_r8", 0, SCORES))
        write_result(tmp_path, make_result("rank_only_r8", 0, SCORES[:2]))
        for result in load_all_results(tmp_path, ["queries"]).results:
            assert EvalResult.model_validate(result.model_dump()) == result

    def test_nothing_shared_is_refused_even_when_allowed(self, tmp_path: Path) -> None:
        write_result(tmp_path, make_result("joint_r8", 0, {"a": 0.1}))
        write_result(tmp_path, make_result("rank_only_r8", 0, {"b": 0.2}))
        assert "no query that every result was judged on" in refusal(tmp_path, "queries")


class TestOtherMetrics:
    def test_are_compared_on_one_that_all_hold(self, tmp_path: Path) -> None:
        write_result(tmp_path, make_result("joint_r8", 0, SCORES))
        other = make_result("rank_only_r8", 0, SCORES)
        swapped = {
            "main_metric": "mrr@10",
            "per_query": other.metric("mrr@10"),
            "per_query_metrics": {"ndcg@10": list(other.per_query.values())},
        }
        write_result(tmp_path, other.model_copy(update=swapped))
        assert "main metric differs: 'ndcg@10' in joint_r8 seed 0; 'mrr@10' in rank_only_r8" in refusal(tmp_path)
        results = load_all_results(tmp_path, ["metrics"])
        assert {r.main_metric for r in results.results} == {"ndcg@10"}
        assert results.scores("rank_only_r8", KEY, [0]).tolist() == [SCORES]
        assert "main metric differs" in results.caveats[0]
        for result in results.results:
            assert EvalResult.model_validate(result.model_dump()) == result

    def test_none_that_all_hold_is_refused_even_when_allowed(self, tmp_path: Path) -> None:
        write_result(tmp_path, make_result("joint_r8", 0, SCORES))
        write_result(tmp_path, make_result("rank_only_r8", 0, SCORES, metric="map"))
        message = refusal(tmp_path, "metrics")
        assert "no main metric (ndcg@10, map) that every result holds by query" in message


class TestTasksOfMteb:
    """Each task has an instruction of its own; on one task all arms have the same."""

    def test_prompts_may_differ_between_tasks(self, tmp_path: Path) -> None:
        for arm in ("emb_only_r8", "joint_r8"):
            write_result(tmp_path, without_queries(arm, 0, 0.7, identity={"prompt": "sts@1"}))
            given: dict[str, Any] = {"task": "embedding", "dataset": "SciFact", "task_type": "Retrieval"}
            write_result(tmp_path, make_result(arm, 0, SCORES, identity={"prompt": "claims@2"}, **given))
        assert len(load_all_results(tmp_path).everything) == 4

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"identity": {"prompt": "other@1"}}, "embedding/STSBenchmark: prompt differs"),
            ({"identity": {"split": "dev"}}, "embedding/STSBenchmark: split differs"),
            ({"identity": {"base_model": "qwen3@1"}}, "base model differs"),
            ({"identity": {"experiment": "other"}}, "experiment differs"),
            ({"hashes": {"collection": "bad"}}, "embedding/STSBenchmark: collection hash differs"),
            ({"task_type": "Summarization"}, "embedding/STSBenchmark: task type differs"),
            ({"metric": "pearson"}, "embedding/STSBenchmark: main metric differs"),
        ],
    )
    def test_arms_on_one_task_are_measured_alike(self, tmp_path: Path, change: dict[str, Any], words: str) -> None:
        write_result(tmp_path, without_queries("joint_r8", 0, 0.7))
        write_result(tmp_path, without_queries("emb_only_r8", 0, 0.7, **change))
        assert words in refusal(tmp_path)

    def test_other_main_metrics_can_be_allowed_where_all_hold_one(self, tmp_path: Path) -> None:
        write_result(tmp_path, without_queries("joint_r8", 0, 0.7))
        both = without_queries("emb_only_r8", 0, 0.6, metric="pearson")
        both = both.model_copy(update={"aggregate": {"pearson": 0.6, "cosine_spearman": 0.5}})
        write_result(tmp_path, both)
        results = load_all_results(tmp_path, ["metrics"])
        assert {r.main_metric for r in results.everything} == {"cosine_spearman"}
        assert any("allowed by name: metrics" in caveat for caveat in results.caveats)
