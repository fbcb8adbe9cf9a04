"""Reranking by a server, against mteb's wrapper of such servers, which sends one pair a request.

    uv run benchmarks/served.py

Both ask the same server on this machine, which runs in a process of its own around a tiny random model (see
``tests/support/model_server.py``), for the scores of the same pairs: 4 queries with 100 candidates of 20 words a round.
Ours writes its shards, as an evaluation does. A model so small shows what asking costs; ``_20ms`` has a server that
takes 20 ms more for each request, as one across a network or with a large model does.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from unimoe.config.files import load_experiment
from unimoe.config.served import ServedConfig
from unimoe.core.trec import Run
from unimoe.data.collection import Collection
from unimoe.models.device import describe_device
from unimoe.models.reranker import ShardStore, rerank_run
from unimoe.models.served.reranker import ServedReranker

sys.path.append(str(Path(__file__).parents[1] / "tests"))

QUERIES, DEPTH, WORDS, ROUNDS = 4, 100, 20, 5
MODEL = "tiny"

Scorer = Callable[[], list[float]]


def run_server(pipe: Connection, latency: float) -> None:
    """Serve until the other end of the pipe is closed; its address goes through the pipe."""
    from support.model_server import serve

    torch.set_num_threads(1)
    with serve(layers=1) as server:
        server.latency = latency
        pipe.send(server.url)
        pipe.recv()


def ours(url: str, folder: Path, collection: Collection, candidates: Run) -> Scorer:
    """Our reranker, whose shards go to ``folder``."""
    settings = ServedConfig(api="jina", model=MODEL, batch=32, requests_in_flight=16)
    experiment = load_experiment("experiments/bundled")  # of which this API reads nothing
    reranker = ServedReranker(f"{url}/jina/v1", settings, experiment)

    def score() -> list[float]:
        with tempfile.TemporaryDirectory(dir=folder) as shards:
            run, _ = rerank_run(reranker, collection, candidates, store=ShardStore(Path(shards), "one"))
        return [run[query][document] for query, documents in candidates.items() for document in documents]

    return score


def mteb_wrapper(url: str, collection: Collection, candidates: Run) -> Scorer:
    """The wrapper of mteb."""
    from mteb.models import OpenAIAPIRerankWrapper

    wrapper = OpenAIAPIRerankWrapper(f"{url}/mteb", MODEL, modalities=["text"])
    pairs = [(query, document) for query, documents in candidates.items() for document in documents]
    queries: Any = [{"text": [collection.queries[query] for query, _ in pairs]}]
    documents: Any = [{"text": [collection.corpus[document].full_text for _, document in pairs]}]
    nothing: Any = None

    def score() -> list[float]:
        found = wrapper.predict(
            queries, documents, task_metadata=nothing, hf_split="", hf_subset="", show_progress_bar=False
        )
        return list(map(float, found))

    return score


def ratios(latency: float, rounds: int, depth: int) -> list[float]:
    """The wrapper's time over ours, round by round, sorted."""
    from support.toy_collections import invented

    collection = invented(documents=depth, queries=QUERIES, words=WORDS)
    candidates: Run = {query: dict.fromkeys(collection.corpus, 1.0) for query in collection.queries}
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=run_server, args=(there, latency), daemon=True)
    server.start()
    with tempfile.TemporaryDirectory() as folder:
        url = here.recv()
        scorers = {
            "ours": ours(url, Path(folder), collection, candidates),
            "mteb": mteb_wrapper(url, collection, candidates),
        }
        seconds: dict[str, list[float]] = {name: [] for name in scorers}
        for turn in range(rounds + 1):
            found = {}
            for name, score in scorers.items():
                start = time.perf_counter()
                found[name] = score()
                if turn:  # the first is the warm-up
                    seconds[name].append(time.perf_counter() - start)
            far = max(abs(one - other) for one, other in zip(*found.values(), strict=True))
            if far > 1e-4:
                raise SystemExit(f"the scores differ by {far:g}")
    here.send("done")
    server.join()
    each = {name: len(candidates) * depth / statistics.median(times) for name, times in seconds.items()}
    print(
        f"{latency * 1000:.0f} ms more a request, pairs a second: " + ", ".join(f"{k} {v:.0f}" for k, v in each.items())
    )
    return sorted(theirs / mine for theirs, mine in zip(seconds["mteb"], seconds["ours"], strict=True))


def main() -> None:
    """Measure alternately and print one JSON object as the last line."""
    start = time.perf_counter()
    print(f"{describe_device(torch.device('cpu'))}, torch {torch.__version__}")
    found: dict[str, float] = {}
    for name, latency, depth in (("vs_mteb_wrapper", 0.0, DEPTH), ("vs_mteb_wrapper_20ms", 0.02, DEPTH)):
        each = ratios(latency, ROUNDS, depth)
        print(f"{name}: " + ", ".join(f"{ratio:.1f}" for ratio in each))
        found[name] = round(statistics.median(each), 2)
    print(f"{time.perf_counter() - start:.0f} s")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
