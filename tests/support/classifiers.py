"""Folders of classifiers as people bring them: converted from causal rerankers, or without a token for padding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from support import tiny_models
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

CAUSAL: Any = AutoModelForCausalLM
CLASSIFIER: Any = AutoModelForSequenceClassification
GPT2 = {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 256}


def change(folder: Path, file: str = "config.json", **settings: Any) -> Path:
    """Change keys of a JSON file of a folder; None takes one away."""
    path = folder / file
    found = json.loads(path.read_text("utf-8")) | settings
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}), "utf-8")
    return folder


def converted(causal: Path, folder: Path, answers: tuple[str, ...] = ("yes", "no"), labels: int = 1) -> Path:
    """Make a causal reranker a classifier, as those of Qwen3 and BGE are published: rows of its output matrix."""
    tokenizer, model = AutoTokenizer.from_pretrained(causal), CAUSAL.from_pretrained(causal)
    classifier = CLASSIFIER.from_pretrained(causal, num_labels=labels)
    rows = [model.get_output_embeddings().weight[tokenizer.convert_tokens_to_ids(answer)] for answer in answers]
    head = rows[::-1] if labels == 2 else [rows[0] - rows[1] if len(rows) == 2 else rows[0]]
    with torch.no_grad():
        classifier.score.weight.copy_(torch.stack(head))
    classifier.config.pad_token_id = tokenizer.pad_token_id
    return tiny_models.saved(folder, classifier, tokenizer)


def save_decoder_classifier(folder: Path, kind: str, labels: int = 1) -> Path:
    """A classifier as transformers trains it from a decoder, without a token for padding."""
    tokenizer = tiny_models.tiny_tokenizer()
    tokenizer.chat_template = None
    sizes: dict[str, Any] = GPT2 if kind == "gpt2" else {"num_key_value_heads": 2}
    model = tiny_models.random_model(
        "AutoModelForSequenceClassification", kind, len(tokenizer), num_labels=labels, pad_token_id=None, **sizes
    )
    tiny_models.saved(folder, model, tokenizer)
    return change(folder, "tokenizer_config.json", pad_token=None)
