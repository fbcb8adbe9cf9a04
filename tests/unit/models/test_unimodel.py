from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_models import HIDDEN, tiny_base, tiny_model, tiny_tokenizer

from unimoe.config import PromptConfig
from unimoe.config.training import LoraConfig
from unimoe.core.errors import InputError
from unimoe.models.adapter import adapter_parameters, add_lora
from unimoe.models.base import BaseModel
from unimoe.models.unimodel import UnimodelForExp1

PROMPT = PromptConfig(template="chat", instruction="find")
TEXTS = ["the cat sat on the mat", "", "rain " * 300, "🐈", "a quick sort", "the cat sat on the mat"]
PAIRS = [("cat", text) for text in TEXTS]


def tiny_unimodel(first_layer: int = 0, **changes: Any) -> UnimodelForExp1:
    return UnimodelForExp1(tiny_base(), PROMPT.model_copy(update=changes), 128, first_layer)


@pytest.fixture(scope="module")
def model() -> UnimodelForExp1:
    return tiny_unimodel()


def with_dropout() -> UnimodelForExp1:
    """A model in training mode, whose adapters drop half of what they read."""
    base = tiny_base()
    adapters = adapter_parameters(add_lora(base, LoraConfig(dropout=0.5), seed=0))
    for weight in adapters.values():
        torch.nn.init.normal_(weight, std=0.2)
    return UnimodelForExp1(base, PROMPT, 128).train()


class TestEncode:
    @pytest.mark.parametrize("first_layer", [0, 2])
    def test_it_equals_one_text_at_a_time(self, first_layer: int) -> None:
        model = tiny_unimodel(first_layer, document_prefix="D: ")
        naive = []
        for ids in model.text_ids(TEXTS, "document"):
            with torch.inference_mode():
                output = model.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
            state = output.hidden_states[-1][0, -1]
            naive.append((state / state.norm()).numpy())
        found = model.encode(TEXTS, kind="document")
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, np.stack(naive), atol=1e-5)
        assert model.encode([]).shape == (0, HIDDEN)


class TestRerank:
    def test_the_gap_tells_apart_what_the_probability_rounds_to_one(self, model: UnimodelForExp1) -> None:
        states = torch.stack([scale * (model._answers[0] - model._answers[1]) for scale in (20.0, 30.0)])
        gaps = model.margins(states)
        assert torch.sigmoid(gaps).tolist() == [1.0, 1.0]
        assert gaps[0] < gaps[1]

    def test_the_bias_of_the_output_layer_counts(self) -> None:
        base = tiny_base()
        without = UnimodelForExp1(base, PROMPT, 128).rerank(PAIRS, output="margin")
        yes, no = base.tokenizer.convert_tokens_to_ids(["yes", "no"])
        bias = torch.zeros(base.model.lm_head.weight.shape[0])
        bias[yes], bias[no] = 1.5, -0.25
        base.model.lm_head.bias = torch.nn.Parameter(bias, requires_grad=False)
        gaps = UnimodelForExp1(base, PROMPT, 128).rerank(PAIRS, output="margin")
        np.testing.assert_allclose(gaps, without + 1.75, atol=1e-5)


@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("first_layer", [0, 2])
class TestNotFinite:
    """One token that makes every state after it infinite or NaN, in layouts where texts share rows and blocks."""

    @staticmethod
    def poisoned(trees: bool, first_layer: int) -> UnimodelForExp1:
        base = tiny_base()
        base.model._supports_attention_backend = trees
        token = base.tokenizer.convert_tokens_to_ids("<|pad|>")
        base.model.model.embed_tokens.weight[token] = torch.inf
        return UnimodelForExp1(base, PROMPT, 128, first_layer)

    @pytest.mark.parametrize(("culprit", "document"), [(0, "<|pad|>"), (2, "a <|pad|> b"), (3, "the old <|pad|>")])
    def test_the_pair_that_spoils_its_batch_is_named_and_not_its_neighbours(
        self, trees: bool, first_layer: int, culprit: int, document: str
    ) -> None:
        pairs = [("cat", "mat"), ("cat", "the old house"), ("dog", "rain " * 20), ("cat", "")]
        model = self.poisoned(trees, first_layer)
        assert np.isfinite(model.rerank(pairs)).all()
        pairs[culprit] = ("cat", document)
        with pytest.raises(InputError, match=rf"input {culprit}: the score is not finite; .*model\.dtype") as caught:
            model.rerank(pairs)
        assert caught.value.index == culprit


class TestModes:
    def test_a_model_in_training_is_scored_without_dropout_and_trains_on(self) -> None:
        model = with_dropout()
        ids = model.pair_ids(PAIRS)
        assert not torch.equal(model.last_states(ids), model.last_states(ids))  # dropout is at work
        np.testing.assert_array_equal(model.rerank(PAIRS), model.rerank(PAIRS))
        np.testing.assert_array_equal(model.encode(TEXTS), model.encode(TEXTS))
        assert not torch.equal(model.last_states(ids), model.last_states(ids))
        model.model.training = False  # the root alone: its dropout still trains
        before = [module.training for module in model.modules()]
        model.encode(["a text"])
        assert [module.training for module in model.modules()] == before

    def test_bfloat16_computes_scores_in_float32(self) -> None:
        base = tiny_base()
        base.model.to(torch.bfloat16)
        model = UnimodelForExp1(base, PROMPT, 128)
        assert model.dtype == torch.bfloat16
        assert model.device == torch.device("cpu")
        gaps = torch.tensor(model.rerank(PAIRS, output="margin"))
        assert gaps.dtype == torch.float32
        assert not torch.equal(gaps, gaps.bfloat16().float())  # finer than bfloat16 can tell
        exact = tiny_unimodel().rerank(PAIRS, output="margin")
        np.testing.assert_allclose(gaps, exact, atol=0.15 * np.abs(exact).max())
        np.testing.assert_allclose(np.linalg.norm(model.encode(TEXTS), axis=1), 1, atol=1e-6)


WINDOW_PAIRS = [
    ("which animal purrs", text) for text in ("a cat does", "a dog barks at the cat", "cats", "the sun is warm")
]


def reranked(kind: str, **settings: Any) -> tuple[Any, int]:
    """The scores of pairs with one query, and how many tokens were computed for them, padding included."""
    base = BaseModel(tiny_model(kind, **settings).eval(), tiny_tokenizer(), "tiny@1")
    model = UnimodelForExp1(base, PromptConfig(template="plain", instruction="Judge"), 128).eval()
    tokens: list[int] = []
    base.model.get_input_embeddings().register_forward_hook(lambda _, given, __: tokens.append(given[0].numel()))
    return model.rerank(WINDOW_PAIRS, output="margin"), sum(tokens)


@pytest.mark.parametrize("kind", ["mistral", "qwen2"])
def test_a_window_as_long_as_the_longest_pair_lets_pairs_share_a_query(kind: str) -> None:
    mixed = {"use_sliding_window": True, "max_window_layers": 1} if kind == "qwen2" else {}
    plain, shared = reranked(kind, sliding_window=None)
    wide, tokens = reranked(kind, sliding_window=128, **mixed)
    np.testing.assert_array_equal(wide, plain)
    assert tokens == shared
    narrow, every = reranked(kind, sliding_window=127, **mixed)
    np.testing.assert_allclose(narrow, plain, atol=1e-3)  # these pairs are shorter
    assert every > 1.5 * shared
