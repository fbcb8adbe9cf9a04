"""Writes what an evaluation found, whatever was evaluated: result, drill-down, sidecars, TREC run, judgments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unimoe.description import sidecar_path
from unimoe.evaluation.measurement import drilldown
from unimoe.evaluation.measuring import Found
from unimoe.io import write_json
from unimoe.provenance import collect_provenance
from unimoe.results import (
    EvalResult,
    Identity,
    Task,
    TrainingBudget,
    by_query_id,
    result_path,
    run_path,
    safe_name,
    write_result,
)
from unimoe.trec import write_qrels, write_run


def result_of(
    found: Found,
    *,
    arm: str,
    seed: int | None,
    task: Task,
    dataset: str,
    identity: Identity,
    hashes: Mapping[str, str],
    config: Mapping[str, Any],
    device: str,
    dtype: str | None,
    given: Sequence[str],
    caveats: Sequence[str] = (),
    task_type: str | None = None,
    training: TrainingBudget | None = None,
) -> EvalResult:
    """What was found as a result file holds it; for the arguments see ``EvalResult`` and ``Provenance``."""
    per_query = dict(found.scores.per_query) if found.scores else {found.main_metric: {}}
    return EvalResult(
        config_name=arm,
        seed=seed,
        task=task,
        dataset=dataset,
        task_type=task_type,
        main_metric=found.main_metric,
        aggregate=found.aggregate,
        per_query=per_query.pop(found.main_metric),
        per_query_metrics={name: by_query_id(values) for name, values in per_query.items()},
        unjudged_queries=found.scores.unjudged_queries if found.scores else [],
        first_stage=found.first_stage,
        caveats=list(caveats),
        identity=identity,
        training=training,
        config=dict(config),
        relevance_level=found.relevance_level,
        provenance=collect_provenance(
            device=device,
            dtype=dtype,
            hashes=hashes,
            wall_time_s=found.seconds,
            items=found.items,
            token_budget=found.token_budget,
            given=given,
        ),
    )


def write_found(output_dir: Path, result: EvalResult, found: Found) -> EvalResult:
    """Write a result and all that stands beside it; the result comes last, so that its presence means completeness.

    Tasks without queries have neither run nor judgments.

    Raises:
        DataError: the place of the result is taken by another measurement.
    """
    place = (output_dir, result.config_name, result.seed, result.task, result.dataset)
    if found.scores is not None:
        write_run(run_path(*place), found.run, result.config_name)
        # So that any tool can score the runs.
        name = safe_name(f"{result.dataset}-{result.identity.split}")
        _write_judgments(output_dir / "qrels" / f"{name}.qrels", found)
    for suffix, content in found.sidecars.items():
        write_json(result_path(*place).with_suffix(suffix), content)
    write_result(output_dir, result, drilldown(found.queries, found.qrels, found.run) if found.scores else None)
    return result


def _write_judgments(path: Path, found: Found) -> None:
    """Write judgments, and beside them from which grade on they were counted, where that is not 1."""
    write_qrels(path, found.qrels)
    if found.relevance_level != 1:
        write_json(sidecar_path(path), {"relevance_level": found.relevance_level})
    else:
        sidecar_path(path).unlink(missing_ok=True)
