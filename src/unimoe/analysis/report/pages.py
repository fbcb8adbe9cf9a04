"""What the report says, as one HTML file that needs nothing else, and as Markdown for a terminal or a repository."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.arms import FIRST_STAGE, ZERO_SHOT, arm_order
from unimoe.analysis.comparisons import Comparison
from unimoe.analysis.drilldown import gather_queries
from unimoe.analysis.formats import metric_name, signed
from unimoe.analysis.gates.definitions import InterferenceGate
from unimoe.analysis.gates.findings import ratio_weights
from unimoe.analysis.gates.judging import GateOutcome, Judgment, Refusal
from unimoe.analysis.gates.output import SETTLES, Fact, Said, origin, say
from unimoe.analysis.gates.wording import action, family
from unimoe.analysis.report.systems import systems_headlines, systems_reading
from unimoe.analysis.tables import Table, escape_markdown
from unimoe.analysis.tables.cells import caveat_notes, cluster_notes
from unimoe.core.grouping import gathered
from unimoe.core.io import hash_json
from unimoe.results import EvalResult
from unimoe.results.folder import Results

FIRST_ROWS = 25  # rows of the drill-down that are in the page itself, for readers without JavaScript
MOST_OPEN = 2  # verdicts that are unfolded: with more of them the first screen lists what was found


class Verdict(NamedTuple):
    """An outcome as the report shows it: what a reader needs in ten seconds, and the rest."""

    said: Said
    registered: bool
    first: tuple[Fact, ...]  # what to do, what would settle it, and how the arms compare with untrained ones
    more: tuple[Fact, ...]


def gather(analysis: Analysis, tables: Sequence[Table]) -> dict[str, Any]:
    """Return what the report says, by the names that its templates have for it; figures apart."""
    results, outcomes = analysis.results, analysis.outcomes
    queries = gather_queries(analysis.drilled, analysis.cases)
    verdicts = [_verdict(analysis, item) for item in outcomes]
    kinds = gathered((verdict.registered, verdict) for verdict in verdicts)
    others = "Not registered: default gates for all other pairs of arms, which decide nothing"
    headings = {True: "Registered gates", False: others} if len(kinds) > 1 else {}  # one kind alone has none
    checks = f"{analysis.iterations:,} bootstrap resamples and permutations, random seed {analysis.seed}"
    reading = _reading(analysis.judgments) if outcomes else systems_reading(analysis.comparisons)
    reading = (*reading, *cluster_notes(results))
    said_above = {*reading, *caveat_notes(results)}
    said_above |= {f"{v.said.name}: {name}: {text}." for v in verdicts for name, text in v.said.facts}
    times = Counter(note for table in tables for note in table.notes)
    shared = [note for note, number in times.items() if number > 1 and note not in said_above]
    printed = said_above.union(shared)  # once, in place of below each table
    return {
        "experiment": results.everything[0].identity.experiment,
        "caveats": results.caveats,
        "verdicts": verdicts,
        "headlines": [(headings.get(kind, ""), kinds[kind]) for kind in sorted(kinds, reverse=True)],
        "findings": () if outcomes else systems_headlines(results, analysis.comparisons),
        "origin": f"{origin(analysis.registration)}." if outcomes else "",
        "reading": (*reading, *shared),
        "tables": [replace(table, notes=tuple(n for n in table.notes if n not in printed)) for table in tables],
        "queries": queries,
        "missing": (*missing_parts(analysis), *queries["unread"]),
        "provenance": (*provenance(results), ("Checks beside each test", checks)),
    }


def page(template: str, contents: Mapping[str, Any], figures: Sequence[Mapping[str, Any]]) -> str:
    """Fill in ``report.html.j2``, which needs no other file, or ``report.md.j2``, which lacks only the drill-down.

    The figures for the top, or the first one where none is made for it, come before the others. The template of HTML
    escapes everything that it does not call safe, as SVG and tables, which arrive escaped. The page's policy allows no
    request at all and no script but its own, by hash, so that even a name that escaped escaping could not run. Style
    stays open because SVG and HTML set colours and positions in attributes.
    """
    environment = Environment(
        loader=PackageLoader("unimoe.analysis.report", ""),
        autoescape=template.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"signed": signed, "escaped": escape_markdown}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    leading = [figure for figure in figures if figure["leads"]] or list(figures[:1])
    style, script = (
        files(__package__).joinpath(name).read_text(encoding="utf-8") for name in ("report.css", "report.js")
    )
    text = environment.get_template(template).render(
        **contents,
        leading=leading,
        figures=[figure for figure in figures if figure not in leading],
        first_rows=FIRST_ROWS,
        most_open=MOST_OPEN,
        style=style,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    # Parts of Markdown that have nothing to say leave blank lines.
    return text if template.endswith(".html.j2") else re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _verdict(analysis: Analysis, item: GateOutcome) -> Verdict:
    said, first = say(item), list[Fact]()
    registered = analysis.registration is not None and any(item is other for other in analysis.decisive)
    if isinstance(item, Judgment):
        registered = item.registered
        first = [("Do", f"nothing by this: {'; '.join(item.advisory)}" if item.advisory else action(item))]
        first += [fact for fact in said.facts if fact[0] == SETTLES]
        first += _beside(analysis.results, item, analysis.comparisons)
    return Verdict(said, registered, tuple(first), tuple(fact for fact in said.facts if fact[0] != SETTLES))


def _beside(results: Results, item: Judgment, comparisons: Sequence[Comparison]) -> Iterator[Fact]:
    """Yield one line: the mean scores of both arms and of untrained ones, and which of these they beat."""
    gate, metric = item.gate, item.gate.metric
    weights = ratio_weights(gate.datasets, "tir_of_means")[0]
    means = {}
    for arm in (FIRST_STAGE, ZERO_SHOT):
        held = [results.measured(key, arm) for key in gate.keys]
        if arm not in gate.arms and all(of_key and metric in of_key[0].aggregate for of_key in held):
            means[arm] = float(sum(w * of_key[0].aggregate[metric] for w, of_key in zip(weights, held, strict=True)))
    if not means:
        return
    verbs = ("beats", "not significantly apart from", "behind")
    tested = {
        (c.key, c.system, c.baseline): verbs[(0 if c.delta > 0.0 else 2) if c.significant else 1]
        for c in comparisons
        if c.metric == metric and c.p is not None
    }
    said = [f"{name} {100 * mean:.2f}" for name, mean in means.items()]
    for arm, mean in zip(gate.arms, item.found.means, strict=True):
        words = []
        for verb in verbs:
            counts = {name: sum(tested.get((key, arm, name)) == verb for key in gate.keys) for name in means}
            where = {n: "" if n == len(gate.keys) else f" on {n} of {len(gate.keys)} datasets" for n in counts.values()}
            if names := " and ".join(f"{name}{where[n]}" for name, n in counts.items() if n):
                words.append(f"{verb} {names}")
        said.append(f"{arm} {100 * mean:.2f}" + (f" ({', '.join(words)})" if words else ""))
    yield "Baselines", f"{metric_name(metric)} x 100: {', '.join(said)}"


def _reading(items: Sequence[Judgment]) -> tuple[str, ...]:
    """Explain the labels in plain words, a paragraph each."""
    if not items:
        return ()
    tirs = [isinstance(item.gate, InterferenceGate) for item in items]
    of_tir = (
        "TIR, the task interference ratio, is the share of the specialist's mean score that the joint model loses: "
        "(specialist - joint) / specialist. Below 0 the joint model is ahead. INTERFERENCE (gate: PASS) speaks for "
        "separate experts, NO INTERFERENCE (gate: FAIL) for the joint model, SMALL (gate: MARGINAL) for neither."
    )
    of_others = "A difference is system minus baseline in points (score x 100). PASS means that the gate's claim holds."
    paragraphs = (
        of_tir if any(tirs) else "",
        "" if all(tirs) else of_others,
        "A finding needs one region between the cutoffs that holds the confidence its gate asks for. Otherwise it is "
        "UNDECIDED (gate: INCONCLUSIVE): these seeds and queries cannot decide, wherever the estimate lies. Confidence "
        "is the level of the one-sided interval that ends at a cutoff; it is no probability that the claim is true.",
        family(len(items)),
    )
    return tuple(filter(None, paragraphs))


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
    ordered = sorted(results.everything, key=lambda r: arm_order(r.config_name))
    for facts_of in (_made_with, _measured_on, _made_from):
        facts = gathered((name, (text, where)) for r in ordered for name, text, where in facts_of(r) if text)
        for name, held in facts.items():
            texts = gathered(held)
            for text, where in texts.items():
                yield name, f"{text} ({', '.join(dict.fromkeys(where))})" if len(texts) > 1 else text


def _made_with(r: EvalResult) -> Iterator[tuple[str, str | None, str]]:
    """Yield what one result was made with: name, text or nothing, and the arm."""
    made, commit = r.provenance, r.provenance.git_commit
    pairing = "seeds of two arms make no pairs: the experiment declares none"
    if r.config.get("paired_seeds"):
        pairing = "equal seeds of two arms make a pair, as the experiment declares"
    facts = {
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
    yield from ((name, text, r.config_name) for name, text in facts.items())


def _measured_on(r: EvalResult) -> Iterator[tuple[str, str, str]]:
    """Yield the hashes of one result's dataset, and the arm."""
    hashes = r.provenance.hashes
    facts = [f"{name} {hashes[name]}" for name in ("collection", "candidates", "qrels") if name in hashes]
    facts += [f"relevant from grade {r.relevance_level}"] if r.relevance_level != 1 else []
    facts += [f"prompt {r.identity.prompt}"] if r.task_type and r.identity.prompt else []
    yield r.key, ", ".join(facts), r.config_name


def _made_from(r: EvalResult) -> Iterator[tuple[str, str, str]]:
    """Yield the checkpoint or run that one result was made from, and the dataset."""
    facts = [f"{what} {r.provenance.hashes[what]}" for what in ("checkpoint", "run") if what in r.provenance.hashes]
    yield f"{r.config_name} seed {r.seed}", ", ".join(facts if r.seed is not None else ()), r.key
