"""Random rerankers of each family, small enough to load and run inside one unit test, as folders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from support.tiny_encoders import load, save_tiny_encoder
from support.tiny_models import HIDDEN, LETTERS, random_model, saved, seeded, tiny_tokenizer, trained_bpe
from tokenizers import decoders, pre_tokenizers, processors
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerFast

from unimoe.config import PromptConfig
from unimoe.evaluation.reranking.rerankers import CrossEncoderReranker
from unimoe.models.rerankers.cross_encoder import load_cross_encoder
from unimoe.models.rerankers.mono_t5 import load_mono_t5
from unimoe.models.rerankers.score_head import load_score_head

PAIRS = [
    (query, document)
    for query in ("what sorts a list", "où est le chat? 🐈", "")
    for document in (
        "a quick sort splits the list around a pivot and sorts both halves",
        "",
        "the cat sat on the mat while rain fell on the roof of the old house",
        "القط على الحصيرة",
    )
]
"""Pairs that fit into 300 tokens of the byte-level tokenizer."""


def save_tiny_cross_encoder(folder: Path, labels: int = 1, **settings: Any) -> Path:
    """Write a random BERT with a head, as ``save_pretrained`` of sentence-transformers and transformers leave it."""
    return save_tiny_encoder(folder, auto="AutoModelForSequenceClassification", num_labels=labels, **settings)


def save_tiny_dense_cross_encoder(folder: Path, bare: Path, labels: int = 1) -> Path:
    """Write a cross-encoder whose head is a module of sentence-transformers behind a pooled encoder, from ``bare``."""
    transformer = Transformer(str(bare))
    places: dict[str, Any] = {"module_input_name": "sentence_embedding", "module_output_name": "scores"}
    head = seeded(lambda: Dense(HIDDEN, labels, activation_function=torch.nn.Identity(), **places))
    modules = [transformer, Pooling(HIDDEN, pooling_mode="mean"), head]
    CrossEncoder(modules=modules, device="cpu").save_pretrained(str(folder))
    return folder


def save_tiny_t5(folder: Path) -> Path:
    """Write a random T5 whose tokenizer knows ``true`` and ``false`` as one token each."""
    tokenizer = tiny_t5_tokenizer()
    sizes = {"d_model": HIDDEN, "d_kv": HIDDEN // 4, "d_ff": 2 * HIDDEN, "num_layers": 2, "num_heads": 4}
    places = {"pad_token_id": tokenizer.pad_token_id, "decoder_start_token_id": tokenizer.pad_token_id}
    places["eos_token_id"] = tokenizer.eos_token_id
    model = random_model("AutoModelForSeq2SeqLM", "t5", len(tokenizer), **sizes, **places, initializer_factor=2.0)
    return saved(folder, model, tokenizer)


def tiny_t5_tokenizer() -> Any:
    """A tokenizer as T5's: words with a mark before them, and the end of a text after it."""
    words = ["true", "false", "yes", "no", "Query:", "Document:", "Relevant:"]
    special = ["<pad>", "</s>", "<unk>"]
    tokenizer = trained_bpe(pre_tokenizers.Metaspace(), 500, special, LETTERS, words, unk_token="<unk>")
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def save_tiny_score_head(folder: Path, kind: str = "llama") -> Path:
    """Write a random decoder with a score head, whose tokenizer puts a first token before both texts of a pair."""
    return _save_decoder(folder, "AutoModelForSequenceClassification", kind, num_labels=1)


def _save_decoder(folder: Path, auto: str, kind: str = "llama", **settings: Any) -> Path:
    tokenizer = llama_like_tokenizer()
    settings |= {"num_key_value_heads": 2, "max_position_embeddings": 1024, "pad_token_id": tokenizer.pad_token_id}
    return saved(folder, random_model(auto, kind, len(tokenizer), **settings), tokenizer)


def save_tiny_score_adapter(base: Path, folder: Path) -> Path:
    """Write an adapter with a head for a causal language model in ``base``, as RankLLaMA is published."""
    _save_decoder(base, "AutoModelForCausalLM")
    classifier: Any = AutoModelForSequenceClassification
    lora = LoraConfig(task_type=TaskType.SEQ_CLS, r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    seeded(lambda: get_peft_model(classifier.from_pretrained(base, num_labels=1), lora)).save_pretrained(folder)
    return folder


def llama_like_tokenizer() -> Any:
    """The byte-level tokenizer, with a first token before each text of a pair, as Llama's."""
    tokenizer = tiny_tokenizer()
    first = "<|im_start|>"
    tokenizer.bos_token = first
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{first} $A", pair=f"{first} $A {first}:1 $B:1",
        special_tokens=[(first, tokenizer.convert_tokens_to_ids(first))],
    )  # fmt: skip
    return tokenizer


Scorer = Callable[[Path], tuple[Callable[[], Sequence[float]], Any]]
"""Saves a model to a folder and loads it; returns what scores all pairs twice, and the module of torch that it runs."""

CPU, FLOAT = torch.device("cpu"), torch.float32


def _encoder(folder: Path) -> Any:
    model = load(save_tiny_encoder(folder))
    texts = [f"{document} {query}" for query, document in PAIRS] * 2
    return lambda: model.encode(texts)[:, 0].tolist(), model.model.transformers_model


def _mono_t5(folder: Path) -> Any:
    model = load_mono_t5(save_tiny_t5(folder), PromptConfig(), 64, CPU, FLOAT)
    sequences = model.pair_ids(PAIRS * 2)
    return lambda: model.rerank_ids(sequences).tolist(), model.model


def _score_head(folder: Path) -> Any:
    model = load_score_head(save_tiny_score_head(folder), 300, CPU, FLOAT)
    sequences = model.pair_ids(PAIRS * 2)
    return lambda: model.rerank_ids(sequences).tolist(), model.model


def _cross_encoder(folder: Path) -> Any:
    loaded: Any = load_cross_encoder(save_tiny_cross_encoder(folder), CPU, FLOAT, 64)
    model = CrossEncoderReranker(loaded, 32)
    return lambda: model.score(PAIRS * 2), loaded[0].model


SCORERS: dict[str, Scorer] = {
    "encoder": _encoder,
    "monot5": _mono_t5,
    "score head": _score_head,
    "cross-encoder": _cross_encoder,
}
