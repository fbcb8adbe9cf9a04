"""The training of a bi-encoder: the best epoch is chosen on dev; the best and the last checkpoint are written.

    trainer = BiEncoderTrainer(load_config(BiEncoderConfig, Path("biencoder/default")), torch.device("cpu"))
    facts = trainer.fit()
    trainer.best_dir

The state is saved after every epoch, and every ``save_every`` steps. On a CPU, a resumed training takes the same steps
as an undisturbed one, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

import torch
from torch import Tensor, nn

from unimoe.core.errors import DataError, first_few
from unimoe.core.io import hash_json
from unimoe.metrics import parse_metric, score_run
from unimoe.models.checkpoint import folder_name
from unimoe.models.device import choose_dtype
from unimoe.models.seen_queries import SeenQueries
from unimoe.results import TrainingBudget, arm_dir
from unimoe.retrieval.bm25 import bm25_run
from unimoe.studies.biencoder.config import BiEncoderConfig, ContrastiveConfig
from unimoe.studies.biencoder.data import (
    PairBatch,
    batches_per_epoch,
    biencoder_splits,
    dev_collection,
    epoch_batches,
    training_pairs,
    unjudged,
)
from unimoe.studies.biencoder.model import CachedEncoder, load_biencoder, read_biencoder, save_checkpoint
from unimoe.studies.common.splits import Splits
from unimoe.studies.common.trained_model import MANIFEST
from unimoe.training.loop import OnStep, StepFacts, Training
from unimoe.training.losses.formulas import info_nce
from unimoe.training.run_state import Parts, RunState
from unimoe.training.steps import backward_in_parts, learning_rates, optimizer_tensors, overflow, restore_optimizer

_WITHOUT_EFFECT = {"save_every", "tracking", "output_dir", "caveats"}
_CHUNKS = 10_000  # more than a batch has: each chunk of each step draws its own dropout
_DEPTH = 100  # of dev's search, unless the metric looks deeper


class BiEncoderTrainer(Training):
    """Trains one bi-encoder.

    Args:
        config: of the training.
        device: of the forward and backward passes.
        splits: train, dev and test; loaded as the config says when absent.

    Attributes:
        pairs: the training queries with their positives.
        dev: the collection that chooses the epoch.
        best_dir: the checkpoint of the best epoch on dev, of epoch 0 until there is a better one.
        last_dir: the checkpoint of the last epoch, written when the training is finished.
    """

    logs_seconds: ClassVar[bool] = True

    def __init__(self, config: BiEncoderConfig, device: torch.device, splits: Splits | None = None) -> None:
        self.config, self.device = config, device
        self.splits = biencoder_splits(config) if splits is None else splits
        self.train = self.splits.train
        if config.train_queries is not None:
            self.train = self.train.sample_queries(config.train_queries)
        self.pairs = training_pairs(self.train, config.relevance_threshold)
        self.dev = dev_collection(self.splits.dev, config.dev, config.relevance_threshold)
        folder = arm_dir(Path(config.output_dir), config.arm, config.seed)
        self.best_dir, self.last_dir = (folder / folder_name(which) for which in ("best", "last"))
        self.model = load_biencoder(config, device)
        self.base_model = self.model.base.base_identity
        settings = {
            "config": config.model_dump(mode="json", exclude=_WITHOUT_EFFECT),
            "base": self.base_model,
            "train": self.train.content_hash,
            "dev": self.dev.content_hash,
        }
        self._per_epoch = -(-batches_per_epoch(self.pairs, config) // config.accumulation)
        super().__init__(
            RunState(folder, settings, hash_json(settings), tracking=config.tracking),
            config.epochs * self._per_epoch,
            dev_every=self._per_epoch,
            save_every=config.save_every or self._per_epoch,
            patience=config.dev.patience,
            scores_start=True,
        )

    @property
    def outputs(self) -> Sequence[Path]:
        """The manifests of both checkpoints."""
        return self.best_dir / MANIFEST, self.last_dir / MANIFEST

    def is_finished(self) -> bool:
        """Return whether both checkpoints exist; a ``DataError`` where one is damaged, or of another training."""
        for folder in (self.best_dir, self.last_dir):
            if folder.exists():
                there = read_biencoder(folder)
                config = there.settings.model_dump(mode="json", exclude=_WITHOUT_EFFECT)
                self.state.refuse_other(folder, there.fingerprint, {"config": config})
        return self.last_dir.exists()

    def fit(self, on_step: OnStep | None = None) -> dict[str, float]:
        """Train unless that is done.

        Returns:
            ``start`` and ``val``, the metric on dev before training and at its best; ``epoch``, when it was at its
            best; and ``seconds``, without evaluations on dev.
        """
        self.run(on_step)
        return read_biencoder(self.best_dir).facts

    def is_saved_after(self, step: int) -> bool:
        """Return whether an epoch ends there, or ``save_every`` says so."""
        return step % self._per_epoch == 0 or super().is_saved_after(step)

    def prepare(self) -> None:
        """Make the optimizer, and embed the texts by a frozen base."""
        config, model = self.config, self.model
        self._weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self._optimizer = torch.optim.AdamW(self._weights.values(), lr=0.0, weight_decay=config.weight_decay)
        warmup = min(round(config.warmup * self.steps), self.steps - 1)
        self._rates = learning_rates(self.steps, warmup, config.learning_rate, config.schedule)
        model.dtype = choose_dtype(self.device, config.precision, trains=True)
        self.progress.extra["dtype"] = str(model.dtype).removeprefix("torch.")
        self._epoch, self._batches = -1, list[PairBatch]()
        self._corpus, self._negatives = sorted(self.train.corpus), torch.empty(0, 0, dtype=torch.int32)
        if config.freeze_base:
            model.cached = CachedEncoder(model.base, config, self.splits)

    def load_parts(self, parts: Parts) -> None:
        """Restore what ``parts`` returned; the dtype is kept even on a machine that would choose another."""
        self.model.dtype = getattr(torch, self.progress.extra["dtype"])
        for name, weight in self._weights.items():
            weight.data.copy_(parts["weights"][name])
        restore_optimizer(self._optimizer, parts.get("optimizer", {}))
        self._negatives = parts["negatives"]["places"]

    def parts(self) -> Parts:
        """Return the weights, the optimizer's moments, and what the epoch draws its hard negatives from."""
        negatives = {"places": self._negatives}
        return {"weights": self._weights, "optimizer": optimizer_tensors(self._optimizer), "negatives": negatives}

    def begin_step(self, number: int) -> None:
        """Draw the batches of a step's epoch."""
        (epoch, place), wanted = divmod(number, self._per_epoch), self.config.negatives
        if epoch == self._epoch:
            return
        refreshed = epoch == 0 or (wanted.refresh_every is not None and epoch % wanted.refresh_every == 0)
        if wanted.per_query and refreshed and place == 0:  # later in an epoch they are in the saved state
            self._negatives = self._mined(by_model=epoch > 0 or wanted.source == "model")
        negatives = [[self._corpus[row] for row in rows if row >= 0] for rows in self._negatives.tolist()]
        self._epoch, self._batches = epoch, epoch_batches(self.pairs, self.config, epoch, negatives)

    def _mined(self, *, by_model: bool) -> Tensor:
        """Return what hard negatives of each query are drawn from, as rows of the corpus, filled up with -1."""
        wanted, pairs = self.config.negatives, self.pairs
        most = wanted.depth + max(map(len, pairs.relevant))  # so that enough are left without the relevant ones
        if by_model:
            run = self.model.search(dict(zip(pairs.query_ids, pairs.texts, strict=True)), self.train, most)
        else:
            run = bm25_run(self.train, most, wanted.bm25, cached=True)
        rows = {key: row for row, key in enumerate(self._corpus)}
        found = [torch.tensor([rows[key] for key in keys], dtype=torch.int32) for keys in unjudged(pairs, run, wanted)]
        return nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=-1)

    def step(self, number: int) -> StepFacts:
        """Take an optimizer step on as many batches as are accumulated."""
        config, (epoch, place) = self.config, divmod(number, self._per_epoch)
        batches = self._batches[place * config.accumulation : (place + 1) * config.accumulation]
        self.model.train()  # a search sets eval mode
        losses = [self._backward(batch, place, len(batches)) for place, batch in enumerate(batches)]
        norm = float(nn.utils.clip_grad_norm_(self._weights.values(), config.max_grad_norm))
        if not math.isfinite(norm):
            self._refuse(f"the gradient's norm is {norm}", batches)
        rate = self._optimizer.param_groups[0]["lr"] = self._rates[number]
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if overflow(self._weights.values()):
            self._refuse("the weights overflow", batches)
        seen = {name: self.progress.extra.get(name, 0) for name in ("pairs", "tokens")}
        return {"epoch": epoch + 1, "loss": sum(losses) / len(losses), "lr": rate, "grad_norm": norm, **seen}

    def _backward(self, batch: PairBatch, number: int, count: int) -> float:
        """Add a batch's part of the step's gradient and return the loss of the batch."""
        config = self.config
        queries = {self.pairs.query_ids[place]: self.pairs.texts[place] for place in batch.queries}
        documents = {key: self.train.corpus[key].full_text for key in batch.documents}
        inputs = self.model.inputs("query", queries), self.model.inputs("document", documents)
        positives, excluded = batch.positives.to(self.device), batch.excluded.to(self.device)
        loss = batch_backward(
            self.model,
            *inputs,
            lambda q, d: contrastive_loss(q, d, positives, excluded, config.loss),
            weight=1.0 / count,
            chunk_size=config.chunk_size,
            seed=((config.seed * 1_000_003 + self.progress.step) * config.accumulation + number) * _CHUNKS,
        )
        if not math.isfinite(loss):
            self._refuse(f"the loss is {loss}", [batch])
        self.progress.count("pairs", len(batch.queries))
        if not config.freeze_base:  # frozen, it reads all texts once, before the training
            self.progress.count("tokens", sum(map(len, [*inputs[0], *inputs[1]])))
        return loss

    def score_on_dev(self) -> tuple[float, StepFacts]:
        """Return the metric on dev, with the search and the measures of evaluation."""
        metric, dev = self.config.dev.metric, self.dev
        run = self.model.search(dev.queries, dev, max(_DEPTH, parse_metric(metric).cutoff or 0))
        self.refuse_equal(run)
        value = score_run(dev.qrels, run, [metric], dev.relevance_level).aggregate[metric]
        return value, {"val": value}

    def keep_best(self) -> None:
        """Write the best checkpoint."""
        self._save(self.best_dir, "best")

    def finish(self) -> None:
        """Write the last checkpoint."""
        self._save(self.last_dir, "last")

    def _refuse(self, what: str, batches: Sequence[PairBatch]) -> NoReturn:
        ids = [self.pairs.query_ids[place] for batch in batches for place in batch.queries]
        raise DataError(
            f"{self.config.arm}, seed {self.config.seed}, step {self.progress.step + 1}: {what} in the "
            f"batch of the queries {first_few(ids)}; lower learning_rate, or set precision to float32; the best "
            f"checkpoint so far is {self.best_dir}"
        )

    def _save(self, folder: Path, which: Literal["best", "last"]) -> None:
        progress = self.progress
        save_checkpoint(
            folder,
            self.model,
            SeenQueries.of(self.pairs.texts, self.dev.queries.values() if which == "best" else ()),
            arm=self.config.arm,
            seed=self.config.seed,
            which=which,
            base_model=self.base_model,
            dtype=progress.extra["dtype"],
            fingerprint=self.state.fingerprint,
            facts={
                "start": progress.start,
                "val": progress.best_score,
                "epoch": progress.best_step // self._per_epoch,
                "seconds": progress.seconds,
            },
            training=TrainingBudget(
                steps=progress.step,
                ranking_examples=0,
                embedding_examples=progress.extra.get("pairs", 0),
                tokens=progress.extra.get("tokens", 0),
            ),
            config=self.config.model_dump(mode="json"),
        )


def batch_backward(
    embed: Callable[[Sequence[Any]], Tensor],
    queries: Sequence[Any],
    documents: Sequence[Any],
    loss_of: Callable[[Tensor, Tensor], Tensor],
    *,
    weight: float,
    chunk_size: int | None,
    seed: int,
) -> float:
    """Add the gradient of ``weight`` x the loss of query vectors ``(Q, D)`` and document vectors ``(N, D)``.

    Without a chunk size there are two forward passes, of queries and of documents. With it, every chunk of so many
    texts runs twice (gradient caching, Gao et al. 2021): without gradients, to get the loss and its gradient at the
    vectors, then with gradients. Both runs draw the same dropout, by the seed.

    Returns:
        The unweighted loss.
    """
    inputs = [*queries, *documents]
    parts = _parts(queries, 0, chunk_size) + _parts(documents, len(queries), chunk_size)
    order = torch.tensor([place for part in parts for place in part]).argsort()

    def vectors(number: int) -> Tensor:
        torch.manual_seed((seed + number) % 2**64)  # a large seed of a training goes beyond what torch takes
        return embed([inputs[place] for place in parts[number]])

    def joined(found: Sequence[Tensor]) -> Tensor:
        seen = torch.cat([*found])
        return seen[order.to(seen.device)]

    def loss(seen: Tensor) -> Tensor:
        return loss_of(seen[: len(queries)], seen[len(queries) :])

    return backward_in_parts(vectors, joined, parts, loss, weight, once=chunk_size is None)


def _parts(inputs: Sequence[Any], first: int, chunk_size: int | None) -> list[list[int]]:
    """Return the places of the inputs in chunks of similar length, longest first."""
    order = sorted(range(len(inputs)), key=lambda place: -len(inputs[place]))
    size = chunk_size or max(1, len(inputs))
    return [[first + place for place in order[begin : begin + size]] for begin in range(0, len(order), size)]


def contrastive_loss(
    queries: Tensor, documents: Tensor, positives: Tensor, excluded: Tensor, config: ContrastiveConfig
) -> Tensor:
    """Return InfoNCE of ``(cosine - margin * positive) / temperature``, the mean over the queries.

    Queries and documents are unit vectors ``(Q, D)`` and ``(N, D)``. Each row of ``positives (Q, N)`` has a target at
    least; ``excluded`` are documents that are neither. Symmetric: the mean with the loss over the documents that are a
    positive.

    Source: van den Oord et al. 2018; the margin is that of LaBSE (Feng et al. 2022, section 3.2).
    """
    cosines = queries @ documents.T
    logits = ((cosines - config.margin * positives) / config.temperature).masked_fill(excluded, -torch.inf)
    forward = info_nce(logits, positives)
    if not config.symmetric:
        return forward
    anchors = positives.any(dim=0)  # a hard negative belongs to no query
    return (forward + info_nce(logits.T[anchors], positives.T[anchors])) / 2
