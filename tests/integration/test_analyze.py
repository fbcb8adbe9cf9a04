"""``analyze``: what it writes, verdicts with their exit codes, folders that are wrong and that hold little.

At the end ``evaluate-run``, which judges one run file.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.results import INTERFERENCE, gate_file, make_result, without_queries, write_experiment
from support.scripts import Done, assert_refused, call_script, call_unimoe, successful

from unimoe.core.io import hash_file
from unimoe.core.trec import Qrels, Run, write_qrels, write_run
from unimoe.results import DrillDown, QueryDetail, read_result, write_result


def analyze(folder: Path, *arguments: str | Path) -> Done:
    return call_script("analyze_results.py", *arguments, "--output-dir", folder, "--iterations", "100", COLUMNS="100")


def test_a_part_alone_writes_nothing_else_and_two_runs_write_the_same_report(tmp_path: Path) -> None:
    caveats = ["smoke run: unfit for decisions"]
    write_experiment(tmp_path, arms=("rank_only_r8", "joint_r8"), seeds=(0, 1), queries=10, caveats=caveats)
    analysis, written = tmp_path / "analysis", []
    for part, names in (("tables", {"tables"}), ("figures", {"tables", "figures"})):
        successful(analyze(tmp_path, part))
        assert {path.name for path in analysis.iterdir()} == names
    for _ in range(2):
        successful(analyze(tmp_path, "report"))
        written.append({path.name: path.read_bytes() for path in analysis.rglob("*") if path.is_file()})
    assert written[0] == written[1]
    report = (analysis / "report.md").read_text(encoding="utf-8")
    assert report.index("smoke run") < report.index("## Verdicts")


def verdicts(output_dir: Path, *arguments: str | Path) -> Done:
    return call_script("analyze_results.py", "verdicts", "--output-dir", output_dir, *arguments)


def steady(output_dir: Path, tir: float) -> None:
    """A folder where the joint arm loses a share of rank_only's score on every query, nearly alike for all seeds."""
    rng, base = np.random.default_rng(3), np.linspace(0.3, 0.7, 40)
    for seed in range(3):
        for arm, factor in (("rank_only_r8", 1.0), ("joint_r8", 1.0 - tir)):
            write_result(output_dir, make_result(arm, seed, (factor * base + rng.normal(0.0, 0.003, 40)).tolist()))


@pytest.mark.parametrize(
    ("tir", "code", "words"),
    [
        (0.1, 0, "interference, 2 % or more."),
        (-0.002, 10, "no interference worth a split, less than 1 %"),  # behind, but it may be ahead
        (-0.1, 10, "no interference, the joint model is ahead"),
        (0.015, 11, "interference between 1 % and 2 %."),
    ],
)
def test_the_label_decides_the_exit_code(tmp_path: Path, tir: float, code: int, words: str) -> None:
    steady(tmp_path, tir)
    path = gate_file(tmp_path, kill=INTERFERENCE)
    done = verdicts(tmp_path, "--gates", path)
    assert done.returncode == code, done.stderr
    assert words in (said := " ".join(done.stdout.split()))
    assert "nobody has registered the number of seeds" in said  # though a file registers the gate
    assert hash_file(path) in done.stdout
    assert f"Exit code {code}: kill " in done.stdout


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
    (note,) = json.loads(verdicts(tmp_path, "--json").stdout)["gates"][0]["notes"]
    assert note.startswith("1 of 40 queries of reranking/apidocs repeat another, such as 'q011' and 'q010'")


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


def test_other_gates_than_those_registered_judge_when_asked_to_and_the_difference_is_said(tmp_path: Path) -> None:
    steady(tmp_path / "out", 0.015)
    copy = gate_file(tmp_path / "out", kill=INTERFERENCE)
    other = gate_file(tmp_path, kill=INTERFERENCE | {"pass_at": 0.01, "fail_below": 0.005})
    said = " ".join(successful(verdicts(tmp_path / "out", "--gates", other)).stdout.split())
    assert f"{copy} registers other gates, hash {hash_file(copy)}" in said


def test_a_look_ahead_ends_with_12_whatever_it_says(tmp_path: Path) -> None:
    steady(tmp_path, 0.1)
    path = gate_file(tmp_path, kill=INTERFERENCE | {"datasets": ["apidocs", "scifact"]})
    assert_refused(verdicts(tmp_path, "--gates", path), 3, "no reranking/scifact result of rank_only_r8")
    looked = verdicts(tmp_path, "--gates", path, "--advisory")
    assert looked.returncode == 12, looked.stderr
    assert "Exit code 12: kill ADVISORY PASS" in looked.stdout
    said = json.loads(verdicts(tmp_path, "--gates", path, "--advisory", "--json").stdout)
    assert said["gates"][0]["advisory"] == ["a look ahead was asked for", "no result yet on scifact"]


def test_what_decides_nothing_and_options_of_another_part_are_said(tmp_path: Path) -> None:
    write_result(tmp_path, make_result("bm25", None, [0.5] * 20))
    done = verdicts(tmp_path)
    assert done.returncode == 12
    assert "no joint arm has a specialist beside it; give --gates FILE" in done.stderr
    for option in ("--json", "--advisory"):
        assert_refused(analyze(tmp_path, "tables", option), 2, "belong to verdicts")


def test_verdicts_need_no_heavy_library(tmp_path: Path) -> None:
    steady(tmp_path, 0.1)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from unimoe.cli.analyze import judge_gates\n"
        "code = judge_gates(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print('modules', *sys.modules)\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(gate_file(tmp_path, kill=INTERFERENCE))]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "unimoe.analysis.gates.judging" in loaded
    assert not {"pandas", "matplotlib", "scipy.stats", "torch", "transformers"} & loaded


UNUSUAL = {"pass_at": 0.137, "fail_below": 0.113, "confidence": 0.77}
"""Cutoffs that no default has."""

LABELS = {"PASS", "FAIL", "MARGINAL", "INCONCLUSIVE"}


class TestEveryOutputOfOneAnalysis:
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("outputs")
        write_experiment(folder, tir=0.044, queries=300)
        embedding = INTERFERENCE | {"task": "embedding", "specialist": "emb_only_r8"}
        gate_file(folder, rank=INTERFERENCE | UNUSUAL, embed=embedding | UNUSUAL)
        return folder

    @pytest.fixture(scope="class")
    def outputs(self, folder: Path) -> dict[str, str]:
        """Everything that an analysis says, by where it says it."""
        stale = folder / "analysis" / "figures" / "reranking-gone.png"
        stale.parent.mkdir(parents=True)
        stale.write_bytes(b"of an earlier analysis")
        done = {"analyze": analyze(folder), "verdicts": verdicts(folder), "json": verdicts(folder, "--json")}
        assert [one.returncode for one in done.values()] == [0, 10, 10]
        said = {name: one.stdout for name, one in done.items()}
        for path in (folder / "analysis").rglob("*"):
            if path.suffix in {".md", ".tex", ".csv"}:
                said[path.name] = path.read_text(encoding="utf-8").replace("\\", "")
        page = (folder / "analysis" / "report.html").read_text(encoding="utf-8")
        code = r"<style>.*?</style>|<script(?! type=\"application/json\").*?</script>"
        visible = re.sub(r"<[^>]+>", " ", re.sub(code, "", page, flags=re.DOTALL))
        said["report.html"] = html.unescape(visible).replace("\N{NO-BREAK SPACE}", " ")
        return {where: " ".join(text.replace("bm25s(k1=0.9,b=0.4)", "bm25s").split()) for where, text in said.items()}

    def test_every_file_is_there_and_none_of_an_earlier_analysis(self, folder: Path, outputs: dict[str, str]) -> None:
        for heading in ("Verdicts", "Gates", "Scores", "Paired comparisons", "Figures", "Provenance"):
            assert f" ## {heading} " in outputs["report.md"]
        for table in ("gates", "comparison", "significance", "training"):
            assert {f"{table}.{suffix}" for suffix in ("md", "tex", "csv")} <= outputs.keys()
        figures = folder / "analysis" / "figures"
        for figure in ("scores-reranking", "scores-embedding", "tir-forest", "loss-curves"):
            assert f"(figures/{figure}.png)" in outputs["report.md"]
            assert (figures / f"{figure}.png").stat().st_size > 0
        assert not (figures / "reranking-gone.png").exists()
        assert not list(folder.rglob("*.tmp"))

    def test_names_no_cutoff_that_is_not_the_gates_own(self, outputs: dict[str, str]) -> None:
        assert {"analyze", "verdicts", "json", "report.html", "report.md", "gates.tex", "gates.csv"} <= set(outputs)
        assert re.search(r"FAIL below 11.3 % \| MARGINAL \| PASS from 13.7 %", outputs["report.html"]), "the figure"
        for where, text in outputs.items():
            foreign = re.findall(r"(?<![\d.])(?:2|1) ?%|(?<![\d.])(?:2|1) \\%|(?<!\d)0?\.90?(?![\d])", text)
            assert not foreign, (where, foreign)

    def test_gives_no_other_label(self, outputs: dict[str, str]) -> None:
        explained = r"[^.;:]*INCONCLUSIVE\)?(: these seeds and queries cannot decide| where none does)"
        for where, text in outputs.items():
            labels = set(re.findall(r"\b[A-Z]{4,}\b", re.sub(explained, "", text))) & LABELS
            assert labels <= {"FAIL", "PASS", "MARGINAL"}, where
        assert "NO INTERFERENCE: rank (gate: FAIL, keep the joint model) joint_r8 loses" in outputs["verdicts"]
        assert {gate["label"] for gate in json.loads(outputs["json"])["gates"]} == {"FAIL"}

    def test_shows_the_same_estimate_and_interval(self, outputs: dict[str, str]) -> None:
        rank = next(gate for gate in json.loads(outputs["json"])["gates"] if gate["name"] == "rank")
        low, value, high = (f"{100 * rank['interval'][key]:+.2f}" for key in ("low", "value", "high"))
        for where in ("verdicts", "analyze", "report.html", "report.md"):
            assert f"{value} % [{low}, {high}]" in outputs[where], where
        table = outputs["gates.md"].replace("−", "-")
        assert all(number in table for number in (value, low, high))

    def test_calls_no_zero_negative(self, outputs: dict[str, str]) -> None:
        for where, text in outputs.items():
            assert not re.search(r"[-−]0\.00(?!\d)", text), where


SCORES = [0.2, 0.4, 0.6]
RESULT = "joint_r8/seed_1/results/reranking/apidocs.json"


def two_arms(folder: Path, scores: dict[str, list[float]]) -> None:
    """Arms of two seeds with the same scores."""
    for arm, of_arm in scores.items():
        for seed in (0, 1):
            write_result(folder, make_result(arm, seed, of_arm))


def test_a_result_that_is_there_twice_or_cannot_be_read_and_broken_gates_are_named(tmp_path: Path) -> None:
    write_experiment(tmp_path, logs=False)
    path = tmp_path / RESULT
    copy = path.rename(path.with_name("copy.json"))
    path.mkdir()
    assert_refused(analyze(tmp_path), 3, RESULT, "cannot be read (Is a directory)")
    path.rmdir()
    shutil.copy(copy, path)
    assert_refused(analyze(tmp_path), 3, "copy.json says it is joint_r8 seed 1", "remove one of the two")
    copy.unlink()
    (tmp_path / "gates.yaml").write_text("gates: []")
    assert_refused(analyze(tmp_path), 3, "gates.yaml: registered: this key is required")
    assert not (tmp_path / "analysis").exists()


def test_no_results_and_a_name_that_allows_nothing_are_refused(tmp_path: Path) -> None:
    for done in (analyze(tmp_path), analyze(tmp_path / "none"), verdicts(tmp_path)):
        assert_refused(done, 3, "no results here; evaluate an arm first", "point --output-dir at an")
    two_arms(tmp_path, {"joint_r8": SCORES})
    assert_refused(analyze(tmp_path, "tables", "--allow", "querys"), 2, "did you mean 'queries'?")


def tasks_without_queries(folder: Path) -> None:
    for arm, score in (("emb_only_r8", 0.8), ("joint_r8", 0.6)):
        for seed in (0, 1):
            write_result(folder, without_queries(arm, seed, score))


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: two_arms(folder, {"rank_only_r8": SCORES}), "No TIR of reranking on apidocs: joint_r8 has no"),
        (lambda folder: write_result(folder, make_result("bm25", None, SCORES)), "On apidocs, bm25 is the only system"),
        (lambda folder: write_experiment(folder, seeds=(0,), logs=False), "one seed of rank_only_r8 and joint_r8: "),
        (
            lambda folder: write_experiment(folder, queries=1, logs=False),
            "of 1 queries, and fewer than 6 cannot",
        ),
        (tasks_without_queries, "No TIR of embedding: emb_only_r8 and joint_r8 have only tasks without queries, where"),
        (
            lambda folder: two_arms(folder, {"rank_only_r8": [0.0] * 3, "joint_r8": [0.4] * 3}),
            "INCONCLUSIVE, measure more) joint_r8 cannot be compared with rank_only_r8 on apidocs",
        ),
    ],
    ids=["one arm", "a baseline", "one seed", "one query", "tasks without queries", "a specialist at zero"],
)
def test_little_is_no_error_and_the_report_says_what_cannot_be_had(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    make(tmp_path)
    done = successful(analyze(tmp_path, "report"))
    assert words in " ".join(done.stdout.split())
    report = (tmp_path / "analysis" / "report.md").read_text(encoding="utf-8")
    assert "## What is missing" in report
    assert not {"nan", "inf"} & set(report.lower().split())


def test_tasks_without_queries_give_tables_and_take_no_gate(tmp_path: Path) -> None:
    tasks_without_queries(tmp_path)
    said = " ".join(successful(analyze(tmp_path, "tables")).stdout.split())
    for words in ("MTEB by task", "MTEB: main scores", "STSBenchmark", "80.00 ±0.00"):
        assert words in said
    embedding = INTERFERENCE | {"task": "embedding", "specialist": "emb_only_r8"}
    for gate, words in (
        (INTERFERENCE, "no results of arm 'rank_only_r8'"),
        (embedding, "no embedding/apidocs result of emb_only_r8 and joint_r8; both have only tasks without queries"),
        (embedding | {"datasets": ["STSBenchmark"]}, "STSBenchmark has no queries: nothing is paired"),
    ):
        gates = gate_file(tmp_path, kill=gate)
        for more in ((), ("--advisory",)):
            assert_refused(verdicts(tmp_path, "--gates", gates, *more), 3, str(gates), "'kill'", words)


# q1: the relevant document comes second. q2: first. q3: not in the run. q9: not judged.
QRELS: Qrels = {"q1": {"d1": 1}, "q2": {"d1": 2, "d2": 1}, "q3": {"d1": 1}}
RUN: Run = {"q1": {"d1": 1.0, "d2": 2.0}, "q2": {"d1": 2.0, "d3": 1.0}, "q9": {"d1": 1.0}}
Files = tuple[Path, Path]


def evaluate_run(*arguments: str | Path) -> Done:
    return call_unimoe("evaluate-run", *arguments)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    write_run(tmp_path / "some.trec", RUN, tag="some")
    write_qrels(tmp_path / "qrels.txt", QRELS)
    return tmp_path / "some.trec", tmp_path / "qrels.txt"


def test_means_the_number_of_queries_and_warnings(files: Files) -> None:
    done = evaluate_run(*files, "--relevance-level", "1")
    assert done.returncode == 0
    # nDCG of q1 is 1/log2(3) = .6309, of q2 2/(2 + 1/log2(3)) = .7602, of q3 0
    assert done.stdout.splitlines() == [
        "ndcg@10          0.4637",
        "mrr@10           0.5000",
        "map              0.3333",
        "recall@100       0.5000",
        "unjudged@10      0.5000",
        "queries          3",
        "relevance level  1",
    ]
    assert done.stderr.splitlines() == [
        f"warning: {files[0]}: judged queries missing from the run, counted as 0: 1 (q3)",
        f"warning: {files[0]}: queries without judgments, left out: 1 (q9)",
    ]


def test_json(files: Files) -> None:
    done = evaluate_run(*files, "--json", "--metric", "mrr", "--depth", "1")
    found = json.loads(done.stdout)
    assert [check["name"] for check in found.pop("checks")] == [
        *("unjudged", "queries", "unjudged_queries", "relevance_level"),
    ]
    assert (found.pop("unjudged_share"), found.pop("unjudged_cutoff")) == (0.5, 10)
    assert found == {
        "run": str(files[0]),
        "qrels": str(files[1]),
        "depth": 1,
        "queries": 3,
        "relevance_level": 1,
        "aggregate": {"mrr": pytest.approx(1 / 3, abs=1e-15)},
        "per_query": {"mrr": {"q1": 0.0, "q2": 1.0, "q3": 0.0}},
        "missing_queries": ["q3"],
        "unjudged_queries": ["q9"],
        "unordered_queries": [],
        "notes": [
            "grades up to 2 in qrels.txt: mrr counts grade 1 as relevant; TREC DL counts from 2: --relevance-level 2"
        ],
    }


def test_a_level_given_goes_before_one_stated_and_that_before_1(files: Files) -> None:
    def found(*options: str) -> tuple[int, float]:
        read = json.loads(evaluate_run(*files, "--json", "--metric", "mrr", *options).stdout)
        return read["relevance_level"], round(read["aggregate"]["mrr"], 9)

    at_1, at_2 = 1 / 2, round(1 / 3, 9)  # q1 1/2, q2 1, q3 0; at level 2 nothing is relevant to q1
    assert found() == (1, at_1)
    assert found("--relevance-level", "2") == (2, at_2)
    files[1].with_name("qrels.txt.json").write_text('{"relevance_level": 2}')
    assert found() == (2, at_2)
    assert found("--relevance-level", "1") == (1, at_1)


def test_a_run_without_order_is_not_cut(files: Files) -> None:
    write_run(files[0], {"q1": {"d1": 0.0, "d2": 0.0, "d3": 0.0}, "q2": {"d1": 0.0}}, tag="some")
    assert_refused(evaluate_run(*files, "--depth", "2"), 3, "some.trec", "--depth 2", "one score")
    assert evaluate_run(*files, "--depth", "3").returncode == 0
