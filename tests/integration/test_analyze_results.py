from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.results import make_result, write_experiment

from unimoe.results import write_result

SCRIPT = Path(__file__).parents[2] / "scripts" / "analyze_results.py"


def analyze(*arguments: str | Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "COLUMNS": "100"},
        check=False,
    )
    assert done.returncode == expect, done.stderr
    return done


def test_writes_everything_and_prints_the_verdict(tmp_path: Path) -> None:
    write_experiment(tmp_path, caveats=["smoke run: unfit for decisions"])
    done = analyze("--output-dir", tmp_path, "--iterations", "500")
    assert re.search(r"^ADVISORY [A-Z ]+: reranking.joint_r8", done.stdout, re.MULTILINE)
    assert re.search(r"^ADVISORY [A-Z ]+: embedding.joint_r8", done.stdout, re.MULTILINE)
    assert "Caveat: smoke run" in done.stdout
    analysis = tmp_path / "analysis"
    report = (analysis / "report.md").read_text(encoding="utf-8")
    for heading in ("Verdicts", "Stability", "Scores", "Paired comparisons", "Figures", "Provenance"):
        assert f"\n## {heading}\n" in report
    assert report.index("smoke run") < report.index("## Verdicts")
    assert "<h2" in (analysis / "report.html").read_text(encoding="utf-8")
    for table in ("gates", "datasets", "stability", "power", "comparison", "seeds", "significance", "training"):
        for suffix in ("md", "tex", "csv"):
            assert (analysis / "tables" / f"{table}.{suffix}").stat().st_size > 0
    for figure in ("scores-reranking", "scores-embedding", "tir-forest", "loss-curves"):
        assert f"(figures/{figure}.png)" in report
        assert (analysis / "figures" / f"{figure}.png").stat().st_size > 0
    assert not list(analysis.rglob("*.tmp"))


def test_rank_only_alone_still_gives_tables_and_a_plot(tmp_path: Path) -> None:
    write_experiment(tmp_path, arms=("rank_only_r8",), seeds=(0,), logs=False)
    done = analyze("--output-dir", tmp_path, "--iterations", "100")
    assert "No TIR of reranking on apidocs: joint_r8 has no result on apidocs" in done.stdout
    report = (tmp_path / "analysis" / "report.md").read_text(encoding="utf-8")
    assert "joint_r8 has no result on apidocs" in report.replace("\\", "")
    assert "no training log of rank_only_r8 seed 0" in report
    assert (tmp_path / "analysis" / "tables" / "comparison.tex").exists()
    assert (tmp_path / "analysis" / "figures" / "scores-reranking.png").exists()


def test_bm25_alone_gives_a_table(tmp_path: Path) -> None:
    write_result(tmp_path, make_result("bm25", None, [0.5, 0.6], task="retrieval"))
    assert "On apidocs, bm25 is the only system" in analyze("--output-dir", tmp_path).stdout


@pytest.mark.parametrize("part", ["tables", "figures"])
def test_one_part_alone(tmp_path: Path, part: str) -> None:
    write_experiment(tmp_path, seeds=(0, 1), queries=10, logs=False)
    analyze(part, "--output-dir", tmp_path, "--iterations", "100")
    assert [path.name for path in (tmp_path / "analysis").iterdir()] == [part]


def test_a_second_analysis_leaves_nothing_stale(tmp_path: Path) -> None:
    write_experiment(tmp_path, seeds=(0,), queries=5)
    stale = tmp_path / "analysis" / "figures" / "reranking-gone.png"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"old")
    analyze("figures", "--output-dir", tmp_path)
    assert not stale.exists()


def test_two_runs_write_the_same_report(tmp_path: Path) -> None:
    write_experiment(tmp_path, seeds=(0, 1), queries=10)
    analyze("report", "--output-dir", tmp_path, "--iterations", "100")
    first = {p.name: p.read_bytes() for p in (tmp_path / "analysis").rglob("*") if p.is_file()}
    analyze("report", "--output-dir", tmp_path, "--iterations", "100")
    assert first == {p.name: p.read_bytes() for p in (tmp_path / "analysis").rglob("*") if p.is_file()}


def test_bad_data_is_one_line_and_exit_code_3(tmp_path: Path) -> None:
    done = analyze("--output-dir", tmp_path / "absent", expect=3)
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_wrong_usage_is_exit_code_2(tmp_path: Path) -> None:
    done = analyze("--output-folder", tmp_path, expect=2)
    assert "Traceback" not in done.stderr
    analyze("verdict", "--output-dir", tmp_path, expect=2)


def test_importing_the_analysis_stays_light() -> None:
    heavy = ("torch", "transformers", "mteb", "matplotlib.pyplot", "scipy.stats", "pandas")
    code = f"import sys, unimoe.analysis.compare; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
