"""What a tier holds, and how much of each collection is scored."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.experiments import tiny_experiment
from support.sources import SMALL, write_msmarco

from unimoe.config import BM25Config, Experiment
from unimoe.core.errors import DataError, MissingPartError, UsageError
from unimoe.core.trec import Run, write_run
from unimoe.data.published import CQADUPSTACK
from unimoe.evaluation.tiers.datasets import (
    Dataset,
    Failures,
    LoadedDataset,
    chosen_datasets,
    tier_datasets,
)
from unimoe.metrics.scoring import dataset_group


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("tiers"))


@pytest.fixture(scope="module")
def loaded(experiment: Experiment) -> LoadedDataset:
    return LoadedDataset(tier_datasets(experiment, "bundled")[0])


def named(collection: str, split: str = "test") -> Dataset:
    return Dataset(collection, split, 100, BM25Config())


def setting(experiment: Experiment, **evaluation: object) -> Experiment:
    return experiment.model_copy(update={"evaluation": experiment.evaluation.model_copy(update=evaluation)})


class TestTiers:
    def test_full_is_beirs_fifteen_sets_with_cqadupstack_counting_once(self, experiment: Experiment) -> None:
        (bundled,), datasets = (tier_datasets(experiment, tier) for tier in ("bundled", "full"))
        assert (bundled.collection, bundled.depth, bundled.queries, bundled.pool) == ("apidocs", 4, 6, 40)
        assert len({dataset.collection for dataset in datasets}) == len(datasets) == 26
        assert len({dataset_group(dataset.collection) for dataset in datasets}) == 15
        assert [
            dataset.collection for dataset in datasets if dataset_group(dataset.collection) == "cqadupstack"
        ] == list(CQADUPSTACK)

    def test_full_scores_msmarco_on_dev_by_mrr(self, experiment: Experiment) -> None:
        datasets = {dataset.collection: dataset for dataset in tier_datasets(experiment, "full")}
        assert (datasets["msmarco"].split, datasets["msmarco"].main_metric) == ("dev", "mrr@10")
        assert {dataset.split for name, dataset in datasets.items() if name != "msmarco"} == {"test"}
        assert {dataset.main_metric for name, dataset in datasets.items() if name != "msmarco"} == {"ndcg@10"}
        assert {name for name, dataset in datasets.items() if dataset.exclude_self} == {
            "arguana", "fever", "fiqa", "msmarco", "quora",
        }  # fmt: skip


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
        assert {(d.split, d.depth, d.queries, d.pool, d.first_stage) for d in datasets} == {
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
    def test_pool_holds_every_relevant_document(self, loaded: LoadedDataset) -> None:
        assert len(loaded.pooled.corpus) == 40
        assert loaded.collection.relevant_documents() <= loaded.pooled.corpus.keys()

    def test_a_run_file_takes_the_place_of_bm25(
        self, experiment: Experiment, loaded: LoadedDataset, tmp_path: Path
    ) -> None:
        run: Run = {query_id: dict(list(scores.items())[:3]) for query_id, scores in loaded.first_stage.run.items()}
        write_run(tmp_path / "apidocs.trec", run, "x")
        changed = setting(experiment, first_stage=f"run:{tmp_path}/{{dataset}}.trec")
        other = LoadedDataset(tier_datasets(changed, "bundled")[0])
        assert other.first_stage.run == other.candidates == run
        assert other.first_stage.source.startswith("run:apidocs.trec@")

    def test_hashes_follow_what_is_scored(self, experiment: Experiment, loaded: LoadedDataset) -> None:
        tier = experiment.evaluation.bundled.model_copy(update={"depth": 3})
        evaluation = experiment.evaluation.model_copy(update={"bundled": tier})
        deeper = LoadedDataset(tier_datasets(experiment.model_copy(update={"evaluation": evaluation}), "bundled")[0])
        assert deeper.hashes["candidates"] != loaded.hashes["candidates"]
        assert deeper.hashes["collection"] == loaded.hashes["collection"]
