from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from support.gates import DIFFERENCE, INTERFERENCE, register
from support.results import make_result

from unimoe.analysis.drilldown import QueryCase, drill_down, drilldown_table
from unimoe.analysis.gates.definitions import Gate, InterferenceGate
from unimoe.analysis.gates.findings import find
from unimoe.analysis.gates.scores import collect
from unimoe.results import DrillDown, QueryDetail, drilldown_path, folder, read_query_details, result_path, write_result
from unimoe.results.folder import Results, load_all_results

Damage = Callable[[Path], object]

GATE = InterferenceGate.model_validate(INTERFERENCE)
SPECIALIST = [[0.9, 0.5, 0.4, 0.6], [0.7, 0.5, 0.4, 0.6]]
JOINT = [[0.3, 0.5, 0.6, 0.6], [0.3, 0.5, 0.4, 0.6]]


def written(folder: Path, specialist: list[list[float]] = SPECIALIST, joint: list[list[float]] = JOINT) -> Results:
    for arm, rows in zip(GATE.arms, (specialist, joint), strict=True):
        for seed, row in enumerate(rows):
            result = make_result(arm, seed, row)
            ranks = {"rel": seed + 1 if arm == GATE.specialist else None, "other": 7}
            details = {query_id: detail(f"text of {query_id}", ranks) for query_id in result.per_query}
            write_result(folder, result, DrillDown(queries=details))
    return load_all_results(folder)


def detail(text: str, ranks: Mapping[str, int | None]) -> QueryDetail:
    return QueryDetail(text=text, relevant={"rel": 2, "other": 1}, ranks=dict(ranks))


def sidecar(folder: Path, arm: str, seed: int) -> Path:
    return drilldown_path(result_path(folder, arm, seed, "reranking", "apidocs"))


def drilled(results: Results, limit: int = 200, gate: Gate = GATE) -> tuple[QueryCase, ...]:
    return drill_down(results, gate, find(gate, collect(results, gate)), limit)


def test_the_largest_difference_comes_first_and_ties_are_left_out(tmp_path: Path) -> None:
    cases = drilled(written(tmp_path))
    assert [case.query_id for case in cases] == ["q000", "q002"]
    assert [case.difference for case in cases] == pytest.approx([-0.5, 0.1])
    assert [case.share for case in cases] == pytest.approx([0.5 / 2.3, -0.1 / 2.3])
    assert (cases[0].first, cases[0].second) == pytest.approx((0.8, 0.3))


def test_texts_and_ranks_come_from_the_sidecars_seed_by_seed(tmp_path: Path) -> None:
    case = drilled(written(tmp_path))[0]
    assert case.text == "text of q000"
    assert case.relevant == {"rel": 2, "other": 1}
    assert case.first_ranks == {"rel": (1, 2), "other": (7, 7)}
    assert case.second_ranks == {"rel": (None, None), "other": (7, 7)}
    assert case.unread == ()


def test_a_limit_keeps_the_largest(tmp_path: Path) -> None:
    assert [case.query_id for case in drilled(written(tmp_path), limit=1)] == ["q000"]


def test_each_arm_is_averaged_over_its_own_seeds(tmp_path: Path) -> None:
    case = drilled(written(tmp_path, specialist=[*SPECIALIST, [0.2, 0.5, 0.5, 0.6]]))[0]
    assert (case.first, case.second) == pytest.approx((0.6, 0.3))
    assert case.first_ranks["rel"] == (1, 2, 3)
    assert case.second_ranks["other"] == (7, 7)


def test_a_difference_is_system_minus_baseline_and_its_parts_sum_to_it(tmp_path: Path) -> None:
    gate = register(tmp_path, **DIFFERENCE | {"kind": "superiority"}).gates["it"]
    cases = drilled(written(tmp_path / "out"), gate=gate)
    assert [case.difference for case in cases] == pytest.approx([-0.5, 0.1])
    assert (cases[0].first, cases[0].second) == pytest.approx((0.3, 0.8))
    assert sum(case.share for case in cases) == pytest.approx(-0.1)


def test_identical_arms_have_no_cases(tmp_path: Path) -> None:
    assert drilled(written(tmp_path, joint=SPECIALIST)) == ()


def test_a_specialist_at_zero_has_no_cases(tmp_path: Path) -> None:
    assert drilled(written(tmp_path, specialist=[[0.0] * 4, [0.0] * 4])) == ()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.unlink(), "no such file"),
        (
            lambda path: path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8"),
            "is damaged or of another version",
        ),
        (lambda path: path.write_text("[]", encoding="utf-8"), "Input should be an object"),
        (
            lambda path: path.write_text('{"schema_version": 2, "queries": {}}', encoding="utf-8"),
            "schema_version: Input should be 1",
        ),
        (
            lambda path: path.write_text('{"schema_version": 1, "queries": {}}', encoding="utf-8"),
            "which its result holds; delete both, and evaluate again",
        ),
    ],
    ids=["missing", "cut short", "a list", "of another version", "of other queries"],
)
def test_a_bad_sidecar_is_named_and_the_rest_is_shown(tmp_path: Path, damage: Damage, words: str) -> None:
    results = written(tmp_path)
    path = sidecar(tmp_path, GATE.joint, 1)
    damage(path)
    cases = drilled(results)
    assert [case.difference for case in cases] == pytest.approx([-0.5, 0.1])
    assert cases[0].text == "text of q000"
    assert cases[0].first_ranks["rel"] == (1, 2)
    assert cases[0].second_ranks == {}  # a rank of one seed only would pass for "not ranked" under the other
    (problem,) = cases[0].unread
    assert str(path) in problem
    assert words in problem


def test_without_any_sidecar_the_scores_are_still_there(tmp_path: Path) -> None:
    results = written(tmp_path)
    for arm in GATE.arms:
        for seed in (0, 1):
            sidecar(tmp_path, arm, seed).unlink()
    cases = drilled(results)
    assert [case.query_id for case in cases] == ["q000", "q002"]
    assert {(case.text, len(case.relevant)) for case in cases} == {("", 0)}
    table = drilldown_table(cases, GATE, "apidocs")
    assert "and 3 more like it" in table.notes[-1]


def test_each_sidecar_is_read_once_however_many_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    results = written(tmp_path, *(rng.uniform(size=(2, 30)).tolist() for _ in range(2)))
    read: list[Path] = []

    def counted(path: Path, query_ids: Iterable[str]) -> dict[str, QueryDetail]:
        read.append(path)
        return read_query_details(path, query_ids)

    monkeypatch.setattr(folder, "read_query_details", counted)
    assert len(drilled(results)) == 30
    assert len(read) == len(set(read)) == 4


def test_the_table_shows_text_share_and_first_relevant_ranks(tmp_path: Path) -> None:
    table = drilldown_table(drilled(written(tmp_path)), GATE, "apidocs")
    first = [cell.text for cell in table.groups[0].rows[0]]
    assert first == ["q000: text of q000", "80.00", "30.00", "-50.00", "+21.74", "1 2 → 7 7"]
    assert "joint_r8 against rank_only_r8" in table.to_markdown()


def test_the_table_shortens_long_texts_and_stops_at_its_limit() -> None:
    case = QueryCase("q", "word " * 100, 0.5, 0.1, -0.4, 0.1, {"d": 1}, {"d": (None,)}, {}, ())
    table = drilldown_table([case] * 30, GATE, "apidocs")
    assert len(table.groups[0].rows) == 10
    row = table.groups[0].rows[0]
    assert len(row[0].text) < 70
    assert row[-1].text == "– → ?"


def test_a_table_of_no_cases_has_no_rows() -> None:
    assert drilldown_table((), GATE, "apidocs").groups == ()
