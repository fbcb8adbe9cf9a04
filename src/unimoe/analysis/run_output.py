"""What ``unimoe compare`` says: verdict, paired test, scores and the queries that carry the difference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.drilldown import LIMIT, QueryCase, drilldown_table
from unimoe.analysis.from_runs import ComparedRuns
from unimoe.analysis.gates.output import gate_lines, gates_as_json
from unimoe.analysis.interference import Interference
from unimoe.analysis.significance import Comparison
from unimoe.analysis.summaries import generate_comparison_table
from unimoe.analysis.verdict import named_line, verdict_block
from unimoe.console import stdout


def print_comparison(compared: ComparedRuns, analysis: Analysis, *, as_json: bool = False) -> None:
    """Print the whole comparison on stdout, as text or as one JSON object.

    Args:
        compared: what ``compare_runs`` returned.
        analysis: of its results; the gates stand in the output where it was given any.
        as_json: one object on one line, with the first ``LIMIT`` queries of the drill-down.
    """
    if as_json:
        stdout.out(json.dumps(_as_dict(compared, analysis), ensure_ascii=False, allow_nan=False))
        return
    stdout.print(verdict_block(analysis), soft_wrap=True)
    stdout.print()
    for name, text in _lines(compared, analysis.comparisons):
        stdout.print(named_line(name, text), soft_wrap=True)
    stdout.print()
    stdout.print(generate_comparison_table(compared.results).to_rich(), crop=False)
    if cases := _cases(compared, analysis):
        stdout.print()
        stdout.print(
            drilldown_table(cases, f"{compared.pair.joint} against {compared.pair.specialist}").to_rich(), crop=False
        )
    if analysis.gates is not None:
        stdout.print(f"\n{gate_lines(analysis.gates, analysis.outcomes)}", soft_wrap=True)


def _lines(compared: ComparedRuns, comparisons: Sequence[Comparison]) -> Iterator[tuple[str, str]]:
    test = next((c for c in comparisons if c.seed is None), next(iter(comparisons), None))
    if test is not None:
        yield "Paired test", _test_sentence(test)
    for i in range(max(map(len, compared.runs.values()))):
        named = (f"{arm} {of_arm[i].path}" for arm, of_arm in compared.runs.items() if i < len(of_arm))
        yield f"Seed {i + 1}", ", ".join(named)


def _test_sentence(test: Comparison) -> str:
    over = f"scores averaged over {len(test.seeds)} seeds first" if test.seed is None else f"seed {test.seed}"
    effect = "" if test.effect is None else f", d {round(test.effect, 2) + 0.0:+.2f}"
    p = "p below 0.0001" if test.p < 0.0001 else f"p {test.p:.4f}"
    return (
        f"{100 * test.delta:+.2f} points over {test.queries:,} queries ({over}), {100 * test.level:g} % interval "
        f"{100 * test.low:+.2f} to {100 * test.high:+.2f} (bootstrap), {p} (sign-flip){effect}; {test.system} better "
        f"on {test.wins:,}, equal on {test.ties:,}, worse on {test.losses:,}. It asks about other queries and takes "
        "these seeds as they are"
    )


def _as_dict(compared: ComparedRuns, analysis: Analysis) -> dict[str, Any]:
    results, metrics = compared.results, analysis.metrics
    first = results.results[0]
    return {
        "dataset": first.dataset,
        "metric": first.main_metric,
        "queries": len(first.per_query),
        "runs": {
            arm: [_run(compared, arm, seed) for seed in range(1, len(of) + 1)] for arm, of in compared.runs.items()
        },
        "tir": next((_tir(item) for item in metrics.measured), None),
        "not_computable": next((absent.reason for absent in metrics.missing), None),
        "paired_tests": [asdict(comparison) for comparison in analysis.comparisons],
        "drilldown": [asdict(case) for case in _cases(compared, analysis)[:LIMIT]],
        "gates": gates_as_json(analysis.gates, analysis.outcomes) if analysis.gates else None,
        "caveats": list(results.caveats),
        "warnings": list(compared.warnings),
    }


def _run(compared: ComparedRuns, arm: str, seed: int) -> dict[str, Any]:
    run = compared.runs[arm][seed - 1]
    (result,) = (r for r in compared.results.results if (r.config_name, r.seed) == (arm, seed))
    facts = {"depth": run.depth, "hash": run.digest, "missing_queries": list(run.missing)}
    return {"seed": seed, "path": str(run.path), **facts, "scores": result.aggregate}


def _tir(item: Interference) -> dict[str, Any]:
    return {
        "mean": item.mean,
        "std": item.std,
        "per_seed": list(item.per_seed),
        "seeds": list(item.seeds),
        "left_out": list(item.left_out),
        "delta": item.delta,
        "rule": item.rule,
        "label": item.crossed.label if item.crossed else None,
        "interval": item.crossed.as_json() | {"confidence": item.crossed.confidence} if item.crossed else None,
    }


def _cases(compared: ComparedRuns, analysis: Analysis) -> tuple[QueryCase, ...]:
    """None where TIR is not computable."""
    return analysis.cases.get((compared.pair, compared.results.results[0].dataset), ())
