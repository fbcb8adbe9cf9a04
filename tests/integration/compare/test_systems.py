"""``unimoe compare`` with any number of systems and datasets in one table, other tests of them, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from support.runs import DATASETS, SYSTEMS, compare, dataset_options, words_of, write_systems
from support.scripts import Done, assert_refused, call_unimoe, successful

from unimoe.analysis import compare as public


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("systems")
    write_systems(folder, DATASETS)
    return folder


def of_systems(folder: Path) -> list[str]:
    """Options: bm25 is the baseline, the others are named by their files, and one by hand."""
    where = f"{folder}/{{dataset}}"
    return [
        *("--baseline", f"{where}/bm25.trec", "--systems", f"{where}/splade.trec", f"{where}/colbert-*.trec"),
        f"mono={where}/mono-seed[123].trec",
    ]


def on(folder: Path, *datasets: str) -> list[str]:
    """Options: these systems on some of the datasets, or on all."""
    return [*dataset_options(folder, datasets or list(DATASETS)), *of_systems(folder)]


class TestTableOfSystems:
    @pytest.fixture(scope="class")
    def made(self, systems: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
        """The paper's table of 4 systems x 3 datasets, one command."""
        out = tmp_path_factory.mktemp("paper") / "out"
        return successful(compare(*on(systems), "--metric", "ndcg@10", "map", "--output-dir", out)), out

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
        ranks = (out / "analysis" / "tables" / "standings.md").read_text(encoding="utf-8")
        assert ("average of 3" in ranks, "cran" in ranks) == (True, False), "an average speaks for its datasets"

    def test_letters_name_who_is_beaten(self, made: tuple[Done, Path]) -> None:
        with (made[1] / "analysis" / "tables" / "overview.csv").open(encoding="utf-8") as file:
            rows = {row["System"]: row for row in csv.DictReader(file) if row["#"]}
        assert [(name, row["#"]) for name, row in rows.items()] == [*zip(sorted(SYSTEMS), "abcd", strict=True)]
        assert rows["mono"]["cran symbols"] == "(ad)", "bm25 and splade have one run each"
        assert rows["colbert"]["cran symbols"] == "(a)"

    def test_json_and_frame_are_the_same(self, systems: Path) -> None:
        done = compare(*on(systems), "--metric", "ndcg@10", "P@5", "--json")
        found = json.loads(done.stdout, parse_constant=pytest.fail)
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


def test_the_baseline_may_be_among_the_systems_and_runs_count_by_number(systems: Path, tmp_path: Path) -> None:
    shared = [*map(str, dataset_options(systems, ["dl19"])), "--systems"]
    runs = [f"first={systems}/dl19/bm25.trec", f"mono={systems}/dl19/mono-seed1.trec"]
    found = rows_of(*shared, runs[1], runs[0], "--baseline", "first")
    assert found == rows_of(*shared, runs[1], "--baseline", runs[0])
    for number, seed in ((2, 1), (10, 2)):
        (tmp_path / f"run-{number}.trec").symlink_to(systems / "dl19" / f"mono-seed{seed}.trec")
    said = successful(compare(*shared, f"b={tmp_path}/run-*.trec", runs[0], "--paired")).stderr
    assert said.index("run-2.trec: b seed 0") < said.index("run-10.trec: b seed 1")


@pytest.fixture
def clusters(systems: Path, tmp_path: Path) -> Path:
    """Every three queries of dl19 are one cluster."""
    ids = dict.fromkeys(line.split()[0] for line in (systems / "dl19.qrels").read_text().splitlines())
    path = tmp_path / "of.tsv"
    path.write_text("".join(f"{query_id}\tc{place // 3}\n" for place, query_id in enumerate(ids)))
    return path


def rows_of(*options: str | Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(successful(compare(*options, "--json")).stdout)["comparisons"]
    return found


def excludes_0(row: dict[str, Any], name: str = "") -> bool:
    return bool(row[f"{name}low"] > 0.0 or row[f"{name}high"] < 0.0)


def test_simultaneous_intervals_are_wider_and_are_one_statement_with_their_p(systems: Path) -> None:
    alone, together = rows_of(*on(systems)), rows_of(*on(systems), "--simultaneous")
    assert [row["p_corrected"] for row in together] == [row["p_corrected"] for row in alone]
    for row in together:
        assert row["simultaneous_low"] < row["low"] < row["high"] < row["simultaneous_high"]
        assert excludes_0(row, "simultaneous_") == (row["simultaneous_p"] < 0.05)
        assert row["p"] <= row["simultaneous_p"]
    assert all(row["simultaneous_low"] is None for row in alone)


@pytest.mark.usefixtures("without_figures")
def test_a_saved_comparison_keeps_all_that_was_asked(systems: Path, clusters: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ("--simultaneous", "--chosen", "mono=7", "--chosen", "colbert=dev", "--clusters", clusters)
    first = successful(compare(*on(systems, "dl19"), *asked, "--output-dir", out))
    again = successful(compare("--results", out))
    for text in (words_of(first), words_of(again), (out / "analysis" / "report.md").read_text()):
        for words in (
            "mono was chosen on these test data from 7 settings: its tests are corrected for that (Bonferroni).",
            "colbert was chosen on dev data: its tests and intervals are as they are.",
            "hold for every two systems of a dataset or average together, at 95 % (max-t).",
            "Queries are in clusters (8 on retrieval/dl19): intervals and tests draw these whole (cluster-robust).",
        ):
            assert words in " ".join(text.split())
    assert (out / "clusters.tsv").read_text() == clusters.read_text()
    assert "All: p" in (out / "analysis" / "tables" / "significance.csv").read_text()
    successful(call_unimoe("analyze", "tables", "--output-dir", out))
    (out / "clusters.tsv").write_text("dl19-0\tx\n")
    lacking = call_unimoe("analyze", "tables", "--output-dir", out)
    assert_refused(lacking, 3, "clusters.tsv: queries of retrieval/dl19 without a cluster: 23 ")
    successful(compare(*on(systems, "dl19"), "--output-dir", out))
    assert not (out / "clusters.tsv").exists(), "another test of the same results, over queries"


@pytest.mark.usefixtures("without_figures")
def test_pooled_runs_are_said_and_kept_with_the_comparison(systems: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "out", "Runs pooled over 2 systems: all are taken to vary alike from run to run"
    first = successful(compare(*on(systems, "dl19"), "--pool-runs", "--output-dir", out))
    successful(call_unimoe("analyze", "report", "--output-dir", out))
    report = (out / "analysis" / "report.md").read_text(encoding="utf-8")
    for text in (words_of(first), words_of(compare("--results", out)), " ".join(report.split())):
        assert said in text
    separate, pooled = rows_of(*on(systems, "dl19")), rows_of(*on(systems, "dl19"), "--pool-runs")
    changed = []
    for row, other in zip(pooled, separate, strict=True):
        assert row["difference"] == other["difference"]
        changed += [{row["system"], row["baseline"]}] * (row["p"] != other["p"])
    assert {"mono", "colbert"} in changed
    assert {"bm25", "splade"} not in changed, "of one run each, whose variance nobody knows"
    kept = rows_of("--results", str(out), "--baseline", "bm25")
    assert sorted(row["p"] for row in kept) == pytest.approx(sorted(row["p"] for row in pooled))
    assert_refused(compare(*on(systems, "dl19"), "--pool-runs", "--paired"), 2, "runs that pair have one variance")
    arms = [option for name in ("mono", "colbert") for option in sorted(map(str, (systems / "dl19").glob(f"{name}*")))]
    verdict = ["--specialist", *arms[:3], "--joint", *arms[3:], *dataset_options(systems, ["dl19"])]
    assert "runs pooled over 2 systems: the gate takes both to vary alike" in words_of(compare(*verdict, "--pool-runs"))


def test_a_chosen_system_has_a_larger_p_and_the_interval_that_goes_with_it(systems: Path) -> None:
    plain, counted, named, dev = (
        rows_of(*on(systems, "dl19"), *more)
        for more in ([], ["--chosen", "mono=3"], ["--chosen", "mono=mono,colbert,splade"], ["--chosen", "mono=dev"])
    )
    assert dev == plain
    for before, by_number, by_name in zip(plain, counted, named, strict=True):
        if "mono" not in (before["system"], before["baseline"]):
            assert before["p"] == by_number["p"] == by_name["p"]
            continue
        assert by_number["p"] == pytest.approx(min(1.0, 3 * before["p"]))
        assert before["p"] <= by_name["p"] <= by_number["p"] + 0.01
        for row in (by_number, by_name):
            assert excludes_0(row) == (row["p"] < 0.05)
            assert row["low"] < before["low"] < before["high"] < row["high"]


def test_six_datasets_say_what_to_expect_of_others(tmp_path: Path) -> None:
    datasets = {f"d{place}": 20 for place in range(6)}
    write_systems(tmp_path, datasets, {"bm25": (2.0, 1), "mono": (0.9, 1)})
    runs = [f"{tmp_path}/{{dataset}}/{name}.trec" for name in ("bm25", "mono")]
    options = [*dataset_options(tmp_path, list(datasets)), "--systems", *runs]
    assert "retrieval/average of 6 and others like these" in words_of(successful(compare(*options)))
    for row in (row for row in rows_of(*options) if " of " in row["dataset"]):
        assert excludes_0(row, "collections_") == (row["collections_p"] < 0.05)
        assert row["collections_low"] < row["collections_mean"] < row["collections_high"]


def test_clusters_count_in_verdicts_too_and_move_no_value(systems: Path, clusters: Path) -> None:
    mono, colbert = (sorted(map(str, (systems / "dl19").glob(f"{name}*"))) for name in ("mono", "colbert"))
    arms = ["--specialist", *mono, "--joint", *colbert, *dataset_options(systems, ["dl19"]), "--json"]
    plain, whole = (json.loads(successful(compare(*arms, *more)).stdout) for more in ((), ("--clusters", clusters)))
    assert (plain["clusters"], whole["clusters"]) == (None, {"retrieval/dl19": 8})
    values = [found["gates"]["gates"][0]["interval"]["value"] for found in (plain, whole)]
    assert values[0] == pytest.approx(values[1])


def test_what_a_table_cannot_show_is_refused(systems: Path, clusters: Path, tmp_path: Path) -> None:
    here, two = dataset_options(systems, ["dl19"]), ["--dataset", str(tmp_path / "both.qrels")]
    judged = [(systems / f"{dataset}.qrels").read_text() for dataset in ("dl19", "dl20")]
    (tmp_path / "both.qrels").write_text("".join(judged))
    bm25, mono = f"{systems}/dl19/bm25.trec", f"{systems}/{{dataset}}/mono-seed*.trec"
    both = [*here, "--systems", bm25, mono]
    short = tmp_path / "short.tsv"
    short.write_text("".join(clusters.read_text().splitlines(keepends=True)[1:]))
    for options, code, words in (
        ([*here, "--systems", bm25, "nothing-*.trec"], 3, ["--systems nothing-*.trec: no file matches"]),
        ([*here, "--systems", bm25, "nothing.trec"], 3, ["nothing.trec: no such file"]),
        ([*two, "--systems", bm25, mono.format(dataset="dl19")], 3, ["dl19/bm25.trec lacks 30 (dl20-0,"]),
        ([*here, "--systems", f"a={bm25}", f"a={mono}"], 2, ["two systems are named 'a'"]),
        ([*here, "--systems", f"a={bm25}", f"b={bm25}"], 3, ["holds the same rankings", "--allow duplicates"]),
        ([*here, "--baseline", bm25], 2, ["only bm25 to compare"]),
        ([*both, "--dataset", here[1], f"dl19={systems}/dl20.qrels"], 2, ["two datasets are named 'dl19'"]),
        (
            [*both, "--untrained", "mono"],
            2,
            ["mono is untrained, and has 3 runs on dl19 (", "seed2.trec); give one run"],
        ),
        ([*both, "--untrained", "bm52"], 2, ["--untrained: unknown arm 'bm52' (did you mean 'bm25'?)"]),
        (
            [*here, "--systems", "x=" + mono, "y=" + mono.replace("*", "?")],
            2,
            ["mono-seed1.trec: both", "give it to one"],
        ),
        (["--systems", bm25, mono], 2, ["no judgments", "--qrels FILE"]),
        ([*both, "--pairs", "baseline"], 2, ["--baseline"]),
        ([*both, "--layout", "rows"], 2, ["--layout"]),
        ([*both, "--family", "baseline"], 2, ["compare with --pairs baseline"]),
        ([*both, "--looks", "3"], 2, ["--looks does not belong here"]),
        (["--example", "--qrels", "q.tsv"], 2, ["leave it out, or --qrels"]),
        ([*here], 2, ["nothing to compare"]),
        (["--specialist", bm25, *here], 2, ["no run file of joint", "--joint"]),
        ([*both, "--clusters", "nowhere.tsv"], 3, ["nowhere.tsv: no such file"]),
        ([*both, "--clusters", short], 3, ["short.tsv: queries of dl19 without a cluster: 1 (", "add a line"]),
        ([*both, "--chosen", "mono"], 2, ["--chosen mono: write NAME=dev, or NAME=K"]),
        ([*both, "--chosen", "momo=3"], 2, ["no system 'momo' (did you mean 'mono'?)"]),
        ([*both, "--chosen", "mono=1"], 2, ["mono from 1 setting", "2 to 1,000,000,000, or dev"]),
        (
            [*here, "--baseline", bm25, "--systems", mono, "--simultaneous", "--pairs", "baseline"],
            2,
            ["every two systems; compare all pairs"],
        ),
    ):
        assert_refused(compare(*options), code, *words)
