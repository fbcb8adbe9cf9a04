from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.results import write_experiment
from support.scripts import Done, call_script


def analyze(folder: Path, *arguments: str) -> Done:
    done = call_script("analyze_results.py", *arguments, "--output-dir", folder, "--iterations", "100", COLUMNS="100")
    assert done.returncode == 0, done.stderr
    return done


def test_writes_everything_and_prints_the_verdict(tmp_path: Path) -> None:
    write_experiment(tmp_path, caveats=["smoke run: unfit for decisions"])
    stale = tmp_path / "analysis" / "figures" / "reranking-gone.png"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"of an earlier analysis")
    done = analyze(tmp_path)
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
    assert not stale.exists()
    assert not list(analysis.rglob("*.tmp"))


@pytest.mark.parametrize("part", ["tables", "figures"])
def test_one_part_alone(tmp_path: Path, part: str) -> None:
    write_experiment(tmp_path, seeds=(0, 1), queries=10, logs=False)
    analyze(tmp_path, part)
    assert [path.name for path in (tmp_path / "analysis").iterdir()] == [part]


def test_two_runs_write_the_same_report(tmp_path: Path) -> None:
    write_experiment(tmp_path, seeds=(0, 1), queries=10)
    files = []
    for _ in range(2):
        analyze(tmp_path, "report")
        files.append({p.name: p.read_bytes() for p in (tmp_path / "analysis").rglob("*") if p.is_file()})
    assert files[0] == files[1]
