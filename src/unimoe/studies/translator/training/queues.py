"""Queues of past batches: images as negatives, and predictions as positives or as negatives of images.

Image vectors are frozen, so a queue of them is a list of ids, and no entry is ever stale. An image is in it once
and never beside its own copy in the batch: else copies of a caption's true image would be its hardest negatives.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unimoe.studies.translator.training.contrastive import Extra, matching_pairs


class ImageQueue:
    """The images of past batches, oldest first.

    Args:
        capacity: the oldest beyond it are dropped.
        device: of the ids.

    Attributes:
        ids: ``(n,)`` int64, each once.
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

    def state(self) -> dict[str, Tensor]:
        """Return all that the next step depends on."""
        return {"ids": self.ids}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        self.ids = state["ids"].to(self.ids.device)


class PredictionQueue:
    """The newest prediction for each of the last captions.

    Args:
        capacity: predictions pushed before the oldest is dropped; a newer one for the same caption drops it at once.
        width: dimensions of a prediction.
        device: of the vectors.
    """

    def __init__(self, capacity: int, width: int, device: torch.device) -> None:
        self._vectors = torch.zeros(capacity, width, device=device)
        self._images, self._captions, self._order = (
            torch.full((capacity,), -1, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._pushed = 0

    def push(self, vectors: Tensor, images: Tensor, captions: Tensor) -> None:
        """Add a batch's predictions ``(B, D)`` with the rows of their images and captions; no gradient is kept."""
        capacity = len(self._images)
        vectors, images, captions = vectors.detach()[-capacity:], images[-capacity:], captions[-capacity:]
        stale = torch.isin(self._captions, captions)
        self._images[stale], self._captions[stale] = -1, -1
        order = self._pushed + torch.arange(len(images), device=images.device)
        slots = order % capacity
        self._vectors[slots], self._images[slots] = vectors, images
        self._captions[slots], self._order[slots] = captions, order
        self._pushed += len(images)

    def positives(self, images: Tensor, captions: Tensor, per_image: int) -> Extra:
        """Return the newest predictions for other captions of the same image.

        Args:
            images: ``(B,)`` rows of the anchors' images.
            captions: ``(B,)`` rows of the anchors.
            per_image: how many of an anchor at most.
        """
        rows, slots = matching_pairs(images, self._images)
        others = self._captions[slots] != captions[rows]
        rows, slots = rows[others], slots[others]
        newest_first = torch.argsort(self._order[slots], descending=True, stable=True)
        by_row = newest_first[torch.argsort(rows[newest_first], stable=True)]
        rows, slots = rows[by_row], slots[by_row]
        counts = torch.bincount(rows, minlength=len(images))
        place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
        within = place < per_image
        chosen = torch.full((len(images), per_image), -1, dtype=torch.int64, device=images.device)
        chosen[rows[within], place[within]] = slots[within]
        valid = chosen >= 0
        return Extra(self._vectors[chosen.clamp(min=0)], valid)

    def others(self, captions: Tensor) -> tuple[Tensor, Tensor]:
        """Return all predictions for captions outside this batch, ``(n, D)``, and the rows of their images."""
        kept = (self._images >= 0) & ~torch.isin(self._captions, captions)
        return self._vectors[kept], self._images[kept]

    def state(self) -> dict[str, Tensor]:
        """Return all that the next step depends on."""
        names = {"vectors": self._vectors, "images": self._images, "captions": self._captions, "order": self._order}
        return names | {"pushed": torch.tensor(self._pushed)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        device = self._vectors.device
        self._vectors, self._images, self._captions, self._order = (
            state[name].to(device) for name in ("vectors", "images", "captions", "order")
        )
        self._pushed = int(state["pushed"])
