"""A gate judged on results: refusals, notes, exit codes, looks ahead, and what its specialist has learnt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gates import DIFFERENCE, INTERFERENCE, both, clear_gap, measured, register, results
from support.results import make_result, simulate

from unimoe.analysis.gates.judging import Judgment, Refusal, exit_code, judge, judge_all
from unimoe.analysis.gates.output import gate_lines, gates_as_json
from unimoe.analysis.gates.wording import unlearnt
from unimoe.core.errors import DataError
from unimoe.results import write_result
from unimoe.results.folder import Results, load_all_results


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["interference", "superiority", "non_inferiority", "equivalence"])
def test_a_plan_calls_settled_what_has_a_label(tmp_path: Path, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = both(*simulate(3, 60, rng.choice([0.0, 0.015, 0.05]), rng=rng, query_sd=0.02))
    gate = INTERFERENCE if kind == "interference" else DIFFERENCE | {"kind": kind}
    judgment = judge(found, register(tmp_path, **gate), "it")
    assert judgment.plan is not None
    assert judgment.plan.settled == (judgment.label != "INCONCLUSIVE")


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"joint": "joint_r9"}, ["'joint_r9'", "did you mean 'joint_r8'?"]),
            ({"datasets": ["apidoc"]}, ["no reranking/apidoc result of rank_only_r8", "'reranking/apidocs'"]),
            ({"task": "embedding"}, ["no embedding/apidocs result"]),
            ({"metric": "ndcg"}, ["no per-query 'ndcg'"]),
            ({"seeds": [7, 8]}, ["seed 7, 8"]),
            ({"specialist_must_beat": "zero_shot"}, ["no results of arm 'zero_shot'"]),
        ],
    )
    def test_what_has_no_results_is_named(self, tmp_path: Path, change: dict[str, Any], words: list[str]) -> None:
        (outcome,) = judge_all(clear_gap(0.0), register(tmp_path, **INTERFERENCE | change))
        assert isinstance(outcome, Refusal)
        for word in ["gates.yaml", "'it'", *words]:
            assert word in str(outcome.error)

    def test_no_seed_with_a_result_on_every_dataset(self, tmp_path: Path) -> None:
        held = {"d0": (0, 1), "d1": (1, 2), "d2": (0, 2)}
        places = [(dataset, seed) for dataset, seeds in held.items() for seed in seeds]
        items = [make_result(arm, s, [0.5] * 8, dataset=d) for arm in INTERFERENCE_ARMS for d, s in places]
        gate = register(tmp_path, **INTERFERENCE | {"datasets": list(held)})
        with pytest.raises(DataError, match=r"rank_only_r8 has no seed with a result on each of .*evaluate one seed"):
            judge(results(items), gate, "it")


INTERFERENCE_ARMS = ("rank_only_r8", "joint_r8")


class TestLearnt:
    """A PASS against a specialist that is no better than zero-shot says nothing of joint training."""

    def arms(self, zero_shot: float) -> Results:
        rng = np.random.default_rng(0)
        specialist, joint = simulate(3, 200, 0.2, rng=rng, query_sd=0.02)
        untrained = np.clip(specialist[0] + zero_shot + rng.normal(0.0, 0.1, 200), 0.0, 1.0)
        return results(
            measured("rank_only_r8", np.clip(specialist, 0, 1)),
            measured("joint_r8", np.clip(joint, 0, 1)),
            [make_result("zero_shot", None, untrained)],
        )

    def test_it_is_a_caveat_in_the_headline(self, tmp_path: Path) -> None:
        registration = register(tmp_path, **INTERFERENCE | {"specialist_must_beat": None})
        outcomes = judge_all(self.arms(0.0), registration)
        (judgment,) = outcomes
        assert isinstance(judgment, Judgment)
        assert judgment.label == "PASS"
        assert judgment.learnt is not None
        assert not judgment.learnt.holds
        text = " ".join(gate_lines(registration, outcomes).split())
        assert "But rank_only_r8 has learnt nothing measurable" in text
        said = gates_as_json(registration, outcomes, outcomes)["gates"][0]
        assert "has learnt nothing measurable" in said["headline"]
        assert said["specialist"]["holds"] is False

    def test_by_default_a_specialist_that_has_learnt_nothing_decides_nothing(self, tmp_path: Path) -> None:
        """It was PASS and exit code 0, with the action to train the specialist."""
        registration = register(tmp_path, **INTERFERENCE)
        (judgment,) = outcomes = judge_all(self.arms(0.0), registration)
        assert isinstance(judgment, Judgment)
        assert (judgment.label, exit_code(outcomes)) == ("INCONCLUSIVE", 12)
        text = " ".join(gate_lines(registration, outcomes).split())
        assert "rank_only_r8 does not beat zero_shot with confidence, which a gate requires by default" in text
        assert (
            "(gate: INCONCLUSIVE, train better first: rank_only_r8 until it beats zero_shot, then judge again)" in text
        )
        for other in ("measure more", "fast tier", "Would settle it"):
            assert other not in text
        assert judge(self.arms(-0.2), registration, "it").label == "PASS"

    def test_a_difference_on_few_queries_is_nothing_learnt(self, tmp_path: Path) -> None:
        """It had learnt, by four queries, beside a table that had no test of the same two arms."""
        rng = np.random.default_rng(5)
        untrained = rng.uniform(0.2, 0.8, 200)
        specialist = untrained + np.where(np.arange(200) < 4, 0.2 + rng.normal(0.0, 0.001, (3, 200)), 0.0)
        found = results(
            measured("rank_only_r8", specialist),
            measured("joint_r8", specialist - 0.1 + rng.normal(0.0, 0.01, (3, 200))),
            [make_result("zero_shot", None, untrained)],
        )
        judgment = judge(found, register(tmp_path, **INTERFERENCE | {"specialist_must_beat": "zero_shot"}), "it")
        assert judgment.learnt is not None
        assert not judgment.learnt.holds
        assert judgment.label == "INCONCLUSIVE"
        assert "the arms differ on 4 of 200 queries" in unlearnt(judgment)


class TestExitCode:
    @pytest.mark.parametrize(
        ("labels", "code"),
        [
            (["PASS"], 0),
            (["PASS", "MARGINAL"], 11),
            (["MARGINAL", "INCONCLUSIVE", "PASS"], 12),
            (["INCONCLUSIVE", "FAIL", "MARGINAL"], 10),
            (["FAIL", "refused", "PASS"], 3),
            ([], 12),
        ],
    )
    def test_the_worst_counts(self, tmp_path: Path, labels: list[str], code: int) -> None:
        gate = register(tmp_path, **INTERFERENCE).gates["it"]
        refusal = Refusal("it", gate, DataError("gone"))
        assert exit_code([refusal if label == "refused" else judged_as(tmp_path, label) for label in labels]) == code


def judged_as(folder: Path, label: str) -> Judgment:
    gap = {"PASS": -0.1, "MARGINAL": -0.0075, "FAIL": 0.0, "INCONCLUSIVE": -0.1}[label]
    found = clear_gap(gap, seeds=1 if label == "INCONCLUSIVE" else 3)
    judgment = judge(found, register(folder, **INTERFERENCE), "it")
    assert judgment.label == label
    return judgment


@pytest.mark.parametrize(
    "arms",
    [
        ([[0.5, 0.6]] * 2, [[0.4, 0.5]] * 2),
        ([[0.0] * 8] * 2, [[0.1] * 8] * 2),
        ([[0.5] * 8] * 2, [[0.4] * 8] * 2),
        ([[0.5]], [[0.4]]),
    ],
)
def test_json_of_what_cannot_be_decided_holds_no_infinity(tmp_path: Path, arms: Any) -> None:
    registration = register(tmp_path, **INTERFERENCE)
    outcomes = judge_all(both(*arms), registration)
    said = json.loads(json.dumps(gates_as_json(registration, outcomes, outcomes), allow_nan=False))
    assert said["exit_code"] == 12
    assert said["gates"][0]["label"] == "INCONCLUSIVE"
    assert said["gates"][0]["why"]
    assert "UNDECIDED: it (gate: INCONCLUSIVE" in gate_lines(registration, outcomes)


RECORD = {"phases": {"train rank_only": {"seconds": 3600.0}, "train joint": {"seconds": 7200.0}, "rerank": {}}}


class TestCosts:
    """What would settle a gate is said with its price where the job has recorded what its arms took."""

    def judged(self, folder: Path, record: Any, **gate: Any) -> Judgment:
        tasks = {"rank_only_r8": {"task": "rank_only"}, "joint_r8": {"task": "joint"}}
        scores = simulate(3, 40, 0.015, rng=np.random.default_rng(4), seed_sd=0.02)
        for result in both(*scores).results:
            write_result(folder, result.model_copy(update={"config": {"arms": tasks}}))
        if record is not None:
            (folder / "run.json").write_text(
                record if isinstance(record, str) else json.dumps(record), encoding="utf-8"
            )
        return judge(load_all_results(folder), register(folder, **INTERFERENCE | gate), "it")

    def test_further_seeds_have_a_price(self, tmp_path: Path) -> None:
        """A seed: 1,200 s and 2,400 s of training over three seeds of each arm, and 1.5 s of scoring each."""
        item = self.judged(tmp_path, RECORD, looks=[3, 5, 8])
        assert item.seconds == pytest.approx({"5 seeds": 2 * 3603.0, "8 seeds": 5 * 3603.0})
        said = " ".join(gate_lines(None, [item]).split())
        assert "; as fast as so far, the 5 seeds in about 2.0 hours, the 8 seeds in about 5.0 hours" in said
        assert gates_as_json(None, [item], [item])["gates"][0]["power"]["seconds"] == item.seconds

    @pytest.mark.parametrize("record", [None, "{", {"phases": {"train joint": {"seconds": 5.0}}}, {}])
    def test_where_nothing_is_recorded_nothing_is_said(self, tmp_path: Path, record: Any) -> None:
        item = self.judged(tmp_path, record)
        assert item.seconds == {}
        assert "as fast as so far" not in gate_lines(None, [item])


def only(folder: Path, *, advisory: bool = True, **change: Any) -> Judgment | Refusal:
    """The gate with a change, judged on three seeds of apidocs at a TIR of 20 %."""
    (outcome,) = judge_all(clear_gap(-0.1), register(folder, **INTERFERENCE | change), advisory=advisory)
    return outcome


def test_datasets_without_results_are_refused_unless_a_look_is_asked_for(tmp_path: Path) -> None:
    datasets = ["apidocs", "scifact", "fiqa"]
    refused = only(tmp_path, advisory=False, datasets=datasets)
    assert isinstance(refused, Refusal)
    assert exit_code([refused]) == 3
    looked = only(tmp_path, datasets=datasets)
    assert isinstance(looked, Judgment)
    assert (looked.label, exit_code([looked])) == ("PASS", 12)
    assert looked.gate.datasets == ["apidocs"]
    assert looked.advisory == ("a look ahead was asked for", "no result yet on scifact, fiqa")


def test_results_unfit_for_decisions_neither_pass_nor_stop(tmp_path: Path) -> None:
    registration = register(tmp_path, **INTERFERENCE)
    smoke = judge(clear_gap(-0.1, caveats=["smoke run"]), registration, "it")
    assert (smoke.label, smoke.advisory, exit_code([smoke])) == ("PASS", ("smoke run",), 12)
    cut = judge(clear_gap(-0.1, identity={"max_queries": 4}), registration, "it")
    assert (cut.advisory, exit_code([cut])) == (("4 queries of a larger set",), 12)
