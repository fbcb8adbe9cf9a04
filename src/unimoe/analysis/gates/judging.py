"""A gate judged on loaded results: value, interval, label, and what a reader must know to trust them.

This is the one place where anything is judged. Tables, figures, the report, the terminal and exit codes show what a
``Judgment`` holds and judge nothing themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

from pydantic import BaseModel, Field

from unimoe.analysis.arms import ZERO_SHOT
from unimoe.analysis.gates.definitions import DifferenceGate, Gate, InterferenceGate, Label, Registration
from unimoe.analysis.gates.findings import Finding, Stability, evaluate_gate, label_of, quantity_of, stability_of
from unimoe.analysis.gates.notes import notes_of
from unimoe.analysis.gates.scores import Aligned, collect, restricted
from unimoe.analysis.statistics.power import Aim, PowerPlan, plan
from unimoe.analysis.statistics.sequential import Outlook, outlook
from unimoe.core.errors import DataError
from unimoe.core.io import find_files, read_json
from unimoe.core.shown import Shown
from unimoe.metrics import parse_metric
from unimoe.results.folder import Results
from unimoe.results.runs.predicting import with_predicted

EXIT_CODES: dict[Label, int] = {"PASS": 0, "FAIL": 10, "MARGINAL": 11, "INCONCLUSIVE": 12}
WORST_FIRST = (DataError.exit_code, 10, 12, 11, 0)

_Sizes: TypeAlias = tuple[int | None, int | None]  # seeds of each arm, and queries of all datasets; None for never


class SpecialistCheck(NamedTuple):
    """Whether a specialist has learnt anything: specialist minus an arm that was not trained, in the metric's unit."""

    baseline: str
    found: Finding

    @property
    def holds(self) -> bool:
        """Whether the specialist beats the baseline with the gate's confidence."""
        return self.found.label == "PASS"


@dataclass(frozen=True, repr=False)
class Judgment(Shown):
    """What a gate says of the results."""

    name: str
    gate: Gate  # as it was judged: in an advisory look, with the datasets that have results
    registered: bool  # whether a file registers the gate; where others are registered, this one decides nothing
    found: Finding  # value, interval and label, over all datasets of the gate
    look: int | None  # number of seeds judged, where the gate registers looks: with a label, the first that has one
    parts: tuple[Finding, ...]  # the same of each dataset with the seeds it has, where there are several
    otherwise: float | None  # TIR across several datasets by the way that the gate does not take
    learnt: SpecialistCheck | None  # None without a zero-shot result or a specialist
    advisory: tuple[str, ...]  # why the judgment may neither pass nor stop a project; empty where it may
    notes: tuple[str, ...]  # what else a reader must know before trusting the label
    scores: Aligned
    results: Results  # what it was judged on

    @property
    def label(self) -> Label:
        """The label with confidence."""
        return self.found.label

    @property
    def metric(self) -> str:
        """The metric, with the lowest relevant grade where it depends on one."""
        levels = " or ".join(map(str, self.levels))
        return f"{self.gate.metric} (relevant from grade {levels})" if levels else self.gate.metric

    @property
    def levels(self) -> tuple[int, ...]:
        """The lowest relevant grades, where the metric depends on them."""
        measured = (r for key in self.gate.keys for arm in self.gate.arms for r in self.results.measured(key, arm))
        binary = parse_metric(self.gate.metric).binary
        return tuple(sorted({result.relevance_level for result in measured})) if binary else ()

    @property
    def verdict(self) -> str:
        """The label, as ``ADVISORY PASS`` where it decides nothing."""
        return f"ADVISORY {self.label}" if self.advisory else self.label

    @property
    def exit_code(self) -> int:
        """The exit code of the label; that of INCONCLUSIVE where the judgment is advisory."""
        return EXIT_CODES["INCONCLUSIVE" if self.advisory else self.label]

    @property
    def labelled(self) -> bool:
        """Whether people judged a sample of the queries, and a model all."""
        return any(self.results.labelled(key) is not None for key in self.gate.keys)

    @property
    def rows(self) -> tuple[Finding, ...]:
        """What the gate found on each of its datasets."""
        return self.parts or (self.found,)

    @cached_property
    def plan(self) -> PowerPlan | None:
        """What would settle the gate; None without an interval, or where the seeds' variance is unknown.

        None too for a specialist that has learnt nothing: better training comes before more data.
        """
        gate, found = self.gate, self.found.estimate
        untaught = self.learnt is not None and not self.learnt.holds
        if found.terms is None or self.found.why or gate.estimand == "seeds" or untaught:
            return None
        aim = Aim(gate.cutoffs, gate.label_confidence, one_sided=gate.kind == "equivalence")
        return plan(found.terms, found.value, aim)

    @cached_property
    def outlook(self) -> Outlook | None:
        """What the looks to come may bring; None where the gate has its label or no look left, or no plan can be."""
        gate, terms = self.gate, self.found.estimate.terms
        if not gate.looks or self.plan is None or terms is None or self.label != "INCONCLUSIVE":
            return None
        needed = gate.label_confidence
        return outlook(terms, self.found.value, gate.looks, lambda at: label_of(gate.confidences(at), needed))

    @cached_property
    def seconds(self) -> dict[str, float]:
        """The seconds that each way to settle an undecided gate would take here; empty where they are not known."""
        gate, plan = self.gate, self.plan
        if plan is None or plan.grid is None or self.label != "INCONCLUSIVE":
            return {}
        seeds, queries = plan.at_hand
        ways: dict[str, _Sizes] = {"seeds": (plan.seeds, queries), "queries": (seeds, plan.queries)}
        if plan.grid not in ways.values():
            ways["mix"] = plan.grid
        if gate.looks:
            ways = {f"{look} seeds": (look, queries) for look in (self.outlook.looks if self.outlook else ())}
        return _seconds_of(self, ways, queries)

    @cached_property
    def stability(self) -> Stability:
        """The changes of the label without one seed or one dataset."""
        return stability_of(self.gate, self.scores, self.found)


@dataclass(frozen=True)
class Refusal:
    """A gate that cannot be judged on these results."""

    name: str
    gate: Gate
    error: DataError

    @property
    def exit_code(self) -> int:
        """The exit code of the error: wrong data."""
        return self.error.exit_code


GateOutcome: TypeAlias = Judgment | Refusal
GateOutcomes: TypeAlias = Sequence[GateOutcome]


def judge_all(results: Results, registration: Registration, *, advisory: bool = False) -> tuple[GateOutcome, ...]:
    """Judge every gate; one that cannot be judged does not keep the others from it.

    An advisory look judges gates on those of their datasets and seeds that have results.
    """
    outcomes: list[GateOutcome] = []
    for name, gate in registration.gates.items():
        try:
            outcomes.append(judge(results, registration, name, advisory=advisory))
        except DataError as error:
            where = f"{registration.path}: " if registration.path else ""
            outcomes.append(Refusal(name, gate, DataError(f"{where}gate {name!r}: {error}")))
    return tuple(outcomes)


def all_decided(results: Results, registration: Registration) -> bool:
    """Return whether every gate has looks, and a label that later seeds cannot change."""
    if not registration.gates or any(gate.looks is None for gate in registration.gates.values()):
        return False
    outcomes = judge_all(results, registration)
    return all(isinstance(item, Judgment) and item.label != "INCONCLUSIVE" for item in outcomes)


def exit_code(outcomes: GateOutcomes) -> int:
    """Return the worst code: 3 data error, 10 FAIL, 12 INCONCLUSIVE, advisory or no gate, 11 MARGINAL, 0 all PASS."""
    codes = {outcome.exit_code for outcome in outcomes} or {EXIT_CODES["INCONCLUSIVE"]}
    return min(codes, key=WORST_FIRST.index)


def judge(results: Results, registration: Registration, name: str, *, advisory: bool = False) -> Judgment:
    """Judge one gate; a DataError where an arm, dataset, seed or metric of it has no results.

    A gate that registers looks is judged at the first with a label, else at the last so far: later seeds cannot change
    a label, and are not looked at once there is one.
    """
    gate = registration.gates[name]
    reasons: tuple[str, ...] = ()
    if advisory:
        gate, missing = restricted(results, gate, datasets=True)
        reasons = ("a look ahead was asked for", *missing)
    elif gate.seeds and not gate.looks:
        gate, missing = restricted(results, gate, datasets=False)
        reasons = tuple(f"{lacking}: judged at another number of seeds than registered" for lacking in missing)
    if gate.predicted:
        given = {f"{gate.task}/{dataset}": path for dataset, path in gate.predicted.items()}
        results = with_predicted(results, given, gate.metric)
    scores, found, learnt, look = _at_looks(results, gate)
    # Each dataset is also judged alone, with all the seeds it has: other datasets' seeds do not limit it.
    alone = [gate.model_copy(update={"datasets": [dataset]}) for dataset in gate.datasets]
    otherwise = math.nan
    if isinstance(gate, InterferenceGate) and len(scores.groups) > 1:
        other = gate.model_copy(update={"across": gate.other_way})
        otherwise = quantity_of(other, tuple(scores.by_dataset)).value(scores.means)
    seeds = dict(zip(gate.arms, scores.seeds, strict=True))
    measured = [result for arm in gate.arms for key in gate.keys for result in results.measured(key, arm)]
    used = [result for result in measured if result.seed in seeds[result.config_name]]
    left_out = [result for result in measured if result.seed not in seeds[result.config_name] and look is None]
    cut = {limit for result in used if (limit := result.identity.max_queries) and not result.caveats}
    item = Judgment(
        name=name,
        gate=gate,
        registered=registration.path is not None,
        found=found,
        look=look,
        parts=tuple(_found(results, one, look)[1] for one in alone) if len(alone) > 1 else (),
        otherwise=otherwise if math.isfinite(otherwise) else None,
        learnt=learnt,
        advisory=(
            *reasons,
            *dict.fromkeys(caveat for result in used for caveat in result.caveats),
            *(f"{limit} queries of a larger set" for limit in sorted(cut)),
        ),
        notes=(),
        scores=scores,
        results=results,
    )
    said = notes_of(results, registration, gate, scores, found, used, left_out)
    return replace(item, notes=tuple(dict.fromkeys(said)))


class _PhaseSeconds(BaseModel):
    """What is needed of the job's ``run.json``: seconds by phase, over all seeds (``train joint``)."""

    phases: dict[str, dict[str, float]] = Field(default_factory=dict)


def _seconds_of(item: Judgment, ways: Mapping[str, _Sizes], queries: int) -> dict[str, float]:
    """Return the seconds that each way to more seeds or queries takes, beyond what there is.

    Empty where the folder has no record of the training of each arm, or a damaged one. A rough number: of a training
    that was killed, the record has only what came after it was resumed.
    """
    results, gate = item.results, item.gate
    try:
        phases = read_json(results.output_dir / "run.json", _PhaseSeconds).phases
    except DataError:
        return {}  # costs are an extra, which must keep no gate from being judged
    kinds = {name: arm.get("task") for r in results.everything for name, arm in r.config.get("arms", {}).items()}
    runs = {file.parts[-5:-3] for file in find_files(results.output_dir, "*/seed_*/results/*/*.json")}
    seconds = {way: 0.0 for way, size in ways.items() if None not in size}
    for arm, of_arm in zip(gate.arms, item.scores.seeds, strict=True):
        trained = sum(seed is not None for seed in of_arm)  # 0 for an arm that is not trained
        spent = phases.get(f"train {kinds.get(arm)}", {}).get("seconds", 0.0)
        if trained and not spent:
            return {}
        training = spent / max(1, sum(kinds.get(name) == kinds.get(arm) for name, _ in runs))  # of one seed
        times = [r.provenance.wall_time_s for key in gate.keys for r in results.measured(key, arm) if r.seed in of_arm]
        evaluation = sum(times) / max(1, trained)  # of one seed on all datasets
        for way in seconds:
            more_seeds, more_queries = (number or 0 for number in ways[way])
            wanted = max(trained, more_seeds) if trained else 0
            seconds[way] += (wanted - trained) * training
            seconds[way] += (max(1, wanted) * (more_queries / queries) - max(1, trained)) * evaluation
    return seconds


def _at_looks(results: Results, gate: Gate) -> tuple[Aligned, Finding, SpecialistCheck | None, int | None]:
    """Return what ``_found`` does, and the look: the first with a label, else the last so far; None without looks."""
    scores, found, learnt = _found(results, gate)
    trained = [number for number, own in zip(scores.fewest, scores.seeds, strict=True) if own != (None,)]
    if not gate.looks or not trained:
        return scores, found, learnt, None
    there = min(trained)
    for look in [number for number in gate.looks if number <= there] or [there]:
        scores, found, learnt = _found(results, gate, look)
        if found.label != "INCONCLUSIVE":
            break
    if there < gate.looks[0]:
        early = f"the first look is at {gate.looks[0]} seeds, and here {'is' if there == 1 else 'are'} {there}"
        found = replace(found, label="INCONCLUSIVE", why=early)
    return scores, found, learnt, look


def _found(results: Results, gate: Gate, look: int | None = None) -> tuple[Aligned, Finding, SpecialistCheck | None]:
    """Return scores, finding, and whether the specialist has learnt: of the first runs up to a look, or of all.

    The finding is INCONCLUSIVE where the gate requires a specialist that has learnt and it has not.
    """
    scores, learnt = collect(results, gate, look), _learnt(results, gate, look)
    found = evaluate_gate(gate, scores)
    if isinstance(gate, InterferenceGate) and gate.must_learn and learnt is not None and not learnt.holds:
        asks = "the gate requires" if gate.specialist_must_beat else "a gate requires by default"
        why = f"{gate.specialist} does not beat {learnt.baseline} with confidence, which {asks}"
        found = replace(found, label="INCONCLUSIVE", why=found.why or why)
    return scores, found, learnt


def _learnt(results: Results, gate: Gate, look: int | None) -> SpecialistCheck | None:
    """Compare the specialist with an arm that was not trained, by a superiority gate without a margin.

    One seed is taken as it is. None where that arm has no results, or a DataError where the gate requires them.
    """
    if not isinstance(gate, InterferenceGate):
        return None
    baseline = gate.specialist_must_beat or ZERO_SHOT
    if baseline == gate.specialist:
        return None
    if not gate.specialist_must_beat and not all(results.measured(key, baseline) for key in gate.keys):
        return None
    shared = gate.model_dump(include={"task", "datasets", "metric", "confidence", "estimand", "looks", "pool_runs"})
    asked = DifferenceGate(kind="superiority", system=gate.specialist, baseline=baseline, margin=0.0, **shared)
    scores = collect(results, asked, look)
    return SpecialistCheck(
        baseline, evaluate_gate(asked.model_copy(update={"estimand": "queries"}) if scores.single else asked, scores)
    )
