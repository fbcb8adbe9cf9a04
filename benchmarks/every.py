"""Run the scripts of this folder one after the other, and keep what each found in ``benchmarks/history.jsonl``.

    uv run --group benchmarks --extra cluster benchmarks/every.py [--short] [--only NAME ...] [--history FILE]

A script prints one JSON object as its last line. It becomes a line of the history with the script's name and arguments,
its seconds, the commit, the date and the machine. A script that fails leaves no line; the others run, and the exit code
is 4. ``--short`` runs those of ``SHORT`` at sizes that take three minutes or less: their numbers are rough, and their
arguments keep them apart from others. ``docs/benchmarks.py`` draws the history.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from unimoe.results import git_state, package_versions, processor_name

FOLDER = Path(__file__).parent
HISTORY = FOLDER / "history.jsonl"
SHORT: dict[str, tuple[str, ...]] = {
    "best_systems": ("--reps", "4"),
    "bm25": ("--documents", "5000"),
    "few_labels": ("--reps", "20"),
    "groups": ("--reps", "5"),
    "pooled_runs": ("--reps", "50"),
    "served": (),
    "sequential": ("--reps", "50"),
    "translator": ("--captions", "12000", "--ranked", "1000", "--bank", "3000"),
}
"""Scripts that run on a schedule, with their arguments."""


def scripts() -> list[str]:
    """Return the names of the scripts that measure; the others are their modules."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.py"))}
    return [name for name, text in texts.items() if '__name__ == "__main__"' in text and name != Path(__file__).stem]


def machine() -> dict[str, Any]:
    """Return what numbers depend on: processor, cores that this process may use, memory, accelerator, libraries."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = Path("/proc/meminfo")
    kib = re.search(r"MemTotal: +(\d+)", memory.read_text(encoding="utf-8")) if memory.exists() else None
    return {
        "processor": processor_name(),
        "cores": cores,
        "memory_gib": round(int(kib[1]) / 2**20) if kib else None,
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
        "python": platform.python_version(),
        **package_versions(("numpy", "torch")),
    }


def found_by(name: str, arguments: Sequence[str]) -> tuple[dict[str, Any], float]:
    """Run a script, show what it prints, and return its last line as JSON, and its seconds.

    Raises:
        ValueError: it failed, or its last line is no JSON object.
    """
    command, last, start = [sys.executable, str(FOLDER / f"{name}.py"), *arguments], "", time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
    if process.returncode:
        raise ValueError(f"it ended with exit code {process.returncode}")
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"its last line is no JSON object: {last[:80]!r}")
    return found, time.perf_counter() - start


def main() -> int:
    """Run the chosen scripts; return 4 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="small sizes, of the scripts that have them")
    parser.add_argument("--only", nargs="+", choices=scripts(), metavar="NAME", help="these scripts alone")
    parser.add_argument("--history", type=Path, default=HISTORY, help="the file to append to")
    given = parser.parse_args()
    chosen = [name for name in given.only or scripts() if not given.short or name in SHORT]
    facts, (commit, dirty), failed = machine(), git_state(), []
    print(json.dumps(facts))
    for name in chosen:
        arguments = SHORT[name] if given.short else ()
        print(f"\n== {' '.join([name, *arguments])}", flush=True)
        try:
            found, seconds = found_by(name, arguments)
        except ValueError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed.append(name)
            continue
        line = {
            "script": name, "arguments": list(arguments), "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "commit": commit, "dirty": dirty, "seconds": round(seconds, 1), "machine": facts, "found": found,
        }  # fmt: skip
        with given.history.open("a", encoding="utf-8", newline="\n") as history:
            history.write(json.dumps(line, ensure_ascii=False) + "\n")
    print(f"\n{len(chosen) - len(failed)} of {len(chosen)} scripts kept in {given.history}")
    return 4 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
