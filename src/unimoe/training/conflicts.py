"""Measures how well the gradients of a joint arm's two tasks agree, layer by layer, and corrects for noise.

Noise moves the cosine of two gradients towards 0: it is smaller than the cosine of their expectations by the square
root of the product of both tasks' self-cosines, the cosine between two independent batches of one task. Two disjoint
halves of the step's batch estimate the self-cosine. Halves are noisier than the whole, so their cosine ``c`` is stepped
up to the size of the whole batch, ``2 c / (1 + c)`` (Spearman 1910, Brown 1910), before it corrects the cosine:

    cosine_corrected = cosine / sqrt(cosine_self_rank * cosine_self_embed)

Norms and cosines are of the unweighted losses. Where the ranking loss is a mean over queries, the gradient of the
second half follows from those of the step and the first half; otherwise it is computed. For InfoNCE each half is
computed with its own negatives: halves with common negatives would have common noise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unimoe.cluster.processes import ALONE, Processes
from unimoe.config.losses import Loss
from unimoe.training.aggregation import TASKS, TrainingTask

_LAYER = re.compile(r"\.layers\.(\d+)\.")


class TaskBatch(NamedTuple):
    """One task's batch of a step."""

    rows: Sequence[int]  # the task's groups in the batch
    backward: Callable[[Sequence[int]], object]  # adds the gradient of the unweighted loss over some of the rows
    additive: bool  # whether the gradient over all rows is the mean of those over parts, weighted by their rows


class FlatGradients:
    """Reads and writes the gradients of the trainable parameters as one vector, and sums them over processes.

    Args:
        weights: the trainable parameters by name; each name holds its layer, ``....layers.15....``.
        processes: each has the gradient of its own share of the batches; their sum is the step's.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter], processes: Processes = ALONE) -> None:
        of_layer: dict[int, list[nn.Parameter]] = {}
        for name, weight in weights.items():
            found = _LAYER.search(name)
            if not found:
                raise AssertionError(f"{name}: an adapter outside the layers")
            of_layer.setdefault(int(found[1]), []).append(weight)
        self.layers, self.processes = sorted(of_layer), processes
        self._weights = [weight for layer in self.layers for weight in of_layer[layer]]
        self._sizes = [sum(weight.numel() for weight in of_layer[layer]) for layer in self.layers]

    def take(self) -> Tensor:
        """Return a copy of the accumulated gradients, float32 ``(P,)``, layer after layer; zero where there is none."""
        grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in self._weights]
        return torch.cat([grad.detach().float().flatten() for grad in grads])

    def matrices(self, flat: Tensor) -> Sequence[Tensor]:
        """Return the parts of a vector of ``take`` that belong to each trainable matrix."""
        return torch.split(flat, [weight.numel() for weight in self._weights])

    def put(self, flat: Tensor) -> None:
        """Replace the accumulated gradients by a vector of ``take``."""
        for weight, part in zip(self._weights, self.matrices(flat), strict=True):
            weight.grad = part.view_as(weight).to(weight.dtype)

    def total(self, flat: Tensor) -> Tensor:
        """Return the sum of all processes' vectors of ``take``."""
        return self.processes.total(flat.cpu()).to(flat.device) if self.processes.size > 1 else flat

    def sum_up(self) -> None:
        """Replace the accumulated gradients by the sum of those of all processes."""
        if self.processes.size > 1:
            self.put(self.total(self.take()))

    def clear(self) -> None:
        """Remove all gradients."""
        for weight in self._weights:
            weight.grad = None

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Hide the gradients from backward passes within the block, and restore them after it."""
        kept = [weight.grad for weight in self._weights]
        self.clear()
        try:
            yield
        finally:
            for weight, gradient in zip(self._weights, kept, strict=True):
                weight.grad = gradient

    def dots(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the inner products of two vectors of ``take`` by layer, float64 ``(layers,)`` on the CPU."""
        parts = zip(torch.split(first, self._sizes), torch.split(second, self._sizes), strict=True)
        return torch.stack([(a.double() * b.double()).sum() for a, b in parts]).cpu()


def conflict_records(
    flat: FlatGradients, whole: Mapping[TrainingTask, Tensor], batches: Mapping[TrainingTask, TaskBatch]
) -> list[dict[str, float | None]]:
    """Return how well the gradients of the two unweighted losses agree in each layer.

    Measuring does not change the step: the gradients of halves are computed in addition to those that are there.
    """
    ranking, embedding = whole["ranking"], whole["embedding"]
    halves = [_halves(flat, batches[task], whole[task]) for task in TASKS]
    pairs = ((ranking, embedding), (ranking, ranking), (embedding, embedding))
    dots = [flat.dots(*pair).tolist() for pair in pairs]
    records = zip(flat.layers, *dots, *halves, strict=True)
    return [{"layer": layer} | conflict_record(*values) for layer, *values in records]


def _halves(flat: FlatGradients, batch: TaskBatch, whole: Tensor) -> list[float | None]:
    """Return each layer's cosine between two disjoint halves of the batch; None for a batch of one row."""
    middle = len(batch.rows) // 2
    if middle == 0:
        return [None] * len(flat.layers)

    def gradient(rows: Sequence[int]) -> Tensor:
        flat.clear()
        batch.backward(rows)
        return flat.total(flat.take())

    devices = [whole.device] if whole.device.type == "cuda" else []
    with torch.random.fork_rng(devices), flat.set_aside():
        first = gradient(batch.rows[:middle])
        if batch.additive:
            share = middle / len(batch.rows)
            second = (whole - share * first) / (1 - share)
        else:
            second = gradient(batch.rows[middle:])
    pairs = ((first, second), (first, first), (second, second))
    return [cosine(*values) for values in zip(*(flat.dots(*pair).tolist() for pair in pairs), strict=True)]


def is_additive(loss: Loss, dropout: float, lengths: Iterable[int] = ()) -> bool:
    """Return whether a ranking loss over a batch is the mean of the losses over its parts.

    With dropout or random numbers of its own it is not: a second computation draws others. Nor is a mean over the
    documents of lists with different ``lengths``.
    """
    weighted_alike = loss.mean_of == "lists" or (loss.mean_of == "documents" and len(set(lengths)) < 2)
    return weighted_alike and not loss.draws and dropout == 0


def conflict_record(
    product: float, square_rank: float, square_embed: float, halves_rank: float | None, halves_embed: float | None
) -> dict[str, float | None]:
    """Return a line of the log without step and layer, as ``analysis.logs.Conflict`` describes it.

    It takes the inner product of the two tasks' gradients, their squared lengths, and the cosine between two disjoint
    halves of each task's batch; None where there is none.
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
    """Return the cosine from an inner product and two squared lengths; None if a vector is zero or not finite."""
    if not (first > 0 and second > 0):
        return None
    return _finite(product / (math.sqrt(first) * math.sqrt(second)))


def stepped_up(halves: float | None) -> float | None:
    """Return the expected cosine between two whole batches from that of two halves; 0 or less is returned as is."""
    return 2 * halves / (1 + halves) if halves is not None and halves > 0 else halves


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
