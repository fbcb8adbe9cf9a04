"""A comparison saved in a folder: results, gates, a marker of what it compares and tests, and how p is corrected."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from pydantic import Field

from unimoe.analysis.gates.definitions import Registration
from unimoe.analysis.gates.registration import REGISTERED, register
from unimoe.analysis.statistics.estimates import holm
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import Strict, hash_json, read_json, write_json
from unimoe.results import DrillDown, drilldown_path, read_drilldown, result_files, result_path, write_result
from unimoe.results.clusters import Clusters, Groups
from unimoe.results.folder import Results

Correction = Literal["holm", "bh", "bonferroni", "none"]
TestFamily = Literal["table", "dataset", "baseline"]

NAMES: dict[Correction, str] = {"holm": "Holm", "bh": "BH", "bonferroni": "Bonferroni", "none": ""}
OF_FAMILY: dict[TestFamily, str] = {"table": "", "dataset": " on each dataset", "baseline": " against the baseline"}

SUBFOLDER = "analysis"  # of an output folder, with its report
MARKER = "comparison.json"  # says what a folder compares, and that nothing else made the results there

CORRECTED = ("correction", "family", "chosen", "simultaneous")  # how a comparison corrects p, and saves that it does

Test: TypeAlias = tuple[str, str, str]  # ``task/dataset``, system and baseline


class Saved(Strict):
    """The marker: what makes two comparisons the same, and how this one is tested."""

    gates: str | None  # hash of their content
    results: dict[str, str]  # hash of each without the circumstances of its making, by its place below the folder
    tests: list[Test] | None = None
    correction: Correction = "holm"
    family: TestFamily = "table"
    chosen: dict[str, str | int | list[str]] = Field(default={})
    simultaneous: bool = False


def save_comparison(
    results: Results,
    gates: Registration | None,
    tests: Sequence[Test],
    *,
    overwrite: bool,
    source: Path | None = None,
    **tested: Any,
) -> None:
    """Write results to their ``output_dir``, with the gates that judge them and the tests between them.

    ``tested`` are the fields of ``Saved`` that say how p is corrected.

    An analysis of the folder then has the same family of tests, corrected in the same way; other tests of the same
    results are no other comparison. Sidecars come from the folder ``source`` where the results hold no details of
    queries.

    Raises:
        DataError: the folder holds results of something else, or another comparison that ``overwrite`` does not allow
            to replace.
    """
    folder = results.output_dir
    places = {result_path(Path(), r.config_name, r.seed, r.task, r.dataset).as_posix(): r for r in results.everything}
    here = Saved(
        gates=hash_json({n: gate.model_dump(mode="json") for n, gate in gates.gates.items()}) if gates else None,
        results={
            place: hash_json([r.model_dump(mode="json", exclude={"provenance", "checks"}), r.provenance.hashes])
            for place, r in places.items()
        },
        tests=list(tests),
        **tested,
    )
    there = saved_comparison(folder)
    if there is None and result_files(folder):
        raise DataError(f"{folder} holds results that no comparison made; choose another --output-dir")
    if there is not None and (difference := _difference(there, here)):
        if not overwrite:
            raise DataError(
                f"{folder} holds another comparison: {difference}; choose another --output-dir, or --overwrite"
            )
        _remove(folder, there)
    if gates is not None and not (folder / MARKER).exists():
        register(gates, folder)
    write_json(folder / MARKER, here.model_dump(mode="json"))
    for name in (Clusters.FILE, Groups.FILE):
        (folder / name).unlink(missing_ok=True)
    for of_queries in filter(None, (results.clusters, results.groups)):
        of_queries.write(folder, dict.fromkeys(query for r in results.firsts for query in r.per_query))
    for place, result in places.items():
        detail = None
        if results.details:
            detail = DrillDown(queries=dict(results.details[result.config_name, result.seed, result.key]))
        elif source is not None and drilldown_path(source / place).exists():
            detail = read_drilldown(source / place)
        write_result(folder, result, detail)


def saved_comparison(folder: Path) -> Saved | None:
    """Return what the marker in a folder says; None where there is none."""
    marker = folder / MARKER
    remedy = f"delete {folder}, or choose another --output-dir, and compare again"
    return read_json(marker, Saved, remedy) if marker.exists() else None


def _difference(there: Saved, here: Saved) -> str:
    """Name the first difference of two comparisons; empty where they are the same."""
    for place in sorted({*there.results, *here.results}):
        held, wanted = there.results.get(place), here.results.get(place)
        if held != wanted:
            return f"it {'lacks' if held is None else 'also holds' if wanted is None else 'has another'} {place}"
    return "" if there.gates == here.gates else f"{REGISTERED} holds other gates"


def _remove(folder: Path, saved: Saved) -> None:
    """Remove a comparison: its report, its results, its gates, and the marker last, which says what they belong to."""
    for name in ("report.html", "report.md"):
        (folder / SUBFOLDER / name).unlink(missing_ok=True)
    for name in ("tables", "figures"):
        shutil.rmtree(folder / SUBFOLDER / name, ignore_errors=True)
    for path in result_files(folder):
        if path.relative_to(folder).as_posix() in saved.results:
            path.unlink()
            drilldown_path(path).unlink(missing_ok=True)
            for parent in path.parents[:4]:  # as far as they are empty now
                if not any(parent.iterdir()):
                    parent.rmdir()
    for name in (REGISTERED, Clusters.FILE, Groups.FILE, MARKER):
        (folder / name).unlink(missing_ok=True)


def adjusted(p_values: Sequence[float], correction: Correction) -> list[float]:
    """Correct the p-values of one family: Holm (1979), Benjamini & Hochberg (1995), Bonferroni, or not at all."""
    if correction == "holm":
        return holm(p_values)
    if correction == "bonferroni":
        return [min(1.0, len(p_values) * p) for p in p_values]
    if correction == "bh" and p_values:
        from scipy.stats import false_discovery_control  # takes a while to import

        return [float(p) for p in false_discovery_control(np.asarray(p_values))]
    return list(p_values)


def check_choice(name: str, value: str | None, choices: Any) -> None:
    """Refuse a value that is neither None nor one of the ``choices``, a Literal, by a UsageError that lists them."""
    if value is not None and value not in get_args(choices):
        raise UsageError(f"{name} {value!r}: unknown; use {' or '.join(get_args(choices))}")
