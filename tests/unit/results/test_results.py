"""Result files, their folder, and results of runs: read strictly, told apart, and compared only where alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.results import make_result, without_queries, write_experiment
from support.runs import one_relevant, run_with_ranks, write_arms
from support.scripts import read_plain, write_plain

from unimoe import results as stored
from unimoe.analysis.analysis import Analysis
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import read_json
from unimoe.core.trec import Qrels, Run
from unimoe.results.comparability import ALLOWANCES
from unimoe.results.folder import Results, load_all_results
from unimoe.results.runs.building import ScoredSystems, score_systems
from unimoe.results.runs.sources import RunSource, Scoring, judgments

RESULT: dict[str, Any] = make_result(
    "joint_r8",
    3,
    {"q1": 0.25, "q2": 0.75},
    dataset="scifact",
    training=stored.TrainingBudget(steps=10, ranking_examples=80, embedding_examples=320, tokens=40_000),
    caveats=["smoke run"],
).model_dump() | {
    "aggregate": {"ndcg@10": 0.5, "mrr@10": 0.75},
    "per_query_metrics": {"mrr@10": [0.5, 1.0]},
    "unjudged_queries": ["q9"],
    "first_stage": {"aggregate": {"ndcg@10": 0.25}, "delta": {"ndcg@10": 0.25}, "queries_without_candidates": ["q1"]},
}
IDENTITY: dict[str, Any] = RESULT["identity"]
WITHOUT_QUERIES: dict[str, Any] = {
    "task": "embedding", "dataset": "STSBenchmark", "task_type": "STS", "main_metric": "cosine_spearman",
    "aggregate": {"cosine_spearman": 0.5}, "per_query": {}, "per_query_metrics": {}, "first_stage": None,
}  # fmt: skip


def result_with(**changes: Any) -> stored.EvalResult:
    return stored.EvalResult.model_validate({**RESULT, **changes})


@pytest.mark.parametrize("changes", [{}, {"seed": None, "training": None}, WITHOUT_QUERIES])
def test_a_result_comes_back_as_it_was(tmp_path: Path, changes: dict[str, Any]) -> None:
    result = result_with(**changes)
    assert stored.read_result(stored.write_result(tmp_path, result)) == result


def test_single_queries_are_read_whatever_their_ids_and_layout(tmp_path: Path) -> None:
    ids = ("q1", 'a": {b', "{\\", "ü\u2028", "")
    queries = {name: stored.QueryDetail(text=f"text of {name}\n", relevant={}, ranks={}) for name in ids}
    path = stored.write_result(tmp_path, result_with(), stored.DrillDown(queries=queries))
    for _ in ("as written", "as other programs write it"):
        assert stored.read_query_details(path, queries) == queries
        assert list(stored.read_query_details(path, ["q1"])) == ["q1"]
        with pytest.raises(DataError, match=r"lacks query 'q9'"):
            stored.read_query_details(path, ["q1", "q9"])
        write_plain(stored.drilldown_path(path), read_plain(stored.drilldown_path(path)))


def test_a_result_without_a_sidecar_leaves_none_of_an_earlier_run(tmp_path: Path) -> None:
    stored.write_result(tmp_path, result_with(), stored.DrillDown(queries={}))
    path = stored.write_result(tmp_path, result_with())
    assert not stored.drilldown_path(path).exists()
    with pytest.raises(DataError, match=r"scifact\.queries\.json: no such file"):
        stored.read_drilldown(path)


def test_a_name_stays_within_its_folder() -> None:
    names = {"mteb:SciFact": "mteb-SciFact", "path:/data/my set": "path-data-my-set", "../../etc": "etc"}
    names |= {"..": "unnamed", "한국어": "한국어"}
    assert {name: stored.safe_name(name) for name in names} == names


def test_what_contradicts_itself_is_neither_made_nor_read(tmp_path: Path) -> None:
    path = stored.write_result(tmp_path, result_with())
    written = read_plain(path)
    changes: Any
    for changes, problem in (
        ({"aggregate": {"ndcg@10": 0.5000001, "mrr@10": 0.75}}, r"aggregate\.ndcg@10 is not the mean"),
        ({"aggregate": {"mrr@10": 0.75}}, "aggregate lacks the main metric 'ndcg@10'"),
        ({"per_query": {}}, "per_query is empty"),
        ({"per_query_metrics": {"mrr@10": [0.75]}}, r"per_query_metrics\.mrr@10 has 1 values for the 2 of per_query"),
        ({"task": "ranking"}, "'reranking', 'embedding', 'retrieval' or 'crossmodal'"),
        (WITHOUT_QUERIES | {"task_type": None}, "per_query is empty, but embedding of type None has queries"),
        (WITHOUT_QUERIES | {"task": "reranking"}, "per_query is empty, but reranking of type STS has queries"),
    ):
        with pytest.raises(ValueError, match=problem):
            result_with(**changes)
        write_plain(path, written | changes)
        with pytest.raises(DataError, match=problem):
            stored.read_result(path)


@pytest.mark.parametrize(("field", "other"), [("experiment", "other"), ("base_model", None), ("depth", 100)])
def test_another_identity_is_refused_and_the_difference_told(tmp_path: Path, field: str, other: object) -> None:
    path = stored.write_result(tmp_path, result_with())
    before = path.read_bytes()
    with pytest.raises(DataError) as caught:
        stored.write_result(tmp_path, result_with(identity={**IDENTITY, field: other}))
    difference = f"({field} {IDENTITY[field]!r} there, {other!r} here)"
    assert str(caught.value) == f"{path} holds another evaluation {difference}; choose another --output-dir"
    assert path.read_bytes() == before


def test_datasets_whose_file_names_meet_are_told_apart(tmp_path: Path) -> None:
    stored.write_result(tmp_path, result_with(dataset="path:a/b"))
    with pytest.raises(DataError, match="dataset 'path:a/b' there, 'path:a-b' here"):
        stored.write_result(tmp_path, result_with(dataset="path:a-b"))


def test_a_folder_gives_typed_access_to_what_lies_behind(tmp_path: Path) -> None:
    write_experiment(tmp_path, seeds=(4, 2), queries=5)
    stored.write_result(tmp_path, without_queries("joint_r8", 2, 0.7))
    results, key = load_all_results(tmp_path), "embedding/apidocs"
    result = results.result("joint_r8", 2, key)
    assert result is not None
    assert results.scores("joint_r8", key, [2]).tolist() == [list(result.per_query.values())]
    assert results.seeds("joint_r8", key) == (2, 4)
    assert results.dataset_keys == ("reranking/apidocs", key)
    assert results.keys_without_queries == ("embedding/STSBenchmark",)
    assert results.result("joint_r8", 9, key) is None
    assert [record["step"] for record in results.logs["joint_r8", 4]][:3] == [1, 2, 3]
    with pytest.raises(DataError, match=r"no embedding/apidocs result of joint_r8, seed_9"):
        results.scores("joint_r8", key, [9])
    with pytest.raises(DataError, match="embedding/STSBenchmark has no queries"):
        results.scores("joint_r8", "embedding/STSBenchmark", [2])


def test_scores_are_in_the_order_of_query_ids_whatever_that_of_the_file(tmp_path: Path) -> None:
    path = stored.write_result(tmp_path, make_result("joint_r8", 0, {"b": 0.2, "a": 0.4, "c": 0.6}))
    assert list(read_json(path, dict[str, Any])["per_query"]) == ["b", "a", "c"]
    results = load_all_results(tmp_path)
    assert results.scores("joint_r8", "reranking/apidocs", [0]).tolist() == [[0.4, 0.2, 0.6]]
    assert results.scores("joint_r8", "reranking/apidocs", [0], "mrr@10").tolist() == [[0.2, 0.1, 0.3]]


def test_a_frame_has_a_row_for_each_arm_seed_dataset_and_query() -> None:
    mteb = without_queries("joint_r8", 0, 0.5)
    made = [make_result("joint_r8", seed, {"b": 0.2, "a": 0.4 + seed / 10}) for seed in (0, 1)]
    results = Results(Path("out"), [*made, make_result("bm25", None, {"a": 0.6, "b": 0.8}), mteb])
    frame = results.frame()
    assert frame.to_csv(index=False).split() == [
        "system,seed,task,dataset,metric,query,score",
        *("bm25,,reranking,apidocs,ndcg@10,a,0.6", "bm25,,reranking,apidocs,ndcg@10,b,0.8"),
        *("joint_r8,0,reranking,apidocs,ndcg@10,a,0.4", "joint_r8,0,reranking,apidocs,ndcg@10,b,0.2"),
        *("joint_r8,1,reranking,apidocs,ndcg@10,a,0.5", "joint_r8,1,reranking,apidocs,ndcg@10,b,0.2"),
    ]
    assert (str(frame["seed"].dtype), str(frame["score"].dtype)) == ("Int64", "float64")
    with pytest.raises(DataError, match="out: no result holds 'map' by query; evaluate again with it"):
        results.frame(["ndcg@10", "map"])
    with pytest.raises(UsageError, match="unknown metric 'ndgc@10'"):
        results.frame("ndgc@10")
    assert Results(Path("out"), [mteb]).frame().empty


def test_an_unreadable_folder_does_not_count_as_an_absent_arm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_experiment(tmp_path)
    closed, listing = tmp_path / "joint_r8/seed_1/results", Path.iterdir

    def iterdir(folder: Path) -> Iterator[Path]:
        if folder == closed:
            raise PermissionError(13, "Permission denied")
        return listing(folder)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    with pytest.raises(DataError, match=r"seed_1/results: cannot be read \(Permission denied\)"):
        load_all_results(tmp_path)


def test_repeated_steps_and_a_torn_last_line_of_a_log_do_not_count(tmp_path: Path) -> None:
    stored.write_result(tmp_path, make_result("joint_r8", 0, [0.5]))
    log = tmp_path / "joint_r8/seed_0/logs/train.jsonl"
    log.parent.mkdir()
    log.write_text('{"step": 1, "loss": 3}\n{"step": 2, "loss": 2}\n{"step": 2, "loss": 1}\n{"step": 3, "lo')
    assert load_all_results(tmp_path).logs["joint_r8", 0] == ({"step": 1, "loss": 3.0}, {"step": 2, "loss": 1.0})


SCORES = [0.2, 0.4, 0.6]
KEY = "reranking/apidocs"
Change = dict[str, Any]


def of(*items: stored.EvalResult, allow: tuple[str, ...] = ()) -> Results:
    """Results that may be compared; each of them must be one that can be written and read still."""
    found = Results(Path("outputs"), items, allow=allow)
    for result in found.everything:
        assert stored.EvalResult.model_validate(result.model_dump()) == result
    return found


def refusal(*items: stored.EvalResult, allow: tuple[str, ...] = ()) -> str:
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
        held = enumerate(("aaaa", "bbbb", "aaaa"))
        items = [make_result("joint_r8", seed, SCORES, hashes={part: content}) for seed, content in held]
        found = f"{KEY}: joint_r8 seed 0, joint_r8 seed 2 are one {part}, content hash aaaa"
        assert refusal(*items).startswith(f"{found}; keep one of them, or train the other seeds, or compare all the")
        assert of(*items, allow=("duplicates",)).caveats == (f"{found} (allowed by name: duplicates)",)


def test_answers_that_could_not_be_read_are_a_caveat_of_every_table() -> None:
    for unread, answers, said in ((4, 4, True), (2, 10, True), (1, 10, False), (0, 0, False)):
        result = make_result("lists", 0, {"q1": 0.5})
        usage = {"answers": float(answers), "unparsable answers": float(unread)}
        found = of(result.model_copy(update={"provenance": result.provenance.model_copy(update={"usage": usage})}))
        line = f"lists seed 0: unparsable answers {unread} of {answers}: they leave the order as it was"
        assert any(line in caveat for caveat in found.caveats) == said


def test_other_queries_are_cut_to_those_that_all_share_and_the_rest_is_listed() -> None:
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


def test_other_metrics_are_compared_on_one_that_all_hold() -> None:
    other = make_result("rank_only_r8", 0, SCORES)
    swapped = {"main_metric": "mrr@10", "per_query": other.metric("mrr@10"),
               "per_query_metrics": {"ndcg@10": list(other.per_query.values())}}  # fmt: skip
    items = make_result("joint_r8", 0, SCORES), other.model_copy(update=swapped)
    assert "main metric differs: 'ndcg@10' in joint_r8 seed 0; 'mrr@10' in rank_only_r8" in refusal(*items)
    results = of(*items, allow=("metrics",))
    assert {r.main_metric for r in results.results} == {"ndcg@10"}
    assert results.scores("rank_only_r8", KEY, [0]).tolist() == [SCORES]
    assert "main metric differs" in results.caveats[0]


def test_without_a_query_or_a_metric_in_common_even_an_allowance_is_refused() -> None:
    items = make_result("joint_r8", 0, {"a": 0.1}), make_result("rank_only_r8", 0, {"b": 0.2})
    assert "no query that every result was judged on" in refusal(*items, allow=("queries",))
    items = make_result("joint_r8", 0, SCORES), make_result("rank_only_r8", 0, SCORES, metric="map")
    assert "no main metric (ndcg@10, map) that every result holds by query" in refusal(*items, allow=("metrics",))


def test_prompts_may_differ_between_tasks_of_mteb() -> None:
    """Each task has an instruction of its own; on one task all arms have the same."""
    sts = [without_queries(arm, 0, 0.7, identity={"prompt": "sts@1"}) for arm in ("emb_only_r8", "joint_r8")]
    given: Change = {"task": "embedding", "dataset": "SciFact", "task_type": "Retrieval"}
    claims = [make_result(one.config_name, 0, SCORES, identity={"prompt": "claims@2"}, **given) for one in sts]
    assert len(of(*sts, *claims).everything) == 4


def test_arms_on_one_task_of_mteb_are_measured_alike() -> None:
    change: Change
    for change, words in (
        ({"identity": {"prompt": "other@1"}}, "embedding/STSBenchmark: prompt differs"),
        ({"task_type": "Summarization"}, "embedding/STSBenchmark: task type differs"),
        ({"metric": "pearson"}, "embedding/STSBenchmark: main metric differs"),
    ):
        items = without_queries("joint_r8", 0, 0.7), without_queries("emb_only_r8", 0, 0.7, **change)
        assert words in refusal(*items)


def test_other_main_metrics_of_mteb_can_be_allowed_where_all_hold_one() -> None:
    both = without_queries("emb_only_r8", 0, 0.6, metric="pearson")
    both = both.model_copy(update={"aggregate": {"pearson": 0.6, "cosine_spearman": 0.5}})
    results = of(without_queries("joint_r8", 0, 0.7), both, allow=("metrics",))
    assert {r.main_metric for r in results.everything} == {"cosine_spearman"}
    assert any("allowed by name: metrics" in caveat for caveat in results.caveats)


QUERIES = ("q1", "q2", "q3")
QRELS: Qrels = one_relevant(*QUERIES)


def ranks(*places: int | None, depth: int = 10) -> Run:
    return run_with_ranks(dict(zip(QUERIES, places, strict=True)), depth)


def scored(
    folder: Path, specialist: list[Run], joint: list[Run], metric: str = "ndcg@10", qrels: Qrels = QRELS, **options: Any
) -> ScoredSystems:
    a, b, q = write_arms(folder, qrels, specialist, joint)
    judged = replace(judgments(q), texts={"q1": "what?", "q3": "why?"})
    sources = [
        RunSource(arm, judged, seed, str(path), path)
        for arm, paths in (("specialist", a), ("joint", b))
        for seed, path in enumerate(paths)
    ]
    return score_systems(sources, Scoring((metric,), ("mrr@10", "map", "recall@100"), **options), "test")


@pytest.mark.parametrize("paired", [True, False])
def test_seeds_count_from_0_and_say_whether_they_pair(tmp_path: Path, paired: bool) -> None:
    found = scored(tmp_path, [ranks(1, 1, 1), ranks(1, 2, 1)], [ranks(2, 2, 2), ranks(3, 2, 2)], paired=paired)
    assert found.results.seeds("specialist", "retrieval/q") == found.results.seeds("joint", "retrieval/q") == (0, 1)
    assert [Path(run.source.name).stem for run in found.runs] == ["a1", "a2", "b1", "b2"]
    assert found.results.seeds_pair(("specialist", "joint"), ["retrieval/q"]) is paired


WITHOUT_Q3 = {query_id: scores for query_id, scores in ranks(2, 2, 2).items() if query_id != "q3"}


class TestRefused:
    def test_missing_queries_unless_they_are_left_out_of_every_run(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"b1\.trec lacks 1 \(q3\); .*--allow queries .* the 2 that all runs have"):
            scored(tmp_path, [ranks(1, 1, 1)], [WITHOUT_Q3])
        found = scored(tmp_path, [ranks(1, 2, 5)], [WITHOUT_Q3], allow=("queries",), metric="recip_rank")
        assert found.results["specialist"][0]["retrieval/q"]["mrr"] == pytest.approx(0.75)
        assert found.results.caveats[0].startswith("compared on the 2 of 3 judged queries")
        assert "b1.trec lacks 1 (q3)" in found.results.caveats[0]
        first, last = ({q: s for q, s in ranks(1, 1, 1).items() if q in names} for names in (("q1",), ("q2", "q3")))
        with pytest.raises(DataError, match="no judged query is in every run"):
            scored(tmp_path, [first], [last], allow=("queries",))

    def test_other_depths_where_the_metric_looks_deeper(self, tmp_path: Path) -> None:
        deep, five, ten = [ranks(1, 1, 1, depth=20)], [ranks(2, 2, 2, depth=5)], [ranks(2, 2, 2, depth=10)]
        with pytest.raises(DataError, match=r"b1\.trec ends at depth 5, .*a1\.trec at 20, and map looks.*--depth 5"):
            scored(tmp_path, deep, five, metric="map")
        allowed = scored(tmp_path, deep, five, metric="ndcg@10", allow=("depth",))
        assert allowed.results.caveats[0].endswith("(--allow depth)")
        found = scored(tmp_path, deep, ten, metric="ndcg_cut_10")
        assert found.results.caveats == ()
        assert set(found.results["joint"][0]["retrieval/q"]) == {"ndcg@10", "mrr@10"}
        assert "q: map, recall@100 not shown: the runs end at different depths" in found.warnings

    def test_a_decision_by_a_run_that_scores_0_on_every_query(self, tmp_path: Path) -> None:
        found = scored(tmp_path, [ranks(1, 1, 1)], [ranks(None, None, None)]).results
        assert "b1.trec: check document ids" in found.caveats[0]

    def test_a_run_whose_scores_order_nothing(self, tmp_path: Path) -> None:
        flat = {query_id: dict.fromkeys(scores, 1.0) for query_id, scores in ranks(1, 1, 1).items()}
        with pytest.raises(DataError, match=r"a1\.trec: all documents of a query have one score"):
            scored(tmp_path, [flat], [ranks(2, 2, 2)])


def test_what_should_be_known_before_the_numbers_are_believed_is_a_warning(tmp_path: Path) -> None:
    tied = ranks(1, 1, 1, depth=5) | {"q2": dict.fromkeys(("rel", "d1"), 0.5), "q9": {"d1": 1.0}}
    found = scored(tmp_path, [tied], [ranks(2, 2, 2, depth=5)], qrels=QRELS | {"q1": {"rel": 2}})
    said = "\n".join(found.warnings)
    for words in (
        "a1.trec: queries without judgments, left out: 1 (q9)",
        "queries whose documents all have one score, ordered by id alone: 1 (q2)",
        "q: ndcg@10 is computed on rankings that end at depth 5",
        "q: no text of 1 (q2)",
        "q.tsv: map counts grade 1 as relevant; TREC DL counts from 2",
    ):
        assert words in said
    assert found.results.details["joint", 0, "retrieval/q"]["q1"].text == "what?"
