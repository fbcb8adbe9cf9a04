"""``evaluation.first_stage=fusion`` through the commands: candidates, results, resumption, plan and bad input."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from support.reranking import invented, write_invented, written
from support.scripts import Done, assert_refused, call_script, call_unimoe, successful
from support.tiny_encoders import save_tiny_encoder
from support.tiny_rerankers import save_tiny_cross_encoder

from unimoe.config import BM25Config
from unimoe.core.trec import Run, read_run
from unimoe.results import EvalResult, read_result
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.fusion import reciprocal_rank_fusion

pytestmark = pytest.mark.usefixtures("one_thread")

COLLECTION = invented(documents=30, queries=5)
DEPTH = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fusion")
    write_invented(folder / "toy", COLLECTION)
    save_tiny_encoder(folder / "encoder")
    save_tiny_cross_encoder(folder / "ce")
    return folder


def evaluate(data: Path, output_dir: Path, *more: str, stage: str = "fusion") -> Done:
    return call_script(
        "evaluate.py", "--model", f"cross-encoder:{data / 'ce'}", "--dataset", "toy", "--output-dir", output_dir,
        "--device", "cpu", "--set", "model.dtype=float32", "--set", f"evaluation.depth={DEPTH}",
        "--set", f"evaluation.first_stage={stage}", "--set", f"evaluation.fusion.encoder.base={data / 'encoder'}",
        *more, UNIMOE_DATA=str(data), UNIMOE_CACHE=str(data / "cache"),
    )  # fmt: skip


def result_of(output_dir: Path, arm: str, task: str = "reranking") -> EvalResult:
    return read_result(output_dir / arm / "seed_none" / "results" / task / "toy.json")


def run_of(output_dir: Path, arm: str, task: str = "reranking") -> Run:
    return read_run(output_dir / arm / "seed_none" / "runs" / task / "toy.trec")


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    output_dir = tmp_path_factory.mktemp("finished")
    return output_dir, evaluate(data, output_dir)


class TestEvaluate:
    def test_candidates_are_those_of_bm25_and_sentence_transformers_fused(
        self, data: Path, finished: tuple[Path, Done]
    ) -> None:
        output_dir, done = finished
        assert done.returncode == 0, done.stderr
        theirs = SentenceTransformer(str(data / "encoder"), device="cpu")
        documents = theirs.encode([document.full_text for document in COLLECTION.corpus.values()])
        queries = theirs.encode(list(COLLECTION.queries.values()))
        cosines = theirs.similarity(queries, documents).tolist()
        dense = {
            query_id: dict(zip(COLLECTION.corpus, row, strict=True))
            for query_id, row in zip(COLLECTION.queries, cosines, strict=True)
        }
        expected = reciprocal_rank_fusion([bm25_run(COLLECTION, 100, BM25Config()), dense], depth=100)
        assert run_of(output_dir, "first_stage", "retrieval") == expected
        assert run_of(output_dir, "ce").keys() == expected.keys()
        for query_id, scores in run_of(output_dir, "ce").items():
            assert scores.keys() == set(list(expected[query_id])[:DEPTH])

    def test_results_name_it_and_hold_its_scores(self, finished: tuple[Path, Done]) -> None:
        output_dir, done = finished
        reranked, first = result_of(output_dir, "ce"), result_of(output_dir, "first_stage")
        name = str(reranked.identity.first_stage)
        assert name.startswith("fusion(bm25s(k1=0.9,b=0.4,stemmer=english),encoder@")
        assert name.endswith(",float32,depth=100,k=60)")
        assert first.identity.first_stage == name
        assert reranked.first_stage is not None
        assert reranked.first_stage.aggregate == first.aggregate
        assert "35 texts embedded" in done.stderr

    def test_what_is_done_is_kept_and_other_candidates_never_mix(self, data: Path, finished: tuple[Path, Done]) -> None:
        output_dir, first = finished
        before = written(output_dir)
        again = evaluate(data, output_dir)
        assert again.stdout == first.stdout
        assert again.stderr.count("already done") == 3
        assert "embedded" not in again.stderr
        for more, stage in (((), "bm25s"), (("--set", "evaluation.fusion.k=10"), "fusion")):
            other = evaluate(data, output_dir, *more, stage=stage)
            assert other.returncode != 0
            assert "first_stage" in other.stderr
            assert "embedded" not in other.stderr
        assert before.items() <= written(output_dir).items(), "BM25's own results are new beside them"


class TestPlan:
    def test_what_has_to_be_embedded_is_counted_and_timed_and_not_embedded(self, data: Path, tmp_path: Path) -> None:
        here = shutil.copytree(data, tmp_path / "data", ignore=shutil.ignore_patterns("cache"))
        done = successful(evaluate(here, tmp_path / "outputs", "--plan"))
        _, fusion, reranking, seconds, total = done.stdout.splitlines()
        assert fusion.split()[:5] == ["fusion", "toy", "5", "35", "-"]
        assert reranking.split()[:5] == ["reranking", "toy", "5", str(5 * DEPTH), "-"]
        assert seconds.startswith("fusion: 35 texts, ")
        assert seconds.endswith(" texts a second)")
        assert total.startswith(f"total: {5 * DEPTH} pairs, ")
        assert not (here / "cache" / "dense").is_dir() or not list((here / "cache" / "dense").glob("*.trec"))
        assert not (tmp_path / "outputs").exists()


class TestKeptVectors:
    def test_another_fusion_and_the_encoder_alone_take_them(
        self, data: Path, finished: tuple[Path, Done], tmp_path: Path
    ) -> None:
        (kept,) = (path for path in (data / "cache" / "vectors").iterdir() if path.is_dir())
        stamp = (kept / "vectors.npy").stat().st_mtime_ns
        deeper = ("--set", "evaluation.fusion.depth=200")
        plan = successful(evaluate(data, tmp_path / "deeper", *deeper, "--plan")).stdout.splitlines()
        assert plan[1].split()[:5] == ["fusion", "toy", "5", "5", "-"], "queries alone"
        assert ": 5 texts embedded" in successful(evaluate(data, tmp_path / "deeper", *deeper)).stderr
        encoder = ("--model", f"encoder:{data / 'encoder'}")
        plan = successful(evaluate(data, tmp_path / "alone", *encoder, "--plan", stage="bm25s")).stdout.splitlines()
        assert plan[1].split()[:4] == ["embedding", "toy", "5", "5"]
        successful(evaluate(data, tmp_path / "alone", *encoder, stage="bm25s"))
        successful(call_unimoe(
            "retrieve", "--dataset", "toy", "--encoder", data / "encoder", "--output-dir", tmp_path / "retrieve",
            "--device", "cpu", "--set", "encoder.dtype=float32", UNIMOE_DATA=str(data),
            UNIMOE_CACHE=str(data / "cache"),
        ))  # fmt: skip
        assert [path for path in kept.parent.iterdir() if path.is_dir()] == [kept]
        assert (kept / "vectors.npy").stat().st_mtime_ns == stamp
        runs = [
            run_of(tmp_path / folder, "encoder", task)
            for folder, task in (("alone", "embedding"), ("retrieve", "retrieval"))
        ]
        assert runs[0] == runs[1]


class TestBadInput:
    @pytest.mark.parametrize(
        ("setting", "code", "words"),
        [
            ("first_stage=fusoin", 2, ["did you mean 'fusion'?"]),
            ("fusion.encoder.base=./nowhere", 3, ["evaluation.fusion.encoder.base", "./nowhere"]),
            ("fusion.encoder.max_length=4000", 2, ["evaluation.fusion.encoder.max_length", "4000"]),
            ("fusion.encoder.dtype=int8", 2, ["evaluation.fusion.encoder.dtype"]),
            ("fusion.k=0", 2, ["evaluation.fusion.k"]),
            ("fusion.kk=1", 2, ["evaluation.fusion.kk", "did you mean 'k'?"]),
        ],
    )
    def test_it_is_one_line(self, data: Path, tmp_path: Path, setting: str, code: int, words: list[str]) -> None:
        done = evaluate(data, tmp_path / "outputs", "--set", f"evaluation.{setting}")
        assert_refused(done, code, *words, silent=False)
        assert not (tmp_path / "outputs").exists()
