from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.gates import INTERFERENCE, gate_file
from support.results import make_result
from support.scripts import Done, assert_refused, call_script

from unimoe.core.io import hash_file
from unimoe.results import DrillDown, QueryDetail, read_result, write_result

TOO_HEAVY = {"pandas", "matplotlib", "scipy.stats", "torch", "transformers"}


def verdicts(output_dir: Path, *arguments: str | Path) -> Done:
    return call_script("analyze_results.py", "verdicts", "--output-dir", output_dir, *arguments)


def steady(output_dir: Path, tir: float, seeds: int = 3, dataset: str = "apidocs") -> None:
    """A folder where the joint arm loses a share of rank_only's score on every query, nearly alike for all seeds."""
    rng = np.random.default_rng(3)
    base = np.linspace(0.3, 0.7, 40)
    for seed in range(seeds):
        for arm, factor in (("rank_only_r8", 1.0), ("joint_r8", 1.0 - tir)):
            scores = factor * base + rng.normal(0.0, 0.003, 40)
            write_result(output_dir, make_result(arm, seed, scores.tolist(), dataset=dataset))


@pytest.mark.parametrize(
    ("tir", "code", "words"),
    [
        (
            0.1,
            0,
            r"joint_r8 loses (9|10)\.\d % of rank_only_r8's ndcg@10 on apidocs, at least \d+\.\d % with confidence",
        ),
        (0.1, 0, r"with confidence 0\.9 \(TIR \+1\d\.\d\d %, 95 % interval \[\+9\.\d"),
        (0.1, 0, "interference, 2 % or more\\."),
        (0.0, 10, "no interference worth a split, less than 1 %"),
        (-0.1, 10, r"joint_r8 gains (9|10)\.\d % of rank_only_r8's ndcg@10"),
        (0.015, 11, "interference between 1 % and 2 %\\."),
    ],
)
def test_the_label_decides_the_exit_code(tmp_path: Path, tir: float, code: int, words: str) -> None:
    steady(tmp_path, tir)
    path = gate_file(tmp_path, kill=INTERFERENCE)
    done = verdicts(tmp_path, "--gates", path)
    assert done.returncode == code, done.stderr
    assert re.search(words, " ".join(done.stdout.split()))
    assert hash_file(path) in done.stdout
    assert f"Exit code {code}: kill " in done.stdout


class TestLearnt:
    """PASS and exit code 0, beside "train rank_only_r8 until it beats zero_shot"."""

    def test_without_zero_shot_nothing_changes(self, tmp_path: Path) -> None:
        steady(tmp_path, 0.1)
        assert verdicts(tmp_path, "--gates", gate_file(tmp_path, kill=INTERFERENCE)).returncode == 0


def test_queries_with_one_text_and_the_same_documents_are_noted(tmp_path: Path) -> None:
    steady(tmp_path, 0.1)
    known: dict[str, tuple[str, str]] = {f"q{i:03d}": (f"text {i}", f"d{i}") for i in range(40)}
    known |= {"q011": known["q010"], "q012": ("text 10", "another"), "q013": ("other words", "d10")}
    queries = {q: QueryDetail(text=text, relevant={d: 1}, ranks={d: 1}) for q, (text, d) in known.items()}
    for path in tmp_path.glob("*/seed_*/results/*/apidocs.json"):
        result = read_result(path)
        per_query = result.per_query | dict.fromkeys(("q011", "q012", "q013"), result.per_query["q010"])
        again = make_result(result.config_name, result.seed, per_query)
        write_result(tmp_path, again, DrillDown(queries=queries))
    done = verdicts(tmp_path, "--json")
    (note,) = json.loads(done.stdout)["gates"][0]["notes"]
    assert note.startswith("1 of 40 queries of reranking/apidocs repeat another, such as 'q011' and 'q010'")


def test_folders_without_a_pair_decide_nothing(tmp_path: Path) -> None:
    write_result(tmp_path, make_result("bm25", None, [0.5] * 20))
    done = verdicts(tmp_path)
    assert done.returncode == 12
    assert "no joint arm has a specialist beside it; give --gates FILE" in done.stderr


def test_json_for_machines(tmp_path: Path) -> None:
    steady(tmp_path, 0.015)
    path = gate_file(tmp_path, kill=INTERFERENCE, gone=INTERFERENCE | {"joint": "joint_r9"})
    done = verdicts(tmp_path, "--gates", path, "--json")
    said = json.loads(done.stdout)
    assert said["hash"] == hash_file(path)
    assert said["exit_code"] == done.returncode == 3
    gone, kill = said["gates"]
    assert (kill["estimate_lies"], kill["label"], kill["error"]) == ("1 % to 2 %", "MARGINAL", None)
    assert kill["interval"]["value"] == pytest.approx(0.015, abs=2e-3)
    assert kill["confidence"]["MARGINAL"] > 0.9 > kill["confidence"]["PASS"]
    assert "did you mean 'joint_r8'" in gone["error"]


class TestRegisteredInTheFolder:
    def test_other_gates_judge_when_asked_to_and_the_difference_is_said(self, tmp_path: Path) -> None:
        steady(tmp_path / "out", 0.015)
        copy = gate_file(tmp_path / "out", kill=INTERFERENCE)
        done = verdicts(
            tmp_path / "out", "--gates", gate_file(tmp_path, kill=INTERFERENCE | {"pass_at": 0.01, "fail_below": 0.005})
        )
        assert done.returncode == 0, done.stderr
        assert f"{copy} registers other gates, hash {hash_file(copy)}" in done.stderr


def test_a_look_ahead_ends_with_12_whatever_it_says(tmp_path: Path) -> None:
    steady(tmp_path, 0.1)
    path = gate_file(tmp_path, kill=INTERFERENCE | {"datasets": ["apidocs", "scifact"]})
    assert_refused(verdicts(tmp_path, "--gates", path), 3, "no reranking/scifact result of rank_only_r8")
    looked = verdicts(tmp_path, "--gates", path, "--advisory")
    assert looked.returncode == 12, looked.stderr
    assert "Exit code 12: kill ADVISORY PASS" in looked.stdout
    said = json.loads(verdicts(tmp_path, "--gates", path, "--advisory", "--json").stdout)
    assert said["gates"][0]["advisory"] == ["a look ahead was asked for", "no result yet on scifact"]


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"fail_below": 0.05}, "fail_below 0.05 lies above pass_at 0.02"),
            ({"pas_at": 0.1}, "gates.kill.pas_at: unknown key (did you mean 'pass_at'?)"),
            ({"seeds": [0, 0]}, "0 is listed twice"),
            ({"metric": "ndcg10"}, "(did you mean 'ndcg@10'?)"),
        ],
    )
    def test_contradictory_cutoffs_and_unknown_keys(self, tmp_path: Path, change: dict[str, Any], word: str) -> None:
        steady(tmp_path, 0.1)
        path = gate_file(tmp_path, kill=INTERFERENCE | change)
        assert_refused(verdicts(tmp_path, "--gates", path), 3, str(path), "gates.kill", word)

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"joint": "joint_r9"}, "no results of arm 'joint_r9' (did you mean 'joint_r8'?)"),
            ({"datasets": ["apidoc"]}, "(did you mean 'reranking/apidocs'?)"),
            ({"metric": "nDCG@20"}, "no per-query 'ndcg@20'"),
            ({"metric": "nDCG@20"}, "(did you mean 'ndcg@10'?)"),
        ],
    )
    def test_what_has_no_results(self, tmp_path: Path, change: dict[str, Any], word: str) -> None:
        steady(tmp_path, 0.1)
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
        steady(tmp_path, 0.1)
        path = tmp_path / "wrong.yaml"
        path.write_text(text, encoding="utf-8")
        assert_refused(verdicts(tmp_path, "--gates", path), 3, str(path), word)

    def test_no_results(self, tmp_path: Path) -> None:
        assert_refused(verdicts(tmp_path), 3, str(tmp_path), "no results")

    @pytest.mark.parametrize("arguments", [["--json"], ["--advisory"]])
    def test_its_options_belong_to_verdicts(self, tmp_path: Path, arguments: list[str]) -> None:
        steady(tmp_path, 0.1)
        done = call_script("analyze_results.py", "tables", "--output-dir", tmp_path, *arguments)
        assert_refused(done, 2, "belong to verdicts")


def test_it_needs_no_heavy_library(tmp_path: Path) -> None:
    steady(tmp_path, 0.1)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from unimoe.cli.analyze import judge_gates\n"
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
