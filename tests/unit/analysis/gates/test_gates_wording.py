"""The words of a finding: the figure first, the label with confidence, and no number that its label contradicts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.gates import DIFFERENCE, INTERFERENCE, both, clear_gap, measured, register, results
from support.results import make_result, simulate

from unimoe.analysis.figures.gates import gate_groups
from unimoe.analysis.figures.style import looks
from unimoe.analysis.gates.definitions import Gate
from unimoe.analysis.gates.findings import Finding
from unimoe.analysis.gates.judging import Judgment, judge
from unimoe.analysis.gates.output import WIDTH, family, gate_lines, gates_as_json, say
from unimoe.analysis.gates.wording import action, amount, claim, confidence_text, headline, region, shown
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

    def test_a_gain_keeps_the_sign_that_tables_and_figures_show(self, tmp_path: Path) -> None:
        item = judged(tmp_path, clear_gap(0.05))
        said = headline(item)
        assert said.startswith(
            "joint_r8 gains 10.0 % of rank_only_r8's ndcg@10 on apidocs, "
            "at least 9.3 % with confidence 0.9 (TIR -10.00 %, 95 % interval [-"
        )
        assert said.endswith(": no interference, the joint model is ahead.")
        low, high = (float(x) for x in said.partition("interval [")[2].partition("])")[0].split(", "))
        assert low < -10.0 < high < 0.0

    def test_nothing_that_matters(self, tmp_path: Path) -> None:
        said = headline(judged(tmp_path, clear_gap(-0.001)))
        assert said.endswith(": no interference worth a split, less than 1 %.")

    def test_between_the_cutoffs(self, tmp_path: Path) -> None:
        item = judged(tmp_path, clear_gap(-0.0075))
        assert headline(item).endswith(": interference between 1 % and 2 %.")
        assert action(item) == "too small to go on, too large to dismiss"

    def test_what_cannot_be_decided(self, tmp_path: Path) -> None:
        noisy = judged(tmp_path, both(*simulate(3, 30, 0.015, rng=np.random.default_rng(2))))
        assert headline(noisy).endswith(": these seeds and queries cannot decide.")
        assert action(noisy) == "measure more"
        assert "one seed of" in headline(judged(tmp_path, clear_gap(-0.1, seeds=1)))

    def test_a_specialist_at_zero(self, tmp_path: Path) -> None:
        item = judged(tmp_path, both(np.zeros((2, 8)), np.full((2, 8), 0.1)))
        assert headline(item) == (
            "joint_r8 cannot be compared with rank_only_r8 on apidocs: the specialist does not score above 0."
        )

    @pytest.mark.parametrize(
        ("kind", "gap", "said"),
        [
            ("superiority", 0.02, "joint_r8 beats rank_only_r8 by 1 point or more"),
            ("superiority", -0.02, "joint_r8 does not beat rank_only_r8 by 1 point or more"),
            ("non_inferiority", 0.0, "joint_r8 is not worse than rank_only_r8 by more than 1 point"),
            ("equivalence", 0.02, "joint_r8 and rank_only_r8 differ by more than 1 point"),
        ],
    )
    def test_differences(self, tmp_path: Path, kind: str, gap: float, said: str) -> None:
        item = judge(clear_gap(gap), register(tmp_path, **DIFFERENCE | {"kind": kind}), "it")
        assert headline(item).endswith(f": {said}.")


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

    @pytest.mark.parametrize(
        ("kind", "gap", "said"),
        [
            (
                "interference",
                0.0,
                r"% of .* on apidocs, (at|and loses at|and gains at) most 0\.\d % with confidence 0\.9 ",
            ),
            ("superiority", -0.02, r"2\.0 points behind .*, at least 2\.0 points with confidence 0\.9 "),
            ("superiority", 0.02, r"2\.0 points ahead .*, at least 2\.0 points with confidence 0\.9 "),
            ("non_inferiority", -0.002, r"0\.2 points behind .*, at most 0\.\d points with confidence 0\.9 "),
            ("equivalence", 0.002, r"0\.2 points ahead of .*, -?0\.\d to 0\.\d points with confidence 0\.9 "),
            ("equivalence", -0.02, r"2\.0 points behind .*, at least 2\.0 points with confidence 0\.9 "),
        ],
    )
    def test_it_speaks_in_the_direction_of_the_estimate(self, tmp_path: Path, kind: str, gap: float, said: str) -> None:
        asked = INTERFERENCE if kind == "interference" else DIFFERENCE | {"kind": kind}
        item = judge(clear_gap(gap), register(tmp_path, **asked), "it")
        assert item.label != "INCONCLUSIVE"
        assert re.search(said, headline(item)), headline(item)

    def test_without_a_label_there_is_none(self, tmp_path: Path) -> None:
        noisy = judged(tmp_path, both(*simulate(3, 30, 0.015, rng=np.random.default_rng(2))))
        assert noisy.label == "INCONCLUSIVE"
        for said in (headline(noisy), gate_lines(None, [noisy])):
            assert "at least" not in said
            assert "Bound" not in said

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


def test_confidences_are_no_shares_of_one(tmp_path: Path) -> None:
    """ "PASS 0.581, MARGINAL 0.090, FAIL 0.329" added up to 1, like a posterior."""
    noisy = both(*simulate(3, 30, 0.015, rng=np.random.default_rng(2)))
    said = " ".join(gate_lines(None, [judged(tmp_path, noisy)]).split())
    assert re.search(
        r"Confidence that TIR is 2 % or more: 0\.\d{3}; that TIR is below 1 %: 0\.\d{3}; a label needs", said
    )
    assert "MARGINAL" not in said
    one_cutoff = judge(noisy, register(tmp_path, **DIFFERENCE | {"kind": "superiority"}), "it")
    said = " ".join(gate_lines(None, [one_cutoff]).split())
    assert len(re.findall(r"that joint_r8 (beats|does not beat) rank_only_r8 by 1 point or more: 0\.\d{3}", said)) == 1


def test_several_gates_are_said_to_be_uncorrected(tmp_path: Path) -> None:
    item = judged(tmp_path, clear_gap(-0.1))
    words = "Each of these 2 gates has its own confidence, uncorrected for their number."
    assert words in " ".join(gate_lines(None, [item, item]).split())
    assert words in gates_table([item, item]).notes
    assert words == family(2)
    assert "uncorrected" not in gate_lines(None, [item])


def _ends(item: Judgment) -> str:
    ends = item.found.estimate.interval
    assert ends is not None
    return f"[{', '.join(f'{100 * end:+.2f}' for end in ends)}]"


class TestRegions:
    @pytest.mark.parametrize(
        ("gap", "said"), [(-0.1, "2 % or more"), (-0.0075, "1 % to 2 %"), (0.0, "below 1 %"), (0.1, "below 1 %")]
    )
    def test_the_place_of_the_estimate_claims_nothing(self, tmp_path: Path, gap: float, said: str) -> None:
        item = judged(tmp_path, clear_gap(gap))
        assert region(item.gate, item.found) == said

    def test_cutoffs_are_the_gates_own(self, tmp_path: Path) -> None:
        own = gate(tmp_path, pass_at=0.10, fail_below=0.08)
        assert claim(own) == "PASS from 10 %, FAIL below 8 %"
        assert amount(own, 0.01) == "1 %"
        margin = register(tmp_path, **DIFFERENCE | {"kind": "superiority"}).gates["it"]
        assert amount(margin, 0.01) == "1 point"


class TestNumbers:
    def test_a_margin_of_zero_has_no_sign(self, tmp_path: Path) -> None:
        """The estimate of a non-inferiority gate with margin 0 was "below -0 points"."""
        registration = register(tmp_path, **DIFFERENCE | {"kind": "non_inferiority", "margin": 0.0})
        item = judge(clear_gap(-0.1), registration, "it")
        assert region(item.gate, item.found) == "below 0 points"

    def test_gates_that_nobody_registered_do_not_claim_to_decide_nothing(self, tmp_path: Path) -> None:
        """Alone in a folder they give ``verdicts`` its exit code."""
        said = gate_lines(None, [judged(tmp_path, clear_gap(-0.1))])
        assert said.startswith("No gates were registered before the results; the default cutoffs are used.\n")

    def test_no_minus_zero(self, tmp_path: Path) -> None:
        assert shown(gate(tmp_path), -1e-9) == "0.00 %"
        text = gate_lines(None, [judged(tmp_path, clear_gap(0.0))])
        assert "-0.00" not in text

    def test_never_rounded_over_a_cutoff(self, tmp_path: Path) -> None:
        assert shown(gate(tmp_path), 0.0199996) == "+1.99996 %"
        assert shown(gate(tmp_path), 0.02) == "+2.00 %"
        assert shown(gate(tmp_path), -0.031) == "-3.10 %"

    @given(st.floats(0.0, 1.0))
    def test_a_confidence_is_rounded_down_and_never_reaches_one(self, held: float) -> None:
        printed = confidence_text(_with({"PASS": held}), "PASS", 0.9)
        assert printed < "1.000"
        assert held - 0.0011 <= float(printed) <= held + 1e-9

    def test_certainty_is_not_printed(self) -> None:
        assert confidence_text(_with({"PASS": 1.0, "FAIL": 0.0, "MARGINAL": 0.0}), "PASS", 0.9) == "0.999"

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


def test_one_seed_that_beats_zero_shot_clearly_has_learnt(tmp_path: Path) -> None:
    rows = np.random.default_rng(5).uniform(0.4, 0.8, (2, 1, 40))
    zero_shot = [make_result("zero_shot", None, (rows[0, 0] / 4).tolist())]
    found = results(measured("rank_only_r8", rows[0]), measured("joint_r8", rows[1]), zero_shot)
    item = judged(tmp_path, found)
    assert item.learnt is not None
    assert item.learnt.holds
    assert "has learnt nothing" not in headline(item)
    assert not any("declares that seeds pair" in note for note in item.notes)
