from __future__ import annotations

from pathlib import Path

import pytest
from support.gates import DIFFERENCE, INTERFERENCE, register
from support.results import make_result

from unimoe.analysis.drilldown import QueryCase, drill_down
from unimoe.analysis.gates.definitions import Gate, InterferenceGate
from unimoe.analysis.gates.findings import find
from unimoe.analysis.gates.scores import collect
from unimoe.results import DrillDown, QueryDetail, drilldown_path, result_path, write_result
from unimoe.results.folder import Results, load_all_results

GATE = InterferenceGate.model_validate(INTERFERENCE)
SPECIALIST = [[0.9, 0.5, 0.4, 0.6], [0.7, 0.5, 0.4, 0.6]]
JOINT = [[0.3, 0.5, 0.6, 0.6], [0.3, 0.5, 0.4, 0.6]]


def written(folder: Path, specialist: list[list[float]] = SPECIALIST, joint: list[list[float]] = JOINT) -> Results:
    for arm, rows in zip(GATE.arms, (specialist, joint), strict=True):
        for seed, row in enumerate(rows):
            result = make_result(arm, seed, row)
            ranks = {"rel": seed + 1 if arm == GATE.specialist else None, "other": 7}
            details = {
                query_id: QueryDetail(text=f"text of {query_id}", relevant={"rel": 2, "other": 1}, ranks=ranks)
                for query_id in result.per_query
            }
            write_result(folder, result, DrillDown(queries=details))
    return load_all_results(folder)


def drilled(results: Results, limit: int = 200, gate: Gate = GATE) -> tuple[QueryCase, ...]:
    return drill_down(results, gate, find(gate, collect(results, gate)), limit)


def test_the_largest_difference_comes_first_and_ties_are_left_out(tmp_path: Path) -> None:
    cases = drilled(written(tmp_path))
    assert [case.query_id for case in cases] == ["q000", "q002"]
    assert [case.difference for case in cases] == pytest.approx([-0.5, 0.1])
    assert [case.share for case in cases] == pytest.approx([0.5 / 2.3, -0.1 / 2.3])
    assert (cases[0].first, cases[0].second) == pytest.approx((0.8, 0.3))


def test_a_difference_is_system_minus_baseline_and_its_parts_sum_to_it(tmp_path: Path) -> None:
    gate = register(tmp_path, **DIFFERENCE | {"kind": "superiority"}).gates["it"]
    cases = drilled(written(tmp_path / "out"), gate=gate)
    assert [case.difference for case in cases] == pytest.approx([-0.5, 0.1])
    assert (cases[0].first, cases[0].second) == pytest.approx((0.3, 0.8))
    assert sum(case.share for case in cases) == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such file"),
        ("{", "is damaged or of another version"),
        ('{"schema_version": 1, "queries": {}}', "which its result holds; delete both, and evaluate again"),
    ],
)
def test_a_bad_sidecar_is_named_and_the_rest_is_shown(tmp_path: Path, text: str | None, words: str) -> None:
    results = written(tmp_path)
    path = drilldown_path(result_path(tmp_path, GATE.joint, 1, "reranking", "apidocs"))
    path.unlink()
    if text is not None:
        path.write_text(text, encoding="utf-8")
    cases = drilled(results)
    assert [case.difference for case in cases] == pytest.approx([-0.5, 0.1])
    assert cases[0].text == "text of q000"
    assert cases[0].first_ranks["rel"] == (1, 2)
    assert cases[0].second_ranks == {}  # a rank of one seed only would pass for "not ranked" under the other
    (problem,) = cases[0].unread
    assert str(path) in problem
    assert words in problem
