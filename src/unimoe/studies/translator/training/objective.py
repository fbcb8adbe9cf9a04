"""The objective of a training: its losses, what they keep of past batches, and how often each had something to do.

Image vectors are frozen, so a queue of them is a list of ids, and no entry is ever stale. An image is in it once
and never beside its own copy in the batch: else copies of a caption's true image would be its hardest negatives.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from unimoe.studies.translator.config import LossConfig
from unimoe.studies.translator.training.losses import (
    Extra,
    Negatives,
    agreement_loss,
    contrastive_loss,
    cosine_loss,
    moment_loss,
)


class Batch(NamedTuple):
    """Rows of the captions of a batch ``(B,)``, and of their images in the bank."""

    captions: Tensor
    images: Tensor


class ImageQueue:
    """The images of past batches, oldest first, each once; the oldest beyond the capacity are dropped.

    Attributes:
        ids: ``(n,)`` int64.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._capacity = capacity
        self.ids = torch.empty(0, dtype=torch.int64, device=device)

    def push(self, images: Tensor) -> None:
        """Add the images of a batch; those already in the queue become the newest."""
        fresh = torch.unique(images)
        kept = self.ids[~torch.isin(self.ids, fresh)]
        self.ids = torch.cat([kept, fresh])[-self._capacity :]

    def recent(self, count: int, without: Tensor) -> Tensor:
        """Return the newest ``count``, without those of a batch."""
        newest = self.ids[max(0, len(self.ids) - count) :]
        return newest[~torch.isin(newest, without)]


class PredictionQueue:
    """The last predictions, oldest first; only the newest for a caption counts, whose others have no image.

    Args:
        capacity: predictions pushed before the oldest is dropped.
        width: dimensions of a prediction.
        device: of the vectors.

    Attributes:
        vectors: ``(n, D)``.
        images: ``(n,)`` rows of their images; -1 for none.
        captions: ``(n,)`` rows of their captions.
    """

    def __init__(self, capacity: int, width: int, device: torch.device) -> None:
        self._capacity = capacity
        self.vectors = torch.empty(0, width, device=device)
        self.images = torch.empty(0, dtype=torch.int64, device=device)
        self.captions = torch.empty(0, dtype=torch.int64, device=device)

    def push(self, vectors: Tensor, images: Tensor, captions: Tensor) -> None:
        """Add a batch's predictions ``(B, D)`` with the rows of their images and captions; no gradient is kept."""
        current = self.images.masked_fill(torch.isin(self.captions, captions), -1)
        last = slice(-self._capacity, None)
        self.vectors = torch.cat([self.vectors, vectors.detach()])[last]
        self.images = torch.cat([current, images])[last]
        self.captions = torch.cat([self.captions, captions])[last]

    def positives(self, images: Tensor, captions: Tensor, per_image: int) -> Extra:
        """Return the newest predictions for other captions of the same image, so many of an anchor at most."""
        others = (images[:, None] == self.images) & (captions[:, None] != self.captions)
        places = torch.arange(len(self.images), device=images.device).where(others, -1)
        newest = places.topk(min(per_image, len(self.images)), dim=1).values
        return Extra(self.vectors[newest], newest >= 0)

    def others(self, captions: Tensor) -> tuple[Tensor, Tensor]:
        """Return all predictions for captions outside this batch, ``(n, D)``, and the rows of their images."""
        kept = (self.images >= 0) & ~torch.isin(self.captions, captions)
        return self.vectors[kept], self.images[kept]


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

        Predictions ``(B, D)`` are centred where the bank is, not normalised; ``recent`` images of the queue count.
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
        if self._images is not None:
            self._images.push(batch.images)
        for queue in (self._positives, self._past):
            if queue is not None:
                queue.push(unit, batch.images, batch.captions)
        return terms

    def take_counts(self) -> dict[str, int]:
        """Return how much each component had to do since the last call, and set the counts to zero."""
        counts, self.counts = self.counts, {}
        return counts

    def state(self) -> dict[str, Tensor]:
        """Return all that the next batch depends on."""
        return {
            f"{name}.{key}": value
            for name, queue in self._queues().items()
            for key, value in vars(queue).items()
            if isinstance(value, Tensor)
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        queues = self._queues()
        for key, value in state.items():
            name, _, attribute = key.partition(".")
            setattr(queues[name], attribute, value.to(self._bank.device))

    def _queues(self) -> dict[str, ImageQueue | PredictionQueue]:
        queues = {"images": self._images, "positives": self._positives, "past": self._past}
        return {name: queue for name, queue in queues.items() if queue is not None}

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

    def _count(self, name: str, number: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + number
