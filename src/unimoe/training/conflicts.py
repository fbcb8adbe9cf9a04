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
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from unimoe.cluster.processes import ALONE, Processes
from unimoe.config.training import LOSSES, LossConfig
from unimoe.core.io import append_jsonl
from unimoe.training.aggregation import Aggregation, Surgery, Task

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


class JointGradients:
    """Separates, measures and combines the two tasks' gradients within a step of a joint arm.

    In a step, call ``ranking_done`` after the backward pass of ranking, ``embedding_done`` after that of embedding.
    Measuring does not change the step.

    Args:
        flat: the gradients.
        aggregation: combines the two tasks in one step.
        log_path: of the measurements; None for none.
        interval: steps from one measurement to the next.
    """

    def __init__(self, flat: FlatGradients, aggregation: Aggregation, log_path: Path | None, interval: int) -> None:
        self._flat, self.aggregation, self._log_path, self._interval = flat, aggregation, log_path, interval
        self._ranking: Tensor | None = None

    def ranking_done(self, step: int) -> None:
        """Keep the gradient of ranking if this step, counted from 0, needs it; clear it for surgery."""
        surgery = isinstance(self.aggregation, Surgery)
        self._ranking = self._flat.take() if surgery or self._is_measured(step) else None
        if surgery:
            self._flat.clear()

    def embedding_done(self, step: int, batches: Mapping[Task, TaskBatch]) -> bool:
        """Combine the gradients by surgery where that is set, and log the measurement if the step has one.

        Returns:
            Whether the gradients are already summed over all processes, as surgery needs them.
        """
        surgery = isinstance(self.aggregation, Surgery)
        if self._ranking is None:
            return surgery
        ranking, embedding = self._ranking, self._flat.take()
        self._ranking = None
        if not surgery:
            embedding -= ranking
        ranking, embedding = self._flat.total(ranking), self._flat.total(embedding)
        if isinstance(self.aggregation, Surgery):
            self._flat.put(self._combined(self.aggregation, ranking, embedding))
        if self._is_measured(step):
            weights = self.aggregation.weights
            self._measure(step, ranking.div_(weights["ranking"]), embedding.div_(weights["embedding"]), batches)
        return surgery

    def _is_measured(self, step: int) -> bool:
        return self._log_path is not None and step % self._interval == 0

    def _combined(self, surgery: Surgery, ranking: Tensor, embedding: Tensor) -> Tensor:
        if not surgery.by_matrix:
            product = self._flat.dots(ranking, embedding).sum()
            squares = [self._flat.dots(flat, flat).sum() for flat in (ranking, embedding)]
            share = surgery.coefficients(torch.stack([squares[0], product, product, squares[1]]).view(2, 2))
            return share[0] * ranking + share[1] * embedding
        combined = []
        for first, second in zip(self._flat.matrices(ranking), self._flat.matrices(embedding), strict=True):
            rows = torch.stack([first, second]).double()
            share = surgery.coefficients(rows @ rows.T)
            combined.append(share[0] * first + share[1] * second)
        return torch.cat(combined)

    def _measure(self, step: int, ranking: Tensor, embedding: Tensor, batches: Mapping[Task, TaskBatch]) -> None:
        """Log the agreement of the gradients of the two unweighted losses in each layer."""
        halves = self._halves(batches["ranking"], ranking), self._halves(batches["embedding"], embedding)
        pairs = ((ranking, embedding), (ranking, ranking), (embedding, embedding))
        dots = [self._flat.dots(*pair).tolist() for pair in pairs]
        for layer, *values in zip(self._flat.layers, *dots, *halves, strict=True):
            if self._log_path and self._flat.processes.leads:
                append_jsonl(self._log_path, {"step": step + 1, "layer": layer} | conflict_record(*values))

    def _halves(self, batch: TaskBatch, whole: Tensor) -> list[float | None]:
        """Return each layer's cosine between two disjoint halves of the batch; None for a batch of one row."""
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
        pairs = ((first, second), (first, first), (second, second))
        return [cosine(*values) for values in zip(*(self._flat.dots(*pair).tolist() for pair in pairs), strict=True)]

    def _gradient(self, batch: TaskBatch, rows: Sequence[int]) -> Tensor:
        self._flat.clear()
        batch.backward(rows)
        return self._flat.total(self._flat.take())


def is_additive(loss: LossConfig, dropout: float, lengths: Iterable[int] = ()) -> bool:
    """Return whether a ranking loss over a batch is the mean of the losses over its parts.

    With dropout or shuffled ties it is not: a second computation draws other random numbers. Nor is a mean over the
    documents of lists whose ``lengths`` differ.
    """
    mean_of = LOSSES[loss.name].mean_of
    weighted_alike = mean_of == "lists" or (mean_of == "documents" and len(set(lengths)) < 2)
    return weighted_alike and loss.ties == "keep" and dropout == 0


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
