"""Random language models small enough to load, train and score inside one unit test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from unimoe.core.io import hash_parts
from unimoe.models.base import BaseModel

ModelKind = Literal["llama", "qwen3"]

HIDDEN = 64
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SENTENCES = [
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided.",
    "Given a web search query, retrieve relevant passages that answer the query.",
    "the cat sat on the mat while rain fell on the roof of the old house",
    "a quick sort splits the list around a pivot and sorts both halves",
    "system user assistant think Instruct Query Document",
]


def tiny_sizes(vocabulary: int, **settings: Any) -> dict[str, Any]:
    """The sizes of a tiny transformer, and settings of its kind."""
    sizes = {"vocab_size": vocabulary, "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN, "num_hidden_layers": 2}
    # So large weights that texts differ clearly in their embeddings.
    return {**sizes, "num_attention_heads": 4, "initializer_range": 0.2, **settings}


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
    model = _build(kind, layers, seed).requires_grad_(False).eval()
    weights = hash_parts(weight.numpy().tobytes() for weight in model.state_dict().values())
    return BaseModel(model, tiny_tokenizer(), f"tiny-{kind}@{weights}")


def save_tiny_model(folder: Path, kind: ModelKind = "llama", layers: int = 4, seed: int = 0) -> Path:
    """Write model and tokenizer of ``tiny_base`` into ``folder``, a valid ``model.base`` from then on."""
    base = tiny_base(kind, layers, seed)
    return saved(folder, base.model, base.tokenizer)


def tiny_model(kind: str, **settings: Any) -> Any:
    """A random causal language model of two layers, of any kind that transformers knows, over the tiny tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    more = {"num_key_value_heads": 2, "pad_token_id": 0} | settings
    config = AutoConfig.for_model(kind, **tiny_sizes(_trained_tokenizer().get_vocab_size(), **more))
    auto: Any = AutoModelForCausalLM
    return seeded(lambda: auto.from_config(config)).requires_grad_(False).eval()


def tiny_tokenizer() -> Any:
    """A byte-level tokenizer with ChatML special tokens, in which ``yes`` and ``no`` are one token each."""
    from transformers import PreTrainedTokenizerFast

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
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always" if marks == "prepend" else marks)
    alphabet = [*map(chr, range(33, 127)), "\n"]
    special = ["<s>", "</s>", "<|pad|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*SENTENCES, *["yes", "no", "Query:", "Document:", "Relevant:"] * 100], trainer)
    if marks == "prepend":
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<|pad|>"
    )


@cache
def _trained_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # One line each, and often: without a space before them, and merged before anything else.
    tokenizer.train_from_iterator([*SENTENCES, *["yes", "no"] * 100], trainer)
    return tokenizer


def _build(kind: ModelKind, layers: int, seed: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    settings = tiny_sizes(
        _trained_tokenizer().get_vocab_size(),
        num_hidden_layers=layers,
        num_key_value_heads=2,
        head_dim=HIDDEN // 4,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=SPECIAL_TOKENS.index("<|im_end|>"),
        pad_token_id=SPECIAL_TOKENS.index("<|pad|>"),
        dtype="float32",
    )
    if kind == "qwen3":
        return seeded(lambda: Qwen3ForCausalLM(Qwen3Config(**settings)), seed)
    return seeded(lambda: LlamaForCausalLM(LlamaConfig(**settings)), seed)
