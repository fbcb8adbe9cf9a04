from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.gates import INTERFERENCE, gate_file, register

from unimoe.analysis.gates.definitions import load_gates
from unimoe.core.errors import DataError


def test_the_shipped_gate_judges_both_tasks_of_the_bundled_experiment() -> None:
    registration = load_gates(Path("gates/kill_gate"))
    assert [gate.task for gate in registration.gates.values()] == ["reranking", "embedding"]
    assert {gate.arms for gate in registration.gates.values()} == {
        ("rank_only_r8", "joint_r8"),
        ("emb_only_r8", "joint_r8"),
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pass_att": 0.02}, ["gates.it.pass_att", "did you mean 'pass_at'?"]),
        ({"pass_at": 0.005}, ["gates.it", "fail_below 0.01 lies above pass_at 0.005"]),
        ({"pass_at": 0.0}, ["gates.it.pass_at", "must be above 0"]),
        ({"confidence": 0.5}, ["gates.it.confidence", "must be above 0.5"]),
        ({"kind": "interferenc"}, ["gates.it.kind", "did you mean 'interference'?"]),
        ({"joint": "rank_only_r8"}, ["gates.it", "both arms are 'rank_only_r8'"]),
        ({"datasets": []}, ["gates.it.datasets"]),
        ({"datasets": ["a", "a"]}, ["gates.it.datasets", "'a' is listed twice"]),
        ({"seeds": [0, 1, 1]}, ["gates.it.seeds", "1 is listed twice"]),
        ({"pass_at": 2.0}, ["gates.it.pass_at", "2 means 200 %; 2 % is written 0.02"]),
        ({"fail_below": 1.0}, ["gates.it.fail_below", "1 means 100 %; 1 % is written 0.01"]),
        ({"pass_at": "2 %"}, ["gates.it.pass_at", "number"]),
    ],
)
def test_mistakes_are_named(tmp_path: Path, change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(DataError) as refused:
        register(tmp_path, **INTERFERENCE | change)
    for word in ["gates.yaml", *words]:
        assert word in str(refused.value)


@pytest.mark.parametrize("missing", ["kind", "metric", "joint", "datasets"])
def test_what_decides_has_to_be_written_down(tmp_path: Path, missing: str) -> None:
    with pytest.raises(DataError, match=rf"gates\.it\.{missing}"):
        register(tmp_path, **{key: value for key, value in INTERFERENCE.items() if key != missing})


def test_an_unreadable_date_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="registered: write date and time as"):
        load_gates(gate_file(tmp_path, registered="soon", it=INTERFERENCE))
