"""Reranking one collection from Python: any causal language model, and the first stage beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model
from support.experiments import tiny_experiment
from support.reranking import invented, with_evaluation, write_invented
from support.tiny_models import tiny_base
from torch import nn
from transformers import BartConfig, BartForConditionalGeneration

from unimoe.config import Experiment
from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import Run, write_run
from unimoe.evaluation.reranking.rerankers import PairModelReranker, as_unimodel
from unimoe.evaluation.reranking_eval import evaluate_beir, rerank_collection
from unimoe.metrics import score_run
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

    def test_a_model_of_peft_is_scored_as_the_one_inside(self, config: Experiment) -> None:
        base = tiny_base(layers=2)
        settings = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
        adapted = get_peft_model(base.model, settings).eval()
        model = UnimodelForExp1(replace(base, model=adapted), config.prompt, config.model.max_length)
        expected = []
        for ids in model.pair_ids([("cat", "the cat sat"), ("cat", "")]):
            with torch.inference_mode():
                logits = adapted(input_ids=torch.tensor([ids])).logits[0, -1]
            expected.append(float(logits[base.tokenizer.convert_tokens_to_ids("yes")]))
            expected[-1] -= float(logits[base.tokenizer.convert_tokens_to_ids("no")])
        gaps = model.rerank([("cat", "the cat sat"), ("cat", "")], output="margin")
        np.testing.assert_allclose(gaps, expected, atol=1e-5)

    def test_the_model_is_left_as_it_was(self, config: Experiment, folder: Path) -> None:
        model = tiny_base(layers=2).model.train()
        evaluate_beir(model, tiny_base().tokenizer, config, f"path:{folder}", max_queries=1)
        assert all(module.training for module in model.modules())
        assert model.config._attn_implementation == tiny_base(layers=2).model.config._attn_implementation

    def test_what_has_no_decoder_is_refused(self, base: BaseModel, config: Experiment) -> None:
        with pytest.raises(UsageError, match=r"a Linear has no decoder layers at model\.layers"):
            as_unimodel(nn.Linear(2, 2), base.tokenizer, config)
        sizes: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "vocab_size": 400, "d_model": 16}
        with pytest.raises(UsageError, match="a BartForConditionalGeneration has no decoder layers"):
            as_unimodel(BartForConditionalGeneration(BartConfig(**sizes)), base.tokenizer, config)


class TestOutcome:
    def test_the_first_stage_stands_beside_it_with_the_difference(
        self, base: BaseModel, config: Experiment, folder: Path, tmp_path: Path
    ) -> None:
        run: Run = {q: {d: float(rank) for rank, d in enumerate(COLLECTION.corpus)} for q in COLLECTION.queries}
        write_run(tmp_path / "first.trec", run, "x")
        found = evaluate_beir(
            base.model, base.tokenizer, with_evaluation(config, first_stage=f"run:{tmp_path}/first.trec", depth=5),
            f"path:{folder}",
        )  # fmt: skip
        best = {q: {d: run[q][d] for d in list(run[q])[-5:]} for q in run}
        assert found.first_stage == score_run(COLLECTION.qrels, best)
        assert {q: gaps.keys() for q, gaps in found.run.items()} == {q: scores.keys() for q, scores in best.items()}
        assert found.scores == score_run(COLLECTION.qrels, found.run)
        assert found.scores.unjudged_queries == ["q4", "q5"]
        for metric, value in found.scores.aggregate.items():
            assert found.delta[metric] == value - found.first_stage.aggregate[metric]
        assert any(found.delta.values())

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
