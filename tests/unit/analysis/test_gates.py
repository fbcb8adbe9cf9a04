"""Gates: what they find, judge and note, what a registration requires, and how findings are worded."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import results as made

from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.judging import Judgment, Refusal, exit_code, judge, judge_all
from unimoe.analysis.gates.output import gate_lines, gates_as_json
from unimoe.analysis.gates.registration import default_gates
from unimoe.analysis.gates.wording import action, confidence_text, headline
from unimoe.analysis.tables.gates import gates_table
from unimoe.core.errors import DataError
from unimoe.results import TrainingBudget, write_result
from unimoe.results.folder import Results, load_all_results


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["interference", "superiority", "non_inferiority", "equivalence"])
def test_a_plan_calls_settled_what_has_a_label_and_no_bound_lies_beyond_its_cutoff(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = made.both(*made.simulate(3, 60, rng.choice([0.0, 0.015, 0.05]), rng=rng, query_sd=0.02, seed_sd=0.002))
    judgment = made.judged(found, **(made.INTERFERENCE if kind == "interference" else made.DIFFERENCE | {"kind": kind}))
    assert judgment.plan is not None
    assert judgment.plan.settled == (judgment.label != "INCONCLUSIVE")
    low, high = gates_as_json(None, [judgment], [judgment])["gates"][0]["bounds"]
    if judgment.label in ("PASS", "FAIL") and kind != "equivalence":
        assert low is None or low >= judgment.gate.cutoffs[-1]
        assert high is None or high <= judgment.gate.cutoffs[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"datasets": ["apidoc"]}, ["no reranking/apidoc result of rank_only_r8", "'reranking/apidocs'"]),
        ({"metric": "ndcg"}, ["no per-query 'ndcg'"]),
        ({"seeds": [7, 8]}, ["seed 7, 8"]),
        ({"seeds": [7, 8, 9], "looks": [3]}, ["seed 7, the first that the gate registers"]),
        ({"specialist_must_beat": "zero_shot"}, ["no results of arm 'zero_shot'"]),
    ],
)
def test_what_has_no_results_is_named(tmp_path: Path, change: dict[str, Any], words: list[str]) -> None:
    (outcome,) = outcomes = judge_all(made.clear_gap(0.0), made.register(tmp_path, **made.INTERFERENCE | change))
    assert isinstance(outcome, Refusal)
    assert exit_code(outcomes) == 3
    for word in ["gates.yaml", "'it'", *words]:
        assert word in str(outcome.error)


def test_an_arm_needs_a_seed_on_every_dataset_or_none_on_two() -> None:
    held = {"d0": (0, 1), "d1": (1, 2), "d2": (0, 2)}
    places = [(dataset, seed) for dataset, seeds in held.items() for seed in seeds]
    arms = ("rank_only_r8", "joint_r8")
    items = [made.make_result(arm, s, [0.5] * 8, dataset=d) for arm in arms for d, s in places]
    with pytest.raises(DataError, match=r"rank_only_r8 has no seed with a result on each of .*evaluate one seed"):
        made.judged(made.results_of(*items), **made.INTERFERENCE | {"datasets": list(held)})


def learning(zero_shot: float) -> Results:
    """A joint arm that loses a fifth to a specialist, and an untrained model that differs from that by some mean."""
    rng = np.random.default_rng(0)
    specialist, joint = made.simulate(3, 200, 0.2, rng=rng, query_sd=0.02)
    untrained = np.clip(specialist[0] + zero_shot + rng.normal(0.0, 0.1, 200), 0.0, 1.0)
    arms = made.both(np.clip(specialist, 0, 1), np.clip(joint, 0, 1))
    return made.results_of(*arms.results, made.make_result("zero_shot", None, untrained))


def test_a_specialist_that_has_learnt_nothing_decides_nothing_unless_the_gate_says_so(tmp_path: Path) -> None:
    """It was PASS and exit code 0, with the action to train the specialist."""
    registration = made.register(tmp_path, **made.INTERFERENCE)
    (judgment,) = outcomes = judge_all(learning(0.0), registration)
    assert isinstance(judgment, Judgment)
    assert (judgment.label, exit_code(outcomes)) == ("INCONCLUSIVE", 12)
    text = " ".join(gate_lines(registration, outcomes).split())
    assert "rank_only_r8 does not beat zero_shot with confidence, which a gate requires by default" in text
    assert "(gate: INCONCLUSIVE, train better first: rank_only_r8 until it beats zero_shot, then judge again)" in text
    assert "Would settle it" not in text
    assert judge(learning(-0.2), registration, "it").label == "PASS"
    outcomes = judge_all(learning(0.0), made.register(tmp_path, **made.INTERFERENCE | {"specialist_must_beat": None}))
    said = gates_as_json(registration, outcomes, outcomes)["gates"][0]
    assert (said["label"], said["specialist"]["holds"]) == ("PASS", False)
    assert "But rank_only_r8 has learnt nothing measurable" in said["headline"]


def test_the_worst_exit_code_counts() -> None:
    for codes, worst in (([0, 11], 11), ([11, 12, 0], 12), ([12, 10, 11], 10), ([10, 3, 0], 3), ([], 12)):
        outcomes: Any = [SimpleNamespace(exit_code=code) for code in codes]
        assert exit_code(outcomes) == worst


@pytest.mark.parametrize(
    "arms",
    [
        ([[0.5, 0.6]] * 2, [[0.4, 0.5]] * 2),
        ([[0.0] * 8] * 2, [[0.1] * 8] * 2),
        ([[0.5] * 8] * 2, [[0.4] * 8] * 2),
        ([[0.5]], [[0.4]]),
    ],
)
def test_json_of_what_cannot_be_decided_holds_no_infinity(arms: Any) -> None:
    outcomes = [made.judged(made.both(*arms), **made.INTERFERENCE)]
    said = json.loads(json.dumps(gates_as_json(None, outcomes, outcomes), allow_nan=False))
    assert (said["exit_code"], said["gates"][0]["label"]) == (12, "INCONCLUSIVE")
    assert said["gates"][0]["why"]
    assert "UNDECIDED: it (gate: INCONCLUSIVE" in gate_lines(None, outcomes)


RECORD = {"phases": {"train rank_only": {"seconds": 3600.0}, "train joint": {"seconds": 7200.0}, "rerank": {}}}
PRICE = {"5 seeds": 2 * 3603.0, "8 seeds": 5 * 3603.0}
"""A seed: 1,200 s and 2,400 s of training over three seeds of each arm, and 1.5 s of scoring each."""


@pytest.mark.parametrize(
    ("record", "price"), [(RECORD, PRICE), (None, {}), ("{", {}), ({"phases": {"train joint": {"seconds": 5.0}}}, {})]
)
def test_further_seeds_have_a_price_where_the_job_recorded_one(tmp_path: Path, record: Any, price: Any) -> None:
    tasks = {"rank_only_r8": {"task": "rank_only"}, "joint_r8": {"task": "joint"}}
    scores = made.simulate(3, 40, 0.015, rng=np.random.default_rng(4), seed_sd=0.02)
    for result in made.both(*scores).results:
        write_result(tmp_path, result.model_copy(update={"config": {"arms": tasks}}))
    if record is not None:
        (tmp_path / "run.json").write_text(record if isinstance(record, str) else json.dumps(record), encoding="utf-8")
    item = made.judged(load_all_results(tmp_path), **made.INTERFERENCE, looks=[3, 5, 8])
    assert item.seconds == pytest.approx(price)
    said = "; as fast as so far, the 5 seeds in about 2.0 hours, the 8 seeds in about 5.0 hours"
    assert (said in " ".join(gate_lines(None, [item]).split())) == bool(price)
    assert gates_as_json(None, [item], [item])["gates"][0]["power"]["seconds"] == (item.seconds or None)


def test_a_metric_that_no_module_registers_here_is_refused_in_one_line() -> None:
    """The results of a registered measure, analysed without --import, ended in a traceback."""
    held = made.both([[0.5] * 9], [[0.4] * 9], metric="mine@10")
    with pytest.raises(DataError, match=r"unknown metric 'mine@10'.*--import MODULE"):
        default_gates(held)


def test_results_unfit_for_decisions_neither_pass_nor_stop() -> None:
    given: dict[str, Any]
    for given, change, reason in (
        ({"caveats": ["smoke run"]}, {}, "smoke run"),
        ({"identity": {"max_queries": 4}}, {}, "4 queries of a larger set"),
        ({}, {"seeds": [0, 1, 2, 3]}, "no result yet of seed 3: judged at another number of seeds than registered"),
    ):
        item = made.judged(made.clear_gap(-0.1, **given), **made.INTERFERENCE, **change)
        assert (item.label, item.advisory, exit_code([item])) == ("PASS", (reason,), 12)


def test_notes_name_unequal_training_and_results_older_than_the_gate(tmp_path: Path) -> None:
    arms = made.clear_gap(-0.1)
    budgets = {
        arm: TrainingBudget(steps=1, ranking_examples=examples, embedding_examples=0, tokens=1)
        for arm, examples in (("rank_only_r8", 480), ("joint_r8", 240))
    }
    items = [result.model_copy(update={"training": budgets[result.config_name]}) for result in arms.results]
    registration = load_gates(made.gate_file(tmp_path, registered="2027-01-01", it=made.INTERFERENCE))
    notes = " ".join(judge(made.results_of(*items), registration, "it").notes)
    assert "rank_only_r8 saw 480 ranking examples, joint_r8 240" in notes
    assert "6 of 6 results are older than this gate (registered 2027-01-01" in notes


def test_a_headline_has_the_loss_its_bound_and_what_it_means() -> None:
    item = made.judged(made.clear_gap(-0.1), **made.INTERFERENCE)
    low, high = item.found.estimate.interval or (0.0, 0.0)
    assert headline(item) == (
        "joint_r8 loses 20.0 % of rank_only_r8's nDCG@10 on apidocs, at least 18.6 % with confidence 0.9 "
        f"(TIR +20.00 %, 95 % interval [{100 * low:+.2f}, {100 * high:+.2f}]): interference, 2 % or more."
    )
    assert action(item) == "build separate experts"
    between = made.judged(made.clear_gap(-0.0075), **made.INTERFERENCE)
    assert headline(between).endswith(": interference between 1 % and 2 %.")
    assert action(between) == "too small to go on, too large to dismiss"


@given(st.floats(0.0, 1.0), st.sampled_from([0.9, 0.9999]))
@example(0.99995, 0.9999)  # PASS had confidence 0.999 beside "a label needs 0.9999"
@example(0.99985, 0.9999)
@example(0.8996, 0.8995)
def test_a_confidence_is_rounded_down_on_its_side_of_the_one_needed_and_never_reaches_one(
    held: float, needed: float
) -> None:
    finding: Any = SimpleNamespace(confidence={"PASS": held})
    printed = confidence_text(finding, "PASS", needed)
    assert printed < "1.000"
    assert held - 0.0011 <= float(printed) <= held + 1e-9
    assert (float(printed) >= needed) == (held >= needed)


def test_the_table_has_a_row_per_dataset_and_notes_what_was_not_judged(tmp_path: Path) -> None:
    """A dataset that is added takes no verdict away; the suite lacks two seeds of it."""
    a, b = (made.simulate(3, n, 0.2, rng=np.random.default_rng(n)) for n in (60, 40))
    arms = [(arm, "a", rows) for arm, rows in zip(("rank_only_r8", "joint_r8"), a, strict=True)]
    arms += [(arm, "b", rows[:1]) for arm, rows in zip(("rank_only_r8", "joint_r8"), b, strict=True)]
    found = made.results_of(*(result for arm, dataset, rows in arms for result in made.measured(arm, rows, dataset)))
    path = made.gate_file(tmp_path, it=made.INTERFERENCE | {"datasets": ["a", "b"]}, gone=made.INTERFERENCE)
    outcomes = judge_all(found, load_gates(path))
    table = gates_table(outcomes)
    places, findings, bounds = (
        [row[table.columns.index(name)].text for row in table.groups[0].rows]
        for name in ("Dataset", "Finding", "Bound")
    )
    assert findings == ["Interference", "Undecided", "Undecided"]
    assert isinstance(outcomes[1], Judgment)
    assert bounds == [f"≥ {100 * outcomes[1].parts[0].estimate.bound(0.1):+.2f}", "–", "–"]
    assert places == ["a", "b", "all (mean of TIRs)"]
    notes = " ".join(table.notes)
    assert "it: Asked: PASS from 2 %, FAIL below 1 %, with confidence 0.9." in notes
    assert "it on b: one seed of rank_only_r8 and joint_r8: other training seeds cannot be judged by it" in notes
    assert "gone was not judged: " in notes
