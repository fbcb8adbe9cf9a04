from __future__ import annotations

from typing import Any

import pytest
import torch
from support.tiny_models import HIDDEN, ModelKind, tiny_base

from unimoe.config import PromptConfig
from unimoe.config.training import LoraConfig
from unimoe.core.errors import UsageError
from unimoe.models import frozen_layers as module
from unimoe.models.adapter import adapter_parameters, add_lora
from unimoe.models.batching import pad_ids
from unimoe.models.frozen_layers import FrozenLayers, FrozenStates, split_decoder
from unimoe.models.unimodel import UnimodelForExp1

SEQUENCES = [[*range(5, 15), 11], [12], [13, 14, 15], [300, 301], [*range(5, 15), 12], [13, 14, 15]]
BYTES_PER_TOKEN = HIDDEN * 4


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few tokens in a pass that the sequences above take several."""
    monkeypatch.setattr(module, "default_token_budget", lambda _: 14)


def lower_half() -> Any:
    return split_decoder(tiny_base().model.model, 2)[0]


def kept(layers: FrozenLayers, sequences: list[list[int]]) -> FrozenStates:
    states = layers.states(sequences)
    assert states is not None
    return states


class TestSplit:
    @pytest.mark.parametrize("kind", ["llama", "qwen3"])
    @pytest.mark.parametrize("first_layer", [1, 3])
    def test_the_halves_in_a_row_equal_the_whole(self, kind: ModelKind, first_layer: int) -> None:
        decoder = tiny_base(kind).model.model
        lower, upper = split_decoder(decoder, first_layer)
        ids = pad_ids(SEQUENCES, torch.device("cpu"))
        with torch.inference_mode():
            whole = decoder(input_ids=ids, use_cache=False).last_hidden_state
            below = lower(input_ids=ids, use_cache=False).last_hidden_state
            joined = upper(inputs_embeds=below, use_cache=False).last_hidden_state
        torch.testing.assert_close(joined, whole, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("first_layer", [-1, 0, 4])
    def test_a_layer_that_cannot_be_split_at_is_refused(self, first_layer: int) -> None:
        with pytest.raises(UsageError, match=rf"lora\.first_layer {first_layer}: this model has layers 0 to 3"):
            split_decoder(tiny_base().model.model, first_layer)

    def test_layers_of_several_kinds_are_refused(self) -> None:
        decoder = tiny_base("qwen3").model.model
        decoder.config.layer_types = ["full_attention", "sliding_attention"] * 2
        with pytest.raises(UsageError, match=r"lora\.first_layer: this model mixes kinds of layers"):
            split_decoder(decoder, 2)


class TestStates:
    def test_they_are_what_the_lower_layers_give_and_are_computed_once(self) -> None:
        layers = FrozenLayers(lower := lower_half())
        states = kept(layers, SEQUENCES)
        for ids, state in zip(SEQUENCES, states, strict=True):
            with torch.inference_mode():
                alone = lower(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
            torch.testing.assert_close(state.tokens(), alone, rtol=1e-5, atol=1e-5)
        assert layers.states([list(ids) for ids in SEQUENCES]) is states
        others = ([[1, 2], [3]], [[1], [2, 3]])  # of the same ids in a row
        assert [[len(state.tokens()) for state in kept(layers, ids)] for ids in others] == [[2, 1], [1, 2]]

    def test_they_can_be_trained_on_though_computed_while_scoring(self) -> None:
        base = tiny_base()
        adapters = adapter_parameters(add_lora(base, LoraConfig(first_layer=2), seed=0))
        base.model.requires_grad_(True)  # the lower layers too: gradients must not reach them
        model = UnimodelForExp1(base, PromptConfig(), 256, first_layer=2)
        pairs = [("cat", "mat"), ("dog", "house")]
        model.rerank(pairs)
        assert model.frozen_layers is not None
        ids = model.pair_ids(pairs)
        states = kept(model.frozen_layers, ids)
        assert not any(state.block.is_inference() for state in states)
        model.margins(model.last_states(ids, states)).sum().backward()  # type: ignore[no-untyped-call]
        assert all(weight.grad is not None for weight in adapters.values())
        learnt = {name for name, weight in base.model.named_parameters() if weight.grad is not None}
        assert all(name.startswith(("model.layers.2.", "model.layers.3.", "model.norm.")) for name in learnt)


class TestMemory:
    def test_a_set_beyond_the_limit_is_not_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        layers = FrozenLayers(lower_half())
        monkeypatch.setattr(module, "MEMORY_LIMIT", 4 * BYTES_PER_TOKEN)
        assert layers.states([[1, 2], [3, 4]]) is not None
        assert layers.states([[1, 2], [3, 4, 5]]) is None

    def test_of_many_sets_the_one_used_longest_ago_is_dropped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "SETS_LIMIT", 6 * BYTES_PER_TOKEN)
        layers = FrozenLayers(lower_half())
        a, b, c = [[1, 2]], [[3, 4]], [[5, 6, 7]]
        first_a, first_b = layers.states(a), layers.states(b)
        assert layers.states(a) is first_a
        layers.states(c)  # takes the place of b
        assert layers.states(a) is first_a
        assert layers.states(b) is not first_b
