"""Embedding texts against sentence-transformers.

    UNIMOE_DATA=DIR uv run benchmarks/embed.py

The same model, texts and length for both: all-MiniLM-L6-v2, 256 tokens, documents and short texts (queries and titles
of 3 to 40 words) of NFCorpus, or of the bundled collection where UNIMOE_DATA holds no NFCorpus; a seeded sample, other
texts in every round. ``SentenceTransformer.encode`` runs with its defaults. The floor is the products of the linear
layers over real tokens, at the speed that these shapes reach alone, measured at the end of the run.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from timing import on_each, seconds
from unimoe.config.base import BUNDLED_ENCODER, EncoderConfig
from unimoe.core.memory import keep_freed_memory
from unimoe.data.catalog import available, load_collection
from unimoe.models.bundled import bundled_encoder_folder
from unimoe.models.device import choose_device, choose_dtype, describe_device
from unimoe.models.embedder import Vectors
from unimoe.models.encoder import load_encoder

SEED, WARM_UP = 0, 8
SHAPES, LAYERS, ROWS = (*[(384, 384)] * 4, (384, 1536), (1536, 384)), 6, 2048
"""(inputs, outputs) of the linear layers of one layer of MiniLM, and tokens of one batch."""

Encode = Callable[[Sequence[str]], Vectors]


def samples(name: str, documents: int, short: int, rounds: int) -> tuple[list[list[str]], list[list[str]]]:
    """For every round some documents, and some short texts."""
    collection = load_collection(name, "test")
    corpus = [document.full_text for document in collection.corpus.values()]
    titles = [document.title for document in collection.corpus.values()]
    brief = [text for text in [*collection.queries.values(), *titles] if 3 <= len(text.split()) <= 40]
    rng = random.Random(SEED)
    return _parts(rng, corpus, documents, rounds), _parts(rng, brief, short, rounds)


def _parts(rng: random.Random, texts: list[str], size: int, rounds: int) -> list[list[str]]:
    size = min(size, len(texts) // rounds)
    drawn = rng.sample(texts, size * rounds)
    return [drawn[begin : begin + size] for begin in range(0, size * rounds, size)]


def sentence_transformers(device: torch.device, dtype: torch.dtype) -> Encode:
    """The peer."""
    from sentence_transformers import SentenceTransformer

    folder = str(bundled_encoder_folder(BUNDLED_ENCODER))
    model: Any = SentenceTransformer(folder, device=str(device), model_kwargs={"dtype": dtype})

    def encode(texts: Sequence[str]) -> Vectors:
        vectors: Vectors = model.encode(list(texts), convert_to_tensor=True).float().cpu().numpy()
        return vectors

    return encode


def product_seconds(tokens: int, device: torch.device, dtype: torch.dtype) -> float:
    """Seconds that the linear layers of the model take over so many tokens, when nothing else is computed."""
    layers = [nn.Linear(*shape, device=device, dtype=dtype) for shape in SHAPES]
    inputs = {width: torch.ones(ROWS, width, device=device, dtype=dtype) for width in (384, 1536)}

    def once() -> None:
        for layer in layers:
            layer(inputs[layer.in_features])
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with torch.inference_mode():
        once()
        return statistics.median(seconds(once) for _ in range(9)) * LAYERS * tokens / ROWS


def compare(ours: Encode, peer: Encode, parts: Sequence[Sequence[str]]) -> tuple[list[float], list[float], float]:
    """Our seconds and the peer's time over ours, round by round, and the lowest cosine."""
    cosines: list[float] = []
    ours(parts[0][:WARM_UP])
    peer(parts[0][:WARM_UP])
    taken = on_each(ours, peer, parts, lambda mine, theirs: cosines.append(float((mine * theirs).sum(axis=1).min())))
    return [mine for mine, _ in taken], [theirs / mine for mine, theirs in taken], min(cosines)


def shown(name: str, ratios: Sequence[float]) -> None:
    """Print a ratio's median and spread."""
    print(f"{name}: {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} pairs")


def main() -> None:
    """Measure alternately and print one JSON object as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--documents", type=int, default=128, help="documents of a round")
    parser.add_argument("--short", type=int, default=512, help="short texts of a round")
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    device = choose_device()
    name = "nfcorpus" if available("nfcorpus") else "apidocs"
    documents, short = samples(name, options.documents, options.short, options.rounds)
    dtype, low = torch.float32, choose_dtype(device)
    encoder = load_encoder(EncoderConfig(), device, dtype)
    peer = sentence_transformers(device, dtype)
    print(f"{describe_device(device)}, torch {torch.__version__}; {name}, {options.rounds} rounds of")
    print(f"{len(documents[0])} documents and {len(short[0])} short texts, {dtype}; their time over ours:")
    own, ratios, cosine = compare(encoder.encode, peer, documents)
    shown("documents", ratios)
    _, ratios_short, cosine_short = compare(encoder.encode, peer, short)
    shown("short texts", ratios_short)
    tokens = [sum(map(len, encoder.token_ids(texts))) for texts in documents]
    floors = [product_seconds(count, device, dtype) for count in tokens]
    result: dict[str, float | None] = {
        "texts_per_s": round(sum(map(len, documents)) / sum(own), 1),
        "vs_sentence_transformers": round(statistics.median(ratios), 2),
        "vs_sentence_transformers_short": round(statistics.median(ratios_short), 2),
        "bf16_vs_sentence_transformers_default": None,
        "bf16_vs_sentence_transformers_bf16": None,
        "floor_fraction": round(statistics.median(np.divide(floors, own)), 2),
        "min_cosine": round(min(cosine, cosine_short), 6),
        "bf16_min_cosine": None,
    }
    if low == torch.bfloat16:
        low_encoder = load_encoder(EncoderConfig(), device, low)
        _, low_ratios, low_cosine = compare(low_encoder.encode, peer, documents)
        shown("documents, ours in bfloat16", low_ratios)
        _, same_ratios, _ = compare(low_encoder.encode, sentence_transformers(device, low), documents)
        shown("documents, both in bfloat16", same_ratios)
        result["bf16_vs_sentence_transformers_default"] = round(statistics.median(low_ratios), 2)
        result["bf16_vs_sentence_transformers_bf16"] = round(statistics.median(same_ratios), 2)
        result["bf16_min_cosine"] = round(low_cosine, 6)
    else:
        print("bfloat16 is not clearly faster than float32 on this machine: not measured")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
