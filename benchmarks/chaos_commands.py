"""The long commands at their smallest honest size, what they read, and the servers that they ask."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from chaos_runs import Command, beside, in_fork

REQUESTS_IN_FLIGHT = 2

_FUNCTION = """
import time

def score(pairs):
    time.sleep(0.1)
    with open({journal!r}, "a") as file:
        file.write(f"asked {{pairs[0][0]}}" + chr(10))
    return [float(len(document) % 7) for _, document in pairs]

score.identity = "one"
"""
"""A reranker for workers of a cluster, which writes down what it is asked."""


def commands(inputs: Path, work: Path) -> list[Command]:
    """Write what the commands read, start the servers that some ask, and return the commands.

    Args:
        inputs: a folder for the former.
        work: where the commands will run.
    """
    inputs.mkdir()
    in_fork(lambda: _write_inputs(inputs, work))
    encoder, topics, one, two = (inputs / name for name in ("encoder", "topics", "one", "two"))
    journal = work / "journal"
    scripts = Path(__file__).parents[1] / "scripts"
    lists = (
        f"--set lists.source=path:{topics} --set model.base={encoder} --set model.max_length=48 "
        "--set model.frozen_layers=0 --set lists.max_docs=4 --set evaluation.depth=6 --set batch_size=4"
    )
    heads = f"--task path:{topics} --set encoder.base={encoder} --set batch_size=12 --set pools.depth=20"
    server = beside(lambda: _model_server(journal))
    served = f"--set served.model=org/tiny --set served.requests_in_flight={REQUESTS_IN_FLIGHT}"
    lines = {
        "main job": f"run --config {inputs}/tiny.yaml",
        "evaluate": f"evaluate --zero-shot --config {inputs}/tiny.yaml --datasets path:{one},path:{two} "
        "--task reranking",
        "retrieve": f"retrieve --datasets path:{one},path:{two} --set encoder.base={encoder}",
        "train-head": f"train-head {heads} --method infonce --num-steps 40 --set save_every=5 --set eval_every=4",
        "compare-heads": f"compare-heads {heads} --methods zero_shot,infonce --num-steps 8 --settings 2 --seeds 2 "
        "--set eval_every=4",
        "train-biencoder": f"train-biencoder --set collection=path:{topics} --set encoder.base={encoder} "
        "--set epochs=2 --set batch_size=6 --set save_every=2 --set out_dim=16 --set document_length=60",
        "train-cross-encoder": f"train-cross-encoder {lists} --set max_steps=8 --set eval_every=2",
        "compare-losses": f"{lists} --set max_steps=2 --losses softmax,pg_rank --seeds 2",
        "train-translator": f"train-translator --train {inputs}/pairs.npz --set hidden=8 --set epochs=6 --P 8 "
        "--mine_H 4",
        "compare-translators": f"compare-translators --data {inputs}/pairs.npz --epochs 3 --seeds 2 --settings 2 "
        "--set hidden=8 --set sampler.batch=32",
        "label-pairs": f"label-pairs --collection path:{topics} --model cross-encoder:{inputs}/grader "
        "--set sampling.queries=20 --set shard_queries=2 --set depth=6",
        "served evaluate": f"evaluate --model {server}/tei --datasets path:{inputs}/small {served} "
        "--set served.api=tei --set served.batch=2 --set evaluation.depth=10",
        "served retrieve": f"retrieve --encoder {server}/openai/v1 --datasets path:{inputs}/small {served} "
        "--set served.api=openai --set served.batch=2",
        "analyze": "analyze",
    }
    if importlib.util.find_spec("ray"):
        cluster = beside(lambda: _cluster(inputs, work))
        lines["ray evaluate"] = (
            f"evaluate --model python:asked_scores:score --datasets path:{inputs}/small --engine ray "
            f"--address {cluster} --workers 1 --store {work}/store"
        )
    return [
        Command(
            name,
            (*line.split(), "--output-dir", "OUT", *([] if name == "analyze" else ["--device", "cpu"])),
            script=scripts / "compare_losses.py" if name == "compare-losses" else None,
            requests=REQUESTS_IN_FLIGHT if name.startswith("served") else 0,
            finished=inputs / "finished" if name == "analyze" else None,
        )
        for name, line in lines.items()
    ]


def _write_inputs(inputs: Path, work: Path) -> None:
    import yaml
    from support.experiments import tiny_experiment_dict
    from support.heads import topics_folder
    from support.reranking import invented, write_invented
    from support.results import write_experiment
    from support.tiny_encoders import save_tiny_encoder
    from support.tiny_rerankers import save_tiny_cross_encoder
    from support.translators import small_pairs, write_npz

    experiment = tiny_experiment_dict(inputs) | {"seeds": [0]}
    (inputs / "tiny.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
    save_tiny_encoder(inputs / "encoder")
    topics_folder(inputs / "topics", {"train": 24, "dev": 6, "test": 6})
    write_invented(inputs / "one", invented(documents=40, queries=6, words=5000, name="one"))
    write_invented(inputs / "two", invented(documents=40, queries=4, words=5000, name="two"))
    write_invented(inputs / "small", invented(documents=20, queries=10, name="small"))
    write_npz(inputs / "pairs.npz", small_pairs())
    write_experiment(inputs / "finished", queries=20)
    save_tiny_cross_encoder(inputs / "grader")
    (inputs / "asked_scores.py").write_text(_FUNCTION.format(journal=str(work / "journal")), encoding="utf-8")


@contextmanager
def _model_server(journal: Path) -> Iterator[str]:
    """Serve a tiny model that writes down what it has answered, the probe texts apart: each run asks for those."""
    from support.model_server import ModelServer, serve

    from unimoe.core.io import hash_json
    from unimoe.models.served.probe import PROBE_TEXTS

    class Asked(list[tuple[str, Any]]):
        def append(self, asked: tuple[str, Any]) -> None:
            if not any(text in json.dumps(asked[1]) for text in PROBE_TEXTS):
                with journal.open("a") as file:
                    file.write(f"asked {hash_json(asked[1])}\n")

    def say_nothing(*_: object) -> None:
        """Killed clients break their connections."""

    server: ModelServer
    with patch("socketserver.BaseServer.handle_error", say_nothing), serve() as server:
        server.asked, server.latency = Asked(), 0.03
        yield server.url


@contextmanager
def _cluster(inputs: Path, work: Path) -> Iterator[str]:
    """Run a Ray cluster of one machine with room for one worker."""
    from ray.cluster_utils import Cluster

    source = Path(__file__).parents[1] / "src"
    os.environ |= {
        "PYTHONPATH": os.pathsep.join([str(source), str(inputs)]),
        "UNIMOE_CACHE": str(work / "cache"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        yield str(cluster.address)
    finally:
        cluster.shutdown()
