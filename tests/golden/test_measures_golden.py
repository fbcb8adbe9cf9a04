"""Measures at both relevance levels: by hand, by named oracles, on real systems, and as they were to the bit."""

from __future__ import annotations

import math
import re
import shutil
from hashlib import sha256
from math import log2
from pathlib import Path
from random import Random
from typing import Any

import ir_measures
import numpy as np
import pytest
import pytrec_eval

import unimoe
from unimoe.analysis.compare import compare
from unimoe.core.errors import DataError
from unimoe.core.trec import Qrels, Run, head, write_qrels, write_run
from unimoe.formats.qrels import read_qrels
from unimoe.metrics import canonical_metric, score_run
from unimoe.metrics.scoring import whole_grades
from unimoe.results.runs.scoring import score_run_file

needs_perl = pytest.mark.skipif(shutil.which("perl") is None, reason="gdeval is a Perl script")

# Ranking: b (grade 1), e (not judged), a (grade 3), d (grade 0); c (grade 2) was not found.
GRADES = {"a": 3, "b": 1, "c": 2, "d": 0}
RANKING = {"b": 0.9, "e": 0.8, "a": 0.7, "d": 0.6}


@pytest.mark.parametrize(
    ("metric", "at_1", "at_2"),
    [
        # relevant at level 1: a, b and c, of which b comes first and a third; at level 2: a and c, a third
        ("map", (1 + 2 / 3) / 3, (1 / 3) / 2),
        ("map@2", 1 / 3, 0),
        ("mrr", 1, 1 / 3),
        ("recall_cap@9", 2 / 3, 1 / 2),
        ("recall_of_retrieved@1", 1, 0),
        ("recall_of_retrieved@3", 2 / 3, 1 / 2),
        ("Success@1", 1, 0),
        ("Rprec", 2 / 3, 0 / 2),
        ("SetF", 2 / (4 / 2 + 3 / 2), 2 / (4 / 1 + 2 / 1)),
        # d alone is judged and not relevant, below both; at level 2 b is too, above a: 1 - 1/2 of two
        ("Bpref", 2 / 3, (1 / 2) / 2),
        ("IPrec@0.1", 1, 1 / 3),
        # precision at a: 1/3 of its own and 2/3 of what is above, of which half is judged, all of it relevant or none
        ("infAP", (1 + 1 / 3 + 2 / 3 * 1 / 2) / 3, (1 / 3) / 2),
        # the name fixes the level
        ("AP(rel=1)", (1 + 2 / 3) / 3, (1 + 2 / 3) / 3),
        ("AP(rel=2)", (1 / 3) / 2, (1 / 3) / 2),
        ("RR(rel=3)@3", 1 / 3, 1 / 3),
        # a persistence of .8 leaves .2 for each place, of .5 a half
        ("RBP(rel=1)", 0.2 * (1 + 0.8**2), 0.2 * (1 + 0.8**2)),
        ("RBP(rel=2,p=0.5)", 0.5 * 0.5**2, 0.5 * 0.5**2),
        ("NumRet(rel=2)", 1, 1),
        # grades themselves
        ("Judged@10", 3 / 4, 3 / 4),
        ("NumRet", 4, 4),
        ("ndcg@10", (1 + 3 / 2) / (3 + 2 / log2(3) + 1 / 2), (1 + 3 / 2) / (3 + 2 / log2(3) + 1 / 2)),
        # stops at b with probability (2 - 1)/16, at a with (8 - 1)/16
        pytest.param("ERR@20", 1 / 16 + 15 / 16 * 7 / 16 / 3, 1 / 16 + 15 / 16 * 7 / 16 / 3, marks=needs_perl),
        pytest.param("ERR@2", 1 / 16, 1 / 16, marks=needs_perl),
    ],
)
def test_one_query_by_hand_at_two_levels(metric: str, at_1: float, at_2: float) -> None:
    for level, expected in ((1, at_1), (2, at_2)):
        scores = score_run({"q": GRADES}, {"q": RANKING}, [metric], level)
        assert scores.per_query[metric]["q"] == pytest.approx(expected, abs=6e-6), level


@pytest.mark.parametrize(
    ("metric", "expected"),
    [("map", 5 / 9 / 3), ("Judged@10", 3 / 4 / 3), ("Success@1", 1 / 3), ("Compat", None), ("RBP(rel=1)", 0.328 / 3)],
)
def test_a_query_that_the_run_lacks_counts_0(metric: str, expected: float | None) -> None:
    qrels = {"q": GRADES, "empty": {"a": 1}, "absent": {"a": 1}}
    scores = score_run(qrels, {"q": RANKING, "empty": {}, "unjudged": {"a": 1.0}}, [metric])
    assert list(scores.per_query[metric]) == ["q", "empty", "absent"]
    assert scores.per_query[metric]["empty"] == scores.per_query[metric]["absent"] == 0.0
    assert expected is None or scores.aggregate[metric] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("depth", "expected"),
    [
        # Of the query as above, and of one that the run lacks: half of what one query has.
        (None, {"ndcg@10": 2.5 / 4.761860 / 2, "mrr": 1 / 2, "map": 5 / 9 / 2, "recall@100": 1 / 3}),
        # b and e alone
        (2, {"ndcg@10": 1 / 4.761860 / 2, "mrr": 1 / 2, "map": 1 / 6, "recall@100": 1 / 6}),
    ],
)
def test_a_run_file_whole_and_cut_by_hand(tmp_path: Path, depth: int | None, expected: dict[str, float]) -> None:
    write_run(tmp_path / "some.trec", {"q": RANKING, "unjudged": {"a": 1.0}}, tag="some")
    write_qrels(tmp_path / "qrels.txt", {"q": GRADES, "absent": {"d1": 1}})
    scores = score_run_file(tmp_path / "some.trec", tmp_path / "qrels.txt", list(expected), depth)
    assert scores.aggregate == pytest.approx(expected, abs=1e-7)
    assert scores.unjudged_queries == ["unjudged"]


def test_counts_are_summed_over_all_judged_queries_as_trec_eval_c_does() -> None:
    qrels, run = {"q": GRADES, "r": {"a": 1}, "absent": {"a": 1}}, {"q": RANKING, "r": {"a": 1.0}}
    scores = score_run(qrels, run, ["NumRet", "NumRet(rel=1)", "NumRel", "NumQ"])
    assert scores.aggregate == {"NumRet": 5, "NumRet(rel=1)": 3, "NumRel": 5, "NumQ": 3}


def test_negative_grades_are_not_judged_where_a_measure_knows_of_that() -> None:
    # Of b and c alone, c is judged and not relevant, below a; with b at 0, b is that too, above it.
    ranking = {"b": 3.0, "a": 2.0, "c": 1.0}
    assert score_run({"q": {"a": 1, "b": -1, "c": 0}}, {"q": ranking}, ["Bpref"]).aggregate["Bpref"] == 1.0
    assert score_run({"q": {"a": 1, "b": 0, "c": 0}}, {"q": ranking}, ["Bpref"]).aggregate["Bpref"] == 0.0
    assert score_run({"q": {"a": -1}}, {"q": ranking}, ["Bpref"]).aggregate["Bpref"] == 0.0


@needs_perl
def test_err_refuses_grades_it_is_not_defined_for() -> None:
    with pytest.raises(DataError, match="metric 'ERR@20' is defined for grades up to 4, and query 'r' has grade 5"):
        score_run({"q": {"a": 4}, "r": {"a": 5}}, {"q": {"a": 1.0}}, ["ERR@20"])


def random_fixture() -> tuple[Qrels, Run]:
    """Thirty queries with ties, unjudged documents and negative grades; one lacks, one holds nothing relevant."""
    number = Random(20).random
    qrels: Qrels = {}
    run: Run = {}
    for query in range(30):
        documents = [f"d{int(number() * 400)}" for _ in range(150)]
        qrels[f"q{query}"] = {document: int(number() * 5) - 1 for document in documents[:40]}
        run[f"q{query}"] = {document: round(number() * 30) / 8 for document in documents[20:]}
    qrels["q7"] = dict.fromkeys(qrels["q7"], 0)
    qrels["q9"] = dict.fromkeys(qrels["q9"], -1)
    del run["q3"], qrels["q4"]
    run["q5"] = {}
    return qrels, run


BEFORE = {
    "ndcg@10": 0.0736343502684324,
    "ndcg": 0.2925468475856743,
    "ndcg@3": 0.08739419138779657,
    "mrr": 0.2467159277504105,
    "mrr@10": 0.23407224958949097,
    "mrr@3": 0.1781609195402299,
    "map": 0.09535015295291487,
    "map@5": 0.011343455653412745,
    "recall@100": 0.5111812691214325,
    "recall@5": 0.0196159534170701,
    "recall_of_retrieved@10": 0.10689655172413794,
    "recall_of_retrieved@3": 0.1264367816091954,
    "p@5": 0.09655172413793105,
    "p@1": 0.06896551724137931,
}
"""What the code computed when pytrec_eval was all it knew."""


def test_nothing_has_moved_by_a_bit() -> None:
    qrels, run = random_fixture()
    scores = score_run(qrels, run, tuple(BEFORE))
    assert scores.aggregate == BEFORE
    then = {metric: metric.replace("of_retrieved", "cap") for metric in BEFORE}  # as it was called when this was hashed
    words = [
        f"{then[metric]} {q} {value.hex()}"
        for metric, values in scores.per_query.items()
        for q, value in values.items()
    ]
    found = sha256(" ".join(words).encode()).hexdigest()
    assert found == "9f5f3b85b22091324d046be28b32ee146b08532ebb7c0e01efcaee697bbb4840"


@pytest.mark.parametrize("level", [1, 2, 3])
def test_binary_measures_are_what_pytrec_eval_says_at_that_level(level: int) -> None:
    qrels, run = random_fixture()
    names = {"map": "map", "recall@100": "recall_100", "p@5": "P_5", "mrr": "recip_rank", "Rprec": "Rprec"}
    plain = {query: {document: max(0, grade) for document, grade in grades.items()} for query, grades in qrels.items()}
    measures = {"map", "recall.100", "P.5", "recip_rank", "Rprec"}
    complete = {query: run.get(query, {}) for query in plain}
    oracle = pytrec_eval.RelevanceEvaluator(plain, measures, relevance_level=level).evaluate(complete)
    scores = score_run(qrels, run, tuple(names), level)
    for metric, name in names.items():
        assert scores.per_query[metric] == {query: oracle[query][name] for query in qrels}
        fixed = {"map": "AP", "recall@100": "R", "p@5": "P", "mrr": "RR"}.get(metric)
        if fixed:  # the same, written out, whatever the level that is asked for
            _, at, cutoff = metric.partition("@")
            written = f"{fixed}(rel={level}){at}{cutoff}"
            assert score_run(qrels, run, [written]).per_query[written] == scores.per_query[metric]


MEASURES = (
    "nDCG@10", "AP", "R@100", "P@5", "RR", "RR@10", "Success@5", "Rprec", "Bpref", "SetF", "SetAP", "IPrec@0.1",
    "infAP", "Success@1", "SetP", "SetR", "SetP(relative=True)",
    "Judged@10", "NumRet", "NumRel", "RBP(rel=2)", "RBP(rel=1,p=0.9)", "Compat", "nDCG(judged_only=True)@10",
    "nDCG(gains={1:0,2:5})@10", "BPM(max_rel=3)@10", "SDCG(max_rel=3)@10",
    pytest.param("ERR@20", marks=needs_perl), pytest.param("nDCG(dcg='exp-log2')@10", marks=needs_perl),
)  # fmt: skip


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("name", MEASURES)
def test_measures_are_what_ir_measures_says(name: str, level: int) -> None:
    number = Random(3).random
    grades = {str(query): {f"d{n}": int(number() * 4) for n in range(60)} for query in range(20)}
    run = {str(query): {f"d{n}": number() for n in range(20, 150)} for query in range(18)}  # without ties; two lack
    measure = ir_measures.parse_measure(name)
    metric = canonical_metric(name)
    if "rel" in measure.SUPPORTED_PARAMS and "rel" not in measure.params and name not in ("NumRet", "NumRel"):
        measure = measure(rel=level)
    scores = score_run(grades, run, [name], level)
    found = {value.query_id: value.value for value in ir_measures.iter_calc([measure], grades, run)}
    if name == "NumRel":  # trec_eval -c counts the documents of queries that the run lacks
        found = {query: sum(grade >= level for grade in grades[query].values()) for query in grades}
        assert scores.aggregate[metric] == sum(found.values())
    else:
        expected = ir_measures.calc_aggregate([measure], grades, run)[measure]
        assert scores.aggregate[metric] == pytest.approx(expected, rel=0, abs=1e-9)
    assert scores.per_query[metric] == pytest.approx(found, rel=0, abs=1e-12)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        *[(name, name) for name in ("success_1", "num_ret", "num_rel", "num_rel_ret", "num_q", "gm_map", "11pt_avg")],
        *[
            (name, name)
            for name in ("set_recall", "set_P", "set_F", "set_map", "set_relative_P", "Rprec", "recip_rank")
        ],
        *[(name, name) for name in ("iprec_at_recall_0.10", "bpref", "infAP", "ndcg", "map_cut_10", "ndcg_cut_10")],
        ("hit_rate@10", "success_10"),
        ("accuracy_at_5", "success_5"),
        ("ndcg_at_10", "ndcg_cut_10"),
        ("map_at_100", "map_cut_100"),
        ("recall_at_10", "recall_10"),
        ("precision_at_5", "P_5"),
    ],
)
def test_names_of_trec_eval_mteb_and_sentence_transformers_are_what_trec_eval_c_computes(
    name: str, theirs: str, level: int
) -> None:
    qrels, run = random_fixture()
    plain = {query: {key: max(0, grade) for key, grade in grades.items()} for query, grades in qrels.items()}
    given = theirs.replace("_0.", ".0.") if "iprec" in theirs else re.sub(r"_(\d+)$", r".\1", theirs)
    complete = {query: run.get(query, {}) for query in plain}
    oracle = pytrec_eval.RelevanceEvaluator(plain, {given}, relevance_level=level).evaluate(complete)
    expected = {query: 0.0 if math.isnan(oracle[query][theirs]) else oracle[query][theirs] for query in qrels}
    if name in ("bpref", "infAP"):  # which tell documents that are judged below 0 from others
        expected = {q: v for q, v in expected.items() if min(qrels[q].values()) >= 0}
    scores = score_run(qrels, run, name, level)
    (metric,) = scores.aggregate
    assert {query: scores.per_query[metric][query] for query in expected} == pytest.approx(expected, abs=1e-12)
    if len(expected) == len(qrels):
        total = pytrec_eval.compute_aggregated_measure(theirs, list(expected.values()))
        assert scores.aggregate[metric] == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize(
    ("ranking", "expected"),
    [
        ("abd", 1.0),  # in two pairs of two is the relevant one first
        ("dab", 0.0),
        ("adbx", 3 / 4),  # of a and b before d and x, d is before b; x is not judged
        ("ab", 1.0),  # relevant alone: no pair, and nothing amiss
        ("dx", 0.0),  # nothing relevant
        ("", 0.0),
    ],
)
def test_accuracy_is_the_share_of_ordered_pairs_by_hand(ranking: str, expected: float) -> None:
    run = {"q": {document: -float(rank) for rank, document in enumerate(ranking)}}
    scores = score_run({"q": {"a": 1, "b": 2, "d": 0}, "absent": {"a": 1}}, run, ["Accuracy", "Accuracy(rel=1)@1"])
    assert scores.per_query["Accuracy"] == {"q": expected, "absent": 0.0}
    assert scores.per_query["Accuracy(rel=1)@1"]["q"] == float(ranking[:1] == "a")


@pytest.mark.parametrize("name", ["Accuracy", "Accuracy@5", "Accuracy(rel=2)"])
def test_accuracy_is_what_ir_measures_says_where_it_says_something(name: str) -> None:
    qrels, run = random_fixture()
    untied: Run = {q: {d: -float(rank) for rank, d in enumerate(head(scores, 999))} for q, scores in run.items()}
    found = score_run(qrels, run, name).per_query[name]
    theirs = {m.query_id: m.value for m in ir_measures.iter_calc([ir_measures.parse_measure(name)], qrels, untied)}
    assert len(theirs) >= 10
    assert {query: found[query] for query in theirs} == pytest.approx(theirs, abs=1e-12)
    assert {value for query, value in found.items() if query not in theirs} == {0.0}


OF_SUBTOPICS = (
    *("alpha_nDCG@10", "alpha_DCG@5", "alpha_nDCG(alpha=0.2)@20", "ERR_IA@20", "nERR_IA@20", "NRBP", "nNRBP"),
    *("AP_IA", "P_IA@5", "StRecall@10", "ERR_IA(rel=2)@20"),
)


def subtopic_fixture() -> tuple[dict[str, dict[str, dict[str, int]]], Run]:
    number = Random(7).random
    subtopics = {
        f"q{query}": {f"d{n}": {str(s): int(number() * 4) - 1 for s in range(1, 4)} for n in range(20)}
        for query in range(8)
    }
    run = {f"q{query}": {f"d{n}": number() for n in range(5, 40)} for query in range(7)}  # without ties; one lacks
    return subtopics, run


@pytest.mark.parametrize("name", OF_SUBTOPICS)
def test_measures_of_subtopics_are_what_ndeval_says(name: str, tmp_path: Path) -> None:
    subtopics, run = subtopic_fixture()
    rows = [(q, d, grade, s) for q, ds in subtopics.items() for d, of in ds.items() for s, grade in of.items()]
    measure = ir_measures.parse_measure(name)
    judged = [ir_measures.Qrel(q, d, max(0, grade), s) for q, d, grade, s in rows]
    expected = {value.query_id: value.value for value in ir_measures.iter_calc([measure], judged, run)}
    qrels = {q: {d: max(of.values()) for d, of in documents.items()} for q, documents in subtopics.items()}
    scores = score_run(qrels, run, [name, "ndcg@10"], subtopics=subtopics)
    assert scores.per_query[name] == pytest.approx(expected, abs=1e-12)
    assert scores.aggregate[name] == pytest.approx(
        ir_measures.calc_aggregate([measure], judged, run)[measure], abs=1e-9
    )
    (tmp_path / "web.qrels").write_text("".join(f"{q} {s} {d} {grade}\n" for q, d, grade, s in rows))
    write_run(tmp_path / "some.trec", run, tag="some")
    of_files = score_run_file(tmp_path / "some.trec", tmp_path / "web.qrels", [name, "ndcg@10"])
    assert of_files.per_query == scores.per_query


def test_alpha_ndcg_by_hand() -> None:
    # b covers 1 and 2; a covers 1 again, worth half. Ideal: b, then c with its 3, then a.
    subtopics = {"q": {"a": {"1": 1, "2": 0}, "b": {"1": 1, "2": 1}, "c": {"3": 1}}}
    qrels = {"q": {"a": 1, "b": 1, "c": 1}}
    found = score_run(qrels, {"q": {"b": 3.0, "a": 2.0}}, "alpha-nDCG@10", subtopics=subtopics)
    expected = (2 + 0.5 / log2(3)) / (2 + 1 / log2(3) + 0.5 / 2)
    assert found.aggregate == {"alpha_nDCG@10": pytest.approx(expected)}
    public = unimoe.score_run(qrels, {"q": {"b": 3.0, "a": 2.0}}, "alpha-nDCG@10", subtopics=subtopics)
    assert public.aggregate == found.aggregate
    for wrong, words in ((3, "subtopics are a int"), ({"q": {"a": 1}}, "subtopics of query 'q' cannot be read")):
        with pytest.raises(DataError, match=words):
            unimoe.score_run(qrels, {"q": {"b": 3.0}}, "alpha-nDCG@10", subtopics=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("lines", ["q 0 a 1\nq 0 b 0\n", "q 1 a 1\nq 2 b 1\n", "q a 1\nq b 0\n"])
def test_measures_of_subtopics_refuse_judgments_that_name_none(lines: str, tmp_path: Path) -> None:
    (tmp_path / "some.qrels").write_text(lines)  # the second column may be a round of judging
    write_run(tmp_path / "some.trec", {"q": {"a": 1.0}}, tag="some")
    reason = "'alpha_nDCG@10' needs judgments by subtopic, and there are none: give qrels whose second column names the"
    with pytest.raises(DataError, match=reason):
        score_run_file(tmp_path / "some.trec", tmp_path / "some.qrels", ["alpha_nDCG@10"])


def real_fixture() -> tuple[Qrels, dict[str, dict[str, float]], Run]:
    """Whole grades, the same by 8 or by 5 (some of which no binary fraction is), and a run."""
    qrels, run = random_fixture()
    by = {query: 8 if number % 2 else 5 for number, query in enumerate(qrels)}
    real = {query: {key: grade / by[query] + (grade > 0) for key, grade in of.items()} for query, of in qrels.items()}
    whole = {query: {key: grade + (grade > 0) * by[query] for key, grade in of.items()} for query, of in qrels.items()}
    return whole, real, run


@pytest.mark.parametrize("metric", ["ndcg", "ndcg@3", "ndcg@10", "nDCG(judged_only=True)@10"])
def test_ndcg_of_real_valued_grades_is_trec_evals_of_their_multiples(metric: str) -> None:
    whole, real, run = real_fixture()
    found, expected = score_run(real, run, metric), score_run(whole, run, metric)
    assert found.per_query[metric] == pytest.approx(expected.per_query[metric], rel=0, abs=1e-9)
    assert any(expected.per_query[metric].values())
    assert found.checks
    assert not expected.checks


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    "metric",
    [
        *("map", "mrr@10", "recall@100", "p@5", "Success@1", "Rprec", "Bpref", "RBP(rel=1)", "Judged@10", "NumRet"),
        *("NumRel", "recall_cap@10", "Accuracy", "gm_map", "AP(rel=2)", "SetF", "infAP"),
    ],
)
def test_binary_measures_count_a_real_valued_grade_where_it_reaches_the_level(metric: str, level: int) -> None:
    qrels, run = random_fixture()
    real = {q: {d: grade + 0.25 * (d > "d2") for d, grade in grades.items()} for q, grades in qrels.items()}
    assert score_run(real, run, metric, level).per_query == score_run(qrels, run, metric, level).per_query


def test_real_valued_grades_are_noted_with_the_measures_that_take_them(tmp_path: Path) -> None:
    qrels = {"q": {"a": 0.75, "b": 0.5}, "r": {"a": 1.0}}
    (check,) = score_run(qrels, {"q": {"b": 1.0}}, ["ndcg@10", "map", "AP(rel=2)"]).checks
    assert (check.name, check.weight) == ("grades", "note")
    assert check.line == (
        "grades of 1 of 2 queries are real numbers (0.75 of document 'a' for query 'q'); ndcg@10 takes them as they "
        "are; map counts a document as relevant where its grade reaches 1"
    )
    assert check.data == {"queries": 1, "as_they_are": ["ndcg@10"], "from_level": ["map"], "level": 1}
    (low,) = score_run({"q": {"a": 0.75}}, {"q": {"a": 1.0}}, ["mrr", "map"]).checks
    assert low.line.endswith("mrr, map count a document as relevant where its grade reaches 1, which none does")
    write_qrels(tmp_path / "some.qrels", qrels)
    assert (tmp_path / "some.qrels").read_text() == "q 0 a 0.75\nq 0 b 0.5\nr 0 a 1\n"
    write_run(tmp_path / "some.trec", {"q": {"b": 1.0}}, tag="some")
    scores = score_run_file(tmp_path / "some.trec", tmp_path / "some.qrels", ["ndcg@10"])
    assert scores.aggregate["ndcg@10"] == pytest.approx(0.5 / (0.75 + 0.5 / log2(3)) / 2)
    assert scores.notes[0].startswith("grades of 1 of 2 queries are real numbers")


@pytest.mark.parametrize(
    "metric", ["Compat", "BPM(max_rel=3)@10", "nDCG(gains={1:2})@10", pytest.param("ERR@20", marks=needs_perl)]
)
def test_a_measure_of_whole_grades_refuses_others_and_names_those_that_take_them(metric: str) -> None:
    line = (
        r"takes whole grades, and there is 0.5 of document 'a' for query 'q'; use ndcg@K, which takes them as they are"
    )
    with pytest.raises(DataError, match=line):
        score_run({"q": {"a": 0.5}}, {"q": {"a": 1.0}}, [metric])
    assert score_run({"q": {"a": 1.0}}, {"q": {"a": 1.0}}, [metric]).aggregate  # which is a whole number


def test_compare_takes_subtopics_and_real_valued_grades_and_tests_logarithms_of_gm_map(tmp_path: Path) -> None:
    subtopics, good = subtopic_fixture()
    poor = {query: {document: -score for document, score in scores.items()} for query, scores in good.items()}
    (tmp_path / "web.qrels").write_text(
        "".join(f"{q} {s} {d} {n}\n" for q, ds in subtopics.items() for d, of in ds.items() for s, n in of.items())
    )
    options: dict[str, Any] = {"baseline": "poor", "allow": "zeros"}
    found = compare({"good": good, "poor": poor}, tmp_path / "web.qrels", metrics=["alpha-nDCG@10"], **options)
    qrels = {q: {d: max(of.values()) for d, of in documents.items()} for q, documents in subtopics.items()}
    expected = score_run(qrels, good, "alpha_nDCG@10", subtopics=subtopics).aggregate["alpha_nDCG@10"]
    assert found.frame().set_index("system")["mean"]["good"] == pytest.approx(expected)
    with pytest.raises(
        DataError, match="has two grades for query 'q0'; for judgments by subtopic ask for a measure such"
    ):
        compare({"good": good, "poor": poor}, tmp_path / "web.qrels", **options)

    real = {query: {document: grade / 2 for document, grade in grades.items()} for query, grades in qrels.items()}
    found = compare({"good": good, "poor": poor}, real, metrics=["ndcg@10", "gm_map"], **options)
    means = found.frame().set_index(["metric", "system"])["mean"]
    scores = score_run(real, good, ["ndcg@10", "gm_map"])
    assert means["ndcg@10", "good"] == pytest.approx(scores.aggregate["ndcg@10"])
    assert math.exp(means["gm_map", "good"]) == pytest.approx(scores.aggregate["gm_map"])
    said = " ".join(found.warnings)
    assert "ndcg@10 takes them as they are; gm_map counts a document as relevant where its grade reaches 1" in said
    assert "gm_map is compared as its logarithm, the mean of log(map) over queries" in said


# nDCG@10 and MRR@10 over the 43 queries and all official judgments.
SYSTEMS = {
    "bm25": (0.5058, 0.8233),
    "bm25_rm3": (0.5216, 0.8070),
    "d_bert_kd_tasb": (0.7210, 0.9510),
    "open_ai_ada2": (0.7035, 0.9186),
    "rep_llama": (0.7384, 0.9884),
    "splade_p_p_ensemble_distil": (0.7308, 0.9729),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_real_systems_score_what_is_known_of_them_and_what_pytrec_eval_says(system: str, unimoe_data: Path) -> None:
    pool = unimoe_data / "trec-dl19-passage-pool"
    path = pool / "runs" / f"{system}.trec"
    run = pytrec_eval.parse_run(path.read_text(encoding="utf-8").splitlines())
    first_ten = {query: head(scores, 10) for query, scores in run.items()}
    keys = {"ndcg@10": "ndcg_cut_10", "map": "map", "recall@100": "recall_100", "mrr": "recip_rank"}
    for split in ("test", "full"):
        scores = score_run_file(path, pool / "qrels" / f"{split}.tsv", [*keys, "mrr@10"])
        qrels = whole_grades(read_qrels(pool / "qrels" / f"{split}.tsv"))
        whole = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "map", "recall.100", "recip_rank"}).evaluate(run)
        cut = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(first_ten)
        expected = {metric: {query: value[key] for query, value in whole.items()} for metric, key in keys.items()}
        expected["mrr@10"] = {query: value["recip_rank"] for query, value in cut.items()}
        for metric, values in expected.items():
            assert len(values) == scores.queries == 43
            assert scores.per_query[metric] == pytest.approx(values, rel=0, abs=1e-12)
            assert scores.aggregate[metric] == pytest.approx(np.mean(list(values.values())), rel=0, abs=1e-12)
    assert (scores.aggregate["ndcg@10"], scores.aggregate["mrr@10"]) == pytest.approx(SYSTEMS[system], abs=5e-5)


DL19_BM25 = {
    "map": (0.2993, 0.2476),
    "mrr@10": (0.8233, 0.7024),
    "recall@100": (0.4531, 0.4910),
    "ndcg@10": (0.5058, 0.5058),
    "Judged@10": (1.0, 1.0),
}


def test_trec_dl_at_both_levels(unimoe_data: Path) -> None:
    pool = unimoe_data / "trec-dl19-passage-pool"
    run, qrels = pool / "runs" / "bm25.trec", pool / "qrels" / "full.tsv"
    for place, level in enumerate((1, 2)):
        found = score_run_file(run, qrels, list(DL19_BM25), relevance_level=level)
        assert found.aggregate == pytest.approx({name: values[place] for name, values in DL19_BM25.items()}, abs=5e-5)
        assert (found.relevance_level, found.notes) == (level, [])
    (note,) = score_run_file(run, qrels).notes
    assert note.startswith("grades up to 3 in full.tsv: mrr@10, map, recall@100 count grade 1 as relevant; TREC DL")
