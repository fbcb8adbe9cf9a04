"""``unimoe compare`` with any number of systems and datasets: one table."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.compare_command import DATASETS, compare, words_of
from support.runs import SYSTEMS, dataset_options
from support.scripts import MAIN, Done, successful

from unimoe.analysis import compare as public


def of_systems(folder: Path) -> list[str]:
    """Options: bm25 is the baseline, the others are named by their files, and one by hand."""
    where = f"{folder}/{{dataset}}"
    return [
        *("--baseline", f"{where}/bm25.trec", "--systems", f"{where}/splade.trec", f"{where}/colbert-*.trec"),
        f"mono={where}/mono-seed[123].trec",
    ]


def test_the_baseline_may_be_named_among_the_systems(systems: Path) -> None:
    shared = [*map(str, dataset_options(systems, ["dl19"])), "--json", "--systems"]
    runs = [f"first={systems}/dl19/bm25.trec", f"mono={systems}/dl19/mono-seed1.trec"]
    found = json.loads(compare(*shared, runs[1], runs[0], "--baseline", "first").stdout)
    assert found["baseline"] == "first"
    apart = json.loads(compare(*shared, runs[1], "--baseline", runs[0]).stdout)
    assert found["comparisons"] == apart["comparisons"]


def test_a_terminal_of_the_c_locale_shows_escapes_and_a_name_that_it_cannot_read_is_refused(systems: Path) -> None:
    variables = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    def run(system: str, *more: str) -> subprocess.CompletedProcess[str]:
        given = [*dataset_options(systems, ["dl19"]), "--baseline", str(systems / "dl19" / "bm25.trec")]
        command = [sys.executable, MAIN, "compare", *given, "--systems", f"{system}={systems}/dl19/mono-seed1.trec"]
        return subprocess.run([*command, *more], capture_output=True, text=True, env=variables, check=False)

    assert run("model").returncode == 0
    assert {row["system"] for row in json.loads(run("model", "--json").stdout)["scores"]} == {"bm25", "model"}
    refused = run("modèle")
    assert (refused.returncode, refused.stderr.startswith("error: ")) == (2, True)
    assert "half a surrogate pair; choose another name" in refused.stderr


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

    def test_datasets_are_columns_where_asked(self, systems: Path) -> None:
        options = [*dataset_options(systems, ["dl19", "cran"]), *of_systems(systems)]
        done = successful(compare(*options, "--layout", "datasets"))
        assert re.search(r"^ *System +# +cran +dl19 +Average", done.stdout, re.MULTILINE), done.stdout

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
