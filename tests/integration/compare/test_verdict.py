"""``unimoe compare`` with two arms: the verdict, with gates, and into a folder that can be judged again."""

from __future__ import annotations

import errno
import itertools
import json
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from support.runs import (
    Arms,
    compare,
    compare_arms,
    dataset_options,
    random_qrels,
    random_run,
    words_of,
    write_arms,
    write_systems,
)
from support.scripts import Done, assert_refused, call_script, successful

from unimoe.core.trec import read_run
from unimoe.metrics import score_run
from unimoe.results import read_result, result_path


def test_says_one_judgment_scores_and_queries(arms: Arms) -> None:
    done = successful(compare_arms(arms))
    text = words_of(done)
    for words in (
        "No gates were registered before the results",
        "INTERFERENCE: interference (gate: PASS, build separate experts) joint loses",
        "interference, 2 % or more",
        "(seeds 0, 1, 2:",
        "Relevance level 1 on q",
        "MRR@10",
        "The 10 queries with the largest differences",
    ):
        assert words in text
    assert text.count("gate: PASS") == 1
    assert f"read {arms[0][0]}: specialist seed 0 on q" in " ".join(done.stderr.split())


def test_trainings_whose_names_differ_between_datasets_are_never_matched_by_place(tmp_path: Path) -> None:
    """Which content was called s5, s6 or s7 on the second dataset moved PASS from .926 to .998."""
    write_systems(tmp_path, {"x": 20, "y": 30}, {"a": (1.0, 3), "b": (1.4, 3)})
    runs = {name: [tmp_path / "y" / f"{name}-seed{n}.trec" for n in (1, 2, 3)] for name in "ab"}
    content = {name: [path.read_bytes() for path in paths] for name, paths in runs.items()}
    files = [f"{tmp_path}/{{dataset}}/{name}-s*.trec" for name in "ab"]
    found = []
    for order in itertools.permutations(range(3)):
        for name, paths in runs.items():
            for place, path in enumerate(paths):
                path.unlink(missing_ok=True)
                other = content[name][order[place] if name == "a" else place]
                path.with_name(f"{name}-s{place + 5}.trec").write_bytes(other)
        given = ("--specialist", files[0], "--joint", files[1], *dataset_options(tmp_path, ["x", "y"]))
        (gate,) = json.loads(compare(*given, "--json").stdout)["gates"]["gates"]
        found.append(gate)
    lows = [gate["interval"]["low"] for gate in found]
    assert lows == pytest.approx([lows[0]] * 6, rel=1e-9)
    assert found[0]["seeds"]["specialist"] == [0, 1, 2, 3, 4, 5]
    assert found[0]["datasets"]["y"]["seeds"]["specialist"] == [3, 4, 5]
    assert any("no run of specialist and joint has the same name on two datasets" in n for n in found[0]["notes"])


def test_texts_of_queries_and_ranks_of_relevant_documents(one_query: Arms, tmp_path: Path) -> None:
    queries = tmp_path / "queries.tsv"
    queries.write_text("q1\twhat is [red] here?\n", encoding="utf-8")
    text = words_of(compare_arms(one_query, "--queries", queries))
    assert "what is [red] here?" in text
    assert "1 → 3" in text


def test_a_relevance_level_counts_and_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    qrels = random_qrels(20, rng)
    a, b, q = write_arms(tmp_path, qrels, *[[random_run(qrels, n, rng) for _ in range(2)] for n in (1.0, 2.0)])
    assert "--relevance-level 2" in compare_arms((a, b, q), "--metric", "map").stderr
    Path(f"{q}.json").write_text('{"name": "dl20", "relevance_level": 2}', encoding="utf-8")
    done = compare_arms((a, b, q), "--metric", "map", "--output-dir", tmp_path / "out")
    analysis = tmp_path / "out" / "analysis"
    assert "Relevance level 2 on dl20" in done.stdout
    assert "map (relevant from grade 2) x 100" in done.stdout
    assert "MAP (relevant from grade 2)" in (analysis / "tables" / "gates.md").read_text(encoding="utf-8")
    assert "relevance level 2" in (analysis / "report.md").read_text(encoding="utf-8")
    assert "counts from 2" not in done.stderr
    stored = read_result(result_path(tmp_path / "out", "joint", 1, "retrieval", "dl20"))
    assert stored.relevance_level == 2
    assert stored.aggregate["map"] == score_run(qrels, read_run(b[1]), ["AP(rel=2)"]).aggregate["AP(rel=2)"]


GATE = """
registered: 2020-01-01T00:00:00Z
gates:
  kill: {kind: interference, task: retrieval, datasets: [q], metric: ndcg@10, specialist: specialist, joint: joint}
"""


class TestOneRankingScaledByTwoAndThree:
    @pytest.fixture
    def thrice(self, tmp_path: Path) -> Arms:
        """Three copies of one ranking on each side, with other scores and so with other hashes."""
        rng = np.random.default_rng(3)
        qrels = random_qrels(40, rng)
        copies = [
            [{q: {d: factor * s for d, s in of.items()} for q, of in run.items()} for factor in (1.0, 2.0, 3.0)]
            for run in (random_run(qrels, noise, rng) for noise in (0.5, 3.0))
        ]
        return write_arms(tmp_path, qrels, *copies)

    def test_is_one_run_of_an_arm(self, thrice: Arms, tmp_path: Path) -> None:
        """It was PASS with confidence .99 and exit code 0, as three seeds."""
        gates = tmp_path / "gates.yaml"
        gates.write_text(GATE, encoding="utf-8")
        done = compare_arms(thrice, "--gates", gates)
        assert done.returncode == 12, done.stdout
        assert "UNDECIDED: kill (gate: INCONCLUSIVE" in done.stdout
        said = words_of(done)
        assert "one seed of specialist and joint: other training seeds cannot be judged by it" in said
        for arm in ("specialist", "joint"):
            names = f"{arm} seed 0, {arm} seed 1, {arm} seed 2"
            assert f"Note {names} have the same score on every query of retrieval/q: they are one run" in said

    def test_is_one_run_in_a_table_in_a_folder_and_in_its_report(self, thrice: Arms, tmp_path: Path) -> None:
        kept = tmp_path / "kept"
        given = ("--systems", f"{tmp_path}/a*.trec", thrice[1][0], "--qrels", thrice[2], "--output-dir", kept)
        done = compare(*given, "--json")
        said = json.loads(done.stdout)
        assert {row["system"]: row["runs"] for row in said["scores"]} == {"a": 1, "b1": 1}
        assert any("a seed 0, a seed 1, a seed 2 have the same score" in warning for warning in said["warnings"])
        assert "they are one run" in done.stderr
        assert "they are one run" in compare("--results", kept).stderr
        assert "they are one run" in (kept / "analysis" / "report.md").read_text("utf-8")


KILL = """
registered: 2020-01-01T00:00:00Z
gates:
  kill: {{kind: interference, task: retrieval, datasets: [q], metric: {metric}, specialist: mono, joint: {joint},
         pass_at: 0.1, fail_below: 0.08}}
"""

NAMED = ("--specialist-name", "mono", "--joint-name", "all")


def gate_file(folder: Path, joint: str = "all", metric: str = "ndcg@10") -> Path:
    path = folder / "gate.yaml"
    path.write_text(KILL.format(joint=joint, metric=metric), encoding="utf-8")
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

    def test_results_of_something_else_are_never_touched(self, arms: Arms, tmp_path: Path) -> None:
        out = tmp_path / "out"
        compare_arms(arms, "--output-dir", out)
        (out / "comparison.json").unlink()
        done = compare_arms(arms, "--output-dir", out, "--overwrite")
        assert_refused(done, 3, "holds results that no comparison made", "another --output-dir")
        assert (out / "joint" / "seed_2").exists()
