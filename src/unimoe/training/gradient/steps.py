"""Forward and backward of one batch, within a token budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unimoe.models.batching import default_token_budget, plan_batches
from unimoe.models.trunk import FrozenStates
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training.gradient.examples import EmbeddingSet, RankingSet, TokenIds
from unimoe.training.gradient.losses import info_nce, softmax_loss, yes_no_loss


@dataclass(frozen=True)
class Budget:
    """How much one backward pass may hold.

    Attributes:
        tokens: padded tokens.
        sequences: sequences, instead of tokens.
    """

    tokens: int
    sequences: int | None = None

    def holds(self, lengths: Sequence[int], parts: Sequence[Sequence[int]]) -> bool:
        """Whether all parts together are within the budget."""
        if self.sequences is not None:
            return len(lengths) <= self.sequences
        return sum(len(part) * max(lengths[row] for row in part) for part in parts) <= self.tokens


@dataclass(frozen=True)
class Texts:
    """Sequences to run, and their states below the adapters where these are known."""

    ids: Sequence[TokenIds]
    frozen: FrozenStates | None

    def pick(self, rows: Sequence[int]) -> Texts:
        """Some of the sequences, in the order of ``rows``."""
        return Texts([self.ids[row] for row in rows], [self.frozen[row] for row in rows] if self.frozen else None)

    @property
    def tokens(self) -> int:
        """Tokens of all sequences, padding not counted."""
        return sum(map(len, self.ids))


def join(first: Texts, second: Texts) -> Texts:
    """The sequences of both, in order."""
    frozen = [*first.frozen, *second.frozen] if first.frozen and second.frozen else None
    return Texts([*first.ids, *second.ids], frozen)


def ranking_backward(
    model: UnimodelForExp1,
    data: RankingSet,
    texts: Texts,
    batch: Sequence[int],
    weight: float,
    loss: Literal["yes_no", "softmax"],
    budget: Budget,
) -> tuple[float, int]:
    """Add the gradient of ``weight`` x the ranking loss over the batch's questions.

    Args:
        model: the model in training.
        data: the ranking set the batch is of.
        texts: its sequences.
        batch: which of its groups.
        weight: of this loss in the step.
        loss: which loss.
        budget: of one forward pass.

    Returns:
        The unweighted loss, and the tokens seen.
    """
    chosen = texts.pick([row for group in batch for row in data.groups[group]])
    if loss == "yes_no":
        labels = torch.tensor([float(place == 0) for group in batch for place in range(len(data.groups[group]))])
        return _pointwise_backward(model, chosen, labels, weight, budget), chosen.tokens

    def loss_of(states: Tensor) -> Tensor:
        return softmax_loss(model.gaps(states).view(len(batch), -1))

    return _joint_backward(model, chosen, loss_of, weight, budget), chosen.tokens


def _pointwise_backward(model: UnimodelForExp1, texts: Texts, labels: Tensor, weight: float, budget: Budget) -> float:
    """Backward of the mean yes/no loss: a sum over questions, so each pass is followed by its own backward pass."""
    total = 0.0
    for part in _parts(model, texts, budget):
        gaps = model.gaps(_states(model, texts, part))
        loss = yes_no_loss(gaps, labels[part].to(gaps.device)).sum() / len(labels)
        (weight * loss).backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


def embedding_backward(
    model: UnimodelForExp1,
    data: EmbeddingSet,
    queries: Texts,
    documents: Texts,
    batch: Sequence[int],
    weight: float,
    temperature: float,
    budget: Budget,
) -> tuple[float, int]:
    """Add the gradient of ``weight`` x InfoNCE over the batch's queries and all their documents.

    Args:
        model: the model in training.
        data: the embedding set the batch is of.
        queries: its queries.
        documents: its documents.
        batch: which of its groups.
        weight: of this loss in the step.
        temperature: of the loss.
        budget: of one forward pass.

    Returns:
        The unweighted loss, and the tokens seen.
    """
    rows = list(dict.fromkeys(row for group in batch for row in data.groups[group]))
    column = {row: place for place, row in enumerate(rows)}
    positives = torch.tensor([column[data.groups[group][0]] for group in batch])
    excluded = torch.tensor(
        [[row in data.relevant[group] and row != data.groups[group][0] for row in rows] for group in batch]
    )

    def loss_of(states: Tensor) -> Tensor:
        vectors = model.embeddings(states)
        on = vectors.device
        return info_nce(vectors[: len(batch)], vectors[len(batch) :], positives.to(on), excluded.to(on), temperature)

    texts = join(queries.pick(batch), documents.pick(rows))
    return _joint_backward(model, texts, loss_of, weight, budget), texts.tokens


def _joint_backward(
    model: UnimodelForExp1, texts: Texts, loss_of: Callable[[Tensor], Tensor], weight: float, budget: Budget
) -> float:
    """Backward of a loss that sees all states at once.

    What exceeds the budget is run twice: without gradients to get the loss and its gradient at the states, then part
    by part with gradients (Gao et al. 2021, GradCache). Equal to the direct way but for rounding.
    """
    parts = _parts(model, texts, budget)
    seeds = torch.randint(2**31, (len(parts),)).tolist()  # both runs of a part must drop the same units
    if budget.holds([len(ids) for ids in texts.ids], parts):
        loss = loss_of(_in_order(parts, [_states(model, texts, part) for part in parts]))
        (weight * loss).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())
    with torch.no_grad():
        seen = [_states(model, texts, part, seed) for part, seed in zip(parts, seeds, strict=True)]
    states = _in_order(parts, seen).requires_grad_()
    loss = loss_of(states)
    (weight * loss).backward()  # type: ignore[no-untyped-call]
    assert states.grad is not None  # noqa: S101 - for the type checker: the loss depends on the states
    for part, seed in zip(parts, seeds, strict=True):
        _states(model, texts, part, seed).backward(states.grad[part])  # type: ignore[no-untyped-call]
    return float(loss.detach())


def _parts(model: UnimodelForExp1, texts: Texts, budget: Budget) -> list[list[int]]:
    tokens = min(budget.tokens, default_token_budget(model.device))
    return plan_batches([len(ids) for ids in texts.ids], tokens, budget.sequences)


def _states(model: UnimodelForExp1, texts: Texts, part: Sequence[int], seed: int | None = None) -> Tensor:
    if seed is not None:
        torch.manual_seed(seed)
    some = texts.pick(part)
    return model.last_states(some.ids, some.frozen)


def _in_order(parts: Sequence[Sequence[int]], states: Sequence[Tensor]) -> Tensor:
    """The states of all parts, ``(N, H)``, in the order of the texts."""
    places = torch.tensor([row for part in parts for row in part])
    return torch.cat(list(states))[places.argsort()]
