"""The Qwen3 formats to the letter, in the ids of the published vocabulary, and the scores of a small Qwen3 over it."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_models import tiny_model
from support.yesno import Scores, adapt, assert_margins_equal, plain_scores

from unimoe.config import PromptConfig
from unimoe.models.base import BaseModel
from unimoe.models.prompts import PairTokenizer, TextTokenizer, yes_no_ids
from unimoe.models.unimodel import UnimodelForExp1

Order = Literal["query_first", "document_first"]
ORDERS: tuple[Order, ...] = ("query_first", "document_first")

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
    from transformers import AutoTokenizer

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


def test_yes_is_9693_and_no_is_2152(qwen3: Any) -> None:
    assert yes_no_ids(qwen3) == (9693, 2152)


def test_the_frame_is_the_model_cards(qwen3: Any) -> None:
    (ids,) = PairTokenizer(qwen3, PromptConfig(), 512)([("", "")])
    prefix = qwen3.encode(CARD_PREFIX, add_special_tokens=False)
    assert prefix[:3] == [IM_START, 8948, 198]
    assert prefix[-5:] == [IM_END, 198, IM_START, 872, 198]
    assert len(prefix) == 39
    assert ids[: len(prefix)] == prefix
    assert ids[-len(SUFFIX) :] == SUFFIX
    assert qwen3.decode(ids).startswith(CARD_PREFIX)
    assert qwen3.decode(ids).endswith(CARD_SUFFIX)


@pytest.mark.parametrize(
    ("query", "document"),
    [
        ("What is the capital of China?", "The capital of China is Beijing."),
        ("capital", "Paris"),
        ("empty", ""),
        ("", "no query"),
        ("emoji 🦜", "👩‍👩‍👧‍👦 and a flag 🇰🇷"),
        ("شركة", "النص العربي من اليمين إلى اليسار"),
        ("control", "a\x00b\x07c\u200bd\r\n\te"),
        ("special", "a <|im_end|> b"),
        ("long", "word " * 10_000),
    ],
    ids=lambda text: text[:8].encode("unicode_escape").decode(),
)
def test_every_pair_is_tokenised_as_in_the_model_card(qwen3: Any, query: str, document: str) -> None:
    for max_length in (128, 8192):
        (ids,) = PairTokenizer(qwen3, PromptConfig(), max_length)([(query, document)])
        assert ids == card_ids(qwen3, query, document, max_length)
        assert len(ids) <= max_length


def test_the_body_is_tokenised_whole(qwen3: Any) -> None:
    # "<Document>: " and "Paris" apart end and begin otherwise: the space belongs to the word.
    (ids,) = PairTokenizer(qwen3, PromptConfig(), 512)([("q", "Paris")])
    paris_after_a_space = 12095
    assert ids[-len(SUFFIX) - 1] == paris_after_a_space


def test_two_line_ends_part_the_fields_as_in_the_evaluation_code(qwen3: Any) -> None:
    (ids,) = PairTokenizer(qwen3, PromptConfig(field_separator="\n\n"), 512)([("q", "d")])
    body = qwen3.decode(ids).removeprefix(CARD_PREFIX).removesuffix(CARD_SUFFIX)
    assert body == f"<Instruct>: {TASK}\n\n<Query>: q\n\n<Document>: d"


def test_document_first_swaps_the_fields(qwen3: Any) -> None:
    (ids,) = PairTokenizer(qwen3, PromptConfig(order="document_first"), 512)([("q", "d")])
    body = qwen3.decode(ids).removeprefix(CARD_PREFIX).removesuffix(CARD_SUFFIX)
    assert body == f"<Instruct>: {TASK}\n<Document>: d\n<Query>: q"


def test_a_query_to_embed_carries_the_instruction_and_ends_in_end_of_text(qwen3: Any) -> None:
    encode = TextTokenizer(qwen3, PromptConfig(), 512)
    (query,) = encode(["What is gravity?"], "query")
    assert query[-1] == END_OF_TEXT
    assert qwen3.decode(query) == f"Instruct: {TASK}\nQuery:What is gravity?<|endoftext|>"


def test_a_document_to_embed_is_bare_and_an_empty_one_is_not_nothing(qwen3: Any) -> None:
    encode = TextTokenizer(qwen3, PromptConfig(), 512)
    document, empty = encode(["Gravity attracts.", ""], "document")
    assert qwen3.decode(document) == "Gravity attracts.<|endoftext|>"
    assert empty == [END_OF_TEXT]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("document", ["word " * 10_000, "🦜" * 10_000, "\u202eكلمة " * 10_000], ids=ascii)
def test_the_longest_document_leaves_the_suffix_and_the_query_whole(qwen3: Any, order: Order, document: str) -> None:
    for max_length in (128, 1000):
        (ids,) = PairTokenizer(qwen3, PromptConfig(order=order), max_length)([("what is a Zebra?", document)])
        assert len(ids) == max_length
        assert ids[-len(SUFFIX) :] == SUFFIX
        assert "<Query>: what is a Zebra?" in qwen3.decode(ids)


class TestScores:
    """A small random Qwen3 with the published vocabulary, against the plain formula."""

    MAX_LENGTH = 128
    QUERIES = ("What is the capital of China?", "شركة 🦜", "")
    DOCUMENTS = (
        "The capital of China is Beijing.",
        "",
        "word " * 10_000,
        "👩‍👩‍👧‍👦 \u202eالنص العربي\u202c a\x00b\x07c\u200bd\r\n\te <|im_end|> \ud83d",
    )
    PAIRS = tuple(product(QUERIES, DOCUMENTS))

    class Subject(NamedTuple):
        model: UnimodelForExp1
        gaps: Scores

    @pytest.fixture(
        scope="class", params=product(ORDERS, (None, 0, 2)), ids=lambda case: f"{case[0]}-lora-from-{case[1]}"
    )
    def subject(self, qwen3: Any, request: pytest.FixtureRequest) -> Subject:
        order, first_layer = request.param
        base = BaseModel(tiny_model("qwen3", vocab_size=151_936, num_hidden_layers=3, head_dim=16), qwen3, "random")
        if first_layer is not None:
            adapt(base, first_layer)
        model = UnimodelForExp1(base, PromptConfig(order=order), self.MAX_LENGTH, first_layer or 0)
        return self.Subject(model, plain_scores(base, model.pair_ids(self.PAIRS))[0])

    @pytest.mark.parametrize(
        "batching",
        [{"token_budget": 64}, {"token_budget": 2048}, {"token_budget": 10**6}, {"batch_size": 1}, {"batch_size": 3}],
        ids=str,
    )
    def test_the_gap_is_yes_minus_no(self, subject: Subject, batching: dict[str, Any]) -> None:
        assert np.ptp(subject.gaps) > 0.1
        assert_margins_equal(subject.model.rerank(self.PAIRS, output="margin", **batching), subject.gaps)

    @settings(max_examples=7)
    @given(order=st.permutations(range(len(PAIRS))), budget=st.sampled_from([64, 700, 2048]))
    def test_the_order_of_the_pairs_does_not_matter(self, subject: Subject, order: list[int], budget: int) -> None:
        pairs = [self.PAIRS[index] for index in order]
        assert_margins_equal(subject.model.rerank(pairs, output="margin", token_budget=budget), subject.gaps[order])

    def test_a_query_beyond_the_length_is_cut_as_in_qwens_code(self, subject: Subject) -> None:
        tokens = subject.model.pair_ids
        (ids,) = tokens([("Zebra " * 200, "d")])
        assert tokens.too_long(["Zebra " * 200, "Zebra"]) == [True, False]
        body = "".join(tokens.body_texts("Zebra " * 200, ""))
        if tokens.order == "query_first":  # Qwen's: tokenizer(body, truncation="longest_first", max_length=room)
            expected = tokens._tokenizer(
                body, truncation="longest_first", max_length=tokens.room, add_special_tokens=False
            )["input_ids"]
            assert ids == tokens.prefix + expected + tokens.suffix
        assert len(ids) == self.MAX_LENGTH
