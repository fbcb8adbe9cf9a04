"""The loss of a head when noise is added to its weights: does evolution find flatter places than gradients do?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from unimoe.analysis.tables import Cell, RowGroup, Table
from unimoe.core.console import Steps
from unimoe.data.catalog import result_name
from unimoe.studies.heads.compare.methods import Chosen, MethodComparison
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.ndcg import PoolMetric, ideal_dcg
from unimoe.studies.heads.losses import head_loss
from unimoe.studies.heads.model import pool_scores
from unimoe.studies.heads.pools import PoolSet

SIZES = (0.01, 0.03, 0.1, 0.3)
DRAWS = 3
_TEMPERATURE = 0.05


def disturbed(weight: Tensor, size: float, seed: int) -> Tensor:
    """Add Gaussian noise of ``size`` times its Frobenius norm to a weight ``(D_out, D)``.

    With one seed the noise of all heads of one shape differs in its length alone.
    """
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed)).to(weight)
    scale: Tensor = size * torch.linalg.vector_norm(weight) / torch.linalg.vector_norm(noise)
    return weight + noise * scale


def robustness(
    weight: Tensor, pools: PoolSet, config: TrainConfig, draws: int = DRAWS
) -> dict[float, tuple[float, float]]:
    """Return a head's nDCG and InfoNCE loss by size of the noise, each a mean over draws; size 0 is the head itself."""
    best = [ideal_dcg(grades.tolist(), config.ndcg_k) for grades in pools.judged]
    metric = PoolMetric(pools.grades, torch.tensor(best, dtype=torch.float64), config.ndcg_k)
    found = {}
    for size in (0.0, *SIZES):
        heads = [disturbed(weight, size, draw) for draw in range(draws)] if size else [weight]
        scores = torch.stack([pool_scores(head, pools, config) for head in heads], dim=2)
        shown = scores.masked_fill(~pools.valid.unsqueeze(2), -torch.inf)
        no_ties = torch.Generator()
        losses = [
            head_loss("infonce", s, pools.grades, pools.valid, _TEMPERATURE, config.ndcg_k, no_ties)
            for s in scores.unbind(2)
        ]
        found[size] = float(metric(shown).mean()), float(torch.stack(losses).mean())
    return found


def flatness_table(compared: MethodComparison, chosen: Mapping[str, Chosen]) -> Table:
    """Return the losses of every trained arm of a finished comparison on training and test queries, mean over seeds."""
    trained = [name for name in chosen if chosen[name].config.method != "zero_shot"]
    groups: dict[str, list[tuple[Cell, ...]]] = {"train": [], "test": []}
    steps = Steps(len(trained))
    for name in trained:
        with steps.step(f"{name}: disturbed", len(compared.comparison.seeds)) as step:
            found: dict[str, list[dict[float, tuple[float, float]]]] = {split: [] for split in groups}
            for seed in compared.comparison.seeds:
                trainer = compared.trainer(name, chosen[name].config, seed)
                weight = trainer.head()[0]
                for split, pools in (("train", compared.data.train), ("test", compared.data.test)):
                    found[split].append(robustness(weight, pools, trainer.config))
                step.advance(1)
        for split, rows in groups.items():
            rows.append(_row(name, found[split]))
    base = compared.comparison.base
    return Table(
        name="flatness",
        caption=f"What heads on {result_name(base.task)} lose when noise is added to their weights: "
        f"ndcg@{base.ndcg_k} and InfoNCE.",
        columns=("method", "nDCG", *(f"noise {size:g}" for size in SIZES), "loss", *(f"noise {s:g} " for s in SIZES)),
        groups=tuple(RowGroup(f"{split} queries", tuple(rows)) for split, rows in groups.items()),
        notes=(
            "nDCG x 100, and InfoNCE's loss at temperature 0.05 whatever was trained. noise: change of either when "
            f"Gaussian noise of this size relative to the weights is added, mean over {DRAWS} draws and all seeds. The "
            "flatter the place, the smaller the change. The training queries are those without soft labels.",
        ),
        title="Flatness",
    )


def _row(name: str, found: list[dict[float, tuple[float, float]]]) -> tuple[Cell, ...]:
    ndcg, loss = ({size: float(np.mean([f[size][i] for f in found])) for size in (0.0, *SIZES)} for i in (0, 1))
    return (
        Cell(name),
        Cell(f"{100 * ndcg[0.0]:.2f}", value=100 * ndcg[0.0]),
        *(Cell.signed(100 * (ndcg[size] - ndcg[0.0])) for size in SIZES),
        Cell(f"{loss[0.0]:.3f}", value=loss[0.0]),
        *(Cell.signed(loss[size] - loss[0.0], 3) for size in SIZES),
    )
