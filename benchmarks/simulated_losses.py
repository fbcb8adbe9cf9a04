"""Simulated losses that are skewed, as those of real systems are; for ``tir_coverage.py`` beside this file.

Most queries lose nothing and a few lose much: everything, half, or a graded share; or the differences between two real
systems on TREC DL 2019 are drawn again around the mean that is asked for. The specialist's scores, runs that shift and
runs' noise are as simple as can be: what is tested is the skew. Labels are one-sided, so their errors are counted on
each side of a cutoff: a two-sided interval can cover 95 % while one of its sides errs twice as often as it says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from simulated_arms import Array
from unimoe.analysis.gates.definitions import InterferenceGate, Label
from unimoe.analysis.gates.findings import evaluate_gate
from unimoe.analysis.gates.scores import Aligned, Runs

Shape: TypeAlias = Literal["total", "half", "graded", "dl19 ndcg", "dl19 recall"]

# Per-query differences of published runs on the 43 topics of TREC DL 2019, ascending: nDCG@10 of RepLLaMA minus an
# ensemble of SPLADE++, and recall@100 of RepLLaMA minus ada-002. Skewness 2.1 and 3.3.
_DL19: dict[Shape, tuple[float, ...]] = {
    "dl19 ndcg": (
        *(-0.171, -0.145, -0.097, -0.097, -0.087, -0.083, -0.076, -0.076, -0.074, -0.071, -0.064, -0.050, -0.048),
        *(-0.037, -0.032, -0.032, -0.019, -0.018, -0.001, 0.0, 0.0, 0.0, 0.0, 0.002, 0.004, 0.005, 0.006, 0.006, 0.014),
        *(0.026, 0.029, 0.031, 0.032, 0.039, 0.039, 0.053, 0.065, 0.066, 0.078, 0.139, 0.168, 0.351, 0.453),
    ),
    "dl19 recall": (
        *(-0.049, -0.042, -0.040, -0.040, -0.013, -0.006, *(0.0,) * 18, 0.005, 0.016, 0.017, 0.029, 0.030, 0.031),
        *(0.046, 0.048, 0.053, 0.059, 0.065, 0.073, 0.087, 0.095, 0.114, 0.120, 0.120, 0.208, 0.455),
    ),
}
_SPECIALIST = 0.6  # mean score; each query's is uniform around it
_NOISE = 0.01  # standard deviation of a run's score on a query
GATE = InterferenceGate(
    kind="interference", task="reranking", datasets=["one"], metric="ndcg@10", specialist="specialist", joint="joint",
    specialist_must_beat=None,
)  # fmt: skip


@dataclass(frozen=True)
class Skewed:
    """One world of skewed losses.

    Attributes:
        shape: what a query loses.
        queries: how many there are, on each of ``datasets``.
        runs: training runs of each arm; 0 for arms without seeds, whose scores have no noise.
        seed_sd: standard deviation of an arm's mean score over its runs.
        paired: whether runs of one number share half of their shifts.
        looks: whether the gate looks after 3, 5 and 8 runs, in place of once.
    """

    shape: Shape
    queries: int
    runs: int = 3
    seed_sd: float = 0.003
    paired: bool = False
    datasets: int = 1
    looks: bool = False

    @property
    def gate(self) -> InterferenceGate:
        """The default gate, on these datasets, with its looks."""
        datasets, looks = [f"d{place}" for place in range(self.datasets)], [3, 5, 8] if self.looks else None
        return GATE.model_copy(update={"datasets": datasets, "looks": looks})

    def drawn(self, truth: float, rng: np.random.Generator) -> Aligned:
        """Draw an experiment whose true TIR is ``truth``."""
        number = 8 if self.looks else max(1, self.runs)
        shifts = self.seed_sd * rng.standard_normal((2, number)) * bool(self.runs)
        if self.paired:
            shifts = np.sqrt(0.5) * (shifts + self.seed_sd * rng.standard_normal(number))
        seeds = tuple(range(number)) if self.runs else (None,)
        by_dataset = {}
        for place in range(self.datasets):
            specialist = rng.uniform(_SPECIALIST - 0.3, _SPECIALIST + 0.3, self.queries)
            arms = specialist, specialist - LOSSES[self.shape](specialist, truth, rng)
            noise = _NOISE * rng.standard_normal((2, number, self.queries)) * bool(self.runs)
            scores = [arm + of[:, None] + own for arm, of, own in zip(arms, shifts, noise, strict=True)]
            by_dataset[f"d{place}"] = Runs(seeds, scores[0]), Runs(seeds, scores[1])
        return Aligned(("specialist", "joint"), self.paired, by_dataset)

    def label(self, scores: Aligned) -> Label:
        """Return the label that the gate gives, at the first look with one."""
        gate = self.gate
        for look in gate.looks or (None,):
            label = evaluate_gate(gate, scores.first(look) if look else scores).label
            if label != "INCONCLUSIVE":
                break
        return label


def judge_skewed(world: Skewed, reps: int, rng: np.random.Generator) -> Counter[tuple[str, float]]:
    """Count labels where the true TIR is 0, and at both cutoffs: at 1 % each FAIL is false, at 2 % each PASS."""
    found = Counter[tuple[str, float]]()
    for _ in range(reps):
        for truth in (0.0, 0.01, 0.02):
            found[world.label(world.drawn(truth, rng)), truth] += 1
    return found


def _rare(share: float) -> Callable[[Array, float, np.random.Generator], Array]:
    """Return losses of a share of its score by as many queries as make the mean loss right."""

    def losses(scores: Array, truth: float, rng: np.random.Generator) -> Array:
        return np.asarray(scores * share * (rng.random(len(scores)) < truth / share))

    return losses


def _graded(scores: Array, truth: float, rng: np.random.Generator) -> Array:
    """Return losses of a tenth of the queries, whose shares are exponential."""
    share = rng.exponential(10.0 * truth, len(scores)) if truth else np.zeros(len(scores))
    return np.asarray(scores * share * (rng.random(len(scores)) < 0.1))


def _drawn_again(shape: Shape) -> Callable[[Array, float, np.random.Generator], Array]:
    values = np.array(_DL19[shape]) - np.mean(_DL19[shape])

    def losses(scores: Array, truth: float, rng: np.random.Generator) -> Array:
        return np.asarray(truth * _SPECIALIST + rng.choice(values, len(scores)))

    return losses


LOSSES: dict[Shape, Callable[[Array, float, np.random.Generator], Array]] = {
    "total": _rare(1.0),
    "half": _rare(0.5),
    "graded": _graded,
    "dl19 ndcg": _drawn_again("dl19 ndcg"),
    "dl19 recall": _drawn_again("dl19 recall"),
}
