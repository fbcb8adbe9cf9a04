"""Everything that is asked of one set of results, each answer computed once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from unimoe.analysis.arms import NotComputable, missing_pairs
from unimoe.analysis.comparisons import ITERATIONS, Comparison, Question, compare_arms, questions_of
from unimoe.analysis.drilldown import QueryCase, drill_down_all
from unimoe.analysis.gates.definitions import InterferenceGate, Registration
from unimoe.analysis.gates.judging import Judgment, Outcome, judge_all
from unimoe.analysis.gates.registration import default_gates, registered_in
from unimoe.results.folder import Results


class Analysis:
    """One set of results and what is computed from it; an answer is computed when it is first asked for, then kept.

    The commands, the tables, the figures and the report of one run share one of these, so that they cannot disagree
    and nothing is computed twice.
    """

    def __init__(
        self,
        results: Results,
        gates: Registration | None = None,
        *,
        questions: Sequence[Question] | None = None,
        iterations: int = ITERATIONS,
        seed: int = 0,
    ) -> None:
        """Take results, gates that replace those registered in their folder, and what to compare if not by names.

        ``iterations`` and ``seed`` are those of the resampling checks beside each test.
        """
        self.results = results
        self.iterations = iterations
        self.seed = seed
        self._given = gates
        self._questions = questions

    @cached_property
    def registration(self) -> Registration | None:
        """The gates given, else those registered in the output folder, whose file may be malformed: a DataError."""
        return self._given or registered_in(self.results.output_dir)

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Every judgment: of the registered gates, then of default gates for what they leave out."""
        registered = () if self.registration is None else judge_all(self.results, self.registration)
        return (*registered, *judge_all(self.results, default_gates(self.results, self.registration)))

    @cached_property
    def decisive(self) -> tuple[Outcome, ...]:
        """The outcomes that count for an exit code: those of registered gates, or all where no file registers any."""
        return self.outcomes if self.registration is None else self.outcomes[: len(self.registration.gates)]

    @cached_property
    def judgments(self) -> tuple[Judgment, ...]:
        """The outcomes that are judgments."""
        return tuple(outcome for outcome in self.outcomes if isinstance(outcome, Judgment))

    @cached_property
    def interference(self) -> tuple[Judgment, ...]:
        """The judgments of a joint arm against its specialist."""
        return tuple(item for item in self.judgments if isinstance(item.gate, InterferenceGate))

    @cached_property
    def missing(self) -> tuple[NotComputable, ...]:
        """Every pair of a specialist and a joint arm that has no TIR, and why."""
        return missing_pairs(self.results)

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """What to compare."""
        return questions_of(self.results) if self._questions is None else tuple(self._questions)

    @cached_property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The paired comparisons of arms: one family of tests."""
        return compare_arms(self.results, self.questions, iterations=self.iterations, seed=self.seed)

    @cached_property
    def cases(self) -> dict[tuple[str, str], tuple[QueryCase, ...]]:
        """The queries that contribute most to each judged difference, by name of the gate and dataset."""
        return drill_down_all(self.results, self.judgments)
