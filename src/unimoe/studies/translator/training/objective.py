"""The objective of a training: its losses, what they keep of past batches, and how often each had something to do.

Image vectors are frozen, so a queue of them is a list of ids, and no entry is ever stale. An image is in it once
and never with its own copy in the batch: else copies of a caption's true image would be its hardest negatives.

For an anchor with positives P and negatives N, scores ``s = cosine / temperature``, InfoNCE is

    loss = log(sum_P e^s + N_g) - mean_P s,      N_g = sum_N e^s

which is the mean of logs of Khosla et al. 2020 (SupCon's ``L_out``). The debiased variant (Chuang et al. 2020)
corrects for negatives that are unlabelled positives, with prior t:

    N_g = |N| max((mean_N e^s - t mean_P e^s) / (1 - t), e^(-1/temperature))
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor
from torch.nn.functional import normalize

from unimoe.studies.translator.config import TranslatorLossConfig


class ImageQueue:
    """The ids of the images of past batches, oldest first, each once; the oldest beyond the capacity are dropped."""

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

    Attributes:
        vectors: ``(n, D)``, at most as many as the capacity.
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

    def positives(self, images: Tensor, captions: Tensor, per_image: int) -> tuple[Tensor, Tensor]:
        """Return the newest predictions for other captions of an anchor's image, at most so many, and which exist."""
        others = (images[:, None] == self.images) & (captions[:, None] != self.captions)
        places = torch.arange(len(self.images), device=images.device).where(others, -1)
        newest = places.topk(min(per_image, len(self.images)), dim=1).values
        return self.vectors[newest], newest >= 0

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
        counts: how much each component had to do, until its user takes them: ``queue_negatives`` and
            ``mined_negatives`` (caption-image pairs), ``extra_positives``, ``past_predictions``, ``same_image_pairs``.
    """

    def __init__(self, config: TranslatorLossConfig, bank: Tensor, captions: int) -> None:
        self._config, self._bank = config, bank
        width, device = bank.shape[1], bank.device
        self._images = ImageQueue(config.bank.queue, device) if config.bank.kind == "queue" else None
        held, past = min(config.positives.held, captions), min(config.bank.queue, captions)
        self._positives = PredictionQueue(held, width, device) if config.positives.per_image else None
        self._past = PredictionQueue(past, width, device) if config.predictions else None
        self.counts = Counter[str]()

    def __call__(
        self, predicted: Tensor, captions: Tensor, images: Tensor, temperature: float, recent: int
    ) -> dict[str, Tensor]:
        """Return the weighted terms of a batch; their sum is the loss.

        Args:
            predicted: ``(B, D)``, centred where the bank is, not normalised.
            captions: their rows ``(B,)``.
            images: the rows of their images in the bank ``(B,)``.
            temperature: of both contrastive terms.
            recent: so many images of the queue count.
        """
        config = self._config
        unit, targets = normalize(predicted, dim=1), self._bank[images]
        terms = {"infonce": self._images_of_captions(unit, captions, images, temperature, recent)}
        if self._past is not None:
            backward = self._captions_of_images(self._past, unit, captions, images, temperature)
            terms = {"infonce": 0.5 * terms["infonce"], "predictions": 0.5 * backward}
        if config.cosine:
            terms["cosine"] = config.cosine * cosine_loss(unit, targets)
        if config.moment:
            terms["moment"] = config.moment * moment_loss(unit, targets)
        if config.agreement:
            disagreement, pairs = agreement_loss(unit, images)
            terms["agreement"] = config.agreement * disagreement
            self.counts["same_image_pairs"] += pairs
        if self._images is not None:
            self._images.push(images)
        for queue in (self._positives, self._past):
            if queue is not None:
                queue.push(unit, images, captions)
        return terms

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

    def _images_of_captions(
        self, unit: Tensor, captions: Tensor, images: Tensor, temperature: float, recent: int
    ) -> Tensor:
        """Return the loss by which each caption must find its image among the bank."""
        config, ids, own = self._config.bank, None, 0
        candidates, held = self._bank, len(self._bank)
        if config.kind != "full":
            ids = torch.unique(images)
            own = len(ids)
            if self._images is not None and recent:
                queued = self._images.recent(recent, without=ids)
                self.counts["queue_negatives"] += len(unit) * len(queued)
                ids = torch.cat([ids, queued])
            candidates, held = self._bank[ids], len(ids) - own
        hardest = config.hardest if held > 0 else 0
        if hardest:
            self.counts["mined_negatives"] += len(unit) * min(hardest, held - (config.kind == "full"))
        extra = None
        if self._positives is not None:
            extra = self._positives.positives(images, captions, self._config.positives.per_image)
            self.counts["extra_positives"] += int(extra[1].sum())
        prior = self._config.debiased.prior if self._config.debiased.enabled else None
        return contrastive_loss(
            unit, images, candidates, ids, temperature, extra=extra, hardest=hardest, start=own, prior=prior
        )

    def _captions_of_images(
        self, queue: PredictionQueue, unit: Tensor, captions: Tensor, images: Tensor, temperature: float
    ) -> Tensor:
        """Return the loss by which each image must find its captions among predictions of this batch and past ones."""
        anchors, (past, past_images) = torch.unique(images), queue.others(captions)
        self.counts["past_predictions"] += len(anchors) * len(past)
        candidates, ids = torch.cat([unit, past]), torch.cat([images, past_images])
        return contrastive_loss(self._bank[anchors], anchors, candidates, ids, temperature)


def contrastive_loss(
    anchors: Tensor,
    anchor_ids: Tensor,
    candidates: Tensor,
    candidate_ids: Tensor | None,
    temperature: float,
    *,
    extra: tuple[Tensor, Tensor] | None = None,
    hardest: int = 0,
    start: int = 0,
    prior: float | None = None,
) -> Tensor:
    """Return the mean loss over anchors; candidates of an anchor's id are its positives, all others its negatives.

    Args:
        anchors: ``(B, D)`` of unit length.
        anchor_ids: ``(B,)`` integers; every anchor needs a positive.
        candidates: ``(M, D)`` of unit length.
        candidate_ids: ``(M,)``; None where a candidate's place is its id.
        temperature: cosines are divided by it.
        extra: further positives of each anchor, unit vectors ``(B, K, D)`` without gradient, and which of them are
            there ``(B, K)``; they are nobody else's negatives.
        hardest: of the candidates from ``start`` on, only this many of the anchor's nearest that are not its positives
            count; 0 for all.
        start: the candidates before it always count.
        prior: of the debiased loss; None for the plain one.
    """
    sharp = anchors / temperature
    scores = sharp @ candidates.T
    if candidate_ids is None:
        candidate_ids = torch.arange(len(candidates), device=anchors.device)
    positive = anchor_ids[:, None] == candidate_ids
    if hardest:
        minable = ~positive
        minable[:, :start] = False
        nearest = scores.detach().masked_fill(~minable, -torch.inf).topk(min(hardest, scores.shape[1]), dim=1).indices
        scores = scores.masked_fill(minable.scatter(1, nearest, False), -torch.inf)
    if extra is not None:
        vectors, valid = extra
        further = torch.einsum("bd,bkd->bk", sharp, vectors).masked_fill(~valid, -torch.inf)
        scores, positive = torch.cat([scores, further], dim=1), torch.cat([positive, valid], dim=1)
    counts = positive.sum(1, dtype=scores.dtype)
    mean_positive = scores.masked_fill(~positive, 0.0).sum(1) / counts
    if prior is None:
        return (scores.logsumexp(1) - mean_positive).mean()
    # Exponentials are taken of scores less the row's largest, so that none overflows.
    largest = scores.detach().amax(1)
    exponentials = (scores - largest[:, None]).exp()
    of_positives = exponentials.masked_fill(~positive, 0.0).sum(1)
    of_negatives = exponentials.masked_fill(positive, 0.0).sum(1)
    present = (~positive & (scores > -torch.inf)).sum(1, dtype=scores.dtype)
    corrected = (of_negatives - prior * present * of_positives / counts) / (1.0 - prior)
    floor = present * (-1.0 / temperature - largest).exp()
    total = of_positives + torch.maximum(corrected, floor)
    return (largest + total.log() - mean_positive).mean()


def cosine_loss(predicted: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of one minus the cosine of unit vectors ``(B, D)``."""
    return 1.0 - (predicted * targets).sum(1).mean()


def moment_loss(predicted: Tensor, targets: Tensor) -> Tensor:
    """Return the squared distance of the means of ``(B, D)`` over the batch, plus that of the standard deviations."""
    # A deviation is kept above zero, where a root would have no derivative.
    deviations = [vectors.var(0, correction=0).clamp(min=1e-12).sqrt() for vectors in (predicted, targets)]
    means = (predicted.mean(0) - targets.mean(0)).square().sum()
    return means + (deviations[0] - deviations[1]).square().sum()


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
