from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.gates import INTERFERENCE, gate_file
from support.results import make_result, write_experiment
from support.scripts import Done, assert_refused, call_script

from unimoe.io import hash_file
from unimoe.results import write_result

TOO_HEAVY = {"pandas", "matplotlib", "scipy.stats", "torch", "transformers"}


def verdicts(output_dir: Path, *arguments: str | Path) -> Done:
    return call_script("analyze_results.py", "verdicts", "--output-dir", output_dir, *arguments)


def constant(output_dir: Path, joint: float, seeds: int = 2) -> None:
    """A folder where rank_only scores .6 on every query and joint another constant."""
    for seed in range(seeds):
        write_result(output_dir, make_result("rank_only_r8", seed, [0.6] * 5))
        write_result(output_dir, make_result("joint_r8", seed, [joint] * 5))


@pytest.mark.parametrize(
    ("joint", "code", "words"),
    [
        (0.5, 0, "PASS (interference confirmed, 2 % or more: go on"),
        (0.6, 10, "FAIL (no interference worth the split, less than 1 %: stop"),
        (0.7, 10, "FAIL (no interference, the joint model is ahead (synergy): stop"),
        (0.591, 11, "MARGINAL (interference of 1 % to 2 %"),
    ],
)
def test_the_label_decides_the_exit_code(tmp_path: Path, joint: float, code: int, words: str) -> None:
    constant(tmp_path, joint)
    path = gate_file(tmp_path, kill=INTERFERENCE)
    done = verdicts(tmp_path, "--gates", path)
    assert done.returncode == code, done.stderr
    assert words in done.stdout
    assert hash_file(path) in done.stdout
    assert f"Exit code {code}:" in done.stdout


def test_one_seed_is_inconclusive(tmp_path: Path) -> None:
    constant(tmp_path, 0.5, seeds=1)
    done = verdicts(tmp_path, "--gates", gate_file(tmp_path, kill=INTERFERENCE))
    assert done.returncode == 12
    assert "INCONCLUSIVE (these seeds and queries cannot decide: measure more" in done.stdout
    assert "PASS (interference confirmed" in done.stdout  # the rule's line stands beside it


def test_the_shipped_kill_gate_is_the_default_and_says_that_results_are_older(tmp_path: Path) -> None:
    write_experiment(tmp_path, tir=0.5, logs=False)
    done = verdicts(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "kill_gate.yaml" in done.stdout
    assert "6 of 6 results are older than this gate" in done.stdout


def test_json_for_machines(tmp_path: Path) -> None:
    constant(tmp_path, 0.591)
    path = gate_file(tmp_path, kill=INTERFERENCE, gone=INTERFERENCE | {"joint": "joint_r9"})
    done = verdicts(tmp_path, "--gates", path, "--json")
    said = json.loads(done.stdout)
    assert said["hash"] == hash_file(path)
    assert said["exit_code"] == done.returncode == 3
    gone, kill = said["gates"]
    assert (kill["rule"], kill["label"], kill["error"]) == ("MARGINAL", "MARGINAL", None)
    assert kill["value"] == pytest.approx(0.015)
    assert "did you mean 'joint_r8'" in gone["error"]


def test_a_gate_that_cannot_be_judged_does_not_hide_the_others(tmp_path: Path) -> None:
    constant(tmp_path, 0.5)
    path = gate_file(tmp_path, gone=INTERFERENCE | {"joint": "joint_r9"}, kill=INTERFERENCE)
    done = verdicts(tmp_path, "--gates", path)
    assert done.returncode == 3
    assert "Exit code 3: gone not judged, kill PASS" in done.stdout
    assert "no results of arm 'joint_r9' (did you mean 'joint_r8'?)" in done.stderr


class TestRegisteredInTheFolder:
    def test_its_own_gates_judge(self, tmp_path: Path) -> None:
        constant(tmp_path, 0.591)
        copy = gate_file(tmp_path, kill=INTERFERENCE)
        done = verdicts(tmp_path)
        assert done.returncode == 11, done.stderr
        assert f"Gates: {copy}, hash {hash_file(copy)}" in done.stdout
        assert done.stderr == ""

    def test_other_gates_judge_when_asked_to_and_the_difference_is_said(self, tmp_path: Path) -> None:
        constant(tmp_path / "out", 0.591)
        copy = gate_file(tmp_path / "out", kill=INTERFERENCE)
        done = verdicts(tmp_path / "out", "--gates", gate_file(tmp_path, kill=INTERFERENCE | {"pass_at": 0.01}))
        assert done.returncode == 0, done.stderr
        assert f"{copy} registers other gates, hash {hash_file(copy)}" in done.stderr


def test_a_look_ahead_ends_with_12_whatever_it_says(tmp_path: Path) -> None:
    constant(tmp_path, 0.5)
    path = gate_file(tmp_path, kill=INTERFERENCE | {"datasets": ["apidocs", "scifact"]})
    assert_refused(verdicts(tmp_path, "--gates", path), 3, "no reranking/scifact result of rank_only_r8")
    looked = verdicts(tmp_path, "--gates", path, "--advisory")
    assert looked.returncode == 12, looked.stderr
    assert "Exit code 12: kill ADVISORY PASS" in looked.stdout
    said = json.loads(verdicts(tmp_path, "--gates", path, "--advisory", "--json").stdout)
    assert said["gates"][0]["advisory"] == ["a look ahead was asked for", "no result yet on scifact"]


def test_what_would_settle_it_and_stability_are_said(tmp_path: Path) -> None:
    write_experiment(tmp_path, tir=0.015, queries=300, logs=False)
    done = verdicts(tmp_path)
    assert done.returncode == 12, done.stderr
    for line in ("Would settle it", "Can decide", "Stability"):
        assert done.stdout.count(f"\n  {line}") == 2
    kill = json.loads(verdicts(tmp_path, "--json").stdout)["gates"][0]
    assert kill["label"] == "INCONCLUSIVE"
    assert kill["power"]["at_hand"] == [3, 300]
    assert not kill["power"]["settled"]
    assert [row["left_out"] for row in kill["stability"]["rows"]] == ["seed 0", "seed 1", "seed 2"]


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"fail_below": 0.05}, "fail_below 0.05 lies above pass_at 0.02"),
            ({"pas_at": 0.1}, "gates.kill.pas_at: unknown key (did you mean 'pass_at'?)"),
            ({"seeds": [0, 0]}, "0 stands twice"),
        ],
    )
    def test_contradictory_cutoffs_and_unknown_keys(self, tmp_path: Path, change: dict[str, Any], word: str) -> None:
        constant(tmp_path, 0.5)
        path = gate_file(tmp_path, kill=INTERFERENCE | change)
        assert_refused(verdicts(tmp_path, "--gates", path), 3, str(path), "gates.kill", word)

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"joint": "joint_r9"}, "no results of arm 'joint_r9' (did you mean 'joint_r8'?)"),
            ({"datasets": ["apidoc"]}, "(did you mean 'reranking/apidocs'?)"),
            ({"metric": "ndcg10"}, "no per-query 'ndcg10'"),
            ({"metric": "ndcg10"}, "(did you mean 'ndcg@10'?)"),
        ],
    )
    def test_what_has_no_results(self, tmp_path: Path, change: dict[str, Any], word: str) -> None:
        constant(tmp_path, 0.5)
        path = gate_file(tmp_path, kill=INTERFERENCE | change)
        assert_refused(verdicts(tmp_path, "--gates", path), 3, str(path), "'kill'", word)

    @pytest.mark.parametrize(
        ("text", "word"),
        [
            ("", "must be a section"),
            ("- kill", "must be a section"),
            ("registered: 2026-01-01\ngates: {}", "gates: must not be empty"),
            ("registered: 2026-01-01\ngates: [", "not valid YAML"),
        ],
    )
    def test_a_file_that_is_no_gate_file(self, tmp_path: Path, text: str, word: str) -> None:
        constant(tmp_path, 0.5)
        path = tmp_path / "wrong.yaml"
        path.write_text(text, encoding="utf-8")
        assert_refused(verdicts(tmp_path, "--gates", path), 3, str(path), word)

    def test_no_gate_file(self, tmp_path: Path) -> None:
        constant(tmp_path, 0.5)
        assert_refused(verdicts(tmp_path, "--gates", "gates/kil_gate"), 3, "did you mean 'gates/kill_gate'?")

    def test_no_results(self, tmp_path: Path) -> None:
        assert_refused(verdicts(tmp_path), 3, str(tmp_path), "no results")

    def test_arms_on_different_queries(self, tmp_path: Path) -> None:
        constant(tmp_path, 0.5)
        write_result(tmp_path, make_result("joint_r8", 2, [0.5] * 4))
        assert_refused(
            verdicts(tmp_path, "--gates", gate_file(tmp_path, kill=INTERFERENCE)), 3, "lacks 1 of the 5 queries"
        )

    def test_a_result_cut_short(self, tmp_path: Path) -> None:
        constant(tmp_path, 0.5)
        path = next(tmp_path.glob("joint_r8/seed_1/results/*/*.json"))
        path.write_bytes(path.read_bytes()[:100])
        assert_refused(verdicts(tmp_path, "--gates", gate_file(tmp_path, kill=INTERFERENCE)), 3, str(path), "cut short")

    @pytest.mark.parametrize("arguments", [["--json"], ["--gates", "gates/kill_gate"]])
    def test_its_options_belong_to_verdicts(self, tmp_path: Path, arguments: list[str]) -> None:
        constant(tmp_path, 0.5)
        done = call_script("analyze_results.py", "tables", "--output-dir", tmp_path, *arguments)
        assert_refused(done, 2, "belong to verdicts")


def test_it_needs_no_heavy_library(tmp_path: Path) -> None:
    constant(tmp_path, 0.5)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from unimoe.analysis.commands import judge_gates\n"
        "code = judge_gates(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print('modules', *sys.modules)\n"
        "sys.exit(code)"
    )
    path = gate_file(tmp_path, kill=INTERFERENCE)
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path, path], capture_output=True, text=True, encoding="utf-8", check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "unimoe.analysis.gates.judging" in loaded
    assert not TOO_HEAVY & loaded
