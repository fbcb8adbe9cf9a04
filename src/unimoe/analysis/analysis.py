"""Everything that is asked of one set of results, each answer computed once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from unimoe.analysis.arms import NotComputable, missing_pairs
from unimoe.analysis.comparisons import ITERATIONS, Comparison, Question, compare_arms, questions_of, with_other_metrics
from unimoe.analysis.corrections import Correction, Family, check_choice
from unimoe.analysis.drilldown import QueryCase, drill_down_all
from unimoe.analysis.gates.definitions import InterferenceGate, Registration
from unimoe.analysis.gates.judging import Judgment, Outcome, judge_all
from unimoe.analysis.gates.registration import default_gates, registered_in
from unimoe.analysis.multiplicity import Chosen, corrected_together
from unimoe.analysis.saved_comparison import saved_comparison
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
        correction: Correction | None = None,
        family: Family | None = None,
        chosen: Chosen | None = None,
        simultaneous: bool = False,
    ) -> None:
        """Take results, gates that replace those registered in their folder, and what to compare if not by names.

        ``iterations`` and ``seed`` are those of the resampling checks beside each test. ``correction`` and ``family``
        say how p is corrected: by default as the comparison saved in the folder is, else by Holm over the table.
        ``chosen`` and ``simultaneous`` are those of ``corrected_together``, by default as saved too.
        """
        check_choice("correction", correction, Correction)
        check_choice("family", family, Family)
        saved = saved_comparison(results.output_dir) if questions is None else None
        self.results = results
        self.iterations = iterations
        self.seed = seed
        self.correction: Correction = correction or (saved.correction if saved else "holm")
        self.family: Family = family or (saved.family if saved else "table")
        self.chosen: Chosen = chosen or (saved.chosen if saved else {})
        self.simultaneous = simultaneous or bool(saved and saved.simultaneous)
        self._gates = gates
        self._questions = questions

    @cached_property
    def registration(self) -> Registration | None:
        """The gates given, else those registered in the output folder, whose file may be malformed: a DataError."""
        return self._gates or registered_in(self.results.output_dir)

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Every judgment: of the registered gates, then of default gates for what they leave out."""
        registered = () if self.registration is None else judge_all(self.results, self.registration)
        return (*registered, *judge_all(self.results, default_gates(self.results, self.registration)))

    @property
    def decisive(self) -> tuple[Outcome, ...]:
        """The outcomes that count for an exit code: those of registered gates, or all where no file registers any."""
        return self.outcomes if self.registration is None else self.outcomes[: len(self.registration.gates)]

    @property
    def judgments(self) -> tuple[Judgment, ...]:
        """The outcomes that are judgments."""
        return tuple(outcome for outcome in self.outcomes if isinstance(outcome, Judgment))

    @property
    def interference(self) -> tuple[Judgment, ...]:
        """The judgments of a joint arm against its specialist."""
        return tuple(item for item in self.judgments if isinstance(item.gate, InterferenceGate))

    @property
    def missing(self) -> tuple[NotComputable, ...]:
        """Every pair of a specialist and a joint arm that has no TIR, and why."""
        return missing_pairs(self.results)

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """What to compare, on each dataset by its main metric."""
        return questions_of(self.results) if self._questions is None else tuple(self._questions)

    @cached_property
    def tests(self) -> tuple[Comparison, ...]:
        """The paired comparisons of arms on every metric: those on main metrics, then their averages, then others."""
        return compare_arms(
            self.results,
            with_other_metrics(self.results, self.questions),
            iterations=self.iterations,
            seed=self.seed,
            correction=self.correction,
            family=self.family,
            first=lambda rows: corrected_together(rows, self.chosen, simultaneous=self.simultaneous),
        )

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Those of the tests that are on main metrics, with their averages."""
        return tuple(test for test in self.tests if test.main)

    @cached_property
    def cases(self) -> dict[tuple[str, str], tuple[QueryCase, ...]]:
        """The queries that contribute most to each judged difference, by name of the gate and dataset."""
        return drill_down_all(self.results, self.judgments)
