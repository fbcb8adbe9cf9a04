"""Runs as files or dictionaries: how they are named, found, scored, refused, and made results of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.runs import one_relevant, run_with_ranks, write_arms, write_systems

from unimoe.cli.run_files import Pattern, name_systems, read_queries, select_runs
from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import Qrels, Run
from unimoe.results.runs.building import ScoredSystems, score_systems
from unimoe.results.runs.scoring import RunSource, Scoring, judgments

QUERIES = ("q1", "q2", "q3")


QRELS: Qrels = one_relevant(*QUERIES)


def ranks(*places: int | None, depth: int = 10) -> Run:
    return run_with_ranks(dict(zip(QUERIES, places, strict=True)), depth)


def scored(
    folder: Path,
    specialist: list[Run],
    joint: list[Run],
    qrels: Qrels = QRELS,
    texts: dict[str, str] | None = None,
    metric: str = "ndcg@10",
    others: tuple[str, ...] = ("mrr@10", "map", "recall@100"),
    **options: Any,
) -> ScoredSystems:
    a, b, q = write_arms(folder, qrels, specialist, joint)
    judged = replace(judgments(q), texts=texts)
    sources = [
        RunSource(arm, judged, seed, str(path), path)
        for arm, paths in (("specialist", a), ("joint", b))
        for seed, path in enumerate(paths)
    ]
    return score_systems(sources, Scoring((metric,), others, **options), "test")


def mean_of(found: ScoredSystems, arm: str, seed: int = 0) -> float:
    result = found.results.result(arm, seed, "retrieval/q")
    assert result is not None
    return result.aggregate[result.main_metric]


class TestResults:
    def test_seeds_count_from_0_and_none_is_left_out(self, tmp_path: Path) -> None:
        runs = [ranks(1, 1, 1), ranks(1, 2, 1), ranks(1, 1, 2)], [ranks(2, 2, 2), ranks(3, 2, 2)]
        found = scored(tmp_path, *runs)
        assert found.results.seeds("specialist", "retrieval/q") == (0, 1, 2)
        assert found.results.seeds("joint", "retrieval/q") == (0, 1)
        assert [Path(run.source.name).name for run in found.runs if run.source.system == "specialist"] == [
            "a1.trec",
            "a2.trec",
            "a3.trec",
        ]

    def test_say_whether_seeds_pair(self, tmp_path: Path) -> None:
        runs = [ranks(1, 1, 1), ranks(1, 2, 1)], [ranks(2, 2, 2), ranks(3, 2, 2)]
        for paired in (True, False):
            found = scored(tmp_path, *runs, paired=paired)
            assert found.results.seeds_pair(("specialist", "joint"), ["retrieval/q"]) is paired


class TestDatasets:
    def test_a_level_is_stored_and_counts(self, tmp_path: Path) -> None:
        graded = {query_id: {"rel": 2, "d1": 1} for query_id in QUERIES}
        a, b, q = write_arms(tmp_path, graded, [ranks(1, 1, 1)], [ranks(2, 3, 4)])
        for level, expected in ((1, 1.0), (2, (1 / 2 + 1 / 3 + 1 / 4) / 3)):
            judged = judgments(q, level=level)
            sources = [RunSource(system, judged, 0, system, path) for system, path in (("a", a[0]), ("b", b[0]))]
            found = score_systems(sources, Scoring(("recip_rank",)), "test")
            assert mean_of(found, "b") == pytest.approx(expected)
            assert {result.relevance_level for result in found.results.results} == {level}
            assert not found.warnings


class TestPatterns:
    @pytest.mark.parametrize(
        ("given", "name"),
        [
            ("runs/bm25.trec", "bm25"),
            ("runs/{dataset}/colbert-*.trec.gz", "colbert"),
            ("d-seed*.trec", "d"),
            ("runs/{dataset}/mono/seed_*/run.trec", "run"),
            ("mono/seed_*.txt", "mono"),
            ("runs/splade/{dataset}.run", "splade"),
            ("splade.{dataset}.trec", "splade"),
            ("bm25-k0.9", "bm25-k0.9"),
            ("ours=runs/lr=0.1/x.trec", "ours"),
            ("runs/lr=0.1/x.trec", "x"),
        ],
    )
    def test_name_their_system(self, given: str, name: str) -> None:
        assert list(name_systems([Pattern.parse("--systems", given)])) == [name]

    def test_equal_stems_get_their_folders(self) -> None:
        given = ["a/run.trec", "b/run.trec", "x/c/run.trec", "y/c/run.trec", "alone.trec"]
        patterns = [Pattern.parse("--systems", text) for text in given]
        assert list(name_systems(patterns)) == ["a-run", "b-run", "x-c-run", "y-c-run", "alone"]

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            (["a=1.trec", "a=2.trec"], "two systems are named 'a'"),
            (["a.trec", "a.trec"], "two systems are named 'a'"),
            (["=a.trec"], "write NAME=PATTERN"),
            (["analysis=a.trec"], "cannot be named 'analysis'"),
        ],
    )
    def test_that_give_no_name_of_their_own_are_refused(self, given: list[str], words: str) -> None:
        with pytest.raises(UsageError, match=words):
            name_systems([Pattern.parse("--systems", text) for text in given])

    @pytest.mark.parametrize("in_order", [False, True])
    def test_a_training_that_a_dataset_lacks_moves_no_other(self, tmp_path: Path, in_order: bool) -> None:
        """The third training was seed 1 on the dataset without the second, and seed 2 on the other."""
        write_systems(tmp_path, {"a": 2, "b-1": 2}, {"mono": (1.0, 11)})
        (tmp_path / "a" / "mono-seed2.trec").unlink()
        datasets = [judgments(tmp_path / f"{name}.qrels", name) for name in ("a", "b-1")]
        pattern = Pattern.parse("--systems", f"{tmp_path}/./{{dataset}}/m?[n]o-seed*.trec")
        found = select_runs({"mono": [pattern]}, datasets, in_order=in_order)
        numbers = {
            name: {s.seed: Path(s.name).stem for s in found if s.judged.dataset == name} for name in ("a", "b-1")
        }
        assert numbers["b-1"] == {n - 1: f"mono-seed{n}" for n in range(1, 12)}
        assert numbers["a"] == {seed: stem for seed, stem in numbers["b-1"].items() if seed != 1}


def without_q3() -> Run:
    return {query_id: scores for query_id, scores in ranks(2, 2, 2).items() if query_id != "q3"}


class TestMissingQueries:
    def test_are_refused_by_name(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"b1\.trec lacks 1 \(q3\); .*--allow queries .* the 2 that all runs have"):
            scored(tmp_path, [ranks(1, 1, 1)], [without_q3()])

    def test_are_left_out_of_every_run_when_asked(self, tmp_path: Path) -> None:
        found = scored(tmp_path, [ranks(1, 2, 5)], [without_q3()], allow=("queries",), metric="recip_rank")
        assert mean_of(found, "specialist") == pytest.approx(0.75)
        assert found.results.caveats[0].startswith("compared on the 2 of 3 judged queries")
        assert "b1.trec lacks 1 (q3)" in found.results.caveats[0]

    def test_that_leave_nothing_are_refused_even_when_asked(self, tmp_path: Path) -> None:
        first, last = ({q: s for q, s in ranks(1, 1, 1).items() if q in names} for names in (("q1",), ("q2", "q3")))
        with pytest.raises(DataError, match="no judged query is in every run"):
            scored(tmp_path, [first], [last], allow=("queries",))


class TestDepth:
    def test_runs_of_different_depth_are_refused_where_the_metric_looks_deeper(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"b1\.trec ends at depth 5, .*a1\.trec at 20, and map looks.*--depth 5"):
            scored(tmp_path, [ranks(1, 1, 1, depth=20)], [ranks(2, 2, 2, depth=5)], metric="map")

    def test_they_are_compared_where_it_does_not_and_deeper_metrics_are_not_shown(self, tmp_path: Path) -> None:
        found = scored(tmp_path, [ranks(1, 1, 1, depth=20)], [ranks(2, 2, 2, depth=10)], metric="ndcg_cut_10")
        assert found.results.caveats == ()
        assert set(found.results["joint"][0]["retrieval/q"]) == {"ndcg@10", "mrr@10"}
        assert "q: map, recall@100 not shown: the runs end at different depths" in found.warnings

    def test_they_are_compared_when_allowed_and_that_is_said(self, tmp_path: Path) -> None:
        runs = [ranks(1, 1, 1, depth=20)], [ranks(2, 2, 2, depth=5)]
        found = scored(tmp_path, *runs, metric="map", allow=("depth",))
        assert found.results.caveats[0].endswith("(--allow depth)")

    def test_rankings_that_all_end_before_the_cutoff_are_pointed_out(self, tmp_path: Path) -> None:
        found = scored(tmp_path, [ranks(1, 1, 1, depth=5)], [ranks(2, 2, 2, depth=5)])
        assert "q: ndcg@10 is computed on rankings that end at depth 5" in found.warnings


class TestWarnings:
    def test_unjudged_queries(self, tmp_path: Path) -> None:
        found = scored(tmp_path, [ranks(1, 1, 1) | {"q9": {"d1": 1.0}}], [ranks(2, 2, 2)])
        assert any("a1.trec: queries without judgments, left out: 1 (q9)" in warning for warning in found.warnings)

    def test_a_query_that_only_ids_order(self, tmp_path: Path) -> None:
        tied = ranks(1, 1, 1) | {"q2": dict.fromkeys(("rel", "d1"), 0.5)}
        found = scored(tmp_path, [tied], [ranks(2, 2, 2)])
        assert any("which only their ids order: 1 (q2)" in warning for warning in found.warnings)

    def test_queries_without_text(self, tmp_path: Path) -> None:
        (tmp_path / "queries.tsv").write_text("q1\twhat?\nq3\twhy?\n", encoding="utf-8")
        found = scored(tmp_path, [ranks(1, 1, 1)], [ranks(2, 2, 2)], texts=read_queries(tmp_path / "queries.tsv"))
        assert "q: no text of 1 (q2)" in found.warnings
        assert found.results.details["joint", 0, "retrieval/q"]["q1"].text == "what?"


class TestRefusals:
    def test_a_run_whose_scores_order_nothing(self, tmp_path: Path) -> None:
        flat = {query_id: dict.fromkeys(scores, 1.0) for query_id, scores in ranks(1, 1, 1).items()}
        with pytest.raises(DataError, match=r"a1\.trec: all documents of a query have one score"):
            scored(tmp_path, [flat], [ranks(2, 2, 2)])

    @pytest.mark.parametrize(
        ("text", "words"), [("q1 what\n", r":1: not a line"), ("q1\ta\nq1\tb\n", r":2: query 'q1' has two texts")]
    )
    def test_a_file_of_queries_in_another_shape(self, tmp_path: Path, text: str, words: str) -> None:
        path = tmp_path / "queries.tsv"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=words):
            read_queries(path)
