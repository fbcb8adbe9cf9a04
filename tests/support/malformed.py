"""Malformed inputs for every reader, each with the command that meets it.

``python tests/support/malformed.py`` prints what each is answered: the golden list, for a person to read.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.malformed_changes import GATES, QRELS, RUN, Case, arrays, file
from support.malformed_folders import archives, collections, encoders, results
from support.malformed_settings import runs, settings
from support.results import write_experiment
from support.scripts import Done, call_unimoe
from support.tiny_encoders import save_sentence_transformer, save_tiny_encoder

from unimoe.config.files import config_root


def cases() -> dict[str, Case]:
    """Return every malformed input by name."""
    found: dict[str, Case] = {}
    for name, case in [*runs(), *settings(), *results(), *collections(), *encoders(), *archives()]:
        if found.setdefault(name, case) is not case:
            raise ValueError(f"two malformed inputs are named {name!r}")
    return found


def write_sound(folder: Path) -> None:
    """Write a folder whose files are all sound."""
    file("r.trec", RUN)(folder)
    file("s.trec", RUN.replace(" 3 t", " 4 t"))(folder)
    file("q.qrels", QRELS)(folder)
    file("gates.yaml", GATES)(folder)
    file("toy/corpus.jsonl", '{"_id": "d1", "text": "a cat"}\n{"_id": "d2", "text": "a dog"}\n')(folder)
    file("toy/queries.jsonl", '{"_id": "q1", "text": "the cat"}\n')(folder)
    file("toy/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t1\n")(folder)
    arrays()(folder)
    write_experiment(folder / "outputs", arms=("rank_only_r8", "joint_r8"), seeds=(0, 1), queries=5)
    save_tiny_encoder(folder / "bare")
    save_sentence_transformer(folder / "bare", folder / "encoder")
    shutil.rmtree(folder / "bare")


def answer(case: Case, sound: Path, folder: Path) -> tuple[Done, list[str]]:
    """Run a case in a new copy of the sound folder; return how it ended and the files that it left."""
    shutil.copytree(sound, folder)
    case.change(folder)
    before, here = set(folder.rglob("*")), Path.cwd()
    os.chdir(folder)
    try:
        done = call_unimoe(*case.command)
    finally:
        os.chdir(here)
    left = [str(path.relative_to(folder)) for path in sorted(set(folder.rglob("*")) - before) if path.is_file()]
    return done, left


def golden_line(name: str, done: Done) -> str:
    """Return the line of the golden list: the input, the exit code and the message."""
    last = (done.stderr.strip().splitlines() or [""])[-1]
    message = re.sub(r"shipped: .*", "shipped: ...", last).replace(f"{config_root()}{os.sep}", "")
    message = re.sub(r"/\S*/(encoder)\b", r"\1", message)
    line = f"{name} -> {done.returncode} {message if len(message) < 500 else f'{message[:400]} ...'}"
    return line.encode("ascii", "backslashreplace").decode()


def main() -> None:
    """Print the golden list, and on stderr by how many MiB the process grew."""
    os.environ.pop("UNIMOE_DATA", None)  # a message names that folder
    with TemporaryDirectory() as root:
        sound = Path(root, "sound")
        sound.mkdir()
        write_sound(sound)
        load_fails_once = answer(cases()["encoder: no weights"], sound, Path(root, "first"))  # pays for the imports
        assert load_fails_once[0].returncode == 3
        before = getrusage(RUSAGE_SELF).ru_maxrss
        for number, (name, case) in enumerate(cases().items()):
            folder = Path(root, str(number))
            done, left = answer(case, sound, folder)
            sys.stdout.write(" ".join([golden_line(name, done), *(["LEAVES", *left] if left else [])]) + "\n")
            shutil.rmtree(folder)
        sys.stderr.write(f"{(getrusage(RUSAGE_SELF).ru_maxrss - before) // 1024}\n")


if __name__ == "__main__":
    main()
