"""Groups of queries: differences and TIR by group, whether they vary between groups, and what cannot be grouped."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.results import make_result, query_ids, results_of
from support.runs import compare_arms, random_qrels, random_run, words_of, write_arms
from support.scripts import Done, assert_refused, call_script, call_unimoe, successful

import unimoe
from unimoe.analysis.analysis import Analysis
from unimoe.analysis.tables.groups import groups_as_rows
from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import Run
from unimoe.results.clusters import Clusters, Groups

RNG = np.random.default_rng(5)
QRELS = random_qrels(90, RNG)
GROUPS = {query_id: ("code", "short", "long")[place % 3] for place, query_id in enumerate(QRELS)}


def runs_of(number: int, noise: Mapping[str, float]) -> list[Run]:
    """Runs whose rankings are as noisy as the group of a query has it."""
    found = []
    for _ in range(number):
        by_noise = {amount: random_run(QRELS, amount, RNG) for amount in sorted({*noise.values()})}
        found.append({query_id: by_noise[noise[group]][query_id] for query_id, group in GROUPS.items()})
    return found


GOOD = runs_of(3, dict.fromkeys(("code", "short", "long"), 0.5))
WORSE_ON_CODE = runs_of(3, {"code": 4.0, "short": 0.5, "long": 0.5})
WORSE = runs_of(3, dict.fromkeys(("code", "short", "long"), 1.5))
SYSTEMS: dict[str, Any] = {"good": GOOD, "worse": WORSE, "worse-on-code": WORSE_ON_CODE}


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path], Path]:
    folder = tmp_path_factory.mktemp("arms")
    write(folder / "groups.tsv", GROUPS)
    return write_arms(folder, QRELS, GOOD, WORSE_ON_CODE)


def write(path: Path, groups: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{query_id}\t{group}\n" for query_id, group in groups.items()))
    return path


def by_group(done: Done) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(successful(done).stdout, parse_constant=pytest.fail)["by_group"]
    return found


def test_a_difference_that_varies_between_groups_is_told_from_one_that_is_the_same() -> None:
    found = unimoe.compare(SYSTEMS, QRELS, baseline="good", pairs="baseline", groups=GROUPS)
    frame = found.groups()
    assert frame[["system", "group", "queries"]].to_numpy().tolist() == [
        [system, group, 30] for system in ("worse", "worse-on-code") for group in ("code", "long", "short")
    ]
    same, other = found.by_group
    assert same.p_corrected is not None
    assert other.interaction is not None
    assert all(row.p is not None and row.p < 0.05 for row in same.rows)
    assert same.p_corrected > 0.05
    assert other.p_corrected is not None
    assert other.p_corrected < 0.01
    assert other.interaction.groups[1] == "code", "the group with the lowest value is the second"
    assert other.interaction.interval[0] > 0.1
    assert same.sentence.startswith("the difference does not vary between groups by more than chance (p 0.")
    assert other.sentence.startswith("the difference varies between groups (p 0.0010); most surely apart: ")
    assert "significant" not in same.sentence + other.sentence


def test_the_row_of_a_group_is_the_comparison_on_its_queries_alone() -> None:
    qrels = {query_id: grades for query_id, grades in QRELS.items() if GROUPS[query_id] == "long"}
    alone = unimoe.compare({"a": WORSE, "b": GOOD}, qrels).test_rows[0]
    found = unimoe.compare({"a": WORSE, "b": GOOD}, QRELS, groups=GROUPS)
    rows = {row["group"]: row for row in groups_as_rows(found.by_group)}
    names = ("difference", "low", "high", "p")
    assert [rows["long"]["value" if n == "difference" else n] for n in names] == pytest.approx(
        [alone[n] for n in names]
    )
    raw = sorted(row["p"] for row in rows.values())
    assert min(row["p_corrected"] for row in rows.values()) == pytest.approx(3 * raw[0]), "Holm over three groups"


def test_a_verdict_has_tir_by_group_and_the_folder_keeps_it(
    arms: tuple[list[Path], list[Path], Path], tmp_path: Path
) -> None:
    options = ("--groups", arms[2].with_name("groups.tsv"), "--output-dir", tmp_path / "out")
    text = words_of(successful(compare_arms(arms, *options)))
    assert "TIR varies between groups (p" in text
    plain = by_group(compare_arms(arms, *options, "--json"))
    assert [(row["quantity"], row["system"], row["baseline"]) for row in plain] == [("tir", "joint", "specialist")] * 3
    for row in plain:
        assert row["value"] == pytest.approx(1.0 - row["system_mean"] / row["baseline_mean"])
        assert row["low"] < row["value"] < row["high"]
    assert (tmp_path / "out" / "groups.tsv").read_text() == write(tmp_path / "same.tsv", GROUPS).read_text()
    shown = successful(call_script("analyze_results.py", "--output-dir", tmp_path / "out"))
    assert "TIR varies between groups (p" in " ".join(shown.stdout.split())
    made = tmp_path / "out" / "analysis"
    with (made / "tables" / "by_group.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["Group"]]
    assert [float(row["TIR (%)"]) for row in rows] == pytest.approx([100 * row["value"] for row in plain])
    assert (made / "tables" / "by_group.tex").exists()
    assert (made / "figures" / "by-group-TIR.png").exists()
    assert "By group" in (made / "report.md").read_text(encoding="utf-8")
    again = by_group(call_unimoe("compare", "--results", tmp_path / "out", "--json"))
    assert [row["value"] for row in again] == pytest.approx([row["value"] for row in plain])


def test_groups_come_with_the_queries_too(arms: tuple[list[Path], list[Path], Path], tmp_path: Path) -> None:
    plain = by_group(compare_arms(arms, "--groups", arms[2].with_name("groups.tsv"), "--json"))
    lines: Callable[[Callable[[str], dict[str, Any]]], str] = lambda of: "".join(  # noqa: E731
        json.dumps({"_id": query_id, "text": "what?", **of(group)}) + "\n" for query_id, group in GROUPS.items()
    )
    queries = tmp_path / "queries.jsonl"
    for field in (lambda group: {"group": group}, lambda group: {"metadata": {"group": group}}):
        queries.write_text(lines(field))
        assert by_group(compare_arms(arms, "--queries", queries, "--json")) == plain
    queries.write_text(lines(lambda group: {"metadata": {}}))
    assert by_group(compare_arms(arms, "--queries", queries, "--json")) == []
    queries.write_text(lines(lambda group: {"group": group} if group != "long" else {}))
    refused = compare_arms(arms, "--queries", queries)
    assert_refused(refused, 3, "queries.jsonl: queries of q without a group: 30 (q2, q5, ")


def test_groups_that_say_nothing_are_refused(arms: tuple[list[Path], list[Path], Path], tmp_path: Path) -> None:
    path, first = tmp_path / "of.tsv", next(iter(GROUPS))
    for groups, words in (
        ({q: group for q, group in GROUPS.items() if q != first}, f"of.tsv: queries of q without a group: 1 ({first})"),
        (GROUPS | {"q999": "long"}, "of.tsv: queries that are on no dataset here: 1 (q999)"),
        (dict.fromkeys(GROUPS, "long"), "of.tsv: all queries are in one group, 'long'; name the groups"),
        ({}, "of.tsv: no line in it; name the groups of queries to compare, two or more"),
        (GROUPS | {first: ""}, "of.tsv:1: not a line of query id, tab, group; write one for each query"),
    ):
        write(path, groups)
        assert_refused(compare_arms(arms, "--groups", path), 3, words)
    path.write_text(f"{first}\tlong\n{first}\tshort\n")
    assert_refused(compare_arms(arms, "--groups", path), 3, f"of.tsv:2: query {first!r} is in two groups")
    assert_refused(compare_arms(arms, "--groups", tmp_path / "nowhere.tsv"), 3, "nowhere.tsv: no such file")
    with pytest.raises(DataError, match=f"groups: 1 \\({first}\\) have no group"):
        unimoe.compare(SYSTEMS, QRELS, groups=GROUPS | {first: None})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="groups: list; give"):
        unimoe.compare(SYSTEMS, QRELS, groups=[*GROUPS])  # type: ignore[arg-type]


def test_groups_too_small_for_a_test_are_shown_without_one() -> None:
    few = {query_id: "one" if place == 0 else "few" if place < 4 else group
           for place, (query_id, group) in enumerate(GROUPS.items())}  # fmt: skip
    found = unimoe.compare({"a": WORSE, "b": GOOD}, QRELS, groups=few).by_group[0]
    rows = {row.group: row for row in found.rows}
    assert [(rows[name].queries, rows[name].p) for name in ("one", "few")] == [(1, None), (3, None)]
    assert rows["one"].unfit == "a dataset has one query, and other queries cannot be judged by it"
    assert found.interaction is not None
    assert {*found.interaction.groups} <= {"code", "long", "short"}
    lone = {query_id: "one" if place == 0 else "rest" for place, query_id in enumerate(GROUPS)}
    found = unimoe.compare({"a": WORSE, "b": GOOD}, QRELS, groups=lone).by_group[0]
    assert found.sentence == (
        "whether the difference varies between groups cannot be tested: fewer than two groups have a test"
    )


def test_a_cluster_that_spans_groups_is_drawn_with_all_of_them() -> None:
    """Each topic is asked in two forms on which an arm loses alike: their gap is far surer than if they were others."""
    rng, ids = np.random.default_rng(1), query_ids(120)
    loss = np.repeat(rng.normal(0.05, 0.1, 60), 2) + 0.01 * rng.standard_normal(120) + np.tile([0.0, 0.01], 60)
    base = rng.uniform(0.4, 0.6, 120)
    results = results_of(make_result("a", None, base), make_result("b", None, base - loss))
    results.groups = Groups("groups", {query_id: ("long", "short")[place % 2] for place, query_id in enumerate(ids)})
    apart = Analysis(results).by_group[0]
    results.clusters = Clusters("clusters", {query_id: str(place // 2) for place, query_id in enumerate(ids)})
    together = Analysis(results).by_group[0]
    assert apart.p_corrected is not None
    assert together.p_corrected is not None
    assert together.p_corrected < 0.001 < 0.05 < apart.p_corrected
    assert [row.estimate.value for row in together.rows] == pytest.approx([row.estimate.value for row in apart.rows])
