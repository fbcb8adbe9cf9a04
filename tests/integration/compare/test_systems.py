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

import numpy as np
import pytest
from scipy import stats
from support.compare_command import DATASETS, compare, words_of
from support.runs import SYSTEMS, dataset_options, write_systems
from support.scripts import MAIN, Done, assert_refused, successful

from unimoe.analysis import compare as public
from unimoe.core.trec import read_qrels, read_run
from unimoe.metrics import score_run


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


@pytest.mark.parametrize(
    "encoding",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
    ids=["the C locale", "ascii", "latin-1"],
)
def test_terminals_of_other_encodings_show_escapes(systems: Path, encoding: dict[str, str]) -> None:
    """None of them has the minus sign of the tables, and latin-1 alone the letter of the name."""
    name = "modèle" if "PYTHONIOENCODING" in encoding else "model"
    given = [*dataset_options(systems, ["dl19"]), "--baseline", systems / "dl19" / "bm25.trec"]
    options = [*map(str, given), "--systems", f"{name}={systems}/dl19/mono-seed1.trec"]
    command = [sys.executable, MAIN, "compare", *options]
    variables = {**os.environ, **encoding}
    text = subprocess.run(command, capture_output=True, env=variables, check=False)
    assert text.returncode == 0, text.stderr.decode()
    done = subprocess.run([*command, "--json"], capture_output=True, env=variables, check=True)
    found = json.loads(done.stdout.decode(encoding.get("PYTHONIOENCODING", "ascii")))
    assert name in {row["system"] for row in found["scores"]}


def test_a_name_that_the_locale_cannot_read_is_refused_with_what_helps(systems: Path) -> None:
    command = [sys.executable, MAIN, "compare", "--qrels", "q", "--systems", "modèle=a.trec", "b.trec"]
    variables = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(command, capture_output=True, env=variables, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "set PYTHONUTF8=1" in done.stderr


class TestTableOfSystems:
    @pytest.fixture(scope="class")
    def made(self, systems: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
        """The paper's table of 4 systems x 3 datasets, one command."""
        out = tmp_path_factory.mktemp("paper") / "out"
        options = [*dataset_options(systems, list(DATASETS)), *of_systems(systems), "--output-dir", str(out)]
        return compare(*options, "--metric", "ndcg@10", "map"), out

    def test_is_one_command(self, made: tuple[Done, Path]) -> None:
        done, out = made
        assert done.returncode == 0, done.stderr
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

    def test_its_numbers_are_those_of_scipy_and_trec_eval(self, made: tuple[Done, Path], systems: Path) -> None:
        with (made[1] / "analysis" / "tables" / "significance.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if not row["group"].startswith("#")]
        assert [row["group"].startswith("retrieval/average of 3, ") for row in rows] == [False] * 18 + [True] * 6
        rows = rows[:18]
        singles = [row for row in rows if row["Comparison"] == "splade − bm25"]
        assert len(singles) == 3
        for row in singles:
            dataset = row["group"].partition(",")[0].removeprefix("retrieval/")
            qrels = read_qrels(systems / f"{dataset}.qrels")
            first, second = (
                list(score_run(qrels, read_run(systems / dataset / f"{name}.trec")).per_query["ndcg@10"].values())
                for name in ("splade", "bm25")
            )
            expected = stats.ttest_rel(first, second)
            interval = expected.confidence_interval(0.95)
            assert float(row["p"]) == pytest.approx(expected.pvalue, rel=1e-9)
            assert float(row["Delta"]) == pytest.approx(100 * (np.mean(first) - np.mean(second)), rel=1e-9)
            ends = 100 * interval.low, 100 * interval.high
            assert (float(row["Low"]), float(row["High"])) == pytest.approx(ends, rel=1e-9)
        p = np.array([float(row["p"]) for row in rows])
        order = np.argsort(p)
        holm = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(18, 0, -1)))
        assert [float(rows[i]["p (Holm)"]) for i in order] == pytest.approx(holm.tolist(), rel=1e-9)

    def test_letters_name_who_is_beaten(self, made: tuple[Done, Path]) -> None:
        with (made[1] / "analysis" / "tables" / "overview.csv").open(encoding="utf-8") as file:
            row = next(row for row in csv.DictReader(file) if row["Dataset"] == "cran")
        assert row["mono (c) symbols"] == "(ad)", "bm25 and splade have one run each"
        assert row["colbert (b) symbols"] == "(a)"

    def test_json_and_frame_are_the_same(self, systems: Path) -> None:
        options = [*dataset_options(systems, list(DATASETS)), *of_systems(systems), "--json"]
        found = json.loads(compare(*options, "--metric", "ndcg@10", "P@5").stdout, parse_constant=pytest.fail)
        runs: dict[str, Any] = {name: {} for name in SYSTEMS}
        for run in found["runs"]:
            runs[run["system"]].setdefault(run["dataset"], []).append(run["path"])
        qrels = {dataset: systems / f"{dataset}.qrels" for dataset in DATASETS}
        there = public.compare(runs, qrels, baseline="bm25", metrics=["ndcg@10", "P@5"])
        for rows, frame in ((found["scores"], there.frame()), (found["comparisons"], there.tests())):
            assert list(frame.columns) == list(rows[0])
            for row, same in zip(rows, frame.astype(object).to_dict("records"), strict=True):
                for column, value in row.items():
                    missing = same[column] is None or same[column] != same[column]  # pandas has NaN for null in numbers
                    assert missing if value is None else same[column] == value
        assert there.frame()["metric"].unique().tolist() == ["ndcg@10", "p@5"]

    def test_datasets_are_columns_where_asked(self, systems: Path) -> None:
        options = [*dataset_options(systems, ["dl19", "cran"]), *of_systems(systems)]
        done = successful(compare(*options, "--layout", "datasets"))
        assert re.search(r"^ *System +# +cran +dl19 +Average", done.stdout, re.MULTILINE), done.stdout
        assert_refused(compare(*options, "--layout", "rows"), 2, "--layout")

    def test_numbers_of_runs_may_differ_between_datasets(self, tmp_path: Path) -> None:
        write_systems(tmp_path, {"x": 12, "y": 12}, {"a": (1.0, 3), "b": (2.0, 2)})
        (tmp_path / "x" / "a-seed2.trec").unlink()
        patterns = [f"{tmp_path}/{{dataset}}/{name}-seed*.trec" for name in "ab"]
        done = compare(*dataset_options(tmp_path, ["x", "y"]), "--systems", *patterns, "--json")
        assert [row["baseline_runs"] for row in json.loads(done.stdout)["comparisons"]] == [2, 3, 2]

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


def test_real_systems(unimoe_data: Path) -> None:
    pool = unimoe_data / "trec-dl19-passage-pool"
    names = ("splade_p_p_ensemble_distil", "rep_llama", "bm25", "bm25_rm3")
    runs = [pool / "runs" / f"{name}.trec" for name in names]
    done = successful(
        compare("--baseline", runs[2], "--systems", *runs[:2], runs[3], "--qrels", pool / "qrels" / "full.tsv")
    )
    assert "Every two systems: 6 comparisons" in words_of(done)
    assert "splade_p_p_ensemble_distil" in done.stdout


def test_the_example_takes_options_but_no_other_runs(tmp_path: Path) -> None:
    done = compare("--example", "--metric", "P@1", "--json")
    systems = {run["system"] for run in json.loads(done.stdout)["runs"]}
    assert systems == {"bm25", "specialist", "joint", "zero_shot"}
    assert "unimoe compare --baseline bm25=" in done.stderr
    assert_refused(compare("--example", "--qrels", tmp_path / "q.tsv"), 2, "leave it out, or --qrels")
