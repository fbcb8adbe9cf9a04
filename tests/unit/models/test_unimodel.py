from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_models import HIDDEN, tiny_base

from unimoe.config import PromptConfig
from unimoe.config.training import LoraConfig
from unimoe.core.errors import InputError, UsageError
from unimoe.models.adapter import adapter_parameters, add_lora
from unimoe.models.embedder import TextKind
from unimoe.models.unimodel import UnimodelForExp1

PROMPT = PromptConfig(template="chat", instruction="find")
KINDS: tuple[TextKind, ...] = ("query", "document", "plain")
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

    def test_embeddings_have_unit_length_and_differ(self, model: UnimodelForExp1) -> None:
        found = model.encode(TEXTS)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
        np.testing.assert_allclose(found[0], found[-1], atol=1e-5)
        assert (found[0] @ found[1:5].T < 0.999).all()

    def test_kinds_have_their_own_prefix_and_a_given_one_replaces_it(self) -> None:
        model = tiny_unimodel(query_prefix="Q: ", document_prefix="D: ")
        query, document, plain = (model.encode(["cat"], kind=kind) for kind in KINDS)
        assert not np.allclose(query, document, atol=1e-3)
        assert not np.allclose(document, plain, atol=1e-3)
        np.testing.assert_allclose(model.encode(["cat"], prefix="Q: "), query, atol=1e-6)
        np.testing.assert_allclose(model.encode(["cat"], kind="query", prefix=""), plain, atol=1e-6)
        np.testing.assert_allclose(model.encode(["D: cat"]), document, atol=1e-6)

    def test_batching_does_not_matter(self, model: UnimodelForExp1) -> None:
        whole = model.encode(TEXTS)
        np.testing.assert_allclose(model.encode(TEXTS, batch_size=1), whole, atol=1e-5)
        np.testing.assert_allclose(model.encode(TEXTS, token_budget=1), whole, atol=1e-5)

    @pytest.mark.parametrize("first_layer", [0, 2])
    def test_no_texts_no_embeddings(self, first_layer: int) -> None:
        assert tiny_unimodel(first_layer).encode([]).shape == (0, HIDDEN)


class TestRerank:
    def test_probabilities_by_default_gaps_on_request(self, model: UnimodelForExp1) -> None:
        probabilities, gaps = model.rerank(PAIRS), model.rerank(PAIRS, output="gap")
        np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-gaps.astype(float))), atol=1e-6)
        assert ((probabilities >= 0) & (probabilities <= 1)).all()

    def test_the_gap_tells_apart_what_the_probability_rounds_to_one(self, model: UnimodelForExp1) -> None:
        states = torch.stack([scale * model._yes_minus_no for scale in (20.0, 30.0)])
        gaps = model.margins(states)
        assert torch.sigmoid(gaps).tolist() == [1.0, 1.0]
        assert gaps[0] < gaps[1]

    def test_the_bias_of_the_output_layer_counts(self) -> None:
        base = tiny_base()
        without = UnimodelForExp1(base, PROMPT, 128).rerank(PAIRS, output="gap")
        yes, no = base.tokenizer.convert_tokens_to_ids(["yes", "no"])
        bias = torch.zeros(base.model.lm_head.weight.shape[0])
        bias[yes], bias[no] = 1.5, -0.25
        base.model.lm_head.bias = torch.nn.Parameter(bias, requires_grad=False)
        gaps = UnimodelForExp1(base, PROMPT, 128).rerank(PAIRS, output="gap")
        np.testing.assert_allclose(gaps, without + 1.75, atol=1e-5)

    def test_no_pairs_no_scores(self, model: UnimodelForExp1) -> None:
        assert model.rerank([]).shape == (0,)

    def test_progress_is_told_in_pairs(self, model: UnimodelForExp1) -> None:
        done: list[int] = []
        model.rerank([("cat", "mat")] * 6, batch_size=4, advance=done.append)
        assert done == [4, 2]

    def test_scores_that_are_not_finite_are_refused(self) -> None:
        model = tiny_unimodel()
        model._yes_minus_no[0] = torch.nan
        with pytest.raises(InputError, match="input 0: the score is not finite"):
            model.rerank(PAIRS)

    def test_token_ids_are_scored_as_their_pairs(self, model: UnimodelForExp1) -> None:
        gaps = model.rerank_ids(model.pair_ids(PAIRS))
        np.testing.assert_array_equal(gaps, model.rerank(PAIRS, output="gap"))

    @pytest.mark.parametrize("order", ["query_first", "document_first"])
    def test_a_query_that_fills_the_length_is_scored_by_its_beginning(self, order: str) -> None:
        model = tiny_unimodel(order=order)
        margins = model.rerank([*PAIRS, ("Zebra " * 100, "mat"), ("Zebra " * 200, "house")], output="gap")
        np.testing.assert_allclose(margins[:-2], model.rerank(PAIRS, output="gap"), atol=1e-5)
        assert margins[-1] == pytest.approx(margins[-2], abs=1e-5)

    def test_an_instruction_changes_the_prompt(self, model: UnimodelForExp1) -> None:
        other = tiny_unimodel(instruction="Find a duplicate.")
        np.testing.assert_array_equal(model.rerank(PAIRS, instruction="Find a duplicate."), other.rerank(PAIRS))
        assert not np.array_equal(model.rerank(PAIRS), other.rerank(PAIRS))

    def test_a_tokenizer_without_a_padding_token(self, model: UnimodelForExp1) -> None:
        base = tiny_base()
        base.tokenizer.pad_token = base.model.config.pad_token_id = None
        bare = UnimodelForExp1(base, PROMPT, 128)
        assert bare.tokenizer.pad_token_id is None
        np.testing.assert_array_equal(bare.rerank(PAIRS), model.rerank(PAIRS))
        np.testing.assert_array_equal(bare.encode(TEXTS), model.encode(TEXTS))


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

    @pytest.mark.parametrize("culprit", range(4))
    @pytest.mark.parametrize("document", ["<|pad|>", "a <|pad|> b", "the old house <|pad|>"])
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

    def test_the_text_that_spoils_its_batch_is_named_and_not_its_neighbours(
        self, trees: bool, first_layer: int
    ) -> None:
        with pytest.raises(InputError, match="input 1: the score is not finite"):
            self.poisoned(trees, first_layer).encode(["cat", "a <|pad|> b", "dog"])


class TestOutOfMemory:
    def test_the_scores_are_the_same_and_the_model_says_what_fits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, done = tiny_unimodel(), list[int]()
        top = model._batched.top
        forward = top.forward

        def small_memory(**inputs: Any) -> Any:
            if inputs["input_ids"].numel() > 130:
                raise torch.OutOfMemoryError("no memory for so many")
            return forward(**inputs)

        monkeypatch.setattr(top, "forward", small_memory)
        gaps = model.rerank(PAIRS, output="gap", advance=done.append)
        np.testing.assert_allclose(gaps, tiny_unimodel().rerank(PAIRS, output="gap"), rtol=1e-4, atol=1e-4)
        assert model.reduced_budget is not None
        assert model.reduced_budget < 130
        assert sum(done) == len(PAIRS)


class TestModes:
    def test_a_model_in_training_is_scored_without_dropout_and_trains_on(self) -> None:
        model = with_dropout()
        ids = model.pair_ids(PAIRS)
        assert not torch.equal(model.last_states(ids), model.last_states(ids))  # dropout is at work
        np.testing.assert_array_equal(model.rerank(PAIRS), model.rerank(PAIRS))
        np.testing.assert_array_equal(model.encode(TEXTS), model.encode(TEXTS))
        assert model.training
        assert not torch.equal(model.last_states(ids), model.last_states(ids))

    def test_scoring_leaves_the_mode_of_every_module_as_it_was(self) -> None:
        model = with_dropout()
        model.model.model.layers[1].eval()
        before = [module.training for module in model.modules()]
        model.rerank(PAIRS[:1])
        assert [module.training for module in model.modules()] == before

    def test_gradients_flow_to_the_adapters_and_to_nothing_else(self) -> None:
        base = tiny_base()
        adapters = adapter_parameters(add_lora(base, LoraConfig(), seed=0))
        model = UnimodelForExp1(base, PROMPT, 128)
        model.margins(model.last_states(model.pair_ids(PAIRS))).sum().backward()  # type: ignore[no-untyped-call]
        assert all(weight.grad is not None for weight in adapters.values())
        assert {name for name, weight in base.model.named_parameters() if weight.grad is not None} == {
            name.removeprefix("base_model.model.") for name in adapters
        }

    def test_bfloat16_computes_scores_in_float32(self) -> None:
        base = tiny_base()
        base.model.to(torch.bfloat16)
        model = UnimodelForExp1(base, PROMPT, 128)
        assert model.dtype == torch.bfloat16
        assert model.device == torch.device("cpu")
        gaps = torch.tensor(model.rerank(PAIRS, output="gap"))
        assert gaps.dtype == torch.float32
        assert not torch.equal(gaps, gaps.bfloat16().float())  # finer than bfloat16 can tell
        exact = tiny_unimodel().rerank(PAIRS, output="gap")
        np.testing.assert_allclose(gaps, exact, atol=0.15 * np.abs(exact).max())
        np.testing.assert_allclose(np.linalg.norm(model.encode(TEXTS), axis=1), 1, atol=1e-6)

    def test_identity_and_prompt_are_known(self) -> None:
        base = replace(tiny_base(), identity="some@hash")
        model = UnimodelForExp1(base, PROMPT, 128)
        assert model.base_identity == "some@hash"
        assert model.prompt_name.startswith("chat/query_first@")


def test_a_model_that_changes_its_logits_in_an_unknown_way_is_refused() -> None:
    base = tiny_base()
    base.model.config.output_multiplier = 30.0
    with pytest.raises(UsageError, match="output_multiplier"):
        UnimodelForExp1(base, PROMPT, 128)
