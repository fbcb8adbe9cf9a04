"""The words of a finding: the figure first, the label with confidence, and no number that its label contradicts."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gates import INTERFERENCE, both, clear_gap, gate_file, measured, register, results
from support.results import simulate
from support.tables import texts

from unimoe.analysis.figures.gates import gate_groups
from unimoe.analysis.figures.style import looks
from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.judging import Judgment, judge, judge_all
from unimoe.analysis.gates.output import WIDTH, gate_lines, say
from unimoe.analysis.gates.wording import action, confidence_text, headline
from unimoe.analysis.tables.gates import gates_table
from unimoe.results.folder import Results


def judged(folder: Path, found: Results, **gate: Any) -> Judgment:
    return judge(found, register(folder, **INTERFERENCE | gate), "it")


def test_a_headline_has_the_loss_its_bound_and_what_it_means(tmp_path: Path) -> None:
    item = judged(tmp_path, clear_gap(-0.1))
    low, high = item.found.estimate.interval or (0.0, 0.0)
    assert headline(item) == (
        "joint_r8 loses 20.0 % of rank_only_r8's ndcg@10 on apidocs, at least 18.6 % with confidence 0.9 "
        f"(TIR +20.00 %, 95 % interval [{100 * low:+.2f}, {100 * high:+.2f}]): interference, 2 % or more."
    )
    assert action(item) == "build separate experts"
    between = judged(tmp_path, clear_gap(-0.0075))
    assert headline(between).endswith(": interference between 1 % and 2 %.")
    assert action(between) == "too small to go on, too large to dismiss"


def test_the_bound_that_decides_is_in_every_form(tmp_path: Path) -> None:
    """PASS stood over "-0.2 to 28.8 %": the label is one-sided at .90, the interval two-sided at .95."""
    arms = both(*simulate(3, 60, 0.1, rng=np.random.default_rng(1)))
    item = judged(tmp_path, arms, pass_at=0.001, fail_below=0.001)
    low, _ = item.found.estimate.interval or (1.0, 1.0)
    assert item.label == "PASS"
    assert low < 0.0
    bound = re.search(
        r", at least (\d\.\d) % with confidence 0\.9 \(TIR \+\d+\.\d\d %, 95 % interval \[-\d", headline(item)
    )
    shown_bound = re.search(r"Bound +at least \+(\d\.\d\d) % with confidence 0\.9: this", gate_lines(None, [item]))
    assert bound is not None
    assert shown_bound is not None
    exact = float(shown_bound[1])
    assert exact == pytest.approx(float(bound[1]), abs=0.051)
    assert exact >= 0.1
    assert item.found.estimate.confidence_below(exact / 100) == pytest.approx(0.1, abs=2e-3)
    table = gates_table([item])
    for form in (table.to_markdown(), table.to_latex(), table.to_html()):
        assert re.search(rf"(≥|\\ge\$) \+{exact:.2f}", form)
    bound_fact = f"at least +{exact:.2f} % with confidence 0.9: this decides, the 95 % interval does not"
    assert dict(say(item).facts)["Bound"] == bound_fact
    (group,) = gate_groups([item], looks(item.gate.arms))
    assert group.rows[0].label == f"INTERFERENCE: at least +{exact:.2f} %"


def confidence_of(held: float, needed: float) -> str:
    finding: Any = SimpleNamespace(confidence={"PASS": held})
    return confidence_text(finding, "PASS", needed)


@given(st.floats(0.0, 1.0))
def test_a_confidence_is_rounded_down_and_never_reaches_one(held: float) -> None:
    printed = confidence_of(held, 0.9)
    assert printed < "1.000"
    assert held - 0.0011 <= float(printed) <= held + 1e-9


@pytest.mark.parametrize(
    ("held", "needed", "printed"),
    [(0.99995, 0.9999, "0.9999"), (1.0, 0.9999, "0.9999"), (0.99985, 0.9999, "0.999"), (0.8996, 0.8995, "0.8996")],
)
def test_a_confidence_is_printed_on_its_side_of_the_one_needed(held: float, needed: float, printed: str) -> None:
    """PASS had confidence 0.999 beside "a label needs 0.9999"."""
    assert confidence_of(held, needed) == printed
    assert (float(printed) >= needed) == (held >= needed)


@pytest.mark.parametrize("datasets", [1, 2, 5])
def test_lines_fit_a_terminal_and_keep_numbers_whole(tmp_path: Path, datasets: int) -> None:
    names = [f"a-collection-with-a-long-name-{i}" for i in range(datasets)]
    simulated = both(*simulate(3, 30, 0.03, rng=np.random.default_rng(2))).results
    arms = [result.model_copy(update={"dataset": name}) for name in names for result in simulated]
    registration = register(tmp_path, **INTERFERENCE | {"datasets": names})
    item = judge(Results(Path("out"), arms), registration, "it")
    for line in gate_lines(registration, [item]).splitlines():
        assert len(line) <= WIDTH
        assert not line.strip().startswith("%")


def test_the_table_has_a_row_per_dataset_and_notes_what_was_not_judged(tmp_path: Path) -> None:
    """A dataset that is added takes no verdict away; the suite lacks two seeds of it."""
    a, b = (simulate(3, n, 0.2, rng=np.random.default_rng(n)) for n in (60, 40))
    arms = [(arm, "a", rows) for arm, rows in zip(("rank_only_r8", "joint_r8"), a, strict=True)]
    arms += [(arm, "b", rows[:1]) for arm, rows in zip(("rank_only_r8", "joint_r8"), b, strict=True)]
    found = results(*(measured(arm, rows, dataset) for arm, dataset, rows in arms))
    path = gate_file(tmp_path, it=INTERFERENCE | {"datasets": ["a", "b"]}, gone=INTERFERENCE)
    outcomes = judge_all(found, load_gates(path))
    table = gates_table(outcomes)
    finding = table.columns.index("Finding")
    assert [line[finding] for line in texts(table)] == ["Interference", "Undecided", "Undecided"]
    assert [line[0] for line in texts(table)] == ["a", "b", "all (mean of TIRs)"]
    notes = " ".join(table.notes)
    assert "it: Asked: PASS from 2 %, FAIL below 1 %, with confidence 0.9." in notes
    assert "it on b: one seed of rank_only_r8 and joint_r8: other training seeds cannot be judged by it" in notes
    assert "gone was not judged: " in notes
