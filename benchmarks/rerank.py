"""Reranking against the loop of Qwen3-Reranker's model card and against sentence-transformers' CrossEncoder.

    UNIMOE_DATA=DIR uv run benchmarks/rerank.py

The same model, dtype, pairs and token ids for all: SmolLM2-135M-Instruct, Qwen3-Reranker's prompt, at most 512 tokens,
the BM25 candidates of SciFact (of the bundled collection where UNIMOE_DATA holds no SciFact). Every round takes prefix
groups that no other round has, and as many pairs as let the script end within eight minutes. The reference tokenises,
pads on the left, computes all logits and keeps the order given, 32 pairs at a time. ``CrossEncoder.predict`` with its
``LogitScore`` sorts by length and computes the last logits only; it is given our token ids in place of its own
template's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from unimoe.config import BM25Config, ModelConfig, PromptConfig
from unimoe.core.memory import keep_freed_memory
from unimoe.core.trec import Run, head
from unimoe.data.catalog import available, load_collection
from unimoe.data.collection import Collection
from unimoe.models.base import BaseModel, load_base
from unimoe.models.bundled import BUNDLED_ID, prepared_bundled_model
from unimoe.models.device import choose_device, choose_dtype, describe_device, probe_speed, release_memory
from unimoe.models.prompts import PairTokenizer, answer_ids
from unimoe.models.token_tree import tree_tokens
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.retrieval.bm25 import bm25_run

MAX_LENGTH, BATCH, WARM_UP = 512, 32, 4
PAIRS, FEWEST = 64, 2
"""Candidates of a query in a round, where time allows; a third as many pairs of documents."""

QUERY_FIRST, DOCUMENT_FIRST = PromptConfig(order="query_first"), PromptConfig(order="document_first")

Pairs = Sequence[tuple[str, str]]
Scorer = Callable[[Pairs], Sequence[float]]


def by_query(collection: Collection, run: Run) -> Iterator[Pairs]:
    """The candidates of one query after the other."""
    for query, text in collection.queries.items():
        yield [(text, collection.corpus[document].full_text) for document in head(run[query], PAIRS)]


def by_document(collection: Collection, run: Run) -> Iterator[Pairs]:
    """All pairs of one document after the other."""
    queries: dict[str, list[str]] = {}
    for query_id, scores in run.items():
        for document_id in scores:
            queries.setdefault(document_id, []).append(query_id)
    for document_id in sorted(queries):
        text = collection.corpus[document_id].full_text
        yield [(collection.queries[query_id], text) for query_id in queries[document_id]]


def at_least(groups: Iterator[Pairs], size: int) -> Pairs:
    """Whole groups of ``size`` pairs together or more."""
    pairs: list[tuple[str, str]] = []
    while len(pairs) < size:
        pairs.extend(next(groups))
    return pairs


def reference(base: BaseModel, encode: PairTokenizer) -> Scorer:
    """The loop of the model card, over our token ids."""
    yes, no = answer_ids(base.tokenizer)

    @torch.inference_mode()
    def score(pairs: Pairs) -> list[float]:
        margins: list[float] = []
        for begin in range(0, len(pairs), BATCH):
            inputs = padded(encode(pairs[begin : begin + BATCH]), next(base.model.parameters()).device)
            logits = base.model(**inputs).logits[:, -1, :]
            both = torch.log_softmax(torch.stack([logits[:, no], logits[:, yes]], dim=1), dim=1)
            margins += (both[:, 1] - both[:, 0]).tolist()
        return margins

    return score


def cross_encoder(dtype: torch.dtype, device: torch.device, encode: PairTokenizer) -> Scorer:
    """sentence-transformers' CrossEncoder, which loads a causal language model with ``LogitScore``."""
    from sentence_transformers import CrossEncoder

    model: Any = CrossEncoder(str(prepared_bundled_model()), device=str(device), model_kwargs={"dtype": dtype})
    model.preprocess = lambda batch, **_: padded(encode([tuple(pair) for pair in batch]), device)

    def score(pairs: Pairs) -> list[float]:
        margins: list[float] = model.predict(list(pairs), batch_size=BATCH, activation_fn=torch.nn.Identity()).tolist()
        return margins

    return score


def padded(sequences: Sequence[list[int]], device: torch.device) -> dict[str, torch.Tensor]:
    """Token ids padded on the left, and the mask."""
    longest = max(map(len, sequences))
    return {
        "input_ids": torch.tensor([[0] * (longest - len(ids)) + ids for ids in sequences], device=device),
        "attention_mask": torch.tensor(
            [[0] * (longest - len(ids)) + [1] * len(ids) for ids in sequences], device=device
        ),
    }


class Stopwatch:
    """Seconds of each side, round by round."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def run(self, name: str, scorer: Scorer, pairs: Pairs) -> Sequence[float]:
        """Score once and take the time."""
        release_memory()
        start = time.perf_counter()
        margins = scorer(pairs)
        self.seconds.setdefault(name, []).append(time.perf_counter() - start)
        return margins

    def ratios(self, peer: str, own: str) -> list[float]:
        """The peer's time over ours, round by round, sorted."""
        return sorted(theirs / mine for theirs, mine in zip(self.seconds[peer], self.seconds[own], strict=True))


def main() -> None:
    """Measure alternately and print one JSON object as the last line."""
    start = time.perf_counter()
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=6, help="rounds are sized to end by then")
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    device = choose_device()
    dtype = choose_dtype(device)
    name = "scifact" if available("scifact") else "apidocs"
    collection = load_collection(name, "test")
    run = bm25_run(collection, 100, BM25Config(), cached=True)
    config = ModelConfig(base=BUNDLED_ID, max_length=MAX_LENGTH)
    ours = {
        str(prompt.order): UnimodelForExp1(load_base(config, device, dtype), prompt, MAX_LENGTH)
        for prompt in (QUERY_FIRST, DOCUMENT_FIRST)
    }
    base = load_base(config, device, dtype)
    peers = {
        "reference": reference(base, ours["query_first"].pair_ids),
        "CrossEncoder": cross_encoder(dtype, device, ours["query_first"].pair_ids),
        "reference, document first": reference(base, ours["document_first"].pair_ids),
    }
    by_one_query, by_one_document = by_query(collection, run), by_document(collection, run)
    watch, worst, size = Stopwatch(), 0.0, WARM_UP
    queries: list[Pairs] = []
    documents: list[Pairs] = []
    for left in range(options.rounds, -1, -1):
        begin = time.perf_counter()
        first = next(by_one_query)[:size]
        second = first[:WARM_UP] if left == options.rounds else at_least(by_one_document, max(2, size // 3))
        margins = watch.run("ours", lambda p: ours["query_first"].rerank(p, output="margin").tolist(), first)
        others = [watch.run(peer, peers[peer], first) for peer in ("reference", "CrossEncoder")]
        watch.run("ours, document first", lambda p: ours["document_first"].rerank(p, output="margin").tolist(), second)
        watch.run("reference, document first", peers["reference, document first"], second)
        worst = max([worst, *(abs(a - b) for other in others for a, b in zip(margins, other, strict=True))])
        queries.append(first)
        documents.append(second)
        now = time.perf_counter()
        affordable = (start + 60 * options.minutes - now) / max(1, left) / ((now - begin) / size)
        size = min(PAIRS, max(FEWEST, int(affordable)))
        if left == options.rounds:
            watch = Stopwatch()  # that was the warm-up
    report(watch, ours, queries[1:], documents[1:], base, dtype, device, name, worst)


def report(
    watch: Stopwatch,
    ours: Mapping[str, UnimodelForExp1],
    queries: Sequence[Pairs],
    documents: Sequence[Pairs],
    base: BaseModel,
    dtype: torch.dtype,
    device: torch.device,
    name: str,
    worst: float,
) -> None:
    """Print the measurements."""
    sequences = [ours["query_first"].pair_ids(pairs) for pairs in queries]
    tokens, floor_tokens = sum(len(ids) for part in sequences for ids in part), sum(map(tree_tokens, sequences))
    speed = probe_speed(device.type)[str(dtype).removeprefix("torch.")]
    layer_weights = sum(weight.numel() for weight in base.model.model.layers.parameters() if weight.dim() > 1)
    floor = floor_tokens * 2 * layer_weights / speed
    pairs, spent = sum(map(len, queries)), sum(watch.seconds["ours"])
    print(
        f"{describe_device(device)}, {dtype}, torch {torch.__version__}, matrix products at {speed / 1e9:.0f} GFLOP/s"
    )
    print(f"{name}: {pairs} pairs of {tokens / pairs:.0f} tokens, query first, {floor_tokens / pairs:.0f} not shared;")
    print(f"{sum(map(len, documents))} pairs, document first; margins differ by at most {worst:.3f}")
    for run, seconds in watch.seconds.items():
        parts = documents if "document" in run else queries
        print(f"{run}: {sum(map(len, parts)) / sum(seconds):.2f} pairs/s")
    ratios = {
        "vs_reference": watch.ratios("reference", "ours"),
        "vs_sentence_transformers": watch.ratios("CrossEncoder", "ours"),
        "document_first_vs_reference": watch.ratios("reference, document first", "ours, document first"),
    }
    print("; ".join(f"{key} {values[0]:.2f} to {values[-1]:.2f}" for key, values in ratios.items()))
    result = {"pairs_per_s": round(pairs / spent, 2)}
    result |= {key: round(statistics.median(values), 2) for key, values in ratios.items()}
    result["floor_fraction"] = round(floor / spent, 2)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
