"""A gate judged on loaded results: the rule's label, the label with confidence, and what a reader must know of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from unimoe.analysis.crossed import CrossedInterval, Label
from unimoe.analysis.gates.definitions import EquivalenceGate, Gate, InterferenceGate, Registration
from unimoe.analysis.gates.scores import GateScores, collect, restricted
from unimoe.analysis.gates.values import Finding, find, unregistered_value, value_of
from unimoe.analysis.interference import MIN_SPECIALIST, unequal_budgets
from unimoe.analysis.loading import Pair, Results, Seed
from unimoe.analysis.power import Aim, PowerPlan, plan
from unimoe.analysis.stability import Stability, stability_of
from unimoe.errors import DataError
from unimoe.results import EvalResult

EXIT_CODES: dict[Label, int] = {"PASS": 0, "FAIL": 10, "MARGINAL": 11, "INCONCLUSIVE": 12}
WORST_FIRST = (DataError.exit_code, 10, 12, 11, 0)

_FEW_QUERIES = 10


@dataclass(frozen=True)
class Judgment:
    """What a gate says of the results.

    Attributes:
        gate: as it was judged: in an advisory look, with the datasets and seeds that have results.
        seeds: the training seeds; ``(None,)`` where neither arm has any.
        queries: of all datasets together.
        found: value, interval and labels.
        per_dataset: the value on each dataset.
        unregistered: TIR across datasets by the way that was not registered; None for other kinds and one dataset.
        plan: what would settle the gate; None without a crossed interval.
        stability: what one seed or dataset less would change.
        advisory: why the judgment may neither pass nor stop a project; empty where it may.
        notes: what else a reader must know before trusting the label.
    """

    name: str
    gate: Gate
    seeds: tuple[Seed, ...]
    queries: int
    found: Finding
    per_dataset: dict[str, float]
    unregistered: float | None
    plan: PowerPlan | None
    stability: Stability
    advisory: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def label(self) -> Label:
        """The label with confidence."""
        return self.found.label


@dataclass(frozen=True)
class Refusal:
    """A gate that cannot be judged on these results."""

    name: str
    gate: Gate
    error: DataError


def judge_all(
    results: Results, registration: Registration, *, advisory: bool = False
) -> tuple[Judgment | Refusal, ...]:
    """Judge every gate; one that cannot be judged does not keep the others from it.

    Args:
        results: what ``load_all_results`` returned.
        registration: the gates.
        advisory: judge gates on those of their datasets and seeds that have results, as a look ahead.
    """
    return tuple(_judged_or_refused(results, registration, name, advisory=advisory) for name in registration.gates)


def exit_code(outcomes: Iterable[Judgment | Refusal]) -> int:
    """The worst outcome's code: 3 data error, 10 FAIL, 12 INCONCLUSIVE or advisory, 11 MARGINAL, 0 all PASS.

    Without any gate nothing is decided: 12.
    """
    codes = {_exit_code(outcome) for outcome in outcomes} or {EXIT_CODES["INCONCLUSIVE"]}
    return next(code for code in WORST_FIRST if code in codes)


def judge(results: Results, registration: Registration, name: str, *, advisory: bool = False) -> Judgment:
    """Judge one gate.

    Raises:
        DataError: an arm, dataset, seed or metric of the gate has no results, or its specialist scores nearly 0.
    """
    gate = registration.gates[name]
    reasons: tuple[str, ...] = ()
    if advisory:
        gate, missing = restricted(results, gate)
        reasons = ("a look ahead was asked for", *missing)
    scores = collect(results, gate)
    if isinstance(gate, InterferenceGate):
        _refuse_zero_specialist(gate, scores)
    used, left_out = _results_of(results, gate, scores.seeds)
    found = find(gate, scores)
    return Judgment(
        name=name,
        gate=gate,
        seeds=scores.seeds,
        queries=scores.queries,
        found=found,
        per_dataset={dataset: value_of(gate, scores.only_datasets([dataset])) for dataset in scores.by_dataset},
        unregistered=unregistered_value(gate, scores),
        plan=_plan(gate, found.interval),
        stability=stability_of(gate, scores),
        advisory=(*reasons, *_unfit(used)),
        notes=(
            *_left_out(gate, left_out),
            *_older(registration, used),
            *_budgets(results, gate, scores),
            *_few(scores),
        ),
    )


def _judged_or_refused(
    results: Results, registration: Registration, name: str, *, advisory: bool
) -> Judgment | Refusal:
    try:
        return judge(results, registration, name, advisory=advisory)
    except DataError as error:
        where = f"{registration.path}: " if registration.path else ""
        return Refusal(name, registration.gates[name], DataError(f"{where}gate {name!r}: {error}"))


def _exit_code(outcome: Judgment | Refusal) -> int:
    if isinstance(outcome, Refusal):
        return outcome.error.exit_code
    return EXIT_CODES["INCONCLUSIVE"] if outcome.advisory else EXIT_CODES[outcome.label]


def _plan(gate: Gate, interval: CrossedInterval | None) -> PowerPlan | None:
    if interval is None or interval.mean_squares is None:
        return None
    aim = Aim(gate.cutoffs, gate.confidence, one_sided=isinstance(gate, EquivalenceGate))
    return plan(interval.mean_squares, interval.estimate, aim)


def _refuse_zero_specialist(gate: InterferenceGate, scores: GateScores) -> None:
    for dataset, (specialist, _) in scores.by_dataset.items():
        if specialist.mean(axis=1).min() < MIN_SPECIALIST:
            raise DataError(f"{gate.specialist} scores nearly 0 on {dataset}, and a ratio to it means nothing")


def _results_of(results: Results, gate: Gate, seeds: tuple[Seed, ...]) -> tuple[list[EvalResult], list[EvalResult]]:
    """The results of the gate's arms on its datasets: those judged, and those of other seeds."""
    keys = [f"{gate.task}/{dataset}" for dataset in gate.datasets]
    found = [result for key in keys for arm in gate.arms for result in results.measured(key, arm)]
    used = [result for result in found if result.seed in (*seeds, None)]
    return used, [result for result in found if result.seed not in (*seeds, None)]


def _unfit(used: list[EvalResult]) -> Iterator[str]:
    """Results that are unfit for decisions, or of fewer queries than there are, decide nothing."""
    yield from dict.fromkeys(caveat for result in used for caveat in result.caveats)
    cut = {result.identity.max_queries for result in used if not result.caveats} - {None}
    yield from (f"{limit} queries of a larger set" for limit in sorted(filter(None, cut)))


def _left_out(gate: Gate, left_out: list[EvalResult]) -> Iterator[str]:
    names = dict.fromkeys(f"{result.config_name} seed {result.seed}" for result in left_out)
    if names:
        why = "not registered" if gate.seeds else "the other arm or another dataset lacks the seed"
        yield f"left out, {why}: {', '.join(names)}"


def _older(registration: Registration, used: list[EvalResult]) -> Iterator[str]:
    if registration.registered is None:
        return
    older = [result for result in used if _created(result) < registration.registered]
    if older:
        first = min(older, key=_created)
        yield (
            f"{len(older)} of {len(used)} results are older than this gate (registered "
            f"{registration.registered.isoformat()}; {first.config_name} {first.key}: {first.provenance.created}), "
            "so it was not fixed before them"
        )


def _budgets(results: Results, gate: Gate, scores: GateScores) -> Iterator[str]:
    if isinstance(gate, InterferenceGate) and scores.trained:
        pair = Pair(gate.task, gate.specialist, gate.joint)
        seeds = tuple(seed for seed in scores.seeds if seed is not None)
        warnings = (unequal_budgets(results, pair, f"{gate.task}/{d}", seeds) for d in gate.datasets)
        yield from dict.fromkeys(warning for of_dataset in warnings for warning in of_dataset)


def _few(scores: GateScores) -> Iterator[str]:
    """Degrees of freedom count all queries together; a dataset of few weighs as much as one of many."""
    few = [dataset for dataset, (first, _) in scores.by_dataset.items() if first.shape[1] < _FEW_QUERIES]
    if few and len(scores.by_dataset) > 1:
        yield f"fewer than {_FEW_QUERIES} queries on {', '.join(few)}: the interval across datasets is too narrow"


def _created(result: EvalResult) -> datetime:
    text = result.provenance.created
    try:
        created = datetime.fromisoformat(text)
    except ValueError:
        raise DataError(f"{result.config_name} {result.key}: created {text!r} is no date and time") from None
    return created if created.tzinfo else created.replace(tzinfo=UTC)
