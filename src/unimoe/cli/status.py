"""``unimoe status``: what an experiment, or a run on a cluster, has done, is doing and has left."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unimoe.cli.options import DEFAULT_STORE
from unimoe.core.console import stdout
from unimoe.core.errors import MissingPartError, first_few

if TYPE_CHECKING:
    from rich.console import Group

_EVERY = 5.0  # seconds between two looks, which is how often drivers write
_PATIENCE = 10.0  # seconds for which a store may be out of reach


def status(
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="An experiment's folder, or what --store named.")
    ] = DEFAULT_STORE,
    watch: Annotated[bool, typer.Option("--watch", help="Show it until no driver runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, with --watch one a line.")] = False,
) -> None:
    """Show what an experiment has done so far, or what runs with --engine ray have done, are doing and have left.

    Of an experiment's folder each line has an arm and seed, its training, and its scores; of a study that has no arm
    yet, a setting on dev. Of a store each line has an evaluation with its items (pairs or texts) done, the units that
    workers compute now, what failed, what is left, and the hours to go at the rate so far. The exit code is 4 where
    something failed or was set aside.
    """
    from rich.live import Live

    from unimoe.core.io import find_files

    folder = Path(store)
    places = find_files(folder, "*/seed_*") or find_files(folder, "tuning/*/*/seed_*") if folder.is_dir() else []
    if places:  # an experiment of this machine, not a store
        _print_experiment(folder, places, as_json)
        return
    found: dict[str, Any] = {}
    if watch and not as_json:
        with Live(console=stdout, auto_refresh=False) as live:
            for found in _looks(store, watch):
                live.update(_tables(found), refresh=True)
    else:
        for found in _looks(store, watch):
            if as_json:
                stdout.out(json.dumps(found, allow_nan=False))
            else:
                stdout.print(_tables(found))
    if found["failed"]:
        failed = [one["what"] for one in found["progress"] if one["state"] == "failed" or one["failed"]]
        raise MissingPartError(f"failed, wholly or in part: {'; '.join(failed)}")


def _looks(store: str, watch: bool) -> Iterator[dict[str, Any]]:
    """Yield the state of a store; to ``watch`` it, again and again while a driver runs."""
    from unimoe.cluster.board import read_status
    from unimoe.cluster.units import UnitStore

    place = UnitStore(store, patience=_PATIENCE)
    yield (found := read_status(place))
    while watch and found["running"]:
        time.sleep(_EVERY)
        yield (found := read_status(place))


def _tables(found: dict[str, Any]) -> Group:
    """Return the evaluations, their failures and the drivers as tables."""
    from rich.console import Group
    from rich.table import Table

    work = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("evaluation", "state", "done", "running", "failed", "left", "hours to go"):
        work.add_column(name, justify="left" if name in ("evaluation", "state") else "right", overflow="fold")
    for one in found["progress"]:
        done, hours = f"{one['done']:,}", one["hours"]
        work.add_row(
            one["what"],
            one["state"],
            done if one["items"] is None else f"{done} of {one['items']:,}",
            str(one["running"]),
            str(len(one["failed"])),
            "?" if one["left"] is None else f"{one['left']:,}",
            "" if hours is None else f"{hours:.1f}" if hours >= 0.1 else "under .1",
        )
    drivers = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("driver", "on", "state", "workers", "last seen"):
        drivers.add_column(name, justify="right" if name == "workers" else "left", overflow="fold")
    for one in found["drivers"]:
        seen = f"{one['seconds_ago']:,.0f} s ago"
        drivers.add_row(one["name"], one["machine"], one["state"], str(one["workers"]), seen)
    reasons = [f"{one['what']}: {reason}" for one in found["progress"] for reason in one["failed"]]
    return Group(work, "", *reasons, *([""] if reasons else []), drivers)


def _print_experiment(folder: Path, places: list[Path], as_json: bool) -> None:
    """Print the arms or settings of an experiment's folder: steps trained, and the main score of each result."""
    from unimoe.core.io import find_files
    from unimoe.results import arm_dir, read_result, result_files
    from unimoe.results.comparability import caveats_of
    from unimoe.results.logs import read_logs

    results = [read_result(path) for path in result_files(folder)]
    logs = {root: read_logs(root) for root in {place.parent.parent for place in places}}  # a setting has its own folder
    arms: dict[str, dict[str, Any]] = {}
    for place in places:
        root, seed = place.parent.parent, place.name.removeprefix("seed_")
        log = logs[root].get((place.parent.name, int(seed) if seed.isdecimal() else None), ())
        steps = {record["step"] for record in log}  # a resumed training repeats some
        own = [one for one in results if arm_dir(folder, one.config_name, one.seed) == place]
        scores = {one.key: {one.main_metric: one.aggregate[one.main_metric]} for one in own}
        # A translator in training keeps its best checkpoint there, with its state.
        done = bool(find_files(place, "checkpoint/*")) and not (place / "state.safetensors").exists()
        name = place.parent.name if root == folder else root.relative_to(folder).as_posix()
        caveats = {one.key: caveats_of(one) for one in own}
        known = {"steps": len(steps), "trained": done, "results": scores, "caveats": caveats}
        arms[f"{name}, {place.name}"] = known
    if as_json:
        stdout.out(json.dumps(arms))
        return
    for name, arm in arms.items():
        training = "trained" if arm["trained"] else f"{arm['steps']} steps so far" if arm["steps"] else ""
        found = (f"{key} {metric} {value:.4f}" for key, by in arm["results"].items() for metric, value in by.items())
        stdout.print("  ".join(filter(None, [name, training, *found])), soft_wrap=True)
    said = dict.fromkeys(line for arm in arms.values() for lines in arm["caveats"].values() for line in lines)
    for line in said:
        names = [name for name, arm in arms.items() if any(line in lines for lines in arm["caveats"].values())]
        stdout.print(f"caveat: {line} ({first_few(names)})", soft_wrap=True)
