"""Judge simulated experiments by the analysis, and check its intervals, labels and marks; for ``tir_coverage.py``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import TypeAlias

import numpy as np
from scipy.special import stdtr, stdtrit

from simulated_arms import MEAN, Array, Kind, World, draw
from unimoe.analysis.comparisons import ALPHA, difference
from unimoe.analysis.gates.definitions import InterferenceGate
from unimoe.analysis.gates.findings import label_of, ratio_weights, region_of
from unimoe.analysis.standings import standings_of
from unimoe.analysis.statistics.estimates import LEVEL, LossRatios, estimate, holm
from unimoe.analysis.statistics.variance import groups_of, moments

TRUTHS = (0.0, 0.01, 0.05)
FEWEST = 3
"""Training runs on a side from which the aims hold."""

Counts: TypeAlias = Counter[tuple[str, float]]
"""How often something happened at a true TIR."""

_TAIL = (1.0 - LEVEL) / 2.0
_GATE = InterferenceGate(
    kind="interference", task="reranking", datasets=["one"], metric="ndcg@10", specialist="rank_only", joint="joint"
)


@dataclass(frozen=True)
class Setting:
    """One configuration of a table.

    Attributes:
        sizes: queries of each dataset.
        means: of the specialist or baseline on each dataset.
        runs: training runs of each arm; 0 for an arm without seeds.
        paired: whether seeds pair.
        wide: whether intervals are so wide that 0 and 1 % lie as good as at the cutoff of 2 %.
    """

    kind: Kind
    difference_sd: float
    seed_sd: float
    sizes: tuple[int, ...]
    means: tuple[float, ...]
    runs: tuple[int, ...]
    paired: bool
    wide: bool = False

    @property
    def enough(self) -> bool:
        """Whether every arm with seeds has as many as the aims ask for."""
        return min(number for number in self.runs if number) >= FEWEST

    @property
    def worlds(self) -> list[World]:
        """The world of each dataset; lower means go with scores that vary less."""
        sds = [0.36 if mean == MEAN else 0.3 for mean in self.means]
        return [_world(self.kind, self.difference_sd, self.seed_sd, *of) for of in zip(self.means, sds, strict=True)]


def judge(setting: Setting, reps: int, rng: np.random.Generator) -> Counts:
    """Simulate specialists and joint arms; all truths share their draws."""
    worlds = setting.worlds
    centres = {truth: [world.centre(world.mean * (1.0 - truth)) for world in worlds] for truth in TRUTHS}
    found: Counts = Counter()
    for _ in range(reps):
        drawn = draw(worlds, setting.sizes, setting.runs, rng, paired=setting.paired)
        specialist = [w.scores(hidden[0] + c) for w, hidden, c in zip(worlds, drawn, centres[0.0], strict=True)]
        for truth in TRUTHS:
            joint = [w.scores(hidden[1] + c) for w, hidden, c in zip(worlds, drawn, centres[truth], strict=True)]
            blocks = list(zip(specialist, joint, strict=True))
            found.update((what, truth) for what in _outcomes(setting, blocks, truth))
    return found


def mark(setting: Setting, reps: int, rng: np.random.Generator) -> Counts:
    """Simulate comparison tables of every two of some equal systems; each table is one family."""
    worlds = setting.worlds
    centres = [world.centre(world.mean) for world in worlds]
    found: Counts = Counter()
    for _ in range(reps):
        p_values = []
        drawn = draw(worlds, setting.sizes, setting.runs, rng, paired=setting.paired)
        for world, centre, arms in zip(worlds, centres, drawn, strict=True):
            scores = {str(number): world.scores(arm + centre) for number, arm in enumerate(arms)}
            tests = {}
            for first, second in combinations(scores, 2):
                estimate_of_two = difference(scores[first], scores[second], paired=setting.paired)[0]
                tests[first, second] = estimate_of_two.value, estimate_of_two.p
                p_values.append(1.0 if estimate_of_two.p is None else estimate_of_two.p)
                found["query row", 0.0] += _p_over_queries(scores[first], scores[second]) < ALPHA
            # Of equal systems each one is the best, and has every rank.
            for one in standings_of({name: float(own.mean()) for name, own in scores.items()}, tests):
                found["best", 0.0] += not one.is_among_best
                found["rank", 0.0] += one.ranks != (1, len(scores))
        found["row", 0.0] += sum(p < ALPHA for p in p_values)
        found["family", 0.0] += min(holm(p_values)) < ALPHA
    return found


def _outcomes(setting: Setting, blocks: Sequence[Sequence[Array]], truth: float) -> Iterable[str]:
    """Yield what happened in one experiment: which intervals cover the truth, what says PASS.

    An interval that is refused claims nothing, and so is not wrong.
    """
    weights = ratio_weights([f"dataset {i}" for i in range(len(blocks))], "mean_of_tirs")
    found = estimate(moments(blocks, groups_of(setting.runs, paired=setting.paired)), LossRatios(weights))
    if found.unfit:
        yield "refused"
    if found.unfit or _TAIL <= found.confidence_below(truth) <= 1.0 - _TAIL:
        yield "model"
    if region_of(_GATE, found.value) == "PASS":
        yield "estimate"
        if not found.unfit and label_of(_GATE.confidences(found.held), _GATE.confidence) == "PASS":
            yield "label"
    if found.terms and abs(found.value - truth) <= _reach(math.inf) * math.sqrt(found.terms.query.sum()):
        yield "queries"
    pairs = min(setting.runs)
    by_seed = np.mean([1.0 - b[:pairs].mean(axis=1) / a[:pairs].mean(axis=1) for a, b in blocks], axis=0)
    if abs(by_seed.mean() - truth) <= _reach(pairs - 1) * by_seed.std(ddof=1) / math.sqrt(pairs):
        yield "t over seeds"


def _p_over_queries(system: Array, baseline: Array) -> float:
    """Return the p of a paired t test over queries, the runs averaged and taken as they are."""
    gaps = system.mean(axis=0) - baseline.mean(axis=0)
    error = float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
    return 2.0 * float(stdtr(len(gaps) - 1, -abs(float(gaps.mean())) / error))


@cache
def _reach(freedom: float) -> float:
    """Return the half of Student's interval in standard errors."""
    return float(stdtrit(min(freedom, 1e9), 1.0 - _TAIL))


@cache
def _world(kind: Kind, difference_sd: float, seed_sd: float, mean: float, score_sd: float) -> World:
    """Return a world, whose constants take a while to find."""
    return World(difference_sd, seed_sd, kind, mean, score_sd)
