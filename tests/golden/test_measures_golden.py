"""Measures at both relevance levels: by hand, by named oracles, on real systems, and as they were to the bit."""

from __future__ import annotations

import shutil
from hashlib import sha256
from math import log2
from pathlib import Path
from random import Random

import ir_measures
import numpy as np
import pytest
import pytrec_eval

from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import Qrels, Run, head, write_qrels, write_run
from unimoe.formats.qrels import read_qrels
from unimoe.metrics import canonical_metric, score_run
from unimoe.metrics.scoring import computable_metrics
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
    if name == "NumRel" and level == 2:
        with pytest.raises(UsageError, match="'NumRel': nothing computes it at relevance level 2; leave it out"):
            computable_metrics([name], level)
        return
    scores = score_run(grades, run, [name], level)
    found = {value.query_id: value.value for value in ir_measures.iter_calc([measure], grades, run)}
    if name == "NumRel":  # trec_eval -c counts the documents of queries that the run lacks
        found = {query: sum(grade > 0 for grade in grades[query].values()) for query in grades}
        assert scores.aggregate[metric] == sum(found.values())
    else:
        expected = ir_measures.calc_aggregate([measure], grades, run)[measure]
        assert scores.aggregate[metric] == pytest.approx(expected, rel=0, abs=1e-9)
    assert scores.per_query[metric] == pytest.approx(found, rel=0, abs=1e-12)


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
        qrels = read_qrels(pool / "qrels" / f"{split}.tsv")
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
