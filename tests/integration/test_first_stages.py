"""First stages of ``evaluate``: the fusion with its plan, and all x rerankers x collections from one file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer
from support.engine import ThreadActors
from support.scripts import Done, Finished, assert_refused, call_unimoe, evaluate, result_of, run_of, successful
from support.tiny_models import save_tiny_colbert, save_tiny_cross_encoder, save_tiny_encoder, save_tiny_splade
from support.toy_collections import invented, write_invented

from unimoe.config import BM25Config
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.first_stage import reciprocal_rank_fusion

pytestmark = pytest.mark.usefixtures("one_thread")

STAGES = {"bm25s": "bm25", "dense": "dense", "sparse": "sparse", "late": "late", "fusion": "fusion"}
SYSTEMS, COLLECTIONS, DEPTH = ("ce", "splade", "colbert"), ("toy", "other"), 12
TOY = invented(documents=30, queries=5)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("stages")
    for number, name in enumerate(COLLECTIONS):
        write_invented(folder / name, invented(documents=30 - number, queries=5))
    save_tiny_encoder(folder / "encoder")
    save_tiny_cross_encoder(folder / "ce")
    save_tiny_splade(folder / "splade", folder / "mlm")
    save_tiny_colbert(folder / "colbert", folder / "bare")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # models are named by relative paths
        yield folder


def options(data: Path, output_dir: Path, **settings: object) -> list[str]:
    given = {"depth": DEPTH, "fusion.encoder.base": data / "encoder", **settings}
    words = [word for key, value in given.items() for word in ("--set", f"evaluation.{key}={value}")]
    return ["--device", "cpu", "--set", "model.dtype=float32", "--output-dir", str(output_dir), *words]


def fused(data: Path, output_dir: Path, *more: str, stage: str = "fusion", model: str = "cross-encoder:ce") -> Done:
    """Evaluate one model on one collection after one first stage."""
    return evaluate(data, *options(data, output_dir, first_stage=stage), "--dataset", "toy", "--model", model, *more)


def table(data: Path, output_dir: Path) -> Done:
    """Run the shipped table on tiny models."""
    systems = "{ce: 'cross-encoder:ce', splade: 'sparse:splade', colbert: 'late:colbert'}"
    bases = {"sparse.base": data / "splade", "late.base": data / "colbert"}
    words = options(data, output_dir, systems=systems, datasets=f"[{', '.join(COLLECTIONS)}]", **bases)
    return evaluate(data, "--config", "tables/first_stages", *words, cache="cache-of-table")


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    output_dir = tmp_path_factory.mktemp("finished")
    return output_dir, successful(fused(data, output_dir))


@pytest.fixture(scope="module")
def finished_table(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    output_dir = tmp_path_factory.mktemp("table")
    return output_dir, successful(table(data, output_dir))


class TestFusion:
    def test_candidates_are_bm25s_and_sentence_transformers_fused(self, data: Path, finished: Finished) -> None:
        output_dir, done = finished
        theirs = SentenceTransformer(str(data / "encoder"), device="cpu")
        documents = theirs.encode([document.full_text for document in TOY.corpus.values()])
        cosines = theirs.similarity(theirs.encode(list(TOY.queries.values())), documents).tolist()
        rows = zip(TOY.queries, cosines, strict=True)
        dense = {query: dict(zip(TOY.corpus, row, strict=True)) for query, row in rows}
        expected = reciprocal_rank_fusion([bm25_run(TOY, 100, BM25Config()), dense], depth=100)
        assert run_of(output_dir, "first_stage", task="retrieval") == expected
        assert run_of(output_dir, "ce").keys() == expected.keys()
        for query_id, scores in run_of(output_dir, "ce").items():
            assert scores.keys() == set(list(expected[query_id])[:DEPTH])
        names = {result_of(output_dir, arm).identity.first_stage for arm in ("ce", "first_stage")}
        (name,) = map(str, names)
        assert name.startswith("fusion(bm25s(k1=0.9,b=0.4,stemmer=english),encoder@")
        assert name.endswith(",float32,depth=100,k=60)")
        assert "35 texts embedded" in done.stderr

    def test_a_plan_counts_what_has_to_be_embedded(self, data: Path, tmp_path: Path) -> None:
        here = shutil.copytree(data, tmp_path / "data", ignore=shutil.ignore_patterns("cache*"))
        done = successful(fused(here, tmp_path / "outputs", "--plan"))
        _, fusion, words, reranking, seconds, total = done.stdout.splitlines()
        assert fusion.split()[:5] == ["fusion", "toy", "5", "35", "-"]
        assert words.split()[:5] == ["bm25s", "toy", "5", "35", "-"]
        assert reranking.split()[:5] == ["reranking", "toy", "5", str(5 * DEPTH), "-"]
        assert seconds.startswith("first stages: 70 texts, ")
        assert seconds.endswith(" texts a second)")
        assert total.startswith(f"total: {5 * DEPTH} pairs, ")
        assert not [*(here / "cache" / "dense").glob("*.trec")]
        assert not (tmp_path / "outputs").exists()
        again = successful(fused(here, tmp_path / "outputs", "--plan")).stdout
        assert "bm25s" not in again, "what is kept is not searched again"

    def test_another_fusion_and_the_encoder_take_the_kept_vectors(
        self, data: Path, finished: Finished, tmp_path: Path
    ) -> None:
        (kept,) = (path for path in (data / "cache" / "vectors").iterdir() if path.is_dir())
        stamp = (kept / "vectors.npy").stat().st_mtime_ns
        deeper = ("--set", "evaluation.fusion.depth=200")
        plan = successful(fused(data, tmp_path / "deeper", *deeper, "--plan")).stdout.splitlines()
        assert plan[1].split()[:5] == ["fusion", "toy", "5", "5", "-"], "queries alone"
        assert ": 5 texts embedded" in successful(fused(data, tmp_path / "deeper", *deeper)).stderr
        alone, encoder = tmp_path / "alone", "encoder:encoder"
        plan = successful(fused(data, alone, "--plan", stage="bm25s", model=encoder)).stdout.splitlines()
        assert plan[1].split()[:4] == ["embedding", "toy", "5", "5"]
        successful(fused(data, alone, stage="bm25s", model=encoder))
        search = ("retrieve", "--dataset", "toy", "--encoder", data / "encoder", "--output-dir", tmp_path / "retrieve")
        exact = ("--device", "cpu", "--set", "encoder.dtype=float32")
        successful(call_unimoe(*search, *exact, UNIMOE_DATA=str(data), UNIMOE_CACHE=str(data / "cache")))
        assert [path for path in kept.parent.iterdir() if path.is_dir()] == [kept]
        assert (kept / "vectors.npy").stat().st_mtime_ns == stamp
        searched = run_of(tmp_path / "retrieve", "encoder", task="retrieval")
        assert run_of(alone, "encoder", task="embedding") == searched


class TestTable:
    def test_every_system_has_a_result_on_every_first_stage(self, data: Path, finished_table: Finished) -> None:
        output_dir, done = finished_table
        arms = [*STAGES.values(), *(f"{system}@{stage}" for system in SYSTEMS for stage in STAGES)]
        assert {path.parents[3].name for path in output_dir.rglob("results/reranking/toy.json")} == {*arms}
        for dataset in COLLECTIONS:
            for stage, alone in STAGES.items():
                before = result_of(output_dir, alone, dataset)
                assert str(before.identity.first_stage).startswith(f"{stage}(")
                for name in (alone, *(f"{system}@{stage}" for system in SYSTEMS)):
                    after = result_of(output_dir, name, dataset)
                    assert after.identity.first_stage == before.identity.first_stage
                    assert after.first_stage is not None
                    assert after.first_stage.aggregate == before.aggregate
        for arm in arms:  # the table that the command prints at the end
            assert done.stdout.count(f"\n {arm} ") >= 1
        again = successful(table(data, output_dir))
        assert again.stdout == done.stdout
        assert again.stderr.count("already done") == 2 * 5 * (3 + 2)
        assert "embedded" not in again.stderr

    @pytest.mark.parametrize(("kind", "base"), [("sparse", "splade"), ("late", "colbert")])
    def test_retrieve_finds_what_a_first_stage_finds(
        self, data: Path, finished_table: Finished, tmp_path: Path, kind: str, base: str
    ) -> None:
        given = ("retrieve", "--dataset", "toy", "--encoder", f"{kind}:{data / base}", "--output-dir", tmp_path)
        cache = {"UNIMOE_DATA": str(data), "UNIMOE_CACHE": str(data / "cache-of-table")}
        found = successful(call_unimoe(*given, "--device", "cpu", "--set", "encoder.dtype=float32", **cache))
        assert f"{kind}: modules.json" in " ".join(found.stderr.split())  # how the model is read
        assert run_of(tmp_path, base, task="retrieval") == run_of(finished_table[0], kind, task="retrieval")
        assert_refused(call_unimoe(*given, "--dims", "8", **cache), 2, "are for one vector for each text")

    def test_a_model_that_reranks_its_own_candidates_changes_nothing(self, finished_table: Finished) -> None:
        output_dir, _ = finished_table
        for system, stage in (("splade", "sparse"), ("colbert", "late")):
            for dataset in COLLECTIONS:
                again = run_of(output_dir, f"{system}@{stage}", dataset)
                for query, scores in run_of(output_dir, stage, dataset).items():
                    assert again[query] == pytest.approx(scores, rel=1e-5)


@pytest.mark.parametrize("model", ["sparse:splade", "late:colbert"])
def test_workers_of_a_cluster_read_as_much_of_a_text_as_this_process(
    data: Path, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They get a config with its defaults, and ``model.max_length`` of these is no length of such a model."""
    monkeypatch.setattr("unimoe.cluster.actors.RayActors", lambda address, store, *_: ThreadActors(store, 2))
    name = model.partition(":")[2]
    own = shutil.copytree(data / name, tmp_path / name)
    file = own / "sentence_bert_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"max_seq_length": 12, "document_length": 10}))
    given = ("--dataset", "toy", "--model", f"{model.partition(':')[0]}:{own}")
    local, there = tmp_path / "local", tmp_path / "there"
    successful(evaluate(data, *options(data, local), *given))
    workers = ("--engine", "ray", "--store", str(tmp_path / "store"))
    successful(evaluate(data, *options(data, there), *given, *workers))
    first, second = (result_of(folder, name, "toy") for folder in (local, there))
    assert first.identity == second.identity
    assert (first.aggregate, first.per_query) == (second.aggregate, second.per_query)
    assert run_of(local, name, "toy") == run_of(there, name, "toy")
