"""``evaluate`` over several collections: the first stage beside every score, averages, and what is missing."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.experiments import write_tiny_experiment
from support.reranking import invented, write_invented
from support.scripts import Done, call_script, successful
from support.sources import SMALL, write_msmarco

from unimoe.core.trec import read_qrels, read_run
from unimoe.metrics import score_run
from unimoe.results import EvalResult, read_result

pytestmark = pytest.mark.usefixtures("one_thread")

COLLECTION = invented(documents=12, queries=4, unjudged=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_invented(folder / "scifact", COLLECTION)
    write_invented(folder / "cqadupstack" / "gis", invented(documents=9, queries=3))
    write_invented(folder / "cqadupstack" / "tex", invented(documents=10, queries=3))
    write_msmarco(folder / "msmarco", SMALL)
    write_tiny_experiment(folder)
    return folder


@pytest.fixture(scope="module")
def suite(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    output_dir = tmp_path_factory.mktemp("suite")
    return output_dir, evaluate(data, output_dir, "scifact,cqadupstack/gis,cqadupstack/tex,msmarco,fiqa")


def evaluate(data: Path, output_dir: Path, names: str, *more: str) -> Done:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "beir.util", None)  # nothing to download with
        return call_script(
            "evaluate.py", "--zero-shot", "--config", data / "tiny.yaml", "--dataset", names, "--task", "reranking",
            "--output-dir", output_dir, *more, UNIMOE_DATA=str(data),
        )  # fmt: skip


def result(output_dir: Path, dataset: str, arm: str = "zero_shot") -> EvalResult:
    return read_result(output_dir / arm / "seed_none" / "results" / "reranking" / f"{dataset}.json")


def test_the_first_stage_and_the_difference_stand_in_every_result(data: Path, suite: tuple[Path, Done]) -> None:
    output_dir, done = suite
    found = result(output_dir, "scifact")
    first = found.first_stage
    assert first is not None
    candidates = read_run(output_dir / "bm25/seed_none/runs/reranking/scifact.trec")
    qrels = read_qrels(output_dir / "qrels/scifact-test.qrels")
    assert first.aggregate == score_run(qrels, candidates).aggregate
    assert first.aggregate.keys() == {"ndcg@10", "mrr@10", "map", "recall@100"} == first.delta.keys()
    for metric, delta in first.delta.items():
        assert delta == found.aggregate[metric] - first.aggregate[metric]
    assert found.unjudged_queries == ["q4"]
    assert result(output_dir, "scifact", "bm25").aggregate == first.aggregate
    assert done.stderr.splitlines()[-1].startswith("error: done, without 1 collection (fiqa);")
    again = evaluate(data, output_dir, "scifact,msmarco")
    assert (again.returncode, again.stderr.count("already done")) == (0, 4)


def test_averages_count_cqadupstack_once_and_leave_msmarco_to_its_own(suite: tuple[Path, Done]) -> None:
    output_dir, done = suite
    named = [result(output_dir, name) for name in ("scifact", "cqadupstack-gis", "cqadupstack-tex")]
    scifact, gis, tex = (one.aggregate["ndcg@10"] for one in named)
    before = [one.first_stage.aggregate["ndcg@10"] for one in named if one.first_stage]
    mean, first = ((one + (two + three) / 2) / 2 for one, two, three in ((scifact, gis, tex), before))
    assert result(output_dir, "msmarco").main_metric == "mrr@10"
    lines = [line for line in done.stdout.splitlines() if "average" in line]
    mrr, ndcg, all_ndcg = lines
    assert f"average of 1: mrr@10 {result(output_dir, 'msmarco').aggregate['mrr@10']:.4f} " in mrr
    assert f"average of 2: ndcg@10 {mean:.4f} (first stage {first:.4f}, {mean - first:+.4f})" in ndcg
    assert ndcg.endswith("(cqadupstack: 2 of its 12)")
    whole = (2 * mean + result(output_dir, "msmarco").aggregate["ndcg@10"]) / 3
    assert f"average of 3, msmarco included: ndcg@10 {whole:.4f} (first stage" in all_ndcg


def test_candidates_in_no_order_are_reranked_whole_and_not_scored_themselves(data: Path, tmp_path: Path) -> None:
    settings = ("--set", "evaluation.first_stage=official", "--set", "evaluation.depth=1000")
    done = successful(evaluate(data, tmp_path, "msmarco", *settings))
    assert "official(top1000.dev) gives no order" in done.stderr
    found = result(tmp_path, "msmarco")
    assert found.main_metric == "mrr@10"
    assert found.first_stage is not None
    assert found.first_stage.aggregate == found.first_stage.delta == {}
    assert "first stage" not in done.stdout
    assert not (tmp_path / "bm25").exists()


def test_a_plan_names_what_is_missing_counts_the_rest_and_writes_nothing(data: Path, tmp_path: Path) -> None:
    before = {*data.rglob("*")}
    options = ("--plan", "--max-queries", "2", "--price-per-hour", "3.5")
    done = evaluate(data, tmp_path / "outputs", "fiqa,scifact", *options)
    assert done.returncode == 4
    assert "not available: collection 'fiqa'" in done.stderr
    header, line, total = done.stdout.splitlines()
    assert header.split() == ["task", "dataset", "queries", "pairs/texts", "tokens", "disk"]
    assert line.split()[:3] == ["reranking", "scifact", "2"]
    assert re.search(r"^total: [\d,]+ tokens, .* minutes, \d+\.\d\d at 3\.5 an hour \(probe: .*\)$", total)
    assert {path for path in data.rglob("*") if path.suffix != ".lock"} == before
    assert not (tmp_path / "outputs").exists()
