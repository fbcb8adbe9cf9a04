"""``compare`` from Python: dictionaries, paths and data frames."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.runs import random_qrels, random_run, write_arms

from unimoe.analysis import compare as public
from unimoe.analysis import systems as systems_module
from unimoe.core.errors import UnimoeError, UsageError
from unimoe.core.trec import Run

QRELS = random_qrels(20, np.random.default_rng(1))


@pytest.fixture
def runs() -> dict[str, list[Run]]:
    rng, noises = np.random.default_rng(2), {"bm25": [2.0], "mono": [0.7] * 3, "duo": [0.5] * 2}
    return {name: [random_run(QRELS, noise, rng) for noise in of_system] for name, of_system in noises.items()}


def test_the_example_of_the_docstring_is_true() -> None:
    (example,) = doctest.DocTestFinder(recurse=False).find(public.compare, globs={"compare": public.compare})
    assert doctest.DocTestRunner().run(example) == doctest.TestResults(failed=0, attempted=len(example.examples))


def test_files_and_dictionaries_say_the_same(tmp_path: Path, runs: dict[str, list[Run]]) -> None:
    mono, duo, path = write_arms(tmp_path, QRELS, runs["mono"], runs["duo"])
    from_files = public.compare({"mono": mono, "duo": [str(file) for file in duo]}, str(path), metrics="map").frame()
    from_runs = public.compare({"mono": runs["mono"], "duo": runs["duo"]}, QRELS, metrics="map").frame()
    assert from_files.drop(columns="dataset").equals(from_runs.drop(columns="dataset"))
    assert from_files["dataset"].unique().tolist() == ["q"]


def test_several_datasets_by_name(runs: dict[str, list[Run]]) -> None:
    half = {query_id: grades for query_id, grades in QRELS.items() if int(query_id[1:]) % 2}
    systems = {name: {"whole": of, "half": [{q: run[q] for q in half} for run in of]} for name, of in runs.items()}
    found = public.compare(systems, {"whole": QRELS, "half": half})
    assert found.results.dataset_keys == ("retrieval/half", "retrieval/whole")
    assert found.tests()["dataset"].tolist() == [*["half"] * 3, *["whole"] * 3, *["average of 2"] * 3]
    assert set(found.frame()["queries"]) == {10, 20}
    assert found.table("datasets").columns == ("System", "#", "half", "whole", "Average")
    assert len(found.table().groups) == 2
    with pytest.raises(UsageError, match="layout 'wide': unknown; use systems or datasets"):
        found.table("wide")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="bm25 has no run on half"):
        public.compare(systems | {"bm25": {"whole": runs["bm25"]}}, {"whole": QRELS, "half": half})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"baseline": "bm52"}, "unknown arm 'bm52' (did you mean 'bm25'?)"),
        ({"relevance_level": 0}, "relevance"),
        ({"pairs": "some"}, "pairs 'some': unknown; use all or baseline"),
        ({"correction": "sidak"}, "correction 'sidak': unknown; use holm or bh or bonferroni or none"),
        ({"metrics": []}, "no metric to compare by"),
        ({"allow": ["queries", "zeros"]}, "give the one that suits the runs"),
        ({"depth": 2.5}, "--depth 2.5 is no whole number"),
        ({"systems": [{}, {}]}, "the systems are a list; give a dictionary"),
        ({"systems": {"a": {"q1": {"d": 1.0}}, "b": []}}, "no run of b; give one or more"),
        ({"systems": {"a": {"q1": {"d": 1.0}}, "b": None}}, "b run 0: NoneType where a run should be"),
        (
            {"systems": {"a": {"q1": {"d": 1.0}}, "b": {7: {"d": 1.0}}}},
            "query 7: the id 7 is no text; write '7'",
        ),
    ],
)
def test_wrong_wishes(runs: dict[str, list[Run]], options: dict[str, Any], words: str) -> None:
    asked: dict[str, Any] = {"systems": runs, "qrels": QRELS} | options
    with pytest.raises(UnimoeError) as refusal:
        public.compare(**asked)
    assert words in str(refusal.value)


def test_one_allowance_needs_no_list(runs: dict[str, list[Run]]) -> None:
    (first, *others) = runs["mono"]
    short = runs | {"mono": [{q: of for q, of in first.items() if q != next(iter(QRELS))}, *others]}
    assert public.compare(short, QRELS, allow="zeros").results.caveats


def test_pandas_is_loaded_by_frames_alone() -> None:
    assert "pandas" not in vars(systems_module)
