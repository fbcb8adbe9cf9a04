"""``unimoe compare`` with gates, and into a folder that can be judged again."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import NoReturn

import pytest
from support.compare_command import Arms, compare_arms, words_of
from support.scripts import Done, assert_refused, call_script, successful

GATE = """
registered: 2020-01-01T00:00:00Z
gates:
  kill: {{kind: interference, task: retrieval, datasets: [q], metric: {metric}, specialist: mono, joint: {joint},
         pass_at: 0.1, fail_below: 0.08}}
"""
NAMED = ("--specialist-name", "mono", "--joint-name", "all")


def gate_file(folder: Path, joint: str = "all", metric: str = "ndcg@10") -> Path:
    path = folder / "gate.yaml"
    path.write_text(GATE.format(joint=joint, metric=metric), encoding="utf-8")
    return path


class TestGates:
    def test_a_gate_judges_the_runs_and_sets_the_exit_code(self, arms: Arms, tmp_path: Path) -> None:
        gates = gate_file(tmp_path)
        done = successful(compare_arms(arms, *NAMED, "--gates", gates))
        assert "INTERFERENCE: kill (gate: PASS" in done.stdout
        assert "PASS from 10 %, FAIL below 8 %" in done.stdout
        for number in ("PASS from 2 %", "2 % or more", "FAIL below 1 %"):
            assert number not in done.stdout
        turned = compare_arms((arms[1], arms[0], arms[2]), *NAMED, "--gates", gates, "--json")
        assert turned.returncode == json.loads(turned.stdout)["gates"]["exit_code"] == 10

    def test_its_metric_is_the_one_that_is_compared(self, arms: Arms, tmp_path: Path) -> None:
        done = compare_arms(arms, *NAMED, "--gates", gate_file(tmp_path, metric="ERR@20"))
        assert "ERR@20 on q" in words_of(done)

    def test_a_gate_of_other_arms_is_named_and_the_comparison_still_shown(self, arms: Arms, tmp_path: Path) -> None:
        done = compare_arms(arms, *NAMED, "--gates", gate_file(tmp_path, joint="all_of_them"))
        assert done.returncode == 3
        assert "Scores of all systems" in done.stdout
        assert "all_of_them" in done.stderr.splitlines()[-1]


def verdicts(folder: Path) -> Done:
    return call_script("analyze_results.py", "verdicts", "--output-dir", folder, "--json")


@pytest.mark.usefixtures("without_report")
class TestFolder:
    def test_a_comparison_that_cannot_be_written_leaves_nothing_of_the_one_before(
        self, arms: Arms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "out"
        compare_arms(arms, "--output-dir", out)
        (out / "analysis").mkdir()
        (out / "analysis" / "report.md").touch()

        def full(_: object) -> NoReturn:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("unimoe.analysis.report.write_report", full)
        done = compare_arms((arms[1], arms[0], arms[2]), "--output-dir", out, "--overwrite")
        assert_refused(done, 3, "no room is left")
        assert not list((out / "analysis").iterdir())

    def test_another_comparison_is_refused_by_name_or_replaces_it(self, arms: Arms, tmp_path: Path) -> None:
        out = tmp_path / "out"
        fewer = (arms[0], arms[1][:2], arms[2])
        place = "joint/seed_0/results/retrieval/q.json"
        for _ in range(2):  # the same once more is no other
            assert compare_arms(arms, "--output-dir", out).returncode == 0
        remedy = ("choose another --output-dir, or --overwrite",)
        for files, options, words in (
            (fewer, [], ["also holds joint/seed_2/results/retrieval/q.json"]),
            (arms, ["--metric", "map"], ["has another", place]),
            (arms, ["--depth", "50"], ["has another", place]),
            (arms, ["--dataset", "other"], ["lacks joint/seed_0/results/retrieval/other.json"]),
        ):
            assert_refused(compare_arms(files, "--output-dir", out, *options), 3, str(out), *words, *remedy)
        assert compare_arms(fewer, "--output-dir", out, "--overwrite").returncode == 0
        assert not (out / "joint" / "seed_2").exists()
        assert verdicts(out).returncode == 0
        assert compare_arms(arms, "--output-dir", out, "--metric", "map", "--overwrite").returncode == 0
        assert json.loads(verdicts(out).stdout)["gates"][0]["gate"]["metric"] == "map"

    def test_other_gates_are_another_comparison(self, arms: Arms, tmp_path: Path) -> None:
        kept = (*NAMED, "--output-dir", tmp_path / "out")
        assert compare_arms(arms, *kept).returncode == 0
        gated = compare_arms(arms, *kept, "--gates", gate_file(tmp_path))
        assert_refused(gated, 3, "gates.yaml holds other gates")

    def test_results_of_something_else_are_never_touched(self, arms: Arms, tmp_path: Path) -> None:
        out = tmp_path / "out"
        compare_arms(arms, "--output-dir", out)
        (out / "comparison.json").unlink()
        done = compare_arms(arms, "--output-dir", out, "--overwrite")
        assert_refused(done, 3, "holds results that no comparison made", "another --output-dir")
        assert (out / "joint" / "seed_2").exists()
