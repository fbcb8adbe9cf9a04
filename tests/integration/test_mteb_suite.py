"""``evaluate --mteb``: result files, what is done already, and what is missing."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.experiments import write_tiny_experiment
from support.reranking import invented, write_invented
from support.scripts import Done, assert_refused, call_script, successful

from unimoe.results import EvalResult, read_result

pytestmark = pytest.mark.usefixtures("one_thread")

SCIFACT = invented(documents=14, queries=4, unjudged=1, name="scifact")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for UNIMOE_DATA with one BEIR set, and an experiment."""
    folder = tmp_path_factory.mktemp("data")
    write_invented(folder / "scifact", SCIFACT)
    write_tiny_experiment(folder)
    return folder


def evaluate(data: Path, output_dir: Path, *more: str | Path) -> Done:
    return call_script(
        "evaluate.py", "--zero-shot", "--config", data / "tiny.yaml", "--output-dir", output_dir, *more,
        UNIMOE_DATA=str(data),
    )  # fmt: skip


def result(output_dir: Path, name: str) -> EvalResult:
    return read_result(output_dir / "zero_shot" / "seed_none" / "results" / "embedding" / f"{name}.json")


@pytest.fixture(scope="module")
def suite(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    """Three tasks: one whose data nobody has here, one from a folder, and one more without data."""
    output_dir = tmp_path_factory.mktemp("suite")
    return output_dir, evaluate(data, output_dir, "--mteb", "NFCorpus,SciFact,STS12")


class TestCommand:
    def test_what_cannot_be_had_is_named_with_the_mend_and_the_rest_is_done(self, suite: tuple[Path, Done]) -> None:
        _, done = suite
        assert done.returncode == 4
        assert "Traceback" not in done.stderr
        *lines, last = done.stderr.strip().splitlines()
        failed = [line for line in lines if line.startswith("not available: ")]
        assert [line.split("'")[1] for line in failed] == ["mteb:NFCorpus", "mteb:STS12"]
        assert "put the BEIR folder nfcorpus under UNIMOE_DATA" in failed[0]
        assert "connect to the network, or copy the Hugging Face cache" in failed[1]
        assert last == "error: done, without 2 MTEB tasks (NFCorpus, STS12); the reasons are above"

    def test_the_task_has_a_result_with_mtebs_own_beside_it(self, suite: tuple[Path, Done]) -> None:
        output_dir, done = suite
        found = result(output_dir, "SciFact")
        assert (found.dataset, found.task_type, found.main_metric) == ("SciFact", "Retrieval", "ndcg@10")
        assert found.aggregate.keys() == {"ndcg@10", "mrr@10", "map", "recall@100", "main_score"}
        assert found.aggregate["main_score"] == pytest.approx(found.aggregate["ndcg@10"], abs=1e-5)
        assert found.per_query.keys() == SCIFACT.qrels.keys()
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

    def test_the_full_tier_reranks_beir_and_embeds_mtebs_benchmark(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "beir.util", None)  # nothing to download with
        done = evaluate(data, tmp_path / "outputs", "--plan", "--eval-tier", "full")
        assert done.returncode == 4
        assert done.stderr.count("not available: collection ") == 25  # 26 but for the one in the folder
        _, line, *tasks, total = done.stdout.splitlines()
        assert (line.split()[:2], total.split()[0]) == (["reranking", "scifact"], "total:")
        assert [task.split()[0] for task in tasks].count("embedding") == 41
        assert [task.split()[:2] for task in tasks if task.startswith("reranking")] == [
            ["reranking", "AskUbuntuDupQuestions"]
        ]
        assert not any("no size" in task for task in tasks)
