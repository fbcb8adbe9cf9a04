"""Gates as they are defined, registered, and made where an experiment names none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.gates import DIFFERENCE, INTERFERENCE, gate_file, measured, register, results
from support.results import make_result

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.gates.definitions import InterferenceGate, load_gates
from unimoe.analysis.gates.registration import REGISTERED, default_gates, own_gates, registered_in, unmet
from unimoe.analysis.gates.registration import register as register_in
from unimoe.core.errors import DataError
from unimoe.results import write_result

KIND, EQUIVALENCE = {"kind": "interferenze"}, DIFFERENCE | {"kind": "equivalence", "margin": 0.0}


def test_the_shipped_gate_judges_both_tasks_of_the_bundled_experiment_without_looks() -> None:
    gates = load_gates(Path("gates/kill_gate")).gates.values()
    assert [(gate.task, *gate.arms, gate.looks) for gate in gates] == [
        ("reranking", "rank_only_r8", "joint_r8", None),
        ("embedding", "emb_only_r8", "joint_r8", None),
    ]


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        (INTERFERENCE | {"pass_att": 0.02}, "gates.it.pass_att: unknown key (did you mean 'pass_at'?)"),
        (INTERFERENCE | {"pass_at": 0.0}, "gates.it.pass_at: must be above 0"),
        (INTERFERENCE | {"confidence": 0.5}, "gates.it.confidence: must be above 0.5"),
        (INTERFERENCE | {"seeds": [0, 1, 1]}, "gates.it.seeds: 1 is listed twice"),
        (INTERFERENCE | {"pass_at": 2.0}, "gates.it.pass_at: 2 means 200 %; 2 % is written 0.02"),
        (INTERFERENCE | {"fail_below": 1.0}, "gates.it.fail_below: 1 means 100 %; 1 % is written 0.01"),
        (INTERFERENCE | {"pass_at": "2 %"}, "gates.it.pass_at: must be a number"),
        (INTERFERENCE | {"pass_at": 0.001}, "gates.it: fail_below 0.01 lies above pass_at 0.001"),
        (INTERFERENCE | {"joint": "rank_only_r8"}, "gates.it: both arms are 'rank_only_r8'; a gate compares two"),
        (INTERFERENCE | KIND, "gates.it.kind: must be one of interference, superiority, non_inferiority, equivalence"),
        (INTERFERENCE | KIND, "did you mean 'interference'?"),
        (EQUIVALENCE, "gates.it: margin must be above 0"),
        (INTERFERENCE | {"looks": [5, 3]}, "gates.it.looks: [5, 3] does not ascend"),
        (INTERFERENCE | {"looks": [3, 3]}, "does not ascend"),
        (INTERFERENCE | {"looks": [1, 3]}, "gates.it.looks[0]: must be at least 2"),
        (
            INTERFERENCE | {"looks": [3, 5], "seeds": [0, 1, 2]},
            "the last look is at 5 seeds, but only 3 are registered",
        ),
        (INTERFERENCE | {"looks": [3, 5], "estimand": "queries"}, "looks count seeds"),
        *(
            ({key: value for key, value in INTERFERENCE.items() if key != missing}, f"gates.it.{missing}: this key is")
            for missing in ("kind", "metric", "joint", "datasets")
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, gate: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError) as refused:
        register(tmp_path, **gate)
    assert str(refused.value).startswith(f"{tmp_path / 'gates.yaml'}: ")
    assert words in str(refused.value)


TWO_SEEDS = [[0.6, 0.5, 0.7]] * 2


def test_an_empty_folder_takes_a_file_to_the_byte_and_keeps_it(tmp_path: Path) -> None:
    path, folder = gate_file(tmp_path, it=INTERFERENCE), tmp_path / "out"
    path.write_bytes(b"# caf\xc3\xa9\r\n" + path.read_bytes())
    registration = load_gates(path)
    assert register_in(registration, folder)
    copy = registered_in(folder)
    assert copy is not None
    assert (copy.path, copy.content_hash) == (folder / REGISTERED, registration.content_hash)
    write_result(folder, make_result("joint_r8", 0, [0.5, 0.6]))
    assert register_in(registration, folder), "it stays when the run goes on"
    before = (folder / REGISTERED).read_bytes()
    other = register(tmp_path, **INTERFERENCE | {"pass_at": 0.5})
    with pytest.raises(DataError, match=r"gates\.yaml registers other gates .* choose another --output-dir"):
        register_in(other, folder)
    assert (folder / REGISTERED).read_bytes() == before


def test_after_the_first_result_it_is_too_late(tmp_path: Path) -> None:
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


def test_default_gates_never_mix_main_metrics() -> None:
    found = results(
        *(
            measured(arm, TWO_SEEDS, dataset, metric=metric)
            for arm in ("rank_only_r8", "joint_r8")
            for dataset, metric in (("scifact", "ndcg@10"), ("msmarco", "map"), ("fiqa", "ndcg@10"))
        )
    )
    assert {name: (gate.datasets, gate.metric) for name, gate in default_gates(found).gates.items()} == {
        "reranking.joint_r8-ndcg@10": (["fiqa", "scifact"], "ndcg@10"),
        "reranking.joint_r8-map": (["msmarco"], "map"),
    }


def test_what_a_file_requires_keeps_no_other_dataset_from_being_judged(tmp_path: Path) -> None:
    """A dataset without zero-shot beside the gate's own was NOT JUDGED."""
    arms = [measured(arm, TWO_SEEDS, name) for arm in ("rank_only_r8", "joint_r8") for name in ("apidocs", "b")]
    found = results(*arms, [make_result("zero_shot", None, [0.1] * len(TWO_SEEDS[0]))])
    registration = register(tmp_path, **INTERFERENCE | {"specialist_must_beat": "zero_shot"})
    (other,) = default_gates(found, registration).gates.values()
    assert isinstance(other, InterferenceGate)
    assert (other.datasets, other.specialist_must_beat) == (["b"], None)
    assert len(Analysis(found, registration).judgments) == 2


def test_an_experiment_without_gates_gets_one_for_each_pair_before_the_first_step(tmp_path: Path) -> None:
    own = own_gates(("zero_shot", "bm25", "rank_only_r8", "emb_only_r8", "joint_r8"), ["scifact"], "ndcg@10", [0, 1, 2])
    assert list(own.gates) == ["reranking.joint_r8", "embedding.joint_r8"]
    for gate in own.gates.values():
        assert isinstance(gate, InterferenceGate)
        assert (gate.datasets, gate.seeds, gate.specialist_must_beat) == (["scifact"], [0, 1, 2], "zero_shot")
    assert register_in(own, tmp_path)
    registered = registered_in(tmp_path)
    assert registered is not None
    assert registered.gates == own.gates
    assert registered.registered is not None
    before = (tmp_path / REGISTERED).read_bytes()
    assert register_in(own_gates(("rank_only_r8", "joint_r8"), ["fiqa"], "ndcg@10", [0]), tmp_path)
    assert (tmp_path / REGISTERED).read_bytes() == before
