"""The words of a finding: the figure first, the label with confidence, and no number that its label contradicts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gates import DIFFERENCE, INTERFERENCE, both, clear_gap, register
from support.results import simulate

from unimoe.analysis.figures.gates import gate_groups
from unimoe.analysis.figures.style import looks
from unimoe.analysis.gates.definitions import Gate
from unimoe.analysis.gates.findings import Finding
from unimoe.analysis.gates.judging import Judgment, judge
from unimoe.analysis.gates.output import WIDTH, gate_lines, gates_as_json, say
from unimoe.analysis.gates.wording import action, confidence_text, headline
from unimoe.analysis.tables.gates import gates_table
from unimoe.results.folder import Results


def judged(folder: Path, found: Results, **gate: Any) -> Judgment:
    return judge(found, register(folder, **INTERFERENCE | gate), "it")


def gate(folder: Path, **change: Any) -> Gate:
    return register(folder, **INTERFERENCE | change).gates["it"]


class TestHeadlines:
    def test_a_loss(self, tmp_path: Path) -> None:
        item = judged(tmp_path, clear_gap(-0.1))
        assert headline(item) == (
            "joint_r8 loses 20.0 % of rank_only_r8's ndcg@10 on apidocs, at least 18.6 % with confidence 0.9 "
            f"(TIR +20.00 %, 95 % interval {_ends(item)}): interference, 2 % or more."
        )
        assert action(item) == "build separate experts"

    def test_between_the_cutoffs(self, tmp_path: Path) -> None:
        item = judged(tmp_path, clear_gap(-0.0075))
        assert headline(item).endswith(": interference between 1 % and 2 %.")
        assert action(item) == "too small to go on, too large to dismiss"


class TestBounds:
    """PASS stood over "-0.2 to 28.8 %": the label is one-sided at .90, the interval two-sided at .95."""

    def passes_over_zero(self, folder: Path, **change: Any) -> Judgment:
        arms = both(*simulate(3, 60, 0.1, rng=np.random.default_rng(1)))
        return judged(folder, arms, pass_at=0.001, fail_below=0.001, **change)

    def test_the_bound_that_decides_is_in_every_form(self, tmp_path: Path) -> None:
        item = self.passes_over_zero(tmp_path)
        low, _ = item.found.estimate.interval or (1.0, 1.0)
        assert item.label == "PASS"
        assert low < 0.0
        bound = re.search(
            r", at least (\d\.\d) % with confidence 0\.9 \(TIR \+\d+\.\d\d %, 95 % interval \[-\d", headline(item)
        )
        assert bound is not None
        shown_bound = re.search(r"Bound +at least \+(\d\.\d\d) % with confidence 0\.9: this", gate_lines(None, [item]))
        assert shown_bound is not None
        exact = float(shown_bound[1])
        assert exact == pytest.approx(float(bound[1]), abs=0.051)
        assert exact >= 0.1
        assert item.found.estimate.confidence_below(exact / 100) == pytest.approx(0.1, abs=2e-3)
        for form in (
            gates_table([item]).to_markdown(),
            gates_table([item]).to_latex(),
            str(gates_table([item]).to_html()),
        ):
            assert re.search(rf"(≥|\\ge\$) \+{exact:.2f}", form)
        bound_fact = f"at least +{exact:.2f} % with confidence 0.9: this decides, the 95 % interval does not"
        assert dict(say(item).facts)["Bound"] == bound_fact
        (group,) = gate_groups([item], looks(item.gate.arms))
        assert group.rows[0].label == f"INTERFERENCE: at least +{exact:.2f} %"

    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize("kind", ["interference", "superiority", "non_inferiority", "equivalence"])
    def test_it_never_lies_beyond_the_cutoff_that_it_decides(self, tmp_path: Path, kind: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        found = both(*simulate(3, 60, rng.choice([0.0, 0.02, 0.06]), rng=rng, query_sd=0.02, seed_sd=0.002))
        gate = INTERFERENCE if kind == "interference" else DIFFERENCE | {"kind": kind}
        item = judge(found, register(tmp_path, **gate), "it")
        for place, end in enumerate(gates_as_json(None, [item], [item])["gates"][0]["bounds"]):
            if end is not None and item.label in ("PASS", "FAIL") and kind != "equivalence":
                cutoff = item.gate.cutoffs[-1 if place == 0 else 0]
                assert end >= cutoff if place == 0 else end <= cutoff


def _ends(item: Judgment) -> str:
    ends = item.found.estimate.interval
    assert ends is not None
    return f"[{', '.join(f'{100 * end:+.2f}' for end in ends)}]"


class TestNumbers:
    @given(st.floats(0.0, 1.0))
    def test_a_confidence_is_rounded_down_and_never_reaches_one(self, held: float) -> None:
        printed = confidence_text(_with({"PASS": held}), "PASS", 0.9)
        assert printed < "1.000"
        assert held - 0.0011 <= float(printed) <= held + 1e-9

    @pytest.mark.parametrize(
        ("held", "needed", "printed"),
        [(0.99995, 0.9999, "0.9999"), (1.0, 0.9999, "0.9999"), (0.99985, 0.9999, "0.999"), (0.8996, 0.8995, "0.8996")],
    )
    def test_a_confidence_is_printed_on_its_side_of_the_one_needed(
        self, held: float, needed: float, printed: str
    ) -> None:
        """PASS had confidence 0.999 beside "a label needs 0.9999"."""
        found = confidence_text(_with({"PASS": held, "FAIL": 1.0 - held}), "PASS", needed)
        assert found == printed
        assert (float(found) >= needed) == (held >= needed)


def _with(confidence: dict[str, float]) -> Finding:
    """A finding of which only the confidences matter."""
    found = object.__new__(Finding)
    object.__setattr__(found, "confidence", confidence)
    return found


@pytest.mark.parametrize("datasets", [1, 2, 5])
def test_lines_fit_a_terminal_and_keep_numbers_whole(tmp_path: Path, datasets: int) -> None:
    names = [f"a-collection-with-a-long-name-{i}" for i in range(datasets)]
    arms = [
        result.model_copy(update={"dataset": name})
        for name in names
        for result in both(*simulate(3, 30, 0.03, rng=np.random.default_rng(2))).results
    ]
    registration = register(tmp_path, **INTERFERENCE | {"datasets": names})
    item = judge(Results(Path("out"), arms), registration, "it")
    for line in gate_lines(registration, [item]).splitlines():
        assert len(line) <= WIDTH
        assert not line.strip().startswith("%")
