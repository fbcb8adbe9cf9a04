"""What a reader must know before trusting a label: of the gate and the results first, then of their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime

from unimoe.analysis.gates.definitions import Gate, InterferenceGate, Registration, instant
from unimoe.analysis.gates.findings import Finding
from unimoe.analysis.gates.registration import registered_in
from unimoe.analysis.gates.scores import Aligned
from unimoe.analysis.statistics.estimates import TWO_SEEDS
from unimoe.core.errors import DataError
from unimoe.results import EvalResult
from unimoe.results.comparability import remarks
from unimoe.results.folder import Results

_FEW_QUERIES = 10


def notes_of(
    results: Results,
    registration: Registration,
    gate: Gate,
    scores: Aligned,
    found: Finding,
    used: Sequence[EvalResult],
    left_out: Sequence[EvalResult],
) -> Iterator[str]:
    """Yield what a reader must know before trusting a label: of gate and results first, then of their numbers."""
    estimand = found.estimate.estimand
    fixed, here = registration.registered, registered_in(results.output_dir) if registration.path else None
    if here and here.content_hash != registration.content_hash:
        yield f"{here.path} registers other gates, hash {here.content_hash}: this one was not fixed there"
    if left_out:
        why = f"because {'the other arm or ' if scores.paired else ''}another dataset lacks the seed"
        names = dict.fromkeys(f"{result.config_name} seed {result.seed}" for result in left_out)
        yield f"left out, {'not registered' if gate.seeds else why}: {', '.join(names)}"
    older = [result for result in used if fixed and _created(result) < fixed]
    if fixed and older:
        first = min(older, key=_created)
        yield (
            f"{len(older)} of {len(used)} results are older than this gate (registered {fixed.isoformat()}; "
            f"{first.config_name} {first.key}: {first.provenance.created}), so it was not fixed before them"
        )
    yield from results.notes(gate.keys, gate.arms)
    unfit = {caveat for result in used for caveat in result.caveats}
    yield from (line for line in remarks(used) if line not in unfit)
    # The arms are fair when the joint one saw as many examples of the task as the specialist.
    examples = "ranking_examples" if gate.task == "reranking" else "embedding_examples"
    seen = [{getattr(r.training, examples) for r in used if r.config_name == arm and r.training} for arm in gate.arms]
    if isinstance(gate, InterferenceGate) and all(seen) and seen[0] != seen[1]:
        counts = [" or ".join(f"{count:,}" for count in sorted(of_arm)) for of_arm in seen]
        yield (
            f"unequal training: {gate.specialist} saw {counts[0]} {examples.replace('_', ' ')}, {gate.joint} "
            f"{counts[1]}; TIR measures the budget too"
        )
    if results.clusters:
        yield "queries are in clusters, which are drawn whole: numbers of queries here are numbers of clusters"
    runs_share = found.estimate.terms.shares[0] if found.estimate.terms else 0.0
    if runs_share > 0.5 and any(r.predicted for r in used):
        yield f"training runs make up {100 * runs_share:.0f} % of the variance, which no more judgments can lower"
    few = [dataset for dataset, (runs, _) in scores.by_dataset.items() if runs.scores.shape[1] < _FEW_QUERIES]
    if few and estimand != "seeds":
        across = " across datasets" if len(scores.by_dataset) > 1 else ""
        yield f"fewer than {_FEW_QUERIES} queries on {', '.join(few)}: the interval{across} is a rough one"
    if estimand != "seeds":
        yield from _of_losses(gate, found, scores)
    if apart := [scores.arms[place] for place in scores.apart]:
        yield (
            f"no run of {' and '.join(apart)} has the same name on two datasets: runs on different datasets count as "
            "separate trainings, without covariance"
        )
    if scores.pooled:
        yield f"runs pooled over {scores.pooled} systems: the gate takes both to vary alike from run to run"
    two = [arm for arm, number in zip(scores.arms, scores.fewest, strict=True) if number == 2]
    if two and not scores.pooled and estimand != "queries":
        yield f"two seeds of {' and '.join(two)}: {TWO_SEEDS}"
    if min(map(len, scores.seeds)) > 1 and not scores.paired and results.seeds_pair(gate.arms, gate.keys):
        yield "the experiment declares that seeds pair, but its arms share fewer than two: they are judged unpaired"


def _of_losses(gate: Gate, found: Finding, scores: Aligned) -> Iterator[str]:
    """Yield what few queries cannot tell of rare losses, and where skew makes t rough."""
    drawn, terms = sum(scores.moments.queries), found.estimate.terms
    if gate.tolerates is not None and found.label == gate.tolerates[0] and found.means[gate.tolerates[2]] > 0.0:
        _, most, arm = gate.tolerates
        most /= 1.0 if isinstance(gate, InterferenceGate) else found.means[arm]  # as a share of the score that is lost
        unseen = -math.log(1.0 - gate.confidence) / drawn  # 2.3 / n at .90: the largest share of which none shows up
        if unseen > most:
            yield (
                f"{drawn:,} queries may hide losses of the whole score on up to {100 * unseen:.2g} % of queries, and "
                f"the gate tolerates {100 * most:.2g} %: {math.ceil(unseen * drawn / most):,} queries would show them"
            )
    if found.label != "INCONCLUSIVE" and terms is not None and terms.is_rough:
        enough = math.ceil(25.0 * terms.skew**2 * drawn)
        yield (
            f"differences are skewed (skewness {terms.skew * math.sqrt(drawn):+.1f}): with {drawn:,} queries, fewer "
            f"than {enough:,}, the t behind label and interval is rough"
        )


def _created(result: EvalResult) -> datetime:
    text = result.provenance.created
    try:
        return instant(text)
    except ValueError:
        raise DataError(f"{result.config_name} {result.key}: created {text!r} is no date and time") from None
