"""A cross-encoder trained on lists: results, resumption, upload, bad input; and losses compared. On a tiny encoder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.heads import topics_folder
from support.scripts import Done, assert_refused, call_script
from support.studies import cross_encoder_config
from support.tiny_encoders import save_tiny_encoder

from unimoe.analysis.gates.definitions import load_gates
from unimoe.config.files import config_root, load_config
from unimoe.core.errors import DataError, MissingPartError
from unimoe.core.trec import Run, ranked, read_run
from unimoe.data.catalog import result_name
from unimoe.evaluation.reranking.rerankers import CrossEncoderReranker
from unimoe.evaluation.reranking.shards import rerank_run
from unimoe.metrics import score_run
from unimoe.models.rerankers.cross_encoder import load_cross_encoder
from unimoe.results import read_result, result_path, run_path
from unimoe.results.folder import load_all_results
from unimoe.studies.common.pool_results import RerankingPools
from unimoe.studies.common.trained_model import read_trained
from unimoe.studies.cross_encoder.config import CrossEncoderConfig, CrossEncoderModelConfig
from unimoe.studies.cross_encoder.data import load_cross_encoder_data
from unimoe.studies.cross_encoder.evaluation import train_and_evaluate
from unimoe.studies.cross_encoder.model import find_cross_encoder
from unimoe.studies.cross_encoder.trainer import CrossEncoderManifest, CrossEncoderTraining

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
STEPS = 6


def manifest_of(folder: Path) -> CrossEncoderManifest:
    return read_trained(folder, CrossEncoderManifest, "cross-encoder")


def reranked(model: Any, data: RerankingPools, batch_size: int) -> Run:
    return rerank_run(CrossEncoderReranker(model, batch_size), data.collection, data.candidates)[0]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny encoder and a small collection."""
    root = tmp_path_factory.mktemp("cross")
    return save_tiny_encoder(root / "encoder"), topics_folder(root / "topics", {"train": 24, "dev": 6, "test": 6})


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIMOE_CACHE", str(tmp_path_factory.getbasetemp() / "cross-cache"))


def trained(settings: CrossEncoderConfig) -> CrossEncoderTraining:
    return CrossEncoderTraining(settings, load_cross_encoder_data(settings), CPU)


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def done(places: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> CrossEncoderConfig:
    """A finished training with its results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNIMOE_CACHE", str(tmp_path_factory.getbasetemp() / "cross-cache"))
        settings = cross_encoder_config(*places, tmp_path_factory.mktemp("done"))
        train_and_evaluate(settings, CPU)
    return settings


def test_it_leaves_results_that_the_analysis_reads_and_a_card_with_loss_and_citation(done: CrossEncoderConfig) -> None:
    results, dataset = load_all_results(Path(done.output_dir)), result_name(done.lists.source)
    assert set(results) == {"bm25", "cross_encoder"}
    place = (Path(done.output_dir), "cross_encoder", 3, "reranking", dataset)
    result = read_result(result_path(*place))
    assert (result.identity.checkpoint, result.identity.split, result.identity.depth) == ("best", "test", 6)
    assert result.training is not None
    assert (result.training.steps, result.training.ranking_examples) == (STEPS, 4 * STEPS)
    assert result.training.tokens > 0
    assert result.first_stage is not None
    run = read_run(run_path(*place))
    data = load_cross_encoder_data(done).test[0]
    assert score_run(data.collection.qrels, run).aggregate["ndcg@10"] == pytest.approx(result.aggregate["ndcg@10"])
    folder = Path(done.output_dir) / "cross_encoder" / "seed_3" / "checkpoint"
    again = reranked(load_cross_encoder(folder, CPU), data, done.evaluation.batch_size)
    assert {q: ranked(scores) for q, scores in again.items()} == {q: ranked(scores) for q, scores in run.items()}
    card = (folder / "README.md").read_text("utf-8")
    assert '"normalization_method": "sum"' in card
    assert "lan2014position" in card


def test_the_best_on_dev_is_kept_and_the_logs_have_their_lines(done: CrossEncoderConfig) -> None:
    folder = Path(done.output_dir) / "cross_encoder" / "seed_3"
    logs = {name: read_lines(folder / "logs" / f"{name}.jsonl") for name in ("train", "dev")}
    assert [line["step"] for line in logs["train"]] == [*range(1, STEPS + 1)]
    assert [line["step"] for line in logs["dev"]] == [2, 4, 6]
    best = max(line["mean_ndcg@10"] for line in logs["dev"])
    assert manifest_of(folder / "checkpoint").dev == pytest.approx(best)
    dev = load_cross_encoder_data(done).dev[0]
    run = reranked(load_cross_encoder(folder / "checkpoint", CPU), dev, done.evaluation.batch_size)
    assert score_run(dev.collection.qrels, run).aggregate["ndcg@10"] == pytest.approx(best)


def test_what_is_done_is_skipped_and_a_failed_upload_loses_nothing(
    done: CrossEncoderConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    path = result_path(Path(done.output_dir), "cross_encoder", 3, "reranking", result_name(done.lists.source))
    folder, before = Path(done.output_dir) / "cross_encoder" / "seed_3" / "checkpoint", path.stat().st_mtime_ns
    with pytest.raises(MissingPartError, match="could not be uploaded to somebody/nothing") as raised:
        train_and_evaluate(done.model_copy(update={"push_to_hub": "somebody/nothing"}), CPU)
    assert str(folder) in str(raised.value)
    assert raised.value.exit_code == 4
    manifest_of(folder)
    assert path.stat().st_mtime_ns == before
    assert "over BM25" in capsys.readouterr().out


class TestModel:
    def test_a_base_that_cannot_be_trained_is_refused(self, places: tuple[Path, Path], tmp_path: Path) -> None:
        shutil.copytree(places[0], tmp_path / "nli")
        settings = json.loads((tmp_path / "nli" / "config.json").read_text("utf-8"))
        settings |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "no", "1": "yes"}}
        (tmp_path / "nli" / "config.json").write_text(json.dumps(settings), "utf-8")
        with pytest.raises(DataError, match="has 2 labels"):
            find_cross_encoder(CrossEncoderModelConfig(base=str(tmp_path / "nli")))
        with pytest.raises(DataError, match=r"model\.base 'nobody/nothing' cannot be loaded"):
            find_cross_encoder(CrossEncoderModelConfig(base="nobody/nothing"))
        deep = {"base": str(places[0]), "frozen_layers": 3}
        with pytest.raises(DataError, match=r"model\.frozen_layers 3: the base has 2 layers"):
            trained(cross_encoder_config(*places, tmp_path, model=deep)).fit()


def test_a_loss_that_is_not_finite_stops_and_names_the_queries(places: tuple[Path, Path], tmp_path: Path) -> None:
    training = trained(cross_encoder_config(*places, tmp_path, learning_rate=1e30, eval_every=100))
    with pytest.raises(DataError, match=r"the loss of the queries 'train\d\d', .* is (nan|inf); lower learning_rate"):
        training.fit()
    assert not training.checkpoint_dir.exists()


def test_dev_without_a_relevant_candidate_is_refused(places: tuple[Path, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(places[1], tmp_path / "topics")
    head, *rows = (folder / "qrels" / "dev.tsv").read_text().splitlines()
    none = [row.rpartition("\t")[0] + "\t0" for row in rows]
    (folder / "qrels" / "dev.tsv").write_text("\n".join([head, *none]) + "\n")
    with pytest.raises(DataError, match="no dev query has a relevant document among its candidates"):
        load_cross_encoder_data(cross_encoder_config(places[0], folder, tmp_path / "out"))


@pytest.fixture
def compare(places: tuple[Path, Path], tmp_path: Path) -> Callable[..., Done]:
    """Calls the script with a config of two steps."""
    file = tmp_path / "losses.yaml"
    settings = cross_encoder_config(*places, tmp_path / "out", max_steps=2)
    file.write_text(json.dumps(settings.model_dump(mode="json")), encoding="utf-8")

    def call(losses: str, *more: str | Path) -> Done:
        given = ("--config", file, "--losses", losses, "--device", "cpu", "--threads", "1")
        return call_script("compare_losses.py", *given, *more)

    return call


def test_each_loss_gets_its_best_rate_on_dev_and_the_gates_come_first(
    places: tuple[Path, Path], tmp_path: Path, compare: Callable[..., Done]
) -> None:
    out, rates = tmp_path / "out", ("--rates", "3e-2,1e-5")
    done = compare("softmax,pg_rank", "--seeds", "2", *rates)
    assert "pg_rank-beats-softmax" in done.stdout
    assert "corrected by Holm over all differences of this table" in " ".join(done.stdout.split())
    key = f"reranking/{places[1].name}"
    assert load_all_results(out).seeds_pair(("softmax", "pg_rank"), [key])  # the same lists, and so the same batches
    for arm in ("softmax", "pg_rank"):
        tried = json.loads((out / "tuning" / f"{arm}.json").read_text())
        assert [one["learning_rate"] for one in tried] == [1e-5, 3e-2]
        best = max(tried, key=lambda one: one["val"])["learning_rate"]
        assert manifest_of(out / arm / "seed_0" / "checkpoint").config["learning_rate"] == best
    assert {path.name for path in (out / "tuning").glob("*/*/seed_*")} == {"seed_102"}  # none that is reported
    assert [*load_gates(out / "gates.yaml").gates] == ["pg_rank-beats-softmax"]
    assert_refused(compare("softmax,pg_rank", "--seeds", "1", *rates), 3, "registers another gate")


def test_losses_that_share_one_rate_register_no_gate(tmp_path: Path, compare: Callable[..., Done]) -> None:
    done = compare("softmax,pg_rank", "--seeds", "1")
    assert not (tmp_path / "out" / "gates.yaml").exists()
    assert "no gate is registered, since all losses share one rate; give --rates" in done.stderr
    assert_refused(compare("lambdalos"), 2, "unknown arm 'lambdalos'", "did you mean 'lambdaloss'")
    assert_refused(compare("softmax", "--rates", "7"), 2, "--rates 7: a learning rate lies between 0 and 1")


def test_shipped_configs_are_read_and_the_preset_is_the_recipe() -> None:
    for path in (config_root() / "cross_encoder").glob("*.yaml"):
        load_config(CrossEncoderConfig, path)
    recipe = load_config(CrossEncoderConfig, Path("cross_encoder/seed001"))
    assert (recipe.batch_size, recipe.learning_rate, recipe.warmup_ratio, recipe.seed) == (16, 2e-5, 0.1, 12)
    assert (recipe.eval_every, recipe.lists.held_out, recipe.loss.name) == (500, 1000, "plistmle")
