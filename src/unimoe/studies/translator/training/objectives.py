"""The loss of a batch: InfoNCE over a bank and the terms beside it, and how often each of them had something to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from unimoe.studies.translator.config import LossConfig
from unimoe.studies.translator.training.contrastive import Negatives, contrastive_loss
from unimoe.studies.translator.training.queues import ImageQueue, PredictionQueue


@dataclass(frozen=True)
class Batch:
    """Captions of a batch.

    Attributes:
        captions: ``(B,)`` their rows.
        images: ``(B,)`` the rows of their images in the bank.
    """

    captions: Tensor
    images: Tensor


class Objective:
    """All terms of the loss, with what they keep between batches.

    Args:
        config: terms and their weights.
        bank: ``(M, D)`` unit vectors of the unique training images.
        captions: how many there are to train on; queues of predictions never hold more.

    Attributes:
        counts: how much each component had to do since the last ``take_counts``: ``queue_negatives`` and
            ``mined_negatives`` (caption-image pairs), ``extra_positives``, ``past_predictions``, ``same_image_pairs``.
    """

    def __init__(self, config: LossConfig, bank: Tensor, captions: int) -> None:
        self._config, self._bank = config, bank
        width, device = bank.shape[1], bank.device
        self._images = ImageQueue(config.bank.queue, device) if config.bank.kind == "queue" else None
        held, past = min(config.positives.held, captions), min(config.bank.queue, captions)
        self._positives = PredictionQueue(held, width, device) if config.positives.per_image else None
        self._past = PredictionQueue(past, width, device) if config.predictions else None
        self.counts: dict[str, int] = {}

    def __call__(self, predicted: Tensor, batch: Batch, temperature: float, recent: int) -> dict[str, Tensor]:
        """Return the weighted terms of a batch; their sum is the loss.

        Args:
            predicted: ``(B, D)`` centred where the bank is, not normalised.
            batch: the captions behind it.
            temperature: of InfoNCE.
            recent: images of the queue that count.
        """
        config = self._config
        unit, targets = normalize(predicted, dim=1), self._bank[batch.images]
        terms = {"infonce": self._images_of_captions(unit, batch, temperature, recent)}
        if config.predictions:
            backward = self._captions_of_images(unit, batch, temperature)
            terms = {"infonce": 0.5 * terms["infonce"], "predictions": 0.5 * backward}
        if config.cosine:
            terms["cosine"] = config.cosine * cosine_loss(unit, targets)
        if config.moment:
            terms["moment"] = config.moment * moment_loss(unit, targets)
        if config.agreement:
            disagreement, pairs = agreement_loss(unit, batch.images)
            terms["agreement"] = config.agreement * disagreement
            self._count("same_image_pairs", pairs)
        self._push(unit, batch)
        return terms

    def take_counts(self) -> dict[str, int]:
        """Return how much each component had to do since the last call, and set the counts to zero."""
        counts, self.counts = self.counts, {}
        return counts

    def state(self) -> dict[str, Tensor]:
        """Return all that the next batch depends on."""
        kept = {name: queue.state() for name, queue in self._queues()}
        return {f"{name}.{key}": tensor for name, state in kept.items() for key, tensor in state.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        for name, queue in self._queues():
            queue.load_state({key.partition(".")[2]: t for key, t in state.items() if key.startswith(f"{name}.")})

    def _queues(self) -> Iterator[tuple[str, ImageQueue | PredictionQueue]]:
        queues = {"images": self._images, "positives": self._positives, "past": self._past}
        return ((name, queue) for name, queue in queues.items() if queue is not None)

    def _images_of_captions(self, unit: Tensor, batch: Batch, temperature: float, recent: int) -> Tensor:
        """Return the loss by which each caption must find its image among the bank."""
        config, ids, own = self._config.bank, None, 0
        candidates, held = self._bank, len(self._bank)
        if config.kind != "full":
            ids = torch.unique(batch.images)
            own = len(ids)
            if self._images is not None and recent:
                queued = self._images.recent(recent, without=ids)
                self._count("queue_negatives", len(unit) * len(queued))
                ids = torch.cat([ids, queued])
            candidates, held = self._bank[ids], len(ids) - own
        hardest = config.hardest if held > 0 else 0
        if hardest:
            self._count("mined_negatives", len(unit) * min(hardest, held - (config.kind == "full")))
        extra = None
        if self._positives is not None:
            extra = self._positives.positives(batch.images, batch.captions, self._config.positives.per_image)
            self._count("extra_positives", int(extra.valid.sum()))
        prior = self._config.debiased.prior if self._config.debiased.enabled else None
        negatives = Negatives(hardest=hardest, start=own, prior=prior)
        return contrastive_loss(unit, batch.images, candidates, ids, temperature, extra=extra, negatives=negatives)

    def _captions_of_images(self, unit: Tensor, batch: Batch, temperature: float) -> Tensor:
        """Return the loss by which each image must find its captions among predictions of this batch and past ones."""
        images = torch.unique(batch.images)
        candidates, ids = unit, batch.images
        if self._past is not None:
            past, past_images = self._past.others(batch.captions)
            candidates, ids = torch.cat([unit, past]), torch.cat([ids, past_images])
            self._count("past_predictions", len(images) * len(past))
        return contrastive_loss(self._bank[images], images, candidates, ids, temperature)

    def _push(self, unit: Tensor, batch: Batch) -> None:
        if self._images is not None:
            self._images.push(batch.images)
        for queue in (self._positives, self._past):
            if queue is not None:
                queue.push(unit, batch.images, batch.captions)

    def _count(self, name: str, number: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + number


def cosine_loss(predicted: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of one minus the cosine of unit vectors ``(B, D)``."""
    return 1.0 - (predicted * targets).sum(1).mean()


def moment_loss(predicted: Tensor, targets: Tensor) -> Tensor:
    """Return the squared distance of the means of ``(B, D)`` over the batch, plus that of the standard deviations."""
    means = (predicted.mean(0) - targets.mean(0)).square().sum()
    deviations = _deviations(predicted) - _deviations(targets)
    return means + deviations.square().sum()


def _deviations(vectors: Tensor) -> Tensor:
    """Return the deviation of each dimension, kept above zero, where a root would have no derivative."""
    variances = vectors.square().mean(0) - vectors.mean(0).square()
    return variances.clamp(min=1e-12).sqrt()


def agreement_loss(predicted: Tensor, images: Tensor) -> tuple[Tensor, int]:
    """Return the mean squared distance of predictions ``(B, D)`` from the mean of those for the same image.

    Returns:
        The mean over captions that share their image with another of the batch, zero where none does; and the number
        of pairs that share one.
    """
    _, place, counts = torch.unique(images, return_inverse=True, return_counts=True)
    pairs = int((counts * (counts - 1) // 2).sum())
    if not pairs:
        return predicted.sum() * 0.0, 0
    sums = torch.zeros(len(counts), predicted.shape[1], dtype=predicted.dtype, device=predicted.device)
    means = sums.index_add(0, place, predicted) / counts[:, None]
    distances = (predicted - means[place]).square().sum(1)
    return distances[counts[place] > 1].mean(), pairs
