"""Kill every long command at random moments, resume it until it ends, and compare all that it left with a quiet run.

    uv run benchmarks/chaos.py [--kills N] [--seed N] [--minutes M] [--only NAME]

Each command runs at the smallest honest size, on models of a few thousand weights. A quiet run comes first. Then, until
the kills are spent or the time is up, the commands take turns: one is killed by SIGKILL at a random moment, with all
its processes, started again, perhaps killed again, and in the end left alone. Its results, checkpoints, tables and
reports must equal those of the quiet run byte for byte but for times and memory; no unit that was saved may be computed
again; no temporary file may stay. Then each command meets Ctrl-C and SIGTERM (exit code 130 after one line), a
folder that cannot be written, a full disk, a second process in its folder, and a clock that was set back while it was
away.

Commands run in forks of this process, which has imported the libraries, so that random moments hit their work. The last
line is one JSON object: ``kills``, ``equal`` (of the runs that were resumed), ``lost_units_max`` (by one kill).
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import pkgutil
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.path.append(str(Path(__file__).parents[1] / "tests"))

from chaos_commands import commands
from chaos_runs import Command, Ending, OutOfTimeError, Place

LIBRARIES = (
    "matplotlib.pyplot", "mteb", "openai", "pandas", "peft", "ray", "sentence_transformers", "transformers"
)  # fmt: skip

DAY = 24 * 3600.0

_AWAKE = 0.1  # seconds after a fork, by which a command answers to signals
REFUSED = (2, 3)
"""Exit codes of a command that refuses what it is given."""


@dataclass
class Tally:
    """What was found."""

    kills: dict[str, int] = field(default_factory=dict)
    resumed: int = 0
    equal: int = 0
    lost_units: int = 0
    lost_units_max: int = 0
    disturbed: int = 0
    faults: int = 0


class Chaos:
    """The rounds of one harness.

    Args:
        root: a folder for everything.
        seed: of moments and choices.
        minutes: that the disturbances have, after the quiet runs.
        only: names of commands; none for all.
    """

    def __init__(self, root: Path, seed: int, minutes: float, only: Sequence[str]) -> None:
        self.root, self.random, self.tally = root, random.Random(seed), Tally()
        self.place, self.minutes = Place(root / "work"), minutes
        made = commands(root / "inputs", root / "work")
        self.commands = [command for command in made if not only or command.name in only]
        self.seconds: dict[str, float] = {}
        self.quiet: dict[str, dict[str, bytes]] = {}
        self.units: dict[str, Counter[str]] = {}

    def complain(self, command: Command, what: str) -> None:
        """Print a fault, and keep a copy of the place."""
        self.tally.faults += 1
        kept = self.root / f"fault-{self.tally.faults}"
        shutil.copytree(self.place.folder, kept, ignore_dangling_symlinks=True)
        print(f"FAULT {command.name}, {what} ({kept})", flush=True)

    def finished(self, command: Command) -> Path:
        """Return where the place of a command's quiet run is kept."""
        return self.root / "quiet" / command.name

    def clear(self, command: Command, *, warm: bool = True) -> None:
        """Begin again with a command; with the cache of the quiet run where ``warm``."""
        self.place.clear(command, self.finished(command) / "cache" if warm else None)

    def run(self, command: Command, moment: float = 0.0, number: int | None = None, clock: float = 0.0) -> Ending:
        """Start a command and wait for it, far longer than it should take."""
        patience = 120 + 20 * self.seconds.get(command.name, 30.0)
        return self.place.wait(self.place.start(command, clock=clock), patience, moment, number)

    def run_quietly(self, command: Command) -> bool:
        """Run a command twice undisturbed: the second time with a warm cache, which gives the seconds."""
        self.clear(command, warm=False)
        ending = self.run(command)
        if ending.code:
            self.complain(command, f"quiet: ends with {ending.code}: {ending.last}")
            return False
        self.quiet[command.name], self.units[command.name] = self.place.files(), self.place.units()
        shutil.move(self.place.folder, self.finished(command))
        self.clear(command)
        self.seconds[command.name] = self.run(command).seconds
        self.ends_alike(command, "quiet again")
        units = self.units[command.name].total()
        print(f"{command.name}: {self.seconds[command.name]:.1f} s, {units} units", flush=True)
        return True

    def ends_alike(self, command: Command, what: str) -> bool:
        """Compare what a run left with the quiet run."""
        expected, found, left = self.quiet[command.name], self.place.files(), self.place.temporary()
        different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        if different:
            self.complain(command, f"{what}: {', '.join(different[:3])} differ")
        if left:
            self.complain(command, f"{what}: temporary files stay: {', '.join(left[:3])}")
        return not different and not left

    def resume(self, command: Command, what: str, clock: float = 0.0) -> bool:
        """Run a command to its end, and compare what it left with the quiet run."""
        ending = self.run(command, clock=clock)
        if ending.code:
            self.complain(command, f"{what}: ends with {ending.code}: {ending.last}")
        return not ending.code and self.ends_alike(command, what)

    def kill(self, command: Command) -> None:
        """Kill a command two to eight times, and resume it to its end."""
        self.clear(command, warm=self.random.random() < 0.8 and not command.requests)  # a warm cache has the answers
        kills, whole = 0, self.seconds[command.name]
        left = whole
        for _ in range(self.random.randint(2, 8)):
            moment = self.random.uniform(0.0, left)
            kills += self.run(command, moment, signal.SIGKILL).code == -signal.SIGKILL
            left = max(left - moment, whole / 3)
        self.tally.kills[command.name] += kills
        equal = self.resume(command, f"after {kills} kills")
        self.tally.resumed += 1
        if not equal:
            return
        self.tally.equal += 1
        more = self.place.units() - self.units[command.name]
        self.tally.lost_units += more.total()
        self.tally.lost_units_max = max(self.tally.lost_units_max, math.ceil(more.total() / max(kills, 1)))
        if more.total() > kills * max(1, command.requests):
            self.complain(command, f"after {kills} kills: done again {dict(more)}")

    def stop(self, command: Command, number: signal.Signals) -> None:
        """Ask a command to end, and resume it."""
        self.clear(command)
        ending = self.run(command, max(_AWAKE, self.seconds[command.name] * self.random.uniform(0.0, 0.9)), number)
        what = f"after {number.name}"
        if ending.code != 0 and (ending.code != 130 or not _is_one_line(ending, "error: stopped")):
            self.complain(command, f"{what}: ends with {ending.code}: {ending.last}")
        if self.place.temporary():
            self.complain(command, f"{what}: temporary files stay: {self.place.temporary()[:3]}")
        self.resume(command, what)

    def interrupt(self, command: Command) -> None:
        """Send Ctrl-C."""
        self.stop(command, signal.SIGINT)

    def terminate(self, command: Command) -> None:
        """Send SIGTERM."""
        self.stop(command, signal.SIGTERM)

    def forbid(self, command: Command) -> None:
        """Give a command an output folder that cannot be made; the superuser may write into those of others."""
        self.clear(command)
        ending = self.place.wait(self.place.start(command, out="/sys/unimoe"), 120)
        if ending.code not in REFUSED or not _is_one_line(ending, "error: ") or "/sys/" not in ending.last:
            self.complain(command, f"folder that cannot be made: ends with {ending.code}: {ending.last}")

    def fill(self, command: Command) -> None:
        """Give a command a disk that fills up, where this process may mount a small one; then room, and resume it."""
        self.clear(command)
        disk, out = self.place.disk, self.place.out
        before = sum(path.stat().st_size for path in out.rglob("*"))
        size = before + max(4096, (sum(map(len, self.quiet[command.name].values())) - before) // 2)
        if not _mounted(f"size={size}", disk):
            return
        try:
            if command.finished:
                shutil.copytree(command.finished, out)
            ending = self.run(command)
            if ending.code not in (0, *REFUSED) or (ending.code and not _is_one_line(ending, "error: ")):
                self.complain(command, f"full disk: ends with {ending.code}: {ending.last}")
            _mounted("remount,size=1g", disk)
            self.resume(command, "after a full disk")
        finally:
            subprocess.run(["umount", "-l", disk], check=True)

    def repeat(self, command: Command) -> None:
        """Run a command twice at a time in one folder."""
        self.clear(command)
        first = self.place.start(command)
        time.sleep(self.seconds[command.name] * self.random.uniform(0.0, 0.5))
        second = self.place.start(command)
        endings = [self.place.wait(child, 120 + 20 * self.seconds[command.name]) for child in (first, second)]
        # Each may hold a collection that the other asks for later: then both end with 4, and name what they lack.
        if any(ending.code not in (0, 4, *REFUSED) for ending in endings) or "Traceback" in endings[-1].said:
            codes = [ending.code for ending in endings]
            self.complain(command, f"two at a time: end with {codes}: {endings[-1].last}")
        self.resume(command, "after two at a time")

    def turn_back(self, command: Command) -> None:
        """Kill a command, and resume it with its clock set back by a day: all files are of tomorrow then."""
        self.clear(command)
        self.run(command, self.random.uniform(0.0, self.seconds[command.name]), signal.SIGKILL)
        self.resume(command, "after its clock was set back", clock=-DAY)

    def rounds(self, kills: int) -> None:
        """Run every command quietly; then kill them in turn, a tenth of the kills each or more, and do the rest."""
        (self.root / "quiet").mkdir()
        chosen = [command for command in self.commands if self.run_quietly(command)]
        self.place.deadline = time.monotonic() + 60 * self.minutes
        share = math.ceil(kills / max(1, min(10, len(chosen))))
        others = [self.interrupt, self.terminate, self.forbid, self.fill, self.repeat, self.turn_back]
        waiting = {command.name: self.random.sample(others, len(others)) for command in chosen}
        self.tally.kills = dict.fromkeys(waiting, 0)
        while short := [command for command in chosen if self.tally.kills[command.name] < share]:
            for command in short:
                self.kill(command)
            print(f"{sum(self.tally.kills.values())} kills, {self.tally.faults} faults", flush=True)
        for number in range(len(others)):
            for command in chosen:
                waiting[command.name][number](command)
                self.tally.disturbed += 1
            print(f"{number + 1} of {len(others)} other rounds, {self.tally.faults} faults", flush=True)


def _is_one_line(ending: Ending, begin: str) -> bool:
    return ending.last.startswith(begin) and "Traceback" not in ending.said


def _mounted(options: str, folder: Path) -> bool:
    mounting = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(mounting, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _import_libraries() -> None:
    """Import what commands import, so that forks begin with their work."""
    import unimoe

    for module in pkgutil.walk_packages(unimoe.__path__, "unimoe."):
        if module.name != "unimoe.__main__":
            importlib.import_module(module.name)
    for library in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(library)


def main() -> None:
    """Run the harness."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200, help="SIGKILLs in all, a tenth of them for each command")
    parser.add_argument("--seed", type=int, default=0, help="of moments and choices")
    parser.add_argument("--minutes", type=float, default=1e6, help="after the quiet runs, whatever is missing then")
    parser.add_argument("--only", action="append", default=[], help="a command; may be repeated")
    given = parser.parse_args()
    begin = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="unimoe-chaos-"))
    _import_libraries()
    chaos = Chaos(root, given.seed, given.minutes, given.only)
    sys.path.append(str(root / "inputs"))  # for functions that commands name
    with suppress(OutOfTimeError):
        chaos.rounds(given.kills)
    tally = chaos.tally
    if tally.faults:
        print(f"faults kept in {root}")
    else:
        shutil.rmtree(root)
    facts = {
        "kills": sum(tally.kills.values()), "kills_by_command": tally.kills, "resumed": tally.resumed,
        "equal": tally.equal, "lost_units": tally.lost_units, "lost_units_max": tally.lost_units_max,
        "disturbed": tally.disturbed, "faults": tally.faults,
        "seed": given.seed, "minutes": round((time.monotonic() - begin) / 60, 1),
    }  # fmt: skip
    print(json.dumps(facts))
    sys.exit(bool(tally.faults) or not tally.resumed)


if __name__ == "__main__":
    main()
