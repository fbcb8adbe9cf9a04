"""A projection head over a frozen encoder: one matrix, and the score of what it projects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn

from unimoe.errors import DataError
from unimoe.io import atomic_path
from unimoe.studies.heads.config import Scoring

HEAD_FILE = "head.safetensors"


def head_scores(weight: Tensor, queries: Tensor, documents: Tensor, scoring: Scoring) -> Tensor:
    """Scores of each query with the documents of its pool; gradients flow to the weight.

    Args:
        weight: ``(D_out, D)``.
        queries: ``(B, D)``.
        documents: ``(B, P, D)``.
        scoring: ``dot`` product or ``cosine`` of the projections.

    Returns:
        ``(B, P)`` float32.
    """
    return similarities(project(weight, queries, scoring), project(weight, documents, scoring))


def project(weight: Tensor, embeddings: Tensor, scoring: Scoring) -> Tensor:
    """Embeddings ``(..., D)`` behind a head, ``(..., D_out)``; of unit length where scores are cosines."""
    projected = embeddings @ weight.T
    return nn.functional.normalize(projected, dim=-1) if scoring == "cosine" else projected


def similarities(queries: Tensor, documents: Tensor) -> Tensor:
    """Dot products of projected queries ``(B, D_out)`` with their pools ``(B, P, D_out)``, ``(B, P)`` float32."""
    return (documents @ queries.unsqueeze(-1)).squeeze(-1).float()


def save_head(path: Path, weight: Tensor, metadata: dict[str, str]) -> None:
    """Write a head as safetensors, atomically."""
    with atomic_path(path) as temporary:
        safetensors.torch.save_file({"weight": weight.detach().cpu().contiguous()}, temporary, metadata)


def load_head(path: Path, inputs: int | None = None) -> tuple[Tensor, dict[str, str]]:
    """Read a head and what was written about it.

    Args:
        path: a file of ``save_head``.
        inputs: dimensions of the embeddings it is to project; null asks nothing.

    Returns:
        ``(D_out, D)`` float32, and the metadata.

    Raises:
        DataError: the file is missing, damaged, no head, or a head for embeddings of another size.
    """
    try:
        with safetensors.safe_open(path, "pt") as file:
            metadata: dict[str, Any] = file.metadata() or {}
            weight: Tensor = file.get_tensor("weight")
    except FileNotFoundError:
        raise DataError(f"{path}: no such head; train it first") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"{path}: damaged, or no head ({error}); train it again") from None
    if weight.ndim != 2:
        raise DataError(f"{path}: holds a tensor of {weight.ndim} dimensions, no matrix; train it again")
    if inputs is not None and weight.shape[1] != inputs:
        raise DataError(
            f"{path}: a head for embeddings of {weight.shape[1]} dimensions, these have {inputs}; "
            "use the encoder it was trained over"
        )
    return weight.float(), metadata
