"""``unimoe compare``: a verdict, or a table of systems, from run files and from folders of results."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.runs import (
    SYSTEMS,
    dataset_options,
    one_relevant,
    random_qrels,
    random_run,
    run_with_ranks,
    write_arms,
    write_systems,
)
from support.scripts import Done, assert_refused, call_script

import unimoe
from unimoe.analysis import compare as public
from unimoe.metrics import score_run
from unimoe.results import read_result, result_path
from unimoe.trec import read_qrels, read_run, write_run

Arms = tuple[list[Path], list[Path], Path]


def compare(*arguments: str | Path) -> Done:
    return call_script(str(Path(unimoe.__file__).with_name("__main__.py")), "compare", *arguments)


def compare_arms(arms: Arms, *more: str | Path) -> Done:
    return compare("--specialist", *arms[0], "--joint", *arms[1], "--qrels", arms[2], *more)


def judged(arms: Arms, *more: str | Path) -> dict[str, Any]:
    """The JSON of a comparison, with its only gate under ``gate``."""
    done = compare_arms(arms, "--json", *more)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout, parse_constant=pytest.fail)
    (found["gate"],) = found["gates"]["gates"]
    return found


def words_of(done: Done) -> str:
    return " ".join(done.stdout.split())


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Arms:
    """Two seeds of a good specialist and three of a joint model that is clearly worse, on 40 queries."""
    rng = np.random.default_rng(3)
    qrels = random_qrels(40, rng)
    good, poor = ([random_run(qrels, noise, rng) for _ in range(seeds)] for noise, seeds in ((0.5, 2), (3.0, 3)))
    return write_arms(tmp_path_factory.mktemp("runs"), qrels, good, poor)


@pytest.fixture
def one_query(tmp_path: Path) -> Arms:
    runs = [[run_with_ranks({"q1": rank})] for rank in (1, 3)]
    return write_arms(tmp_path, one_relevant("q1"), *runs)


def test_help_says_what_is_refused_and_how_it_exits() -> None:
    done = compare("--help")
    assert done.returncode == 0
    for word in ("--specialist", "--joint", "--qrels", "--systems", "--allow", "zeros", "duplicates", "Exits 0"):
        assert word in words_of(done)


class TestVerdict:
    def test_says_one_judgment_scores_and_queries(self, arms: Arms) -> None:
        done = compare_arms(arms)
        assert done.returncode == 0, done.stderr
        text = words_of(done)
        for words in (
            "No gates were registered before the results",
            "PASS: interference joint loses",
            "interference, 2 % or more",
            "(seeds 0, 1, 2:",
            "Relevance level 1 on q",
            "mrr@10",
            "The 10 queries with the largest differences",
        ):
            assert words in text
        assert text.count("PASS: ") == 1
        assert "read" in done.stderr
        assert f"{arms[0][0]}: specialist seed 0 on q" in " ".join(done.stderr.split())

    def test_an_undecided_comparison_says_what_would_settle_it(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(8)
        qrels = random_qrels(12, rng)
        alike = [[random_run(qrels, 1.0, rng) for _ in range(2)] for _ in range(2)]
        done = compare_arms(write_arms(tmp_path, qrels, *alike))
        assert done.returncode == 0
        assert "INCONCLUSIVE: interference" in words_of(done)
        assert "Would settle it" in words_of(done)

    def test_one_run_a_side_is_inconclusive_with_an_interval_over_queries(self, arms: Arms) -> None:
        found = judged((arms[0][:1], arms[1][:1], arms[2]))
        assert found["gate"]["label"] == "INCONCLUSIVE"
        assert "one seed of specialist and joint" in found["gate"]["why"]
        assert found["gate"]["interval"]["estimand"] == "queries"
        assert found["gate"]["interval"]["low"] < found["gate"]["interval"]["value"]
        assert found["comparisons"][0]["p"] < 0.05

    def test_several_datasets_are_one_gate_with_a_row_each(self, tmp_path: Path) -> None:
        datasets = {"x": 20, "y": 30}
        write_systems(tmp_path, datasets, {"a": (0.5, 2), "b": (2.0, 3)})
        files = [f"{tmp_path}/{{dataset}}/{name}-seed*.trec" for name in ("a", "b")]
        done = compare("--specialist", files[0], "--joint", files[1], *dataset_options(tmp_path, ["x", "y"]), "--json")
        (gate,) = json.loads(done.stdout)["gates"]["gates"]
        assert gate["datasets"].keys() == datasets.keys()
        assert gate["label"] == "PASS"

    def test_texts_of_queries_and_ranks_of_relevant_documents(self, one_query: Arms, tmp_path: Path) -> None:
        queries = tmp_path / "queries.tsv"
        queries.write_text("q1\twhat is [red] here?\n", encoding="utf-8")
        text = words_of(compare_arms(one_query, "--queries", queries))
        assert "what is [red] here?" in text
        assert "1 → 3" in text

    def test_what_was_allowed_is_said_in_the_output(self, arms: Arms, tmp_path: Path) -> None:
        lines = arms[1][0].read_text(encoding="utf-8").splitlines(keepends=True)
        cut = tmp_path / "cut.trec"
        cut.write_text("".join(line for line in lines if not line.startswith("q7 ")), encoding="utf-8")
        files = (arms[0], [cut, arms[1][1]], arms[2])
        assert_refused(compare_arms(files), 3, "cut.trec lacks 1 (q7)", "--allow queries", "--allow zeros")
        done = compare_arms(files, "--allow", "queries")
        assert done.returncode == 0
        assert "compared on the 39 of 40 judged queries that all runs have (--allow queries)" in words_of(done)
        assert "ADVISORY" in done.stdout

    def test_the_option_may_be_repeated_instead(self, arms: Arms) -> None:
        (a1, a2), joint, qrels = arms
        spelled = compare("--specialist", a1, "--specialist", a2, "--joint", *joint, "--qrels", qrels)
        assert spelled.stdout == compare_arms(arms).stdout

    def test_both_names_of_a_metric_say_the_same(self, arms: Arms) -> None:
        trec_eval, house = (compare_arms(arms, "--metric", metric).stdout for metric in ("recall_100", "recall@100"))
        assert trec_eval == house

    def test_the_same_seed_gives_the_same_bits(self, arms: Arms) -> None:
        first, again, other = (compare_arms(arms, "--json", "--seed", seed).stdout for seed in ("1", "1", "2"))
        assert first == again
        assert first != other


class TestWhatReviewersFound:
    """Each case of a hostile review, with its numbers or a reconstruction of them."""

    def test_the_order_of_files_changes_nothing(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(17)
        qrels = random_qrels(60, rng)
        specialist = [random_run(qrels, 1.0, rng) for _ in range(3)]
        joint = [random_run(qrels, noise, rng) for noise in (1.0, 1.1, 1.25)]
        a, b, q = write_arms(tmp_path, qrels, specialist, joint)
        found = [judged(([*a], [*order], q)) for order in itertools.permutations(b)]
        found.append(judged((a[::-1], b, q)))
        assert all(other == found[0] for other in found)
        assert found[0]["gate"]["paired"] is False

    def test_no_surplus_is_thrown_away(self, arms: Arms) -> None:
        found = judged(arms)
        assert found["gate"]["seeds"] == {"specialist": [0, 1], "joint": [0, 1, 2]}
        assert found["gate"]["label"] == "PASS"
        assert len(found["runs"]) == 5

    def test_seeds_pair_only_when_declared(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(5)
        qrels = random_qrels(50, rng)
        a, b, q = write_arms(tmp_path, qrels, *[[random_run(qrels, n, rng) for _ in range(3)] for n in (0.8, 1.4)])
        paired, turned = (judged((a, order, q), "--paired") for order in (b, b[::-1]))
        assert paired["gate"]["paired"] is True
        assert paired["gate"]["interval"]["value"] == pytest.approx(turned["gate"]["interval"]["value"], rel=1e-12)
        assert paired["gate"]["interval"] != pytest.approx(turned["gate"]["interval"], rel=1e-6)

    def test_constant_scores_are_no_certainty(self, tmp_path: Path) -> None:
        """Two seeds, two queries, no variance: it was confidence 1.000."""
        places = [{"q1": rank, "q2": rank} for rank in (1, 2)]
        seeds = [[run_with_ranks(of, tail=tail) for tail in (0.0, 0.5)] for of in places]
        few = write_arms(tmp_path, one_relevant("q1", "q2"), *seeds)
        found = judged(few, "--metric", "mrr")
        assert found["gate"]["label"] == "INCONCLUSIVE"
        assert found["gate"]["confidence"] == {}
        assert "differ on 2 of 2 queries" in found["gate"]["why"]
        assert found["comparisons"][0]["p_holm"] is None
        assert "inf" not in compare_arms(few, "--metric", "mrr").stdout

    def test_constant_differences_on_many_queries_are_no_certainty_either(self, tmp_path: Path) -> None:
        queries = [f"q{i}" for i in range(30)]
        seeds = [[run_with_ranks(dict.fromkeys(queries, rank), tail=t) for t in (0.0, 0.5)] for rank in (1, 2)]
        found = judged(write_arms(tmp_path, one_relevant(*queries), *seeds), "--metric", "mrr")
        assert found["gate"]["label"] == "INCONCLUSIVE"
        assert found["gate"]["why"]
        assert 1.0 not in found["gate"]["confidence"].values()

    @pytest.mark.parametrize("differing", [0, 1, 3, 5])
    @pytest.mark.parametrize("seeds", [1, 2, 3])
    def test_json_is_finite_where_few_queries_differ(self, tmp_path: Path, differing: int, seeds: int) -> None:
        queries = [f"q{i}" for i in range(20)]
        worse = {query_id: 1 + (i < differing) for i, query_id in enumerate(queries)}
        runs = [
            [run_with_ranks(of, tail=place + seed / 10) for seed in range(seeds)]
            for place, of in enumerate((dict.fromkeys(queries, 1), worse))
        ]
        found = judged(write_arms(tmp_path, one_relevant(*queries), *runs))
        assert found["gate"]["label"] == "INCONCLUSIVE"

    def test_a_specialist_at_or_near_zero_has_no_ratio(self, tmp_path: Path) -> None:
        queries = [f"q{i}" for i in range(30)]
        near: list[dict[str, int | None]] = [{q: (1 if q == hit else None) for q in queries} for hit in ("q0", "q1")]
        joint: list[dict[str, int | None]] = [{**dict.fromkeys(queries, 9), "q3": rank} for rank in (8, 7)]
        nowhere: list[dict[str, int | None]] = [dict.fromkeys(queries), dict.fromkeys(queries)]
        for places, why in ((near, "standard errors above 0"), (nowhere, "not score above 0")):
            runs = [[run_with_ranks(of, tail=i) for i, of in enumerate(arm)] for arm in (places, joint)]
            files = write_arms(tmp_path, one_relevant(*queries), *runs)
            found = judged(files, "--metric", "mrr")
            assert found["gate"]["label"] == "INCONCLUSIVE"
            assert why in found["gate"]["why"]

    def test_no_number_is_minus_zero_and_confidences_add_up(self, arms: Arms, tmp_path: Path) -> None:
        same = [arms[0][0], arms[0][1]]
        assert_refused(compare_arms((same, same, arms[2]), "--json"), 3, "holds the same", "--allow duplicates")
        found = judged((same, same, arms[2]), "--allow", "duplicates")
        assert found["gate"]["label"] == "INCONCLUSIVE"
        assert found["drilldown"] == []
        assert "-0.00" not in compare_arms((same, same, arms[2]), "--allow", "duplicates").stdout
        assert sum(judged(arms)["gate"]["confidence"].values()) == pytest.approx(1.0, abs=1e-12)

    def test_a_second_metric_of_a_verdict_is_refused(self, arms: Arms) -> None:
        assert_refused(compare_arms(arms, "--metric", "ndcg@10", "map"), 2, "--metric ndcg@10 map", "one metric")

    def test_a_relevance_level_counts_and_is_named(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(2)
        qrels = random_qrels(20, rng)
        a, b, q = write_arms(tmp_path, qrels, *[[random_run(qrels, n, rng) for _ in range(2)] for n in (1.0, 2.0)])
        assert "--relevance-level 2" in compare_arms((a, b, q), "--metric", "map").stderr
        Path(f"{q}.json").write_text('{"name": "dl20", "relevance_level": 2}', encoding="utf-8")
        done = compare_arms((a, b, q), "--metric", "map", "--output-dir", tmp_path / "out")
        assert "Relevance level 2 on dl20" in done.stdout
        assert "counts from 2" not in done.stderr
        stored = read_result(result_path(tmp_path / "out", "joint", 1, "retrieval", "dl20"))
        assert stored.relevance_level == 2
        assert stored.aggregate["map"] == score_run(qrels, read_run(b[1]), ["AP(rel=2)"]).aggregate["AP(rel=2)"]
        assert "relevance level 2" in (tmp_path / "out" / "analysis" / "report.md").read_text(encoding="utf-8")


GATE = """
registered: 2020-01-01T00:00:00Z
gates:
  kill:
    kind: interference
    task: retrieval
    datasets: [q]
    metric: {metric}
    specialist: mono
    joint: {joint}
    pass_at: {pass_at}
    fail_below: 0.08
"""


def gate_file(folder: Path, joint: str = "all", metric: str = "ndcg@10", pass_at: float = 0.1) -> Path:
    path = folder / "gate.yaml"
    path.write_text(GATE.format(joint=joint, metric=metric, pass_at=pass_at), encoding="utf-8")
    return path


NAMED = ("--specialist-name", "mono", "--joint-name", "all")


class TestGates:
    def test_a_gate_judges_the_runs_and_sets_the_exit_code(self, arms: Arms, tmp_path: Path) -> None:
        gates = gate_file(tmp_path)
        done = compare_arms(arms, *NAMED, "--gates", gates)
        assert done.returncode == 0, done.stderr
        assert "PASS: kill" in done.stdout
        assert "PASS from 10 %, FAIL below 8 %" in done.stdout
        for number in ("PASS from 2 %", "2 % or more", "FAIL below 1 %"):
            assert number not in done.stdout
        turned = compare_arms((arms[1], arms[0], arms[2]), *NAMED, "--gates", gates, "--json")
        assert turned.returncode == 10
        assert json.loads(turned.stdout)["gates"]["exit_code"] == 10

    def test_its_metric_is_the_one_that_is_compared(self, arms: Arms, tmp_path: Path) -> None:
        done = compare_arms(arms, *NAMED, "--gates", gate_file(tmp_path, metric="ERR@20"))
        assert "ERR@20 on q" in words_of(done)

    def test_a_gate_of_other_arms_is_named_and_the_comparison_still_shown(self, arms: Arms, tmp_path: Path) -> None:
        done = compare_arms(arms, "--specialist-name", "mono", "--gates", gate_file(tmp_path, joint="all_of_them"))
        assert done.returncode == 3
        assert "Scores of all arms" in done.stdout
        assert "all_of_them" in done.stderr.splitlines()[-1]


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws no figures, which take most of the time of a test that does not look at them."""
    monkeypatch.setattr("unimoe.analysis.report.write_report", lambda analysis: analysis.results.output_dir)


def verdicts(folder: Path) -> Done:
    return call_script("analyze_results.py", "verdicts", "--output-dir", folder, "--json")


class TestFolder:
    def test_is_judged_again_with_the_same_label(self, arms: Arms, tmp_path: Path) -> None:
        out = tmp_path / "out"
        queries = tmp_path / "queries.tsv"
        queries.write_text("".join(f"q{q}\twhat of {q}?\n" for q in range(40)), encoding="utf-8")
        done = compare_arms(arms, "--output-dir", out, *NAMED, "--queries", queries)
        assert done.returncode == 0, done.stderr
        assert f"Report: {out / 'analysis' / 'report.html'}" in done.stdout
        report = (out / "analysis" / "report.md").read_text(encoding="utf-8")
        assert f"--specialist {arms[0][0]} {arms[0][1]}" in report
        assert "what of 39?" in (out / "analysis" / "report.html").read_text(encoding="utf-8")
        assert sorted(path.name for path in out.glob("all/seed_*")) == ["seed_0", "seed_1", "seed_2"]
        again = verdicts(out)
        (gate,) = json.loads(again.stdout)["gates"]
        assert again.returncode == 0
        for key in ("label", "interval", "confidence"):
            assert gate[key] == judged(arms, *NAMED)["gate"][key]

    @pytest.mark.usefixtures("without_report")
    def test_the_same_call_again_is_fine(self, arms: Arms, tmp_path: Path) -> None:
        out = tmp_path / "out"
        first, again = (compare_arms(arms, "--output-dir", out) for _ in range(2))
        assert first.returncode == again.returncode == 0
        assert first.stdout == again.stdout
        assert "PASS: interference" in first.stdout

    @pytest.mark.usefixtures("without_report")
    def test_another_comparison_is_refused_by_name_or_replaces_it(self, arms: Arms, tmp_path: Path) -> None:
        out = tmp_path / "out"
        fewer = (arms[0], arms[1][:2], arms[2])
        assert compare_arms(arms, "--output-dir", out).returncode == 0
        mend = ("choose another --output-dir, or --overwrite",)
        for files, options, words in (
            (fewer, [], ["also holds joint/seed_2/results/retrieval/q.json"]),
            (arms, ["--metric", "map"], ["main metric of", "'ndcg@10' there, 'map' here"]),
            (arms, ["--joint-name", "all"], ["lacks all/seed_0"]),
            (arms, ["--relevance-level", "2"], ["relevance level", "1 there, 2 here"]),
            ((arms[0], [arms[1][0], arms[1][1], arms[1][2]], arms[2]), ["--depth", "50"], ["run of joint/seed_0"]),
            (arms, [*NAMED, "--gates", str(gate_file(tmp_path))], ["lacks all/seed_0"]),
        ):
            assert_refused(compare_arms(files, "--output-dir", out, *options), 3, str(out), *words, *mend)
        assert compare_arms(fewer, "--output-dir", out, "--overwrite").returncode == 0
        assert not (out / "joint" / "seed_2").exists()
        assert verdicts(out).returncode == 0
        assert compare_arms(arms, "--output-dir", out, "--metric", "map", "--overwrite").returncode == 0
        assert json.loads(verdicts(out).stdout)["gates"][0]["gate"]["metric"] == "map"

    @pytest.mark.usefixtures("without_report")
    def test_judgments_of_another_name_are_another_comparison(self, arms: Arms, tmp_path: Path) -> None:
        out, renamed = tmp_path / "out", tmp_path / "other.tsv"
        shutil.copyfile(arms[2], renamed)
        named = ("--dataset", "q", "--output-dir", out)
        assert compare_arms(arms, *named).returncode == 0
        moved = (arms[0], arms[1], renamed)
        assert_refused(compare_arms(moved, *named), 3, "split of", "'q.tsv' there, 'other.tsv' here", "--overwrite")
        assert compare_arms(moved, *named, "--overwrite").returncode == 0

    @pytest.mark.usefixtures("without_report")
    def test_other_gates_are_another_comparison(self, arms: Arms, tmp_path: Path) -> None:
        out = tmp_path / "out"
        assert compare_arms(arms, *NAMED, "--output-dir", out).returncode == 0
        gated = compare_arms(arms, *NAMED, "--output-dir", out, "--gates", gate_file(tmp_path))
        assert_refused(gated, 3, "gates.yaml holds other gates")

    @pytest.mark.usefixtures("without_report")
    def test_results_of_something_else_are_never_touched(self, arms: Arms, tmp_path: Path) -> None:
        out = tmp_path / "out"
        compare_arms(arms, "--output-dir", out)
        (out / "comparison.json").unlink()
        done = compare_arms(arms, "--output-dir", out, "--overwrite")
        assert_refused(done, 3, "holds results that no comparison made", "another --output-dir")
        assert (out / "joint" / "seed_2").exists()

    @pytest.mark.usefixtures("without_report")
    def test_gates_that_lie_there_judge(self, arms: Arms, tmp_path: Path) -> None:
        shutil.copyfile(gate_file(tmp_path), tmp_path / "gates.yaml")
        done = compare_arms(arms, *NAMED, "--output-dir", tmp_path)
        assert "PASS: kill" in done.stdout
        assert done.returncode == 0


DATASETS = {"dl19": 24, "dl20": 30, "cran": 36}


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("systems")
    write_systems(folder, DATASETS)
    return folder


def of_systems(folder: Path) -> list[str]:
    """Options: bm25 is the baseline, the others are named by their files, and one by hand."""
    where = f"{folder}/{{dataset}}"
    return [
        *("--baseline", f"{where}/bm25.trec", "--systems", f"{where}/splade.trec", f"{where}/colbert-*.trec"),
        f"mono={where}/mono-seed[123].trec",
    ]


class TestTableOfSystems:
    @pytest.fixture(scope="class")
    def made(self, systems: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
        """The paper's table of 4 systems x 3 datasets, one command."""
        out = tmp_path_factory.mktemp("paper") / "out"
        options = [*dataset_options(systems, list(DATASETS)), *of_systems(systems), "--output-dir", str(out)]
        return compare(*options, "--metric", "ndcg@10", "map"), out

    def test_is_one_command(self, made: tuple[Done, Path]) -> None:
        done, out = made
        assert done.returncode == 0, done.stderr
        text = words_of(done)
        for words in (
            "On dl19, mono has the highest ndcg@10",
            "Every two systems on each of 3 datasets: 18 comparisons, p corrected by Holm",
            "Relevance level 1 on cran, dl19, dl20.",
            "average of 3",
            "mono − colbert",
            f"Report: {out / 'analysis' / 'report.html'}",
        ):
            assert words in text
        for name in ("overview", "comparison", "significance"):
            assert {path.suffix for path in (out / "analysis" / "tables").glob(f"{name}.*")} == {".md", ".tex", ".csv"}
        assert list((out / "analysis" / "figures").glob("*.pdf"))

    def test_its_numbers_are_those_of_scipy_and_trec_eval(self, made: tuple[Done, Path], systems: Path) -> None:
        with (made[1] / "analysis" / "tables" / "significance.csv").open(encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if not row["group"].startswith("#")]
        assert len(rows) == 18
        singles = [row for row in rows if row["Comparison"] == "splade − bm25"]
        assert len(singles) == 3
        for row in singles:
            dataset = row["group"].partition(",")[0].removeprefix("retrieval/")
            qrels = read_qrels(systems / f"{dataset}.qrels")
            first, second = (
                list(score_run(qrels, read_run(systems / dataset / f"{name}.trec")).per_query["ndcg@10"].values())
                for name in ("splade", "bm25")
            )
            expected = stats.ttest_rel(first, second)
            interval = expected.confidence_interval(0.95)
            assert float(row["p"]) == pytest.approx(expected.pvalue, rel=1e-9)
            assert float(row["Delta"]) == pytest.approx(100 * (np.mean(first) - np.mean(second)), rel=1e-9)
            ends = 100 * interval.low, 100 * interval.high
            assert (float(row["Low"]), float(row["High"])) == pytest.approx(ends, rel=1e-9)
        p = np.array([float(row["p"]) for row in rows])
        order = np.argsort(p)
        holm = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(18, 0, -1)))
        assert [float(rows[i]["Holm"]) for i in order] == pytest.approx(holm.tolist(), rel=1e-9)

    def test_letters_name_who_is_beaten(self, made: tuple[Done, Path]) -> None:
        with (made[1] / "analysis" / "tables" / "overview.csv").open(encoding="utf-8") as file:
            row = next(row for row in csv.DictReader(file) if row["Dataset"] == "cran")
        assert row["mono (c) symbols"] == "abd"
        assert row["colbert (b) symbols"] == "ad"

    @pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex; .ci/run installs it")
    def test_its_latex_compiles(self, made: tuple[Done, Path], tmp_path: Path) -> None:
        inputs = "\n".join(f"\\input{{{path}}}" for path in (made[1] / "analysis" / "tables").glob("*.tex"))
        packages = "\\usepackage[T1]{fontenc}\\usepackage{booktabs}\\usepackage{graphicx}"
        (tmp_path / "paper.tex").write_text(
            f"\\documentclass[twocolumn]{{article}}{packages}\\begin{{document}}{inputs}\\end{{document}}",
            encoding="utf-8",
        )
        command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    def test_json_and_frame_are_the_same(self, systems: Path) -> None:
        options = [*dataset_options(systems, list(DATASETS)), *of_systems(systems), "--json"]
        found = json.loads(compare(*options, "--metric", "ndcg@10", "P@5").stdout, parse_constant=pytest.fail)
        runs: dict[str, Any] = {name: {} for name in SYSTEMS}
        for run in found["runs"]:
            runs[run["system"]].setdefault(run["dataset"], []).append(run["path"])
        qrels = {dataset: systems / f"{dataset}.qrels" for dataset in DATASETS}
        there = public.compare(runs, qrels, baseline="bm25", metrics=["ndcg@10", "P@5"])
        for rows, frame in ((found["scores"], there.frame()), (found["comparisons"], there.tests())):
            assert list(frame.columns) == list(rows[0])
            for row, same in zip(rows, frame.astype(object).to_dict("records"), strict=True):
                for column, value in row.items():
                    missing = same[column] is None or same[column] != same[column]  # pandas has NaN for null in numbers
                    assert missing if value is None else same[column] == value
        assert there.frame()["metric"].unique().tolist() == ["ndcg@10", "p@5"]

    def test_only_pairs_with_the_baseline_are_a_smaller_family(self, systems: Path) -> None:
        options = [*dataset_options(systems, list(DATASETS)), *of_systems(systems), "--json"]
        every, few = (json.loads(compare(*options, "--pairs", pairs).stdout) for pairs in ("all", "baseline"))
        assert (len(every["comparisons"]), len(few["comparisons"])) == (18, 9)
        assert few["family"].startswith("Each system against bm25 on each of 3 datasets: 9 comparisons")
        by_row = {(c["dataset"], c["system"], c["baseline"]): c for c in every["comparisons"]}
        for row in few["comparisons"]:
            same = by_row[row["dataset"], row["system"], row["baseline"]]
            assert row["p"] == same["p"]
            assert row["p_holm"] <= same["p_holm"]

    def test_numbers_of_runs_may_differ_between_datasets(self, tmp_path: Path) -> None:
        write_systems(tmp_path, {"x": 12, "y": 12}, {"a": (1.0, 3), "b": (2.0, 2)})
        (tmp_path / "x" / "a-seed2.trec").unlink()
        patterns = [f"{tmp_path}/{{dataset}}/{name}-seed*.trec" for name in "ab"]
        done = compare(*dataset_options(tmp_path, ["x", "y"]), "--systems", *patterns, "--json")
        assert [row["baseline_runs"] for row in json.loads(done.stdout)["comparisons"]] == [2, 3]

    @pytest.mark.usefixtures("without_report")
    def test_any_folder_of_results_is_compared(self, made: tuple[Done, Path], tmp_path: Path) -> None:
        folder = made[1]
        found = json.loads(compare("--results", folder, "--baseline", "bm25", "--json").stdout)
        assert [len(found[key]) for key in ("datasets", "comparisons", "scores")] == [3, 18, 24]
        chosen = ("--systems", "mono", "colbert", "--dataset", "dl19", "retrieval/cran", "--metric", "map")
        found = json.loads(compare("--results", folder, *chosen, "--json").stdout)
        assert {(row["dataset"], row["metric"]) for row in found["scores"]} == {("dl19", "map"), ("cran", "map")}
        assert [(c["system"], c["baseline"]) for c in found["comparisons"]] == [("colbert", "mono")] * 2
        done = compare("--results", folder, *chosen, "--output-dir", tmp_path / "copy")
        assert done.returncode == 0, done.stderr
        again = json.loads(compare("--results", tmp_path / "copy", "--json").stdout)
        found, again = ([row["p"] for row in of["comparisons"]] for of in (found, again))
        assert again == pytest.approx(found)


Damage = Callable[[Path, Path], object]


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "code", "words"),
        [
            (["--metric", "ndgc_cut_10"], 2, ["unknown metric 'ndgc_cut_10'", "did you mean 'ndcg_cut_10'?"]),
            (["--allow", "dpeth"], 2, ["--allow dpeth", "did you mean 'depth'?"]),
            (["--joint-name", "specialist"], 2, ["both arms are named 'specialist'"]),
            (["--joint-name", "a/b"], 2, ["cannot be named 'a/b'"]),
            (["--queries", "nowhere.tsv"], 3, ["nowhere.tsv: no such file"]),
            (["--depth", "0"], 2, ["--depth 0"]),
            (["--relevance-level", "0"], 2, ["--relevance-level 0"]),
            (["--paired"], 2, ["equal in number", "2 of specialist, 3 of joint on q"]),
            (["--overwrite"], 2, ["--output-dir"]),
            (["--systems", "c.trec"], 2, ["--systems does not belong here", "a verdict"]),
            (["--baseline", "c.trec"], 2, ["--baseline does not belong here"]),
            (["--results", "outputs"], 2, ["--results does not belong here"]),
            (["--pairs", "all"], 2, ["--pairs does not belong here"]),
            (["--gates", "nowhere.yaml"], 3, ["nowhere.yaml"]),
            (["--dataset", "a", "b"], 2, ["--dataset NAME=QRELS"]),
        ],
    )
    def test_of_verdicts(self, arms: Arms, options: list[str], code: int, words: list[str]) -> None:
        assert_refused(compare_arms(arms, *options), code, *words)

    def test_of_tables(self, systems: Path, tmp_path: Path) -> None:
        here, two = dataset_options(systems, ["dl19"]), dataset_options(systems, ["dl19", "dl20"])
        bm25, mono = f"{systems}/dl19/bm25.trec", f"{systems}/{{dataset}}/mono-seed*.trec"
        for options, code, words in (
            ([*here, "--systems", bm25, "nothing-*.trec"], 3, ["--systems nothing-*.trec: no file matches"]),
            ([*here, "--systems", bm25, "nothing.trec"], 3, ["nothing.trec: no such file"]),
            ([*two, "--systems", bm25, mono], 2, ["--systems", "the same files for 2 datasets", "{dataset}"]),
            ([*here, "--systems", f"a={bm25}", f"a={mono}"], 2, ["two systems are named 'a'"]),
            ([*here, "--systems", f"a={bm25}", f"b={bm25}"], 3, ["holds the same rankings", "--allow duplicates"]),
            ([*here, "--systems", bm25], 2, ["only bm25 to compare"]),
            ([*here, "--baseline", bm25], 2, ["only bm25 to compare"]),
            ([*here, *here[1:], "--systems", bm25, mono], 2, ["two datasets are named 'dl19'"]),
            (["--systems", bm25, mono], 2, ["no judgments", "--qrels FILE"]),
            ([*here, "--systems", bm25, mono, "--pairs", "baseline"], 2, ["--baseline"]),
            ([*here, "--systems", bm25, mono, "--gates", "kill"], 2, ["--gates does not belong here"]),
            ([*here, "--systems", bm25, mono, "--joint-name", "x"], 2, ["--joint-name does not belong here"]),
            ([*here], 2, ["nothing to compare"]),
        ):
            assert_refused(compare(*options), code, *words)

    @pytest.mark.usefixtures("without_report")
    def test_of_folders(self, arms: Arms, tmp_path: Path) -> None:
        out = tmp_path / "out"
        compare_arms(arms, "--output-dir", out)
        cases: list[tuple[list[str | Path], int, list[str]]] = [
            (["--results", tmp_path / "none"], 3, ["no results here"]),
            (["--results", out, "--systems", "jiont"], 2, ["unknown arm 'jiont'", "did you mean 'joint'?"]),
            (["--results", out, "--baseline", "bm25"], 2, ["unknown arm 'bm25'"]),
            (["--results", out, "--dataset", "z"], 2, ["--dataset z", "retrieval/q"]),
            (["--results", out, "--systems", "joint"], 2, ["only joint to compare"]),
            (["--results", out, "--metric", "ERR@20"], 3, ["no per-query 'ERR@20'"]),
            (["--results", out, "--qrels", arms[2]], 2, ["--qrels does not belong here"]),
            (["--results", out, "--paired"], 2, ["--paired does not belong here"]),
            (["--results", out, "--output-dir", out], 2, ["choose another folder"]),
        ]
        for options, code, words in cases:
            assert_refused(compare(*options), code, *words)

    def test_an_arm_without_files(self, arms: Arms) -> None:
        assert_refused(compare("--specialist", *arms[0], "--qrels", arms[2]), 2, "no run file of joint", "--joint")

    def test_a_stray_word(self, arms: Arms) -> None:
        done = compare("stray", "--qrels", arms[2])
        assert done.returncode == 2
        assert "stray" in done.stderr

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            (lambda run, _: run.unlink(), ["b1.trec: no such file"]),
            (lambda _, qrels: qrels.unlink(), ["q.tsv: no such file"]),
            (lambda run, _: run.write_text("q1 Q0 rel 1 nan t\n"), ["b1.trec:1: score 'nan' is not finite"]),
            (lambda run, _: run.write_text("q1 Q0 d 1 2 t\n" * 2), ["b1.trec:2: document 'd' is listed twice"]),
            (lambda run, _: run.write_text("q1 Q0 d\n"), ["b1.trec:1: a run line has 6 fields"]),
            (lambda run, _: run.write_text(""), ["b1.trec: no line in it"]),
            (lambda run, _: run.write_text("q8 Q0 d 1 2 t\n"), ["b1.trec: none of its queries is judged", "'q8'"]),
            (
                lambda run, _: write_run(run, run_with_ranks({"q1": 2}, depth=4), tag="t"),
                ["b1.trec ends at depth 4", "a1.trec at 10", "--depth 4", "--allow depth"],
            ),
        ],
    )  # fmt: skip
    def test_files(self, one_query: Arms, damage: Damage, words: list[str]) -> None:
        damage(one_query[1][0], one_query[2])
        assert_refused(compare_arms(one_query), 3, *words)


def test_no_model_library_is_loaded(arms: Arms) -> None:
    code = (
        "import sys\nfrom unimoe.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print(*sorted({'torch', 'transformers', 'peft', 'pandas'} & set(sys.modules)), file=sys.stderr)"
    )
    specialist, joint, qrels = arms
    command = [sys.executable, "-c", code, "compare", "--specialist", *specialist, "--joint", *joint, "--qrels", qrels]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    assert "PASS: interference" in done.stdout
    assert done.stderr.splitlines()[-1] == ""


def test_real_systems(unimoe_data: Path) -> None:
    pool = unimoe_data / "trec-dl19-passage-pool"
    names = ("splade_p_p_ensemble_distil", "rep_llama", "bm25", "bm25_rm3")
    runs = [pool / "runs" / f"{name}.trec" for name in names]
    done = compare("--baseline", runs[2], "--systems", *runs[:2], runs[3], "--qrels", pool / "qrels" / "full.tsv")
    assert done.returncode == 0, done.stderr
    assert "Every two systems: 6 comparisons" in words_of(done)
    assert "splade_p_p_ensemble_distil" in done.stdout
