"""A projection head over a frozen encoder: one matrix, its file, its scores of pools, and their measures."""

from __future__ import annotations

import math
from pathlib import Path

import safetensors
import torch
from torch import Tensor, nn

from unimoe.core.errors import DataError
from unimoe.metrics import DEFAULT_METRICS, Scores, score_run
from unimoe.models.tensor_files import read_tensors, save_tensors
from unimoe.studies.heads.config import Scoring, TrainConfig
from unimoe.studies.heads.pools import PoolSet

HEAD_FILE = "head.safetensors"

_CHUNK = 256  # queries scored at a time


def head_scores(weight: Tensor, queries: Tensor, documents: Tensor, scoring: Scoring) -> Tensor:
    """Score queries ``(B, D)`` with the documents ``(B, P, D)`` of their pools; gradients flow to the weight.

    Returns:
        Dot products or cosines of the projections under the weight ``(D_out, D)``, ``(B, P)``.
    """
    return _similarities(_project(weight, queries, scoring), _project(weight, documents, scoring))


@torch.no_grad()
def pool_scores(weight: Tensor, pools: PoolSet, config: TrainConfig) -> Tensor:
    """Return the scores ``(Q, P)`` of every pool; those of padded places mean nothing.

    Raises:
        DataError: a score is not finite.
    """
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


def evaluate_head(weight: Tensor, pools: PoolSet, config: TrainConfig) -> Scores:
    """Return the usual measures of a head on pools, by pytrec_eval; queries without a positive in their pool count 0.

    Raises:
        DataError: a score is not finite.
    """
    metrics = tuple(dict.fromkeys((main_metric(config), *DEFAULT_METRICS)))
    return score_run(pools.qrels, pools.run(pool_scores(weight, pools, config)), metrics, pools.relevance_level)


def chosen_by(weight: Tensor, pools: PoolSet, config: TrainConfig) -> float:
    """Return the main metric of a head on pools. Errors are those of ``evaluate_head``."""
    metric = main_metric(config)
    run = pools.run(pool_scores(weight, pools, config))
    return score_run(pools.qrels, run, [metric], pools.relevance_level).aggregate[metric]


def save_head(path: Path, weight: Tensor, metadata: dict[str, str]) -> None:
    """Write a head as safetensors with a checksum, atomically."""
    save_tensors(path, {"weight": weight}, metadata)


def load_head(path: Path, inputs: int | None = None) -> tuple[Tensor, dict[str, str]]:
    """Read a head of ``save_head`` and its metadata.

    Args:
        path: the file.
        inputs: dimensions of the embeddings that it must project; None for any.

    Returns:
        ``(D_out, D)`` float32, and the metadata.

    Raises:
        DataError: the file is missing, damaged, no head, or a head for embeddings of another size.
    """
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


def _project(weight: Tensor, embeddings: Tensor, scoring: Scoring) -> Tensor:
    """Apply the head to embeddings ``(..., D)``; return ``(..., D_out)``, of unit length where scores are cosines."""
    projected = embeddings @ weight.T
    return nn.functional.normalize(projected, dim=-1) if scoring == "cosine" else projected


def _similarities(queries: Tensor, documents: Tensor) -> Tensor:
    """Multiply projected queries ``(B, D_out)`` with their pools ``(B, P, D_out)``, ``(B, P)``."""
    return (documents @ queries.unsqueeze(-1)).squeeze(-1)
