"""``evaluate --config`` alone: first stages x rerankers x collections from one file, and bad input of its models."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.reranking import invented, write_invented, written
from support.scripts import Done, assert_refused, call_script, successful
from support.tiny_encoders import save_sentence_transformer, save_tiny_encoder
from support.tiny_matchers import save_tiny_colbert, save_tiny_splade
from support.tiny_rerankers import save_tiny_cross_encoder

from unimoe.core.trec import read_run
from unimoe.results import EvalResult, read_result

pytestmark = pytest.mark.usefixtures("one_thread")

STAGES = {"bm25s": "bm25", "dense": "dense", "sparse": "sparse", "late": "late", "fusion": "fusion"}
SYSTEMS, COLLECTIONS, DEPTH = ("ce", "splade", "colbert"), ("toy", "wide", "odd"), 12


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    for number, name in enumerate(COLLECTIONS):
        write_invented(folder / name, invented(documents=30 - number, queries=5))
    save_sentence_transformer(save_tiny_encoder(folder / "encoder"), folder / "st")
    save_tiny_cross_encoder(folder / "ce")
    save_tiny_splade(folder / "splade", folder / "mlm")
    save_tiny_colbert(folder / "colbert", folder / "bare")
    return folder


def evaluate(data: Path, output_dir: Path, *more: str) -> Done:
    """Run the shipped table on tiny models."""
    places = {
        "systems": f"{{ce: 'cross-encoder:{data}/ce', splade: 'sparse:{data}/splade', colbert: 'late:{data}/colbert'}}",
        "datasets": f"[{', '.join(COLLECTIONS)}]",
        "depth": DEPTH,
        "sparse.base": data / "splade",
        "late.base": data / "colbert",
        "fusion.encoder.base": data / "encoder",
    }
    settings = [part for key, value in places.items() for part in ("--set", f"evaluation.{key}={value}")]
    return call_script(
        "evaluate.py", "--config", "tables/first_stages", *settings, "--set", "model.dtype=float32",
        "--device", "cpu", "--output-dir", output_dir, *more, UNIMOE_DATA=str(data), UNIMOE_CACHE=str(data / "cache"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    output_dir = tmp_path_factory.mktemp("finished")
    return output_dir, successful(evaluate(data, output_dir))


def result_of(output_dir: Path, arm: str, dataset: str) -> EvalResult:
    return read_result(output_dir / arm / "seed_none" / "results" / "reranking" / f"{dataset}.json")


class TestTable:
    def test_every_system_has_a_result_on_every_first_stage_and_none_replaces_another(
        self, finished: tuple[Path, Done]
    ) -> None:
        output_dir, done = finished
        arms = [*STAGES.values(), *(f"{system}@{stage}" for system in SYSTEMS for stage in STAGES)]
        assert {path.parents[3].name for path in output_dir.rglob("results/reranking/toy.json")} == {*arms}
        for dataset in COLLECTIONS:
            for stage, alone in STAGES.items():
                before = result_of(output_dir, alone, dataset)
                assert str(before.identity.first_stage).startswith(f"{stage}(")
                for system in SYSTEMS:
                    after = result_of(output_dir, f"{system}@{stage}", dataset)
                    assert after.identity.first_stage == before.identity.first_stage
                    assert after.first_stage is not None
                    assert after.first_stage.aggregate == before.aggregate
        for arm in arms:  # the table that the command prints at the end
            assert done.stdout.count(f"\n {arm} ") >= 1

    def test_a_model_that_reranks_its_own_candidates_changes_nothing(self, finished: tuple[Path, Done]) -> None:
        output_dir, _ = finished
        for system, stage in (("splade", "sparse"), ("colbert", "late")):
            for dataset in COLLECTIONS:
                again, first = (
                    read_run(output_dir / arm / "seed_none" / "runs" / "reranking" / f"{dataset}.trec")
                    for arm in (f"{system}@{stage}", stage)
                )
                for query, scores in first.items():
                    assert again[query] == pytest.approx(scores, rel=1e-5)

    def test_what_is_done_is_kept(self, data: Path, finished: tuple[Path, Done]) -> None:
        output_dir, first = finished
        before = written(output_dir)
        again = successful(evaluate(data, output_dir))
        assert again.stdout == first.stdout
        assert again.stderr.count("already done") == 3 * 5 * (3 + 2)
        assert "embedded" not in again.stderr
        assert written(output_dir) == before


class TestBadInput:
    @pytest.mark.parametrize(
        ("setting", "code", "words"),
        [
            ("systems={}", 2, ["evaluation.systems names no models"]),
            ("first_stages=[spares]", 2, ["evaluation.first_stages[0]", "'sparse'"]),
            ("first_stages=[sparse]", 2, ["evaluation.sparse.base: names no model"]),
            (
                "first_stages=[late]",
                3,
                ["evaluation.late.base", "a SparseEncoder, and late needs a MultiVectorEncoder"],
            ),
            ("late.pooling=cls", 2, ["evaluation.late.pooling"]),
            ("systems.ce=sparse:st", 3, ["evaluation.systems.ce", "a SentenceTransformer, and sparse needs"]),
            ("systems.ce=late:mlm", 3, ["evaluation.systems.ce", "a BertForMaskedLM, and late needs"]),
            ("sparse={base: splade, max_length: 4000}", 2, ["evaluation.sparse.max_length 4000", "64 positions"]),
            ("systems.ce=late:./nowhere", 3, ["evaluation.systems.ce", "./nowhere"]),
        ],
    )
    def test_it_is_one_line(
        self, data: Path, tmp_path: Path, setting: str, code: int, words: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(data)
        settings = ("first_stages=[sparse]", "sparse.base=''", "late.base=splade", setting)
        given = [part for each in settings for part in ("--set", f"evaluation.{each}")]
        done = evaluate(data, tmp_path / "outputs", *given)
        assert_refused(done, code, *words, silent=False)
