"""``evaluate`` over collections and tasks of MTEB: first stages beside scores, averages, and what is missing."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from support.experiments import write_tiny_experiment
from support.reranking import invented, write_invented
from support.scripts import Done, assert_refused, call_script, successful
from support.sources import SMALL, write_msmarco

from unimoe.core.trec import read_qrels, read_run
from unimoe.metrics import score_run
from unimoe.results import EvalResult, read_result

pytestmark = pytest.mark.usefixtures("one_thread")
COLLECTION = invented(documents=14, queries=4, unjudged=1, name="scifact")


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
    return output_dir, rerank(data, output_dir, "scifact,cqadupstack/gis,cqadupstack/tex,msmarco,fiqa")


def evaluate(data: Path, output_dir: Path, *more: str) -> Done:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "beir.util", None)  # nothing to download with
        given = ("--zero-shot", "--config", data / "tiny.yaml", "--output-dir", output_dir)
        return call_script("evaluate.py", *given, *more, UNIMOE_DATA=str(data))


def rerank(data: Path, output_dir: Path, names: str, *more: str) -> Done:
    return evaluate(data, output_dir, "--dataset", names, "--task", "reranking", *more)


def result(output_dir: Path, dataset: str, arm: str = "zero_shot", task: str = "reranking") -> EvalResult:
    return read_result(output_dir / arm / "seed_none" / "results" / task / f"{dataset}.json")


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
    again = rerank(data, output_dir, "scifact,msmarco")
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
    done = successful(rerank(data, tmp_path, "msmarco", *settings))
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
    done = rerank(data, tmp_path / "outputs", "fiqa,scifact", *options)
    assert done.returncode == 4
    assert "not available: collection 'fiqa'" in done.stderr
    header, line, total = done.stdout.splitlines()
    assert header.split() == ["task", "dataset", "queries", "pairs/texts", "tokens", "disk"]
    assert line.split()[:3] == ["reranking", "scifact", "2"]
    assert re.search(r"^total: [\d,]+ tokens, .* minutes, \d+\.\d\d at 3\.5 an hour \(probe: .*\)$", total)
    assert {path for path in data.rglob("*") if path.suffix != ".lock"} == before
    assert not (tmp_path / "outputs").exists()


@pytest.fixture(scope="module")
def mteb_suite(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """Three tasks: one whose data nobody has here, one from a folder, and one more without data."""
    output_dir = tmp_path_factory.mktemp("mteb")
    return output_dir, evaluate(data, output_dir, "--mteb", "NFCorpus,SciFact,STS12")


class TestMTEB:
    def test_what_cannot_be_had_is_named_with_the_mend_and_the_rest_is_done(
        self, mteb_suite: tuple[Path, Done]
    ) -> None:
        _, done = mteb_suite
        assert done.returncode == 4
        assert "Traceback" not in done.stderr
        *lines, last = done.stderr.strip().splitlines()
        failed = [line for line in lines if line.startswith("not available: ")]
        assert [line.split("'")[1] for line in failed] == ["mteb:NFCorpus", "mteb:STS12"]
        assert "put the BEIR folder nfcorpus under UNIMOE_DATA" in failed[0]
        assert "connect to the network, or copy the Hugging Face cache" in failed[1]
        assert last == "error: done, without 2 MTEB tasks (NFCorpus, STS12); the reasons are above"

    def test_the_task_has_a_result_with_mtebs_own_beside_it(self, mteb_suite: tuple[Path, Done]) -> None:
        output_dir, done = mteb_suite
        found = result(output_dir, "SciFact", task="embedding")
        assert (found.dataset, found.task_type, found.main_metric) == ("SciFact", "Retrieval", "ndcg@10")
        assert found.aggregate.keys() == {"ndcg@10", "mrr@10", "map", "recall@100", "main_score"}
        assert found.aggregate["main_score"] == pytest.approx(found.aggregate["ndcg@10"], abs=1e-5)
        assert found.per_query.keys() == COLLECTION.qrels.keys()
        assert (found.identity.split, found.identity.first_stage, found.identity.depth) == ("test", None, None)
        assert found.provenance.items_per_s is not None
        place = output_dir / "zero_shot/seed_none/results/embedding"
        theirs = json.loads((place / "SciFact.mteb.json").read_text(encoding="utf-8"))
        assert theirs["task_name"] == "SciFact"
        assert theirs["scores"]["test"][0]["main_score"] == found.aggregate["main_score"]
        assert f"embedding/SciFact zero_shot: ndcg@10 {found.aggregate['ndcg@10']:.4f}  " in done.stdout
        written = {path.name for path in output_dir.rglob("*") if path.is_file() and path.suffix != ".lock"}
        assert {name.partition(".")[0].partition("-")[0] for name in written} == {"SciFact"}  # nothing of what failed

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--mteb", "SciFcat"], ["mteb has no task or benchmark 'SciFcat'", "did you mean 'SciFact'?"]),
            (["--mteb", "SciFact,CIFAR10ZeroShot"], ["CIFAR10ZeroShot is a task about image", "leave it out"]),
            (["--mteb", "SciFact", "--max-queries", "3"], ["--max-queries cuts collections, not tasks of MTEB"]),
            (
                ["--mteb", "SciFact", "--set", "evaluation.mteb.prompts={SciFcat: x}"],
                ["evaluation.mteb.prompts: 'SciFcat'", "did you mean 'SciFact'?"],
            ),
            (
                ["--mteb", "SciFact", "--set", "evaluation.mteb.task_instruction='Instruct'"],
                ["must hold {instruction}"],
            ),
            (["--mteb", "SciFact", "--task", "reranking"], ["none of these tasks gives candidates to rerank"]),
            (
                ["--mteb", "SciFact", "--task", "reranking", "--plan"],
                ["none of these tasks gives candidates to rerank"],
            ),
            (["--mteb", "MindSmallReranking", "--task", "reranking"], ["raise evaluation.mteb.max_pairs"]),
        ],
    )
    def test_wrong_usage_is_told_in_one_line(
        self, data: Path, tmp_path: Path, options: list[str], words: list[str]
    ) -> None:
        done = evaluate(data, tmp_path / "outputs", *options)
        assert_refused(done, 2, *words)
        assert not (tmp_path / "outputs").exists()

    def test_a_plan_counts_mtebs_tasks_by_their_published_sizes(self, data: Path, tmp_path: Path) -> None:
        options = ("--plan", "--dataset", "scifact", "--mteb", "STS12,MindSmallReranking,AskUbuntuDupQuestions")
        done = successful(evaluate(data, tmp_path / "outputs", *options))
        assert "left out: reranking MindSmallReranking, 97,008,807 pairs, more than" in done.stderr
        lines = {tuple(line.split()[:2]): line.split()[2:5] for line in done.stdout.splitlines()}
        assert lines["embedding", "STS12"][:2] == ["0", "6,216"]
        assert ("reranking", "MindSmallReranking") not in lines
        assert lines["embedding", "MindSmallReranking"][:2] == ["2,362,514", "2,367,791"]
        assert lines["reranking", "AskUbuntuDupQuestions"][:2] == ["361", "7,220"]
        pairs = [int(number.replace(",", "")) for number in lines["reranking", "AskUbuntuDupQuestions"]]
        assert 10 * pairs[1] < pairs[2] < 1000 * pairs[1]
        forced = evaluate(data, tmp_path / "outputs", *options, "--set", "evaluation.mteb.max_pairs=null")
        (mind,) = (line for line in forced.stdout.splitlines() if line.startswith("reranking  MindSmallReranking"))
        assert mind.split()[2:4] == ["2,362,514", "97,008,807"]
        assert "left out" not in forced.stderr
        assert not (tmp_path / "outputs").exists()
