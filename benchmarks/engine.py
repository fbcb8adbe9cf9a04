"""What a Ray cluster costs beside the work itself.

    UNIMOE_DATA=DIR uv run --extra cluster benchmarks/engine.py

The candidates of 20 queries of SciFact (of the bundled collection where UNIMOE_DATA holds no SciFact) are
reranked in this process and by workers of a Ray cluster on this machine, one after the other, with one thread each and
models loaded beforehand. By one worker for ``overhead_percent``: the processor time of driver and worker beyond the
local run's, which other work on the machine changes less than seconds. By two on two nodes for ``speedup_2``, the local
run's seconds over theirs, which needs two idle cores. The runs must be equal to the bit. The model is the first layers
of the bundled one and reads the beginning of each pair, so that there are some ten shards and a run ends within a
minute; shards of an evaluation take longer, and cost as much to hand out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from unimoe.cluster.actors import RayActors
from unimoe.cluster.cluster import Cluster, ClusterWorkers
from unimoe.cluster.units import UnitStore
from unimoe.config import BM25Config, Experiment
from unimoe.config.files import load_experiment
from unimoe.core.trec import Run, head
from unimoe.data.catalog import available, load_collection
from unimoe.data.collection import Collection
from unimoe.evaluation.engines import ClusterReranker
from unimoe.evaluation.system import model_recipe
from unimoe.models.bundled import BUNDLED_ID
from unimoe.models.device import choose_dtype, describe_device
from unimoe.models.loader import ModelLoader
from unimoe.models.pair_model import PairModelReranker
from unimoe.models.reranker import ShardStore, rerank_run
from unimoe.retrieval.bm25 import bm25_run

QUERIES, LAYERS, MAX_LENGTH = 20, 4, 128
OBJECT_STORE = 80 * 2**20

Scorer = Callable[[], Run]


@dataclass(frozen=True)
class Cost:
    """What a run took: seconds, and seconds of processors for the driver and the workers."""

    wall: float
    busy: float


def work(depth: int) -> tuple[Collection, Run]:
    """The queries and their candidates."""
    collection = load_collection("scifact" if available("scifact") else "apidocs", "test")
    found = bm25_run(collection, depth, BM25Config(), cached=True)
    queries = sorted(collection.queries)[:QUERIES]
    return (
        Collection(collection.name, "", collection.corpus, {key: collection.queries[key] for key in queries}, {}),
        {key: {document: found[key][document] for document in head(found[key], depth)} for key in queries},
    )


def locally(model: Any, collection: Collection, candidates: Run) -> Scorer:
    """Rerank in this process; shards are written as an evaluation writes them."""

    def run() -> Run:
        with tempfile.TemporaryDirectory() as folder:
            store = ShardStore(Path(folder), "benchmark")
            return rerank_run(PairModelReranker(model), collection, candidates, store=store)[0]

    return run


def together(
    cluster: Cluster, experiment: Experiment, dtype: torch.dtype, collection: Collection, candidates: Run
) -> Scorer:
    """Rerank by the workers of a cluster; no run finds what another one left in the store."""
    recipe = model_recipe("zero-shot", experiment, dtype=str(dtype).removeprefix("torch."))
    runs = iter(range(1000))

    def run() -> Run:
        number = next(runs)
        workers = ClusterWorkers(cluster, f"run {number}", f"units/{number}", recipe, str(number))
        options = {"token_budget": None, "batch_size": None}
        model = ClusterReranker(workers, workers.ask("facts", {"options": options}), options)
        return rerank_run(model, collection, candidates)[0]

    return run


def costs(scorer: Scorer) -> tuple[Cost, Run]:
    """Run once."""
    start, before = time.perf_counter(), processor_seconds()
    found = scorer()
    return Cost(time.perf_counter() - start, processor_seconds() - before), found


def processor_seconds() -> float:
    """Seconds that processors have worked for this process and for the workers, which it started through Ray."""
    total, own = 0.0, psutil.Process()
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            if process == own or "".join(process.cmdline()).startswith("ray::"):
                times = process.cpu_times()
                total += times.user + times.system
    return total


def alternate(name: str, own: Scorer, other: Scorer, rounds: int, until: float) -> list[tuple[Cost, Cost]]:
    """Return what the local run and the cluster's took, round by round, after a warm-up."""
    found: list[tuple[Cost, Cost]] = []
    for turn in range(rounds + 1):
        (local, expected), (theirs, scores) = costs(own), costs(other)
        if scores != expected:
            raise SystemExit(f"{name}: other scores than the local run's")
        if turn:
            found.append((local, theirs))
            print(
                f"{name}: {theirs.wall:.1f} s and {theirs.busy:.1f} s of processors, locally {local.wall:.1f} s and "
                f"{local.busy:.1f} s",
                flush=True,
            )
        if found and time.perf_counter() + local.wall + theirs.wall > until:
            break
    return found


def measure(depth: int, rounds: int, until: float) -> dict[str, float]:
    """Rerank locally, by one worker and by two."""
    from ray.cluster_utils import Cluster as Nodes

    torch.set_num_threads(1)
    given = {"base": BUNDLED_ID, "layers": LAYERS, "max_length": MAX_LENGTH}
    bundled = load_experiment(Path("experiments/bundled"))
    whole = bundled.lora.model_copy(update={"first_layer": 0})  # frozen layers would be computed in the warm-up alone
    experiment = bundled.model_copy(update={"model": bundled.model.model_copy(update=given), "lora": whole})
    device = torch.device("cpu")
    dtype = choose_dtype(device)
    collection, candidates = work(depth)
    pairs = sum(map(len, candidates.values()))
    print(
        f"{describe_device(device)}, {dtype}, torch {torch.__version__}; {collection.name}, {pairs} pairs", flush=True
    )
    local_run = locally(ModelLoader(experiment, device, dtype).zero_shot(), collection, candidates)
    options: dict[str, Any] = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    nodes: Any = Nodes(initialize_head=True, head_node_args={"num_cpus": 0, **options})
    with tempfile.TemporaryDirectory() as folder:
        nodes.add_node(num_cpus=1, object_store_memory=OBJECT_STORE)
        cluster = Cluster(RayActors(nodes.address, folder, "cpu", 1), UnitStore(folder))
        try:
            cluster_run = together(cluster, experiment, dtype, collection, candidates)
            half = time.perf_counter() + (until - time.perf_counter()) / 2
            one = alternate("one worker", local_run, cluster_run, rounds, half)
            nodes.add_node(num_cpus=1, object_store_memory=OBJECT_STORE)
            while cluster.size < 2:
                time.sleep(0.1)
            two = alternate("two workers", local_run, cluster_run, rounds, until)
        finally:
            cluster.close()
            nodes.shutdown()
    return {
        "overhead_percent": round(100 * (statistics.median(theirs.busy / own.busy for own, theirs in one) - 1), 1),
        "speedup_2": round(statistics.median(own.wall / theirs.wall for own, theirs in two), 2),
    }


def main() -> None:
    """Measure and print one JSON object as the last line."""
    start = time.perf_counter()
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=7, help="the measured rounds end by then")
    parser.add_argument("--depth", type=int, default=80, help="candidates of a query")
    options = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = measure(options.depth, options.rounds, start + 60 * options.minutes)
    print(f"{time.perf_counter() - start:.0f} s")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
