"""What a tier holds, how much of each collection is scored, and which document is left out as the query itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mteb
import pytest
import torch
from support.experiments import tiny_experiment
from support.reranking import invented, write_invented
from support.sources import SMALL, write_msmarco

from unimoe.config import Experiment
from unimoe.core.console import Steps
from unimoe.core.errors import DataError, MissingPartError, UsageError
from unimoe.core.trec import Run, read_run, write_run
from unimoe.data.catalog import mteb_task
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.published import CQADUPSTACK
from unimoe.evaluation.runner import Evaluator, describe
from unimoe.evaluation.store import ResultStore
from unimoe.evaluation.systems.system import first_stage_system, zero_shot_system
from unimoe.evaluation.tiers.datasets import (
    Dataset,
    Failures,
    LoadedDataset,
    chosen_datasets,
    tier_datasets,
)
from unimoe.metrics.scoring import dataset_group
from unimoe.models.loader import ModelLoader
from unimoe.results import run_beside

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("tiers"))


@pytest.fixture(scope="module")
def loaded(experiment: Experiment) -> LoadedDataset:
    return LoadedDataset(tier_datasets(experiment, "bundled")[0])


def named(collection: str, split: str = "test") -> Dataset:
    return Dataset(collection, split)


def setting(experiment: Experiment, **evaluation: object) -> Experiment:
    return experiment.model_copy(update={"evaluation": experiment.evaluation.model_copy(update=evaluation)})


class TestTiers:
    def test_full_is_beirs_fifteen_sets_with_cqadupstack_counting_once(self, experiment: Experiment) -> None:
        (bundled,), datasets = (tier_datasets(experiment, tier) for tier in ("bundled", "full"))
        assert (bundled.collection, bundled.settings.depth, bundled.queries, bundled.pool) == ("apidocs", 4, 6, 40)
        assert len({dataset.collection for dataset in datasets}) == len(datasets) == 26
        assert len({dataset_group(dataset.collection) for dataset in datasets}) == 15
        assert [
            dataset.collection for dataset in datasets if dataset_group(dataset.collection) == "cqadupstack"
        ] == list(CQADUPSTACK)


def test_failures_are_named_once_by_their_kind(capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures()
    for task in ("STS12", "STS13"):
        with failures.kept(task=task):
            raise DataError(f"{task}, text 3: not finite")
    for reason in ("one", "two"):
        with failures.kept("scifact"):
            raise KeyError(reason)
    message = r"^done, without 1 collection \(scifact\) and 2 MTEB tasks \(STS12, STS13\); the reasons are above$"
    with pytest.raises(MissingPartError, match=message):
        failures.refuse(done=True)
    with pytest.raises(DataError, match="STS12, text 3: not finite"):
        failures.refuse(done=False)
    assert failures.reasons == capsys.readouterr().err.splitlines()
    assert failures.reasons[0] == "failed: STS12, text 3: not finite"
    assert failures.reasons[-1] == "failed: scifact: KeyError: 'two'"


class TestDataset:
    @pytest.mark.parametrize(
        ("collection", "split", "metric"),
        [
            ("msmarco", "dev", "mrr@10"),
            ("path:data/msmarco-dev-positives/", "test", "mrr@10"),
            ("ir_datasets:msmarco-passage/dev/small", "dev", "mrr@10"),
            ("msmarco", "test", "ndcg@10"),
            ("ir_datasets:beir/msmarco/test", "dev", "ndcg@10"),
            ("ir_datasets:msmarco-passage/trec-dl-2019", "test", "ndcg@10"),
            ("nanobeir:MSMARCO", "test", "ndcg@10"),
            ("mteb:MSMARCO", "dev", "ndcg@10"),
            ("path:msmarco/scifact", "test", "ndcg@10"),
            ("scifact", "dev", "ndcg@10"),
        ],
    )
    def test_main_metric(self, collection: str, split: str, metric: str) -> None:
        assert named(collection, split).main_metric == metric


class TestChosen:
    def test_names_are_spelled_as_in_the_tiers_and_come_once(
        self, experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("UNIMOE_DATA", str(tmp_path))
        (tmp_path / "MyOwn").mkdir()
        names = ["SciFact", "fiqa2018", "scifact", "nanobeir:scifact", "path:A/b", "MyOwn", "mteb:ArguAna"]
        datasets = chosen_datasets(experiment, names)
        assert [dataset.collection for dataset in datasets] == [
            "scifact", "fiqa", "nanobeir:SciFact", "path:A/b", "MyOwn", "mteb:ArguAna",
        ]  # fmt: skip
        assert {(d.split, d.settings.depth, d.queries, d.pool, d.settings.first_stage) for d in datasets} == {
            ("test", 100, None, None, "bm25s")
        }

    @pytest.mark.parametrize(
        ("name", "collection", "split"),
        [
            ("MSMARCO", "msmarco", "dev"),
            ("msmarco@test", "msmarco", "test"),
            ("msmarco-dev-positives", "msmarco-dev-positives", "test"),
            ("nanobeir:MSMARCO", "nanobeir:MSMARCO", "test"),
            ("path:data/x@dev", "path:data/x", "dev"),
            ("path:da@ta/x", "path:da@ta/x", "test"),
            ("path:data/msmarco", "path:data/msmarco", "dev"),
            ("ir_datasets:beir/fiqa/dev@dev", "ir_datasets:beir/fiqa/dev", "dev"),
        ],
    )
    def test_split(
        self,
        experiment: Experiment,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        collection: str,
        split: str,
    ) -> None:
        monkeypatch.setenv("UNIMOE_DATA", str(tmp_path))
        (tmp_path / "msmarco-dev-positives").mkdir()
        (dataset,) = chosen_datasets(experiment, [name])
        assert (dataset.collection, dataset.split) == (collection, split)

    def test_a_folder_of_msmarcos_files_has_only_dev(self, experiment: Experiment, tmp_path: Path) -> None:
        (dataset,) = chosen_datasets(experiment, [f"path:{write_msmarco(tmp_path / 'passages', SMALL)}"])
        assert dataset.split == "dev"

    def test_two_splits_of_one_collection_are_refused(self, experiment: Experiment) -> None:
        with pytest.raises(UsageError, match="nfcorpus is named with the splits test and dev; evaluate them one after"):
            chosen_datasets(experiment, ["nfcorpus", "NFCorpus@dev"])


class TestLoadedDataset:
    def test_a_run_file_takes_the_place_of_bm25(
        self, experiment: Experiment, loaded: LoadedDataset, tmp_path: Path
    ) -> None:
        run: Run = {query_id: dict(list(scores.items())[:3]) for query_id, scores in loaded.first_stage.run.items()}
        write_run(tmp_path / "apidocs.trec", run, "x")
        changed = setting(experiment, first_stage=f"run:{tmp_path}/{{dataset}}.trec")
        other = LoadedDataset(tier_datasets(changed, "bundled")[0])
        assert other.first_stage.run == other.candidates == run
        assert other.first_stage.source.startswith("run:apidocs.trec@")


def ask_mteb(task: str) -> bool:
    return bool(getattr(mteb.get_task(task), "ignore_identical_ids", False))


class TestRule:
    @pytest.mark.parametrize(
        ("collection", "task"),
        [
            ("FiQA2018", "FiQA2018"),
            ("path:my/FiQA", "FiQA2018"),
            ("ir_datasets:msmarco-passage/dev/small", "MSMARCO"),
            ("ir_datasets:beir/cqadupstack/tex", "CQADupstackTexRetrieval"),
            ("trec-covid", "TRECCOVID"),
            ("mteb:ArguAna-PL", "ArguAna-PL"),
            ("mteb:BelebeleRetrieval:kor_Hang-kor_Hang", "BelebeleRetrieval"),
            ("nanobeir:climatefever", "NanoClimateFeverRetrieval"),
        ],
    )
    def test_it_is_that_of_mtebs_task_by_whatever_name_the_data_comes(self, collection: str, task: str) -> None:
        assert mteb_task(collection) == task
        assert named(collection).exclude_self is ask_mteb(task)


def with_shared_id(name: str) -> Collection:
    """A collection whose first query has the id of a document that has the same words."""
    base = invented(name=name)
    text = base.queries["q0"]
    corpus = {**base.corpus, "q0": Document("", text)}
    return assemble(name, "test", corpus.items(), base.queries.items(), base.qrels)


@pytest.fixture
def data(tmp_path: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """FiQA, ArguAna and SciFact in invented words; a query of each shares its id with a document."""
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path))
    for name in ("fiqa", "arguana", "scifact"):
        write_invented(tmp_path / name, with_shared_id(name))
    return tmp_path


@pytest.mark.usefixtures("data")
def test_every_task_leaves_out_the_same_and_a_result_of_another_rule_is_not_done(tmp_path: Path) -> None:
    experiment = tiny_experiment(tmp_path)
    system = zero_shot_system(experiment, ModelLoader(experiment, torch.device("cpu"), torch.float32))
    left_out = {"identical_ids": "left out"}
    for name, rule in (("fiqa", left_out), ("arguana", left_out), ("scifact", {})):
        data = LoadedDataset(chosen_datasets(experiment, [name])[0])
        assert ("q0" not in data.candidates["q0"]) is bool(rule)
        for one in (
            replace(system, tasks=("embedding",)),
            replace(first_stage_system(experiment), tasks=("retrieval",)),
        ):
            (task,) = one.tasks
            spec = describe(replace(one, output_dir=tmp_path / name), task, data)
            Evaluator().take(spec, Steps(1))
            store = ResultStore(tmp_path / name)
            assert ("q0" not in read_run(run_beside(store.path(spec)))["q0"]) is bool(rule)
            before = replace(spec, hashes={key: v for key, v in spec.hashes.items() if key != "identical_ids"})
            assert spec.hashes == before.hashes | rule
            assert store.is_done(spec)
            assert store.is_done(before) is not bool(rule)
