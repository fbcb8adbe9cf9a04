"""Reranking from Python over MS MARCO's published files and over suites: what is averaged, and what is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.experiments import tiny_experiment
from support.reranking import invented, with_evaluation, write_invented
from support.sources import SMALL, write_msmarco
from support.tiny_models import tiny_base

from unimoe.config import Experiment
from unimoe.core.errors import DataError, UsageError
from unimoe.data.published import CQADUPSTACK
from unimoe.evaluation.reranking_eval import evaluate_beir, evaluate_msmarco_dev, evaluate_reranking_suite
from unimoe.models.base import BaseModel
from unimoe.models.unimodel import UnimodelForExp1

pytestmark = pytest.mark.usefixtures("one_thread")

COLLECTION = invented(documents=12, queries=4)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("suite"))


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return tiny_base(layers=2)


@pytest.fixture
def data(tmp_path: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty UNIMOE_DATA, and nothing to download with."""
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "beir.util", None)
    return tmp_path


class TestMSMARCO:
    def test_bm25_searches_the_passages(self, base: BaseModel, config: Experiment, data: Path) -> None:
        write_msmarco(data / "msmarco", SMALL, compress=True)
        found = evaluate_msmarco_dev(base.model, base.tokenizer, config)
        assert {query_id: set(gaps) for query_id, gaps in found.run.items()} == {"101": {"7"}, "205": {"9"}}
        assert found.first_stage is not None
        assert found.first_stage.aggregate["mrr@10"] == found.scores.aggregate["mrr@10"] == 1.0

    def test_the_official_candidates_are_reranked_whole_and_have_no_scores_of_their_own(
        self, base: BaseModel, config: Experiment, data: Path
    ) -> None:
        folder = write_msmarco(data / "passages", SMALL)
        official = with_evaluation(config, first_stage="official", depth=1000)
        found = evaluate_msmarco_dev(base.model, base.tokenizer, official, collection=f"path:{folder}")
        assert all(gaps.keys() == SMALL.corpus.keys() for gaps in found.run.values())
        assert (found.first_stage, found.delta) == (None, {})
        suite = evaluate_reranking_suite(base.model, base.tokenizer, official, [f"path:{folder}"])
        assert suite.averages == {"mrr@10": found.scores.aggregate["mrr@10"]}
        assert suite.first_stage_averages == {}


class TestSuite:
    def test_cqadupstack_counts_once_and_mrr_is_never_mixed_with_ndcg(
        self, base: BaseModel, config: Experiment, data: Path
    ) -> None:
        for number, name in enumerate(CQADUPSTACK, start=1):
            write_invented(data / name, invented(documents=6 + number, queries=2))
        write_invented(data / "scifact", COLLECTION)
        write_msmarco(data / "msmarco", SMALL)
        names = ["cqadupstack", "scifact", "msmarco"]
        found = evaluate_reranking_suite(base.model, base.tokenizer, with_evaluation(config, depth=3), names)
        assert list(found.datasets) == [*CQADUPSTACK, "scifact", "msmarco"]
        for averages, side in ((found.averages, "scores"), (found.first_stage_averages, "first_stage")):
            ndcg = {name: getattr(one, side).aggregate["ndcg@10"] for name, one in found.datasets.items()}
            forums = [ndcg[name] for name in CQADUPSTACK]
            assert len(set(forums)) > 2
            assert averages == {
                "mrr@10": getattr(found.datasets["msmarco"], side).aggregate["mrr@10"],
                "ndcg@10": pytest.approx((sum(forums) / 12 + ndcg["scifact"]) / 2, abs=1e-12),
            }

    def test_a_tier_runs_without_what_cannot_be_had_and_names_it(
        self, base: BaseModel, config: Experiment, data: Path
    ) -> None:
        with pytest.raises(DataError, match=r"of the 3 collections could be evaluated; not available: .* 'scifact'"):
            evaluate_reranking_suite(base.model, base.tokenizer, config)
        write_invented(data / "nfcorpus", COLLECTION)
        found = evaluate_reranking_suite(base.model, base.tokenizer, config, max_queries=2)
        assert list(found.datasets) == ["nfcorpus"]
        assert len(found.datasets["nfcorpus"].run) == 2
        assert [line.partition(" is not available")[0] for line in found.missing] == [
            "not available: collection 'scifact'", "not available: collection 'fiqa'",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("tier", "words"),
        [
            ("fasst", r"unknown tier 'fasst' \(did you mean 'fast'\?\)"),
            (["nanobeir:SciFct"], r"unknown collection 'nanobeir:SciFct' \(did you mean 'scifact'\?\)"),
            ([], "no collection is named"),
            (["pth:x"], r"collection 'pth:x': write .* \(did you mean 'path'\?\)"),
        ],
    )
    def test_names_that_mean_nothing_are_answered_with_the_closest(
        self, base: BaseModel, config: Experiment, data: Path, tier: Any, words: str
    ) -> None:
        with pytest.raises(UsageError, match=words):
            evaluate_reranking_suite(base.model, base.tokenizer, config, tier)


class TestRealCollections:
    def test_cisis_unjudged_queries_are_listed(self, base: BaseModel, config: Experiment, unimoe_data: Path) -> None:
        model = UnimodelForExp1(base, config.prompt, 2048)  # some of its queries are long
        found = evaluate_beir(model, None, with_evaluation(config, depth=2), "cisi")
        assert len(found.scores.unjudged_queries) == 36
        assert len(found.scores.per_query["ndcg@10"]) == 76
        assert found.items == 224

    def test_msmarco_dev_runs_whole(self, base: BaseModel, config: Experiment, unimoe_data: Path) -> None:
        shallow = with_evaluation(config, depth=1)
        found = evaluate_msmarco_dev(base.model, base.tokenizer, shallow, collection="msmarco-dev-positives")
        assert len(found.run) == len(found.scores.per_query["mrr@10"]) == 6980
        assert 6_900 < sum(map(len, found.run.values())) <= 6980
        assert found.items == sum(map(len, found.run.values()))
        assert found.first_stage is not None
        assert found.first_stage.aggregate["mrr@10"] > 0.8  # an easy corpus: each passage is somebody's answer
        assert found.first_stage.aggregate["recall@100"] == found.scores.aggregate["recall@100"]
