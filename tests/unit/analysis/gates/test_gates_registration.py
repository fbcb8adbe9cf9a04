"""Gates as they are defined, registered, and made where an experiment names none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.gates import INTERFERENCE, gate_file, measured, register, results
from support.results import make_result

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.gates.definitions import InterferenceGate, load_gates
from unimoe.analysis.gates.registration import REGISTERED, default_gates, own_gates, registered_in, unmet
from unimoe.analysis.gates.registration import register as register_in
from unimoe.core.errors import DataError
from unimoe.results import write_result


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
        ({"pass_at": 0.0}, ["gates.it.pass_at", "must be above 0"]),
        ({"confidence": 0.5}, ["gates.it.confidence", "must be above 0.5"]),
        ({"seeds": [0, 1, 1]}, ["gates.it.seeds", "1 is listed twice"]),
        ({"pass_at": 2.0}, ["gates.it.pass_at", "2 means 200 %; 2 % is written 0.02"]),
        ({"fail_below": 1.0}, ["gates.it.fail_below", "1 means 100 %; 1 % is written 0.01"]),
        ({"pass_at": "2 %"}, ["gates.it.pass_at", "number"]),
        ({"pass_at": 0.001}, ["gates.it: fail_below 0.01 lies above pass_at 0.001"]),
        ({"joint": INTERFERENCE["specialist"]}, ["gates.it: both arms are", "a gate compares two"]),
        ({"kind": "interferenze"}, ["gates.it.kind", "did you mean 'interference'?"]),
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


TWO_SEEDS = [[0.6, 0.5, 0.7]] * 2


class TestCopy:
    def test_an_empty_folder_takes_it_to_the_byte(self, tmp_path: Path) -> None:
        path = gate_file(tmp_path, it=INTERFERENCE)
        path.write_bytes(b"# caf\xc3\xa9\r\n" + path.read_bytes())
        assert register_in(load_gates(path), tmp_path / "out")
        copy = registered_in(tmp_path / "out")
        assert copy is not None
        assert copy.path == tmp_path / "out" / REGISTERED
        assert copy.content_hash == load_gates(path).content_hash

    def test_it_stays_when_the_run_goes_on(self, tmp_path: Path) -> None:
        registration = register(tmp_path, **INTERFERENCE)
        assert register_in(registration, tmp_path / "out")
        write_result(tmp_path / "out", make_result("joint_r8", 0, [0.5, 0.6]))
        assert register_in(registration, tmp_path / "out")

    def test_other_gates_never_replace_it(self, tmp_path: Path) -> None:
        register_in(register(tmp_path, **INTERFERENCE), tmp_path / "out")
        before = (tmp_path / "out" / REGISTERED).read_bytes()
        other = register(tmp_path, **INTERFERENCE | {"pass_at": 0.5})
        with pytest.raises(DataError, match=r"gates\.yaml registers other gates .* choose another --output-dir"):
            register_in(other, tmp_path / "out")
        assert (tmp_path / "out" / REGISTERED).read_bytes() == before

    def test_after_the_first_result_it_is_too_late(self, tmp_path: Path) -> None:
        write_result(tmp_path / "out", make_result("joint_r8", 0, [0.5, 0.6]))
        assert not register_in(register(tmp_path, **INTERFERENCE), tmp_path / "out")
        assert registered_in(tmp_path / "out") is None


def test_what_an_experiment_will_not_have_is_said_beforehand(tmp_path: Path) -> None:
    registration = register(
        tmp_path, **INTERFERENCE | {"joint": "joint_r9", "seeds": [0, 1, 2], "specialist_must_beat": "zero_shot"}
    )
    file = tmp_path / "gates.yaml"
    assert list(unmet(registration, ["rank_only_r8", "joint_r8"], [0], {"reranking": ["apidoc"]})) == [
        f"{file}: gate 'it' names arm 'joint_r9', which this experiment does not have (did you mean 'joint_r8'?)",
        f"{file}: gate 'it' names arm 'zero_shot', which this experiment does not have",
        f"{file}: gate 'it' registers seed 1, 2, which this experiment does not train",
        f"{file}: gate 'it' names reranking/apidocs, on which this experiment is not evaluated (did you mean 'apidoc'?)"
        "; write its own dataset, or leave 'gates' out of the config for default gates",
    ]
    arms = ["rank_only_r8", "joint_r9", "zero_shot"]
    assert not list(unmet(registration, arms, [0, 1, 2], {"reranking": ["apidocs"]}))


class TestDefaults:
    def test_main_metrics_are_never_mixed(self) -> None:
        found = results(
            *(
                measured(arm, TWO_SEEDS, dataset, metric=metric)
                for arm in ("rank_only_r8", "joint_r8")
                for dataset, metric in (("scifact", "ndcg@10"), ("msmarco", "map"), ("fiqa", "ndcg@10"))
            )
        )
        gates = default_gates(found).gates
        assert {name: gate.datasets for name, gate in gates.items()} == {
            "reranking.joint_r8-ndcg@10": ["fiqa", "scifact"],
            "reranking.joint_r8-map": ["msmarco"],
        }
        assert {gate.metric for gate in gates.values()} == {"ndcg@10", "map"}

    def test_what_a_file_requires_keeps_no_other_dataset_from_being_judged(self, tmp_path: Path) -> None:
        """A dataset without zero-shot beside the gate's own was NOT JUDGED."""
        arms = [measured(arm, TWO_SEEDS, name) for arm in ("rank_only_r8", "joint_r8") for name in ("apidocs", "b")]
        found = results(*arms, [make_result("zero_shot", None, [0.1] * len(TWO_SEEDS[0]))])
        registration = register(tmp_path, **INTERFERENCE | {"specialist_must_beat": "zero_shot"})
        (other,) = default_gates(found, registration).gates.values()
        assert isinstance(other, InterferenceGate)
        assert (other.datasets, other.specialist_must_beat) == (["b"], None)
        assert len(Analysis(found, registration).judgments) == 2


class TestOwnGates:
    """An experiment that names no gates gets gates for its own arms and datasets, before the first step."""

    ARMS = ("zero_shot", "bm25", "rank_only_r8", "emb_only_r8", "joint_r8")

    def test_one_for_each_pair_that_requires_a_specialist_that_has_learnt(self) -> None:
        own = own_gates(self.ARMS, ["scifact"], "ndcg@10", [0, 1, 2])
        assert list(own.gates) == ["reranking.joint_r8", "embedding.joint_r8"]
        for gate in own.gates.values():
            assert isinstance(gate, InterferenceGate)
            assert (gate.datasets, gate.seeds, gate.specialist_must_beat) == (["scifact"], [0, 1, 2], "zero_shot")

    def test_they_are_registered_with_the_time_and_stay(self, tmp_path: Path) -> None:
        own = own_gates(self.ARMS, ["scifact"], "ndcg@10", [0, 1])
        assert register_in(own, tmp_path / "out")
        there = registered_in(tmp_path / "out")
        assert there is not None
        assert there.gates == own.gates
        assert there.registered is not None
        before = (tmp_path / "out" / REGISTERED).read_bytes()
        assert register_in(own_gates(self.ARMS, ["fiqa"], "ndcg@10", [0]), tmp_path / "out")
        assert (tmp_path / "out" / REGISTERED).read_bytes() == before
