"""Every form in which people have runs and judgments gives the numbers of the TREC files."""

from __future__ import annotations

import gzip
import json
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mteb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict
from ir_measures import Qrel, ScoredDoc
from sentence_transformers import SentenceTransformer
from sentence_transformers.evaluation import InformationRetrievalEvaluator
from support.mteb_tasks import InventedRetrieval, loaded
from support.tiny_models import save_static_encoder
from support.toy_collections import invented

import unimoe
from unimoe.core.errors import DataError, UnimoeError, UsageError
from unimoe.core.trec import write_qrels, write_run
from unimoe.formats.qrels import load_qrels
from unimoe.formats.runs import load_run, read_predictions

RUN = {"q1": {"d3": 9.5, "d1": 8.25, "a d": 2.5, "d2": -1.0}, "q2": {"d2": 7.0, "d\u00a04": 0.5}, "10": {"7": 1.5}}
RUN = {query: {key.replace(" ", "_"): score for key, score in scores.items()} for query, scores in RUN.items()}
QRELS = {"q1": {"d1": 2, "d2": 1, "x": 0}, "q2": {"d\u00a04": 1}, "10": {"8": 1, "7": 3}}
SCORES = unimoe.score_run(QRELS, RUN).per_query

ROWS = [
    (query, document, rank, score)
    for query, scores in RUN.items()
    for rank, (document, score) in enumerate(scores.items(), start=1)
]
JUDGED = [(query, document, grade) for query, grades in QRELS.items() for document, grade in grades.items()]


def lines(form: str, rows: list[Any] = ROWS) -> str:
    """Write a line of this form for each row: q, d, r and s stand for query, document, rank and score or grade."""
    names = ("q", "d", "r", "s") if rows is ROWS else ("q", "d", "s")
    return "".join(form.format(**dict(zip(names, row, strict=True))) + "\n" for row in rows)


def frame(**names: str) -> pd.DataFrame:
    columns = dict(zip(("query", "document", "rank", "score"), zip(*ROWS, strict=True), strict=True))
    return pd.DataFrame({names.get(key, key): list(column) for key, column in columns.items() if names.get(key, key)})


def judged(query: str = "query_id", document: str = "doc_id", grade: str = "relevance") -> pd.DataFrame:
    return pd.DataFrame(JUDGED, columns=[query, document, grade])


def parquet(table: pd.DataFrame) -> bytes:
    return bytes(table.to_parquet())


PYTERRIER = frame(query="qid", document="docno").assign(query="a text", docid=range(len(ROWS)))
PYTERRIER["rank"] -= 1
RESULTS = [
    {
        "query_id": query,
        "query": "text",
        "results": [{"corpus_id": key, "score": score} for key, score in found.items()],
    }
    for query, found in RUN.items()
]
META = {"mteb_model_meta": {"model_name": "me/model", "revision": "x"}}
Judgment = namedtuple("Judgment", ["query_id", "doc_id", "relevance", "iteration"])

RUN_FILES: dict[str, str | bytes] = {
    "six fields": lines("{q} Q0 {d} {r} {s} t"),
    "six fields by tabs, from Windows": "\ufeff" + lines("{q}\tQ0\t{d}\t{r}\t{s}\tt\r"),
    "ranks that say nothing": lines("{q} Q0 {d} 0 {s} t"),
    "shuffled lines": "".join(sorted(lines("{q} Q0 {d} {r} {s} t").splitlines(keepends=True), key=lambda x: x[::-1])),
    "no tag": lines("{q} Q0 {d} {r} {s}"),
    "no rank": lines("{q} Q0 {d} {s} t"),
    "no Q0": lines("{q} {d} {r} {s} t"),
    "MS MARCO": lines("{q}\t{d}\t{r}"),
    "three fields, scores": lines("{q} {d} {s}"),
    "a header by spaces": "query_id doc_id score\n" + lines("{q} {d} {s}"),
    "CSV": frame(query="qid", document="docno").to_csv(index=False),
    "CSV with an index, other order": frame(query="Query ID", document="pid")[["score", "pid", "Query ID"]].to_csv(),
    "CSV without header": lines("{q}, {d}, {s}"),
    "CSV of ranks alone": frame(query="q_id", document="document_id", score="").to_csv(index=False),
    "CSV in quotes": 'qid,docid,score\n"' + lines('{q}","{d}","{s}"').replace("\n", '\n"')[:-1],
    "TSV": frame(query="query-id", document="corpus-id").to_csv(index=False, sep="\t"),
    "JSONL": frame(query="query_id", document="doc_id").to_json(orient="records", lines=True),
    "JSON records": frame(query="query_id", document="doc_id").to_json(orient="records"),
    "parquet": parquet(frame(query="qid", document="docno")),
    "ranx's parquet": parquet(frame(query="q_id", document="doc_id", rank="")),
    "JSON": json.dumps(RUN),
    "ranx's JSON": json.dumps(RUN, indent=2, ensure_ascii=False),
    "JSON, ids best first": json.dumps({query: list(scores) for query, scores in RUN.items()}),
    "JSON, pairs": json.dumps({query: list(scores.items()) for query, scores in RUN.items()}),
    "mteb": json.dumps({**META, "default": {"test": RUN}}),
    "sentence-transformers": "".join(json.dumps(one) + "\n" for one in RESULTS),
}
RUN_OBJECTS: dict[str, object] = {
    "a dictionary": RUN,
    "ids best first": {query: tuple(scores) for query, scores in RUN.items()},
    "pandas": frame(query="qid", document="docno"),
    "pandas, indexed by query": frame(query="qid", document="docno").set_index("qid"),
    "PyTerrier": PYTERRIER,
    "polars": pl.from_pandas(frame(query="query_id", document="doc_id")),
    "polars, lazy": pl.from_pandas(frame(query="query_id", document="doc_id")).lazy(),
    "pyarrow": pa.Table.from_pandas(frame(query="query_id", document="doc_id")),
    "datasets": Dataset.from_pandas(frame(query="query-id", document="corpus-id")),
    "dictionaries": frame(query="query_id", document="doc_id").to_dict("records"),
    "ir_measures": [ScoredDoc(query, document, score) for query, document, _, score in ROWS],
    "sentence-transformers": RESULTS,
}
QRELS_FILES: dict[str, str | bytes] = {
    "TREC": lines("{q} 0 {d} {s}", JUDGED),
    "TREC by tabs": lines("{q}\tQ0\t{d}\t{s}", JUDGED),
    "BEIR": "query-id\tcorpus-id\tscore\n" + lines("{q}\t{d}\t{s}", JUDGED),
    "three fields": lines("{q} {d} {s}", JUDGED),
    "ir_datasets": judged().assign(iteration="0").to_csv(index=False, sep="\t"),
    "ir_datasets by spaces": "query_id doc_id relevance iteration\n" + lines("{q} {d} {s} 0", JUDGED),
    "ir_datasets without header": lines("{q}\t{d}\t{s}\t0", JUDGED),
    "CSV, other order": judged("qid", "docno", "label")[["label", "docno", "qid"]].to_csv(index=False),
    "CSV without header": lines("{q},0,{d},{s}", JUDGED),
    "Hugging Face's parquet": parquet(judged("query-id", "corpus-id", "score")),
    "JSONL": judged("query-id", "corpus-id", "score").to_json(orient="records", lines=True),
    "JSON": json.dumps(QRELS),
}
QRELS_OBJECTS: dict[str, object] = {
    "a dictionary": QRELS,
    "pandas": judged("qid", "docno"),
    "polars": pl.from_pandas(judged()),
    "datasets": Dataset.from_pandas(judged("query-id", "corpus-id", "score")),
    "ir_measures": [Qrel(*row) for row in JUDGED],
    "ir_datasets": [Judgment(*row, "0") for row in JUDGED],
}


def stored(folder: Path, content: str | bytes, name: str = "any") -> Path:
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder / name


def test_scores_of_a_run_are_those_of_its_trec_file(tmp_path: Path) -> None:
    write_run(tmp_path / "r.trec", RUN, "t")
    write_qrels(tmp_path / "q.qrels", QRELS)
    assert unimoe.read_run(tmp_path / "r.trec") == RUN  # a no-break space is part of an id
    assert (
        unimoe.score_run(unimoe.read_qrels(tmp_path / "q.qrels"), unimoe.read_run(tmp_path / "r.trec")).per_query
        == SCORES
    )


@pytest.mark.parametrize("form", RUN_FILES)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_a_run_file_of_any_make_scores_as_the_trec_file(form: str, packed: bool, tmp_path: Path) -> None:
    content = RUN_FILES[form]
    if packed and isinstance(content, str):
        content = gzip.compress(content.encode())
    found = load_run(stored(tmp_path, content, "any.gz" if packed and content[:4] != b"PAR1" else "any"))
    assert unimoe.score_run(QRELS, found.run).per_query == SCORES
    assert found.checks == ()
    assert found.model == ("me/model" if form == "mteb" else None)


@pytest.mark.parametrize("form", RUN_OBJECTS)
def test_a_run_in_python_scores_as_the_trec_file(form: str) -> None:
    assert unimoe.score_run(QRELS, unimoe.read_run(RUN_OBJECTS[form])).per_query == SCORES


@pytest.mark.parametrize("form", QRELS_FILES)
def test_judgments_of_any_make_are_those_of_the_trec_file(form: str, tmp_path: Path) -> None:
    found = load_qrels(stored(tmp_path, QRELS_FILES[form]))
    assert found == QRELS
    assert all(type(grade) is int for grades in found.values() for grade in grades.values())


@pytest.mark.parametrize("form", QRELS_OBJECTS)
def test_judgments_in_python_are_those_of_the_trec_file(form: str) -> None:
    assert unimoe.read_qrels(QRELS_OBJECTS[form]) == QRELS


def test_grades_that_are_no_whole_numbers_are_floats(tmp_path: Path) -> None:
    found = load_qrels(stored(tmp_path, "q1 0 d1 0.5\nq1 0 d2 1\n"))
    assert found == {"q1": {"d1": 0.5, "d2": 1}}
    assert [type(grade) for grade in found["q1"].values()] == [float, int]
    assert load_qrels({"q1": {"d1": 0.5, "d2": 1}}) == found


def distances(queries: int, reversed_in: int, form: str = "{q} Q0 d{r} {r} {s} t\n") -> str:
    return "".join(
        form.format(q=f"q{query}", r=rank, s=rank if query < reversed_in else 9 - rank)
        for query in range(queries)
        for rank in range(1, 4)
    )


@pytest.mark.parametrize("form", ["{q} Q0 d{r} {r} {s} t\n", "{q} d{r} {r} {s} t\n", "{q},d{r},{r},{s}\n"])
def test_ranks_that_contradict_scores_are_refused_where_nearly_all_do_and_else_noted(form: str, tmp_path: Path) -> None:
    header = "qid,docno,rank,score\n" if "," in form else ""
    path = stored(tmp_path, header + distances(20, 18, form))
    with pytest.raises(
        DataError, match=r"any: scores rise .* 18 of 20 queries, as where distances .*negate .*fall with rank$"
    ):
        unimoe.read_run(path)
    assert len(unimoe.read_run(path, allow=["ranks"])) == 20
    (note,) = load_run(stored(tmp_path, header + distances(20, 17, form))).checks
    assert (note.weight, note.data) == ("note", {"contradicting": 17, "queries": 20})
    assert load_run(stored(tmp_path, header + distances(20, 0, form))).checks == ()


@pytest.mark.parametrize("order", ["by rank over all queries", "worst first"])
def test_ranks_are_compared_whatever_the_order_of_lines(order: str, tmp_path: Path) -> None:
    text = distances(20, 20).splitlines(keepends=True)
    text = sorted(text, key=lambda line: line.split()[3]) if order == "by rank over all queries" else text[::-1]
    assert load_run(stored(tmp_path, "".join(text))).checks[0].data == {"contradicting": 20, "queries": 20}
    sound = [line.replace(" Q0", " Q0") for line in distances(20, 0).splitlines(keepends=True)]
    assert load_run(stored(tmp_path, "".join(sound[::-1]))).checks == ()


def test_a_run_of_many_blocks_is_read_whole_and_its_wrong_line_named(tmp_path: Path) -> None:
    text = [f"q{query} Q0 d{rank * 7 % 1000}é {rank} {1000 - rank}.5 t\n" for query in range(9) for rank in range(1000)]
    run = unimoe.read_run(stored(tmp_path, "".join(text)))
    assert [len(scores) for scores in run.values()] == [1000] * 9
    assert run["q8"]["d0é"] == 1000.5
    for number, line, words in (
        (7003, "q7 Q0 d1é 1 x t\n", "score 'x' is not a number"),
        (8001, text[7999], "document .* is listed twice for query 'q7'"),
        (4500, "q4 Q0 d1\x07 1 1 t\n", "holds the control character"),
        (2000, "q4 Q0 d1 1\n", "4 fields, where the first line has 6"),
        (6000, "q4 Q0 d1 1 1_0 t\n", "score '1_0' is not a number"),
        (6000, "q4 Q0 d1 1 ١ t\n", "score '١' is not a number"),
    ):
        changed = [*text[: number - 1], line, *text[number:]]
        with pytest.raises(DataError, match=rf"any:{number}: {words}"):
            unimoe.read_run(stored(tmp_path, "".join(changed)))


REFUSED: list[tuple[Callable[[object], object], str | bytes | object, str]] = [
    (
        unimoe.read_run,
        "topic_x,passage_x,number\nq1,d1,2\n",
        "which column is the query.*topic_x.*name it query_id or qid",
    ),
    (unimoe.read_run, "qid,docno,distance\nq1,d1,2\n", "which column is the score"),
    (
        unimoe.read_run,
        lines("{q}\t{d}\t3"),
        "third column holds whole numbers that are not the ranks.*name the columns",
    ),
    (unimoe.read_run, lines("{q} {d} {r} {s}"), "any:1: a run line has 6 fields.*this one 4; name the columns"),
    (unimoe.read_run, QRELS_FILES["TREC"], "any: looks like judgments, where a run belongs: are the two swapped?"),
    (
        unimoe.read_run,
        QRELS_FILES["ir_datasets"],
        "any: looks like judgments, where a run belongs: are the two swapped?",
    ),
    (
        unimoe.read_run,
        "query-id\tcorpus-id\tscore\nq\ta\t1\nq\tb\t1\n",
        "any: looks like judgments, where a run belongs: are the two swapped?",
    ),
    (unimoe.read_qrels, RUN_FILES["six fields"], "any: looks like a run, where judgments belong: are the two swapped?"),
    (unimoe.read_qrels, RUN_FILES["no tag"], "any: looks like a run, where judgments belong: are the two swapped?"),
    (unimoe.read_qrels, RUN_FILES["CSV"], "any: looks like a run, where judgments belong: are the two swapped?"),
    (
        unimoe.read_qrels,
        "a_query\ta_document\tvalue\nq\td\t1\n",
        "which column is the query.*a_query, a_document, value",
    ),
    (unimoe.read_run, "qid,docno,score\nq,d,1\nq,d,2\n", "any:3: document 'd' is listed twice for query 'q'"),
    (unimoe.read_run, "qid,docno,score\nq,d,1\nq,e,nan\n", "any:3: score 'nan' is not finite"),
    (unimoe.read_run, "qid,docno,score\nq,d,1\nq,e\n", "any:3: a row of 2 cells, where others have 3"),
    (unimoe.read_run, '{"q": {"d": 1}\n', "any: not JSON"),
    (unimoe.read_run, '{"q": ["d", "d"]}', "any: query 'q': document 'd' is listed twice"),
    (unimoe.read_run, '{"q": {"d": null}}', "any: query 'q', document 'd': score None is no number"),
    (
        unimoe.read_run,
        '{"qid": "q", "docno": "d", "score": 1}\n{"qid": 1.5, "docno": "d", "score": 1}\n',
        "any:2: query id 1.5 is",
    ),
    (unimoe.read_run, parquet(frame(query="qid", document="docno"))[:-9], "any: not a complete parquet file"),
    (unimoe.read_run, json.dumps({**META, "de": {"test": RUN}, "en": {"test": RUN}}), "holds 2 runs.*de/test, en/test"),
    (unimoe.read_run, json.dumps({**META, "en": {"test": [1, 0]}}), "en/test holds no rankings"),
    (unimoe.read_run, DatasetDict({"test": Dataset.from_pandas(frame())}), "the run: a DatasetDict.*one split"),
    (unimoe.read_run, 7, "the run: int is no table; give a path"),
    (unimoe.read_qrels, [{"query_id": "q", "doc_id": None, "relevance": 1}], "record 1: document id None is no text"),
]


@pytest.mark.parametrize(("read", "content", "words"), REFUSED, ids=[words[:30] for *_, words in REFUSED])
def test_what_cannot_be_told_is_refused_in_one_line(
    read: Callable[[object], object], content: object, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UnimoeError, match=words) as refused:
        read(stored(tmp_path, content) if isinstance(content, str | bytes) else content)
    assert "\n" not in str(refused.value)


def test_predictions_of_mteb_are_runs_by_subset_and_split(tmp_path: Path) -> None:
    several = {**META, "de": {"test": RUN, "dev": {"q1": {"d1": 1.0}}}, "en": {"test": {"q": {"d": 1.0}}}}
    found = read_predictions(stored(tmp_path, json.dumps(several)))
    assert found.model == "me/model"
    assert found.runs == {("de", "test"): RUN, ("de", "dev"): {"q1": {"d1": 1.0}}, ("en", "test"): {"q": {"d": 1.0}}}
    with pytest.raises(DataError, match="no predictions of mteb"):
        read_predictions(stored(tmp_path, json.dumps(RUN)))


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(tmp_path, RUN_FILES["parquet"])
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r"any: reading parquet needs pyarrow.*uv sync --extra frames"):
        unimoe.read_run(path)


def test_predictions_that_sentence_transformers_writes_score_as_it_says(tmp_path: Path) -> None:
    collection = invented()
    relevant = {
        query: {key for key, grade in grades.items() if grade > 0} for query, grades in collection.qrels.items()
    }
    corpus = {key: document.full_text for key, document in collection.corpus.items()}
    model = SentenceTransformer(str(save_static_encoder(tmp_path / "model")), device="cpu")
    evaluator = InformationRetrievalEvaluator(
        collection.queries,
        corpus,
        relevant,
        ndcg_at_k=[10],
        name="toy",
        write_predictions=True,
        show_progress_bar=False,
    )
    said = evaluator(model, output_path=str(tmp_path / "out"))
    for path in (tmp_path / "out").glob("*.jsonl"):
        qrels = {query: dict.fromkeys(keys, 1) for query, keys in relevant.items() if keys}
        ours = unimoe.score_run(qrels, unimoe.read_run(path), ["ndcg@10"]).aggregate["ndcg@10"]
        assert ours == pytest.approx(said[f"toy_{path.stem.rpartition('_')[2]}_ndcg@10"], abs=1e-6)


def test_predictions_that_mteb_writes_score_as_it_says(tmp_path: Path) -> None:
    task = loaded(InventedRetrieval)
    model = mteb.SentenceTransformerEncoderWrapper(str(save_static_encoder(tmp_path / "model")), device="cpu")
    results = mteb.evaluate(
        model, task, cache=None, co2_tracker=False, show_progress_bar=False, prediction_folder=tmp_path / "found"
    )
    (path,) = (tmp_path / "found").glob("*_predictions.json")
    found = load_run(path)
    ((_, qrels),) = [(split, data["relevant_docs"]) for split, data in (task.dataset or {})["default"].items()]
    said = results.task_results[0].scores["test"][0]["ndcg_at_10"]
    assert unimoe.score_run(qrels, found.run, ["ndcg@10"]).aggregate["ndcg@10"] == pytest.approx(said, abs=1e-5)
    assert found.model
