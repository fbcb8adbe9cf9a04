"""Sparse encoders and late interaction against sentence-transformers, on the same models and texts.

    UNIMOE_DATA=DIR uv run benchmarks/first_stages.py

The models have random weights and MiniLM's size. A round encodes documents of NFCorpus, or of the bundled collection,
and compares 50 queries with them; the library does it with its defaults. Other texts in every round.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from timing import on_each
from unimoe.config.base import BUNDLED_ENCODER, EncoderConfig
from unimoe.data.catalog import available, load_collection
from unimoe.models.bundled import bundled_encoder_folder
from unimoe.models.device import choose_device, describe_device
from unimoe.models.matcher import LateModel, Matcher, SparseModel, load_matcher


def save_models(folder: Path) -> dict[type[Matcher], Any]:
    """Save both models, and return the library's."""
    from sentence_transformers import MultiVectorEncoder, SparseEncoder

    torch.manual_seed(0)
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    tokenizer: Any = AutoTokenizer.from_pretrained(bundled_encoder_folder(BUNDLED_ENCODER), model_max_length=256)
    bare = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes))  # type: ignore[arg-type]
    with torch.no_grad():
        bare.cls.predictions.bias.fill_(-0.05)  # so that some weights are 0
    bare.save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    peers = {SparseModel: SparseEncoder(str(folder / "bert")), LateModel: MultiVectorEncoder(str(folder / "bert"))}
    for matcher, peer in peers.items():
        peer.save_pretrained(str(folder / matcher.kind))
    return peers


def compare(ours: Matcher, peer: Any, parts: list[list[str]], queries: list[str]) -> list[float]:
    """Return the library's time over ours, round by round, after a warm-up."""
    taken = on_each(
        lambda texts: ours.similarity(ours.encode(queries, kind="query"), ours.encode(texts)),
        lambda texts: peer.similarity(peer.encode_query(queries), peer.encode_document(texts)).cpu(),
        [parts[0], *parts],
    )
    return [theirs / mine for mine, theirs in taken[1:]]


def main() -> None:
    """Measure alternately and print one JSON object as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--documents", type=int, default=24, help="documents of a round")
    options, device = parser.parse_args(), choose_device()
    collection = load_collection("nfcorpus" if available("nfcorpus") else "apidocs", "test")
    texts, rounds = [each.full_text for each in collection.corpus.values()], options.rounds
    texts = random.Random(0).sample(texts, rounds * options.documents)
    parts = [texts[begin::rounds] for begin in range(rounds)]
    print(f"{describe_device(device)}, torch {torch.__version__}; {rounds} rounds of {options.documents} documents")
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        for matcher, peer in save_models(Path(folder)).items():
            config = EncoderConfig(base=str(Path(folder, matcher.kind)))
            ours = load_matcher(matcher, "--model", config, device, torch.float32)
            ratios = compare(ours, peer.to(device), parts, list(collection.queries.values())[:50])
            print(f"{matcher.kind}: {min(ratios):.2f} to {max(ratios):.2f}")
            result[f"{matcher.kind}_vs_library"] = round(statistics.median(ratios), 2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
