"""What the door says of runs and judgments: ids, ties and unjudged documents, alike at every entrance."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from itertools import permutations, product
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ir_measures import Judged, nDCG
from support.runs import words_of
from support.scripts import call_unimoe, successful

import unimoe
from unimoe.checks.ids import best_change
from unimoe.checks.rankings import ties_of
from unimoe.core.errors import DataError
from unimoe.core.trec import Qrels, Run, write_qrels, write_run
from unimoe.metrics import canonical_metric
from unimoe.metrics import score_run as plain_scores

QUERIES, DOCUMENTS = 12, 40
MEASURES = ["ndcg@3", "mrr@10", "map", "p@2", "recall@3", "RBP(rel=1)"]


def judged_run(name: Callable[[int], str] = "d{}".format, seed: int = 3) -> tuple[Qrels, Run]:
    """Judgments of ten documents a query, and a run that ranks forty by grade and noise."""
    rng = np.random.default_rng(seed)
    qrels = {f"q{q}": {name(d): int(rng.integers(0, 3)) for d in range(10)} | {name(0): 2} for q in range(QUERIES)}
    run = {
        q: {name(d): grades.get(name(d), 0) + float(rng.normal()) for d in range(DOCUMENTS)}
        for q, grades in qrels.items()
    }
    return qrels, run


def renamed(run: Run, change: Callable[[str], str]) -> Run:
    return {query: {change(key): score for key, score in scores.items()} for query, scores in run.items()}


RENAMED: Mapping[str, tuple[Callable[[int], str], Callable[[str], str], str]] = {
    "other case": ("Doc-{}".format, str.upper, "upper and lower case"),
    "decomposed letters": ("é{}".format, lambda key: unicodedata.normalize("NFD", key), "Unicode form"),
    "a beginning": ("{}".format, "doc_{}".format, "'doc_'"),
    "an ending": ("{}".format, "{}.txt".format, "'.txt'"),
    "lost zeros": ("{:04d}".format, lambda key: str(int(key)), "leading zeros"),
    "floats of a frame": ("{}".format, "{}.0".format, "'.0'"),
    "another beginning and lost zeros": ("MED-{:03d}".format, lambda key: f"corpus/{int(key[4:])}", "several ways"),
}


@pytest.mark.parametrize("case", RENAMED)
@pytest.mark.parametrize("half", [False, True], ids=["all", "half"])
def test_renamed_documents_are_named_at_every_entrance(case: str, half: bool, tmp_path: Path) -> None:
    """Nothing is judged, or half of it: the same line from evaluate-run, compare, score_run and compare in Python."""
    name, change, how = RENAMED[case]
    qrels, run = judged_run(name)
    kept = {name(d) for d in range(0, DOCUMENTS, 2)} if half else set()
    other = renamed(run, lambda key: key if key in kept else change(key))
    (tmp_path / "plain").mkdir()
    write_run(tmp_path / "plain" / "a.trec", run, "a")
    write_run(tmp_path / "b.trec", other, "b")
    write_qrels(tmp_path / "q", qrels)
    shown = call_unimoe("evaluate-run", tmp_path / "b.trec", tmp_path / "q")
    in_python = next(check for check in unimoe.score_run(qrels, other).checks if check.name == "ids")
    assert in_python.weight == "caveat"
    assert how in in_python.line or case == "floats of a frame"
    said = in_python.line.partition(": ")[2].replace("the qrels", str(tmp_path / "q")).partition(" (ids such")[0]
    end = in_python.line.rpartition("; ")[2]
    assert end.startswith("the ids of ")
    assert end in shown.stderr
    table = call_unimoe(
        *("compare", "--qrels", tmp_path / "q", "--baseline", tmp_path / "plain" / "a.trec"),
        *("--systems", tmp_path / "b.trec"),
    )
    assert end.replace(" ", "") in table.stdout.replace("\n", "").replace(" ", ""), said
    compared = unimoe.compare({"a": run, "b": other}, qrels)
    assert [check.data for check in compared.checks if check.name == "ids"] == [in_python.data]
    assert any(end in caveat for caveat in compared.results.caveats)


def test_ids_of_another_collection_are_named_without_a_change(tmp_path: Path) -> None:
    qrels, run = judged_run()
    found = unimoe.score_run(qrels, renamed(run, lambda key: f"other{hash(key) % 1000}x{key[::-1]}y"))
    (ids,) = (check for check in found.checks if check.name == "ids")
    assert ids.data["change"] is None
    assert "check that both are of one collection" in ids.line
    assert found.aggregate["ndcg@10"] == 0.0


def test_ids_that_match_say_nothing() -> None:
    qrels, run = judged_run()
    assert not [check for check in unimoe.score_run(qrels, run).checks if check.name == "ids"]
    shallow = {query: dict(list(scores.items())[35:]) for query, scores in run.items()}
    (none,) = (check for check in unimoe.score_run(qrels, shallow).checks if check.name == "ids")
    assert none.data["renamed"] == 0


def test_queries_without_their_zeros_are_named(tmp_path: Path) -> None:
    qrels, run = judged_run()
    judged = {f"{int(key[1:]):03d}": grades for key, grades in qrels.items()}
    with pytest.raises(DataError, match=r"leading zeros|the beginning or end"):
        unimoe.score_run(judged, {key[1:]: scores for key, scores in run.items()})
    some = {key if key < "006" else str(int(key)): run[f"q{int(key)}"] for key in judged}
    assert any("6 queries differ in leading zeros" in check.line for check in unimoe.score_run(judged, some).checks)


def test_judgments_given_as_a_run_are_named() -> None:
    """Dictionaries of both look alike; small whole scores, or real grades, are no mistake alone."""
    qrels, run = judged_run()
    rounded = {query: {key: float(round(score)) for key, score in of.items()} for query, of in run.items()}
    named = [
        [check.unfit for check in unimoe.score_run(*given).checks if check.name == "swapped"]
        for given in ((run, qrels), (qrels, run), (qrels, rounded), (run, run))
    ]
    assert named == [[True], [], [], []]


def test_the_change_that_matches_most_is_taken() -> None:
    assert best_change([({"A1", "B2"}, {"a1", "b2"})]) == ("upper and lower case", 2)
    assert best_change([({"12"}, {"x"})]) == ("", 0)
    for one, other in (("doc_1_x", "doc 1 x"), ("(12,)", "12"), ("doc\u200b1", "doc1"), ("1,000", "1000")):
        assert best_change([({one}, {other})]) == ("punctuation", 1)
    assert best_change([({"\uff11\uff12"}, {"12"})]) == ("Unicode form (NFC, NFD)", 1)
    assert best_change([]) == ("", 0)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=6),
    st.sampled_from(MEASURES),
)
def test_ties_span_all_orders(documents: list[tuple[int, int]], measure: str) -> None:
    """Lowest and highest equal those over every order of documents with one score."""
    scores = {f"d{place}": float(score) for place, (score, _) in enumerate(documents)}
    grades = {f"d{place}": grade for place, (_, grade) in enumerate(documents) if place % 3 or grade} or {"d9": 1}
    groups = [[key for key, value in scores.items() if value == score] for score in sorted(set(scores.values()))[::-1]]
    values = []
    for orders in product(*(permutations(group) for group in groups)):
        keys = [key for order in orders for key in order]
        ordered = {key: float(-rank) for rank, key in enumerate(keys)}
        values.append(plain_scores({"q": grades}, {"q": ordered}, measure).per_query[canonical_metric(measure)]["q"])
    found = ties_of({"q": grades}, {"q": scores}, lambda q, r: plain_scores(q, r, measure).per_query)
    reported = plain_scores({"q": grades}, {"q": scores}, measure).per_query[canonical_metric(measure)]
    low, high = found.means(canonical_metric(measure), reported)
    assert [low, high] == pytest.approx([min(values), max(values)], abs=1e-9)


def test_ten_equal_documents_may_be_worth_everything_or_little(tmp_path: Path) -> None:
    """Three relevant of ten with one score: by document id .425, in another order 1."""
    qrels = {"q1": {"d0": 1, "d1": 1, "d2": 1}, "q2": {"d1": 1}}
    run = {"q1": {f"d{i}": 1.0 for i in range(10)}, "q2": {"d1": 2.0, "d2": 1.0}}
    write_run(tmp_path / "r", run, "r")
    write_qrels(tmp_path / "q", qrels)
    found = unimoe.score_run(tmp_path / "q", tmp_path / "r", ["ndcg@10"])
    assert found.per_query["ndcg@10"]["q1"] == pytest.approx(0.4250, abs=5e-5)
    (ties,) = (check for check in found.checks if check.name == "ties")
    low, high = ties.data["ranges"]["ndcg@10"]
    assert high == pytest.approx(1.0)
    assert low == pytest.approx((0.4250 + 1.0) / 2, abs=5e-5)  # ids happen to be the worst order
    shown = call_unimoe("evaluate-run", tmp_path / "r", tmp_path / "q")
    assert "ndcg@10 from 71.25 to 100.00" in shown.stderr
    as_json = json.loads(call_unimoe("evaluate-run", tmp_path / "r", tmp_path / "q", "--json").stdout)
    assert {"ties", "unjudged"} <= {check["name"] for check in as_json["checks"]}


def test_ties_below_the_cutoff_or_of_one_grade_say_nothing() -> None:
    qrels = {"q": {"d0": 1, "d11": 0}}
    equal = {"d0": 9.0} | {f"d{i}": 1.0 for i in range(1, 12)}
    assert not [c for c in unimoe.score_run(qrels, {"q": equal}).checks if c.name == "ties"]


def test_a_finding_that_rests_on_the_order_of_ties_says_so(tmp_path: Path) -> None:
    """The system ties its relevant document with one that is not: behind in one order, ahead in another."""
    qrels = {f"q{i}": {"d1": 1, "d2": 0} for i in range(20)}
    ahead = {q: {"d1": 2.0, "d2": 2.0 if i % 5 else 1.0, "d3": 1.5} for i, q in enumerate(qrels)}
    behind = {q: {"d2": 3.0, "d3": 0.5, "d1": 1.0 + 3.0 * (i % 2)} for i, q in enumerate(qrels)}
    found = unimoe.compare({"base": behind, "new": ahead}, qrels, baseline="base", metrics="mrr@10")
    (test,) = found.comparisons
    (check,) = (check for check in test.checks if check.name == "ties")
    assert check.data["low"] < check.data["high"]
    for name, run in (("base", behind), ("new", ahead)):
        write_run(tmp_path / f"{name}.trec", run, name)
    write_qrels(tmp_path / "q", qrels)
    shown = call_unimoe(
        *("compare", "--baseline", tmp_path / "base.trec", "--systems", tmp_path / "new.trec"),
        *("--qrels", tmp_path / "q", "--metric", "mrr@10", "--output-dir", tmp_path / "out"),
    )
    assert "the finding depends on the order of equal scores" in words_of(successful(shown))
    report = (tmp_path / "out" / "analysis" / "report.md").read_text(encoding="utf-8")
    assert "depends on the order of equal scores" in report
    assert "documents with equal scores, ordered by their ids" in report
    saved = successful(call_unimoe("compare", "--results", tmp_path / "out"))  # no run is read again
    assert "the finding depends on the order of equal scores" in words_of(saved)
    successful(call_unimoe("analyze", "--output-dir", tmp_path / "out"))
    assert "depends on the order of equal scores" in (tmp_path / "out/analysis/report.md").read_text(encoding="utf-8")


def test_the_range_of_a_system_holds_its_mean_where_one_of_its_runs_has_no_equal_scores(tmp_path: Path) -> None:
    """Run 1 is 100 or 50 by the order of ties, run 2 is 50 in any: the system is 75 or 50, and not 100 or 50."""
    qrels = {f"q{i}": {"d1": 1, "d2": 0} for i in range(20)}
    for name, scores in {
        "base": {"d1": 1.0, "d2": 3.0, "d3": 0.5},
        "new-seed1": {"d1": 2.0, "d2": 2.0, "d3": 0.5},
        "new-seed2": {"d1": 1.0, "d2": 2.0, "d3": 0.5},
    }.items():
        write_run(tmp_path / f"{name}.trec", dict.fromkeys(qrels, scores), name)
    write_qrels(tmp_path / "q", qrels)
    shown = call_unimoe(
        *("compare", "--baseline", tmp_path / "base.trec", "--systems", f"new={tmp_path}/new-seed[12].trec"),
        *("--qrels", tmp_path / "q", "--metric", "mrr@10"),
        *("--output-dir", tmp_path / "out"),
    )
    words = "other orders give mrr@10 of new 50.00 to 75.00"
    assert words in words_of(successful(shown)) + " ".join(shown.stderr.split())
    analysed = successful(call_unimoe("analyze", "tables", "--output-dir", tmp_path / "out"))
    assert words in words_of(analysed)


def test_the_share_of_unjudged_documents_is_that_of_ir_measures(tmp_path: Path) -> None:
    qrels, run = judged_run()
    for cutoff in (3, 10):
        found = unimoe.score_run(qrels, run, [f"ndcg@{cutoff}"])
        judged = ir_measures.calc_aggregate([Judged @ cutoff], qrels, run)[Judged @ cutoff]
        assert found.unjudged_share == pytest.approx(1 - judged)
        assert found.unjudged_cutoff == cutoff
    write_run(tmp_path / "r", run, "r")
    write_qrels(tmp_path / "q", qrels)
    shown = call_unimoe("evaluate-run", tmp_path / "r", tmp_path / "q", "--metric", "ndcg@10").stdout
    assert dict(line.split() for line in shown.splitlines()[:2])["unjudged@10"] == f"{found.unjudged_share:.4f}"


def test_systems_that_are_judged_unlike_are_compared_on_judged_documents_too(tmp_path: Path) -> None:
    """A system whose best documents nobody judged: behind as reported, ahead on judged documents alone."""
    rng = np.random.default_rng(0)
    qrels = {f"q{i}": {f"d{d}": int(d < 3) for d in range(12)} for i in range(30)}
    order = [f"d{d}" for d in range(12)]
    base = {q: {key: float(-rank) + rng.normal() * 2 for rank, key in enumerate(order)} for q in qrels}
    new = {q: {key: float(-rank) for rank, key in enumerate([f"x{j}" for j in range(6)] + order)} for q in qrels}
    found = unimoe.compare({"base": base, "new": new}, qrels, baseline="base")
    (test,) = found.comparisons
    (check,) = (check for check in test.checks if check.name == "unjudged")
    condensed = ir_measures.calc_aggregate([nDCG(judged_only=True) @ 10], qrels, new)[nDCG(judged_only=True) @ 10]
    reported = ir_measures.calc_aggregate([nDCG(judged_only=True) @ 10], qrels, base)[nDCG(judged_only=True) @ 10]
    assert check.data["judged_only"] == pytest.approx(condensed - reported)
    assert test.delta < 0 < check.data["judged_only"]
    assert check.data["finding_changes"] is True
    for name, run in (("base", base), ("new", new)):
        write_run(tmp_path / f"{name}.trec", run, name)
    write_qrels(tmp_path / "q", qrels)
    shown = successful(
        call_unimoe(
            *("compare", "--baseline", tmp_path / "base.trec", "--systems", tmp_path / "new.trec"),
            *("--qrels", tmp_path / "q"),
        )
    )
    assert "the finding changes" in words_of(shown)
    assert "Unjudged" in shown.stdout
    rows = found.tests()
    assert "on judged documents alone" in rows["checks"].iloc[0]


def test_judgments_of_relevant_documents_alone_are_not_taken_for_more() -> None:
    qrels = {f"q{i}": {"d0": 1} for i in range(10)}
    base = {q: {f"d{d}": float(-d) for d in range(10)} for q in qrels}
    new = {q: {f"x{d}": float(-d) for d in range(9)} | {"d0": -9.5} for q in qrels}
    (test,) = unimoe.compare({"base": base, "new": {**new, "q0": {"x1": 1.0}}}, qrels, baseline="base").comparisons
    assert [check.data["negatives"] for check in test.checks if check.name == "unjudged"] in ([], [False])


FORMS: Mapping[str, Callable[[list[tuple[str, str, float]], str], Any]] = {
    "pandas": lambda rows, value: pd.DataFrame(rows, columns=["query_id", "doc_id", value]),
    "PyTerrier": lambda rows, value: pd.DataFrame(rows, columns=["qid", "docno", value]).rename_axis("row"),
    "polars": lambda rows, value: pl.DataFrame(rows, schema=["qid", "docid", value], orient="row"),
    "arrow": lambda rows, value: pa.table(
        dict(zip(["query-id", "corpus-id", value], zip(*rows, strict=True), strict=True))
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_frames_are_judged_as_dictionaries_are(form: str) -> None:
    qrels, run = judged_run()
    rows = [[(q, d, float(v)) for q, of in content.items() for d, v in of.items()] for content in (qrels, run)]
    grades, scores = (FORMS[form](part, value) for part, value in zip(rows, ("relevance", "score"), strict=True))
    assert unimoe.score_run(grades, scores).per_query == unimoe.score_run(qrels, run).per_query
    other = renamed(run, str.upper)
    frames = unimoe.compare({"a": scores, "b": other}, grades).frame()
    assert frames["mean"].tolist() == unimoe.compare({"a": run, "b": other}, qrels).frame()["mean"].tolist()
    of_two = unimoe.compare({"a": scores, "b": other}, {"one": grades, "two": grades}).frame()
    assert sorted(of_two["dataset"]) == ["one", "one", "two", "two"]


@pytest.mark.parametrize("form", ["frame", "file"])
def test_ranks_that_contradict_scores_are_refused_by_name(form: str, tmp_path: Path) -> None:
    qrels, run = judged_run()
    rows = [(q, d, r, float(r)) for q, of in run.items() for r, d in enumerate(sorted(of, key=of.__getitem__), start=1)]
    frame = pd.DataFrame(rows, columns=["qid", "docno", "rank", "score"])
    path = tmp_path / "distances.trec"
    path.write_text("".join(f"{q} Q0 {d} {r} {s} t\n" for q, d, r, s in rows))
    content = frame if form == "frame" else path
    with pytest.raises(DataError, match=r"12 of 12 queries, as where distances are written as scores.*--allow ranks"):
        unimoe.score_run(qrels, content)
    with pytest.raises(DataError, match="distances are written as scores"):
        unimoe.compare({"a": run, "b": content}, qrels)
    allowed = unimoe.score_run(qrels, content, allow="ranks")
    assert [check.unfit for check in allowed.checks if check.name == "ranks"] == [True]
    write_qrels(tmp_path / "q", qrels)
    assert call_unimoe("evaluate-run", path, tmp_path / "q").returncode == 3
    assert "(--allow ranks)" in successful(call_unimoe("evaluate-run", path, tmp_path / "q", "--allow", "ranks")).stderr


class TestPublicRuns:
    """TREC Deep Learning 2019's passage pool, with five public runs."""

    def test_a_run_with_ties_has_a_range_that_holds_its_own_order(self, unimoe_data: Path) -> None:
        folder = unimoe_data / "trec-dl19-passage-pool"
        found = unimoe.score_run(folder / "qrels" / "full.tsv", folder / "runs" / "rep_llama.trec", ["ndcg@10"], 2)
        assert 100 * found.aggregate["ndcg@10"] == pytest.approx(73.84, abs=0.005)
        (ties,) = (check for check in found.checks if check.name == "ties")
        low, high = ties.data["ranges"]["ndcg@10"]
        assert low < 0.7384 < 0.7439 < high
        assert ties.data["queries"] == 42

    def test_bm25_is_judged_and_a_dense_run_is_not(self, unimoe_data: Path) -> None:
        folder = unimoe_data / "trec-dl19-passage-pool"
        shares = {
            name: unimoe.score_run(folder / "qrels" / "full.tsv", folder / "runs" / f"{name}.trec").unjudged_share
            for name in ("bm25", "rep_llama")
        }
        assert shares["bm25"] == 0.0
        assert shares["rep_llama"] == pytest.approx(0.081, abs=0.0005)
