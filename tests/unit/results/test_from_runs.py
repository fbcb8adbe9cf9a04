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
    *,
    qrels: Qrels = QRELS,
    texts: dict[str, str] | None = None,
    metric: str = "ndcg@10",
    **options: Any,
) -> ScoredSystems:
    a, b, q = write_arms(folder, qrels, specialist, joint)
    judged = replace(judgments(q), texts=texts)
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


class TestPatterns:
    def test_name_their_system_with_folders_where_stems_are_equal(self) -> None:
        names = {
            "runs/bm25.trec": "bm25",
            "runs/{dataset}/colbert-*.trec.gz": "colbert",
            "d-seed*.trec": "d",
            "runs/{dataset}/mono/seed_*/run.trec": "run",
            "mono/seed_*.txt": "mono",
            "runs/splade/{dataset}.run": "splade",
            "splade-v3.{dataset}.trec": "splade-v3",
            "bm25-k0.9": "bm25-k0.9",
            "ours=runs/lr=0.1/x.trec": "ours",
            "runs/lr=0.1/x.trec": "x",
            **{f"{folder}/same.trec": f"{folder.replace('/', '-')}-same" for folder in ("a", "b", "x/c", "y/c")},
        }
        assert list(name_systems([Pattern.parse("--systems", pattern) for pattern in names])) == list(names.values())

    def test_without_a_name_before_the_equals_sign_are_refused(self) -> None:
        with pytest.raises(UsageError, match="write NAME=PATTERN"):
            Pattern.parse("--systems", "=a.trec")

    @pytest.mark.parametrize("in_order", [False, True])
    def test_a_training_that_a_dataset_lacks_moves_no_other(self, tmp_path: Path, in_order: bool) -> None:
        """The third training was seed 1 on the dataset without the second, and seed 2 on the other."""
        write_systems(tmp_path, {"a": 2, "b-1": 2}, {"mono": (1.0, 11)})
        (tmp_path / "a" / "mono-seed2.trec").unlink()
        datasets = [judgments(tmp_path / f"{name}.qrels", name) for name in ("a", "b-1")]
        pattern = Pattern.parse("--systems", f"{tmp_path}/./{{dataset}}/m?[n]o-seed*.trec")
        found = select_runs({"mono": [pattern]}, datasets, in_order=in_order)
        of_a, of_b = ({s.seed: Path(s.name).stem for s in found if s.judged.dataset == name} for name in ("a", "b-1"))
        assert of_b == {n - 1: f"mono-seed{n}" for n in range(1, 12)}
        assert of_a == {seed: stem for seed, stem in of_b.items() if seed != 1}
        for path in (tmp_path / "b-1").glob("mono-*"):  # without a name in common, each is a training of its own
            path.rename(path.with_name(path.name.replace("-seed", "-s")))
        pattern = Pattern.parse("--systems", f"{tmp_path}/{{dataset}}/mono-s*.trec")
        found = select_runs({"mono": [pattern]}, datasets, in_order=in_order)
        assert sorted(s.seed for s in found if s.judged.dataset == "b-1") == list(range(10, 21))


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
        allowed = scored(tmp_path, deep, five, metric="map", allow=("depth",))
        assert allowed.results.caveats[0].endswith("(--allow depth)")
        found = scored(tmp_path, deep, ten, metric="ndcg_cut_10")
        assert found.results.caveats == ()
        assert set(found.results["joint"][0]["retrieval/q"]) == {"ndcg@10", "mrr@10"}
        assert "q: map, recall@100 not shown: the runs end at different depths" in found.warnings

    def test_a_run_whose_scores_order_nothing(self, tmp_path: Path) -> None:
        flat = {query_id: dict.fromkeys(scores, 1.0) for query_id, scores in ranks(1, 1, 1).items()}
        with pytest.raises(DataError, match=r"a1\.trec: all documents of a query have one score"):
            scored(tmp_path, [flat], [ranks(2, 2, 2)])

    def test_a_file_of_queries_in_another_shape(self, tmp_path: Path) -> None:
        path = tmp_path / "queries.tsv"
        for text, words in (("q1 what\n", r":1: not a line"), ("q1\ta\nq1\tb\n", r":2: query 'q1' has two texts")):
            path.write_text(text, encoding="utf-8")
            with pytest.raises(DataError, match=words):
                read_queries(path)


def test_what_should_be_known_before_the_numbers_are_believed_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "queries.tsv").write_text("q1\twhat?\nq3\twhy?\n", encoding="utf-8")
    texts = read_queries(tmp_path / "queries.tsv")
    tied = ranks(1, 1, 1, depth=5) | {"q2": dict.fromkeys(("rel", "d1"), 0.5), "q9": {"d1": 1.0}}
    qrels = QRELS | {"q1": {"rel": 2}}
    found = scored(tmp_path, [tied], [ranks(2, 2, 2, depth=5)], qrels=qrels, texts=texts)
    said = "\n".join(found.warnings)
    for words in (
        "a1.trec: queries without judgments, left out: 1 (q9)",
        "which only their ids order: 1 (q2)",
        "q: ndcg@10 is computed on rankings that end at depth 5",
        "q: no text of 1 (q2)",
        "q.tsv: map counts grade 1 as relevant; TREC DL counts from 2",
    ):
        assert words in said
    assert found.results.details["joint", 0, "retrieval/q"]["q1"].text == "what?"
