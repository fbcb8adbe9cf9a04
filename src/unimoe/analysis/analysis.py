"""Everything that is asked of one set of results, each answer computed once."""

from __future__ import annotations

from functools import cached_property

from unimoe.analysis.across import Across, compute_across
from unimoe.analysis.drilldown import QueryCase, drill_down_all
from unimoe.analysis.gates.definitions import Registration
from unimoe.analysis.gates.judging import Judgment, Refusal, judge_all
from unimoe.analysis.gates.registration import registered_in, unregistered
from unimoe.analysis.interference import InterferenceMetrics, compute_interference_metrics
from unimoe.analysis.loading import Pair, Results
from unimoe.analysis.significance import ITERATIONS, Comparison, compute_significance


class Analysis:
    """One set of results and what is computed from it; an answer is computed when it is first asked for, then kept.

    The commands, the verdict, the tables, the figures and the report of one run share one of these, so that they
    cannot disagree and nothing is computed twice.

    Attributes:
        results: what ``load_all_results`` returned.
        gates: the gates that were given; None where the output folder decides.
        alpha: intervals of the paired tests have level ``1 - alpha``.
        iterations: bootstrap resamples and permutations.
        seed: of the random numbers.
    """

    def __init__(
        self,
        results: Results,
        gates: Registration | None = None,
        *,
        alpha: float = 0.05,
        iterations: int = ITERATIONS,
        seed: int = 0,
    ) -> None:
        self.results = results
        self.gates = gates
        self.alpha = alpha
        self.iterations = iterations
        self.seed = seed

    @cached_property
    def metrics(self) -> InterferenceMetrics:
        """TIR of every pair of arms on every dataset."""
        return compute_interference_metrics(self.results)

    @cached_property
    def across(self) -> tuple[Across, ...]:
        """TIR across datasets."""
        return compute_across(self.results, self.metrics)

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The paired tests.

        Raises:
            UsageError: ``alpha`` outside (0, 1), or no iterations.
        """
        return compute_significance(self.results, self.alpha, self.iterations, self.seed)

    @cached_property
    def registration(self) -> Registration:
        """The gates to judge by: those given, else those registered in the output folder, else the rule's.

        Raises:
            DataError: the output folder's gate file is malformed.
        """
        return self.gates or registered_in(self.results.output_dir) or unregistered(self.metrics)

    @cached_property
    def outcomes(self) -> tuple[Judgment | Refusal, ...]:
        """What the gates of ``registration`` say.

        Raises:
            DataError: the output folder's gate file is malformed.
        """
        return judge_all(self.results, self.registration)

    @cached_property
    def cases(self) -> dict[tuple[Pair, str], tuple[QueryCase, ...]]:
        """The queries that carry each TIR, by pair of arms and dataset."""
        return drill_down_all(self.results, self.metrics)
