"""A projection head over a frozen encoder: one matrix, its first weights and file, its scores of pools and measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import safetensors
import torch
from torch import Tensor, nn

from unimoe.core.errors import DataError
from unimoe.metrics import DEFAULT_METRICS, Scores, score_run
from unimoe.models.tensor_files import read_tensors
from unimoe.studies.heads.config import Similarity, TrainConfig
from unimoe.studies.heads.pools import PoolSet

HEAD_FILE = "head.safetensors"

_CHUNK = 256  # queries scored at a time


def head_scores(weight: Tensor, queries: Tensor, documents: Tensor, scoring: Similarity) -> Tensor:
    """Score queries ``(B, D)`` with the documents ``(B, P, D)`` of their pools; gradients flow to the weight.

    Returns:
        Dot products or cosines of the projections under the weight ``(D_out, D)``, ``(B, P)``.
    """
    return _similarities(_project(weight, queries, scoring), _project(weight, documents, scoring))


@torch.no_grad()
def pool_scores(weight: Tensor, pools: PoolSet, config: TrainConfig) -> Tensor:
    """Return the scores ``(Q, P)`` of every pool; those of padded places mean nothing."""
    queries = _project(weight, pools.queries, config.scoring)
    documents = _project(weight, pools.documents, config.scoring)  # each once, though many pools hold it
    parts = [slice(begin, begin + _CHUNK) for begin in range(0, len(pools), _CHUNK)]
    scores = torch.cat([_similarities(queries[part], documents[pools.rows[part]]) for part in parts])
    if not math.isfinite(float(scores.sum())):
        raise DataError(f"{pools.name}: a score is not finite; an embedding or a weight is not")
    return scores


def main_metric(config: TrainConfig) -> str:
    """Return the metric that chooses the best step: nDCG at the config's cutoff."""
    return f"ndcg@{config.ndcg_k}"


def evaluate_head(
    weight: Tensor, pools: PoolSet, config: TrainConfig, metrics: Sequence[str] = DEFAULT_METRICS
) -> Scores:
    """Return the main metric and others on pools, by pytrec_eval; a query without a positive in its pool counts 0."""
    names = tuple(dict.fromkeys((main_metric(config), *metrics)))
    return score_run(pools.qrels, pools.run(pool_scores(weight, pools, config)), names, pools.relevance_level)


def initial_weight(kind: str, documents: Tensor, outputs: int, seed: int) -> Tensor:
    """Return the first weights of a training, ``(outputs, D)`` float32 on the CPU.

    ``kind`` is that of ``TrainConfig.init``: ``pca`` takes the embeddings ``(N, D)``, and with more outputs than inputs
    leaves the rows beyond D zero; the random kinds take the seed.
    """
    inputs = documents.shape[1]
    generator = torch.Generator().manual_seed(seed)
    if kind == "normal":
        return torch.randn(outputs, inputs, generator=generator) / math.sqrt(inputs)
    if kind == "orthogonal":
        weight = torch.empty(outputs, inputs)
        nn.init.orthogonal_(weight, generator=generator)
        return weight
    if not bool(documents.isfinite().all()):
        raise DataError("an embedding is not finite; encode the corpus again, with model.dtype float32")
    directions = _principal_directions(documents)[:outputs]
    weight = torch.zeros(outputs, inputs)
    weight[: len(directions)] = directions
    return weight


@lru_cache(maxsize=1)  # a second for 384 dimensions, and every training of a study begins from them
def _principal_directions(documents: Tensor) -> Tensor:
    moment = documents.double().cpu().T @ documents.double().cpu()
    directions = torch.linalg.eigh(moment).eigenvectors.flip(1).T
    # The sign of an eigenvector is arbitrary: the largest entry is made positive, so that machines agree.
    signs = directions.gather(1, directions.abs().argmax(1, keepdim=True)).sign()
    found: Tensor = (directions * signs).float()
    return found


def load_head(path: Path, inputs: int | None = None) -> tuple[Tensor, dict[str, str]]:
    """Read a head ``(D_out, D)`` in float32, and its metadata; ``inputs`` is the D that it must have."""
    try:
        tensors, metadata = read_tensors(path)
        weight = tensors["weight"]
    except FileNotFoundError:
        raise DataError(f"{path}: no such head; train it first") from None
    except (OSError, safetensors.SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{path}: damaged, or no head ({error}); train it again") from None
    if weight.ndim != 2:
        raise DataError(f"{path}: holds a tensor of {weight.ndim} dimensions, no matrix; train it again")
    if inputs is not None and weight.shape[1] != inputs:
        raise DataError(
            f"{path}: a head for embeddings of {weight.shape[1]} dimensions, these have {inputs}; "
            "use the encoder it was trained over"
        )
    return weight.float(), metadata


def _project(weight: Tensor, embeddings: Tensor, scoring: Similarity) -> Tensor:
    """Apply the head to embeddings ``(..., D)``; return ``(..., D_out)``, of unit length where scores are cosines."""
    projected = embeddings @ weight.T
    return nn.functional.normalize(projected, dim=-1) if scoring == "cosine" else projected


def _similarities(queries: Tensor, documents: Tensor) -> Tensor:
    """Multiply projected queries ``(B, D_out)`` with their pools ``(B, P, D_out)``, ``(B, P)``."""
    return (documents @ queries.unsqueeze(-1)).squeeze(-1)
