"""Where the results came from, and what the analysis would have used and did not find."""

from __future__ import annotations

from collections.abc import Iterator

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.arms import ZERO_SHOT, arm_order
from unimoe.analysis.gates.definitions import InterferenceGate
from unimoe.analysis.gates.judging import Refusal
from unimoe.analysis.gates.wording import Fact
from unimoe.core.grouping import gathered
from unimoe.core.io import hash_json
from unimoe.results import EvalResult
from unimoe.results.folder import Results


def missing_parts(analysis: Analysis) -> Iterator[str]:
    """Yield what the analysis would have used and did not find, a line each; a verdict itself says what limits it."""
    for absent in analysis.missing:
        yield f"{absent.pair.task} on {absent.dataset or 'any dataset'}: no TIR, {absent.reason}"
    for outcome in analysis.outcomes:
        if isinstance(outcome, Refusal):
            yield f"{outcome.name} was not judged: {outcome.error}"
        elif outcome.learnt is None and isinstance(outcome.gate, InterferenceGate):
            specialist = outcome.gate.specialist
            yield f"{outcome.name}: no {ZERO_SHOT} result beside it, so nothing says whether {specialist} has learnt"
    if not analysis.judgments:
        yield from analysis.results.notes(analysis.results.dataset_keys)
    trained = sorted({(r.config_name, r.seed) for r in analysis.results.everything if r.identity.checkpoint != "none"})
    without = [f"{name} seed {seed}" for name, seed in trained if not analysis.results.logs.get((name, seed))]
    if without:
        yield f"no training log of {', '.join(without)}"


def provenance(results: Results) -> Iterator[Fact]:
    """Yield facts that all results share once, and facts that differ with the arms or places they belong to."""
    by_name = gathered((name, (text, r.config_name)) for r in results.everything for name, text in _facts(r).items())
    for name, held in by_name.items():
        texts = gathered(pair for pair in held if pair[0])
        for text, arms in texts.items():
            yield name, f"{text} ({', '.join(sorted(set(arms), key=arm_order))})" if len(texts) > 1 else f"{text}"
    for key in (*results.dataset_keys, *results.keys_without_queries):
        shared = {fact for r in results.measured(key) for fact in _data_facts(r)}
        if shared:
            yield key, ", ".join(sorted(shared))
    # Checkpoint or run by arm and seed; a line more wherever a result was made from another than the first.
    places = gathered(
        ((r.config_name, r.seed, f"{what} {r.provenance.hashes[what]}"), r.key)
        for r in results.everything
        for what in ("checkpoint", "run")
        if r.seed is not None and what in r.provenance.hashes
    )
    of_arms = [(name, seed) for name, seed, _ in places]
    for name, seed, made_from in sorted(places, key=lambda found: (arm_order(found[0]), found[1])):
        where = f" ({', '.join(places[name, seed, made_from])})" if of_arms.count((name, seed)) > 1 else ""
        yield f"{name} seed {seed}", f"{made_from}{where}"


def _facts(r: EvalResult) -> dict[str, str | None]:
    """Return what one result was made with; empty or None where there is nothing to say."""
    made, commit = r.provenance, r.provenance.git_commit
    pairing = "seeds of two arms make no pairs: the experiment declares none"
    if r.config.get("paired_seeds") is True:
        pairing = "equal seeds of two arms make a pair, as the experiment declares"
    return {
        "Base model": r.identity.base_model,
        "Prompt": r.identity.prompt if r.task_type is None else None,  # MTEB's are among its tasks
        "Config": hash_json({key: value for key, value in r.config.items() if key != "output_dir"}),
        "Code": commit and f"{commit}{' with uncommitted changes' if made.git_dirty else ''}",
        "Platform": f"{made.platform}, Python {made.python}",
        "Packages": ", ".join(f"{name} {version}" for name, version in sorted(made.packages.items())),
        "Device": " ".join(filter(None, (made.device, made.dtype))),
        "Seeds": None if r.seed is None else pairing,
        "Given by hand": ", ".join(made.given),
    }


def _data_facts(r: EvalResult) -> Iterator[str]:
    """Yield what one result was measured on."""
    hashes = r.provenance.hashes
    yield from (f"{name} {hashes[name]}" for name in ("collection", "candidates", "qrels") if name in hashes)
    if r.relevance_level != 1:
        yield f"relevant from grade {r.relevance_level}"
    if r.task_type and r.identity.prompt:
        yield f"prompt {r.identity.prompt}"
