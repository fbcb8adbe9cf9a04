"""A comparison kept in a folder: its results, its gates, and a marker that says what it compares and tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from unimoe.analysis.gates.definitions import Registration
from unimoe.analysis.gates.registration import REGISTERED, register, registered_in
from unimoe.core.errors import DataError
from unimoe.core.io import Strict, hash_json, read_json, write_json
from unimoe.results import (
    DrillDown,
    EvalResult,
    drilldown_path,
    read_drilldown,
    result_files,
    result_path,
    write_result,
)
from unimoe.results.folder import Results

SUBFOLDER = "analysis"  # of an output folder, with its report
MARKER = "comparison.json"  # says what a folder compares, and that nothing else made the results there

Test: TypeAlias = tuple[str, str, str]  # ``task/dataset``, system and baseline


class _Comparison(Strict):
    gates: dict[str, Any] | None
    results: dict[str, dict[str, Any]]  # what makes each the same, by its place
    tests: list[Test] | None = None


def keep(
    results: Results,
    gates: Registration | None,
    tests: Iterable[Test],
    *,
    overwrite: bool,
    source: Path | None = None,
) -> Registration | None:
    """Write results to their ``output_dir``, with the gates that judge them, and return the gates registered there.

    The tests are written too, so that an analysis of the folder has the same family of them; other tests of the same
    results are no other comparison.

    Sidecars come from the folder ``source`` where the results hold no details of queries.

    Raises:
        DataError: the folder holds results of something else, or another comparison that ``overwrite`` does not allow
            to replace.
    """
    folder = results.output_dir
    facts = {  # what makes two comparisons the same
        "gates": None if gates is None else {name: gate.model_dump(mode="json") for name, gate in gates.gates.items()},
        "results": {_place(result): _content(result) for result in results.everything},
    }
    if (folder / MARKER).exists():
        there = _marker(folder)
        difference = _difference(there, facts)
        if difference and not overwrite:
            raise DataError(
                f"{folder} holds another comparison: {difference}; choose another --output-dir, or --overwrite"
            )
        if difference:
            _remove(folder, there.results)
    elif result_files(folder):
        raise DataError(f"{folder} holds results that no comparison made; choose another --output-dir")
    if gates is not None and not (folder / MARKER).exists():
        register(gates, folder)
    write_json(folder / MARKER, facts | {"tests": list(tests)})
    for result in results.everything:
        write_result(folder, result, _detail(results, result, source))
    return registered_in(folder)


def tests_kept(folder: Path) -> list[Test] | None:
    """Return what the comparison kept in a folder tests; None where there is none, or one of an earlier version."""
    return _marker(folder).tests if (folder / MARKER).exists() else None


def _marker(folder: Path) -> _Comparison:
    return read_json(folder / MARKER, _Comparison, "choose another --output-dir")


def _detail(results: Results, result: EvalResult, source: Path | None) -> DrillDown | None:
    if results.details:
        return DrillDown(queries=dict(results.details[result.config_name, result.seed, result.key]))
    there = None if source is None else source / _place(result)
    return read_drilldown(there) if there and drilldown_path(there).exists() else None


def _place(result: EvalResult) -> str:
    """Return where a result lies below the folder."""
    return result_path(Path(), result.config_name, result.seed, result.task, result.dataset).as_posix()


def _content(result: EvalResult) -> dict[str, Any]:
    hashes = result.provenance.hashes
    return {
        "run": hashes.get("run") or hashes.get("checkpoint"),
        "qrels": hashes.get("qrels"),
        "main metric": result.main_metric,
        "metrics": sorted(result.aggregate),
        "relevance level": result.relevance_level,
        "paired seeds": result.config.get("paired_seeds"),
        **result.identity.model_dump(),
        "caveats": result.caveats,
        "scores": hash_json([result.per_query, result.per_query_metrics]),
    }


def _difference(there: _Comparison, here: Mapping[str, Any]) -> str:
    """Name the first difference of two comparisons; empty where they are the same."""
    held, wanted = there.results, here["results"]
    for what, places in (("lacks", wanted.keys() - held.keys()), ("also holds", held.keys() - wanted.keys())):
        if places:
            return f"it {what} {min(places)}"
    for place, content in wanted.items():
        for name, value in content.items():
            if held[place].get(name) != value:
                return f"{name} of {place} is {held[place].get(name)!r} there, {value!r} here"
    return "" if there.gates == here["gates"] else f"{REGISTERED} holds other gates"


def _remove(folder: Path, places: Mapping[str, Any]) -> None:
    """Remove a comparison: its analysis, its results, its gates, and the marker last, which says whose they are."""
    _remove_report(folder)
    for path in result_files(folder):
        if path.relative_to(folder).as_posix() in places:
            path.unlink()
            drilldown_path(path).unlink(missing_ok=True)
            for parent in path.parents[:4]:
                if not any(parent.iterdir()):
                    parent.rmdir()
    (folder / REGISTERED).unlink(missing_ok=True)
    (folder / MARKER).unlink(missing_ok=True)


def _remove_report(output_dir: Path) -> None:
    """Remove what ``report.write_report`` wrote; other files in the folder stay."""
    folder = output_dir / SUBFOLDER
    for name in ("report.html", "report.md"):
        (folder / name).unlink(missing_ok=True)
    for name in ("tables", "figures"):
        shutil.rmtree(folder / name, ignore_errors=True)
