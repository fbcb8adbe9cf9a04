"""Rerankers that are asked otherwise than by yes and no, against the published loops or plain ones of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_models
from support.tiny_models import LETTERS, PAIRS
from tokenizers import decoders, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from unimoe.config import ModelConfig, PromptConfig
from unimoe.models.base import BaseModel, load_base
from unimoe.models.prompts import PairTokenizer, answer_ids
from unimoe.models.unimodel import UnimodelForExp1

pytestmark = pytest.mark.usefixtures("one_thread")

CPU, FLOAT = torch.device("cpu"), torch.float32
QUESTION = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
    "prediction of either 'Yes' or 'No'."
)
TEXTS = [*PAIRS, ("ends in a line\n", "\nbegins with one"), ("spaces  ", "  more"), ("<bos>", "<eos>")]


def assert_close(found: Any, expected: Any) -> None:
    """Equal to some 1e-6 of the scores' size, which float32 sums in another order leave."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6 * max(1.0, float(np.abs(expected).max())))


def gemma_tokenizer(marks: str | None) -> Any:
    """A tokenizer that begins texts with ``<bos>`` and writes ``Yes`` in one token.

    Args:
        marks: as in ``tiny_sentencepiece``; None for one of bytes, which like Gemma's marks no beginning of a text.
    """
    words, special = ["Yes", "No", "yes", "no"], ["<pad>", "<eos>", "<bos>"]
    if marks is None:
        byte_level = pre_tokenizers.ByteLevel
        made = tiny_models.trained_bpe(byte_level(add_prefix_space=False), 400, special, byte_level.alphabet(), words)
    else:
        metaspace = pre_tokenizers.Metaspace(prepend_scheme=marks)
        made = tiny_models.trained_bpe(metaspace, 400, special, [*LETTERS, "\n"], words)
    made.decoder = decoders.ByteLevel() if marks is None else decoders.Metaspace()
    made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=made, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )


def published_ids(tokenizer: Any, query: str, passage: str) -> list[int]:
    """The layout of FlagEmbedding: each piece tokenized alone, without special tokens, after the first one."""

    def alone(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    line = alone("\n")
    return [tokenizer.bos_token_id, *alone(f"A: {query}"), *line, *alone(f"B: {passage}"), *line, *alone(QUESTION)]


@torch.inference_mode()
def logits_of(model: Any, sequences: Sequence[list[int]]) -> torch.Tensor:
    return torch.stack([model(input_ids=torch.tensor([ids])).logits[0, -1].float() for ids in sequences])


class TestBge:
    """bge-reranker-v2-gemma: the logit of ``Yes`` after the question that FlagEmbedding asks."""

    @pytest.mark.parametrize("marks", [None, "first", "always"])
    @pytest.mark.parametrize("kind", ["gemma", "gemma2"])
    def test_token_ids_and_scores_are_those_of_the_published_loop(self, marks: str | None, kind: str) -> None:
        tokenizer = gemma_tokenizer(marks)
        expected_ids = [published_ids(tokenizer, *pair) for pair in TEXTS]
        prompt = PromptConfig(template="bge")
        assert PairTokenizer(tokenizer, prompt, 512)(TEXTS) == expected_ids
        model = tiny_models.random_model(
            "AutoModelForCausalLM", kind, len(tokenizer), num_key_value_heads=2, head_dim=16, pad_token_id=0
        ).eval()
        (yes,) = tokenizer("Yes", add_special_tokens=False)["input_ids"]
        expected = logits_of(model, expected_ids)[:, yes]
        ours = UnimodelForExp1(BaseModel(model, tokenizer, "tiny"), prompt, 512)
        assert_close(ours.rerank(TEXTS, output="margin"), expected)
        np.testing.assert_allclose(ours.rerank(TEXTS), torch.sigmoid(expected), atol=1e-5)

    def test_what_is_too_long_loses_the_passage_then_the_query_and_never_the_question(self) -> None:
        tokenizer = gemma_tokenizer(None)
        encode = PairTokenizer(tokenizer, PromptConfig(template="bge"), 200)
        (whole,) = PairTokenizer(tokenizer, PromptConfig(template="bge"), 4000)([("why", "rain " * 200)])
        (cut,) = encode([("why", "rain " * 200)])
        end = len(encode.suffix)
        assert (len(cut), cut[:-end], cut[-end:]) == (200, whole[: 200 - end], encode.suffix)
        assert encode.too_long(["why", "why " * 300]) == [False, True]

    def test_the_passage_may_come_first(self) -> None:
        tokenizer = gemma_tokenizer(None)
        (ids,) = PairTokenizer(tokenizer, PromptConfig(template="bge", order="document_first"), 512)([("q", "d")])
        assert tokenizer.decode(ids) == f"<bos>B: d\nA: q\n{QUESTION}"


@pytest.mark.parametrize("answer", ["no", 77])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("qwen3", {"head_dim": 16}),
        ("gemma2", {"final_logit_softcapping": 1.0, "query_pre_attn_scalar": 16, "head_dim": 16}),
        ("granite", {"logits_scaling": 8.0}),
        ("gpt2", {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 512}),
    ],
)
def test_a_single_answer_is_scored_by_its_logit(kind: str, settings: dict[str, Any], answer: Any) -> None:
    base = BaseModel(tiny_models.tiny_model(kind, **settings), tiny_models.tiny_tokenizer(), "tiny")
    model = UnimodelForExp1(base, PromptConfig(answers=[answer]), 300)
    (token,) = answer_ids(base.tokenizer, [answer])
    assert_close(model.rerank(PAIRS, output="margin"), logits_of(base.model, model.pair_ids(PAIRS))[:, token])


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("answers", [None, ["yes"]])
def test_the_first_layers_score_by_the_state_behind_them(kind: Any, answers: Any, tmp_path: Path) -> None:
    """As BGE's layerwise rerankers cut: the state of layer k, the final norm, and the row of the output matrix."""
    folder = tiny_models.save_tiny_model(tmp_path, kind)
    whole = load_base(ModelConfig(base=str(folder)), CPU, FLOAT)
    for layers in (1, 3):
        cut = load_base(ModelConfig(base=str(folder), layers=layers), CPU, FLOAT)
        ours = UnimodelForExp1(cut, PromptConfig(answers=answers), 300)
        tokens, expected = answer_ids(whole.tokenizer, answers or ["yes", "no"]), []
        for ids in ours.pair_ids(PAIRS):
            with torch.inference_mode():
                states = whole.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[layers]
                logits = whole.model.lm_head(whole.model.model.norm(states[0, -1]))[tokens]
            expected.append(float(logits[0] - logits[1] if len(tokens) == 2 else logits[0]))
        assert_close(ours.rerank(PAIRS, output="margin"), expected)
