"""``unimoe compare`` with any number of systems and datasets in one table, and what should not be compared."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from support.runs import DATASETS, SYSTEMS, Arms, compare, compare_arms, dataset_options, words_of
from support.scripts import Done, assert_refused, successful

from unimoe.analysis import compare as public


def of_systems(folder: Path) -> list[str]:
    """Options: bm25 is the baseline, the others are named by their files, and one by hand."""
    where = f"{folder}/{{dataset}}"
    return [
        *("--baseline", f"{where}/bm25.trec", "--systems", f"{where}/splade.trec", f"{where}/colbert-*.trec"),
        f"mono={where}/mono-seed[123].trec",
    ]


class TestTableOfSystems:
    @pytest.fixture(scope="class")
    def made(self, systems: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
        """The paper's table of 4 systems x 3 datasets, one command."""
        out = tmp_path_factory.mktemp("paper") / "out"
        options = [*dataset_options(systems, list(DATASETS)), *of_systems(systems), "--output-dir", str(out)]
        return successful(compare(*options, "--metric", "ndcg@10", "map")), out

    def test_is_one_command(self, made: tuple[Done, Path]) -> None:
        done, out = made
        text = words_of(done)
        for words in (
            "On the average of 3 datasets, mono has the highest nDCG@10",
            "Every two systems on each of 3 datasets: 18 comparisons, p corrected by Holm for the 18 tests of each "
            "metric and for the 6 tests of its average",
            "Relevance level 1 on cran, dl19, dl20.",
            "average of 3",
            "At 95 % confidence",
            "mono − colbert",
            f"Report: {out / 'analysis' / 'report.html'}",
        ):
            assert words in text
        for name in ("overview", "comparison", "significance", "standings"):
            assert {path.suffix for path in (out / "analysis" / "tables").glob(f"{name}.*")} == {".md", ".tex", ".csv"}
        assert list((out / "analysis" / "figures").glob("*.pdf"))

    def test_letters_name_who_is_beaten(self, made: tuple[Done, Path]) -> None:
        with (made[1] / "analysis" / "tables" / "overview.csv").open(encoding="utf-8") as file:
            rows = {row["System"]: row for row in csv.DictReader(file) if row["#"]}
        assert [(name, row["#"]) for name, row in rows.items()] == [*zip(sorted(SYSTEMS), "abcd", strict=True)]
        assert rows["mono"]["cran symbols"] == "(ad)", "bm25 and splade have one run each"
        assert rows["colbert"]["cran symbols"] == "(a)"

    def test_json_and_frame_are_the_same(self, systems: Path) -> None:
        options = [*dataset_options(systems, list(DATASETS)), *of_systems(systems), "--json"]
        found = json.loads(compare(*options, "--metric", "ndcg@10", "P@5").stdout, parse_constant=pytest.fail)
        runs: dict[str, Any] = {name: {} for name in SYSTEMS}
        for run in found["runs"]:
            runs[run["system"]].setdefault(run["dataset"], []).append(run["path"])
        qrels = {dataset: systems / f"{dataset}.qrels" for dataset in DATASETS}
        there = public.compare(runs, qrels, baseline="bm25", metrics=["ndcg@10", "P@5"])
        for name, frame in (("scores", there.frame()), ("comparisons", there.tests()), ("ranks", there.ranks())):
            assert list(frame.columns) == list(found[name][0])
            for row, same in zip(found[name], frame.astype(object).to_dict("records"), strict=True):
                for column, value in row.items():
                    missing = same[column] is None or same[column] != same[column]  # pandas has NaN for null in numbers
                    assert missing if value is None else same[column] == value
        assert there.frame()["metric"].unique().tolist() == ["ndcg@10", "p@5"]

    @pytest.mark.usefixtures("without_report")
    def test_any_folder_of_results_is_compared(self, made: tuple[Done, Path], tmp_path: Path) -> None:
        folder = made[1]
        found = json.loads(compare("--results", folder, "--baseline", "bm25", "--json").stdout)
        assert [len(found[key]) for key in ("datasets", "comparisons", "scores")] == [3, 2 * (18 + 6), 24]
        chosen = ("--systems", "mono", "colbert", "--dataset", "dl19", "retrieval/cran", "--metric", "map")
        found = json.loads(compare("--results", folder, *chosen, "--json").stdout)
        assert {(row["dataset"], row["metric"]) for row in found["scores"]} == {("dl19", "map"), ("cran", "map")}
        assert [(c["system"], c["baseline"]) for c in found["comparisons"]] == [("colbert", "mono")] * 3
        successful(compare("--results", folder, *chosen, "--output-dir", tmp_path / "copy"))
        again = json.loads(compare("--results", tmp_path / "copy", "--json").stdout)
        found, again = ([row["p"] for row in of["comparisons"]] for of in (found, again))
        assert again == pytest.approx(found)


def test_the_example_shows_the_options_that_do_it() -> None:
    done = compare("--example", "--metric", "P@1", "--json")
    assert {run["system"] for run in json.loads(done.stdout)["runs"]} == {"bm25", "specialist", "joint", "zero_shot"}
    assert "unimoe compare --baseline bm25=" in done.stderr


def test_the_baseline_may_be_named_among_the_systems(systems: Path) -> None:
    shared = [*map(str, dataset_options(systems, ["dl19"])), "--json", "--systems"]
    runs = [f"first={systems}/dl19/bm25.trec", f"mono={systems}/dl19/mono-seed1.trec"]
    found = json.loads(compare(*shared, runs[1], runs[0], "--baseline", "first").stdout)
    assert found["baseline"] == "first"
    apart = json.loads(compare(*shared, runs[1], "--baseline", runs[0]).stdout)
    assert found["comparisons"] == apart["comparisons"]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("--metric ndcg@10 map", 2, ["--metric ndcg@10 map", "one metric"]),
        ("--allow dpeth", 2, ["--allow dpeth", "did you mean 'depth'?"]),
        ("--joint-name specialist", 2, ["both arms are named 'specialist'"]),
        ("--queries nowhere.tsv", 3, ["nowhere.tsv: no such file"]),
        ("--paired", 2, ["equal in number", "2 of specialist, 3 of joint on q"]),
        ("--overwrite", 2, ["--output-dir"]),
        ("--systems c.trec", 2, ["--systems does not belong here", "a verdict"]),
        ("--results outputs", 2, ["--results does not belong here"]),
        ("--layout datasets", 2, ["--layout does not belong here", "a verdict"]),
        ("--max-queries 3", 2, ["--max-queries is for models by name, and there are none; leave it out"]),
        ("--gates nowhere.yaml", 3, ["nowhere.yaml"]),
        ("--gates x.yaml --looks 3", 2, ["write `looks` into the gate file"]),
        ("--looks 5 3", 2, ["--looks 5 3: ", "does not ascend"]),
        ("--dataset a b", 2, ["--dataset NAME=QRELS"]),
        ("--dataset x=other.qrels", 2, ["--dataset x=other.qrels: --qrels names the judgments already"]),
    ],
)
def test_an_option_that_a_verdict_cannot_have_is_refused(arms: Arms, options: str, code: int, words: list[str]) -> None:
    assert_refused(compare_arms(arms, *options.split()), code, *words)


def test_what_a_table_cannot_show_is_refused(systems: Path) -> None:
    here, two = dataset_options(systems, ["dl19"]), dataset_options(systems, ["dl19", "dl20"])
    bm25, mono = f"{systems}/dl19/bm25.trec", f"{systems}/{{dataset}}/mono-seed*.trec"
    both = [*here, "--systems", bm25, mono]
    for options, code, words in (
        ([*here, "--systems", bm25, "nothing-*.trec"], 3, ["--systems nothing-*.trec: no file matches"]),
        ([*here, "--systems", bm25, "nothing.trec"], 3, ["nothing.trec: no such file"]),
        ([*two, "--systems", bm25, mono], 2, ["--systems", "the same files for 2 datasets", "{dataset}"]),
        ([*here, "--systems", f"a={bm25}", f"a={mono}"], 2, ["two systems are named 'a'"]),
        ([*here, "--systems", f"a={bm25}", f"b={bm25}"], 3, ["holds the same rankings", "--allow duplicates"]),
        ([*here, "--baseline", bm25], 2, ["only bm25 to compare"]),
        ([*both, *here], 2, ["two datasets are named 'dl19'"]),
        (["--systems", bm25, mono], 2, ["no judgments", "--qrels FILE"]),
        ([*both, "--pairs", "baseline"], 2, ["--baseline"]),
        ([*both, "--layout", "rows"], 2, ["--layout"]),
        ([*both, "--gates", "kill"], 2, ["--gates does not belong here"]),
        (["--example", "--qrels", "q.tsv"], 2, ["leave it out, or --qrels"]),
        ([*here], 2, ["nothing to compare"]),
        (["--specialist", bm25, *here], 2, ["no run file of joint", "--joint"]),
    ):
        assert_refused(compare(*options), code, *words)


@pytest.mark.usefixtures("without_report")
def test_what_a_folder_does_not_hold_is_refused(arms: Arms, tmp_path: Path) -> None:
    out = tmp_path / "out"
    compare_arms(arms, "--output-dir", out)
    for options, code, words in (
        (["--systems", "jiont"], 2, ["unknown arm 'jiont'", "did you mean 'joint'?"]),
        (["--baseline", "bm25"], 2, ["unknown arm 'bm25'"]),
        (["--dataset", "z"], 2, ["--dataset z", "retrieval/q"]),
        (["--systems", "joint"], 2, ["only joint to compare"]),
        (["--metric", "ERR@20"], 3, ["no per-query 'ERR@20'"]),
        (["--paired"], 2, ["--paired does not belong here"]),
        (["--output-dir", out], 2, ["choose another folder"]),
    ):
        assert_refused(compare("--results", out, *options), code, *words)
    assert_refused(compare("--results", tmp_path / "none"), 3, "no results here")


def test_runs_and_judgments_that_do_not_fit_are_refused(one_query: Arms) -> None:
    (_, (run,), qrels) = one_query
    for text, words in (("", ["b1.trec: no line in it"]), ("q8 Q0 d 1 2 t\n", ["judges none of", "b1.trec", "'q8'"])):
        run.write_text(text)
        assert_refused(compare_arms(one_query), 3, *words)
    run.unlink()
    assert_refused(compare_arms(one_query), 3, "b1.trec: no such file")
    qrels.unlink()
    assert_refused(compare_arms(one_query), 3, "q.tsv: no such file")
