from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from support.runs import one_relevant, run_with_ranks, write_arms

from unimoe.analysis.compare_command import repeated
from unimoe.analysis.from_runs import ComparedRuns, compare_runs
from unimoe.analysis.interference import NotComputable, compute_interference_metrics
from unimoe.analysis.run_files import RunFiles, house_metric, read_queries
from unimoe.errors import DataError, UsageError
from unimoe.metrics import metric_cutoff
from unimoe.trec import Qrels, Run, write_run

QUERIES = ("q1", "q2", "q3")
QRELS: Qrels = one_relevant(*QUERIES)


def ranks(*places: int | None, depth: int = 10) -> Run:
    return run_with_ranks(dict(zip(QUERIES, places, strict=True)), depth)


def compared(
    folder: Path, specialist: list[Run], joint: list[Run], qrels: Qrels = QRELS, **options: Any
) -> ComparedRuns:
    a, b, q = write_arms(folder, qrels, specialist, joint)
    return compare_runs(RunFiles(specialist=tuple(a), joint=tuple(b), qrels=q, **options), folder)


def test_seeds_are_positions_and_the_surplus_is_left_out_by_name(tmp_path: Path) -> None:
    found = compared(tmp_path, [ranks(1, 1, 1), ranks(1, 2, 1), ranks(1, 1, 2)], [ranks(2, 2, 2), ranks(3, 2, 2)])
    (item,) = compute_interference_metrics(found.results).measured
    assert item.seeds == (1, 2)
    assert item.left_out == ("specialist seed 3",)
    assert [run.path.name for run in found.runs["specialist"]] == ["a1.trec", "a2.trec", "a3.trec"]


def test_names_of_arms_and_dataset(tmp_path: Path) -> None:
    options: dict[str, Any] = {"specialist_name": "mono_t5", "joint_name": "one & all", "dataset": "DL 19"}
    found = compared(tmp_path, [ranks(1, 1, 1)], [ranks(2, 2, 2)], **options)
    (item,) = compute_interference_metrics(found.results).measured
    assert (item.pair.specialist, item.pair.joint, item.dataset) == ("mono_t5", "one & all", "DL 19")


def test_the_dataset_is_called_as_the_qrels(tmp_path: Path) -> None:
    a, b, q = write_arms(tmp_path, QRELS, [ranks(1, 1, 1)], [ranks(2, 2, 2)])
    packed = tmp_path / "dl19.test.tsv.gz"
    packed.write_bytes(gzip.compress(q.read_bytes()))
    found = compare_runs(RunFiles(specialist=tuple(a), joint=tuple(b), qrels=packed), tmp_path)
    assert found.results.dataset_keys == ("retrieval/dl19.test",)


def test_a_specialist_that_finds_nothing_has_no_ratio(tmp_path: Path) -> None:
    found = compared(tmp_path, [ranks(None, None, None)], [ranks(1, 1, 1)])
    (absent,) = compute_interference_metrics(found.results).missing
    assert isinstance(absent, NotComputable)
    assert "nearly 0" in absent.reason


def test_a_run_is_dated_by_its_file(tmp_path: Path) -> None:
    found = compared(tmp_path, [ranks(1, 1, 1)], [ranks(2, 2, 2)])
    created = {result.provenance.created for result in found.results.results}
    assert created == {run.modified for of_arm in found.runs.values() for run in of_arm}


def without_q3() -> Run:
    return {query_id: scores for query_id, scores in ranks(2, 2, 2).items() if query_id != "q3"}


class TestMissingQueries:
    def test_are_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"b1\.trec lacks 1 \(q3\); .*--allow queries .* the 2 that all runs have"):
            compared(tmp_path, [ranks(1, 1, 1)], [without_q3()])

    def test_are_left_out_of_every_run_when_asked(self, tmp_path: Path) -> None:
        found = compared(tmp_path, [ranks(1, 2, 5)], [without_q3()], allow=("queries",), metric="recip_rank")
        (item,) = compute_interference_metrics(found.results).measured
        assert item.queries == 2
        assert item.specialist == pytest.approx((0.75,))
        assert found.results.caveats[0].startswith("compared on the 2 of 3 judged queries")
        assert "b1.trec lacks 1 (q3)" in found.results.caveats[0]

    def test_count_zero_when_asked(self, tmp_path: Path) -> None:
        found = compared(tmp_path, [ranks(1, 2, 2)], [without_q3()], allow=("zeros",), metric="recip_rank")
        (item,) = compute_interference_metrics(found.results).measured
        assert item.queries == 3
        assert item.joint == pytest.approx((1.0 / 3,))
        assert "count 0 there (--allow zeros)" in found.results.caveats[0]

    def test_that_leave_nothing_are_refused_even_when_asked(self, tmp_path: Path) -> None:
        first, last = ({q: s for q, s in ranks(1, 1, 1).items() if q in names} for names in (("q1",), ("q2", "q3")))
        with pytest.raises(DataError, match="no judged query is in every run"):
            compared(tmp_path, [first], [last], allow=("queries",))


class TestDepth:
    def test_runs_of_different_depth_are_refused_where_the_metric_looks_deeper(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"b1\.trec ends at depth 5, .*a1\.trec at 20, and map looks.*--depth 5"):
            compared(tmp_path, [ranks(1, 1, 1, depth=20)], [ranks(2, 2, 2, depth=5)], metric="map")

    def test_they_are_compared_where_it_does_not_and_deeper_metrics_are_not_shown(self, tmp_path: Path) -> None:
        found = compared(tmp_path, [ranks(1, 1, 1, depth=20)], [ranks(2, 2, 2, depth=10)], metric="ndcg_cut_10")
        assert found.results.caveats == ()
        assert set(found.results["joint"][1]["retrieval/q"]) == {"ndcg@10", "mrr@10"}
        assert "map, recall@100 not shown: the runs end at different depths" in found.warnings

    def test_they_are_compared_when_allowed_and_that_is_said(self, tmp_path: Path) -> None:
        runs = [ranks(1, 1, 1, depth=20)], [ranks(2, 2, 2, depth=5)]
        found = compared(tmp_path, *runs, metric="map", allow=("depth",))
        assert found.results.caveats[0].endswith("(--allow depth)")

    def test_a_cut_makes_them_alike(self, tmp_path: Path) -> None:
        runs = [ranks(8, 1, 1, depth=20)], [ranks(2, 2, 2, depth=5)]
        found = compared(tmp_path, *runs, metric="map", depth=5)
        (item,) = compute_interference_metrics(found.results).measured
        assert item.specialist == pytest.approx((2.0 / 3,))
        assert found.results.caveats == ()

    def test_rankings_that_all_end_before_the_cutoff_are_pointed_out(self, tmp_path: Path) -> None:
        found = compared(tmp_path, [ranks(1, 1, 1, depth=5)], [ranks(2, 2, 2, depth=5)])
        assert "ndcg@10 is computed on rankings that end at depth 5" in found.warnings


class TestDuplicates:
    def test_a_run_on_both_sides_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"b1\.trec holds the same rankings and scores as .*a1\.trec"):
            compared(tmp_path, [ranks(1, 1, 1)], [ranks(1, 1, 1)])

    def test_another_tag_and_order_of_queries_do_not_hide_it(self, tmp_path: Path) -> None:
        a, b, q = write_arms(tmp_path, QRELS, [ranks(1, 2, 3)], [ranks(2, 2, 2), ranks(1, 1, 2)])
        write_run(b[1], dict(reversed(ranks(1, 2, 3).items())), tag="another")
        with pytest.raises(DataError, match=r"b2\.trec holds the same"):
            compare_runs(RunFiles(specialist=tuple(a), joint=tuple(b), qrels=q), tmp_path)

    def test_is_compared_when_allowed_and_never_passes(self, tmp_path: Path) -> None:
        found = compared(tmp_path, [ranks(1, 1, 1)] * 2, [ranks(1, 1, 1)] * 2, allow=("duplicates",))
        (item,) = compute_interference_metrics(found.results).measured
        assert item.mean == 0.0
        assert item.crossed is not None
        assert item.crossed.label == "FAIL"
        assert found.results.caveats[0].endswith("(--allow duplicates)")


class TestWarnings:
    def test_unjudged_queries(self, tmp_path: Path) -> None:
        found = compared(tmp_path, [ranks(1, 1, 1) | {"q9": {"d1": 1.0}}], [ranks(2, 2, 2)])
        assert any("a1.trec: queries without judgments, left out: 1 (q9)" in warning for warning in found.warnings)

    def test_a_query_that_only_ids_order(self, tmp_path: Path) -> None:
        tied = ranks(1, 1, 1) | {"q2": dict.fromkeys(("rel", "d1"), 0.5)}
        found = compared(tmp_path, [tied], [ranks(2, 2, 2)])
        assert any("which only their ids order: 1 (q2)" in warning for warning in found.warnings)

    def test_queries_without_text(self, tmp_path: Path) -> None:
        (tmp_path / "queries.tsv").write_text("q1\twhat?\nq3\twhy?\n", encoding="utf-8")
        found = compared(tmp_path, [ranks(1, 1, 1)], [ranks(2, 2, 2)], queries=tmp_path / "queries.tsv")
        assert any("queries.tsv: no text of 1 (q2)" in warning for warning in found.warnings)
        assert found.results.details["joint", 1]["q1"].text == "what?"


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"metric": "ndgc_cut_10"}, "unknown metric 'ndgc_cut_10' (did you mean 'ndcg_cut_10'?)"),
            ({"allow": ("quieries",)}, "--allow quieries: unknown (did you mean 'queries'?)"),
            ({"allow": ("queries", "zeros")}, "give the one that suits"),
            ({"depth": 0}, "--depth 0"),
            ({"joint_name": "specialist"}, "both arms are named 'specialist'"),
            ({"joint": ()}, "no run file of joint"),
        ],
    )
    def test_wrong_wishes_are_refused_before_files_are_read(self, options: dict[str, Any], words: str) -> None:
        files: dict[str, Any] = {
            "specialist": (Path("nowhere"),),
            "joint": (Path("nowhere"),),
            "qrels": Path("nowhere"),
        } | options
        with pytest.raises(UsageError) as refusal:
            compare_runs(RunFiles(**files), Path())
        assert words in str(refusal.value)

    def test_a_run_whose_scores_order_nothing(self, tmp_path: Path) -> None:
        flat = {query_id: dict.fromkeys(scores, 1.0) for query_id, scores in ranks(1, 1, 1).items()}
        with pytest.raises(DataError, match=r"a1\.trec: all documents of a query have one score"):
            compared(tmp_path, [flat], [ranks(2, 2, 2)])

    def test_a_run_of_other_queries(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"a1\.trec: none of its queries is judged \(its first is 'x'"):
            compared(tmp_path, [{"x": {"d1": 1.0}}], [ranks(2, 2, 2)])

    def test_an_empty_run(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"b1\.trec: no line in it"):
            compared(tmp_path, [ranks(1, 1, 1)], [{}])

    def test_empty_qrels(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"q\.tsv: no line in it"):
            compared(tmp_path, [ranks(1, 1, 1)], [ranks(2, 2, 2)], qrels={})

    @pytest.mark.parametrize(
        ("text", "words"), [("q1 what\n", r":1: not a line"), ("q1\ta\nq1\tb\n", r":2: query 'q1' has two texts")]
    )
    def test_a_file_of_queries_in_another_shape(self, tmp_path: Path, text: str, words: str) -> None:
        path = tmp_path / "queries.tsv"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=words):
            read_queries(path)


@pytest.mark.parametrize(
    ("name", "house", "cutoff"),
    [
        ("ndcg_cut_10", "ndcg@10", 10),
        ("ndcg_cut.5", "ndcg@5", 5),
        ("recip_rank", "mrr", None),
        ("map", "map", None),
        ("map_cut_100", "map@100", 100),
        ("recall_100", "recall@100", 100),
        ("P_5", "p@5", 5),
        ("mrr@10", "mrr@10", 10),
        ("ndcg", "ndcg", None),
    ],
)
def test_metrics_go_by_two_names(name: str, house: str, cutoff: int | None) -> None:
    assert house_metric(name) == house
    assert metric_cutoff(house) == cutoff


@pytest.mark.parametrize(
    ("given", "spelled"),
    [
        ("--a x y --q z", "--a x --a y --q z"),
        ("--a x --a y", "--a x --a y"),
        ("--a=x y --json --b w v u", "--a=x --a y --json --b w --b v --b u"),
        ("--q z stray", "--q z stray"),
        ("--a --b x", "--a --b x"),
    ],
)
def test_several_values_are_spelled_out(given: str, spelled: str) -> None:
    assert repeated(given.split(), {"--a", "--b"}) == spelled.split()
