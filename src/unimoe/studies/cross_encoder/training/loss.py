"""A ranking loss as sentence-transformers' trainer calls it: texts in, a scalar out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unimoe.config.training import LossConfig
from unimoe.core.errors import DataError, UsageError, first_few, named_inputs
from unimoe.training.losses.listwise import ListwiseLoss
from unimoe.training.losses.sampled import generator_of

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder


class CrossEncoderListLoss(nn.Module):
    """Scores the documents of a batch of lists with a cross-encoder, and applies a loss by name.

    Args:
        model: a cross-encoder of one label.
        config: the loss; ``mini_batch_size`` pairs go through the model at once.
        seed: of the training, for losses that draw random numbers.
        bfloat16: run the model in bfloat16; its scores are float32.

    Raises:
        UsageError: the model has more than one label.
    """

    def __init__(self, model: CrossEncoder, config: LossConfig, seed: int = 0, *, bfloat16: bool = False) -> None:
        super().__init__()
        if model.num_labels != 1:
            raise UsageError(f"loss {config.name}: the model has {model.num_labels} labels; it needs exactly one")
        self.model = model
        self._config, self._seed, self._bfloat16 = config, seed, bfloat16
        self.begin_step(0, 1)
        self.tokens = 0
        """Tokens of the batches trained on, padding not counted."""

    def begin_step(self, step: int, steps: int) -> None:
        """Say which step, counted from 0, comes next: its random numbers depend on seed and step alone."""
        self._loss = ListwiseLoss(self._config, generator=generator_of(self._seed, step))
        self._progress = step / max(1, steps - 1)

    def forward(
        self, inputs: Sequence[Sequence[Any]], labels: Sequence[Tensor], prompt: str | None = None, task: Any = None
    ) -> Tensor:
        """Return the loss of a batch.

        Args:
            inputs: query ids, queries, and for each query its documents.
            labels: for each query ``(n_i,)``.
            prompt: goes before every pair.
            task: which route a model of several takes.

        Raises:
            DataError: a list cannot be used, or the loss is not finite; names the queries.
        """
        query_ids, queries, documents = inputs
        sizes = [len(row) for row in documents]
        names = first_few([*map(repr, query_ids)])
        pairs = [(query, text) for query, row in zip(queries, documents, strict=True) for text in row]
        if not pairs:
            raise DataError(f"queries {names}: no documents; leave them out")
        scores = self._scores(pairs, len(queries), prompt, task)
        lists = scores.split(sizes)  # type: ignore[no-untyped-call]
        with named_inputs(lambda index: f"query {query_ids[index]!r}"):
            loss: Tensor = self._loss(lists, labels, self._progress)
        if not loss.isfinite():
            raise DataError(
                f"the loss of the queries {names} is {float(loss.detach())}; lower learning_rate, or set "
                "dtype to float32; what was saved before is kept"
            )
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        """Name and options, for the model card."""
        return {**self._loss.get_config_dict(), "mini_batch_size": self._config.mini_batch_size}

    @property
    def citation(self) -> str:
        """BibTeX, for the model card."""
        return self._loss.citation

    def _scores(self, pairs: Sequence[tuple[str, str]], queries: int, prompt: str | None, task: Any) -> Tensor:
        """Return the logits ``(N,)``, computed in batches of similar length, so that little is padded."""
        size = self._config.mini_batch_size or queries
        size = len(pairs) if size < 0 or self._config.mini_batch_size == 0 else size
        order = sorted(range(len(pairs)), key=lambda index: -sum(map(len, pairs[index])))
        parts = []
        for begin in range(0, len(order), size):
            features = self.model.preprocess(
                [pairs[index] for index in order[begin : begin + size]], prompt=prompt, task=task
            )
            self.tokens += int(features["attention_mask"].sum())
            on = {key: value.to(self.model.device) for key, value in features.items() if isinstance(value, Tensor)}
            with torch.autocast(self.model.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
                scores = self.model({**features, **on})["scores"]
            parts.append(scores.view(-1).float())
        return torch.cat(parts)[torch.tensor(order).argsort().to(parts[0].device)]
