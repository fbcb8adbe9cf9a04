"""Importing collections: what people have becomes the folder layout, whole, or one line says why not."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset, DatasetDict
from support.scripts import call_unimoe, successful
from support.toy_collections import content, write_beir

from unimoe.core.errors import DataError, UsageError
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.importing import read_folder, read_pairs
from unimoe.data.sources.beir_layout import read_beir

CORPUS = {
    "d1": Document(" Red", 'a "red"\nfish, dried'),
    "2": Document("", "blue\u2028bird"),
    "d3": Document("Lone", "no judgment"),
}
QUERIES = {"q1": "what is red?", "7": "blue bird", "u": "judged nowhere", "q4": "of dev"}
QRELS = {"test": {"q1": {"d1": 2, "2": 0}, "7": {"2": 1}}, "dev": {"q4": {"d1": 1}}}


def expected(split: str) -> Collection:
    other = QRELS["dev" if split == "test" else "test"]
    return assemble("toy", split, CORPUS.items(), QUERIES.items(), QRELS[split], judged_elsewhere=other)


def records(part: str) -> list[dict[str, Any]]:
    if part == "corpus":
        return [{"_id": key, "title": title, "text": text} for key, (title, text) in CORPUS.items()]
    if part == "queries":
        return [{"_id": key, "text": text} for key, text in QUERIES.items()]
    return [{"query-id": q, "corpus-id": d, "score": g} for q, of in QRELS[part].items() for d, g in of.items()]


def as_csv(folder: Path) -> list[str | Path]:
    """Names of other tools, an index of pandas, and columns in another order."""
    documents = pd.DataFrame(records("corpus"))
    documents.rename(columns={"_id": "docno", "text": "body"})[["body", "docno", "title"]].to_csv(folder / "docs.csv")
    pd.DataFrame(records("queries")).rename(columns={"_id": "qid", "text": "query"}).to_csv(
        folder / "q.csv", index=False
    )
    for split in QRELS:
        frame = pd.DataFrame(records(split)).rename(columns={"query-id": "q_id", "corpus-id": "pid", "score": "label"})
        frame[["label", "pid", "q_id"]].to_csv(folder / f"qrels_{split}.tsv", sep="\t", index=False)
    return [
        *("--corpus", folder / "docs.csv", "--queries", folder / "q.csv"),
        *("--qrels", folder / "qrels_test.tsv", "--qrels", folder / "qrels_dev.tsv"),
    ]


def lines(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def trec(folder: Path, split: str) -> Path:
    path = folder / f"{split}.txt"
    path.write_text("".join(f"{q}\t0\t{d}\t{g}\n" for q, of in QRELS[split].items() for d, g in of.items()))
    return path


def hit(row: dict[str, Any]) -> dict[str, Any]:
    return {"_index": "i", "_id": row["_id"], "_score": 1.5, "_source": {k: v for k, v in row.items() if k != "_id"}}


def as_dump(folder: Path) -> list[str | Path]:
    corpus = lines(folder / "corpus.dump", [hit(row) for row in records("corpus")])
    answer = {
        "took": 3,
        "timed_out": False,
        "hits": {"total": {"value": 4}, "hits": [hit(row) for row in records("queries")]},
    }
    queries = folder / "answer"
    queries.write_text(json.dumps(answer, indent=1))
    judged: list[str | Path] = [*("--qrels", trec(folder, "test")), *("--qrels", trec(folder, "dev"))]
    return ["--corpus", corpus, "--queries", queries, *judged]


def as_bulk(folder: Path) -> list[str | Path]:
    parts: list[str | Path] = []
    for part in ("corpus", "queries"):
        rows = [one for row in records(part) for one in ({"index": {"_id": row.pop("_id")}}, row)]
        parts += [f"--{part}", lines(folder / part, rows)]
    return [*parts, *("--qrels", trec(folder, "test")), *("--qrels", trec(folder, "dev"))]


def as_hub_jsonl(folder: Path) -> list[str | Path]:
    for part in ("corpus", "queries", "qrels/test", "qrels/dev"):
        lines(folder / "hub" / f"{part}.jsonl", records(part.rpartition("/")[2]))
    (folder / "hub" / "README.md").write_text("# a card")
    return [folder / "hub"]


def as_hub_parquet(folder: Path) -> list[str | Path]:
    for number, row in enumerate(records("corpus")):
        path = folder / "hub" / "corpus" / f"corpus-{number:05}-of-00003.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame([row]).to_parquet(path)
    for part, name in (("queries", "queries/queries"), ("test", "data/test"), ("dev", "data/dev")):
        path = folder / "hub" / f"{name}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        frame = pd.DataFrame(records(part))
        (frame.astype({"score": float}) if "score" in frame else frame).to_parquet(path)
    return [folder / "hub"]


def as_saved(folder: Path) -> list[str | Path]:
    def table(part: str) -> Dataset:
        return Dataset.from_list(records(part))

    DatasetDict({"corpus": table("corpus")}).save_to_disk(folder / "hub" / "corpus")
    table("queries").save_to_disk(folder / "hub" / "queries")
    DatasetDict({split: table(split) for split in QRELS}).save_to_disk(folder / "hub" / "qrels")
    return [folder / "hub"]


def as_layout(folder: Path) -> list[str | Path]:
    write_beir(expected("test"), folder / "hub")
    lines(folder / "hub" / "queries.jsonl", records("queries"))
    (folder / "hub" / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\nq4\td1\t1\n")
    return [folder / "hub"]


@pytest.mark.parametrize(
    "written", [as_csv, as_dump, as_bulk, as_hub_jsonl, as_hub_parquet, as_saved, as_layout], ids=lambda f: f.__name__
)
def test_what_people_have_becomes_the_same_collection(
    written: Callable[[Path], list[str | Path]], tmp_path: Path
) -> None:
    done = successful(call_unimoe("import", *written(tmp_path), "--output-dir", tmp_path / "out"))
    assert done.stdout.startswith("3 documents, 4 queries, language en\n")
    assert (
        "test: 2 queries with 3 judgments (1 of grade 0, 1 of grade 1, 1 of grade 2), 1 documents without"
        in done.stdout
    )
    for split in QRELS:
        found = load_collection(f"path:{tmp_path / 'out'}", split)
        assert content(found) == content(expected(split))
        assert found.content_hash == expected(split).content_hash
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_python_makes_one_of_frames_records_mappings_and_files(tmp_path: Path) -> None:
    frames = [pd.DataFrame(records(part)) for part in ("corpus", "queries", "test")]
    files = [lines(tmp_path / part, records(part)) for part in ("corpus", "queries", "test")]
    for parts in (frames, files, [CORPUS, QUERIES, QRELS["test"]], [records(p) for p in ("corpus", "queries", "test")]):
        found = Collection.from_frames(*parts, name="mine", excludes_self=True)
        assert (found.name, found.excludes_self, found.queries) == ("mine", True, QUERIES)
        assert (found.corpus, found.qrels) == (CORPUS, QRELS["test"])
    plain = Collection.from_frames({"d": "red"}, {"q": "red"}, pd.DataFrame({"query_id": ["q"], "doc_id": ["d"]}))
    assert (plain.corpus, plain.qrels) == ({"d": Document("", "red")}, {"q": {"d": 1}})
    with pytest.raises(UsageError, match="no language 'english'"):
        Collection.from_frames(CORPUS, QUERIES, QRELS["test"], language="english")


def test_one_table_of_labelled_pairs_is_a_collection(tmp_path: Path) -> None:
    rows = ("anchor,positive,label", "red,a red fish,1", "red,a blue bird,0", "blue,a blue bird,2", "red,a red fish,1")
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    successful(
        call_unimoe("import", "--table", tmp_path / "pairs.csv", "--output-dir", tmp_path / "out", "--split", "dev")
    )
    found = read_beir(tmp_path / "out", "dev")
    assert found.corpus == {"d1": Document("", "a red fish"), "d2": Document("", "a blue bird")}
    assert (found.queries, found.qrels) == ({"q1": "red", "q2": "blue"}, {"q1": {"d1": 1, "d2": 0}, "q2": {"d2": 2}})
    named = pd.DataFrame({"qid": [5, 5], "query": ["red", "red"], "docid": ["x", "y"], "text": ["same", "same"]})
    assert read_pairs(named, "test").qrels == {"test": {"5": {"x": 1, "y": 1}}}


def test_columns_are_named_where_nobody_knows_their_names(tmp_path: Path) -> None:
    (tmp_path / "docs.csv").write_text("nr,inhalt\nA,red fish\nB,blue bird\n")
    (tmp_path / "q.tsv").write_text("1\tred\n2\tblue\n")  # as MS MARCO's, without a header
    (tmp_path / "qrels.csv").write_text("topic,docno,stars,label\n1,A,3,x\n")
    parts = [tmp_path / name for name in ("docs.csv", "q.tsv", "qrels.csv")]
    columns = {"corpus.id": "nr", "corpus.text": "inhalt", "queries.id": "1", "queries.text": "2", "grade": "stars"}
    found = Collection.from_frames(*parts, columns=columns)
    assert (found.corpus["A"].text, found.queries, found.qrels) == (
        "red fish",
        {"1": "red", "2": "blue"},
        {"1": {"A": 3}},
    )
    for wrong, words in (
        ({**columns, "grade": "sterne"}, "qrels.csv: no column 'sterne' for grade; it has topic, docno, stars, label"),
        ({**columns, "text": "inhalt "}, "no table has a column 'inhalt ' for text"),
        ({**columns, "tittle": "x"}, "there is no field 'tittle'; name one of corpus.id"),
    ):
        with pytest.raises(UsageError, match=words):
            Collection.from_frames(*parts, columns=wrong)


def as_pipe(path: Path, text: str) -> Path:
    """Return what ``<(command)`` of a shell gives, which can be read once."""
    os.mkfifo(path)
    threading.Thread(target=path.write_text, args=(text,), daemon=True).start()
    return path


@pytest.mark.parametrize(
    "judged",
    [
        {"q1": {"d1": 2, "d2": 0}},
        json.dumps({"q1": {"d1": 2, "d2": 0}}, indent=1),
        "q1 0 d1 2\nq1 0 d2 0\n",
        "query_id;doc_id;label\nq1;d1;2\nq1;d2;0\n",
        "query_id,doc_id,score,relevance\nq1,d1,7,2\nq1,d2,9,0\n",  # the score of a system, as read_qrels knows
    ],
)
def test_judgments_are_read_as_everywhere(judged: object, tmp_path: Path) -> None:
    if isinstance(judged, str):
        judged = as_pipe(tmp_path / "qrels", judged)
    assert Collection.from_frames({"d1": "a", "d2": "b"}, {"q1": "a"}, judged).qrels == {"q1": {"d1": 2, "d2": 0}}


@pytest.mark.parametrize("column", ["relevant,0,1", "my_rating,low,high", "value,False,True"])
def test_a_column_that_may_hold_grades_is_never_left_out_in_silence(column: str, tmp_path: Path) -> None:
    name, low, high = column.split(",")
    for part, ids in (("qrels", ("query_id", "doc_id", "q1", "d1", "d2")), ("table", ("query", "text", "a", "b", "c"))):
        query, document, q, first, second = ids
        (tmp_path / part).write_text(f"{query},{document},{name}\n{q},{first},{low}\n{q},{second},{high}\n")
    with pytest.raises(DataError, match=rf"is '{name}' the grade\? name it by --columns qrels.grade={name}"):
        Collection.from_frames({"d1": "a", "d2": "b"}, {"q1": "a"}, tmp_path / "qrels")
    with pytest.raises(DataError, match=rf"table: is '{name}' the grade\? name it by --columns table.grade={name}"):
        read_pairs(tmp_path / "table", "test")
    if low != "low":
        found = read_pairs(tmp_path / "table", "test", {"grade": name})
        assert found.qrels == {"test": {"q1": {"d1": 0, "d2": 1}}}


def test_excluded_ids_of_any_list_are_kept_and_others_refused(tmp_path: Path) -> None:
    for ids in (["d2"], np.array(["d2"]), ("d2",)):
        queries = pd.DataFrame({"_id": ["q1"], "text": ["a"], "excluded_ids": [ids]})
        found = Collection.from_frames({"d1": "a", "d2": "b"}, queries, {"q1": {"d1": 1}})
        assert found.excluded == {"q1": {"d2"}}
    with pytest.raises(DataError, match="excluded_ids is 'd2'; write a list"):
        Collection.from_frames({"d1": "a"}, [{"_id": "q1", "text": "a", "excluded_ids": "d2"}], {"q1": {"d1": 1}})


def test_folders_hold_more_than_a_collection_and_judgments_of_trec(tmp_path: Path) -> None:
    lines(tmp_path / "passages.jsonl", records("corpus"))
    lines(tmp_path / "queries.jsonl", records("queries"))
    lines(tmp_path / "top_ranked" / "test.jsonl", [{"query-id": "q1", "corpus-ids": ["d1"]}])
    lines(tmp_path / "instruction" / "test.jsonl", [{"query-id": "q1", "instruction": "find it"}])
    trec(tmp_path, "test").rename(tmp_path / "qrels.txt")
    assert read_folder(tmp_path).qrels == {"test": QRELS["test"]}


GOOD = {
    "docs.csv": "id,text\nd1,red\nd2,blue\n",
    "q.csv": "id,text\nq1,red\n",
    "qrels.csv": "qid,docno,label\nq1,d1,1\n",
}


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("docs.csv", "id,text\nd1,red\nd2\n", "docs.csv:3: a row of 1 cells"),
        ("docs.csv", 'id,text\nd1,"red\nfish"\n"d 2",blue\n', "docs.csv:4: id 'd 2' is empty or holds white space"),
        ("docs.csv", "id,text\n,red\n", "docs.csv:2: id '' is empty"),
        ("docs.csv", "id,text\nd1,red\nd1,blue\n", "docs.csv:3: document 'd1' has another text in a row above"),
        ("docs.csv", '{"_id": "d1", "text": "red"}\n{"_id": "d2", "text": null}\n', "docs.csv:2: there is no text"),
        ("docs.csv", '{"_id": "d1", "text": ["red"]}\n', r"docs.csv:1: text is \['red'\], no text"),
        ("docs.csv", '{"_id": 1.5, "text": "red"}\n', "docs.csv:1: id is 1.5; write a text or a whole number"),
        (
            "docs.csv",
            "nr,text\nd1,red\n",
            "docs.csv: no column is the id of the corpus, such as _id, id.* has nr, text",
        ),
        ("docs.csv", "red\nblue\n", "docs.csv: no column is the id.*its first line names none"),
        ("q.csv", "id,text\nq1,\n", "query 'q1' is judged in split 'test' but has an empty text"),
        ("qrels.csv", "qid,docno,label\nq1,d1,1\nq9,d1,1\n", "qrels.csv:3: query 'q9' is not among the queries"),
        ("qrels.csv", "qid,docno,label\nq1,d1,yes\n", "qrels.csv:2: grade 'yes' is not a number"),
        ("qrels.csv", "qid,docno,label\nq1,d1,0.5\n", "qrels.csv:2: grade '0.5' is not a whole number"),
        ("qrels.csv", "qid,docno,label\nq1,d1,1\nq1,d1,2\n", "qrels.csv:3: query 'q1' and document 'd1' have another"),
        ("qrels.csv", "qid,docno,label\nq1,x,1\n", "no judged document is in the corpus: x, and the corpus has d1, d2"),
        ("qrels.csv", "qid,docno,label\n", "holds no judgments"),
        ("qrels.csv", "qid,docno,rank,score\nq1,d1,1,14\n", "qrels.csv: looks like a run"),
        ("qrels.csv", "q1 0 d1 1\nq9 0 d1 1\n", "qrels.csv: query 'q9' is not among the queries"),
        ("docs.csv", json.dumps({"hits": {"total": {"value": 9}, "hits": []}}), "docs.csv: holds 0 of 9 hits"),
    ],
)
def test_half_made_input_is_refused_with_its_row_and_nothing_is_written(
    file: str, content: str, words: str, tmp_path: Path
) -> None:
    for name, text in (GOOD | {file: content}).items():
        (tmp_path / name).write_text(text)
    parts = [tmp_path / name for name in GOOD]
    with pytest.raises(DataError, match=words) as refused:
        Collection.from_frames(*parts)
    done = call_unimoe(
        *("import", "--corpus", parts[0], "--queries", parts[1], "--qrels", parts[2], "--output-dir", tmp_path / "out")
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert str(refused.value).rpartition(": ")[2].split(";")[0] in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == set(GOOD)


def test_half_a_surrogate_pair_of_json_is_kept(tmp_path: Path) -> None:
    lines(tmp_path / "pairs.jsonl", [{"query": "half \ud83d", "document": "a \ud83d pair", "label": 1}])
    successful(call_unimoe("import", "--table", tmp_path / "pairs.jsonl", "--output-dir", tmp_path / "out"))
    found = read_beir(tmp_path / "out", "test")
    assert (found.corpus["d1"].text, found.queries["q1"]) == ("a \ud83d pair", "half \ud83d")


def test_it_says_what_it_found_and_states_the_language(tmp_path: Path) -> None:
    corpus = [{"_id": f"d{n}", "text": text} for n, text in enumerate(["서울의 봄", "부산의 여름", ""])]
    lines(tmp_path / "corpus.jsonl", [*corpus, corpus[0]])
    lines(tmp_path / "queries.jsonl", [{"_id": "q1", "text": "서울"}, {"_id": "q2", "text": "부산"}])
    lines(tmp_path / "qrels.jsonl", [{"query_id": "q1", "doc_id": key, "score": 1} for key in ("d0", "gone")])
    done = successful(call_unimoe("import", tmp_path, "--output-dir", tmp_path / "out", "--name", "mine"))
    for kind in ("duplicate documents: 1 (d0)", "empty documents: 1 (d2)", "unjudged queries: 1 (q2)"):
        assert f"mine: {kind}\n" in done.stderr
    assert "mine: judgments of unknown documents: 1 of 2 (gone)" in done.stderr
    assert "in Hangul, so BM25 reads them as" in done.stderr
    assert json.loads((tmp_path / "out" / "collection.json").read_text()) == {"name": "mine", "language": "ko"}


def test_a_folder_that_holds_anything_is_kept(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("query,document\nred,a red fish\n")
    parts: list[str | Path] = ["import", "--table", tmp_path / "pairs.csv", "--output-dir"]
    out = tmp_path / "out"
    out.mkdir()
    successful(call_unimoe(*parts, out))
    for folder, words in ((out, "replace it by --overwrite"), (tmp_path, "holds out, pairs.csv, which is no part")):
        done = call_unimoe(*parts, folder, *(["--overwrite"] if folder == tmp_path else []))
        assert (done.returncode, words in done.stderr) == (2, True)
    successful(call_unimoe(*parts, out, "--overwrite", "--split", "dev"))
    assert [path.name for path in (out / "qrels").iterdir()] == ["dev.tsv"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--table", "x.csv", "--corpus", "y.csv"], 2, "give a FOLDER, or --corpus, --queries and --qrels, or --table"),
        (["--corpus", "x.csv"], 2, "give a FOLDER, or"),
        (["--table", "x.csv"], 3, "x.csv: no such file"),
        (["absent"], 3, "absent: no such folder"),
        (["."], 3, "no file or folder corpus; name the files by --corpus"),
        (["--table", "pairs.csv", "--split", "../x"], 2, "split '../x' cannot be that of a folder"),
        (["--table", "pairs.csv", "--split", ""], 2, "split '' is empty"),
        (["--table", "pairs.csv", "--columns", "text"], 2, "--columns text: write FIELD=COLUMN"),
        (["--table", "pairs.csv", "--language", "german"], 2, "language: there is no language 'german'"),
    ],
)
def test_wrong_usage_is_one_line(
    words: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.csv").write_text("query,document\nred,a red fish\n")
    done = call_unimoe("import", *words, "--output-dir", "out")
    assert (done.returncode, done.stderr.count("\n"), Path("out").exists()) == (code, 1, False)
    assert said in done.stderr


def test_a_file_given_as_a_folder_names_the_command_that_makes_one(tmp_path: Path) -> None:
    (tmp_path / "docs.csv").write_text("id,text\n")
    with pytest.raises(DataError, match=r"docs\.csv: this is a file, and a collection is a folder; .* unimoe import"):
        load_collection(f"path:{tmp_path / 'docs.csv'}", "test")


@pytest.mark.parametrize("given", ["tickets", "path:tickets", "path:tickets@dev"])
def test_a_folder_given_as_judgments_names_the_files_that_are(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_beir(expected("test"), Path("tickets"))
    for name, first in (("a.json", "d1"), ("b.json", "2")):
        lines(Path(name), [{key: {first: 1.0} for key in QRELS["test"]}])
    for words in (["evaluate-run", "a.json"], ["compare", "--systems", "a.json", "b.json", "--dataset"]):
        done = call_unimoe(*words, given)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "a run is scored by a file of judgments; give tickets/qrels/test.tsv" in done.stderr
        successful(call_unimoe(*words, "tickets/qrels/test.tsv"))
