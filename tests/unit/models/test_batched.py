from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import pytest
import torch
from support.tiny_models import HIDDEN, tiny_base, tiny_model
from torch import Tensor

from unimoe.core.errors import DataError
from unimoe.models import batched, batching
from unimoe.models.batched import BatchedDecoder
from unimoe.models.frozen_layers import FrozenLayers, split_decoder
from unimoe.models.token_tree import MIN_SHARED, tree_tokens
from unimoe.models.tree_attention import pack, supports_trees

Layout = Literal["trees", "padded"]


@pytest.fixture(autouse=True)
def unfilled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count a row's tokens as they are: some processors want them filled up to few sizes."""
    monkeypatch.setattr("unimoe.models.tree_attention.rounds_rows", lambda device, dtype: False)


BEGINNING = list(range(100, 130))
SEQUENCES = [
    *([*BEGINNING, *range(200, 203 + tail)] for tail in (0, 7, 1, 20, 3)),
    [5],
    BEGINNING,
    list(range(40)),
    BEGINNING,
    list(range(40, 0, -1)),
]


class Subject(NamedTuple):
    """A decoder, and the states ``(N, H)`` of ``SEQUENCES`` one at a time."""

    decoder: BatchedDecoder
    forward: Any
    expected: Tensor


def model_of(layout: Layout) -> Any:
    model = tiny_base().model
    if layout == "padded":
        model._supports_attention_backend = False  # as in models whose layers attend in a way of their own
    return model


@pytest.fixture(params=["trees", "padded"])
def layout(request: pytest.FixtureRequest) -> Layout:
    layout: Layout = request.param
    return layout


@pytest.fixture(params=["whole", "halves"])
def subject(request: pytest.FixtureRequest, layout: Layout) -> Subject:
    model = model_of(layout)
    assert supports_trees(model) == (layout == "trees")
    with torch.inference_mode():
        alone = [model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1] for ids in SEQUENCES]
    if request.param == "whole":
        decoder = BatchedDecoder(model)
    else:
        lower, upper = split_decoder(model.model, 2)
        decoder = BatchedDecoder(model, FrozenLayers(lower), upper)
    return Subject(decoder, decoder.top, torch.stack(alone))


@torch.inference_mode()
def gathered(
    decoder: BatchedDecoder, sequences: Sequence[list[int]], budget: int | None = None, size: int | None = None
) -> Tensor:
    """The states in the order of the sequences, each of which came exactly once."""
    found: dict[int, Tensor] = {}
    for batch, states in decoder.states(sequences, budget, size):
        assert states.shape == (len(batch), HIDDEN)
        assert not found.keys() & set(batch)
        found.update(zip(batch, states, strict=True))
    return torch.stack([found[index] for index in range(len(sequences))])


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch, subject: Subject) -> list[int]:
    """Tokens of each forward pass, paddings included."""
    return counted(monkeypatch, subject, limit=10**6)


def counted(monkeypatch: pytest.MonkeyPatch, subject: Subject, limit: int) -> list[int]:
    """Counts the tokens of each forward pass, and lets memory run out above ``limit`` of them."""
    tokens: list[int] = []
    forward: Callable[..., Any] = subject.forward.forward

    def counting(**inputs: Any) -> Any:
        rows = inputs["input_ids"] if "input_ids" in inputs else inputs["inputs_embeds"][..., 0]
        if rows.numel() > limit:
            raise torch.OutOfMemoryError("no memory for so many")
        tokens.append(rows.numel())
        return forward(**inputs)

    monkeypatch.setattr(subject.forward, "forward", counting)
    return tokens


class TestStates:
    @pytest.mark.parametrize(
        ("budget", "size"), [(None, None), (1, None), (64, None), (10**6, None), (None, 1), (None, 3), (10**6, 3)]
    )
    def test_they_are_those_of_each_sequence_alone(
        self, subject: Subject, budget: int | None, size: int | None
    ) -> None:
        found = gathered(subject.decoder, SEQUENCES, budget, size)
        torch.testing.assert_close(found, subject.expected, rtol=1e-4, atol=1e-4)

    def test_trees_compute_what_is_shared_once(self, subject: Subject, layout: Layout, tokens: list[int]) -> None:
        gathered(subject.decoder, SEQUENCES, 10**6)
        everything = sum(map(len, SEQUENCES))
        if layout == "trees":
            assert sum(tokens) <= tree_tokens(SEQUENCES) + MIN_SHARED * len(SEQUENCES) < everything
        else:
            assert sum(tokens) >= everything


class TestOutOfMemory:
    LIMIT = 70
    """Tokens: more than the longest sequence has, less than all have together."""

    @pytest.fixture(autouse=True)
    def released(self, monkeypatch: pytest.MonkeyPatch) -> list[None]:
        """How often freed memory was given back, which takes long beside a test."""
        released: list[None] = []
        monkeypatch.setattr(batching, "release_memory", lambda: released.append(None))
        return released

    def test_batches_shrink_until_they_fit(
        self,
        subject: Subject,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        released: list[None],
    ) -> None:
        tokens = counted(monkeypatch, subject, self.LIMIT)
        found = gathered(subject.decoder, SEQUENCES)
        torch.testing.assert_close(found, subject.expected, rtol=1e-4, atol=1e-4)
        assert max(tokens) <= self.LIMIT
        reduced = subject.decoder.reduced_budget
        assert reduced is not None
        assert caplog.messages[-1] == f"out of memory: batches of at most {reduced} tokens from now on"
        assert len(released) == len(caplog.messages)

    def test_the_lower_layers_may_run_out_of_memory_too(self, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
        model = model_of(layout)
        expected = gathered(BatchedDecoder(model), SEQUENCES)
        lower, upper = split_decoder(model.model, 2)
        decoder = BatchedDecoder(model, FrozenLayers(lower), upper)
        counted(monkeypatch, Subject(decoder, lower, expected), self.LIMIT)
        torch.testing.assert_close(gathered(decoder, SEQUENCES), expected, rtol=1e-4, atol=1e-4)

    def test_a_sequence_that_does_not_fit_alone_is_named_by_its_tokens(
        self, subject: Subject, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted(monkeypatch, subject, limit=52)
        with pytest.raises(DataError, match=r"^a sequence of 53 tokens alone does not fit in memory; .*max_length"):
            gathered(subject.decoder, SEQUENCES)


class TestPackingAhead:
    """What a GPU does, on this CPU: trees are built in a thread."""

    def test_the_states_are_the_same_to_the_bit(self, subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = gathered(subject.decoder, SEQUENCES, 64)
        monkeypatch.setattr(batched, "_packs_ahead", lambda _: True)
        assert torch.equal(gathered(subject.decoder, SEQUENCES, 64), expected)

    def test_memory_that_runs_out_in_the_thread_is_no_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        decoder, calls = BatchedDecoder(model_of("trees")), list[int]()

        def scarce(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise torch.OutOfMemoryError("no memory while the batch before is computed")
            return pack(*arguments)

        expected = gathered(decoder, SEQUENCES, 64)
        monkeypatch.setattr(batched, "pack", scarce)
        monkeypatch.setattr(batched, "_packs_ahead", lambda _: True)
        assert torch.equal(gathered(decoder, SEQUENCES, 64), expected)
        assert decoder.reduced_budget is None


FULL = {"layer_types": ["full_attention"] * 2}
MIXED = {"use_sliding_window": True, "sliding_window": 8}


class TestSupportsTrees:
    @pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma", "phi3", "olmo2", "smollm3"])
    def test_families_of_plain_full_attention(self, kind: str) -> None:
        assert supports_trees(tiny_model(kind))

    @pytest.mark.parametrize(
        ("kind", "settings"),
        [
            ("mistral", {"sliding_window": 8}),
            ("qwen2", {**MIXED, "layer_types": ["full_attention", "sliding_attention"]}),
            ("gpt_oss", {**FULL, "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 16}),  # has sinks
            ("gemma2", {**FULL, "head_dim": 16, "attn_logit_softcapping": 50.0}),
            ("doge", {}),  # has a mask of its own
            ("nemotron", {}),  # does not pass on what attention is given
        ],
    )
    def test_other_attention_is_refused(self, kind: str, settings: dict[str, Any]) -> None:
        assert not supports_trees(tiny_model(kind, **settings))

    def test_families_that_may_have_other_attention_and_have_none(self) -> None:
        assert supports_trees(tiny_model("mistral", sliding_window=None))
        assert supports_trees(tiny_model("qwen2", **FULL, **MIXED))
        assert supports_trees(tiny_model("gemma2", **FULL, head_dim=16, attn_logit_softcapping=None))

    def test_values_narrower_than_keys(self) -> None:
        latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
        experts = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
        model = tiny_model("deepseek_v3", num_key_value_heads=4, **latent, **experts)
        assert supports_trees(model)
        sequences = [[*range(1, 20), 30], [*range(1, 20), 31, 32]]
        with torch.inference_mode():
            ((batch, states),) = BatchedDecoder(model).states(sequences, None, None)
            for index, state in zip(batch, states, strict=True):
                alone = model.model(input_ids=torch.tensor([sequences[index]])).last_hidden_state[0, -1]
                torch.testing.assert_close(state, alone, rtol=1e-4, atol=1e-4)
