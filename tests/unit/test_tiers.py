"""What a tier holds, and how much of each collection is scored."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.experiments import tiny_experiment

from unimoe.config import Experiment
from unimoe.data.catalog import UnavailableError
from unimoe.errors import MissingPartError
from unimoe.evaluation.suite import load_available, refuse_silence
from unimoe.evaluation.tiers import LoadedDataset, tier_datasets
from unimoe.trec import ranked


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("tiers"))


@pytest.fixture(scope="module")
def loaded(experiment: Experiment) -> LoadedDataset:
    return LoadedDataset(tier_datasets(experiment, "bundled")[0])


class TestTiers:
    def test_bundled_is_what_the_config_says(self, experiment: Experiment) -> None:
        (dataset,) = tier_datasets(experiment, "bundled")
        assert (dataset.collection, dataset.split, dataset.depth, dataset.queries, dataset.pool) == (
            "apidocs", "test", 4, 6, 40,
        )  # fmt: skip

    def test_fast_is_three_collections_at_depth_100(self, experiment: Experiment) -> None:
        datasets = tier_datasets(experiment, "fast")
        assert [dataset.collection for dataset in datasets] == ["scifact", "nfcorpus", "fiqa"]
        assert {dataset.depth for dataset in datasets} == {100}

    def test_full_scores_msmarco_on_dev_and_leaves_out_self_matches_where_ids_are_shared(
        self, experiment: Experiment
    ) -> None:
        datasets = {dataset.collection: dataset for dataset in tier_datasets(experiment, "full")}
        assert datasets["msmarco"].split == "dev"
        assert {name for name, dataset in datasets.items() if dataset.exclude_self} == {"arguana", "quora"}

    def test_a_collection_that_cannot_be_had_is_named_and_the_others_stay(
        self,
        experiment: Experiment,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.delenv("UNIMOE_DATA", raising=False)
        monkeypatch.setenv("UNIMOE_CACHE", str(tmp_path))

        def unavailable(name: str, split: str) -> None:
            raise UnavailableError(f"{name}: not here")

        monkeypatch.setattr("unimoe.evaluation.tiers.load_collection", unavailable)
        datasets, missing = load_available(tier_datasets(experiment, "fast"))
        assert (datasets, len(missing)) == ([], 3)
        assert "fiqa: not here" in capsys.readouterr().err
        with pytest.raises(MissingPartError, match="without 3"):
            refuse_silence(missing)


class TestLoadedDataset:
    def test_pool_holds_every_relevant_document(self, loaded: LoadedDataset) -> None:
        assert len(loaded.pooled.corpus) == 40
        assert loaded.collection.relevant_documents() <= loaded.pooled.corpus.keys()

    def test_candidates_are_the_first_of_the_whole_collections_run(self, loaded: LoadedDataset) -> None:
        assert loaded.whole_size > 4000
        for query_id, candidates in loaded.candidates.items():
            assert list(candidates) == ranked(loaded.first_stage_run[query_id])[:4]

    def test_max_queries_cuts_and_says_so(self, experiment: Experiment) -> None:
        cut = LoadedDataset(tier_datasets(experiment, "bundled", max_queries=3)[0])
        assert len(cut.collection.queries) == 3
        assert "--max-queries 3" in cut.caveats[0]

    def test_without_a_cut_there_is_no_caveat(self, loaded: LoadedDataset) -> None:
        assert loaded.caveats == []

    def test_hashes_follow_what_is_scored(self, experiment: Experiment, loaded: LoadedDataset) -> None:
        tier = experiment.evaluation.bundled.model_copy(update={"depth": 3})
        evaluation = experiment.evaluation.model_copy(update={"bundled": tier})
        deeper = LoadedDataset(tier_datasets(experiment.model_copy(update={"evaluation": evaluation}), "bundled")[0])
        assert deeper.hashes["candidates"] != loaded.hashes["candidates"]
        assert deeper.hashes["collection"] == loaded.hashes["collection"]
