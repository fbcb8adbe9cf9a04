"""Forward and backward pass of one batch, within a token budget.

The optimizer is AdamW on float32 master copies of weights that compute in a smaller dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unimoe.cluster.processes import ALONE, Processes
from unimoe.config.losses import Loss
from unimoe.config.training import Schedule
from unimoe.core.errors import named_inputs
from unimoe.models.batching import default_token_budget, to_device
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training.examples import EmbeddingSet, RankingSet, TokenizedTexts
from unimoe.training.losses.formulas import info_nce, yes_no_loss
from unimoe.training.losses.listwise import ListwiseLoss


@dataclass(frozen=True)
class Budget:
    """The size of one backward pass, and the processes that share a batch.

    Each process runs its share of a batch's sequences. It gets the loss of the whole batch and the gradient of its own
    share; ``FlatGradients`` adds the gradients up.
    """

    tokens: int  # most tokens to compute, with padding, and shared beginnings once
    sequences: int | None = None  # most sequences; replaces ``tokens``
    processes: Processes = ALONE

    def holds(self, sequences: int, tokens: int) -> bool:
        """Return whether so many sequences, which take so many tokens to compute, are within the budget."""
        return sequences <= self.sequences if self.sequences is not None else tokens <= self.tokens


def ranking_backward(
    model: UnimodelForExp1,
    data: RankingSet,
    batch: Sequence[int],
    weight: float,
    loss: Loss,
    budget: Budget,
    progress: float = 0.0,
) -> tuple[float, int]:
    """Add the gradient of ``weight`` x the ranking loss over the prompts of a batch of groups.

    All losses except ``yes_no`` see a query's documents together. The progress of the training is 0 at its first step
    and 1 at its last. The unweighted loss and the tokens seen are returned.
    """
    chosen = data.prompts.pick([row for group in batch for row in data.groups[group]])
    if loss.name == "yes_no":
        labels = torch.tensor([float(place == 0) for group in batch for place in range(len(data.groups[group]))])
        return _pointwise_backward(model, chosen, labels, weight, budget), chosen.tokens

    loss_of = _loss_of_lists(model, data, batch, loss, progress)
    return _joint_backward(model, chosen, loss_of, weight, budget), chosen.tokens


def _loss_of_lists(
    model: UnimodelForExp1, data: RankingSet, batch: Sequence[int], loss: Loss, progress: float
) -> Callable[[Tensor], Tensor]:
    """Return a loss of the states of a batch's prompts that sees each query's documents together."""
    sizes = [len(data.groups[group]) for group in batch]
    generator = None
    if loss.draws:
        # Drawn before the forward passes, after which the random numbers of processes differ.
        generator = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    of_scores = ListwiseLoss(loss, generator=generator)
    labels = [torch.tensor(data.labels[group]) for group in batch]

    def loss_of(states: Tensor) -> Tensor:
        margins = model.margins(states).split(sizes)  # type: ignore[no-untyped-call]
        with named_inputs(lambda index: f"training query {data.query_ids[batch[index]]!r}"):
            found: Tensor = of_scores(margins, labels, progress)
        return found

    return loss_of


def _pointwise_backward(
    model: UnimodelForExp1, texts: TokenizedTexts, labels: Tensor, weight: float, budget: Budget
) -> float:
    """Add the gradient of the mean yes/no loss. It is a sum over prompts, so each part has its own backward pass."""
    losses = [torch.zeros((), device=model.device)]
    with _own_random_numbers(budget.processes):
        for part in _parts(model, texts, budget):
            margins = model.margins(_states(model, texts, part))
            loss = yes_no_loss(margins, to_device(labels[part], margins.device)).sum() / len(labels)
            (weight * loss).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
    total = sum(torch.stack(losses).cpu().tolist())  # read at the end: every reading waits for the device
    return float(budget.processes.total(torch.tensor(total, dtype=torch.float64)))


def embedding_backward(
    model: UnimodelForExp1,
    data: EmbeddingSet,
    batch: Sequence[int],
    weight: float,
    temperature: float,
    budget: Budget,
    contrast: int | None = None,
) -> tuple[float, int]:
    """Add the gradient of ``weight`` x InfoNCE over a batch's queries and all their documents.

    So many consecutive queries as ``contrast`` says are contrasted with each other, None for the whole batch; the loss
    is the mean over all queries. The unweighted loss and the tokens seen are returned.
    """
    if contrast is not None and contrast < len(batch):
        total, tokens = 0.0, 0
        for some in (batch[at : at + contrast] for at in range(0, len(batch), contrast)):
            share = len(some) / len(batch)
            loss, seen = embedding_backward(model, data, some, weight * share, temperature, budget)
            total, tokens = total + share * loss, tokens + seen
        return total, tokens
    rows = list(dict.fromkeys(row for group in batch for row in data.groups[group]))
    column = {row: place for place, row in enumerate(rows)}
    positives = torch.tensor([column[data.groups[group][0]] for group in batch])
    excluded = torch.tensor(
        [[row in data.relevant[group] and row != data.groups[group][0] for row in rows] for group in batch]
    )

    def loss_of(states: Tensor) -> Tensor:
        vectors = model.embeddings(states)
        on = vectors.device
        scores = vectors[: len(batch)] @ vectors[len(batch) :].T / temperature
        return info_nce(scores, to_device(positives, on), to_device(excluded, on))

    texts = data.queries.pick(batch) + data.documents.pick(rows)
    return _joint_backward(model, texts, loss_of, weight, budget), texts.tokens


def _joint_backward(
    model: UnimodelForExp1, texts: TokenizedTexts, loss_of: Callable[[Tensor], Tensor], weight: float, budget: Budget
) -> float:
    """Add the gradient of a loss that sees all states at once; a batch above the budget runs twice."""
    with _own_random_numbers(budget.processes):
        parts = _parts(model, texts, budget)
        seeds = torch.randint(2**31, (len(parts),)).tolist()  # both runs of a part must drop the same units
        tokens = sum(model.training_tokens([texts.ids[row] for row in part]) for part in parts)
        once = budget.holds(sum(map(len, parts)), tokens)
        return backward_in_parts(
            lambda number: _states(model, texts, parts[number], None if once else seeds[number]),
            lambda states: _gathered(model, len(texts.ids), parts, states, budget.processes),
            parts, loss_of, weight, once=once,
        )  # fmt: skip


def backward_in_parts(
    states_of: Callable[[int], Tensor],
    joined: Callable[[Sequence[Tensor]], Tensor],
    parts: Sequence[Sequence[int]],
    loss_of: Callable[[Tensor], Tensor],
    weight: float,
    *,
    once: bool,
) -> float:
    """Add the gradient of ``weight`` x a loss that sees the states of all texts; return the unweighted loss.

    Args:
        states_of: from the number of a part to the states of its texts; the same at a second call.
        joined: from the states of all parts to those of all texts, in order.
        parts: the places of each part's texts; a process may have none.
        loss_of: from states to the loss.
        weight: of the loss.
        once: whether all parts fit in memory. Else they run twice: without gradients to get the loss and its gradient
            at the states, then part by part (Gao et al. 2021, GradCache). The gradient is the same up to rounding.
    """
    with torch.set_grad_enabled(once):
        states = joined([states_of(number) for number in range(len(parts))])
    loss = loss_of(states if once else states.requires_grad_())
    if parts or not once:
        (weight * loss).backward()  # type: ignore[no-untyped-call]
    if not once:
        assert states.grad is not None  # noqa: S101 - for the type checker: the loss depends on the states
        for number, part in enumerate(parts):
            own_grad = states.grad[to_device(torch.tensor(part), states.device)]
            states_of(number).backward(own_grad)  # type: ignore[no-untyped-call]
    return float(loss.detach())


@contextmanager
def _own_random_numbers(processes: Processes) -> Iterator[None]:
    """Draw random numbers of this process alone, so that processes drop different units."""
    if processes.size == 1:
        yield
        return
    seed = int(torch.randint(2**31, (processes.size,))[processes.rank])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _parts(model: UnimodelForExp1, texts: TokenizedTexts, budget: Budget) -> list[list[int]]:
    """Return this process's share of the texts, in parts within the budget."""
    tokens = min(budget.tokens, default_token_budget(model.device))
    rows: Sequence[int] = range(len(texts.ids))
    if budget.processes.size > 1:
        rows = budget.processes.share(sorted(rows, key=lambda row: len(texts.ids[row])))
    parts = model.plan_training([texts.ids[row] for row in rows], tokens, budget.sequences)
    return [[rows[place] for place in part] for part in parts]


def _states(model: UnimodelForExp1, texts: TokenizedTexts, part: Sequence[int], seed: int | None = None) -> Tensor:
    if seed is not None:
        torch.manual_seed(seed)
    some = texts.pick(part)
    return model.last_states(some.ids, some.frozen)


def _gathered(
    model: UnimodelForExp1, count: int, parts: Sequence[Sequence[int]], states: Sequence[Tensor], processes: Processes
) -> Tensor:
    """Return the states of all texts, ``(N, H)``, in order; gradients flow to this process's own parts."""
    rows = torch.tensor([row for part in parts for row in part], dtype=torch.long)
    if processes.size == 1:
        joined = torch.cat(list(states))
        return joined[to_device(rows.argsort(), joined.device)]
    width = model.model.config.hidden_size
    own = torch.cat([*states, torch.zeros(0, width, dtype=model.dtype, device=model.device)])
    everyone = torch.zeros(count, width)
    everyone[rows] = own.detach().float().cpu()
    gathered = processes.total(everyone).to(own)  # each row is one process's own, plus zeros: nothing is rounded
    return gathered.index_put((rows.to(own.device),), own)


def learning_rates(steps: int, warmup: int, peak: float, schedule: Schedule = "linear") -> list[float]:
    """Return the learning rate of each step, by transformers' schedules or by ``onecycle``.

    The ``warmup`` steps are fewer than ``steps``. ``onecycle`` is ``torch.optim.lr_scheduler.OneCycleLR`` with its
    defaults, its rise over the warm-up (Smith & Topin 2018).
    """
    from transformers import get_scheduler

    if schedule != "onecycle":
        name = "constant_with_warmup" if schedule == "constant" else schedule
        unused = torch.optim.SGD([torch.zeros(1)])
        # transformers takes its first step at a rate of 0: a schedule of one step more begins with its second.
        (share,) = get_scheduler(name, unused, warmup + 1, steps + 1).lr_lambdas
        return [peak * share(step + 1) for step in range(steps)]
    low = peak / 25  # torch has no closed form, and fails at a warm-up of one step
    rise = [_cosine(low, peak, step / (warmup - 1)) if warmup > 1 else peak for step in range(warmup)]
    return rise + [_cosine(peak, low / 1e4, (step + 1) / (steps - warmup)) for step in range(steps - warmup)]


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


class MasterAdamW:
    """Updates float32 masters and copies them back: bfloat16 weights cannot hold AdamW's small updates."""

    def __init__(self, weights: Mapping[str, nn.Parameter], weight_decay: float) -> None:
        self._weights = dict(weights)
        self.masters = {name: weight.detach().float().clone() for name, weight in weights.items()}
        self._adamw = torch.optim.AdamW(list(self.masters.values()), lr=0.0, weight_decay=weight_decay)

    def step(self, learning_rate: float, max_grad_norm: float) -> float:
        """Clip, update, copy back, and clear the gradients; return the gradient's norm before clipping.

        If the norm is not finite, the weights stay unchanged.
        """
        for name, weight in self._weights.items():
            master = self.masters[name]
            master.grad = torch.zeros_like(master) if weight.grad is None else weight.grad.float()
            weight.grad = None
        norm = float(nn.utils.clip_grad_norm_(list(self.masters.values()), max_grad_norm))
        if not math.isfinite(norm):
            return norm
        self._adamw.param_groups[0]["lr"] = learning_rate
        self._adamw.step()
        self._copy_back()
        return norm

    def state(self) -> dict[str, Tensor]:
        """Return the masters and AdamW's moments, as plain tensors."""
        masters = {f"master.{name}": master.detach() for name, master in self.masters.items()}
        return masters | optimizer_tensors(self._adamw)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned."""
        for name, master in self.masters.items():
            master.data.copy_(tensors[f"master.{name}"])
        moments = {name: tensor for name, tensor in tensors.items() if not name.startswith("master.")}
        restore_optimizer(self._adamw, moments)
        self._copy_back()

    @torch.no_grad()
    def _copy_back(self) -> None:
        for name, weight in self._weights.items():
            weight.copy_(self.masters[name])


def overflow(weights: Iterable[Tensor]) -> bool:
    """Return whether weights are not finite, or so large that the lengths of what they make are not.

    A squared length of two such vectors is above float32's largest number: a cosine is then 0, and equal scores that
    look finite would be ranked by the ids of documents.
    """
    length = float(nn.utils.get_total_norm([weight.detach() for weight in weights]))
    return not length <= torch.finfo(torch.float32).max ** 0.25


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return an optimizer's moments, named ``NUMBER.MOMENT`` by the number of their parameter."""
    states = optimizer.state_dict()["state"]
    return {f"{number}.{name}": tensor for number, state in states.items() for name, tensor in state.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what ``optimizer_tensors`` returned, read to the CPU, where AdamW counts its steps."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = tensor.clone()
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
