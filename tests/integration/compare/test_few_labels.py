"""``compare --predicted-qrels``: few human labels beside a model's, in tables, verdicts, gates, folders and Python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.results import INTERFERENCE
from support.runs import compare, random_qrels, random_run, words_of
from support.scripts import assert_refused, call_unimoe, successful

import unimoe
from unimoe.core.errors import DataError
from unimoe.core.trec import Qrels, Run, write_qrels, write_run
from unimoe.results import run_path
from unimoe.results.runs.scoring import score_run

RNG = np.random.default_rng(5)
TRUE: Qrels = random_qrels(400, RNG)
LABELLED = sorted(RNG.permutation(list(TRUE))[:60].tolist())
HUMAN: Qrels = {query: TRUE[query] for query in LABELLED}


def judge(chance: float) -> Qrels:
    """Grade as people do, and by chance some documents at random."""
    return {
        query: {d: int(RNG.integers(0, 4)) if RNG.random() < chance else grade for d, grade in of.items()}
        for query, of in TRUE.items()
    }


GOOD, USELESS = judge(0.15), judge(1.0)
RUNS: dict[str, list[Run]] = {
    "bm25": [random_run(TRUE, 2.3, RNG)],
    "splade": [random_run(TRUE, 2.1, RNG)],
    "mono": [random_run(TRUE, 1.9, RNG) for _ in range(3)],
}
SYSTEMS = ["--systems", "bm25.trec", "splade.trec", "mono=mono-*.trec", "--untrained", "bm25", "splade"]
VERDICT = ["--specialist", "mono-0.trec", "mono-1.trec", "mono-2.trec", "--joint", "splade.trec"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few")
    for name, of in (("human.tsv", HUMAN), ("llm.tsv", GOOD), ("useless.tsv", USELESS), ("all.tsv", TRUE)):
        write_qrels(folder / name, of)
    for name, runs in RUNS.items():
        for seed, run in enumerate(runs):
            write_run(folder / (f"{name}-{seed}.trec" if len(runs) > 1 else f"{name}.trec"), run, tag=name)
    return folder


@pytest.fixture
def here(written: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(written)
    return written


def rows(*options: str) -> dict[str, dict[str, Any]]:
    done = successful(compare("--qrels", *options, *SYSTEMS, "--json"))
    return {f"{row['system']}-{row['baseline']}": row for row in json.loads(done.stdout)["comparisons"]}


def width(row: dict[str, Any]) -> float:
    return float(row["high"] - row["low"])


def test_a_good_judge_narrows_every_interval_and_a_useless_one_widens_none(here: Path) -> None:
    alone, whole = rows("human.tsv"), rows("all.tsv")
    good, useless = (rows("human.tsv", "--predicted-qrels", f"{name}.tsv") for name in ("llm", "useless"))
    for pair, row in alone.items():
        assert width(whole[pair]) < width(good[pair]) < 0.75 * width(row)
        assert width(useless[pair]) < 1.05 * width(row)
        assert good[pair]["low"] - 0.01 < whole[pair]["difference"] < good[pair]["high"] + 0.01
        assert good[pair]["difference"] == pytest.approx(good[pair]["system_mean"] - good[pair]["baseline_mean"])


def test_the_output_says_what_the_labels_brought_and_how_the_model_errs(here: Path) -> None:
    text = words_of(compare("--qrels", "human.tsv", "--predicted-qrels", "llm.tsv", *SYSTEMS))
    assert "human: 60 of 400 queries have human judgments; with those of llm.tsv they are as good as " in text
    assert "if they are a random sample of all" in text
    assert "of 1,800 documents that both judged, 8" in text
    assert "% have the same grade, kappa 0." in text
    assert "queries without judgments, left out" not in text
    found = json.loads(compare("--qrels", "human.tsv", "--predicted-qrels", "llm.tsv", *SYSTEMS, "--json").stdout)
    of = found["datasets"]["retrieval/human"]
    assert (of["queries"], of["labelled"]) == (400, 60)
    assert 0.3 < of["predicted"]["lambda"]["ndcg@10"] <= 1.0
    assert next(check for check in found["checks"] if check["name"] == "predicted")["data"]["as_good_as"] > 100


def test_python_and_the_command_say_the_same(here: Path) -> None:
    runs: dict[str, Any] = {name: of[0] if len(of) == 1 else of for name, of in RUNS.items()}
    found = unimoe.compare(runs, HUMAN, predicted_qrels=GOOD, untrained=["bm25", "splade"])
    by_command = rows("human.tsv", "--predicted-qrels", "llm.tsv")
    for row in found.test_rows:
        other = by_command[f"{row['system']}-{row['baseline']}"]
        assert [row[name] for name in ("difference", "low", "high", "p")] == pytest.approx(
            [other[name] for name in ("difference", "low", "high", "p")]
        )


def test_one_run_is_the_estimate_of_prediction_powered_inference(here: Path) -> None:
    """Against the formulas of Angelopoulos et al. (2023), written out."""
    row = rows("human.tsv", "--predicted-qrels", "llm.tsv")["splade-bm25"]
    scores = {
        (name, judged): score_run(content, RUNS[name][0], "ndcg@10").per_query["ndcg@10"]
        for name in ("bm25", "splade")
        for judged, content in (("human", HUMAN), ("model", GOOD))
    }
    y = np.array([scores["splade", "human"][q] - scores["bm25", "human"][q] for q in LABELLED])
    f = np.array([scores["splade", "model"][q] - scores["bm25", "model"][q] for q in LABELLED])
    rest = [q for q in TRUE if q not in HUMAN]
    unseen = np.array([scores["splade", "model"][q] - scores["bm25", "model"][q] for q in rest])
    checks = json.loads(compare("--qrels", "human.tsv", "--predicted-qrels", "llm.tsv", *SYSTEMS, "--json").stdout)
    weight = checks["datasets"]["retrieval/human"]["predicted"]["lambda"]["ndcg@10"]
    assert row["difference"] == pytest.approx(weight * unseen.mean() + (y - weight * f).mean())
    variance = weight**2 * unseen.var(ddof=1) / len(unseen) + (y - weight * f).var(ddof=1) / len(y)
    assert width(row) / np.sqrt(variance) == pytest.approx(2 * 1.97, abs=0.05)


def test_verdicts_gates_and_kept_folders_use_them(here: Path, tmp_path: Path) -> None:
    both = ("--qrels", "human.tsv", "--predicted-qrels", "llm.tsv")
    narrow, wide = (
        json.loads(compare(*options, *VERDICT, "--json").stdout)["gates"]["gates"][0]["interval"]
        for options in (both, both[:2])
    )
    assert narrow["high"] - narrow["low"] < 0.85 * (wide["high"] - wide["low"])
    gate = INTERFERENCE | {
        "task": "retrieval", "datasets": ["human"], "specialist": "mono", "joint": "splade",
        "specialist_must_beat": None, "predicted_qrels": "llm.tsv",
    }  # fmt: skip
    (tmp_path / "g.yaml").write_text(json.dumps({"registered": "2020-01-01", "gates": {"k": gate}}))
    options: tuple[str | Path, ...] = (
        "--qrels",
        "human.tsv",
        *SYSTEMS,
        "--gates",
        tmp_path / "g.yaml",
        "--output-dir",
        tmp_path / "out",
    )
    first = compare(*options)
    assert first.returncode in (0, 10, 11, 12)
    assert "as good as" in words_of(first)
    again = call_unimoe("analyze", "verdicts", "--output-dir", tmp_path / "out")
    line = next(line for line in first.stdout.splitlines() if line.strip().startswith("TIR "))
    assert line in again.stdout
    other = gate | {"predicted_qrels": "useless.tsv"}
    loaded = unimoe.load_all_results(tmp_path / "out")
    with pytest.raises(DataError, match=r"scored with other predicted judgments than useless\.tsv"):
        unimoe.judge(loaded, {"k": other})


def test_several_datasets_each_have_their_own(here: Path) -> None:
    renamed = {f"x{query}": of for query, of in HUMAN.items()}
    runs: dict[str, Any] = {
        name: {"d0": of[0], "d1": {f"x{query}": scores for query, scores in of[0].items()}} for name, of in RUNS.items()
    }
    found = unimoe.compare(runs, {"d0": HUMAN, "d1": renamed}, predicted_qrels={"d0": GOOD}, untrained=[*RUNS])
    of = {row["dataset"]: row for row in found.test_rows if row["system"] == "splade"}
    assert width(of["d0"]) < 0.75 * width(of["d1"])
    middle = (of["d0"]["difference"] + of["d1"]["difference"]) / 2
    assert of["average of 2"]["difference"] == pytest.approx(middle)


def test_queries_that_look_chosen_are_said_to(here: Path) -> None:
    ranked = sorted(TRUE, key=lambda query: sum(grade > 1 for grade in TRUE[query].values()))
    easy = {query: TRUE[query] for query in ranked[-60:]}
    runs: dict[str, Any] = {name: of[0] for name, of in RUNS.items()}
    chosen, drawn = (
        unimoe.compare(runs, human, predicted_qrels=GOOD, untrained=[*RUNS], metrics="p@10") for human in (easy, HUMAN)
    )
    assert any("the labelled queries look chosen: p@10" in check.line for check in chosen.checks)
    assert not any("look chosen" in check.line for check in drawn.checks)


def test_what_does_not_fit_is_refused(here: Path, tmp_path: Path) -> None:
    write_qrels(tmp_path / "less.tsv", {query: of for query, of in GOOD.items() if query != LABELLED[0]})
    write_qrels(tmp_path / "same.tsv", {query: GOOD[query] for query in LABELLED})
    write_run(tmp_path / "short.trec", {query: RUNS["bm25"][0][query] for query in LABELLED}, tag="x")
    given = ("--qrels", "human.tsv", "--predicted-qrels")
    refused: list[tuple[Sequence[str | Path], int, str]] = [
        ((*given, tmp_path / "less.tsv", *SYSTEMS), 3, f"less.tsv: no judgments of 1 ({LABELLED[0]}), which human.tsv"),
        ((*given, tmp_path / "same.tsv", *SYSTEMS), 3, "same.tsv: judges no query that human.tsv does not"),
        ((*given, "llm.tsv", "--systems", tmp_path / "short.trec", "bm25.trec"), 3, "short.trec lacks 340 ("),
        ((*given, "nothing.tsv", *SYSTEMS), 3, "nothing.tsv"),
        ((*given, "other=llm.tsv", *SYSTEMS), 2, "write NAME=FILE, once for each dataset"),
        (("--results", "out", *given[2:], "llm.tsv"), 2, "--predicted-qrels does not belong here"),
    ]
    for options, code, words in refused:
        assert_refused(compare(*options), code, words)
    (tmp_path / "clusters.tsv").write_text("".join(f"{query}\tc\n" for query in TRUE))
    clustered = compare(*given, "llm.tsv", *SYSTEMS, "--clusters", tmp_path / "clusters.tsv")
    assert_refused(clustered, 2, "leave out --clusters")


def test_a_gate_scores_the_runs_beside_results_again(here: Path, tmp_path: Path) -> None:
    out, gate = tmp_path / "out", {
        "kind": "superiority", "task": "retrieval", "datasets": ["human"], "metric": "ndcg@10", "margin": 0.0,
        "system": "splade", "baseline": "bm25", "predicted_qrels": str(here / "llm.tsv"),
    }  # fmt: skip
    successful(compare("--qrels", "human.tsv", *SYSTEMS, "--output-dir", out))
    with pytest.raises(DataError, match=r"human\.trec: no run of bm25 to score by llm\.tsv; evaluate it again"):
        unimoe.judge(unimoe.load_all_results(out), {"k": gate})
    for name, runs in RUNS.items():
        for seed, run in enumerate(runs):
            write_run(run_path(out, name, seed if len(runs) > 1 else None, "retrieval", "human"), run, tag=name)
    (judgment,) = unimoe.judge(unimoe.load_all_results(out), {"k": gate})
    row = rows("human.tsv", "--predicted-qrels", "llm.tsv")["splade-bm25"]
    assert judgment.found.estimate.interval == pytest.approx((row["low"], row["high"]))
    assert any("as good as" in note for note in judgment.notes)


def test_groups_are_compared_by_human_judgments_alone(here: Path, tmp_path: Path) -> None:
    groups = {query: "even" if place % 2 else "odd" for place, query in enumerate(TRUE)}
    (tmp_path / "groups.tsv").write_text("".join(f"{query}\t{of}\n" for query, of in groups.items()))
    by: list[str | Path] = ["--predicted-qrels", "llm.tsv", "--groups", tmp_path / "groups.tsv"]
    both = ("--qrels", "human.tsv", *SYSTEMS, *by)
    assert "Groups on retrieval/human are compared by human judgments alone." in words_of(successful(compare(*both)))
