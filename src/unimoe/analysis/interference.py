"""Task interference: what the joint model loses against the specialist, with an honest interval.

``TIR = (specialist - joint) / specialist`` on the main metric of one dataset. Two labels stand beside it. The rule's
label is the plain threshold on the mean over seeds. The label with confidence asks how sure that is, given that both
other seeds and other queries would have given another number. A second interval regards the queries as fixed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unimoe.analysis.crossed import CrossedInterval, Label, crossed_interval, rule_label, seeds_mean
from unimoe.analysis.loading import Pair, Results
from unimoe.results import EvalResult, Task

MIN_SPECIALIST = 1e-3
"""Below this mean score a ratio means nothing: its interval has no end (Fieller 1954)."""

SPECIALISTS: dict[Task, str] = {"reranking": "rank_only", "embedding": "emb_only"}
"""The task word of the specialist each task's TIR is measured against."""


Estimand = Literal["seeds_and_queries", "seeds"]

ESTIMANDS: dict[Estimand, str] = {
    "seeds_and_queries": "other training seeds and other queries",
    "seeds": "other training seeds on exactly these queries",
}
"""What an interval speaks of beyond the data at hand. Verdicts rest on the first."""


@dataclass(frozen=True)
class TirEstimate:
    """TIR by seed, and how far other seeds would move it, with other queries and with these.

    Attributes:
        per_seed: TIR by seed. Descriptive: equal seed numbers do not make two training runs a pair.
        crossed: seeds and queries regarded as samples; None with fewer than two of either.
        fixed_queries: Student's t over ``per_seed``, the queries regarded as fixed; None with one seed. Right only
            where these queries are all that matter, and then often narrower.
    """

    per_seed: tuple[float, ...]
    crossed: CrossedInterval | None
    fixed_queries: CrossedInterval | None

    @property
    def mean(self) -> float:
        """Mean TIR over seeds, which the rule judges."""
        return math.fsum(self.per_seed) / len(self.per_seed)

    @property
    def std(self) -> float | None:
        """Standard deviation of TIR over seeds (divisor n - 1); None with one seed, where it cannot be estimated."""
        return float(np.std(self.per_seed, ddof=1)) if len(self.per_seed) > 1 else None

    @property
    def rule(self) -> Label:
        """The rule's label on mean TIR."""
        return rule_label(self.mean)

    @property
    def label(self) -> Label | None:
        """The label with confidence, for other seeds and other queries; None where that has no interval."""
        return self.crossed.label if self.crossed else None

    @property
    def intervals(self) -> dict[Estimand, CrossedInterval | None]:
        """Both intervals by what they speak of; ``ESTIMANDS`` has the words."""
        return {"seeds_and_queries": self.crossed, "seeds": self.fixed_queries}


@dataclass(frozen=True)
class Interference(TirEstimate):
    """TIR of one pair of arms on one dataset.

    Attributes:
        seeds: the seeds both arms have; the others are in ``left_out``, as ``arm seed n``.
        specialist: mean of the main metric by seed, in the metric's unit (0 to 1).
        joint: the same of the joint arm.
        warnings: why the number may measure something else than interference.
    """

    pair: Pair
    dataset: str
    metric: str
    queries: int
    seeds: tuple[int, ...]
    left_out: tuple[str, ...]
    specialist: tuple[float, ...]
    joint: tuple[float, ...]
    warnings: tuple[str, ...]

    @property
    def deltas(self) -> tuple[float, ...]:
        """Joint minus specialist by seed, in the metric's unit."""
        return tuple(j - s for s, j in zip(self.specialist, self.joint, strict=True))

    @property
    def delta(self) -> float:
        """Mean of joint minus specialist over seeds."""
        return math.fsum(self.deltas) / len(self.seeds)


@dataclass(frozen=True)
class NotComputable:
    """A TIR that was asked for and cannot be had; ``dataset`` is None where the task has no result at all."""

    pair: Pair
    dataset: str | None
    reason: str


@dataclass(frozen=True)
class InterferenceMetrics:
    """Every TIR of an output folder: what was measured, and what was not and why.

    Attributes:
        without_queries: both on MTEB's tasks without queries: 0 queries, and no interval because nothing is paired.
    """

    measured: tuple[Interference, ...]
    missing: tuple[NotComputable, ...]
    without_queries: tuple[Interference | NotComputable, ...] = ()


def compute_interference_metrics(results: Results) -> InterferenceMetrics:
    """TIR of every pair of arms on every dataset: reranking against rank_only, embedding against emb_only.

    Args:
        results: what ``load_all_results`` returned; missing arms, seeds and datasets are reported, not refused.
    """
    of_pairs = list(pairs(results))
    found = [_measure(results, p, dataset) for p in of_pairs for dataset in _datasets(results.results, p) or (None,)]
    unpaired = [_measure(results, p, dataset) for p in of_pairs for dataset in _datasets(results.without_queries, p)]
    return InterferenceMetrics(
        measured=tuple(item for item in found if isinstance(item, Interference)),
        missing=tuple(item for item in found if isinstance(item, NotComputable)),
        without_queries=tuple(unpaired),
    )


def pairs(results: Results) -> Iterator[Pair]:
    """Every pair some arm of the folder belongs to, reranking first; either side may lack results.

    Several joint arms may share a specialist: each way of joint training is set against it.
    """
    if results.pairs:
        yield from results.pairs
        return
    joint = _behind(results, "joint")
    own = {task: _behind(results, word) for task, word in SPECIALISTS.items()}
    known = set[str]().union(*own.values())
    for task, word in SPECIALISTS.items():
        of_joint = {name: _specialist_of(name, own[task], known) for name in joint}
        alone = {name: name for name in known if name not in of_joint.values()}
        for name, specialist in sorted((of_joint | alone).items()):
            yield Pair(task, specialist=f"{word}{specialist}", joint=f"joint{name}")


def _behind(results: Results, word: str) -> set[str]:
    """What stands behind a task word in the names of arms."""
    return {name.removeprefix(word) for name in results if _has_word(name, word)}


def _specialist_of(joint: str, own: Set[str], known: Set[str]) -> str:
    """The specialist whose name this one is or goes on from: a joint arm ``_r8_pcgrad`` is a way to train ``_r8``.

    Args:
        joint: what stands behind the task word.
        own: the same of the task's specialists.
        known: the same of all specialists; the other task's say what is missing.
    """
    begun = [name for name in known if joint == name or joint.startswith(f"{name}_")]
    return max(begun, key=lambda name: (name in own, len(name)), default=joint)


def _measure(results: Results, pair: Pair, dataset: str | None) -> Interference | NotComputable:
    key = f"{pair.task}/{dataset}"
    seeds = {arm: results.seeds(arm, key) for arm in (pair.specialist, pair.joint)}
    absent = [arm for arm, its_seeds in seeds.items() if not its_seeds]
    if dataset is None or absent:
        return NotComputable(pair, dataset, _missing(results, pair, absent, dataset))
    common = tuple(seed for seed in seeds[pair.specialist] if seed in seeds[pair.joint])
    if not common:
        return NotComputable(pair, dataset, f"{pair.specialist} and {pair.joint} have no seed in common on {dataset}")
    first = results.measured(key)[0]
    specialist, joint = (_scores(results, arm, key, common) for arm in seeds)
    lowest = specialist.mean(axis=1).min()
    if lowest < MIN_SPECIALIST:
        where = "nearly" if lowest >= 0.0 else "below"
        why = f"{pair.specialist} scores {where} 0 on {dataset}, and a ratio to it means nothing"
        return NotComputable(pair, dataset, why)
    means = _means(specialist), _means(joint)
    per_seed = tuple((s - j) / s for s, j in zip(*means, strict=True))
    return Interference(
        per_seed=per_seed,
        crossed=crossed_interval(specialist, joint),
        fixed_queries=seeds_mean(np.array(per_seed)) if first.per_query else None,
        pair=pair,
        dataset=dataset,
        metric=first.main_metric,
        queries=len(first.per_query),
        seeds=common,
        left_out=tuple(f"{arm} seed {seed}" for arm in seeds for seed in seeds[arm] if seed not in common),
        specialist=means[0],
        joint=means[1],
        warnings=tuple(unequal_budgets(results, pair, key, common)),
    )


def _scores(results: Results, arm: str, key: str, seeds: Sequence[int]) -> NDArray[np.float64]:
    """``(seeds, queries)`` on the main metric; one column with the whole task's score where there are no queries."""
    measured = [r for r in results.measured(key, arm) if r.seed in seeds]
    if measured[0].per_query:
        return results.scores(arm, key, seeds)
    return np.array([[r.aggregate[r.main_metric]] for r in measured])


def _means(scores: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(math.fsum(row) / len(row) for row in scores.tolist())


def _missing(results: Results, pair: Pair, absent: list[str], dataset: str | None) -> str:
    """``joint_r8 missing``, and on which dataset where the arm has the task on others."""
    elsewhere = {r.config_name for r in results.everything if r.task == pair.task and r.seed is not None}
    if dataset is None and elsewhere.intersection(absent):
        held = " and ".join(arm for arm in absent if arm in elsewhere)
        return f"only tasks without queries of {held}, where nothing is paired"
    place = f" on {dataset}" if elsewhere.intersection(absent) else ""
    return f"{' and '.join(absent)} missing{place}"


def unequal_budgets(results: Results, pair: Pair, key: str, seeds: tuple[int, ...]) -> Iterator[str]:
    """The arms are fair when the joint one saw as many examples of the task as the specialist."""
    field = "ranking_examples" if pair.task == "reranking" else "embedding_examples"
    for seed in seeds:
        seen = []
        for arm in (pair.specialist, pair.joint):
            result = results.result(arm, seed, key)
            seen.append(getattr(result.training, field) if result and result.training else None)
        if None not in seen and seen[0] != seen[1]:
            words = field.replace("_", " ")
            yield (
                f"unequal training: {pair.specialist} seed {seed} saw {seen[0]:,} {words}, {pair.joint} {seen[1]:,}; "
                "TIR measures the budget too"
            )


def _datasets(results: Iterable[EvalResult], pair: Pair) -> list[str]:
    return sorted(
        {r.dataset for r in results if r.task == pair.task and r.config_name in (pair.specialist, pair.joint)}
    )


def _has_word(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}_")
