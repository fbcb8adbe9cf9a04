"""``unimoe compare`` refuses what should not be compared, in one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.compare_command import Arms, compare, compare_arms
from support.runs import dataset_options, run_with_ranks
from support.scripts import assert_refused

from unimoe.core.trec import write_run

Damage = Callable[[Path, Path], object]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--metric", "ndgc_cut_10"], 2, ["unknown metric 'ndgc_cut_10'", "did you mean 'ndcg_cut_10'?"]),
        (["--metric", "ndcg@10", "map"], 2, ["--metric ndcg@10 map", "one metric"]),
        (["--allow", "dpeth"], 2, ["--allow dpeth", "did you mean 'depth'?"]),
        (["--joint-name", "specialist"], 2, ["both arms are named 'specialist'"]),
        (["--queries", "nowhere.tsv"], 3, ["nowhere.tsv: no such file"]),
        (["--paired"], 2, ["equal in number", "2 of specialist, 3 of joint on q"]),
        (["--overwrite"], 2, ["--output-dir"]),
        (["--systems", "c.trec"], 2, ["--systems does not belong here", "a verdict"]),
        (["--results", "outputs"], 2, ["--results does not belong here"]),
        (["--layout", "datasets"], 2, ["--layout does not belong here", "a verdict"]),
        (["--max-queries", "3"], 2, ["--max-queries is for models by name, and there are none; leave it out"]),
        (["--gates", "nowhere.yaml"], 3, ["nowhere.yaml"]),
        (["--gates", "x.yaml", "--looks", "3"], 2, ["write `looks` into the gate file"]),
        (["--looks", "5", "3"], 2, ["--looks 5 3: ", "does not ascend"]),
        (["--dataset", "a", "b"], 2, ["--dataset NAME=QRELS"]),
        (["--dataset", "x=other.qrels"], 2, ["--dataset x=other.qrels: --qrels names the judgments already"]),
    ],
)
def test_of_verdicts(arms: Arms, options: list[str], code: int, words: list[str]) -> None:
    assert_refused(compare_arms(arms, *options), code, *words)


def test_of_tables(systems: Path) -> None:
    here, two = dataset_options(systems, ["dl19"]), dataset_options(systems, ["dl19", "dl20"])
    bm25, mono = f"{systems}/dl19/bm25.trec", f"{systems}/{{dataset}}/mono-seed*.trec"
    for options, code, words in (
        ([*here, "--systems", bm25, "nothing-*.trec"], 3, ["--systems nothing-*.trec: no file matches"]),
        ([*here, "--systems", bm25, "nothing.trec"], 3, ["nothing.trec: no such file"]),
        ([*two, "--systems", bm25, mono], 2, ["--systems", "the same files for 2 datasets", "{dataset}"]),
        ([*here, "--systems", f"a={bm25}", f"a={mono}"], 2, ["two systems are named 'a'"]),
        ([*here, "--systems", f"a={bm25}", f"b={bm25}"], 3, ["holds the same rankings", "--allow duplicates"]),
        ([*here, "--baseline", bm25], 2, ["only bm25 to compare"]),
        ([*here, *here[1:], "--systems", bm25, mono], 2, ["two datasets are named 'dl19'"]),
        (["--systems", bm25, mono], 2, ["no judgments", "--qrels FILE"]),
        ([*here, "--systems", bm25, mono, "--pairs", "baseline"], 2, ["--baseline"]),
        ([*here, "--systems", bm25, mono, "--layout", "rows"], 2, ["--layout"]),
        ([*here, "--systems", bm25, mono, "--gates", "kill"], 2, ["--gates does not belong here"]),
        (["--example", "--qrels", "q.tsv"], 2, ["leave it out, or --qrels"]),
        ([*here], 2, ["nothing to compare"]),
        (["--specialist", bm25, *here], 2, ["no run file of joint", "--joint"]),
    ):
        assert_refused(compare(*options), code, *words)


@pytest.mark.usefixtures("without_report")
def test_of_folders(arms: Arms, tmp_path: Path) -> None:
    out = tmp_path / "out"
    compare_arms(arms, "--output-dir", out)
    cases: list[tuple[list[str | Path], int, list[str]]] = [
        ([tmp_path / "none"], 3, ["no results here"]),
        ([out, "--systems", "jiont"], 2, ["unknown arm 'jiont'", "did you mean 'joint'?"]),
        ([out, "--baseline", "bm25"], 2, ["unknown arm 'bm25'"]),
        ([out, "--dataset", "z"], 2, ["--dataset z", "retrieval/q"]),
        ([out, "--systems", "joint"], 2, ["only joint to compare"]),
        ([out, "--metric", "ERR@20"], 3, ["no per-query 'ERR@20'"]),
        ([out, "--paired"], 2, ["--paired does not belong here"]),
        ([out, "--output-dir", out], 2, ["choose another folder"]),
    ]
    for options, code, words in cases:
        assert_refused(compare("--results", *options), code, *words)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda run, _: run.unlink(), ["b1.trec: no such file"]),
        (lambda _, qrels: qrels.unlink(), ["q.tsv: no such file"]),
        (lambda run, _: run.write_text(""), ["b1.trec: no line in it"]),
        (lambda run, _: run.write_text("q8 Q0 d 1 2 t\n"), ["q.tsv: judges none of", "b1.trec", "'q8'"]),
        (
            lambda run, _: write_run(run, run_with_ranks({"q1": 2}, depth=4), tag="t"),
            ["b1.trec ends at depth 4", "a1.trec at 10", "--depth 4", "--allow depth"],
        ),
    ],
)
def test_of_files(one_query: Arms, damage: Damage, words: list[str]) -> None:
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
    assert "INTERFERENCE: interference (gate: PASS" in done.stdout
    assert done.stderr.splitlines()[-1] == ""
