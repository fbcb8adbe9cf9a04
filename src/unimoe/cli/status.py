"""``unimoe status``: what an experiment, or a run on a cluster, has done, is doing and has left."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimoe.cli.engine import DEFAULT_STORE
from unimoe.core.console import stdout
from unimoe.core.errors import MissingPartError

if TYPE_CHECKING:
    from rich.console import Group

    from unimoe.cluster.board import Progress, Status

_EVERY = 5.0
"""Seconds between two looks, which is how often drivers write."""

_FILE_WIDTH = 500
"""Columns of a line that no terminal shows, so that no name is broken."""

_PATIENCE = 10.0
"""Seconds for which a store may be out of reach."""


def status(
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="An experiment's folder, or what --store named.")
    ] = DEFAULT_STORE,
    watch: Annotated[bool, typer.Option("--watch", help="Show it until no driver runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with --watch one a line.")] = False,
) -> None:
    """Show what an experiment has done so far, or what runs with --engine ray have done, are doing and have left.

    Of an experiment's folder each line has an arm and seed, its training, and its scores. Of a store each line has an
    evaluation with its items (pairs or texts) done, the units that workers compute now, what failed,
    what is left, and the hours to go at the rate so far. The exit code is 4 where something failed or was set aside.
    """
    from unimoe.cluster.board import read_status
    from unimoe.cluster.units import UnitStore
    from unimoe.core.io import find_files

    folder = Path(store)
    if folder.is_dir() and find_files(folder, "*/seed_*"):  # an experiment of this machine, not a store
        _print_experiment(folder, as_json)
        return
    place = UnitStore(store, patience=_PATIENCE)
    found = read_status(place)
    if as_json or not watch:
        _print(found, as_json)
        while watch and found.runs:
            time.sleep(_EVERY)
            found = read_status(place)
            _print(found, as_json)
    else:
        from rich.live import Live

        with Live(_tables(found), console=stdout, auto_refresh=False) as live:
            while found.runs:
                time.sleep(_EVERY)
                found = read_status(place)
                live.update(_tables(found), refresh=True)
    if found.failed:
        failed = [one.what for one in found.progress if one.state == "failed" or one.failed]
        raise MissingPartError(f"failed, wholly or in part: {'; '.join(failed)}")


def _print(found: Status, as_json: bool) -> None:
    if as_json:
        stdout.out(json.dumps(found.as_json(), allow_nan=False))
    else:
        from rich.console import Console

        wide = Console(highlight=False, markup=False, width=_FILE_WIDTH)
        (stdout if stdout.is_terminal else wide).print(_tables(found))


def _tables(found: Status) -> Group:
    """Return the evaluations, their failures and the drivers as tables."""
    from rich.console import Group
    from rich.table import Table

    work = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("evaluation", "state", "done", "running", "failed", "left", "hours to go"):
        work.add_column(name, justify="left" if name in ("evaluation", "state") else "right", overflow="fold")
    for one in found.progress:
        work.add_row(one.what, one.state, *_numbers(one))
    drivers = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("driver", "on", "state", "workers", "last seen"):
        drivers.add_column(name, justify="right" if name == "workers" else "left", overflow="fold")
    for driver in found.drivers:
        drivers.add_row(
            driver.name, driver.machine, driver.state, str(driver.workers), f"{driver.seconds_ago:,.0f} s ago"
        )
    reasons = [f"{one.what}: {reason}" for one in found.progress for reason in one.failed]
    return Group(work, "", *reasons, *([""] if reasons else []), drivers)


def _numbers(one: Progress) -> tuple[str, ...]:
    return (
        f"{one.done:,}" if one.items is None else f"{one.done:,} of {one.items:,}",
        str(one.running),
        str(len(one.failed)),
        "?" if one.left is None else f"{one.left:,}",
        "" if one.hours is None else f"{one.hours:.1f}" if one.hours >= 0.1 else "under .1",
    )


def _print_experiment(folder: Path, as_json: bool) -> None:
    """Print the arms of an experiment's folder: steps trained, and the main score of each result."""
    from unimoe.core.io import find_files
    from unimoe.results import arm_dir, read_result, result_files

    results = [read_result(path) for path in result_files(folder)]
    arms: dict[str, dict[str, Any]] = {}
    for place in find_files(folder, "*/seed_*"):
        log = place / "logs" / "train.jsonl"
        steps = log.read_text("utf-8").splitlines() if log.exists() else []
        own = [one for one in results if arm_dir(folder, one.config_name, one.seed) == place]
        scores = {one.key: {one.main_metric: one.aggregate[one.main_metric]} for one in own}
        done = bool(find_files(place, "checkpoint*/unimoe.json"))
        arms[f"{place.parent.name}, {place.name}"] = {"steps": len(steps), "trained": done, "results": scores}
    if as_json:
        stdout.out(json.dumps(arms))
        return
    for name, arm in arms.items():
        training = "trained" if arm["trained"] else f"{arm['steps']} steps so far" if arm["steps"] else ""
        found = (f"{key} {metric} {value:.4f}" for key, by in arm["results"].items() for metric, value in by.items())
        stdout.print("  ".join(filter(None, [name, training, *found])), soft_wrap=True)
