"""``unimoe compare`` on what people give it: systems without training, files given twice, one run for several qrels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.docs import code_blocks
from support.results import gate_file
from support.runs import compare, random_qrels, random_run, words_of
from support.scripts import assert_refused, call_script, call_unimoe, successful

import unimoe
from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import Qrels, Run, write_qrels, write_run
from unimoe.formats.qrels import read_qrels
from unimoe.results import seed_name

RNG = np.random.default_rng(5)
QRELS: Qrels = random_qrels(40, RNG)
RUNS: dict[str, Run] = {name: random_run(QRELS, noise, RNG) for name, noise in (("bm25", 2.0), ("new", 0.9))}
TRAINED: list[Run] = [random_run(QRELS, 1.0, RNG) for _ in range(3)]
SHIP = {
    "kind": "superiority",
    "task": "retrieval",
    "system": "new",
    "baseline": "bm25",
    "margin": 0.02,
    "datasets": ["q"],
    "metric": "ndcg@10",
}
SEEDS = re.compile(r"another training seed|train two more|single run|[⁽(]ᵃ[⁾)]|One run of|(?<!random )seeds? 0")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of two systems, of one with three trainings, and two qrels of the same queries."""
    for name, run in (*RUNS.items(), *((f"mono-{number}", run) for number, run in enumerate(TRAINED))):
        write_run(tmp_path / "runs" / f"{name}.trec", run, tag=name)
    strict = {query_id: {d: max(0, grade - 1) for d, grade in of.items()} for query_id, of in QRELS.items()}
    write_qrels(tmp_path / "q.tsv", QRELS)
    write_qrels(tmp_path / "strict.tsv", {q: of | {"d0": 1} for q, of in strict.items()})
    monkeypatch.chdir(tmp_path)
    return tmp_path


TWO = ("--qrels", "q.tsv", "--baseline", "runs/bm25.trec", "--systems", "runs/new.trec")


class TestUntrained:
    def test_a_gate_between_two_of_them_decides_by_queries(self, here: Path) -> None:
        gates = gate_file(here, ship=SHIP)
        done = successful(compare(*TWO, "--untrained", "bm25", "new", "--gates", gates, "--output-dir", "out"))
        assert "BETTER: ship (gate: PASS, go on)" in done.stdout
        assert SEEDS.search(words_of(done)) is None
        assert "for other queries" in words_of(done)
        for page in ("report.md", "report.html"):
            assert SEEDS.search((here / "out" / "analysis" / page).read_text("utf-8")) is None
        assert sorted(path.name for path in (here / "out").glob("*/seed_*")) == [seed_name(None)] * 2
        again = call_script("analyze_results.py", "verdicts", "--output-dir", "out", "--json")
        assert json.loads(successful(again).stdout)["gates"][0]["label"] == "PASS"
        turned = gate_file(here, ship=SHIP | {"system": "bm25", "baseline": "new"})
        assert compare(*TWO, "--untrained", "bm25", "new", "--gates", turned).returncode == 10

    @pytest.mark.parametrize("kind", ["superiority", "non_inferiority", "equivalence"])
    def test_one_run_of_a_trained_model_decides_nothing(self, here: Path, kind: str) -> None:
        gates = gate_file(here, ship=SHIP | {"kind": kind})
        done = compare(*TWO, "--untrained", "bm25", "--gates", gates)
        assert done.returncode == 12
        assert "one seed of new: other training seeds cannot be judged by it" in words_of(done)
        assert "untrained" in words_of(done)

    def test_against_three_trainings_other_seeds_count_without_brackets(self, here: Path) -> None:
        given = ("--qrels", "q.tsv", "--baseline", "runs/bm25.trec", "--systems", "mono=runs/mono-*.trec", "--json")
        plain, without = (json.loads(compare(*given, *more).stdout) for more in ((), ("--untrained", "bm25")))
        (single,), (row,) = plain["comparisons"], without["comparisons"]
        assert (single["low"], single["p"]) == (row["low"], row["p"])
        assert (single["holds_for"], row["holds_for"]) == ("queries, seeds of one arm", "seeds and queries")
        assert [score["beats"] for score in plain["scores"] + without["scores"]] == ["", "(a)", "", "a"]

    def test_what_evaluate_wrote_is_known_by_its_folder(self, here: Path) -> None:
        for name, run in RUNS.items():
            write_run(here / "out" / name / seed_name(None) / "runs" / "retrieval" / "q.trec", run, tag=name)
        given = ("--qrels", "q.tsv", "--systems", *(f"{n}=out/{n}/seed_none/runs/retrieval/q.trec" for n in RUNS))
        assert {run["seed"] for run in json.loads(compare(*given, "--json").stdout)["runs"]} == {None}

    def test_python_takes_their_names_and_refuses_two_runs_of_one(self) -> None:
        found = unimoe.compare({**RUNS, "mono": TRAINED}, QRELS, untrained=["bm25", "new"])
        assert {name: [*seeds] for name, seeds in found.results.items()} == {
            "bm25": [None],
            "new": [None],
            "mono": [0, 1, 2],
        }
        gates = {"ship": SHIP | {"datasets": ["dataset"]}}
        assert unimoe.judge(found, gates)[0].label == "PASS"
        with pytest.raises(
            UsageError, match=r"mono is untrained, and has 3 runs on dataset \(mono run 0, mono run 1\)"
        ):
            unimoe.compare({**RUNS, "mono": TRAINED}, QRELS, untrained=["mono"])
        with pytest.raises(UsageError, match=r"unknown arm 'bm52' \(did you mean 'bm25'\?\)"):
            unimoe.compare(RUNS, QRELS, untrained="bm52")


class TestGivenTwice:
    def systems(self, *options: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        done = compare("--qrels", "q.tsv", *options, "--json")
        for run in json.loads(successful(done).stdout)["runs"]:
            found.setdefault(run["system"], []).append(run["path"])
        return found

    def test_a_baseline_that_the_shell_expands_again_is_one_system(self, here: Path) -> None:
        expanded = [str(path) for path in sorted(Path("runs").glob("[bn]*.trec"))]
        once = {"bm25": ["runs/bm25.trec"], "new": ["runs/new.trec"]}
        assert self.systems("--baseline", "./runs/bm25.trec", "--systems", *expanded) == once
        assert self.systems("--systems", *expanded, f"{here}/runs/bm25.trec") == once
        named = self.systems("--baseline", "first=runs/bm25.trec", "--systems", *expanded)
        assert named == {"first": ["runs/bm25.trec"], "new": ["runs/new.trec"]}

    def test_a_pattern_leaves_out_what_is_given_by_name(self, here: Path) -> None:
        found = self.systems("--baseline", "runs/mono-1.trec", "--systems", "mono=runs/mono-*.trec")
        assert found == {"mono-1": ["runs/mono-1.trec"], "mono": ["runs/mono-0.trec", "runs/mono-2.trec"]}
        done = compare("--qrels", "q.tsv", "--systems", "runs/new.trec", "x=runs/n*.trec")
        assert_refused(done, 2, "--systems runs/n*.trec: finds only files that are given by name; leave it out")

    def test_equal_names_have_the_shortest_ending_that_tells_them_apart(self, here: Path) -> None:
        for folder, run in zip(("a", "b"), RUNS.values(), strict=True):
            write_run(here / "deep" / folder / "bm25.trec", run, tag="x")
        write_run(here / "deep" / "b" / "bm25.run", TRAINED[0], tag="x")
        given = [f"{here}/deep/{name}" for name in ("a/bm25.trec", "b/bm25.trec", "b/bm25.run")]
        assert [*self.systems("--systems", *given[:2])] == ["a-bm25", "b-bm25"]
        assert [*self.systems("--systems", *given)] == ["a-bm25", "bm25.trec", "bm25.run"]
        for folder in ("x", "y"):
            write_qrels(here / folder / "q.tsv", QRELS)
        done = compare("--dataset", "x/q.tsv", "y/q.tsv", "x/../x/q.tsv", "--systems", *given[:2], "--json")
        assert [*json.loads(successful(done).stdout)["datasets"]] == ["retrieval/x-q", "retrieval/y-q"]


class TestOneRunForSeveralQrels:
    def test_serves_each_and_says_that_they_share_queries(self, here: Path) -> None:
        done = compare("--dataset", "q.tsv", "strict.tsv", "--baseline", "runs/bm25.trec", "--systems", "runs/new.trec",
                       "mono=runs/mono-*.trec", "--untrained", "bm25", "new", "--json")  # fmt: skip
        found = json.loads(successful(done).stdout)
        assert {(r["system"], r["dataset"], r["seed"]) for r in found["runs"]} == {
            (name, dataset, seed)
            for name, seeds in (("bm25", [None]), ("new", [None]), ("mono", [0, 1, 2]))
            for dataset in ("q", "strict")
            for seed in seeds
        }
        said = [line for line in found["warnings"] if "topics" in line]
        assert said == [
            "40 of 40 topics stand in several retrieval datasets, and are drawn with all of them: averages count "
            "topics; if only their ids coincide, say --topics separate"
        ]
        compared = unimoe.compare(RUNS | {"mono": TRAINED}, {"q": "q.tsv", "strict": "strict.tsv"}, baseline="bm25")
        rows = {(row["dataset"], row["system"]): row["mean"] for row in compared.score_rows}
        assert rows == pytest.approx({(row["dataset"], row["system"]): row["mean"] for row in found["scores"]})
        assert said[0] in compared.warnings

    def test_leaves_out_a_dataset_of_other_queries_and_names_it(self, here: Path) -> None:
        other: Qrels = {f"z{query_id}": of for query_id, of in QRELS.items()}
        write_qrels(here / "other.tsv", other)
        renamed = {name: {f"z{query_id}": of for query_id, of in run.items()} for name, run in RUNS.items()}
        both: dict[str, Any] = {
            "bm25": [RUNS["bm25"], renamed["bm25"]],
            "new": [RUNS["new"], renamed["new"]],
            "mono": TRAINED[0],
        }
        found = unimoe.compare(both, {"q": "q.tsv", "other": "other.tsv"})
        assert {(row["dataset"], row["system"]) for row in found.score_rows} == {
            *(("q", name) for name in both), ("other", "bm25"), ("other", "new"),
        }  # fmt: skip
        assert "mono: no run of it holds judged queries of other" in found.warnings


class TestQueriesThatDiffer:
    @pytest.mark.parametrize("form", ["tsv", "jsonl"])
    def test_are_shown_by_pair_with_the_baseline(self, here: Path, form: str) -> None:
        lines = [json.dumps({"_id": q, "text": f"about <b> {q}", "metadata": {}}) for q in QRELS]
        path = here / f"texts.{form}"
        path.write_text("\n".join(lines if form == "jsonl" else [f"{q}\tabout <b> {q}" for q in QRELS]), "utf-8")
        given = ("--qrels", "q.tsv", "--baseline", "runs/bm25.trec", "--queries", path, "--systems", "runs/new.trec")
        done = successful(compare(*given, "runs/mono-0.trec", "--output-dir", "out"))
        for pair in ("new against bm25, nDCG@10 on q", "mono-0 against bm25, nDCG@10 on q"):
            assert pair in done.stdout
        assert "mono-0 against new, " not in done.stdout
        assert "The 10 queries with the largest differences" in words_of(done)
        cases = json.loads(successful(compare(*given, "runs/mono-0.trec", "--json")).stdout)["drilldown"]
        assert {tuple(case["arms"]) for case in cases} == {("new", "bm25"), ("mono-0", "bm25")}
        first = cases[0]
        assert first["text"] == f"about <b> {first['query_id']}"
        assert f"{first['query_id']}: {first['text']}" in words_of(done)
        shares = [case["share"] for case in cases if case["arms"] == ["new", "bm25"]]
        wanted = unimoe.compare(RUNS, QRELS, baseline="bm25").test_rows[0]["difference"]
        assert sum(shares) == pytest.approx(wanted)
        report = (here / "out" / "analysis" / "report.html").read_text("utf-8")
        assert "about &lt;b&gt; q" in report
        assert "about <b> q" not in report
        again = successful(call_script("analyze_results.py", "--output-dir", "out"))
        assert again.stdout
        assert "about &lt;b&gt; q" in (here / "out" / "analysis" / "report.html").read_text("utf-8")

    def test_a_line_that_is_neither_form_is_named(self, here: Path) -> None:
        (here / "texts.jsonl").write_text('{"_id": "q0", "text": "a"}\n{"id": "q1"}\n', "utf-8")
        done = compare(*TWO, "--queries", "texts.jsonl")
        assert_refused(done, 3, "texts.jsonl:2: not a line of query id, tab, text, nor JSON with `_id` and `text`")


def test_a_gate_names_all_that_is_wrong_with_it_at_once(here: Path) -> None:
    wrong: dict[str, Any] = SHIP | {"margin": 2, "metrik": "x", "datasets": "q"}
    done = compare(*TWO, "--gates", gate_file(here, ship=wrong, other=SHIP | {"kind": "superior"}))
    last = ["gates.ship.margin: 2 means 200 %", "gates.ship.metrik: unknown key (did you mean 'metric'?)"]
    assert_refused(done, 3, *last, "gates.ship.datasets: must be a list", "(did you mean 'superiority'?)")
    wrong = SHIP | {"system": "knew", "datasets": ["q", "p"]}
    done = compare(*TWO, "--gates", gate_file(here, a=wrong, b=SHIP | {"baseline": "bm52"}))
    assert done.returncode == 3
    first, second = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    for words in ("no results of arm 'knew' (did you mean 'new'?)", "no retrieval/p result of bm25"):
        assert words in first
    assert "'bm52'" in second
    found = unimoe.compare(RUNS, {"q": QRELS})
    with pytest.raises(DataError, match=r"gate 'a': .*'knew'.* no per-query 'p@7' .*; gate 'b': .*'bm52'"):
        unimoe.judge(found, {"a": SHIP | {"system": "knew", "metric": "P@7"}, "b": SHIP | {"baseline": "bm52"}})


def test_a_table_of_tickets_becomes_an_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of ``docs/ship.md``, from its first command to its last, with its gate file."""
    monkeypatch.chdir(tmp_path)
    (page,) = (
        of for of in code_blocks(Path(__file__).parents[3] / "docs" / "ship.md", "yaml") if "registered" in of.text
    )
    (tmp_path / "tickets.yaml").write_text(page.text, "utf-8")
    rows = [f"how do I reset {q}?,press button {d} of device {q},{int(d < 2)}" for q in range(30) for d in range(6)]
    (tmp_path / "tickets.csv").write_text("\n".join(["query,document,label", *rows]), "utf-8")
    successful(call_unimoe("import", "--table", "tickets.csv", "--output-dir", "tickets"))
    judged = read_qrels(tmp_path / "tickets" / "qrels" / "test.tsv")
    for name, noise in (("old", 2.0), ("new", 0.1)):
        run = {q: {d: grade + RNG.normal(0.0, noise) for d, grade in of.items()} for q, of in judged.items()}
        write_run(tmp_path / f"{name}.trec", run, tag=name)
    given = (
        "--dataset",
        "tickets=tickets/qrels/test.tsv",
        "--gates",
        "tickets.yaml",
        "--queries",
        "tickets/queries.jsonl",
    )
    done = successful(compare(*given, "--untrained", "old", "new", "--baseline", "old.trec", "--systems", "new.trec"))
    assert "BETTER: better (gate: PASS, go on)" in done.stdout
    assert "how do I reset" in done.stdout
    assert "real numbers" not in done.stderr
    turned = ("--untrained", "old", "new", "--baseline", "old=new.trec", "--systems", "new=old.trec")
    assert compare(*given, *turned).returncode == 10


@pytest.mark.parametrize("name", ["new.json", "new.csv", "new.jsonl"])
def test_a_run_of_any_make_is_a_system_named_by_its_file(here: Path, name: str) -> None:
    """A run in JSON is no result of ours, though both end in ``.json``."""
    rows = [(q, d, score) for q, of in RUNS["new"].items() for d, score in of.items()]
    records = [json.dumps({"qid": q, "docno": d, "score": score}) for q, d, score in rows]
    lines = {"new.csv": ["qid,docno,score", *(f"{q},{d},{score!r}" for q, d, score in rows)], "new.jsonl": records}
    (here / name).write_text("\n".join(lines.get(name, [json.dumps(RUNS["new"])])), "utf-8")
    shown = [successful(compare(*TWO[:-1], path, "--json")).stdout for path in (name, "runs/new.trec")]
    assert len({json.dumps(json.loads(one)["comparisons"]) for one in shown}) == 1
