"""``unimoe compare`` for all systems at once, other collections, clusters of queries, and chosen settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.runs import DATASETS, compare, dataset_options, words_of, write_systems
from support.scripts import assert_refused, call_unimoe, successful

FILES = ("bm25.trec", "splade.trec", "colbert-seed*.trec", "mono-seed*.trec")
LARGE = {f"d{place}": 20 for place in range(6)}


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("six")
    write_systems(folder, LARGE)
    return folder


@pytest.fixture
def clusters(systems: Path, tmp_path: Path) -> Path:
    """Every three queries of dl19 are one cluster."""
    ids = dict.fromkeys(line.split()[0] for line in (systems / "dl19.qrels").read_text().splitlines())
    path = tmp_path / "of.tsv"
    path.write_text("".join(f"{query_id}\tc{place // 3}\n" for place, query_id in enumerate(ids)))
    return path


def of_systems(folder: Path) -> list[str]:
    return ["--systems", *(f"{folder}/{{dataset}}/{name}" for name in FILES)]


def rows_of(*options: str | Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(successful(compare(*options, "--json")).stdout)["comparisons"]
    return found


def excludes_0(row: dict[str, Any], name: str = "") -> bool:
    return bool(row[f"{name}low"] > 0.0 or row[f"{name}high"] < 0.0)


def test_simultaneous_intervals_are_wider_and_are_one_statement_with_their_p(systems: Path) -> None:
    options = [*dataset_options(systems, list(DATASETS)), *of_systems(systems)]
    alone, together = rows_of(*options), rows_of(*options, "--simultaneous")
    assert [row["p_corrected"] for row in together] == [row["p_corrected"] for row in alone]
    for row in together:
        assert row["simultaneous_low"] < row["low"] < row["high"] < row["simultaneous_high"]
        assert excludes_0(row, "simultaneous_") == (row["simultaneous_p"] < 0.05)
        assert row["p"] <= row["simultaneous_p"]
    assert all(row["simultaneous_low"] is None for row in alone)


def test_a_saved_comparison_keeps_all_that_was_asked(systems: Path, clusters: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ("--simultaneous", "--chosen", "mono=7", "--chosen", "colbert=dev", "--clusters", clusters)
    first = successful(compare(*dataset_options(systems, ["dl19"]), *of_systems(systems), *asked, "--output-dir", out))
    again = successful(compare("--results", out))
    for text in (words_of(first), words_of(again), (out / "analysis" / "report.md").read_text()):
        for words in (
            "mono was chosen on these test data from 7 settings: its tests are corrected for that (Bonferroni).",
            "colbert was chosen on dev data: its tests and intervals are as they are.",
            "hold for every two systems of a dataset or average together, at 95 % (max-t).",
            "Queries are in clusters (8 on retrieval/dl19): intervals and tests draw these whole (cluster-robust).",
        ):
            assert words in " ".join(text.split())
    assert (out / "analysis" / "figures" / "critical-difference.pdf").exists()
    assert (out / "clusters.tsv").read_text() == clusters.read_text()
    assert "All: p" in (out / "analysis" / "tables" / "significance.csv").read_text()
    successful(call_unimoe("analyze", "--output-dir", out))
    (out / "clusters.tsv").write_text("q0\tx\n")
    lacking = call_unimoe("analyze", "tables", "--output-dir", out)
    assert_refused(lacking, 3, "clusters.tsv: queries of retrieval/dl19 without a cluster: 23 ")
    successful(compare(*dataset_options(systems, ["dl19"]), *of_systems(systems), "--output-dir", out))
    assert not (out / "clusters.tsv").exists(), "another test of the same results, over queries"


def test_a_chosen_system_has_a_larger_p_and_the_interval_that_goes_with_it(systems: Path) -> None:
    options = [*dataset_options(systems, ["dl19"]), *of_systems(systems)]
    plain, counted, named, dev = (
        rows_of(*options, *more)
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


def test_six_datasets_say_what_to_expect_of_others_and_three_why_not(six: Path, systems: Path) -> None:
    options = [*dataset_options(six, list(LARGE)), *of_systems(six)]
    assert "retrieval/average of 6 and others like these" in words_of(successful(compare(*options)))
    for row in (row for row in rows_of(*options) if " of " in row["dataset"]):
        assert excludes_0(row, "collections_") == (row["collections_p"] < 0.05)
        assert row["collections_low"] < row["collections_mean"] < row["collections_high"]
    few = successful(compare(*dataset_options(systems, list(DATASETS)), *of_systems(systems)))
    assert "a random effect of datasets needs 5 or more, and averages are over 3." in words_of(few)


def test_clusters_count_in_verdicts_too_and_move_no_value(systems: Path, clusters: Path) -> None:
    mono, colbert = (sorted(map(str, (systems / "dl19").glob(f"{name}*"))) for name in ("mono", "colbert"))
    arms = ["--specialist", *mono, "--joint", *colbert, *dataset_options(systems, ["dl19"]), "--json"]
    both = [compare(*arms, *more) for more in ([], ["--clusters", str(clusters)])]
    plain, whole = (json.loads(successful(done).stdout) for done in both)
    assert plain["clusters"] is None
    assert whole["clusters"] == {"retrieval/dl19": 8}
    values = [found["gates"]["gates"][0]["interval"]["value"] for found in (plain, whole)]
    assert values[0] == pytest.approx(values[1])


def test_what_does_not_fit_is_refused_in_one_line(systems: Path, clusters: Path, tmp_path: Path) -> None:
    here = [*dataset_options(systems, ["dl19"]), *of_systems(systems)]
    two = [*here[:2], "--baseline", f"{systems}/dl19/bm25.trec", "--systems", f"{systems}/dl19/splade.trec"]
    short = tmp_path / "short.tsv"
    short.write_text("".join(clusters.read_text().splitlines(keepends=True)[1:]))
    for options, code, words in (
        ([*here, "--clusters", "nowhere.tsv"], 3, ["nowhere.tsv: no such file"]),
        ([*here, "--clusters", str(short)], 3, ["short.tsv: queries of dl19 without a cluster: 1 (", "add a line"]),
        ([*here, "--chosen", "mono"], 2, ["--chosen mono: write NAME=dev, or NAME=K"]),
        ([*here, "--chosen", "momo=3"], 2, ["no system 'momo' (did you mean 'mono'?)"]),
        ([*here, "--chosen", "mono=1"], 2, ["mono from 1 setting", "2 to 1,000,000,000, or dev"]),
        ([*two, "--simultaneous", "--pairs", "baseline"], 2, ["every two systems; compare all pairs"]),
    ):
        assert_refused(compare(*options), code, *words)
