"""``compare`` from Python: dictionaries, paths and data frames."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ir_measures import RBP, nDCG
from support.runs import one_relevant, random_qrels, random_run, run_with_ranks, write_arms

from unimoe.analysis import compare as public
from unimoe.analysis import systems as systems_module
from unimoe.analysis.comparisons import ALPHA
from unimoe.core.errors import UnimoeError, UsageError
from unimoe.core.trec import Qrels, Run

QUERIES = ("q1", "q2", "q3")


def ranks(*places: int | None, depth: int = 10) -> Run:
    return run_with_ranks(dict(zip(QUERIES, places, strict=True)), depth)


class TestFromPython:
    @pytest.fixture
    def qrels(self) -> Qrels:
        return random_qrels(20, np.random.default_rng(1))

    @pytest.fixture
    def runs(self, qrels: Qrels) -> dict[str, list[Run]]:
        rng = np.random.default_rng(2)
        return {
            name: [random_run(qrels, noise, rng) for _ in range(number)]
            for name, noise, number in (("bm25", 2.0, 1), ("mono", 0.7, 3), ("duo", 0.5, 2))
        }

    def test_the_example_of_the_docstring_is_true(self) -> None:
        (example,) = doctest.DocTestFinder(recurse=False).find(public.compare, globs={"compare": public.compare})
        assert doctest.DocTestRunner().run(example) == doctest.TestResults(failed=0, attempted=len(example.examples))

    def test_files_and_dictionaries_say_the_same(
        self, tmp_path: Path, qrels: Qrels, runs: dict[str, list[Run]]
    ) -> None:
        mono, duo, path = write_arms(tmp_path, qrels, runs["mono"], runs["duo"])
        from_files = public.compare({"mono": mono, "duo": [str(file) for file in duo]}, str(path), metrics="map")
        from_runs = public.compare({"mono": runs["mono"], "duo": runs["duo"]}, {"q": qrels}["q"], metrics="map")
        same = from_files.frame().drop(columns="dataset")
        assert same.equals(from_runs.frame().drop(columns="dataset"))
        assert from_files.frame()["dataset"].unique().tolist() == ["q"]

    def test_rows_have_what_their_documentation_says(self, qrels: Qrels, runs: dict[str, list[Run]]) -> None:
        found = public.compare(runs | {"bm25": runs["bm25"][0]}, qrels, baseline="bm25", metrics=["ndcg@10", "map"])
        frame = found.frame()
        assert frame[["system", "metric"]].to_numpy().tolist() == [
            [system, metric] for system in ("bm25", "mono", "duo") for metric in ("ndcg@10", "map")
        ]
        main = frame[frame["metric"] == "ndcg@10"].set_index("system")
        assert main["runs"].to_dict() == {"bm25": 1, "mono": 3, "duo": 2}
        assert np.isnan(main["std"]["bm25"])
        assert main["difference"]["mono"] == pytest.approx(main["mean"]["mono"] - main["mean"]["bm25"])
        assert main["low"]["mono"] < main["difference"]["mono"] < main["high"]["mono"]
        assert main["wins"]["mono"] + main["ties"]["mono"] + main["losses"]["mono"] == 20
        assert main["holds_for"]["mono"] == "queries, seeds of one arm"
        assert main["letter"]["bm25"] in main["beats"]["mono"]
        others = frame[frame["metric"] == "map"].set_index("system")
        assert others["difference"]["mono"] == pytest.approx(others["mean"]["mono"] - others["mean"]["bm25"])
        assert others["letter"]["bm25"] in others["beats"]["mono"]

    def test_objects_of_ir_measures_are_metrics(self, qrels: Qrels, runs: dict[str, list[Run]]) -> None:
        objects, names = ([nDCG @ 10, RBP(rel=2)], ["ndcg@10", "RBP(rel=2)"])
        assert (
            public.compare(runs, qrels, metrics=objects)
            .frame()
            .equals(public.compare(runs, qrels, metrics=names).frame())
        )
        assert public.compare(runs, qrels, metrics=RBP(rel=2)).frame()["metric"].unique().tolist() == ["RBP(rel=2)"]

    def test_all_pairs_are_one_family_and_those_with_the_baseline_a_smaller_one(
        self, qrels: Qrels, runs: dict[str, list[Run]]
    ) -> None:
        every, few = (public.compare(runs, qrels, baseline="mono", pairs=pairs) for pairs in ("all", "baseline"))
        assert every.tests()[["system", "baseline"]].to_numpy().tolist() == [
            *(["bm25", "mono"], ["duo", "mono"], ["duo", "bm25"])
        ]
        assert few.tests()[["system", "baseline"]].to_numpy().tolist() == [["bm25", "mono"], ["duo", "mono"]]
        tests = every.tests()
        ordered = np.sort(tests["p"].to_numpy()) * [3, 2, 1]
        assert np.sort(tests["p_corrected"].to_numpy()) == pytest.approx(np.minimum(1, np.maximum.accumulate(ordered)))
        assert (tests["significant"] == (tests["p_corrected"] < ALPHA)).all()
        assert every.summary == "Every two systems: 3 comparisons, p corrected by Holm for all 3 tests"
        assert few.summary == "Each system against mono: 2 comparisons, p corrected by Holm for all 2 tests"

    def test_several_datasets_by_name(self, qrels: Qrels, runs: dict[str, list[Run]]) -> None:
        half = {query_id: grades for query_id, grades in qrels.items() if int(query_id[1:]) % 2}
        systems = {name: {"whole": of, "half": [{q: run[q] for q in half} for run in of]} for name, of in runs.items()}
        found = public.compare(systems, {"whole": qrels, "half": half})
        assert found.results.dataset_keys == ("retrieval/half", "retrieval/whole")
        assert found.tests()["dataset"].tolist() == [*["half"] * 3, *["whole"] * 3, *["average of 2"] * 3]
        assert found.overview().groups
        assert set(found.frame()["queries"]) == {10, 20}
        assert found.table("datasets").columns == ("System", "#", "half", "whole", "Average")
        assert len(found.table().groups) == 2
        with pytest.raises(UsageError, match="layout 'wide': unknown; use systems or datasets"):
            found.table("wide")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="bm25 has no run on half"):
            public.compare(systems | {"bm25": {"whole": runs["bm25"]}}, {"whole": qrels, "half": half})

    def test_seeds_pair_only_where_that_is_declared(self, qrels: Qrels, runs: dict[str, list[Run]]) -> None:
        arms = {"mono": runs["mono"][:2], "duo": runs["duo"]}
        turned = arms | {"duo": runs["duo"][::-1]}
        low = [public.compare(of, qrels).tests()["low"][0] for of in (arms, turned)]
        assert low[0] == pytest.approx(low[1], rel=1e-12)
        low = [public.compare(of, qrels, paired=True).tests()["low"][0] for of in (arms, turned)]
        assert abs(low[0] - low[1]) > 1e-6
        with pytest.raises(UsageError, match="equal in number, here are 3 of mono, 2 of duo"):
            public.compare(runs, qrels, paired=True)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"baseline": "bm52"}, "unknown arm 'bm52' (did you mean 'bm25'?)"),
            ({"pairs": "baseline"}, "pairs with the baseline need one"),
            ({"metrics": "ndgc@10"}, "unknown metric 'ndgc@10'"),
            ({"relevance_level": 0}, "relevance"),
            ({"pairs": "some"}, "pairs 'some': unknown; use all or baseline"),
            ({"correction": "sidak"}, "correction 'sidak': unknown; use holm or bh or bonferroni or none"),
            ({"family": "all"}, "family 'all': unknown; use table or dataset or baseline"),
            ({"metrics": []}, "no metric to compare by"),
            ({"depth": 2.5}, "--depth 2.5 is no whole number"),
            ({"allow": "zero"}, "--allow zero: unknown (did you mean 'zeros'?)"),
        ],
    )
    def test_wrong_wishes(self, qrels: Qrels, runs: dict[str, list[Run]], options: dict[str, Any], words: str) -> None:
        with pytest.raises(UsageError) as refusal:
            public.compare(runs, qrels, **options)
        assert words in str(refusal.value)

    def test_one_allowance_needs_no_list(self, qrels: Qrels, runs: dict[str, list[Run]]) -> None:
        (first, *others) = runs["mono"]
        short = runs | {"mono": [{q: of for q, of in first.items() if q != next(iter(qrels))}, *others]}
        assert public.compare(short, qrels, allow="zeros").results.caveats

    @pytest.mark.parametrize(
        ("systems", "words"),
        [
            ([{}, {}], "the systems are a list; give a dictionary"),
            ({"b": None}, "b run 0: NoneType where a run should be"),
            ({"b": {7: {"d": 1.0}}}, "b run 0: the id of a query, 7, is no text"),
        ],
    )
    def test_what_is_no_system_is_refused_in_words(self, systems: Any, words: str) -> None:
        with pytest.raises(UnimoeError) as refusal:
            public.compare(
                {"a": {"q": {"d": 1.0}}} | systems if isinstance(systems, dict) else systems, {"q": {"d": 1}}
            )
        assert words in str(refusal.value)

    def test_one_system_is_nothing_to_compare(self, qrels: Qrels, runs: dict[str, list[Run]]) -> None:
        with pytest.raises(UsageError, match="only mono to compare"):
            public.compare({"mono": runs["mono"]}, qrels)

    def test_few_differing_queries_have_no_test_and_say_so(self) -> None:
        qrels = one_relevant(*(f"q{i}" for i in range(20)))
        places = dict.fromkeys(qrels, 1)
        found = public.compare(
            {
                "a": [run_with_ranks(places, tail=tail) for tail in (0.0, 0.1)],
                "b": [run_with_ranks(places | {"q0": 2, "q1": 3}, tail=tail) for tail in (0.0, 0.1)],
            },
            qrels,
        )
        (row,) = found.test_rows
        assert (row["p"], row["p_corrected"], row["significant"]) == (None, None, False)
        assert "differ on 2 of 20 queries" in row["unfit"]
        json.dumps([found.score_rows, found.test_rows], allow_nan=False)


def test_pandas_is_loaded_by_frames_alone() -> None:
    assert "pandas" not in vars(systems_module)
