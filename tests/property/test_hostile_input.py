"""Whatever the bytes of an input, a reader returns what it holds or refuses it in words; it never fails otherwise."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.caption_pairs import seed_arrays

from unimoe.config import Experiment
from unimoe.config.files import load_experiment, overridden, parse_config
from unimoe.core.errors import UnimoeError
from unimoe.core.limits import HIGHEST_GRADE, HIGHEST_SCORE
from unimoe.core.trec import read_qrels, read_run
from unimoe.data.collection_card import describe_qrels
from unimoe.data.sources.beir_layout import read_beir
from unimoe.metrics import canonical_metric
from unimoe.results.logs import read_conflict_logs, read_logs
from unimoe.results.runs.scoring import score_run_file
from unimoe.studies.translator.data.caption_npz import load_pairs

YAML = [*"a []{}-'\"|>#?~\n\té", ": ", "  ", "&x ", "*x", "<<", "!x ", "---", "1e400", ".nan", "null"]
LINES = [*"01 \t\n\ufefft", "\r\n", "q1", "d1", "Q0", "-1", "1e30", "1e308", "nan", "1_0", "query-id", "score"]
JSON = [*"{}[]1\n\\é", ": ", ", ", '"_id"', '"text"', '"step"', '"loss"', '"x"', "1e400", "-0", "NaN", "null", "true"]


def beir(path: Path) -> None:
    """Read a folder of which this is one part, and the others are sound."""
    (path.parent / "qrels").mkdir()
    (path.parent / "qrels/test.tsv").write_text("x\tx\t1\n")
    for name in {"corpus.jsonl", "queries.jsonl"} - {path.name}:
        (path.parent / name).write_text('{"_id": "x", "text": "x"}')
    read_beir(path.parent, "test")


def run(path: Path) -> None:
    assert all(abs(score) <= HIGHEST_SCORE for scores in read_run(path).values() for score in scores.values())


def qrels(path: Path) -> None:
    assert all(abs(grade) <= HIGHEST_GRADE for grades in read_qrels(path).values() for grade in grades.values())


READERS: dict[str, tuple[list[str], Callable[[Path], object]]] = {
    "some.yaml": (YAML, load_experiment),
    "some.trec": (LINES, run),
    "some.qrels": (LINES, qrels),
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
