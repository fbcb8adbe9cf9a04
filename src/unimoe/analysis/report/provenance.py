"""Where the results came from, and what the analysis would have used and did not find."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.arms import ZERO_SHOT, arm_order
from unimoe.analysis.gates.definitions import InterferenceGate
from unimoe.analysis.gates.judging import Judgment, Refusal
from unimoe.analysis.gates.output import learnt_line
from unimoe.analysis.gates.wording import would_settle
from unimoe.core.grouping import gathered
from unimoe.core.io import hash_json
from unimoe.results import EvalResult
from unimoe.results.folder import Results

Fact = tuple[str, str]  # a name and what it says


def missing_parts(analysis: Analysis) -> Iterator[str]:
    """Yield what the analysis would have used and did not find, and what limits each judgment, a line each."""
    for absent in analysis.missing:
        yield f"{absent.pair.task} on {absent.dataset or 'any dataset'}: no TIR, {absent.reason}"
    for outcome in analysis.outcomes:
        if isinstance(outcome, Refusal):
            yield f"{outcome.name} was not judged: {outcome.error}"
        else:
            yield from dict.fromkeys(f"{outcome.name}: {line}" for line in _lacking(outcome))
    if not analysis.judgments:
        yield from analysis.results.notes(analysis.results.dataset_keys)
    trained = sorted({(r.config_name, r.seed) for r in analysis.results.everything if r.identity.checkpoint != "none"})
    without = [f"{name} seed {seed}" for name, seed in trained if not analysis.results.logs.get((name, seed))]
    if without:
        yield f"no training log of {', '.join(without)}"


def _lacking(item: Judgment) -> Iterator[str]:
    """Yield why a label is weak or absent, as clauses."""
    yield from item.notes
    if item.found.why:
        yield item.found.why
    elif item.label == "INCONCLUSIVE" and not item.unlearnt:
        more = f"; {settles}" if (settles := would_settle(item)) else ""
        yield f"too few seeds or queries for a label{more}"
    if len(item.rows) > 1:
        yield from (f"{row.datasets[0]}: {row.why}" for row in item.rows if row.why and row.why != item.found.why)
    if item.learnt is not None and not item.learnt.holds:
        yield f"a specialist that has learnt: {learnt_line(item.learnt)}"
    elif item.learnt is None and isinstance(item.gate, InterferenceGate):
        yield f"no {ZERO_SHOT} result beside it, so nothing says whether {item.gate.specialist} has learnt"


def provenance(results: Results) -> Iterator[Fact]:
    """Yield facts that all results share once, and facts that differ with the arms or places they belong to."""
    facts: list[tuple[str, Callable[[EvalResult], str | None]]] = [
        ("Base model", lambda r: r.identity.base_model),
        ("Prompt", lambda r: r.identity.prompt if r.task_type is None else None),  # MTEB's are among its tasks
        ("Config", lambda r: hash_json({key: value for key, value in r.config.items() if key != "output_dir"})),
        ("Code", _code),
        ("Platform", lambda r: f"{r.provenance.platform}, Python {r.provenance.python}"),
        ("Packages", lambda r: ", ".join(f"{name} {v}" for name, v in sorted(r.provenance.packages.items())) or None),
        ("Device", lambda r: " ".join(filter(None, (r.provenance.device, r.provenance.dtype)))),
        ("Seeds", _pairing),
        ("Given by hand", lambda r: ", ".join(r.provenance.given) or None),
    ]
    for name, fact in facts:
        holders = gathered((fact(result), result.config_name) for result in results.everything)
        holders.pop(None, None)
        for value, arms in holders.items():
            yield name, f"{value} ({', '.join(sorted(set(arms), key=arm_order))})" if len(holders) > 1 else f"{value}"
    yield from _data_hashes(results)
    yield from _made_from(results)


def _data_hashes(results: Results) -> Iterator[Fact]:
    for key in (*results.dataset_keys, *results.keys_without_queries):
        measured = results.measured(key)
        shared = {
            f"{name} {r.provenance.hashes[name]}"
            for r in measured
            for name in ("collection", "candidates", "qrels")
            if name in r.provenance.hashes
        }
        shared |= {f"relevant from grade {r.relevance_level}" for r in measured if r.relevance_level != 1}
        shared |= {f"prompt {r.identity.prompt}" for r in measured if r.task_type and r.identity.prompt}
        if shared:
            yield key, ", ".join(sorted(shared))


def _made_from(results: Results) -> Iterator[Fact]:
    """Yield checkpoint or run by arm and seed; a line more wherever a result was made from another than the first."""
    places = gathered(
        ((r.config_name, r.seed, f"{what} {r.provenance.hashes[what]}"), r.key)
        for r in results.everything
        for what in ("checkpoint", "run")
        if r.seed is not None and what in r.provenance.hashes
    )
    held = [(name, seed) for name, seed, _ in places]
    for name, seed, made_from in sorted(places, key=lambda found: (arm_order(found[0]), found[1])):
        where = f" ({', '.join(places[name, seed, made_from])})" if held.count((name, seed)) > 1 else ""
        yield f"{name} seed {seed}", f"{made_from}{where}"


def _pairing(result: EvalResult) -> str | None:
    if result.seed is None:
        return None
    if result.config.get("paired_seeds") is True:
        return "equal seeds of two arms make a pair, as the experiment declares"
    return "seeds of two arms make no pairs: the experiment declares none"


def _code(result: EvalResult) -> str | None:
    commit, dirty = result.provenance.git_commit, result.provenance.git_dirty
    return None if commit is None else f"{commit}{' with uncommitted changes' if dirty else ''}"
