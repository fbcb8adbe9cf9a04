"""``unimoe compare``: the verdict from run files alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.runs import one_relevant, random_qrels, random_run, run_with_ranks, write_arms
from support.scripts import Done, assert_refused, call_script

import unimoe
from unimoe.trec import write_run

Arms = tuple[list[Path], list[Path], Path]


def compare(*arguments: str | Path) -> Done:
    return call_script(str(Path(unimoe.__file__).with_name("__main__.py")), "compare", *arguments)


def compare_arms(arms: Arms, *more: str | Path) -> Done:
    return compare("--specialist", *arms[0], "--joint", *arms[1], "--qrels", arms[2], *more)


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Arms:
    """Two seeds of a good specialist and of a joint model that is clearly worse, on 40 queries."""
    rng = np.random.default_rng(3)
    qrels = random_qrels(40, rng)
    good, poor = ([random_run(qrels, noise, rng) for _ in range(2)] for noise in (0.5, 3.0))
    return write_arms(tmp_path_factory.mktemp("runs"), qrels, good, poor)


@pytest.fixture
def one_query(tmp_path: Path) -> Arms:
    runs = [[run_with_ranks({"q1": rank})] for rank in (1, 3)]
    return write_arms(tmp_path, one_relevant("q1"), *runs)


def test_help_says_what_is_refused_and_how_it_exits() -> None:
    done = compare("--help")
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    for word in ("--specialist", "--joint", "--qrels", "--metric", "--allow", "zeros", "duplicates", "Exits 0"):
        assert word in text


class TestText:
    def test_verdict_paired_test_scores_and_queries(self, arms: Arms) -> None:
        done = compare_arms(arms)
        assert done.returncode == 0, done.stderr
        text = " ".join(done.stdout.split())
        for words in (
            "Retrieval on q: joint against specialist (ndcg@10, 40 queries, 2 seeds)",
            "Rule PASS (interference confirmed",
            "With confidence PASS",
            "Paired test -",
            "p below 0.0001 (sign-flip)",
            "(scores averaged over 2 seeds first)",
            "mrr@10",
            "recall@100",
            "The queries that carry the TIR: the 10 with the largest differences",
        ):
            assert words in text
        assert "Would settle it" not in text

    def test_an_undecided_comparison_says_what_would_settle_it(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(8)
        qrels = random_qrels(12, rng)
        alike = [[random_run(qrels, 1.0, rng) for _ in range(2)] for _ in range(2)]
        done = compare_arms(write_arms(tmp_path, qrels, *alike))
        text = " ".join(done.stdout.split())
        assert done.returncode == 0
        assert "With confidence INCONCLUSIVE" in text
        assert "Would settle it" in text

    def test_seeds_are_files_in_the_order_given(self, arms: Arms) -> None:
        text = " ".join(compare_arms((arms[0], arms[1][:1], arms[2])).stdout.split())
        assert f"Seed 1 specialist {arms[0][0]}, joint {arms[1][0]}" in text
        assert f"Seed 2 specialist {arms[0][1]} " in text
        assert "Left out specialist seed 2: the other arm lacks the seed" in text

    def test_one_seed_has_no_interval_but_a_paired_test(self, arms: Arms) -> None:
        text = " ".join(compare_arms((arms[0][:1], arms[1][:1], arms[2])).stdout.split())
        assert "With confidence not computable, it needs two seeds and two queries or more" in text
        assert "points over 40 queries (seed 1)" in text

    def test_one_query_has_no_interval_and_p_is_one(self, one_query: Arms) -> None:
        done = compare_arms(one_query, "--metric", "recip_rank")
        text = " ".join(done.stdout.split())
        assert done.returncode == 0, done.stderr
        assert "With confidence not computable" in text
        assert "p 1.0000 (sign-flip); joint better on 0, equal on 0, worse on 1" in text

    def test_a_specialist_at_zero_ends_well_without_a_ratio(self, tmp_path: Path) -> None:
        runs = [[run_with_ranks({"q1": rank, "q2": rank})] for rank in (None, 1)]
        done = compare_arms(write_arms(tmp_path, one_relevant("q1", "q2"), *runs))
        assert done.returncode == 0, done.stderr
        assert "TIR not computable: specialist scores nearly 0 on q" in done.stdout

    def test_texts_of_queries_and_ranks_of_relevant_documents(self, one_query: Arms, tmp_path: Path) -> None:
        queries = tmp_path / "queries.tsv"
        queries.write_text("q1\twhat is [red] here?\n", encoding="utf-8")
        text = " ".join(compare_arms(one_query, "--queries", queries).stdout.split())
        assert "what is [red] here?" in text
        assert "1 → 3" in text

    def test_what_was_allowed_is_said_in_the_output(self, arms: Arms, tmp_path: Path) -> None:
        lines = arms[1][0].read_text(encoding="utf-8").splitlines(keepends=True)
        cut = tmp_path / "cut.trec"
        cut.write_text("".join(line for line in lines if not line.startswith("q7 ")), encoding="utf-8")
        files = (arms[0], [cut, arms[1][1]], arms[2])
        assert_refused(compare_arms(files), 3, "cut.trec lacks 1 (q7)", "--allow queries", "--allow zeros")
        done = compare_arms(files, "--allow", "queries")
        text = " ".join(done.stdout.split())
        assert done.returncode == 0
        assert "Caveat: compared on the 39 of 40 judged queries that all runs have (--allow queries)" in text
        assert "39 queries, 2 seeds" in text


def test_the_option_may_be_repeated_instead(arms: Arms) -> None:
    (a1, a2), (b1, b2), qrels = arms
    spelled = compare("--specialist", a1, "--specialist", a2, "--joint", b1, "--joint", b2, "--qrels", qrels)
    assert spelled.stdout == compare_arms(arms).stdout


def test_both_names_of_a_metric_say_the_same(arms: Arms) -> None:
    trec_eval, house = (compare_arms(arms, "--metric", metric).stdout for metric in ("recall_100", "recall@100"))
    assert trec_eval == house
    assert "(recall@100, 40 queries, 2 seeds)" in house


class TestJson:
    def test_one_object_with_everything(self, arms: Arms) -> None:
        found = json.loads(compare_arms(arms, "--json", "--alpha", "0.1", "--iterations", "500").stdout)
        assert found["metric"] == "ndcg@10"
        assert found["queries"] == 40
        assert found["tir"]["rule"] == found["tir"]["label"] == "PASS"
        assert found["tir"]["interval"]["low"] < found["tir"]["interval"]["estimate"] < found["tir"]["interval"]["high"]
        assert [test["seed"] for test in found["paired_tests"]] == [None, 1, 2]
        assert {test["level"] for test in found["paired_tests"]} == {0.9}
        assert [run["path"] for run in found["runs"]["joint"]] == [str(path) for path in arms[1]]
        assert sum(case["share"] for case in found["drilldown"]) == pytest.approx(found["tir"]["interval"]["estimate"])

    def test_identical_runs_are_valid_json_too(self, arms: Arms) -> None:
        same = (arms[0], arms[0], arms[2])
        assert_refused(compare_arms(same, "--json"), 3, "holds the same", "--allow duplicates")
        found = json.loads(compare_arms(same, "--json", "--allow", "duplicates").stdout)
        assert found["tir"]["mean"] == 0.0
        assert found["tir"]["label"] == "FAIL"
        assert found["tir"]["interval"]["degrees_of_freedom"] is None
        assert found["drilldown"] == []

    def test_one_query_and_one_seed_are_valid_json_too(self, one_query: Arms) -> None:
        found = json.loads(compare_arms(one_query, "--json").stdout)
        assert found["tir"]["mean"] == pytest.approx(0.5)  # nDCG of ranks 1 and 3: 1 and 1/log2(4)
        assert found["tir"]["interval"] is None
        assert [test["p"] for test in found["paired_tests"]] == [1.0]

    def test_the_same_seed_gives_the_same_bits(self, arms: Arms) -> None:
        first, again, other = (compare_arms(arms, "--json", "--seed", seed).stdout for seed in ("1", "1", "2"))
        assert first == again
        assert first != other


def test_output_dir_gets_the_report(arms: Arms, tmp_path: Path) -> None:
    queries = tmp_path / "queries.tsv"
    queries.write_text("".join(f"q{q}\twhat of {q}?\n" for q in range(40)), encoding="utf-8")
    named = ("--specialist-name", "mono", "--joint-name", "all", "--queries", queries)
    done = compare_arms(arms, "--output-dir", tmp_path / "out", "--alpha", "0.2", *named)
    assert done.returncode == 0, done.stderr
    analysis = tmp_path / "out" / "analysis"
    report = (analysis / "report.md").read_text(encoding="utf-8")
    assert "all against mono" in report
    assert "80 %" in report  # the paired tests' level
    assert f"--specialist {arms[0][0]} {arms[0][1]}" in report
    assert "what of 39?" in (analysis / "report.html").read_text(encoding="utf-8")
    assert list((analysis / "tables").glob("*.tex"))
    assert f"Report: {analysis / 'report.html'}" in done.stdout


GATE = """
registered: 2020-01-01T00:00:00Z
gates:
  kill:
    kind: interference
    task: retrieval
    datasets: [q]
    metric: ndcg@10
    specialist: mono
    joint: {joint}
"""


class TestGates:
    def test_a_gate_judges_the_runs_and_sets_the_exit_code(self, arms: Arms, tmp_path: Path) -> None:
        gates = tmp_path / "gate.yaml"
        gates.write_text(GATE.format(joint="all"), encoding="utf-8")
        named = ("--specialist-name", "mono", "--joint-name", "all", "--gates", gates)
        done = compare_arms(arms, *named)
        assert done.returncode == 0, done.stderr
        assert "kill PASS" in done.stdout
        turned = compare_arms((arms[1], arms[0], arms[2]), *named, "--json")
        assert turned.returncode == 10
        assert json.loads(turned.stdout)["gates"]["exit_code"] == 10

    def test_a_gate_of_other_arms_is_named_and_the_comparison_still_shown(self, arms: Arms, tmp_path: Path) -> None:
        gates = tmp_path / "gate.yaml"
        gates.write_text(GATE.format(joint="all_of_them"), encoding="utf-8")
        done = compare_arms(arms, "--specialist-name", "mono", "--gates", gates)
        assert done.returncode == 3
        assert "Paired test" in done.stdout
        assert "all_of_them" in done.stderr.splitlines()[-1]


Damage = Callable[[Path, Path], object]


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "code", "words"),
        [
            (["--metric", "ndgc_cut_10"], 2, ["unknown metric 'ndgc_cut_10'", "did you mean 'ndcg_cut_10'?"]),
            (["--allow", "dpeth"], 2, ["--allow dpeth", "did you mean 'depth'?"]),
            (["--joint-name", "specialist"], 2, ["both arms are named 'specialist'"]),
            (["--queries", "nowhere.tsv"], 3, ["nowhere.tsv: no such file"]),
        ],
    )
    def test_options(self, arms: Arms, options: list[str], code: int, words: list[str]) -> None:
        assert_refused(compare_arms(arms, *options), code, *words)

    def test_an_arm_without_files(self, arms: Arms) -> None:
        done = compare("--specialist", *arms[0], "--qrels", arms[2])
        assert done.returncode == 2
        assert "--joint" in done.stderr

    def test_a_stray_word(self, arms: Arms) -> None:
        done = compare_arms(arms, "stray")
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
        "import sys\nfrom unimoe.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print(*sorted({'torch', 'transformers', 'peft'} & set(sys.modules)), file=sys.stderr)"
    )
    (a1, a2), (b1, b2), qrels = arms
    command = [sys.executable, "-c", code, "compare", "--specialist", a1, a2, "--joint", b1, b2, "--qrels", qrels]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True)
    assert "Rule             PASS" in done.stdout
    assert done.stderr.splitlines()[-1] == ""


def test_real_systems(unimoe_data: Path) -> None:
    pool = unimoe_data / "trec-dl19-passage-pool"
    names = ("splade_p_p_ensemble_distil", "rep_llama", "bm25", "bm25_rm3")
    runs = [pool / "runs" / f"{name}.trec" for name in names]
    done = compare_arms((runs[:2], runs[2:], pool / "qrels" / "full.tsv"), "--joint-name", "bm25")
    text = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stderr
    assert "Retrieval on full: bm25 against specialist (ndcg@10, 43 queries, 2 seeds)" in text
    assert "With confidence PASS" in text
