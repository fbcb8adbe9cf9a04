"""Files that are written come back as they were: runs, qrels, collections."""

from __future__ import annotations

import tempfile
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from support.sources import write_beir

from unimoe.core.limits import HIGHEST_SCORE, id_problem
from unimoe.core.trec import ranked, read_qrels, read_run, write_qrels, write_run
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.sources.beir_layout import read_beir

IDS = st.text(min_size=1, max_size=8).filter(lambda key: id_problem(key) is None)
TEXTS = st.text(max_size=40)


@st.composite
def collections(draw: st.DrawFn) -> Collection:
    corpus = draw(st.dictionaries(IDS, st.builds(Document, TEXTS, TEXTS), max_size=6))
    queries = draw(st.dictionaries(IDS, TEXTS.filter(str.strip), min_size=1, max_size=4))
    judged = draw(st.lists(st.sampled_from(sorted(queries)), min_size=1, unique=True))
    grades = st.dictionaries(st.sampled_from(sorted(corpus)) if corpus else IDS, st.integers(-2, 3), min_size=1)
    return assemble("any", "test", corpus.items(), queries.items(), {key: draw(grades) for key in judged})


@settings(max_examples=60, deadline=None)
@given(collections(), st.booleans())
def test_what_is_written_is_read_back(collection: Collection, compress: bool) -> None:
    with tempfile.TemporaryDirectory() as root:
        write_beir(collection, Path(root, "any"), compress=compress)
        back = read_beir(Path(root, "any"), "test")
    assert back == collection
    assert back.content_hash == collection.content_hash


@settings(max_examples=60, deadline=None)
@given(collections(), st.integers(1, 5), st.integers(0, 99))
def test_samples_grow_and_stay_judged(collection: Collection, n: int, seed: int) -> None:
    small, large = collection.sample_queries(n, seed), collection.sample_queries(n + 1, seed)
    assert small.qrels.items() <= large.qrels.items() <= collection.qrels.items()
    assert small.queries.keys() == small.qrels.keys()
    assert len(small.qrels) == min(n, len(collection.qrels))


# Any character but white space, lone surrogates, and the byte order mark, which is no part of the file's first id.
ids = st.text(st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"], exclude_characters="\ufeff"), min_size=1)
finite = st.floats(-HIGHEST_SCORE, HIGHEST_SCORE)  # what float32 holds: others are refused
runs = st.dictionaries(ids, st.dictionaries(ids, finite, min_size=1, max_size=8), max_size=4)


def round_trip(run: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    with TemporaryDirectory() as folder:
        path = Path(folder, "some.trec")
        write_run(path, run, tag="tag")
        return read_run(path)


@given(runs)
def test_ids_and_scores_survive_to_the_last_bit(run: dict[str, dict[str, float]]) -> None:
    assert round_trip(run) == run


@given(runs)
def test_lines_stand_in_rank_order(run: dict[str, dict[str, float]]) -> None:
    assert {q: list(scores) for q, scores in round_trip(run).items()} == {q: ranked(run[q]) for q in run}


@given(st.dictionaries(ids, st.dictionaries(ids, st.integers(-2, 4), min_size=1, max_size=8), max_size=4))
def test_qrels_in_both_layouts_read_the_same(qrels: dict[str, dict[str, int]]) -> None:
    beir = [f"{q}\t{d}\t{grade}" for q, grades in qrels.items() for d, grade in grades.items()]
    with TemporaryDirectory() as folder:
        Path(folder, "beir.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(beir), encoding="utf-8")
        write_qrels(Path(folder, "trec.txt"), qrels)
        assert read_qrels(Path(folder, "beir.tsv")) == read_qrels(Path(folder, "trec.txt")) == qrels
