"""Sequences in batches: packed rows and attention in them, memory that runs out, and states of frozen layers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_models import HIDDEN, SCORERS, ModelKind, Scorer, tiny_base, tiny_model
from torch import Tensor

from unimoe.config import PromptConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.models import batching, frozen_layers
from unimoe.models import tree_attention as module
from unimoe.models import tree_attention as tree_code
from unimoe.models.frozen_layers import FrozenLayers, FrozenStates, split_decoder
from unimoe.models.token_tree import TokenTree, build_tree
from unimoe.models.unimodel import UnimodelForExp1

pytestmark = pytest.mark.usefixtures("one_thread")

CPU, SCALING = torch.device("cpu"), 0.3


def random_ids(rng: np.random.Generator, *lengths: int) -> list[list[int]]:
    return [rng.integers(3, 300, length).tolist() for length in lengths]


def forest() -> list[list[int]]:
    """Queries and documents after one beginning, a chain of sequences that begin the next, equal and lone ones."""
    rng = np.random.default_rng(0)
    (beginning, chain), documents = random_ids(rng, 40, 300), random_ids(rng, 1, 5, 127, 128, 129, 200)
    reranking = [beginning + query + document for query in random_ids(rng, 9, 150) for document in [*documents, [7]]]
    chained = [chain[:length] for length in range(10, 300, 24)]
    return [*reranking, *chained, *[list(range(3, 50))] * 5, *random_ids(rng, 1, 3, 140, 300)]


@pytest.fixture(params=["cpu", "gpu"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row a block, and many, as a GPU has."""
    if request.param == "gpu":
        monkeypatch.setattr(module, "_CPU_ROWS", 3)
        monkeypatch.setattr(module, "_attend_on_cpu", module._attend)


@pytest.fixture(params=[[[5]], [[*range(3, 100)]], forest()], ids=["one token", "one in the second block", "forest"])
def tree(request: pytest.FixtureRequest) -> TokenTree:
    return build_tree(request.param)


@pytest.mark.parametrize("given", [True, False])
def test_attention_of_the_process_is_as_it_was_after_a_call_and_after_an_error(given: bool) -> None:
    """Importing unimoe turned cuDNN's attention off for good, also for who brings a function of their own model."""
    flags: Any = torch.backends.cuda
    before = flags.cudnn_sdp_enabled()
    base, seen = tiny_base(), list[bool]()
    model = UnimodelForExp1(base, PLAIN, LONGEST, 0)

    def look(*_: object) -> None:
        seen.append(flags.cudnn_sdp_enabled())
        if len(seen) == 2:
            raise KeyError("of a model's own code")

    base.model.model.embed_tokens.register_forward_hook(look)
    try:
        flags.enable_cudnn_sdp(given)
        model.encode(["one text"])
        assert flags.cudnn_sdp_enabled() == given
        with pytest.raises(KeyError):
            model.encode(["another"])
        assert (flags.cudnn_sdp_enabled(), seen) == (given, [False, False])
    finally:
        flags.enable_cudnn_sdp(before)


def random_states(tokens: int, heads: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values; the values wider than the others."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(heads, 16), (groups, 16), (groups, 24)]
    query, key, value = (torch.randn(1, n, tokens, width, generator=generator) for n, width in sizes)
    return query, key, value


def attend(tree: tree_code.PackedTree, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    with tree_code.running(tree):
        return tree_code.tree_attention(torch.nn.Identity(), query, key, value, None, scaling=SCALING, packed=True)[0]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (6, 1)])
def test_it_is_attention_under_the_mask_of_the_tree(tree: TokenTree, heads: int, groups: int) -> None:
    tokens, row = len(tree.ids), np.arange(len(tree.ids))
    mask = torch.from_numpy((row <= row[:, None]) & (row[:, None] < tree.ends))

    def expected(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = (state.repeat_interleave(heads // groups, dim=1) for state in (key, value))
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(query, key, value, attn_mask=mask, scale=SCALING).transpose(1, 2)

    states = random_states(tokens, heads, groups)
    found = attend(tree_code.pack(tree, CPU, torch.float32), *states)
    torch.testing.assert_close(found, expected(*states), rtol=1e-5, atol=1e-5)
    low = tree_code.pack(tree, CPU, torch.bfloat16)  # whose row is filled up
    assert low.ids.shape[1] % tree_code.ROUND_ROWS == 0
    halves = [state.bfloat16() for state in states]
    filled = (torch.nn.functional.pad(state, (0, 0, 0, low.ids.shape[1] - tokens)) for state in halves)
    found = attend(low, *filled)[:, :tokens]
    torch.testing.assert_close(found.float(), expected(*[half.float() for half in halves]), rtol=0, atol=0.2)


def varlen_on_a_cpu(query: Tensor, key: Tensor, value: Tensor, *given: Any, scale: float, **options: Any) -> Tensor:
    """What torch's kernel computes: each span's queries see its keys up to their own, counted from the span's end."""
    query_starts, key_starts, most_queries, most_keys = given
    assert options == {"window_size": (-1, 0), "enable_gqa": key.shape[1] < query.shape[1], "num_splits": 1}
    assert query_starts.dtype == key_starts.dtype == torch.int32
    spans, found = [list(pairwise(starts.tolist())) for starts in (query_starts, key_starts)], []
    for (first, end), (first_key, end_key) in zip(*spans, strict=True):
        asked, seen = end - first, end_key - first_key
        assert 0 < asked <= min(seen, most_queries)
        assert seen <= most_keys
        keys, values = (
            states[first_key:end_key].repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(0, 1)
            for states in (key, value)
        )
        mask = torch.ones(asked, seen, dtype=torch.bool).tril(seen - asked)
        attention = torch.nn.functional.scaled_dot_product_attention
        found.append(attention(query[first:end].transpose(0, 1), keys, values, mask, scale=scale).transpose(0, 1))
    return torch.cat(found)


@pytest.fixture
def varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_on_a_cpu)


@pytest.mark.usefixtures("varlen")
@pytest.mark.parametrize("seed", range(40))
def test_spans_of_variable_length_attend_as_masks_do(seed: int) -> None:
    """What the kernel of a GPU is given, on random trees whose sequences share beginnings of all lengths."""
    rng = np.random.default_rng(seed)
    stems = random_ids(rng, *rng.integers(1, 120, 4).tolist())
    sequences = [
        [token for stem in rng.integers(0, 4, rng.integers(0, 3)) for token in stems[stem]] + random_ids(rng, own)[0]
        for own in rng.integers(1, 90, rng.integers(1, 30)).tolist()
    ]
    tree, dtype = build_tree(sequences), [torch.float32, torch.float64][seed % 2]  # with a row as it is, and filled up
    masked, spans = (tree_code.pack(tree, CPU, dtype, varlen=varlen) for varlen in (False, True))
    assert spans.blocks == []
    assert spans.ids.equal(masked.ids)
    assert spans.last.equal(masked.last)
    states = [state.to(dtype) for state in random_states(spans.ids.shape[1], 4, [1, 2, 4][seed % 3])]
    found, expected = (attend(packed, states[0], states[1], states[2]) for packed in (spans, masked))
    torch.testing.assert_close(found[:, : len(tree.ids)], expected[:, : len(tree.ids)], rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("varlen")
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_decoder_over_spans_has_the_states_and_gradients_of_masks(kind: ModelKind) -> None:
    decoder = tiny_base(kind).model.model.double().requires_grad_()
    quick, _ = tree_code.last_tokens_only(decoder)
    tree, weights = build_tree(forest()), list(decoder.parameters())
    found = [
        tree_code.run_tree(quick, tree_code.pack(tree, CPU, torch.float64, varlen=varlen))[0]
        for varlen in (True, False)
    ]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)  # norms and rotations compute in float32
    direction = torch.randn(found[0].shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gradients = [torch.autograd.grad((states * direction).sum(), weights) for states in found]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


BEGINNING = list(range(100, 130))
SHARING = [
    *([*BEGINNING, *range(200, 203 + tail)] for tail in (0, 7, 1, 20, 3)),
    *([5], BEGINNING, list(range(40)), BEGINNING, list(range(40, 0, -1))),
]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_last_tokens_have_the_states_and_gradients_that_all_layers_give(kind: ModelKind) -> None:
    decoder = tiny_base(kind).model.model.double().requires_grad_()
    quick, drops = tree_code.last_tokens_only(decoder)
    assert drops
    tree, weights = tree_code.pack(build_tree(SHARING), CPU, torch.float64), list(decoder.parameters())
    found, expected = tree_code.run_tree(quick, tree)[0], tree_code.run_tree(decoder, tree)[0, tree.last]
    torch.testing.assert_close(found, expected)
    direction = torch.randn_like(expected)
    gradients = [torch.autograd.grad((states * direction).sum(), weights) for states in (found, expected)]
    torch.testing.assert_close(*gradients)


PLAIN, LONGEST = PromptConfig(template="plain", instruction=""), 128
FULL = {"layer_types": ["full_attention"] * 2}
HALF = ["full_attention", "sliding_attention"]
MIXED = {"use_sliding_window": True, "sliding_window": 8}
SINKS = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 16}
CAPPED = {"head_dim": 16, "attn_logit_softcapping": 50.0}


@pytest.mark.parametrize(
    ("kind", "settings", "trees"),
    [
        *((kind, {}, True) for kind in ("llama", "qwen2", "qwen3", "gemma", "phi3", "olmo2", "smollm3")),
        ("mistral", {"sliding_window": None}, True),
        ("mistral", {"sliding_window": LONGEST}, True),  # which no text goes beyond
        ("mistral", {"sliding_window": LONGEST - 1}, False),
        ("qwen2", {**FULL, **MIXED}, True),
        ("qwen2", {**MIXED, "layer_types": HALF}, False),
        ("qwen2", {**MIXED, "layer_types": HALF, "sliding_window": LONGEST}, True),
        ("gemma2", {**FULL, **CAPPED, "attn_logit_softcapping": None}, True),
        ("gemma2", {**FULL, **CAPPED}, False),
        ("gpt_oss", {**FULL, **SINKS}, False),
        ("doge", {}, False),  # has a mask of its own
        ("nemotron", {}, False),  # does not pass on what attention is given
    ],
)
def test_families_of_plain_full_attention_share_beginnings(kind: str, settings: dict[str, Any], trees: bool) -> None:
    base = replace(tiny_base(), model=tiny_model(kind, **settings))
    model = UnimodelForExp1(base, PLAIN, LONGEST)
    shared = [*range(5, 25)]
    assert model.training_tokens([[*shared, 30], [*shared, 31]]) == (22 if trees else 42)


PROMPTS = [[*range(5, 25), last] for last in range(30, 60)]


def decoder(trees: bool, first_layer: int) -> Scorer:
    """A causal language model, packed or padded, whole or with frozen lower layers."""

    def make(_: Path) -> Any:
        base = tiny_base()
        base.model._supports_attention_backend = trees  # False in models whose layers attend in a way of their own
        model = UnimodelForExp1(base, PLAIN, LONGEST, first_layer)
        layers = model.frozen_layers

        def score() -> Any:
            if layers:
                layers._kept.clear()  # else the second time needs no memory
            return model.rerank_ids(PROMPTS).tolist()

        return score, layers._lower if layers else model._batched.top

    return make


CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
NO_MEMORY = torch.OutOfMemoryError("no memory")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (SCORERS["encoder"], NO_MEMORY), (SCORERS["monot5"], RuntimeError(CUBLAS)),
        (SCORERS["cross-encoder"], NO_MEMORY),
        *((decoder(*layout), NO_MEMORY) for layout in ((True, 0), (True, 2), (False, 0))),
    ],
    ids=["encoder", "monot5", "cross-encoder", "packed", "frozen layers", "padded"],
)  # fmt: skip
def test_where_memory_runs_out_batches_shrink_and_stay_small(
    make: Scorer, error: RuntimeError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    score, module = make(tmp_path)
    forward, asked, limit, released = module.forward, list[int](), 10**6, list[None]()

    def scarce(*arguments: Any, **inputs: Any) -> Any:
        asked.append(inputs["input_ids"].numel())
        if asked[-1] > limit:
            raise error
        return forward(*arguments, **inputs)

    monkeypatch.setattr(module, "forward", scarce)
    # Freed memory is given back, which takes long beside a test.
    monkeypatch.setattr(batching, "release_memory", lambda: released.append(None))
    expected = score()
    whole = max(asked)
    limit = whole // 2
    np.testing.assert_allclose(score(), expected, atol=2e-4)
    assert len(released) == caplog.text.count("out of memory: batches of at most ") > 0
    asked.clear()
    np.testing.assert_allclose(score(), expected, atol=2e-4)
    assert 0 < max(asked) <= limit
    limit = 1
    with pytest.raises(DataError, match=r"alone does not fit in memory; lower \S*max_length"):
        score()
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        score()


SEQUENCES = [[*range(5, 15), 11], [12], [13, 14, 15], [300, 301], [*range(5, 15), 12], [13, 14, 15]]
BYTES_PER_TOKEN = HIDDEN * 4


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few tokens in a pass that the sequences above take several."""
    monkeypatch.setattr(frozen_layers, "default_token_budget", lambda _: 14)


def lower_half() -> Any:
    return split_decoder(tiny_base().model.model, 2)[0]


def kept(layers: FrozenLayers, sequences: list[list[int]]) -> FrozenStates:
    states = layers.states(sequences)
    assert states is not None
    return states


def test_a_model_that_cannot_be_split_is_refused() -> None:
    for first_layer in (-1, 0, 4):
        with pytest.raises(UsageError, match=rf"lora\.first_layer {first_layer}: this model has layers 0 to 3"):
            split_decoder(tiny_base().model.model, first_layer)
    mixed = tiny_base("qwen3").model.model
    mixed.config.layer_types = ["full_attention", "sliding_attention"] * 2
    with pytest.raises(UsageError, match=r"lora\.first_layer: this model mixes kinds of layers"):
        split_decoder(mixed, 2)


@pytest.mark.usefixtures("small_batches")
def test_states_are_what_the_lower_layers_give_and_are_computed_once() -> None:
    layers = FrozenLayers(lower := lower_half())
    states = kept(layers, SEQUENCES)
    for ids, state in zip(SEQUENCES, states, strict=True):
        with torch.inference_mode():
            alone = lower(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
        torch.testing.assert_close(state.tokens(), alone, rtol=1e-4, atol=1e-4)
    assert layers.states([list(ids) for ids in SEQUENCES]) is states
    others = ([[1, 2], [3]], [[1], [2, 3]])  # of the same ids in a row
    assert [[len(state.tokens()) for state in kept(layers, ids)] for ids in others] == [[2, 1], [1, 2]]


def test_states_are_kept_within_the_memory_and_those_used_longest_ago_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frozen_layers, "MEMORY_LIMIT", 4 * BYTES_PER_TOKEN)
    monkeypatch.setattr(frozen_layers, "SETS_LIMIT", 6 * BYTES_PER_TOKEN)
    layers = FrozenLayers(lower_half())
    assert layers.states([[1, 2], [3, 4, 5]]) is None
    a, b, c = [[1, 2]], [[3, 4]], [[5, 6, 7]]
    first_a, first_b = layers.states(a), layers.states(b)
    assert layers.states(a) is first_a is not None
    layers.states(c)  # takes the place of b
    assert layers.states(a) is first_a
    assert layers.states(b) is not first_b
