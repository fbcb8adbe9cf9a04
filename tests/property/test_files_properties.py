"""Files that are written come back as they were, and any bytes are read or refused in words, never otherwise."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.caption_pairs import seed_arrays
from support.toy_collections import write_beir

from unimoe.config import Experiment
from unimoe.config.files import load_experiment, overridden, parse_config
from unimoe.core.errors import UnimoeError
from unimoe.core.limits import HIGHEST_GRADE, HIGHEST_SCORE, id_problem
from unimoe.core.trec import ranked, write_qrels, write_run
from unimoe.data.collection import Collection, Document, assemble, describe_qrels
from unimoe.data.sources.beir_layout import read_beir
from unimoe.formats.qrels import read_qrels
from unimoe.formats.runs import read_run
from unimoe.metrics import canonical_metric
from unimoe.results.logs import read_conflict_logs, read_logs
from unimoe.results.runs.scoring import score_run_file
from unimoe.studies.translator.data.caption_npz import load_pairs

IDS = st.text(min_size=1, max_size=8).filter(lambda key: id_problem(key) is None)
TEXTS = st.text(max_size=40)


@st.composite
def collections(draw: st.DrawFn) -> Collection:
    corpus = draw(st.dictionaries(IDS, st.builds(Document, TEXTS, TEXTS), max_size=6))
    queries = draw(st.dictionaries(IDS, TEXTS.filter(str.strip), min_size=1, max_size=4))
    judged = draw(st.lists(st.sampled_from(sorted(queries)), min_size=1, unique=True))
    grades = st.dictionaries(st.sampled_from(sorted(corpus)) if corpus else IDS, st.integers(-2, 3), min_size=1)
    return assemble("any", "test", corpus.items(), queries.items(), {key: draw(grades) for key in judged})


@settings(max_examples=30)
@given(collections(), st.booleans())
def test_what_is_written_is_read_back(collection: Collection, compress: bool) -> None:
    with TemporaryDirectory() as root:
        write_beir(collection, Path(root, "any"), compress=compress)
        back = read_beir(Path(root, "any"), "test")
    assert back == collection
    assert back.content_hash == collection.content_hash


# Any character but spaces, control characters, lone surrogates, and the byte order mark, which is no part of the file's
# first id. No-break spaces and their kind are part of ids, but an id of nothing else is a blank.
ids = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff "), min_size=1).filter(
    str.strip
)
finite = st.floats(-HIGHEST_SCORE, HIGHEST_SCORE)  # what float32 holds: others are refused
runs = st.dictionaries(ids, st.dictionaries(ids, finite, min_size=1, max_size=8), max_size=4)


@given(runs)
def test_ids_and_scores_survive_to_the_last_bit_in_rank_order(run: dict[str, dict[str, float]]) -> None:
    with TemporaryDirectory() as folder:
        write_run(Path(folder, "some.trec"), run, tag="tag")
        back = read_run(Path(folder, "some.trec"))
    assert back == run
    assert {q: list(scores) for q, scores in back.items()} == {q: ranked(run[q]) for q in run}


@given(st.dictionaries(ids, st.dictionaries(ids, st.integers(-2, 4), min_size=1, max_size=8), max_size=4))
def test_qrels_in_both_layouts_read_the_same(qrels: dict[str, dict[str, int]]) -> None:
    beir = [f"{q}\t{d}\t{grade}" for q, grades in qrels.items() for d, grade in grades.items()]
    with TemporaryDirectory() as folder:
        Path(folder, "beir.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(beir), encoding="utf-8")
        write_qrels(Path(folder, "trec.txt"), qrels)
        assert read_qrels(Path(folder, "beir.tsv")) == read_qrels(Path(folder, "trec.txt")) == qrels


YAML = [*"a []{}-'\"|>#?~\n\té", ": ", "  ", "&x ", "*x", "<<", "!x ", "---", "1e400", ".nan", "null"]
LINES = [*"01 \t\n\ufefft", "\r\n", "q1", "d1", "Q0", "-1", "1e30", "1e308", "nan", "1_0", "query-id", "score"]
JSON = [*"{}[]1\n\\é", ": ", ", ", '"_id"', '"text"', '"step"', '"loss"', '"x"', "1e400", "-0", "NaN", "null", "true"]
TABLE = [*'01,\t\n"', "\r\n", "q1", "d1", "qid", "docno", "rank", "score", "relevance", "nan", "-1", "\u00a0"]
KEYS = ['"qid"', '"docno"', '"score"', '"results"', '"mteb_model_meta"', '"q"']
NESTED = [*"{}[]1\n", ": ", ", ", "null", *KEYS]


def beir(path: Path) -> None:
    """Read a folder of which this is one part, and the others are sound."""
    (path.parent / "qrels").mkdir()
    (path.parent / "qrels/test.tsv").write_text("x\tx\t1\n")
    for name in {"corpus.jsonl", "queries.jsonl"} - {path.name}:
        (path.parent / name).write_text('{"_id": "x", "text": "x"}')
    read_beir(path.parent, "test")


def run(path: Path) -> None:
    assert all(
        abs(score) <= HIGHEST_SCORE for scores in read_run(path, ["ranks"]).values() for score in scores.values()
    )


def qrels(path: Path) -> None:
    assert all(abs(grade) <= HIGHEST_GRADE for grades in read_qrels(path).values() for grade in grades.values())


READERS: dict[str, tuple[list[str], Callable[[Path], object]]] = {
    "some.yaml": (YAML, load_experiment),
    "some.trec": (LINES, run),
    "some.qrels": (LINES, qrels),
    "run.csv": (TABLE, run),
    "qrels.csv": (TABLE, qrels),
    "run.json": (NESTED, run),
    "qrels.json": (NESTED, qrels),
    "q.json": (JSON, lambda path: describe_qrels(path.with_name("q"))),
    "arm/seed_0/logs/train.jsonl": (JSON, lambda path: read_logs(path.parents[3])),
    "arm/seed_0/logs/gradient_conflicts.jsonl": (JSON, lambda path: read_conflict_logs(path.parents[3])),
    "corpus.jsonl": (JSON, beir),
    "queries.jsonl": (JSON, beir),
}


def read_or_refuse(read: Callable[[Path], object], name: str, content: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        with suppress(UnimoeError):
            read(path)


@pytest.mark.parametrize("name", READERS)
@given(data=st.data())
def test_files_of_likely_pieces_and_of_any_bytes(name: str, data: st.DataObject) -> None:
    pieces, read = READERS[name]
    likely = st.lists(st.sampled_from(pieces), max_size=40).map("".join).map(str.encode)
    read_or_refuse(read, name, data.draw(st.one_of(likely, st.binary(max_size=80))))


@given(st.text(max_size=30), st.text(max_size=30))
def test_overrides(key: str, value: str) -> None:
    with suppress(UnimoeError):
        parse_config(Experiment, overridden({"name": "x"}, [f"{key}={value}"]), source="some")


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.floats(), st.integers()), max_size=6))
def test_what_is_read_can_be_scored(lines: list[tuple[str, str, float, int]]) -> None:
    with TemporaryDirectory() as folder:
        run, qrels = Path(folder, "r.trec"), Path(folder, "q.qrels")
        run.write_text("".join(f"{q} Q0 {d} 1 {score!r} t\n" for q, d, score, _ in lines))
        qrels.write_text("".join(f"{q} 0 {d} {grade % 9}\n" for q, d, _, grade in lines))
        with suppress(UnimoeError):
            assert all(0.0 <= mean <= 1.0 for mean in score_run_file(run, qrels).aggregate.values())


@given(st.data())
def test_archives_with_bytes_replaced(data: st.DataObject) -> None:
    packed = io.BytesIO()
    arrays: dict[str, Any] = seed_arrays()
    np.savez(packed, **arrays)
    content = bytearray(packed.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    read_or_refuse(load_pairs, "pairs.npz", bytes(content))


@given(st.text(max_size=20))
def test_names_of_metrics(name: str) -> None:
    with suppress(UnimoeError):
        assert canonical_metric(canonical_metric(name)) == canonical_metric(name)
