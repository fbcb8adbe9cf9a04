"""Random language models small enough to load, train and score inside one unit test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from unimoe.core.io import hash_parts
from unimoe.models.base import BaseModel

ModelKind = Literal["llama", "qwen3"]

HIDDEN = 64
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LETTERS = [*map(chr, range(33, 127))]
SENTENCES = [
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided.",
    "Given a web search query, retrieve relevant passages that answer the query.",
    "the cat sat on the mat while rain fell on the roof of the old house",
    "a quick sort splits the list around a pivot and sorts both halves",
    "system user assistant think Instruct Query Document",
]


def random_model(auto: str, kind: str, vocabulary: int, *, seed: int = 0, **settings: Any) -> Any:
    """A random model of any kind that transformers knows, as its class ``auto`` builds it.

    Equal arguments give equal weights, so large that texts differ clearly in their embeddings.
    """
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": 2,
    }
    sizes |= {"num_attention_heads": 4, "initializer_range": 0.2, **settings}
    config = transformers.AutoConfig.for_model(kind, **sizes)
    return seeded(lambda: getattr(transformers, auto).from_config(config), seed)


def seeded(make: Callable[[], Any], seed: int = 0) -> Any:
    """What ``make`` makes of random numbers of this seed; those of the test go on as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def saved(folder: Path, model: Any, tokenizer: Any) -> Path:
    """Write a model and its tokenizer into a folder."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_base(kind: ModelKind = "llama", layers: int = 4, seed: int = 0) -> BaseModel:
    """A random causal language model in float32 with a byte-level tokenizer; equal arguments, equal weights."""
    settings: dict[str, Any] = {"num_hidden_layers": layers, "head_dim": HIDDEN // 4, "max_position_embeddings": 1024}
    settings |= {"eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"), "bos_token_id": None}
    settings |= {"pad_token_id": SPECIAL_TOKENS.index("<|pad|>"), "tie_word_embeddings": False, "dtype": "float32"}
    model = tiny_model(kind, seed=seed, **settings)
    weights = hash_parts(weight.numpy().tobytes() for weight in model.state_dict().values())
    return BaseModel(model, tiny_tokenizer(), f"tiny-{kind}@{weights}")


def save_tiny_model(folder: Path, kind: ModelKind = "llama", layers: int = 4, seed: int = 0) -> Path:
    """Write model and tokenizer of ``tiny_base`` into ``folder``, a valid ``model.base`` from then on."""
    base = tiny_base(kind, layers, seed)
    return saved(folder, base.model, base.tokenizer)


def tiny_model(kind: str, **settings: Any) -> Any:
    """A random causal language model of two layers, of any kind that transformers knows, over the tiny tokenizer."""
    settings = {"num_key_value_heads": 2, "pad_token_id": 0, **settings}
    model = random_model("AutoModelForCausalLM", kind, _trained_tokenizer().get_vocab_size(), **settings)
    return model.requires_grad_(False).eval()


def tiny_tokenizer() -> Any:
    """A byte-level tokenizer with ChatML special tokens, in which ``yes`` and ``no`` are one token each."""
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=_trained_tokenizer(),
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|endoftext|>", "<|im_start|>"],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_sentencepiece(marks: str) -> Any:
    """A tokenizer as Llama 2's, which marks the beginning of a text as it marks spaces.

    Args:
        marks: what counts as a beginning: ``first``, that of the whole text, or ``always``, also what follows a special
            token; ``prepend`` is ``always`` as older files write it.
    """
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always" if marks == "prepend" else marks)
    words = ["yes", "no", "Query:", "Document:", "Relevant:"]
    tokenizer = trained_bpe(metaspace, 500, ["<s>", "</s>", "<|pad|>"], [*LETTERS, "\n"], words)
    if marks == "prepend":
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<|pad|>"
    )


def trained_bpe(
    pre_tokenizer: Any, size: int, special: list[str], alphabet: list[str], words: list[str], **model: Any
) -> Any:
    """A tokenizer trained on the sentences above, in which each of ``words`` is one token.

    These are lines of their own, and many: without a space before them, and merged before anything else.
    """
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*SENTENCES, *words * 100], trainer)
    return tokenizer


@cache
def _trained_tokenizer() -> Any:
    byte_level = pre_tokenizers.ByteLevel
    tokenizer = trained_bpe(
        byte_level(add_prefix_space=False), 400, SPECIAL_TOKENS, byte_level.alphabet(), ["yes", "no"]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
