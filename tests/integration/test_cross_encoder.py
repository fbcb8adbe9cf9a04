"""Cross-encoders: a training and what it leaves, and the comparison of their losses."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import PListMLELambdaWeight, PListMLELoss
from support.scripts import Done, assert_refused, call_script, read_plain, successful, write_plain
from support.studies import cross_encoder_config, topics_folder
from support.tiny_models import save_tiny_encoder
from torch import Tensor

from unimoe.analysis.gates.definitions import load_gates
from unimoe.core.errors import DataError, MissingPartError
from unimoe.core.trec import Run, ranked
from unimoe.data.catalog import result_name
from unimoe.formats.runs import read_run
from unimoe.metrics import score_run
from unimoe.models.reranker import rerank_run
from unimoe.models.rerankers.cross_encoder import CrossEncoderReranker, load_cross_encoder
from unimoe.results import read_result, result_path, run_path
from unimoe.results.folder import load_all_results
from unimoe.studies.common.pool_results import RerankingPools
from unimoe.studies.common.trained_model import read_trained
from unimoe.studies.cross_encoder.config import CrossEncoderConfig, CrossEncoderModelConfig
from unimoe.studies.cross_encoder.data import CrossEncoderData, load_cross_encoder_data
from unimoe.studies.cross_encoder.evaluation import train_and_evaluate
from unimoe.studies.cross_encoder.trainer import (
    CrossEncoderManifest,
    CrossEncoderTraining,
    find_cross_encoder,
    new_cross_encoder,
)

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")

CPU = torch.device("cpu")


def reranked(done: CrossEncoderConfig, data: RerankingPools) -> Run:
    model = load_cross_encoder(folder_of(done) / "checkpoint", CPU)
    reranker = CrossEncoderReranker(model, done.evaluation.batch_size)
    return rerank_run(reranker, data.collection, data.candidates)[0]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A tiny encoder and a small collection, with a cache for all tests of this file."""
    root = tmp_path_factory.mktemp("cross")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNIMOE_CACHE", str(root / "cache"))
        yield save_tiny_encoder(root / "encoder"), topics_folder(root / "topics", {"train": 24, "dev": 6, "test": 6})


def trained(settings: CrossEncoderConfig) -> CrossEncoderTraining:
    return CrossEncoderTraining(settings, load_cross_encoder_data(settings), CPU)


@pytest.fixture(scope="module")
def done(places: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> CrossEncoderConfig:
    """A finished training with its results."""
    settings = cross_encoder_config(*places, tmp_path_factory.mktemp("done"))
    train_and_evaluate(settings, CPU)
    return settings


def folder_of(done: CrossEncoderConfig) -> Path:
    return Path(done.output_dir) / "cross_encoder" / "seed_3"


def test_a_cross_encoder_leaves_results_logs_and_a_card_and_is_the_best_on_dev(done: CrossEncoderConfig) -> None:
    results, dataset = load_all_results(Path(done.output_dir)), result_name(done.lists.source)
    assert set(results) == {"bm25", "cross_encoder"}
    place = (Path(done.output_dir), "cross_encoder", 3, "reranking", dataset)
    result = read_result(result_path(*place))
    assert (result.identity.checkpoint, result.identity.split, result.identity.depth) == ("best", "test", 6)
    assert result.training is not None
    assert (result.training.steps, result.training.ranking_examples) == (6, 24)
    run, again = read_run(run_path(*place)), reranked(done, load_cross_encoder_data(done).test[0])
    assert {q: ranked(scores) for q, scores in again.items()} == {q: ranked(scores) for q, scores in run.items()}
    card = (folder_of(done) / "checkpoint" / "README.md").read_text("utf-8")
    assert '"normalization_method": "sum"' in card
    assert "lan2014position" in card
    train, dev = (
        [json.loads(line) for line in (folder_of(done) / "logs" / f"{name}.jsonl").read_text("utf-8").splitlines()]
        for name in ("train", "dev")
    )
    assert [line["step"] for line in train] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in dev] == [0, 2, 4, 6]
    best = max(line["mean_ndcg@10"] for line in dev)
    manifest = read_trained(folder_of(done) / "checkpoint", CrossEncoderManifest, "cross-encoder")
    assert manifest.dev == pytest.approx(best)
    assert manifest.start == dev[0]["mean_ndcg@10"]
    assert dev[manifest.best_step // 2]["mean_ndcg@10"] == manifest.dev
    pools = load_cross_encoder_data(done).dev[0]
    assert score_run(pools.collection.qrels, reranked(done, pools)).aggregate["ndcg@10"] == pytest.approx(best)


def test_what_is_done_is_skipped_and_a_failed_upload_loses_nothing(
    done: CrossEncoderConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [result_path(Path(done.output_dir), "cross_encoder", 3, "reranking", result_name(done.lists.source))]
    paths.append(folder_of(done) / "checkpoint" / "unimoe.json")
    before = [path.stat().st_mtime_ns for path in paths]
    with pytest.raises(MissingPartError, match="could not be uploaded to somebody/nothing") as raised:
        train_and_evaluate(done.model_copy(update={"push_to_hub": "somebody/nothing"}), CPU)
    assert str(folder_of(done) / "checkpoint") in str(raised.value)
    assert raised.value.exit_code == 4
    assert [path.stat().st_mtime_ns for path in paths] == before
    assert "over BM25" in capsys.readouterr().out


def of_one_length(data: CrossEncoderData) -> CrossEncoderData:
    """The same lists with topics of two digits, so that sorting by length changes nothing."""

    def padded(text: str) -> str:
        return re.sub(r"topic(\d) ", r"topic0\1 ", text)

    lists = tuple(
        replace(one, query=padded(one.query), documents=tuple(map(padded, one.documents))) for one in data.lists.lists
    )
    return replace(data, lists=replace(data.lists, lists=lists))


def their_training(training: CrossEncoderTraining, folder: Path) -> tuple[list[float], dict[str, Tensor]]:
    """The losses and the last weights of the library's trainer, on the same lists from the same first weights."""
    config = training.config
    model = new_cross_encoder(config, training._base, CPU)
    loss = PListMLELoss(model, lambda_weight=PListMLELambdaWeight(), mini_batch_size=config.mini_batch_size)
    columns = {
        "query": [one.query for one in training.lists.lists],
        "docs": [[*one.documents] for one in training.lists.lists],
        "labels": [[*one.labels] for one in training.lists.lists],
    }
    given = CrossEncoderTrainingArguments(
        output_dir=str(folder), max_steps=training.steps, per_device_train_batch_size=config.batch_size,
        learning_rate=config.learning_rate, warmup_steps=config.warmup_ratio, weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm, seed=config.seed, logging_steps=1, save_strategy="no", report_to=[],
        use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = CrossEncoderTrainer(model=model, args=given, train_dataset=Dataset.from_dict(columns), loss=loss)
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line], model.state_dict()


@pytest.mark.parametrize("equal", [True, False])
def test_without_dropout_the_steps_are_those_of_the_librarys_trainer(
    equal: bool, places: tuple[Path, Path], tmp_path: Path
) -> None:
    """Over two epochs, and a warm-up that is no whole number of steps."""
    encoder = shutil.copytree(places[0], tmp_path / "encoder")
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    write_plain(encoder / "config.json", read_plain(encoder / "config.json") | none)
    config = cross_encoder_config(encoder, places[1], tmp_path / "out", max_steps=12, eval_every=5, warmup_ratio=0.2)
    data = load_cross_encoder_data(config)
    training, losses = CrossEncoderTraining(config, of_one_length(data) if equal else data, CPU), list[float]()
    ends = dict[str, Tensor]()

    def on_step(step: int, facts: dict[str, Any]) -> None:
        losses.append(facts["loss"])
        ends.update({name: weight.clone() for name, weight in training._model.state_dict().items()})

    training.run(on_step)
    expected, weights = their_training(training, tmp_path / "theirs")
    if equal:
        assert losses == expected
        assert all(torch.equal(ends[name], weight) for name, weight in weights.items())
    assert losses == pytest.approx(expected, abs=1e-5)  # they are 1e-6 apart; another warm-up, 3e-2


def test_a_cross_encoder_that_no_step_makes_better_keeps_its_start(places: tuple[Path, Path], tmp_path: Path) -> None:
    settings = cross_encoder_config(*places, tmp_path, learning_rate=1e-30)
    training = trained(settings)
    found = training.fit()
    assert (found.start, found.best_step) == (found.dev, 0)
    assert training.choice == f"best on dev after step 0: {100 * found.start:.2f} -> {100 * found.dev:.2f}"
    start = new_cross_encoder(settings, training._base, CPU).state_dict()
    saved = load_cross_encoder(training.checkpoint_dir, CPU).state_dict()
    assert all(torch.equal(saved[name], weight) for name, weight in start.items())


def test_a_loss_that_is_not_finite_stops_and_names_the_queries(places: tuple[Path, Path], tmp_path: Path) -> None:
    training = trained(cross_encoder_config(*places, tmp_path, learning_rate=1e30, eval_every=100))
    with pytest.raises(
        DataError, match=r"seed 3, step 2: the weights overflow; its queries are 'train\d\d', .*; lower learning_rate"
    ):
        training.fit()
    assert not training.checkpoint_dir.exists()


def test_a_base_or_lists_that_cannot_be_trained_on_are_refused(places: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(places[0], tmp_path / "nli")
    config = tmp_path / "nli" / "config.json"
    labels = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "no", "1": "yes"}}
    write_plain(config, read_plain(config) | labels)
    for base, words in ((str(tmp_path / "nli"), "has 2 labels"), ("nobody/nothing", "'nobody/nothing' cannot be load")):
        with pytest.raises(DataError, match=words):
            find_cross_encoder(CrossEncoderModelConfig(base=base))
    deep = {"base": str(places[0]), "frozen_layers": 3}
    with pytest.raises(DataError, match=r"model\.frozen_layers 3: the base has 2 layers"):
        trained(cross_encoder_config(*places, tmp_path, model=deep)).fit()
    folder = shutil.copytree(places[1], tmp_path / "topics")
    head, *rows = (folder / "qrels" / "dev.tsv").read_text().splitlines()
    none = [row.rpartition("\t")[0] + "\t0" for row in rows]
    (folder / "qrels" / "dev.tsv").write_text("\n".join([head, *none]) + "\n")
    with pytest.raises(DataError, match="no dev query has a relevant document among its candidates"):
        load_cross_encoder_data(cross_encoder_config(places[0], folder, tmp_path / "out"))


@pytest.fixture
def compare(places: tuple[Path, Path], tmp_path: Path) -> Callable[..., Done]:
    """Calls the script with a config of two steps."""
    settings = cross_encoder_config(*places, tmp_path / "out", max_steps=2, loss={"name": "yes_no"})
    write_plain(tmp_path / "losses.yaml", settings.model_dump(mode="json"))
    given = (
        "--config",
        tmp_path / "losses.yaml",
        "--output-dir",
        tmp_path / "out",
        "--device",
        "cpu",
        "--threads",
        "1",
    )
    return partial(call_script, "compare_losses.py", *given, "--losses")


def test_each_loss_gets_its_best_rate_on_dev_and_the_gates_come_first(
    places: tuple[Path, Path], tmp_path: Path, compare: Callable[..., Done]
) -> None:
    out, rates = tmp_path / "out", ("--rates", "3e-2,1e-5")
    done = compare("softmax,pg_rank", "--seeds", "2", *rates)
    assert "pg_rank-beats-softmax" in done.stdout
    assert "corrected by Holm over all differences of this table" in " ".join(done.stdout.split())
    key = f"reranking/{places[1].name}"
    assert load_all_results(out).seeds_pair(("softmax", "pg_rank"), [key])  # the same lists, not those of yes_no
    for arm in ("softmax", "pg_rank"):
        tried = read_plain(out / "tuning" / f"{arm}.json")
        assert [one["learning_rate"] for one in tried] == [3e-2, 1e-5]
        best = max(tried, key=lambda one: one["val"])["learning_rate"]
        assert read_plain(out / arm / "seed_0" / "checkpoint" / "unimoe.json")["config"]["learning_rate"] == best
    tuned = [*(out / "tuning").rglob("*")]
    assert {path.name for path in tuned if path.name.startswith("seed_")} == {"seed_102"}  # none that is reported
    assert not [path for path in tuned if path.suffix == ".trec" or "results" in path.parts], "no score on test"
    assert [*load_gates(out / "gates.yaml").gates] == ["pg_rank-beats-softmax"]
    assert_refused(compare("softmax,pg_rank", "--seeds", "1", *rates), 3, "registers another gate")


def test_losses_that_share_one_rate_register_no_gate(tmp_path: Path, compare: Callable[..., Done]) -> None:
    done = successful(compare("softmax,pg_rank", "--seeds", "1"))
    assert not (tmp_path / "out" / "gates.yaml").exists()
    assert "losses: arms 2, settings 2, seeds 1" in done.stderr
    assert_refused(compare("softmax", "--rates", "1e-5,fast"), 2, 'learning_rate: must be a number (it is "fast")')
