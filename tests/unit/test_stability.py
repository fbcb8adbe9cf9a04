from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gates import BASE, DIFFERENCE, INTERFERENCE, both, constant_gap, measured, register, results
from support.results import make_result

from unimoe.analysis.gates.definitions import Gate
from unimoe.analysis.stability import leave_one_out
from unimoe.errors import DataError


def gate(folder: Path, **change: Any) -> Gate:
    return register(folder, **INTERFERENCE | change).gates["it"]


def test_labels_that_hang_on_nothing_hold(tmp_path: Path) -> None:
    stability = leave_one_out(constant_gap(-0.1), gate(tmp_path))
    assert [(row.left_out, row.rule, row.label) for row in stability.rows] == [
        (f"seed {seed}", "PASS", "PASS") for seed in range(3)
    ]
    assert (stability.rule_holds, stability.label_holds) == (True, True)
    assert "the rule's PASS holds whichever seed is left out" in stability.sentence
    assert "no dataset can be left out, there is one" in stability.sentence


def test_a_seed_that_carries_the_rule_is_named(tmp_path: Path) -> None:
    joint = [[0.5] * 6, [0.6] * 6, [0.6] * 6]  # TIR 1/6, 0 and 0; without the first 0, without another 1/12
    stability = leave_one_out(both([[0.6] * 6] * 3, joint), gate(tmp_path))
    assert [row.value for row in stability.rows] == pytest.approx([0.0, 1 / 12, 1 / 12])
    assert (stability.rule_holds, stability.label_holds) == (False, False)
    assert "the rule's PASS becomes FAIL without seed 0" in stability.sentence
    assert "with confidence INCONCLUSIVE becomes FAIL without seed 0" in stability.sentence


def test_a_dataset_that_carries_the_label_is_named(tmp_path: Path) -> None:
    scores = {"a": (0.6, 0.4), "b": (0.6, 0.6), "c": (0.6, 0.6)}
    found = results(
        *(
            measured(arm, [[pair[side]] * 4] * 2, dataset)
            for side, arm in enumerate(("rank_only_r8", "joint_r8"))
            for dataset, pair in scores.items()
        )
    )
    stability = leave_one_out(found, gate(tmp_path, datasets=list(scores)))
    datasets = {row.left_out: (row.rule, row.label) for row in stability.rows if row.kind == "dataset"}
    assert datasets == {"a": ("FAIL", "FAIL"), "b": ("PASS", "PASS"), "c": ("PASS", "PASS")}
    assert "with confidence PASS becomes FAIL without a" in stability.sentence


def test_one_of_two_seeds_leaves_no_label_to_try(tmp_path: Path) -> None:
    stability = leave_one_out(constant_gap(-0.1, seeds=2), gate(tmp_path))
    assert [row.label for row in stability.rows] == [None, None]
    assert (stability.rule_holds, stability.label_holds) == (True, None)
    assert "cannot be tried" in stability.sentence


def test_nothing_to_leave_out_is_said(tmp_path: Path) -> None:
    stability = leave_one_out(constant_gap(-0.1, seeds=1), gate(tmp_path))
    assert (stability.rows, stability.rule_holds, stability.label_holds) == ((), None, None)
    assert stability.sentence.startswith("not tried: no seed can be left out, there is one")
    untrained = results([make_result(arm, None, [0.5, 0.6]) for arm in ("bm25", "zero_shot")])
    arms = BASE | {"kind": "equivalence", "margin": 0.1, "system": "bm25", "baseline": "zero_shot"}
    assert "there are none" in leave_one_out(untrained, register(tmp_path, **arms).gates["it"]).sentence


def test_a_row_is_the_judgment_of_what_remains(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    specialist, joint = rng.uniform(0.2, 0.9, (2, 4, 30))
    difference = register(tmp_path, **DIFFERENCE | {"kind": "superiority"}).gates["it"]
    stability = leave_one_out(both(specialist, joint), difference)
    kept = [0, 1, 3]
    assert stability.rows[2].value == pytest.approx((joint[kept] - specialist[kept]).mean())


def test_a_gate_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'joint_r8'"):
        leave_one_out(constant_gap(0.0), gate(tmp_path, joint="joint_r9"))
