from __future__ import annotations

from pathlib import Path

import pytest
from support.gates import INTERFERENCE, both, gate_file, measured, register, results
from support.results import make_result

from unimoe.analysis.gates.definitions import load_gates
from unimoe.analysis.gates.judging import judge, judge_all
from unimoe.analysis.gates.output import gate_lines, gates_as_json
from unimoe.analysis.gates.registration import REGISTERED, default_gates, registered_in, unmet, unregistered
from unimoe.analysis.gates.registration import register as register_in
from unimoe.analysis.interference import compute_interference_metrics
from unimoe.analysis.loading import Pair, Results
from unimoe.errors import DataError
from unimoe.results import write_result

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
    registration = register(tmp_path, **INTERFERENCE | {"joint": "joint_r9", "seeds": [0, 1, 2]})
    assert list(unmet(registration, ["rank_only_r8", "joint_r8"], [0])) == [
        "gate 'it' names arm 'joint_r9', which is none of this experiment's (did you mean 'joint_r8'?)",
        "gate 'it' registers seed 1, 2, which this experiment does not train",
    ]
    assert not list(unmet(registration, ["rank_only_r8", "joint_r9"], [0, 1, 2]))


class TestDefaults:
    def test_main_metrics_are_never_mixed(self) -> None:
        found = results(
            *(
                measured(arm, TWO_SEEDS, dataset, metric=metric)
                for arm in ("rank_only_r8", "joint_r8")
                for dataset, metric in (("scifact", "ndcg@10"), ("msmarco", "map"), ("fiqa", "ndcg@10"))
            )
        )
        gates = default_gates(compute_interference_metrics(found))
        assert {name: gate.datasets for name, gate in gates.items()} == {
            "reranking.joint_r8-ndcg@10": ["fiqa", "scifact"],
            "reranking.joint_r8-map": ["msmarco"],
        }
        assert {gate.metric for gate in gates.values()} == {"ndcg@10", "map"}

    def test_two_specialists_of_one_joint_arm_have_gates_of_their_own(self) -> None:
        arms = [result for arm in ("a <b>", "b|c", "both") for result in measured(arm, TWO_SEEDS)]
        pairs = [Pair("reranking", "a <b>", "both"), Pair("reranking", "b|c", "both")]
        gates = default_gates(compute_interference_metrics(Results(Path("out"), arms, pairs=pairs)))
        assert list(gates) == ["reranking.both-a <b>", "reranking.both-b|c"]

    def test_they_are_called_not_registered(self) -> None:
        found = both(TWO_SEEDS, TWO_SEEDS)
        registration = unregistered(compute_interference_metrics(found))
        outcomes = judge_all(found, registration)
        assert "not registered" in gate_lines(registration, outcomes).splitlines()[0]
        said = gates_as_json(registration, outcomes)
        assert (said["file"], said["hash"], said["registered"]) == (None, None, None)
        assert [gate["label"] for gate in said["gates"]] == ["FAIL"]

    def test_without_a_pair_there_is_none(self) -> None:
        assert default_gates(compute_interference_metrics(results(measured("joint_r8", TWO_SEEDS)))) == {}


def test_the_forums_of_cqadupstack_count_once(tmp_path: Path) -> None:
    """Two forums at TIR 20 % and 0 % with the same specialist are one dataset at 10 %; with another at 0 %: 5 %."""
    scores = {"cqadupstack/android": (0.5, 0.4), "cqadupstack/gis": (0.5, 0.5), "scifact": (0.8, 0.8)}
    found = results(
        *(
            measured(arm, [[pair[side]] * 4] * 2, dataset)
            for side, arm in enumerate(("rank_only_r8", "joint_r8"))
            for dataset, pair in scores.items()
        )
    )
    registration = register(tmp_path, **INTERFERENCE | {"datasets": list(scores)})
    judgment = judge(found, registration, "it")
    assert judgment.found.value == pytest.approx(0.05)
    assert judgment.unregistered == pytest.approx(0.05 / 1.3)
    assert [row.left_out for row in judgment.stability.rows if row.kind == "dataset"] == [
        "cqadupstack",
        "scifact",
    ]
