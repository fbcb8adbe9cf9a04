"""``unimoe compare`` with two arms: the verdict, with gates, and into a folder that can be judged again."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from support import runs as made
from support.results import gate_file
from support.scripts import Done, assert_refused, call_script, successful

from unimoe.formats.runs import read_run
from unimoe.metrics import score_run
from unimoe.results import read_result, result_path


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> made.Arms:
    """Two seeds of a good specialist and three of a joint model that is clearly worse, on 40 queries."""
    rng = np.random.default_rng(3)
    qrels = made.random_qrels(40, rng)
    good, poor = ([made.random_run(qrels, noise, rng) for _ in range(seeds)] for noise, seeds in ((0.5, 2), (3.0, 3)))
    return made.write_arms(tmp_path_factory.mktemp("runs"), qrels, good, poor)


@pytest.fixture
def one_query(tmp_path: Path) -> made.Arms:
    runs = [[made.run_with_ranks({"q1": rank})] for rank in (1, 3)]
    return made.write_arms(tmp_path, made.one_relevant("q1"), *runs)


def test_says_one_judgment_scores_and_queries(arms: made.Arms) -> None:
    done = successful(made.compare_arms(arms))
    text = made.words_of(done)
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


def test_texts_of_queries_and_ranks_of_relevant_documents(one_query: made.Arms, tmp_path: Path) -> None:
    queries = tmp_path / "queries.tsv"
    queries.write_text("q1\twhat is [red] here?\n", encoding="utf-8")
    text = made.words_of(made.compare_arms(one_query, "--queries", queries))
    assert "what is [red] here?" in text
    assert "1 → 3" in text


@pytest.mark.usefixtures("without_figures")
def test_a_relevance_level_counts_and_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    qrels = made.random_qrels(20, rng)
    a, b, q = made.write_arms(
        tmp_path, qrels, *[[made.random_run(qrels, n, rng) for _ in range(2)] for n in (1.0, 2.0)]
    )
    assert "--relevance-level 2" in made.compare_arms((a, b, q), "--metric", "map").stderr
    Path(f"{q}.json").write_text('{"name": "dl20", "relevance_level": 2}', encoding="utf-8")
    done = made.compare_arms((a, b, q), "--metric", "map", "--output-dir", tmp_path / "out")
    analysis = tmp_path / "out" / "analysis"
    assert "Relevance level 2 on dl20" in done.stdout
    assert "MAP (relevant from grade 2)" in (analysis / "tables" / "gates.md").read_text(encoding="utf-8")
    assert "relevance level 2" in (analysis / "report.md").read_text(encoding="utf-8")
    stored = read_result(result_path(tmp_path / "out", "joint", 1, "retrieval", "dl20"))
    assert stored.relevance_level == 2
    assert stored.aggregate["map"] == score_run(qrels, read_run(b[1]), ["AP(rel=2)"]).aggregate["AP(rel=2)"]


NAMED = ("--specialist-name", "mono", "--joint-name", "all")
KILL = {
    "kind": "interference",
    "task": "retrieval",
    "datasets": ["q"],
    "metric": "ndcg@10",
    "specialist": "mono",
    "joint": "all",
    "pass_at": 0.1,
    "fail_below": 0.08,
}


@pytest.mark.usefixtures("without_figures")
def test_one_ranking_scaled_by_two_and_three_is_one_run_of_a_system_wherever_it_is_compared(tmp_path: Path) -> None:
    """Three copies with other scores, and so other hashes, were three seeds: PASS with confidence .99, exit code 0."""
    rng = np.random.default_rng(3)
    qrels = made.random_qrels(40, rng)
    copies = [
        [{q: {d: factor * s for d, s in of.items()} for q, of in run.items()} for factor in (1.0, 2.0, 3.0)]
        for run in (made.random_run(qrels, noise, rng) for noise in (0.5, 3.0))
    ]
    thrice = made.write_arms(tmp_path, qrels, *copies)
    done = made.compare_arms(thrice, *NAMED, "--gates", gate_file(tmp_path, kill=KILL))
    assert done.returncode == 12, done.stdout
    said = made.words_of(done)
    assert "UNDECIDED: kill (gate: INCONCLUSIVE" in said
    assert "one seed of mono and all: other training seeds cannot be judged by it" in said
    assert "Note all seed 0, all seed 1, all seed 2 have the same score on every query of retrieval/q: they are" in said

    kept = tmp_path / "kept"
    given = ("--systems", f"{tmp_path}/a*.trec", thrice[1][0], "--qrels", thrice[2], "--output-dir", kept)
    done = made.compare(*given, "--json")
    table = json.loads(done.stdout)
    assert {row["system"]: row["runs"] for row in table["scores"]} == {"a": 1, "b1": 1}
    assert any("a seed 0, a seed 1, a seed 2 have the same score" in warning for warning in table["warnings"])
    assert "they are one run" in done.stderr
    assert "they are one run" in (kept / "analysis" / "report.md").read_text("utf-8")


def test_a_gate_judges_the_runs_and_sets_the_exit_code(arms: made.Arms, tmp_path: Path) -> None:
    gates = gate_file(tmp_path, kill=KILL)
    done = successful(made.compare_arms(arms, *NAMED, "--gates", gates))
    assert "INTERFERENCE: kill (gate: PASS" in done.stdout
    assert "PASS from 10 %, FAIL below 8 %" in done.stdout
    for number in ("PASS from 2 %", "2 % or more", "FAIL below 1 %"):
        assert number not in done.stdout
    turned = made.compare_arms((arms[1], arms[0], arms[2]), *NAMED, "--gates", gates, "--json")
    assert turned.returncode == json.loads(turned.stdout)["gates"]["exit_code"] == 10


def test_a_gate_of_other_arms_is_named_and_the_comparison_still_shown(arms: made.Arms, tmp_path: Path) -> None:
    done = made.compare_arms(arms, *NAMED, "--gates", gate_file(tmp_path, kill=KILL | {"joint": "all_of_them"}))
    assert done.returncode == 3
    assert "Scores of all systems" in done.stdout
    assert "all_of_them" in done.stderr.splitlines()[-1]


def verdicts(folder: Path) -> Done:
    return call_script("analyze_results.py", "verdicts", "--output-dir", folder, "--json")


@pytest.mark.usefixtures("without_report")
def test_a_comparison_that_cannot_be_written_leaves_nothing_of_the_one_before(
    arms: made.Arms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    made.compare_arms(arms, "--output-dir", out)
    (out / "analysis").mkdir()
    (out / "analysis" / "report.md").touch()

    def full(_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("unimoe.analysis.report.write_report", full)
    done = made.compare_arms((arms[1], arms[0], arms[2]), "--output-dir", out, "--overwrite")
    assert_refused(done, 3, "no room is left")
    assert not list((out / "analysis").iterdir())


@pytest.mark.usefixtures("without_report")
def test_another_comparison_is_refused_or_replaces_it_and_other_results_stay(arms: made.Arms, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fewer = (arms[0], arms[1][:2], arms[2])
    place = "joint/seed_0/results/retrieval/q.json"
    for _ in range(2):  # the same once more is no other
        assert made.compare_arms(arms, "--output-dir", out).returncode == 0
    remedy = ("choose another --output-dir, or --overwrite",)
    for files, options, words in (
        (fewer, [], ["also holds joint/seed_2/results/retrieval/q.json"]),
        (arms, ["--metric", "map"], ["has another", place]),
        (arms, ["--dataset", "other"], ["lacks joint/seed_0/results/retrieval/other.json"]),
    ):
        assert_refused(made.compare_arms(files, "--output-dir", out, *options), 3, str(out), *words, *remedy)
    assert made.compare_arms(fewer, "--output-dir", out, "--overwrite").returncode == 0
    assert not (out / "joint" / "seed_2").exists()
    assert verdicts(out).returncode == 0
    assert made.compare_arms(arms, "--output-dir", out, "--metric", "map", "--overwrite").returncode == 0
    assert json.loads(verdicts(out).stdout)["gates"][0]["gate"]["metric"] == "map"
    (out / "comparison.json").unlink()
    done = made.compare_arms(arms, "--output-dir", out, "--overwrite")
    assert_refused(done, 3, "holds results that no comparison made", "another --output-dir")
    assert (out / "joint" / "seed_1").exists()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ("--metric ndcg@10 map", 2, ["--metric ndcg@10 map", "one metric"]),
        ("--allow dpeth", 2, ["--allow dpeth", "did you mean 'depth'?"]),
        ("--joint-name specialist", 2, ["both arms are named 'specialist'"]),
        ("--queries nowhere.tsv", 3, ["nowhere.tsv: no such file"]),
        ("--paired", 2, ["equal in number", "2 of specialist, 3 of joint on q"]),
        ("--overwrite", 2, ["--output-dir"]),
        ("--systems c.trec", 2, ["--systems does not belong here", "a verdict"]),
        ("--results outputs", 2, ["--results does not belong here"]),
        ("--layout datasets", 2, ["--layout does not belong here", "a verdict"]),
        ("--max-queries 3", 2, ["--max-queries is for models by name, and there are none; leave it out"]),
        ("--models-dir x", 2, ["--models-dir is for models by name, and there are none; leave it out"]),
        ("--device cpu", 2, ["--device is for models by name, and there are none; leave it out"]),
        ("--gates nowhere.yaml", 3, ["nowhere.yaml"]),
        ("--gates x.yaml --looks 3", 2, ["write `looks` into the gate file"]),
        ("--looks 5 3", 2, ["--looks 5 3: ", "does not ascend"]),
        ("--dataset a b", 2, ["--dataset NAME=QRELS"]),
        ("--dataset x=other.qrels", 2, ["--dataset x=other.qrels: --qrels names the judgments already"]),
    ],
)
def test_an_option_that_a_verdict_cannot_have_is_refused(
    arms: made.Arms, options: str, code: int, words: list[str]
) -> None:
    assert_refused(made.compare_arms(arms, *options.split()), code, *words)


@pytest.mark.usefixtures("without_report")
def test_what_a_folder_does_not_hold_is_refused(arms: made.Arms, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made.compare_arms(arms, "--output-dir", out)
    for options, code, words in (
        (["--systems", "jiont"], 2, ["unknown arm 'jiont'", "did you mean 'joint'?"]),
        (["--baseline", "bm25"], 2, ["unknown arm 'bm25'"]),
        (["--dataset", "z"], 2, ["--dataset z", "retrieval/q"]),
        (["--systems", "joint"], 2, ["only joint to compare"]),
        (["--metric", "ERR@20"], 3, ["no per-query 'ERR@20'"]),
        (["--paired"], 2, ["--paired does not belong here"]),
        (["--output-dir", out], 2, ["choose another folder"]),
    ):
        assert_refused(made.compare("--results", out, *options), code, *words)
    assert_refused(made.compare("--results", tmp_path / "none"), 3, "no results here")


def test_runs_and_judgments_that_do_not_fit_are_refused(one_query: made.Arms) -> None:
    (_, (run,), qrels) = one_query
    for text, words in (("", ["b1.trec: no line in it"]), ("q8 Q0 d 1 2 t\n", ["judges none of", "b1.trec", "'q8'"])):
        run.write_text(text)
        assert_refused(made.compare_arms(one_query), 3, *words)
    run.unlink()
    assert_refused(made.compare_arms(one_query), 3, "b1.trec: no such file")
    qrels.unlink()
    assert_refused(made.compare_arms(one_query), 3, "q.tsv: no such file")
