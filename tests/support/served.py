"""Rerankers and embedders of the server in ``support.model_server``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.experiments import tiny_experiment
from support.model_server import PROMPT, ModelServer
from support.reranking import invented

from unimoe.config import Experiment
from unimoe.config.served import ServedConfig
from unimoe.core.trec import Run
from unimoe.evaluation.reranking.served import ServedReranker
from unimoe.models.served.embedder import ServedEmbedder

RERANKING = ("vllm", "vllm-score", "vllm-rerank", "tei", "cohere", "jina")
EMBEDDING = ("tei-embed", "openai")

COLLECTION = invented(documents=12, queries=4)
CANDIDATES: Run = {query: dict.fromkeys(COLLECTION.corpus, 1.0) for query in COLLECTION.queries}
PAIRS = sum(map(len, CANDIDATES.values()))


def settings(api: str, **others: Any) -> ServedConfig:
    """How the tests ask: few retries, and requests of five pairs."""
    return ServedConfig(**{"api": api, "model": "org/tiny", "retries": 2, "batch": 5, "timeout": 20, **others})


def served_experiment(folder: Path) -> Experiment:
    """An experiment with the server's prompt, and its model's tokenizer in ``folder``."""
    return tiny_experiment(folder).model_copy(update={"prompt": PROMPT})


def reranker(server: ModelServer, folder: Path, api: str = "vllm", **others: Any) -> ServedReranker:
    """A reranker of the server, which keeps its first answers in ``folder``."""
    return ServedReranker(
        server.base(api), settings(api, **others), served_experiment(folder), record=folder / f"{api}.json"
    )


def embedder(server: ModelServer, folder: Path, api: str = "openai", **others: Any) -> ServedEmbedder:
    """An embedder of the server, which keeps its first answers in ``folder``."""
    return ServedEmbedder(server.base(api), settings(api, **others), record=folder / f"{api}-embed.json")
