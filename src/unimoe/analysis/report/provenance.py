"""Where the results came from, and what the analysis would have used and did not find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from unimoe.analysis.interference import InterferenceMetrics
from unimoe.analysis.loading import Results
from unimoe.analysis.summaries import arm_order
from unimoe.io import hash_json
from unimoe.results import EvalResult

Fact = tuple[str, str]
"""A name and what it says."""


def missing_parts(results: Results, metrics: InterferenceMetrics) -> Iterator[str]:
    """What the analysis would have used and did not find, a line each."""
    for absent in metrics.missing:
        place = absent.dataset or "any dataset"
        yield f"{absent.pair.task} on {place}: TIR not computable: {absent.reason}"
    for item in metrics.measured:
        if len(item.seeds) < 2:
            yield f"{item.pair.task} on {item.dataset}: one seed in common; an interval needs two, and three are usual"
        for left in item.left_out:
            yield f"{item.pair.task} on {item.dataset}: {left} has no counterpart"
    trained = sorted({(r.config_name, r.seed) for r in results.everything if r.identity.checkpoint != "none"})
    without = [f"{name} seed {seed}" for name, seed in trained if not results.logs.get((name, seed))]
    if without:
        yield f"no training log of {', '.join(without)}"


def provenance(results: Results) -> Iterator[Fact]:
    """Facts that all results share once; facts that differ with the arms or places they belong to."""
    facts: list[tuple[str, Callable[[EvalResult], str | None]]] = [
        ("Base model", lambda r: r.identity.base_model),
        ("Prompt", lambda r: r.identity.prompt if r.task_type is None else None),  # MTEB's stand with their tasks
        ("Config", lambda r: hash_json(r.config)),
        ("Code", _code),
        ("Platform", lambda r: f"{r.provenance.platform}, Python {r.provenance.python}"),
        ("Packages", lambda r: ", ".join(f"{name} {v}" for name, v in sorted(r.provenance.packages.items())) or None),
        ("Device", lambda r: " ".join(filter(None, (r.provenance.device, r.provenance.dtype)))),
        ("Given by hand", lambda r: ", ".join(r.provenance.given) or None),
    ]
    for name, fact in facts:
        holders: dict[str, list[str]] = {}
        for result in results.everything:
            value = fact(result)
            if value is not None:
                holders.setdefault(value, []).append(result.config_name)
        for value, arms in holders.items():
            yield name, value + (f" ({_names(arms)})" if len(holders) > 1 else "")
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
        shared |= {f"prompt {r.identity.prompt}" for r in measured if r.task_type and r.identity.prompt}
        if shared:
            yield key, ", ".join(sorted(shared))


def _made_from(results: Results) -> Iterator[Fact]:
    """Checkpoint or run by arm and seed; a line more wherever a result was made from another than the first."""
    places: dict[tuple[str, int, str], list[str]] = {}
    for r in results.everything:
        for what in ("checkpoint", "run"):
            if r.seed is not None and what in r.provenance.hashes:
                places.setdefault((r.config_name, r.seed, f"{what} {r.provenance.hashes[what]}"), []).append(r.key)
    held = [(name, seed) for name, seed, _ in places]
    for name, seed, made_from in sorted(places, key=lambda found: (arm_order(found[0]), found[1])):
        where = f" ({', '.join(places[name, seed, made_from])})" if held.count((name, seed)) > 1 else ""
        yield f"{name} seed {seed}", f"{made_from}{where}"


def _code(result: EvalResult) -> str | None:
    commit, dirty = result.provenance.git_commit, result.provenance.git_dirty
    return None if commit is None else f"{commit}{' with uncommitted changes' if dirty else ''}"


def _names(arms: Iterable[str]) -> str:
    return ", ".join(sorted(set(arms), key=arm_order))
