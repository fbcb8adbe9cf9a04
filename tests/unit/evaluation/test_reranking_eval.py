"""Reranking from Python of one collection and of suites: any causal model, what is averaged, and what is missing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peft import LoraConfig, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model
from support.experiments import tiny_experiment
from support.reranking import invented, with_evaluation, write_invented
from support.sources import SMALL, write_msmarco
from support.tiny_models import tiny_base
from torch import nn
from transformers import BartConfig, BartForConditionalGeneration

from unimoe.config import Experiment
from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import Run
from unimoe.evaluation.reranking.rerankers import PairModelReranker, as_unimodel
from unimoe.evaluation.reranking_eval import (
    evaluate_beir,
    evaluate_msmarco_dev,
    evaluate_reranking_suite,
    rerank_collection,
)
from unimoe.models.base import BaseModel
from unimoe.models.unimodel import UnimodelForExp1

pytestmark = pytest.mark.usefixtures("one_thread")


COLLECTION = invented(documents=12, queries=4, unjudged=2)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("reranking"))


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return tiny_base(layers=2)


@pytest.fixture
def folder(tmp_path: Path, tmp_cache: Path) -> Path:
    return write_invented(tmp_path / "toy", COLLECTION)


class TestModels:
    def test_a_model_with_its_tokenizer_is_scored_as_the_reranker_it_makes(
        self, base: BaseModel, config: Experiment, folder: Path
    ) -> None:
        raw = evaluate_beir(base.model, base.tokenizer, config, f"path:{folder}")
        unimodel = UnimodelForExp1(base, config.prompt, config.model.max_length)
        made = evaluate_beir(unimodel, None, config, f"path:{folder}")
        assert (made.run, made.scores, made.first_stage) == (raw.run, raw.scores, raw.first_stage)
        texts = [(COLLECTION.queries[q], COLLECTION.corpus[d].full_text) for q, gaps in raw.run.items() for d in gaps]
        gaps = [gap for gaps in raw.run.values() for gap in gaps.values()]
        np.testing.assert_allclose(gaps, unimodel.rerank(texts, output="margin"), atol=1e-4)
        assert raw.items == len(gaps) > 20
        assert raw.seconds > 0

    @pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT's, when it merges
    @pytest.mark.parametrize("module", ["q_proj", "lm_head"])
    def test_adapters_of_peft_count_on_the_output_layer_once_they_are_merged(
        self, config: Experiment, folder: Path, module: str
    ) -> None:
        settings = LoraConfig(r=2, target_modules=[module], init_lora_weights=False)
        adapted, tokenizer = get_peft_model(tiny_base(layers=2).model, settings), tiny_base().tokenizer
        if module == "lm_head":
            with pytest.raises(UsageError, match=r"adapters of PEFT on the output layer .* merge_and_unload\(\)"):
                evaluate_beir(adapted, tokenizer, config, f"path:{folder}")
            found = {}
        else:
            found = evaluate_beir(adapted, tokenizer, config, f"path:{folder}").run
        merged = evaluate_beir(adapted.merge_and_unload(), tokenizer, config, f"path:{folder}").run
        plain = evaluate_beir(tiny_base(layers=2).model, tokenizer, config, f"path:{folder}").run
        assert max(abs(merged["q0"][key] - margin) for key, margin in plain["q0"].items()) > 0.01
        for query, margins in found.items():
            assert margins == pytest.approx(merged[query], abs=1e-4)

    @pytest.mark.parametrize("kind", [PromptTuningConfig, PrefixTuningConfig, PromptEncoderConfig])
    def test_prompts_that_peft_learned_are_refused(self, config: Experiment, kind: Any) -> None:
        base = tiny_base(layers=2)
        adapted = get_peft_model(base.model, kind(num_virtual_tokens=4, task_type="CAUSAL_LM"))
        for take in (
            lambda: evaluate_beir(adapted, base.tokenizer, config, "path:nowhere"),
            lambda: UnimodelForExp1(replace(base, model=adapted), config.prompt, config.model.max_length),
        ):
            with pytest.raises(UsageError, match=r"a PEFT model of P\w+ puts states of its own before every text"):
                take()

    def test_what_has_no_decoder_is_refused(self, base: BaseModel, config: Experiment) -> None:
        with pytest.raises(UsageError, match=r"a Linear has no decoder layers at model\.layers"):
            as_unimodel(nn.Linear(2, 2), base.tokenizer, config)
        sizes: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "vocab_size": 400, "d_model": 16}
        with pytest.raises(UsageError, match="a BartForConditionalGeneration has no decoder layers"):
            as_unimodel(BartForConditionalGeneration(BartConfig(**sizes)), base.tokenizer, config)


class TestOutcome:
    def test_a_query_without_candidates_counts_zero(self, base: BaseModel, config: Experiment) -> None:
        model, (first, *others) = as_unimodel(base.model, base.tokenizer, config), COLLECTION.qrels
        relevant: Run = {query_id: dict.fromkeys(COLLECTION.qrels[query_id], 1.0) for query_id in others}
        found = rerank_collection(PairModelReranker(model), COLLECTION, {**relevant, first: {}})
        assert found.run[first] == {}
        assert found.scores.aggregate["recall@100"] == len(others) / 4
        assert found.items == 2 * len(others)

    def test_a_candidate_that_is_no_document_is_refused(self, base: BaseModel, config: Experiment) -> None:
        model = as_unimodel(base.model, base.tokenizer, config)
        with pytest.raises(DataError, match="candidate 'x9' of query 'q1' is no document of invented"):
            rerank_collection(PairModelReranker(model), COLLECTION, {"q0": {"d00": 1.0}, "q1": {"x9": 1.0}})

    def test_twelve_collections_are_a_suite(self, base: BaseModel, config: Experiment) -> None:
        with pytest.raises(UsageError, match="cqadupstack is 12 collections; use evaluate_reranking_suite"):
            evaluate_beir(base.model, base.tokenizer, config, "cqadupstack")


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


class TestSuite:
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
