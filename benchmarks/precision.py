"""What bfloat16 changes: a trained checkpoint's reranking in bfloat16 and in float32, on the same pairs.

    UNIMOE_DATA=DIR uv run benchmarks/precision.py --checkpoint outputs/bundled/rank_only_r8/seed_0/checkpoint

Prints nDCG@10 in both, and the rank correlation (Kendall's tau-b of each query's candidates, averaged). Without SciFact
under UNIMOE_DATA the bundled collection takes its place.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import torch
from scipy.stats import kendalltau

from unimoe.config import BM25Config
from unimoe.core.trec import Run, head
from unimoe.data.catalog import available, load_collection
from unimoe.data.collection import Collection
from unimoe.evaluation.reranking.rerankers import PairModelReranker
from unimoe.evaluation.reranking_eval import rerank_collection
from unimoe.evaluation.spec import Outcome
from unimoe.models.checkpoint import read_checkpoint
from unimoe.models.device import choose_device, describe_device, release_memory
from unimoe.models.loader import ModelLoader
from unimoe.retrieval.bm25 import bm25_run


def reranked(checkpoint: Path, dtype: torch.dtype, collection: Collection, candidates: Run) -> Outcome:
    """The checkpoint's reranking in one dtype."""
    loader = ModelLoader(read_checkpoint(checkpoint).experiment, choose_device(), dtype)
    outcome = rerank_collection(PairModelReranker(loader.trained(checkpoint)), collection, candidates)
    release_memory()
    return outcome


def rank_correlation(first: Run, second: Run) -> float:
    """Kendall's tau-b of each query's documents, averaged over queries with several."""
    taus = [
        kendalltau(list(scores.values()), [second[query_id][document_id] for document_id in scores]).statistic
        for query_id, scores in first.items()
        if len(scores) > 1
    ]
    return statistics.mean(map(float, taus))


def main() -> None:
    """Score in both dtypes and print one JSON object as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=150)
    parser.add_argument("--depth", type=int, default=20)
    options = parser.parse_args()
    name = "scifact" if available("scifact") else "apidocs"
    whole = load_collection(name, "test")
    collection = whole.sample_queries(options.queries)
    found = bm25_run(whole, 100, BM25Config(), cached=True)
    candidates = {query_id: head(found[query_id], options.depth) for query_id in collection.queries}
    low = reranked(options.checkpoint, torch.bfloat16, collection, candidates)
    full = reranked(options.checkpoint, torch.float32, collection, candidates)
    print(f"{describe_device(choose_device())}, {name}, {len(collection.queries)} queries, {low.items} pairs")
    result = {
        "ndcg@10_bfloat16": round(low.scores.aggregate["ndcg@10"], 4),
        "ndcg@10_float32": round(full.scores.aggregate["ndcg@10"], 4),
        "rank_correlation": round(rank_correlation(low.run, full.run), 4),
    }
    print(json.dumps(result | {"difference": round(result["ndcg@10_bfloat16"] - result["ndcg@10_float32"], 4)}))


if __name__ == "__main__":
    main()
