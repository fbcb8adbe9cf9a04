"""``evaluate`` over collections and tasks of MTEB, up to the full tier in miniature: scores, and what is missing."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from mteb.mocks import MOCK_TASK_TEST_GRID
from support.engine import ThreadActors
from support.experiments import write_tiny_experiment
from support.full_tier import ASKED_FOR, write_full_tier
from support.scripts import Done, Finished, assert_refused, assert_same_results, evaluate, result_of, run_of, successful
from support.toy_collections import SMALL, invented, write_invented, write_msmarco

from unimoe.data.published import BEIR_NAMES, CQADUPSTACK
from unimoe.formats.qrels import read_qrels
from unimoe.metrics import score_run
from unimoe.models.batching import CPU_TOKENS

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:Conversations are a list")]
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
def suite(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    output_dir = tmp_path_factory.mktemp("suite")
    return output_dir, rerank(data, output_dir, "scifact,cqadupstack/gis,cqadupstack/tex,msmarco,fiqa")


def zero_shot(data: Path, output_dir: Path, *more: str) -> Done:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "beir.util", None)  # nothing to download with
        given = ("--zero-shot", "--config", data / "tiny.yaml", "--output-dir", output_dir)
        return evaluate(data, *given, *more)


def rerank(data: Path, output_dir: Path, names: str, *more: str) -> Done:
    return zero_shot(data, output_dir, "--dataset", names, "--task", "reranking", *more)


def test_the_first_stage_and_the_difference_stand_in_every_result(data: Path, suite: Finished) -> None:
    output_dir, done = suite
    found = result_of(output_dir, "zero_shot", "scifact")
    first = found.first_stage
    assert first is not None
    candidates = run_of(output_dir, "bm25", "scifact")
    qrels = read_qrels(output_dir / "qrels/scifact-test.qrels")
    assert first.aggregate == score_run(qrels, candidates).aggregate
    assert first.aggregate.keys() == {"ndcg@10", "mrr@10", "map", "recall@100"} == first.delta.keys()
    for metric, delta in first.delta.items():
        assert delta == found.aggregate[metric] - first.aggregate[metric]
    assert found.unjudged_queries == ["q4"]
    assert result_of(output_dir, "bm25", "scifact").aggregate == first.aggregate
    assert done.stderr.splitlines()[-1].startswith("error: done, without 1 collection (fiqa);")
    again = rerank(data, output_dir, "scifact,msmarco")
    assert (again.returncode, again.stderr.count("already done")) == (0, 4)


def test_averages_count_cqadupstack_once_and_leave_msmarco_to_its_own(suite: Finished) -> None:
    output_dir, done = suite
    named = [result_of(output_dir, "zero_shot", name) for name in ("scifact", "cqadupstack-gis", "cqadupstack-tex")]
    scifact, gis, tex = (one.aggregate["ndcg@10"] for one in named)
    before = [one.first_stage.aggregate["ndcg@10"] for one in named if one.first_stage]
    mean, first = ((one + (two + three) / 2) / 2 for one, two, three in ((scifact, gis, tex), before))
    msmarco = result_of(output_dir, "zero_shot", "msmarco")
    assert msmarco.main_metric == "mrr@10"
    lines = [line for line in done.stdout.splitlines() if "average" in line]
    mrr, ndcg, all_ndcg = lines
    assert f"average of 1: mrr@10 {msmarco.aggregate['mrr@10']:.4f} " in mrr
    assert f"average of 2: ndcg@10 {mean:.4f} (first stage {first:.4f}, {mean - first:+.4f})" in ndcg
    assert ndcg.endswith("(cqadupstack: 2 of its 12)")
    whole = (2 * mean + msmarco.aggregate["ndcg@10"]) / 3
    assert f"average of 3, msmarco included: ndcg@10 {whole:.4f} (first stage" in all_ndcg


def test_candidates_in_no_order_are_reranked_whole_and_not_scored_themselves(data: Path, tmp_path: Path) -> None:
    settings = ("--set", "evaluation.first_stage=official", "--set", "evaluation.depth=1000")
    done = successful(rerank(data, tmp_path, "msmarco", *settings))
    assert "official(top1000.dev) gives no order" in done.stderr
    found = result_of(tmp_path, "zero_shot", "msmarco")
    assert found.main_metric == "mrr@10"
    assert found.first_stage is not None
    assert found.first_stage.aggregate == found.first_stage.delta == {}
    assert "first stage" not in done.stdout
    assert not (tmp_path / "bm25").exists()


def test_tasks_of_mteb_that_cannot_be_had_are_named_and_the_others_are_evaluated(data: Path, tmp_path: Path) -> None:
    done = zero_shot(data, tmp_path, "--mteb", "NFCorpus,SciFact,STS12")
    assert_refused(done, 4, "done, without 2 MTEB tasks (NFCorpus, STS12); the reasons are above", silent=False)
    failed = [line for line in done.stderr.splitlines() if line.startswith("not available: ")]
    assert [line.split("'")[1] for line in failed] == ["mteb:NFCorpus", "mteb:STS12"]
    assert "put the BEIR folder nfcorpus under UNIMOE_DATA" in failed[0]
    assert "connect to the network, or copy the Hugging Face cache" in failed[1]
    found = result_of(tmp_path, "zero_shot", "SciFact", "embedding")
    assert found.aggregate.keys() == {"ndcg@10", "mrr@10", "map", "recall@100", "main_score"}
    assert found.aggregate["main_score"] == pytest.approx(found.aggregate["ndcg@10"], abs=1e-5)
    assert found.per_query.keys() == COLLECTION.qrels.keys()
    assert found.provenance.token_budget == CPU_TOKENS
    assert found.config.keys() >= {"training", "lora", "arms"}, "of an arm, its settings of training too"
    theirs = json.loads((tmp_path / "zero_shot/seed_none/results/embedding/SciFact.mteb.json").read_text("utf-8"))
    assert theirs["task_name"] == "SciFact"
    assert theirs["scores"]["test"][0]["main_score"] == found.aggregate["main_score"]
    assert f"embedding/SciFact zero_shot: ndcg@10 {found.aggregate['ndcg@10']:.4f}  " in done.stdout
    written = {path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"}
    assert {name.partition(".")[0].partition("-")[0] for name in written} == {"SciFact"}  # nothing of what failed


def test_a_plan_names_what_is_missing_and_counts_tasks_by_published_sizes(data: Path, tmp_path: Path) -> None:
    options = ("--plan", "--dataset", "fiqa,scifact", "--mteb", "STS12,MindSmallReranking,AskUbuntuDupQuestions")
    done = zero_shot(data, tmp_path / "outputs", *options, "--price-per-hour", "3.5")
    assert_refused(done, 4, "done, without 1 collection (fiqa)", silent=False)
    header, *_, total = done.stdout.splitlines()
    assert header.split() == ["task", "dataset", "queries", "pairs/texts", "tokens", "disk"]
    assert re.search(r"^total: [\d,]+ tokens, .* (minutes|hours), [\d,]+\.\d\d at 3\.5 an hour \(probe: .*\)$", total)
    assert "left out: reranking MindSmallReranking, 97,008,807 pairs, more than" in done.stderr
    lines = {tuple(line.split()[:2]): line.split()[2:5] for line in done.stdout.splitlines()}
    assert lines["reranking", "scifact"][0] == "5"
    assert lines["embedding", "STS12"][:2] == ["0", "6,216"]
    assert ("reranking", "MindSmallReranking") not in lines
    assert lines["embedding", "MindSmallReranking"][:2] == ["2,362,514", "2,367,791"]
    assert lines["reranking", "AskUbuntuDupQuestions"][:2] == ["361", "7,220"]
    forced = zero_shot(data, tmp_path / "outputs", *options, "--set", "evaluation.mteb.max_pairs=null")
    (mind,) = (line for line in forced.stdout.splitlines() if line.startswith("reranking  MindSmallReranking"))
    assert mind.split()[2:4] == ["2,362,514", "97,008,807"]
    assert "left out" not in forced.stderr
    assert not (tmp_path / "outputs").exists()


TEXTS = [task for task in MOCK_TASK_TEST_GRID if task.metadata.modalities == ["text"]]
MOCKS = list({task.metadata.type: type(task) for task in reversed(TEXTS)}.values())
"""Of each type of task the first, which is in several languages; the golden tests have them all."""


def full_tier(beir: Path, output_dir: Path, *more: str) -> Done:
    """Run the full tier with mock tasks in place of MTEB's benchmark, which only the hub has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unimoe.evaluation.chosen.find_tasks", lambda names: [kind() for kind in MOCKS])
        return zero_shot(beir, output_dir, "--eval-tier", "full", *more)


@pytest.fixture(scope="module")
def beir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every set of the full tier, and the configuration."""
    folder = write_full_tier(tmp_path_factory.mktemp("beir"))
    write_tiny_experiment(folder)
    return folder


@pytest.fixture(scope="module")
def whole(beir: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    output_dir = tmp_path_factory.mktemp("whole")
    return output_dir, full_tier(beir, output_dir)


def test_the_full_tier_ends_well_with_every_result_and_averages_that_name_their_sets(whole: Finished) -> None:
    output_dir, done = whole
    assert done.returncode == 0, done.stderr
    assert "failed:" not in done.stderr
    for name in (*BEIR_NAMES, *CQADUPSTACK):
        for arm in ("zero_shot", "bm25"):
            assert result_of(output_dir, arm, name).per_query
    first_stage = result_of(output_dir, "zero_shot", "hotpotqa").first_stage
    assert first_stage is not None
    assert len(first_stage.queries_without_candidates) == 1
    assert len(result_of(output_dir, "zero_shot", "arguana").truncated_queries) == 3
    for kind in MOCKS:
        assert result_of(output_dir, "zero_shot", kind.metadata.name, "embedding").aggregate
        if kind.metadata.type in ("Reranking", "InstructionReranking"):
            assert result_of(output_dir, "zero_shot", kind.metadata.name).per_query
    for words in (
        "reranking average of 14: ndcg@10 ",
        "reranking average of 1: mrr@10 ",
        "reranking average of 15, msmarco included: ndcg@10 ",
        f" of {len(MOCKS)} tasks, Mean (TaskType) ",
    ):
        assert done.stdout.count(words) == 1, words


class TestAskedFor:
    """BRIGHT, MIRACL and NanoBEIR in languages, with documents read by passages."""

    PASSAGES = ("--set", "evaluation.passage_words=40")

    @pytest.fixture(scope="class")
    def found(self, beir: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
        output_dir = tmp_path_factory.mktemp("asked")
        return output_dir, successful(rerank(beir, output_dir, ",".join(ASKED_FOR), *self.PASSAGES))

    def test_every_set_has_results_whose_first_stage_names_its_words(self, found: Finished) -> None:
        words = {
            "bright:biology": "stemmer=english",
            "bright:biology-long": "stemmer=english",
            "miracl:ko": "language=ko,bigrams",
            "miracl:th": "language=th,bigrams",
            "miracl:yo-hard": "language=yo,stemmer=none",
            "nanobeir:de/SciFact": "language=de,stemmer=snowball",
        }
        for name in ASKED_FOR:
            for arm in ("zero_shot", "bm25"):
                one = result_of(found[0], arm, name)
                assert one.identity.first_stage == f"bm25s(k1=0.9,b=0.4,{words[name]})"
                assert one.identity.passages == "40 words, stride 20"
                assert len(one.per_query) == 3
            assert one.aggregate["recall@100"] > 0, name

    def test_a_plan_counts_passages_and_others_are_refused(self, found: Finished, beir: Path, tmp_path: Path) -> None:
        rows = {}
        for more in ((), self.PASSAGES):
            plan = successful(rerank(beir, tmp_path / "plan", "bright:biology,miracl:ko", "--plan", *more))
            lines = [line.split() for line in plan.stdout.splitlines() if line.startswith("reranking ")]
            rows[more] = {name: int(pairs.replace(",", "")) for _, name, _, pairs, *_ in lines}
        assert rows[self.PASSAGES]["bright:biology"] > 20 * rows[()]["bright:biology"] > 0
        assert rows[self.PASSAGES]["miracl:ko"] == rows[()]["miracl:ko"], "short documents are one passage"
        scored = result_of(found[0], "zero_shot", "bright:biology").provenance
        again = rerank(beir, found[0], "bright:biology", *self.PASSAGES)
        assert "already done" in again.stderr
        other = rerank(beir, found[0], "bright:biology", "--set", "evaluation.passage_words=30")
        assert_refused(other, 3, "passages", silent=False)
        assert result_of(found[0], "zero_shot", "bright:biology").provenance == scored


def test_workers_of_a_cluster_find_the_same_to_the_bit(
    beir: Path, whole: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_name = {kind.metadata.name: kind for kind in MOCKS}
    monkeypatch.setattr("unimoe.cluster.actors.RayActors", lambda address, store, *_: ThreadActors(store, 2))
    monkeypatch.setattr("unimoe.evaluation.engines.find_tasks", lambda names: [by_name[name]() for name in names])
    successful(full_tier(beir, tmp_path / "out", "--engine", "ray", "--store", str(tmp_path / "store")))
    assert_same_results(whole[0], tmp_path / "out")


def test_what_is_broken_is_named_and_the_rest_is_the_same(beir: Path, whole: Finished, tmp_path: Path) -> None:
    broken = shutil.copytree(beir, tmp_path / "beir", ignore=shutil.ignore_patterns("cache"))
    with (broken / "fever" / "corpus.jsonl").open("a", encoding="utf-8") as corpus:
        corpus.write("{\n")
    with (broken / "trec-covid" / "qrels" / "test.tsv").open("a", encoding="utf-8") as qrels:
        qrels.write("nobody\td01\t1\n")
    done = rerank(broken, tmp_path / "out", "arguana,fever,scifact,trec-covid")
    last = "done, without 2 collections (fever, trec-covid); the reasons are above"
    assert_refused(done, 4, last, silent=False)
    fever, covid = (line for line in done.stderr.splitlines() if line.startswith("failed: "))
    assert "fever" in fever
    assert "trec-covid" in covid
    assert not [path for path in (tmp_path / "out").rglob("*.*") if path.stem.startswith(("fever", "trec-covid"))]
    for dataset in ("arguana", "scifact"):
        found, expected = (result_of(folder, "zero_shot", dataset) for folder in (tmp_path / "out", whole[0]))
        assert (found.aggregate, found.per_query) == (expected.aggregate, expected.per_query)
