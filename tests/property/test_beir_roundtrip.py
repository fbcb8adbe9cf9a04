from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from support.sources import write_beir

from unimoe.core.limits import id_problem
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
