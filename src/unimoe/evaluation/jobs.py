"""What a cluster's worker does with the model that it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unimoe.cluster.work import Compute, Part
from unimoe.data.collection import Collection, Document
from unimoe.evaluation.mteb.remote import task_job
from unimoe.evaluation.reranking.rerankers import device_of, reranker_of, returns_logits, used_budget
from unimoe.evaluation.reranking.shards import prepared_part, score_part
from unimoe.models.device import describe_device
from unimoe.models.embedder import Vectors


def model_jobs(load: Callable[[], Any]) -> Mapping[str, Compute]:
    """Return the jobs of a model by name; it is loaded when there is work.

    ``load`` returns a system's model: an embedder, a model of token ids, or a ``Reranker``.
    """
    model = cache(load)

    def encode(part: Part) -> Vectors:
        vectors: Vectors = model().encode(part["texts"], **part["options"])
        return vectors

    def rerank(part: Part) -> NDArray[np.float64]:
        reranker = reranker_of(model(), **part["options"])
        return score_part(reranker, part, prepared_part(reranker, part))

    def cut(part: Part) -> list[list[tuple[str, str]]]:
        documents = {key: Document("", text) for key, text in part["corpus"].items()}
        collection = Collection(part["name"], "", documents, part["queries"], {})
        return reranker_of(model(), **part["options"]).cut(collection, part["candidates"])

    def truncated(part: Part) -> list[str]:
        return reranker_of(model(), **part["options"]).truncated_queries(part["queries"])

    def score(part: Part) -> list[float]:
        reranker = reranker_of(model(), **part["options"])
        pairs = [(query, document) for query, document in part["pairs"]]
        return list(map(float, reranker.score(reranker.prepare(pairs))))

    def facts(part: Part) -> dict[str, Any]:
        return model_facts(model(), part["options"])

    return {
        "encode": encode,
        "rerank": rerank,
        "cut": cut,
        "truncated": truncated,
        "score": score,
        "facts": facts,
        "mteb": task_job(model),
    }


def model_facts(model: Any, batches: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a driver that does not hold a model must know of it, as JSON values."""
    described = {name: str(getattr(model, name)) for name in ("base_identity", "prompt_name") if hasattr(model, name)}
    if callable(getattr(model, "rerank_ids", None)):
        described["order"] = model.pair_ids.order
    if hasattr(model, "dtype"):
        described["dtype"] = str(model.dtype).removeprefix("torch.")
    return {
        **described,
        "place": describe_device(device_of(model)),
        "token_budget": used_budget(model, **batches),
        "logits": returns_logits(model),
    }
