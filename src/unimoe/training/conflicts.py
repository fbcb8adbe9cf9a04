"""How far the gradients of a joint arm's two tasks agree, layer by layer, with the share that noise has in it.

The cosine of two noisy gradients is nearer to 0 than that of their expectations, by the square root of both tasks'
cosines with themselves: those of two independent batches of one task. These are estimated from two disjoint halves of
the step's batch. Halves are noisier than the whole, so their cosine ``c`` is stepped up to the whole batch's size,
``2 c / (1 + c)`` (Spearman 1910, Brown 1910), before it corrects the cosine of whole batches:

    cosine_corrected = cosine / sqrt(cosine_self_rank * cosine_self_embed)

Norms and cosines are of the unweighted losses. Where the ranking loss is a mean over queries, the second half's
gradient follows from the step's own and the first half's; elsewhere it is computed. InfoNCE of a half has half the
negatives: the halves are smaller batches of the same kind, each computed with its own negatives, because halves that
shared theirs would share their noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from unimoe.config.losses import LOSSES, LossConfig
from unimoe.io import append_jsonl
from unimoe.processes import ALONE, Processes
from unimoe.training.aggregation import Aggregation, Surgery, Task
from unimoe.training.flat_gradients import FlatGradients


@dataclass(frozen=True)
class TaskBatch:
    """One task's batch of a step.

    Attributes:
        rows: which of the task's groups.
        backward: adds the gradient of the unweighted loss over some of the rows.
        additive: whether the gradient over all rows is the mean of those over its parts, weighted by their rows.
    """

    rows: Sequence[int]
    backward: Callable[[Sequence[int]], object]
    additive: bool


class JointGradients:
    """The two tasks' gradients within a step of a joint arm: kept apart where that is asked for, measured, combined.

    In a step, call ``ranking_done`` after the backward pass of ranking, then ``embedding_done`` after the other's.
    What is measured never enters the step.

    Args:
        weights: the trainable parameters by name.
        aggregation: how one step is made of two tasks.
        log_path: where measurements are appended; null for none.
        interval: steps from one measurement to the next.
        processes: each has the gradient of its own share of the batches; their sum is the step's.
    """

    def __init__(
        self,
        weights: Mapping[str, nn.Parameter],
        aggregation: Aggregation,
        log_path: Path | None,
        interval: int,
        processes: Processes = ALONE,
    ) -> None:
        self._flat, self.aggregation = FlatGradients(weights), aggregation
        self._log_path, self._interval, self._processes = log_path, interval, processes
        self._ranking: Tensor | None = None

    def ranking_done(self, step: int) -> None:
        """Keep the gradient of ranking, if this step, counted from 0, needs it; surgery also takes it out."""
        surgery = isinstance(self.aggregation, Surgery)
        self._ranking = self._flat.take() if surgery or self._is_measured(step) else None
        if surgery:
            self._flat.clear()

    def embedding_done(self, step: int, batches: Mapping[Task, TaskBatch]) -> bool:
        """Combine the gradients where that takes surgery, and append the measurement if the step has one.

        Args:
            step: counted from 0.
            batches: what the gradients are of.

        Returns:
            Whether the gradients are already those of all processes together, as surgery leaves them.
        """
        surgery = isinstance(self.aggregation, Surgery)
        if self._ranking is None:
            return surgery
        ranking, embedding = self._ranking, self._flat.take()
        self._ranking = None
        if not surgery:
            embedding -= ranking
        ranking, embedding = self._total(ranking), self._total(embedding)
        if isinstance(self.aggregation, Surgery):
            share = self.aggregation.coefficients(self._gramian(ranking, embedding))
            self._flat.put(share[0] * ranking + share[1] * embedding)
        if self._is_measured(step):
            weights = self.aggregation.weights
            wholes: dict[Task, Tensor] = {
                "ranking": ranking.div_(weights["ranking"]),
                "embedding": embedding.div_(weights["embedding"]),
            }
            self._append(step, wholes, batches)
        return surgery

    def _total(self, flat: Tensor) -> Tensor:
        return self._processes.total(flat.cpu()).to(flat.device) if self._processes.size > 1 else flat

    def _is_measured(self, step: int) -> bool:
        return self._log_path is not None and step % self._interval == 0

    def _gramian(self, ranking: Tensor, embedding: Tensor) -> Tensor:
        product = self._flat.dots(ranking, embedding).sum()
        squares = [self._flat.dots(flat, flat).sum() for flat in (ranking, embedding)]
        return torch.stack([squares[0], product, product, squares[1]]).view(2, 2)

    def _append(self, step: int, wholes: Mapping[Task, Tensor], batches: Mapping[Task, TaskBatch]) -> None:
        own = {task: self._self_dots(batches[task], whole) for task, whole in wholes.items()}
        dots = self._flat.dots
        products = dots(wholes["ranking"], wholes["embedding"])
        squares = {task: dots(whole, whole) for task, whole in wholes.items()}
        for place, layer in enumerate(self._flat.layers):
            record = conflict_record(
                float(products[place]),
                float(squares["ranking"][place]),
                float(squares["embedding"][place]),
                own["ranking"][place],
                own["embedding"][place],
            )
            if self._log_path and self._processes.leads:
                append_jsonl(self._log_path, {"step": step + 1, "layer": layer} | record)

    def _self_dots(self, batch: TaskBatch, whole: Tensor) -> list[float | None]:
        """Each layer's cosine between two disjoint halves of the batch; null without two halves."""
        middle = len(batch.rows) // 2
        if middle == 0:
            return [None] * len(self._flat.layers)
        devices = [whole.device] if whole.device.type == "cuda" else []
        with torch.random.fork_rng(devices), self._flat.set_aside():
            first = self._gradient(batch, batch.rows[:middle])
            if batch.additive:
                share = middle / len(batch.rows)
                second = (whole - share * first) / (1 - share)
            else:
                second = self._gradient(batch, batch.rows[middle:])
        dots = self._flat.dots
        sizes = (dots(first, first), dots(second, second))
        return [
            cosine(float(product), float(a), float(b))
            for product, a, b in zip(dots(first, second), *sizes, strict=True)
        ]

    def _gradient(self, batch: TaskBatch, rows: Sequence[int]) -> Tensor:
        self._flat.clear()
        batch.backward(rows)
        return self._total(self._flat.take())


def is_additive(loss: LossConfig, dropout: float) -> bool:
    """Whether a ranking loss over a batch is the mean of that over its parts, whenever it is computed.

    Neither dropout nor shuffled ties draw the same again.
    """
    return LOSSES[loss.name].is_mean_of_lists and loss.ties == "keep" and dropout == 0


def conflict_record(
    product: float, square_rank: float, square_embed: float, halves_rank: float | None, halves_embed: float | None
) -> dict[str, float | None]:
    """A line of the log but for step and layer, as ``analysis.figures.conflicts.Conflict`` describes it.

    Args:
        product: of the two tasks' gradients.
        square_rank: squared length of ranking's.
        square_embed: squared length of embedding's.
        halves_rank: cosine between two disjoint halves of the ranking batch; null where there is none.
        halves_embed: the same of the embedding batch.
    """
    raw = cosine(product, square_rank, square_embed)
    own = [stepped_up(halves) for halves in (halves_rank, halves_embed)]
    known = [value for value in own if value is not None and value > 0]
    corrected = raw / math.sqrt(known[0] * known[1]) if raw is not None and len(known) == 2 else None
    norms = [_finite(math.sqrt(square)) if square >= 0 else None for square in (square_rank, square_embed)]
    lengths = square_rank + square_embed
    similarity = _finite(2 * math.sqrt(square_rank) * math.sqrt(square_embed) / lengths) if lengths > 0 else None
    return {
        "cosine": raw,
        "cosine_self_rank": own[0],
        "cosine_self_embed": own[1],
        "cosine_corrected": corrected,
        "norm_rank": norms[0],
        "norm_embed": norms[1],
        "magnitude_similarity": similarity,
    }


def cosine(product: float, first: float, second: float) -> float | None:
    """The cosine by a product and two squared lengths; null with a zero vector, or one that is not finite."""
    if not (first > 0 and second > 0):
        return None
    return _finite(product / (math.sqrt(first) * math.sqrt(second)))


def stepped_up(halves: float | None) -> float | None:
    """The cosine to expect between two batches of the whole size, by that of two halves; 0 or less stays as it is."""
    return 2 * halves / (1 + halves) if halves is not None and halves > 0 else halves


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
