"""What Python functions return, as a prompt and a notebook show it, drawn, and saved."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from support.results import write_experiment
from support.runs import random_qrels, random_run
from support.scripts import call_unimoe, successful
from support.toy_collections import invented

import unimoe
from unimoe.analysis.compare import TIR
from unimoe.core.errors import DataError, UsageError
from unimoe.core.shown import Shown
from unimoe.core.trec import write_qrels, write_run
from unimoe.formats.runs import read_run

pytestmark = pytest.mark.usefixtures("tmp_cache")
NAME = "<script>alert(1)</script>"


def by_length(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(len(document)) for _, document in pairs]


def letters(texts: list[str]) -> Any:
    return np.array([[text.count(letter) for letter in "abcdefghij "] for text in texts]) + 0.1


def compared(**options: Any) -> Any:
    rng = np.random.default_rng(0)
    qrels = random_qrels(30, rng)
    runs: dict[str, Any] = {
        "bm25": random_run(qrels, 3.0, rng),
        "mono": [random_run(qrels, noise, rng) for noise in (1.0, 1.2)],
    }
    return unimoe.compare({NAME.replace("/", ""): random_run(qrels, 2.0, rng)} | runs, qrels, **options)


def scores() -> Any:
    rng = np.random.default_rng(0)
    qrels = random_qrels(30, rng)
    return unimoe.score_run(qrels, random_run(qrels, 1.0, rng) | {"other": {"d": 1.0}}, ["ndcg@10", "P@5", "NumRet"])


@pytest.fixture(params=["comparison", "tir", "gates", "one gate", "scores", "reranker", "encoder"])
def shown(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param in ("tir", "gates", "one gate"):
        write_experiment(tmp_path / "mine", queries=30)
        rows, judged = unimoe.tir(tmp_path / "mine"), unimoe.judge(tmp_path / "mine")
        return {"tir": rows, "gates": judged, "one gate": judged[0]}[request.param]
    if request.param in ("reranker", "encoder"):
        request.getfixturevalue("models_extra")
    collection = invented(documents=30, queries=6)
    made: dict[str, Any] = {
        "comparison": compared,
        "scores": scores,
        "reranker": lambda: unimoe.evaluate_reranker(by_length, collection),
        "encoder": lambda: unimoe.evaluate_encoder(letters, collection),
    }
    return made[request.param]()


def test_every_result_is_short_at_a_prompt_a_table_in_a_notebook_a_figure_and_a_folder(
    shown: Shown, tmp_path: Path
) -> None:
    settings, text = dict(mpl.rcParams), repr(shown)
    assert len(text) < 2_500
    assert not {"\x1b", "array(", " object at "} & set(text)
    assert any(digit in text for digit in "0123456789")
    page = shown._repr_html_()
    assert page.startswith("<table")
    assert "<script" not in page
    figure: Any = shown.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert figure.canvas.manager is None
    assert dict(mpl.rcParams) == settings
    folder = shown.save(tmp_path / "new" / "kept")
    assert shown.save(folder) == folder
    assert {path.suffix for path in folder.rglob("*.*")} >= {".json", ".csv"}
    assert not list(folder.parent.glob(".*.tmp"))


def test_rows_of_tir_and_judgments_stay_a_list_and_a_tuple(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    rows, judged = unimoe.tir(tmp_path), unimoe.judge(tmp_path)
    assert isinstance(rows, list)
    assert rows == [*rows]
    assert rows[0]._fields == TIR._fields
    assert rows[:1] + rows[1:] == rows
    assert list(pd.DataFrame(rows).columns) == list(TIR._fields)
    assert isinstance(judged, tuple)
    assert judged == (*judged,)
    for again in (copy.copy(rows), pickle.loads(pickle.dumps(rows))):
        assert again == rows
    assert "TIR of joint_r8 against rank_only_r8 +" in repr(rows)
    kept = rows.save(tmp_path / "kept")
    assert [row["value"] for row in json.loads((kept / "tir.json").read_text("utf-8"))] == [row.value for row in rows]
    gates = json.loads((judged.save(tmp_path / "gates") / "gates.json").read_text("utf-8"))["gates"]
    assert [gate["label"] for gate in gates] == [one.label for one in judged]


def test_nothing_judged_says_so_and_draws_nothing() -> None:
    none = unimoe.judge(compared())
    assert repr(none) == "no gate was judged"
    assert none._repr_html_().startswith("<table")
    with pytest.raises(UsageError, match="nothing to draw: no gate was judged"):
        none.plot()


def test_long_results_are_cut_at_a_prompt() -> None:
    rows = unimoe.tir(compared(), "bm25", "mono")
    rows *= 40
    assert repr(rows).splitlines()[12:] == [f"... and {len(rows) - 12} more"]


@pytest.mark.usefixtures("models_extra")
def test_scores_draw_means_and_a_reranker_its_gain_over_the_first_stage(tmp_path: Path) -> None:
    found = scores()
    assert "Note: the run: queries without judgments, left out: 1 (other)" in repr(found).splitlines()
    assert "<li>Note: the run: queries without judgments" in found._repr_html_()
    assert [text.get_text() for text in found.plot().axes[0].get_yticklabels()] == ["nDCG@10", "P@5"]  # no count
    table = found.table().to_csv()
    assert table.splitlines()[0] == "group,Measure,Mean,Low,High"
    frame = pd.read_csv(found.save(tmp_path / "scores") / "scores.csv", index_col="query")
    assert frame["ndcg@10"].to_dict() == pytest.approx(found.per_query["ndcg@10"])
    reranked: Any = unimoe.evaluate_reranker(by_length, invented(documents=30, queries=6))
    row = reranked.table().to_csv().splitlines()[1].split(",")
    first, run, difference = map(float, row[2:5])
    assert (first, run) == (reranked.first_stage.aggregate["ndcg@10"], reranked.scores.aggregate["ndcg@10"])
    assert difference == pytest.approx(run - first)
    kept = reranked.save(str(tmp_path / "reranked"))
    assert read_run(kept / "run.trec") == reranked.run
    held = json.loads((kept / "scores.json").read_text("utf-8"))
    assert [check["line"] for check in held["checks"]] == [check.line for check in reranked.scores.checks]
    assert (held["identity"], held["per_query"]) == (reranked.identity, reranked.scores.per_query)


def test_what_a_folder_holds_is_not_overwritten(tmp_path: Path) -> None:
    found = scores()
    other = unimoe.score_run({"q": {"d": 1}}, {"q": {"d": 1}})
    folder = found.save(tmp_path / "kept")
    before = (folder / "scores.json").read_bytes()
    with pytest.raises(UsageError, match="kept holds another result; choose another folder, or give overwrite=True"):
        other.save(folder)
    assert (folder / "scores.json").read_bytes() == before
    other.save(folder, overwrite=True)
    assert (folder / "scores.json").read_bytes() != before
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match=r"kept holds notes\.txt, which is no part of this; choose another folder"):
        other.save(folder, overwrite=True)
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="this is a file"):
        other.save(tmp_path / "file")
    with pytest.raises(UsageError, match="the folder is a int; give its path as text"):
        other.save(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the folder holds a zero character; give its path as text"):
        other.save("a\0b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "kept"]


def test_a_saved_comparison_is_what_the_command_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    qrels = random_qrels(30, rng)
    write_qrels(Path("q.tsv"), qrels)
    runs = {name: f"{name}.trec" for name in ("a", "b", "c")}
    for noise, path in enumerate(runs.values(), start=1):
        write_run(Path(path), random_run(qrels, noise, rng), tag="x")
    options = ("--systems", "b.trec", "c.trec", "--baseline", "a.trec", "--qrels", "q.tsv", "--correction", "bh")
    successful(call_unimoe("compare", *options, "--output-dir", "command"))
    found = unimoe.compare(runs, "q.tsv", baseline="a", correction="bh")
    assert found.save("python") == Path("python")
    names = [sorted(p.relative_to(top).as_posix() for p in Path(top).rglob("*.*")) for top in ("command", "python")]
    assert names[0] == names[1]
    read = unimoe.load_all_results("python")
    assert {system: read[system] for system in runs} == {system: found.results[system] for system in runs}
    assert json.loads(Path("python/comparison.json").read_text("utf-8"))["correction"] == "bh"
    assert "b above c" in successful(call_unimoe("analyze", "--output-dir", "python")).stdout
    other = unimoe.compare({"a": "a.trec", "c": "c.trec"}, "q.tsv")
    with pytest.raises(DataError, match="python holds another comparison"):
        other.save("python")
    other.save("python", overwrite=True)
    assert list(unimoe.load_all_results("python")) == ["a", "c"]
    with pytest.raises(UsageError, match="'x/y' cannot be that of a folder"):
        unimoe.compare({"x/y": "a.trec", "c": "c.trec"}, "q.tsv").save("slash")
    assert not Path("slash").exists()


def test_showing_a_result_loads_no_library_that_draws_and_drawing_none_of_pyplot() -> None:
    code = """
import sys, unimoe
run, qrels = {"q": {"d": 1, "e": 2}, "r": {"d": 2, "e": 1}}, {"q": {"d": 1}, "r": {"d": 1}}
found = unimoe.score_run(qrels, run)
compared = unimoe.compare({"a": run, "b": {"q": {"d": 2, "e": 1}, "r": {"d": 1, "e": 2}}}, qrels)
for one in (found, compared, unimoe.tir(compared, "a", "b"), unimoe.judge(compared)):
    repr(one), one._repr_html_()
print(*sorted({"matplotlib", "pandas", "scipy.stats", "torch"} & set(sys.modules)), "-")
found.plot(), compared.plot()
print(*sorted({"matplotlib.pyplot", "pandas", "scipy.stats", "torch"} & set(sys.modules)), "-")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "-\n-\n", done.stdout + done.stderr
