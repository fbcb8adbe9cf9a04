"""Kill every long command at random moments, resume it until it ends, and compare all that it left with a quiet run.

    uv run benchmarks/chaos.py [--kills N] [--seed N] [--minutes M] [--only NAME]

Each command runs at the smallest honest size, on models of a few thousand weights. A quiet run comes first. Then, until
the kills are spent or the time is up, the commands take turns: one is killed by SIGKILL at a random moment, with all
its processes, started again, perhaps killed again, and in the end left alone. Its results, checkpoints, tables and
reports must equal those of the quiet run byte for byte but for ``EXCLUDED``; no unit that was saved may be computed
again; no temporary file may stay. Further rounds send Ctrl-C and SIGTERM (exit code 130 after one line), write into a
folder that cannot be written and onto a full disk, run a command twice at a time in one folder, and cut or change files
that a run left before it is started again: either the file is refused by name, or what depends on it is made again.

Commands run in forks of this process, which has imported the libraries, so that random moments hit their work. The last
line is one JSON object: ``kills``, ``equal`` (of the runs that were resumed), ``lost_units_max``,
``undetected_corruptions``.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
sys.path.append(str(Path(__file__).parents[1] / "tests"))

EXCLUDED = (
    "created", "registered", "wall_time_s", "items_per_s", "seconds", "ms_per_query", "pairs_per_s", "texts_per_s",
    "tokens_per_s", "rows_per_s", "date", "evaluation_time", "train_seconds",
    "max_rss_mib", "peak_mib", "modified", "total_flos", "checksum",
)  # fmt: skip
"""Keys of times and of memory, whose values may differ between a quiet run and a resumed one."""

COLUMNS = (
    "s",
    "s std",
    "seconds",
    "peak MB",
    "peak MB std",
    "ms/query",
    "ms/query std",
    "µs/query",
    "µs/query std",
    "ms",
    "ms std",
)
"""Columns of tables that hold times and memory."""

SKIPPED = re.compile(
    r"(^|/)(run\.json|.*\.lock|events\.out\..*|training_args\.bin|.*\.pdf|README\.md)$"
    r"|\.cache/|(^|/)cache/|\.mteb\.json$"
)
"""Files that only hold times, or that other programs stamp with times."""

UNITS = re.compile(
    r"(state\.safetensors|store\.json|shards/[^/]+\.json|results/.*\.json|checkpoint[^/]*|part[^/]*\.json)$"
)
"""What is written once for each unit of work."""

TEMPORARY = re.compile(r"\.tmp$|\.old$")


@dataclass(frozen=True)
class Command:
    """A long command.

    Attributes:
        name: of the command.
        arguments: of the command line, ``OUT`` in the place of its output folder.
    """

    name: str
    arguments: tuple[str, ...]


@dataclass
class Ending:
    """How a run ended.

    Attributes:
        code: the exit code, or minus the signal.
        seconds: that it took.
        said: its stderr.
    """

    code: int
    seconds: float
    said: str

    @property
    def last(self) -> str:
        """The last line of stderr."""
        return (self.said.strip().splitlines() or [""])[-1]


@dataclass
class Tally:
    """What was found."""

    kills: int = 0
    resumed: int = 0
    equal: int = 0
    lost_units_max: int = 0
    undetected: int = 0
    complaints: list[str] = field(default_factory=list)

    def complain(self, what: str) -> None:
        """Record a fault, and print it."""
        self.complaints.append(what)
        print(f"FAULT {what}", flush=True)


class Place:
    """Output folder and cache of one series of runs of a command."""

    def __init__(self, folder: Path, command: Command, cache: Path | None = None) -> None:
        self.folder, self.command = folder, command
        self.out, self.named = folder / "out", "out"
        self.journal = folder / "journal"
        folder.mkdir(parents=True)
        if cache is not None and cache.is_dir():
            shutil.copytree(cache, folder / "cache")

    def start(self, **environment: str) -> int:
        """Start the command in a fork with a session of its own, and return the process's id."""
        arguments = [part.replace("OUT", self.named) for part in self.command.arguments]
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            os.setsid()
            os.chdir(self.folder)
            log = os.open(self.folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.environ |= {"UNIMOE_CACHE": str(self.folder / "cache"), **environment}
            _write_down_replacements(self.journal)
            sys.argv = ["unimoe", *arguments]
            from unimoe.cli.main import main

            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def wait(self, child: int, limit: float, with_signal: int | None = None) -> Ending:
        """Wait for a run; after ``limit`` seconds send a signal, if one is given, to all its processes."""
        begin = time.monotonic()
        sent = False
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if with_signal is not None and not sent and time.monotonic() - begin >= limit:
                target = os.killpg if with_signal == signal.SIGKILL else os.kill
                target(child, with_signal)
                sent = True
            time.sleep(0.002)
        if with_signal == signal.SIGKILL:
            _kill_group(child)  # what the run has started
        code = os.waitstatus_to_exitcode(status)
        return Ending(code, time.monotonic() - begin, (self.folder / "stderr").read_text("utf-8", "replace"))

    def run(self, limit: float = 1e9, with_signal: int | None = None, **environment: str) -> Ending:
        """Start the command and wait for it."""
        return self.wait(self.start(**environment), limit, with_signal)

    def left(self) -> dict[str, bytes]:
        """Return the files of the output folder without times."""
        found = {}
        for path in sorted(self.out.rglob("*")):
            name = path.relative_to(self.out).as_posix()
            if path.is_file() and not SKIPPED.search(name):
                found[name] = _without_times(path, self.folder)
        return found

    def units(self) -> Counter[str]:
        """Return how often each unit of work was saved."""
        lines = self.journal.read_text("utf-8").splitlines() if self.journal.exists() else []
        return Counter(line for line in lines if UNITS.search(line))

    def temporary(self) -> list[str]:
        """Return temporary files that were left."""
        return [str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if TEMPORARY.search(path.name)]


def _write_down_replacements(journal: Path) -> None:
    """Append the name of every file or folder that is put into its place to a journal."""
    replace, root = os.replace, str(journal.parent)

    def recorded(source: Any, target: Any, **options: Any) -> None:
        replace(source, target, **options)
        name = os.fspath(target).removeprefix(root)
        with journal.open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")

    os.replace = recorded  # type: ignore[assignment]


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


_TIMES = re.compile(rf'(\\*"(?:{"|".join(EXCLUDED)})\\*": )(-?[0-9.e+-]+|\\*"[^"\\]*\\*"|null)')
_WORDS = re.compile(
    r"20\d\d-\d\d-\d\d[T ]?[0-9:.+Z]*"
    r"|\d[\d,]*(\.\d+)? (ms|s|min|MiB|pairs/s|texts/s|items/s|pairs per second|texts per second|seconds)\b"
    r"|(?<=hash )[0-9a-f]{16}"  # of a gate file, which holds the instant of its registration
    r'|(?<="checkpoint": ")[0-9a-f]{16}'  # of a head's file, which holds the seconds of its training
)
_UPRIGHT = re.compile(r"\\rotatebox|& s &")


def _without_times(path: Path, folder: Path) -> bytes:
    """Return a file's content without ``EXCLUDED`` and the columns of times and memory in tables."""
    content = path.read_bytes()
    if path.suffix == ".safetensors" and len(content) > 8:
        end = 8 + int.from_bytes(content[:8], "little")
        try:
            about = json.dumps(json.loads(content[8:end]), sort_keys=True)  # their order is another in each process
        except ValueError:
            return content
        return _plain(about, folder).encode() + content[end:]
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return content
    if path.suffix == ".tex" and _UPRIGHT.search(text):  # a comparison's table, whose numbers its .md has too
        text = re.sub(r"[\d.]+", "0", text)
    elif path.suffix in {".csv", ".md"}:
        text = "\n".join(_without_columns(text.split("\n"), path.suffix))
    return _plain(text, folder).encode()


def _plain(text: str, folder: Path) -> str:
    return _WORDS.sub("TIME", _TIMES.sub(r"\1TIME", text.replace(str(folder), "FOLDER")))


def _without_columns(lines: Sequence[str], suffix: str) -> Iterator[str]:
    """Yield the rows of tables without their columns of times and memory."""
    masked: list[int] = []
    for line in lines:
        fields = next(csv.reader([line]), []) if suffix == ".csv" else line.split("|")
        heads = [index for index, field in enumerate(fields) if field.strip() in COLUMNS]
        if heads:
            masked = heads
        yield "\t".join("" if index in masked else field.strip() for index, field in enumerate(fields))


def write_inputs(root: Path) -> None:
    """Write what the commands read."""
    import yaml
    from support.experiments import tiny_experiment_dict
    from support.heads import topics_folder
    from support.reranking import invented, write_invented
    from support.results import write_experiment
    from support.tiny_encoders import save_tiny_encoder
    from support.tiny_rerankers import save_tiny_cross_encoder
    from support.translators import small_pairs, write_npz

    experiment = tiny_experiment_dict(root) | {"seeds": [0]}
    (root / "tiny.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
    save_tiny_encoder(root / "encoder")
    topics_folder(root / "topics", {"train": 24, "dev": 6, "test": 6})
    write_invented(root / "one", invented(documents=40, queries=6, words=5000, name="one"))
    write_invented(root / "two", invented(documents=40, queries=4, words=5000, name="two"))
    write_npz(root / "pairs.npz", small_pairs())
    write_experiment(root / "finished", queries=20)
    save_tiny_cross_encoder(root / "grader")


def commands(root: Path) -> list[Command]:
    """Return the commands that read what ``write_inputs`` has written."""
    encoder, topics, one, two, pairs, grader = (
        root / name for name in ("encoder", "topics", "one", "two", "pairs.npz", "grader")
    )
    lines = {
        "main job": f"demo --config {root}/tiny.yaml",
        "evaluate": f"evaluate --zero-shot --config {root}/tiny.yaml --datasets path:{one},path:{two} --task reranking",
        "retrieve": f"retrieve --datasets path:{one},path:{two} --set encoder.base={encoder}",
        "train-head": f"train-head --task path:{topics} --method infonce --num-steps 40 --set save_every=5 "
        f"--set encoder.base={encoder} --set eval_every=4 --set batch_size=12 --set pools.depth=20",
        "compare-heads": f"compare-heads --task path:{topics} --methods zero_shot,infonce --num-steps 8 --settings 2 "
        f"--seeds 2 --set encoder.base={encoder} --set eval_every=4 --set batch_size=12 --set pools.depth=20",
        "train-biencoder": f"train-biencoder --set collection=path:{topics} --set encoder.base={encoder} "
        "--set epochs=2 --set batch_size=6 --set save_every=2 --set out_dim=16 --set document_length=60",
        "train-cross-encoder": f"train-cross-encoder --set lists.source=path:{topics} --set model.base={encoder} "
        "--set model.max_length=48 --set model.frozen_layers=0 --set lists.max_docs=4 "
        "--set evaluation.depth=6 --set batch_size=4 --set max_steps=8 --set eval_every=2",
        "train-translator": f"train-translator --train {pairs} --set hidden=8 --set epochs=6 --P 8 --mine_H 4",
        "compare-translators": f"compare-translators --data {pairs} --epochs 3 --seeds 2 --settings 2 --set hidden=8 "
        "--set sampler.batch=32",
        "label-pairs": f"label-pairs --collection path:{topics} --model cross-encoder:{grader} "
        "--set sampling.queries=20 --set shard_queries=2 --set depth=6",
        "analyze": "analyze",
    }
    everywhere = ("--output-dir", "OUT")
    return [
        Command(name, (*line.split(), *everywhere, *([] if name == "analyze" else ["--device", "cpu"])))
        for name, line in lines.items()
    ]


class Chaos:
    """The rounds of one harness.

    Args:
        root: a folder for everything.
        seed: of moments and choices.
    """

    def __init__(self, root: Path, seed: int, only: Sequence[str]) -> None:
        self.root, self.random, self.tally = root, random.Random(seed), Tally()
        (root / "inputs").mkdir()
        in_fork(lambda: write_inputs(root / "inputs"))
        self.commands = [command for command in commands(root / "inputs") if not only or command.name in only]
        self.quiet: dict[str, Place] = {}
        self.seconds: dict[str, float] = {}
        self._made = 0

    def place(self, command: Command, *, warm: bool = True) -> Place:
        """Return a new place; with the cache of the quiet run where ``warm``."""
        self._made += 1
        cache = self.quiet[command.name].folder / "cache" if warm and command.name in self.quiet else None
        made = Place(self.root / f"{self._made:04d}", command, cache)
        if command.name == "analyze":
            shutil.copytree(self.root / "inputs/finished", made.out)
        return made

    def run_quietly(self) -> None:
        """Run every command twice without disturbing it: the second time with a warm cache, which gives the seconds."""
        for command in list(self.commands):
            first = self.place(command)
            ending = first.run()
            if ending.code:
                self.tally.complain(f"{command.name}: the quiet run ends with {ending.code}: {ending.last}")
                self.commands.remove(command)
                continue
            self.quiet[command.name] = first
            second = self.place(command)
            self.seconds[command.name] = second.run().seconds
            same = self.compare(second, "a second quiet run")
            print(
                f"{command.name}: {self.seconds[command.name]:.1f} s, {sum(first.units().values())} units", flush=True
            )
            if same:
                shutil.rmtree(second.folder)

    def compare(self, place: Place, what: str) -> bool:
        """Compare what a run left with the quiet run."""
        expected, found = self.quiet[place.command.name].left(), place.left()
        different = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        for name in different[:3]:
            self.tally.complain(f"{place.command.name}, {what}: {name} differs ({place.folder})")
        left = place.temporary()
        if left:
            self.tally.complain(f"{place.command.name}, {what}: temporary files stay: {', '.join(left[:3])}")
        return not different and not left

    def kill(self, command: Command) -> None:
        """Kill a command once to three times, and resume it to its end."""
        place, kills = self.place(command, warm=self.random.random() < 0.8), 0
        for _ in range(self.random.choice([1, 1, 2, 3])):
            moment = self.random.uniform(0.0, self.seconds[command.name])
            if place.run(moment, signal.SIGKILL).code == -signal.SIGKILL:
                kills += 1
        ending = place.run()
        self.tally.kills += kills
        self.tally.resumed += 1
        what = f"after {kills} kills"
        if ending.code:
            self.tally.complain(f"{command.name}, {what}: ends with {ending.code}: {ending.last} ({place.folder})")
            return
        same = self.compare(place, what)
        self.tally.equal += same
        more = place.units() - self.quiet[command.name].units()
        lost = max(more.values(), default=0)
        self.tally.lost_units_max = max(self.tally.lost_units_max, lost)
        if lost > kills:
            self.tally.complain(f"{command.name}, {what}: done again {lost} times: {more.most_common(1)[0][0]}")
        if same:
            shutil.rmtree(place.folder)

    def stop(self, command: Command, number: signal.Signals) -> None:
        """Ask a command to end, and resume it."""
        place = self.place(command)
        ending = place.run(self.seconds[command.name] * self.random.uniform(0.2, 0.8), number)
        if ending.code == 0:
            return
        if ending.code != 130 or not ending.last.startswith("error: stopped") or "Traceback" in ending.said:
            self.tally.complain(
                f"{command.name}, {number.name}: ends with {ending.code}: {ending.last} ({place.folder})"
            )
        if place.temporary():
            self.tally.complain(f"{command.name}, {number.name}: temporary files stay: {place.temporary()[:3]}")
        if place.run().code == 0 and self.compare(place, f"after {number.name}"):
            shutil.rmtree(place.folder)

    def forbid(self, command: Command) -> None:
        """Give a command an output folder that cannot be made."""
        place = self.place(command)
        place.named = "/sys/unimoe"  # the superuser may write into folders that others may not
        ending = place.run()
        if ending.code not in (2, 3) or "Traceback" in ending.said or "/sys/" not in ending.last:
            self.tally.complain(f"{command.name}, read-only folder: ends with {ending.code}: {ending.last}")
        shutil.rmtree(place.folder)

    def twice(self, command: Command) -> None:
        """Run a command twice at a time in one folder."""
        place = self.place(command)
        first = place.start()
        time.sleep(self.seconds[command.name] * self.random.uniform(0.0, 0.5))
        second = place.start()
        endings = [place.wait(child, 1e9) for child in (first, second)]
        if any(ending.code not in (0, 2, 3) for ending in endings) or "Traceback" in endings[-1].said:
            self.tally.complain(
                f"{command.name}, two at a time: {[e.code for e in endings]} {endings[-1].last} ({place.folder})"
            )
        if place.run().code == 0 and self.compare(place, "after two at a time"):
            shutil.rmtree(place.folder)

    def corrupt(self, command: Command) -> None:
        """Cut or change a file that a killed or finished run left, and start the command again."""
        place = self.place(command)
        share = self.random.choice([0.3, 0.6, 0.9, 2.0])
        if share < 1:
            place.run(self.seconds[command.name] * share, signal.SIGKILL)
        else:
            place.run()
        if command.name == "analyze":
            shutil.rmtree(place.out / "analysis", ignore_errors=True)
        files = [
            path
            for path in sorted(place.folder.rglob("*"))
            if path.is_file() and path.stat().st_size and _is_read_back(path)
        ]
        if not files:
            return
        path = self.random.choice(files)
        content, cut = path.read_bytes(), self.random.random() < 0.5
        at = self.random.randrange(len(content))
        path.write_bytes(content[:at] if cut else content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        what = f"{path.relative_to(place.folder)} {'cut at' if cut else 'changed at'} {at} of {len(content)}"
        ending = place.run()
        if "Traceback" in ending.said or ending.code not in (0, 2, 3, 4):
            self.tally.complain(f"{command.name}, {what}: ends with {ending.code}: {ending.last} ({place.folder})")
        elif ending.code == 0:
            expected, found = self.quiet[command.name].left(), place.left()
            wrong = sorted(name for name in expected if found.get(name) != expected[name])
            if wrong:
                self.tally.undetected += 1
                self.tally.complain(f"{command.name}, {what}: not detected, {wrong[:3]} differ ({place.folder})")
                return
        shutil.rmtree(place.folder)

    def fill(self, command: Command) -> None:
        """Give a command a disk that fills up: a small tmpfs, where this process may mount one."""
        place = self.place(command)
        place.out.mkdir(exist_ok=True)
        size = max(4096, sum(map(len, self.quiet[command.name].left().values())) // 2)
        if os.system(f"mount -t tmpfs -o size={size} tmpfs {place.out} 2>/dev/null"):  # noqa: S605
            shutil.rmtree(place.folder)
            return
        try:
            ending = place.run()
            if ending.code not in (0, 2, 3) or "Traceback" in ending.said:
                self.tally.complain(f"{command.name}, full disk: ends with {ending.code}: {ending.last}")
        finally:
            os.system(f"umount -l {place.out}")  # noqa: S605
            shutil.rmtree(place.folder, ignore_errors=True)

    def rounds(self, kills: int, minutes: float) -> None:
        """Disturb the commands in turn."""
        until = time.monotonic() + 60 * minutes
        for command in self.commands:
            for disturb in (self.forbid, self.fill, self.twice):
                if time.monotonic() < until:
                    disturb(command)
            for number in (signal.SIGINT, signal.SIGTERM):
                if time.monotonic() < until:
                    self.stop(command, number)
        while self.tally.kills < kills and time.monotonic() < until:
            for command in self.commands:
                if time.monotonic() < until:
                    self.kill(command)
                    self.corrupt(command)


def _is_read_back(path: Path) -> bool:
    """Return whether a later run reads a file: not logs for people, tables, figures and reports."""
    name = path.as_posix()
    return not re.search(
        r"/analysis/|/(stderr|journal|run\.json)$|\.(md|tex|csv|pdf|svg|html|lock)$|/tensorboard/", name
    )


def in_fork(work: Callable[[], object]) -> None:
    """Do work in a copy of this process, whose libraries stay as they are after the import."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("the inputs could not be written; the error is above")


LIBRARIES = (
    "matplotlib.pyplot", "mteb", "pandas", "peft", "sentence_transformers", "transformers", "torch", "unimoe.api",
    "unimoe.cli.main", "unimoe.evaluation.evaluate", "unimoe.experiment",
)  # fmt: skip
"""Imported before the forks, so that they begin at once."""


def main() -> None:
    """Run the harness."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=200, help="SIGKILLs in all")
    parser.add_argument("--seed", type=int, default=0, help="of moments and choices")
    parser.add_argument("--minutes", type=float, default=1e6, help="start no new round after so many")
    parser.add_argument("--only", action="append", default=[], help="a command; may be repeated")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="unimoe-chaos-"))
    for library in LIBRARIES:
        importlib.import_module(library)
    chaos = Chaos(root, given.seed, given.only)
    chaos.run_quietly()
    chaos.rounds(given.kills, given.minutes)
    tally = chaos.tally
    if not tally.complaints and not given.keep:
        shutil.rmtree(root)
    else:
        print(f"kept in {root}")
    facts = {
        "kills": tally.kills, "resumed": tally.resumed, "equal": tally.equal, "lost_units_max": tally.lost_units_max,
        "undetected_corruptions": tally.undetected, "faults": len(tally.complaints), "seed": given.seed,
    }  # fmt: skip
    print(json.dumps(facts))
    sys.exit(bool(tally.complaints))


if __name__ == "__main__":
    main()
