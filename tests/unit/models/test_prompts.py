from __future__ import annotations

from typing import Any, Literal

import pytest
from support.tiny_models import tiny_sentencepiece, tiny_tokenizer

from unimoe.config import PromptConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.models.embedder import TextKind
from unimoe.models.prompts import PairTokenizer, TextTokenizer, prompt_name, yes_no_ids

Order = Literal["query_first", "document_first"]
ORDERS: tuple[Order, ...] = ("query_first", "document_first")

ODD_TEXTS = ["", " ", "🦜👩‍👩‍👧‍👦", "a\x00b\x07\x1b", "שלום עולם", "\u202eabc\u202c", "\ud83d", "a\udc00b", "\n\n\n"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


class TestPairs:
    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("text", ODD_TEXTS, ids=ascii)
    def test_odd_texts_are_taken_on_either_side(self, tokenizer: Any, order: Order, text: str) -> None:
        encode = PairTokenizer(tokenizer, PromptConfig(order=order), 512)
        for ids in encode([(text, "document"), ("query", text), (text, text)]):
            assert len(ids) <= 512
            assert all(type(token) is int for token in ids)

    @pytest.mark.parametrize("order", ORDERS)
    def test_the_document_gives_way_before_the_query(self, tokenizer: Any, order: Order) -> None:
        prompt, (query, document) = PromptConfig(order=order), ("why " * 30, "because of this")
        (whole,) = PairTokenizer(tokenizer, prompt, 1000)([(query, document)])
        seen = []
        for max_length in range(len(whole) - 40, len(whole) + 2):
            encode = PairTokenizer(tokenizer, prompt, max_length)
            (ids,) = encode([(query, document)])
            assert len(ids) == min(max_length, len(whole))
            text = tokenizer.decode(ids)
            seen.append((query.strip() in text, "because" in text, encode.too_long([query]) == [False]))
        assert seen == sorted(seen)
        assert seen[0] == (False, False, False)
        assert seen[-1] == (True, True, True)
        assert all(query_is_whole for query_is_whole, _, fits in seen if fits)
        assert not any(document_is_seen for _, document_is_seen, fits in seen if not fits)

    @pytest.mark.parametrize("order", ORDERS)
    def test_an_instruction_replaces_the_configured_one(self, tokenizer: Any, order: Order) -> None:
        pairs = [("why?", "so"), ("word " * 600, "so")]
        for template in ("qwen3", "chat", "plain"):
            configured = PromptConfig(order=order, template=template)
            encode = PairTokenizer(tokenizer, configured, 300)
            other = PairTokenizer(tokenizer, configured.model_copy(update={"instruction": "Find a duplicate."}), 300)
            assert encode(pairs, "Find a duplicate.") == other(pairs) != encode(pairs)
            assert encode.too_long(["why?", "word " * 600], "Find a duplicate.") == [False, True]
            assert encode(pairs, configured.instruction) == encode(pairs)

    def test_a_length_without_room_is_refused(self, tokenizer: Any) -> None:
        with pytest.raises(UsageError, match=r"model\.max_length 16 leaves no room"):
            PairTokenizer(tokenizer, PromptConfig(), 16)


class TestFirstToken:
    """Llama and Gemma were trained with one token before every text."""

    @pytest.fixture
    def with_first(self) -> Any:
        from tokenizers.processors import TemplateProcessing

        tokenizer = tiny_tokenizer()
        tokenizer.bos_token = "<|endoftext|>"
        post = TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.bos_token_id)])
        tokenizer.backend_tokenizer.post_processor = post
        return tokenizer

    @pytest.mark.parametrize("order", ORDERS)
    def test_a_pair_begins_with_it(self, tokenizer: Any, with_first: Any, order: Order) -> None:
        pairs = [("why?", "so"), ("q", "long " * 900)]
        for prompt in (PromptConfig(order=order), PromptConfig(order=order, template="plain", instruction="")):
            without = PairTokenizer(tokenizer, prompt, 299)(pairs)
            assert PairTokenizer(with_first, prompt, 300)(pairs) == [[with_first.bos_token_id, *ids] for ids in without]

    def test_a_chat_template_that_writes_it_gives_it_once(self, with_first: Any) -> None:
        prompt = PromptConfig(template="chat")
        (plain,) = PairTokenizer(with_first, prompt, 300)([("why?", "so")])
        with_first.chat_template = "<|endoftext|>" + with_first.chat_template
        assert PairTokenizer(with_first, prompt, 300)([("why?", "so")]) == [plain]
        assert plain.count(with_first.bos_token_id) == 1

    def test_a_text_to_embed_begins_with_it(self, tokenizer: Any, with_first: Any) -> None:
        texts, prompt = ["cat", "long " * 900], PromptConfig()
        for length in (None, 20):
            plain = TextTokenizer(tokenizer, prompt, 63)(texts, "query", max_length=length and length - 1)
            ids = TextTokenizer(with_first, prompt, 64)(texts, "query", max_length=length)
            assert ids == [[with_first.bos_token_id, *tokens] for tokens in plain]


class TestChatFrame:
    def test_the_models_own_template_frames_the_question(self, tokenizer: Any) -> None:
        prompt = PromptConfig(template="chat", instruction="Does it answer?")
        (ids,) = PairTokenizer(tokenizer, prompt, 512)([("why", "so")])
        assert tokenizer.decode(ids) == (
            '<|im_start|>system\nDoes it answer? Answer only "yes" or "no".<|im_end|>\n'
            "<|im_start|>user\nQuery: why\nDocument: so<|im_end|>\n<|im_start|>assistant\n"
        )

    @pytest.mark.parametrize(
        ("template", "reason"),
        [
            (None, "has no chat template"),
            ("{{ raise_exception('System role not supported') }}", "System role not supported"),
            ("always the same", "drops the user's message"),
        ],
    )
    def test_a_template_that_cannot_ask_is_refused(self, template: str | None, reason: str) -> None:
        tokenizer = tiny_tokenizer()
        tokenizer.chat_template = template
        with pytest.raises(UsageError, match=rf"prompt\.template chat: .*{reason}.*or plain|{reason}.*; use plain"):
            PairTokenizer(tokenizer, PromptConfig(template="chat"), 512)

    @pytest.mark.parametrize("thought", ["<think>\n\n</think>\n\n", "<think></think>"])
    def test_a_model_that_can_think_is_asked_after_an_empty_thought(self, thought: str) -> None:
        tokenizer = tiny_tokenizer()
        ending = f"{{% if enable_thinking is defined and not enable_thinking %}}{{{{ {thought!r} }}}}{{% endif %}}"
        tokenizer.chat_template += ending
        (ids,) = PairTokenizer(tokenizer, PromptConfig(template="chat"), 512)([("why", "so")])
        assert tokenizer.decode(ids).endswith(f"<|im_start|>assistant\n{thought}")


LLAMA2 = "{{ '<s>[INST] <<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' + messages[1]['content'] + ' [/INST]' }}"
VICUNA = "{{ messages[0]['content'] + ' USER: ' + messages[1]['content'] + ' ASSISTANT:' }}"
ZEPHYR = "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '</s>\n' }}{% endfor %}<|assistant|>\n"
PHI = "{% for m in messages %}{{ '<s>' + m['content'] + '</s>' }}{% endfor %}"


class TestSentencePiece:
    """It marks the beginning of a text as it marks a space; the reference is ``apply_chat_template`` on the whole."""

    @pytest.mark.parametrize("marks", ["first", "always", "prepend"])
    @pytest.mark.parametrize("template", [LLAMA2, VICUNA, ZEPHYR, PHI], ids=["llama2", "vicuna", "zephyr", "phi"])
    def test_a_chat_prompt_has_the_tokens_of_the_template(self, marks: str, template: str) -> None:
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

    @pytest.mark.parametrize("order", ORDERS)
    def test_a_plain_prompt_has_the_tokens_of_its_text(self, order: Order) -> None:
        tokenizer = tiny_sentencepiece("prepend")
        prompt = PromptConfig(template="plain", order=order, instruction="")
        (ids,) = PairTokenizer(tokenizer, prompt, 512)([("what sorts a list", "the cat sat")])
        fields = ["Query: what sorts a list", "Document: the cat sat"][:: 1 if order == "query_first" else -1]
        assert ids == tokenizer("\n".join([*fields, "Relevant:"]))["input_ids"]


class TestTexts:
    def test_each_kind_has_its_prefix_and_all_keep_the_suffix_that_carries_the_embedding(self, tokenizer: Any) -> None:
        encode = TextTokenizer(tokenizer, PromptConfig(query_prefix="Q:", document_prefix="D: "), 16)
        prefixes: dict[TextKind, str] = {"query": "Q:", "document": "D: ", "plain": ""}
        for kind, prefix in prefixes.items():
            assert tokenizer.decode(encode(["cat"], kind)[0]) == f"{prefix}cat<|endoftext|>"
        long, empty = encode(["z " * 10_000, ""], "plain")
        assert (len(long), long[-1:]) == (16, empty)

    def test_a_length_without_room_is_refused(self, tokenizer: Any) -> None:
        with pytest.raises(UsageError, match="leaves no room"):
            TextTokenizer(tokenizer, PromptConfig(embedding_suffix="a suffix of many tokens"), 4)


class TestYesNo:
    @pytest.mark.parametrize(
        ("answers", "reason"),
        [
            (("yes", "yes"), "prompt.yes and prompt.no, 'yes' and 'yes', are one token; give two"),
            (("yes", 10_000), "this tokenizer has no token 10000; its last one is "),
            (("relevant", "no"), "this tokenizer writes 'relevant' as "),
        ],
    )
    def test_answers_that_cannot_be_told_are_refused(
        self, tokenizer: Any, answers: tuple[Any, Any], reason: str
    ) -> None:
        with pytest.raises(DataError, match=f"^{reason}"):
            yes_no_ids(tokenizer, *answers)

    @pytest.mark.parametrize("known", ["yes", "no"])
    def test_a_word_that_is_unknown_is_refused(self, known: str) -> None:
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        words = Tokenizer(models.WordLevel({"[UNK]": 0, known: 1}, unk_token="[UNK]"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")  # type: ignore[no-untyped-call]
        unknown = {"yes": "no", "no": "yes"}[known]
        with pytest.raises(DataError, match=f"this tokenizer does not know '{unknown}'"):
            yes_no_ids(tokenizer)


class TestName:
    def test_it_tells_apart_whatever_changes_token_ids(self) -> None:
        assert prompt_name(PromptConfig(), 512) == "qwen3/query_first@76e12fcf0c5f00e4"  # as before other answers
        changes: list[dict[str, Any]] = [
            {}, {"instruction": "other"}, {"field_separator": "\n\n"}, {"query_prefix": "other"}, {"yes": "yes"},
            {"document_prefix": "other"}, {"embedding_suffix": "other"}, {"yes": "true"}, {"yes": 7},
        ]  # fmt: skip
        names = {prompt_name(PromptConfig(**change), length) for change in changes for length in (256, 512)}
        assert len(names) == 2 * len(changes)
