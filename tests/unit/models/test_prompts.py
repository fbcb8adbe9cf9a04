"""Prompts of pairs and texts, and the model that is asked by them."""

from __future__ import annotations

from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
import torch
from support.tiny_models import HIDDEN, tiny_base, tiny_sentencepiece, tiny_tokenizer, tiny_wordpiece
from tokenizers.processors import TemplateProcessing

from unimoe.config import PromptConfig
from unimoe.config.training import LoraConfig
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.models.adapter import adapter_parameters, add_lora
from unimoe.models.embedder import TextKind
from unimoe.models.prompts import PairTokenizer, TextTokenizer, answer_ids, prompt_name
from unimoe.models.unimodel import UnimodelForExp1

Order = Literal["query_first", "document_first"]
ORDERS: tuple[Order, ...] = ("query_first", "document_first")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.mark.parametrize("order", ORDERS)
def test_the_document_gives_way_before_the_query(tokenizer: Any, order: Order) -> None:
    prompt, (query, document) = PromptConfig(order=order), ("why " * 30, "because of this")
    (whole,) = PairTokenizer(tokenizer, prompt, 1000)([(query, document)])
    seen = []
    for max_length in range(len(whole) - 40, len(whole) + 2):
        encode = PairTokenizer(tokenizer, prompt, max_length)
        ids, other = encode([(query, document), (query, "rain")])
        assert len(ids) == min(max_length, len(whole))
        seen.append((query.strip() in tokenizer.decode(ids), ids != other, encode.too_long([query]) == [False]))
    assert seen == sorted(seen)
    assert seen[0] == (False, False, False)
    assert seen[-1] == (True, True, True)
    assert all(query_is_whole and document_is_seen for query_is_whole, document_is_seen, fits in seen if fits)
    # A space before the document is a token of its own, or a part of the document's first.
    assert sum(document_is_seen for _, document_is_seen, fits in seen if not fits) <= 1


@pytest.mark.parametrize("order", ORDERS)
def test_an_instruction_replaces_the_configured_one(tokenizer: Any, order: Order) -> None:
    pairs = [("why?", "so"), ("word " * 600, "so")]
    for template in ("qwen3", "chat", "plain"):
        configured = PromptConfig(order=order, template=template)
        encode = PairTokenizer(tokenizer, configured, 300)
        other = PairTokenizer(tokenizer, configured.model_copy(update={"instruction": "Find a duplicate."}), 300)
        assert encode(pairs, "Find a duplicate.") == other(pairs) != encode(pairs)
        assert encode.too_long(["why?", "word " * 600], "Find a duplicate.") == [False, True]
        assert encode(pairs, configured.instruction) == encode(pairs)


def test_a_length_without_room_is_refused(tokenizer: Any) -> None:
    for order in ("query_first", "document_first"):
        prompt = PromptConfig(template="plain", instruction="word " * 9, order=order)
        with pytest.raises(UsageError, match=r"model\.max_length 16 leaves no room beside the prompt") as why:
            PairTokenizer(tokenizer, prompt, 16)
        least = int(str(why.value).partition("; raise it to ")[2])
        with pytest.raises(UsageError, match=f"raise it to {least}"):
            PairTokenizer(tokenizer, prompt, least - 1)
        encode = PairTokenizer(tokenizer, prompt, least)
        assert encode([("cat", "mat")]) != encode([("dog", "rain")])
    with pytest.raises(UsageError, match="leaves no room"):
        TextTokenizer(tokenizer, PromptConfig(embedding_suffix="a suffix of many tokens"), 4)


def test_pairs_and_texts_begin_with_the_tokenizers_first_token(tokenizer: Any) -> None:
    """Llama and Gemma were trained with one token before every text."""
    first = tiny_tokenizer()
    first.bos_token = "<|endoftext|>"
    post = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", first.bos_token_id)])
    first.backend_tokenizer.post_processor = post
    pairs, texts = [("why?", "so"), ("q", "long " * 900)], ["cat", "long " * 900]
    plain: dict[str, Any] = {"template": "plain", "instruction": ""}
    for order, own in product(ORDERS, ({}, plain)):
        prompt = PromptConfig(order=order, **own)
        without = PairTokenizer(tokenizer, prompt, 299)(pairs)
        assert PairTokenizer(first, prompt, 300)(pairs) == [[first.bos_token_id, *ids] for ids in without]
    for length in (None, 20):
        without = TextTokenizer(tokenizer, prompt, 63)(texts, "query", max_length=length and length - 1)
        found = TextTokenizer(first, prompt, 64)(texts, "query", max_length=length)
        assert found == [[first.bos_token_id, *ids] for ids in without]


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (None, "has no chat template"),
        ("{{ raise_exception('System role not supported') }}", "System role not supported"),
        ("always the same", "drops the user's message"),
    ],
)
def test_a_chat_template_that_cannot_ask_is_refused(template: str | None, reason: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(UsageError, match=rf"prompt\.template chat: .*{reason}.*or plain|{reason}.*; use plain"):
        PairTokenizer(tokenizer, PromptConfig(template="chat"), 512)


@pytest.mark.parametrize("thought", ["<think>\n\n</think>\n\n", "<think></think>"])
def test_a_model_that_can_think_is_asked_after_an_empty_thought(thought: str) -> None:
    tokenizer = tiny_tokenizer()
    ending = f"{{% if enable_thinking is defined and not enable_thinking %}}{{{{ {thought!r} }}}}{{% endif %}}"
    tokenizer.chat_template += ending
    (ids,) = PairTokenizer(tokenizer, PromptConfig(template="chat"), 512)([("why", "so")])
    assert tokenizer.decode(ids).endswith(f"<|im_start|>assistant\n{thought}")


LLAMA2 = "{{ '<s>[INST] <<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' + messages[1]['content'] + ' [/INST]' }}"
VICUNA = "{{ messages[0]['content'] + ' USER: ' + messages[1]['content'] + ' ASSISTANT:' }}"
ZEPHYR = "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '</s>\n' }}{% endfor %}<|assistant|>\n"
PHI = "{% for m in messages %}{{ '<s>' + m['content'] + '</s>' }}{% endfor %}"


@pytest.mark.parametrize("marks", ["first", "always", "prepend"])
@pytest.mark.parametrize("template", [LLAMA2, VICUNA, ZEPHYR, PHI], ids=["llama2", "vicuna", "zephyr", "phi"])
def test_a_chat_prompt_of_sentencepiece_has_the_tokens_of_the_template(marks: str, template: str) -> None:
    """It marks the beginning of a text as it marks a space; the reference is ``apply_chat_template`` on the whole."""
    tokenizer = tiny_sentencepiece(marks)
    tokenizer.chat_template = template
    encode = PairTokenizer(tokenizer, PromptConfig(template="chat", instruction="Find it."), 512)
    pairs = [("what sorts a list", "the cat sat on the mat"), ("why?", "so"), ("", "")]
    for (query, document), ids in zip(pairs, encode(pairs), strict=True):
        messages = [
            {"role": "system", "content": 'Find it. Answer only "yes" or "no".'},
            {"role": "user", "content": f"Query: {query}\nDocument: {document}"},
        ]
        whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ids == [tokenizer.bos_token_id] * (whole[0] != tokenizer.bos_token_id) + whole


def test_each_kind_of_text_has_its_prefix_and_all_keep_the_suffix_that_carries_the_embedding(tokenizer: Any) -> None:
    encode = TextTokenizer(tokenizer, PromptConfig(query_prefix="Q:", document_prefix="D: "), 16)
    prefixes: dict[TextKind, str] = {"query": "Q:", "document": "D: ", "plain": ""}
    for kind, prefix in prefixes.items():
        assert tokenizer.decode(encode(["cat"], kind)[0]) == f"{prefix}cat<|endoftext|>"
    long, empty = encode(["z " * 10_000, ""], "plain")
    assert (len(long), long[-1:]) == (16, empty)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (("yes", "yes"), "prompt.answers: 'yes' and 'yes' are one token; give two, or one alone"),
        (("yes", 10_000), "this tokenizer has no token 10000; its last one is "),
        (("relevant", "no"), "this tokenizer writes 'relevant' as "),
    ],
)
def test_answers_that_cannot_be_told_are_refused(tokenizer: Any, answers: tuple[Any, Any], reason: str) -> None:
    with pytest.raises(DataError, match=f"^{reason}"):
        answer_ids(tokenizer, answers)


def test_a_word_that_is_unknown_is_refused() -> None:
    with pytest.raises(DataError, match="this tokenizer does not know '🐈'"):
        answer_ids(tiny_wordpiece(), ["🐈", "the"])


def test_the_name_tells_apart_whatever_changes_token_ids() -> None:
    assert prompt_name(PromptConfig(), 512) == "qwen3/query_first@76e12fcf0c5f00e4"  # as before other answers
    changes: list[dict[str, Any]] = [
        {}, {"instruction": "other"}, {"field_separator": "\n\n"}, {"query_prefix": "other"}, {"answers": ["yes"]},
        {"document_prefix": "other"}, {"embedding_suffix": "other"}, {"answers": ["yes", "no"]}, {"answers": [7, 8]},
    ]  # fmt: skip
    names = {prompt_name(PromptConfig(**change), length) for change in changes for length in (256, 512)}
    assert len(names) == 2 * len(changes)
    # As when the two answers had a key each.
    assert prompt_name(PromptConfig(answers=["true", 7]), 512) == "qwen3/query_first@cbfee00493d10741"


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


@pytest.mark.parametrize("first_layer", [0, 2])
def test_embeddings_equal_those_of_one_text_at_a_time(first_layer: int) -> None:
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


def test_the_bias_of_the_output_layer_counts() -> None:
    base = tiny_base()
    without = UnimodelForExp1(base, PROMPT, 128).rerank(PAIRS, output="margin")
    yes, no = base.tokenizer.convert_tokens_to_ids(["yes", "no"])
    bias = torch.zeros(base.model.lm_head.weight.shape[0])
    bias[yes], bias[no] = 1.5, -0.25
    base.model.lm_head.bias = torch.nn.Parameter(bias, requires_grad=False)
    gaps = UnimodelForExp1(base, PROMPT, 128).rerank(PAIRS, output="margin")
    np.testing.assert_allclose(gaps, without + 1.75, atol=1e-5)


@pytest.mark.parametrize(("trees", "first_layer"), [(True, 0), (True, 2), (False, 0)])
@pytest.mark.parametrize(("culprit", "document"), [(0, "<|pad|>"), (2, "a <|pad|> b"), (3, "the old <|pad|>")])
def test_the_pair_that_spoils_its_batch_is_named_and_not_its_neighbours(
    trees: bool, first_layer: int, culprit: int, document: str
) -> None:
    """One token makes every state after it infinite or NaN, in layouts where texts share rows and blocks."""
    base = tiny_base()
    base.model._supports_attention_backend = trees
    token = base.tokenizer.convert_tokens_to_ids("<|pad|>")
    base.model.model.embed_tokens.weight[token] = torch.inf
    model = UnimodelForExp1(base, PROMPT, 128, first_layer)
    pairs = [("cat", "mat"), ("cat", "the old house"), ("dog", "rain " * 20), ("cat", "")]
    assert np.isfinite(model.rerank(pairs)).all()
    pairs[culprit] = ("cat", document)
    with pytest.raises(InputError, match=rf"input {culprit}: the score is not finite; .*model\.dtype") as caught:
        model.rerank(pairs)
    assert caught.value.index == culprit


def test_a_model_in_training_is_scored_without_dropout_and_trains_on() -> None:
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


def test_bfloat16_computes_scores_in_float32() -> None:
    base = tiny_base()
    base.model.to(torch.bfloat16)
    model = UnimodelForExp1(base, PROMPT, 128)
    assert (model.dtype, model.device) == (torch.bfloat16, torch.device("cpu"))
    gaps = torch.tensor(model.rerank(PAIRS, output="margin"))
    assert gaps.dtype == torch.float32
    assert not torch.equal(gaps, gaps.bfloat16().float())  # finer than bfloat16 can tell
    exact = tiny_unimodel().rerank(PAIRS, output="margin")
    # Rounding moves all scores together by .03 to .04 of their length; those of other pairs are .9 away.
    assert np.linalg.norm(gaps.numpy() - exact) < 0.4 * np.linalg.norm(exact)
    np.testing.assert_allclose(np.linalg.norm(model.encode(TEXTS), axis=1), 1, atol=1e-5)
