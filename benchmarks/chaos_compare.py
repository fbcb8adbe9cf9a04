"""What a run left, without times and memory, so that two runs can be compared byte for byte."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

EXCLUDED = (
    "created", "registered", "wall_time_s", "items_per_s", "seconds", "ms_per_query", "pairs_per_s", "texts_per_s",
    "tokens_per_s", "rows_per_s", "date", "evaluation_time", "train_seconds",
    "max_rss_mib", "peak_mib", "modified", "total_flos", "checksum",
)  # fmt: skip
"""Keys of times and of memory, and of checksums over them: their values may differ in a resumed run."""

COLUMNS = (
    "s", "s std", "seconds", "peak MB", "peak MB std", "ms/query", "ms/query std", "µs/query", "µs/query std", "ms",
    "ms std",
)  # fmt: skip
"""Columns of tables that hold times and memory."""

SKIPPED = re.compile(
    r"(^|/)(run\.json|.*\.lock|events\.out\..*|training_args\.bin|.*\.pdf|README\.md)$"
    r"|\.cache/|(^|/)cache/|\.mteb\.json$"
)
"""Files that only hold times, or that other programs stamp with times."""

_TIMES = re.compile(rf'(\\*"(?:{"|".join(EXCLUDED)})\\*": )(-?[0-9.e+-]+|\\*"[^"\\]*\\*"|null)')
_WORDS = re.compile(
    r"20\d\d-\d\d-\d\d[T ]?[0-9:.+Z]*"
    r"|\d[\d,]*(\.\d+)? (ms|s|min|MiB|pairs/s|texts/s|items/s|pairs per second|texts per second|seconds)\b"
    r"|(?<=hash )[0-9a-f]{16}"  # of a gate file, which holds the instant of its registration
    r'|(?<="checkpoint": ")[0-9a-f]{16}'  # of a head's file, which holds the seconds of its training
)
_UPRIGHT = re.compile(r"\\rotatebox|& s &")


def files_without_times(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files of a folder, without times and memory, by their names."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: _without_times(path) for name, path in files.items() if not SKIPPED.search(name)}


def _without_times(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix == ".safetensors" and len(content) > 8:
        end = 8 + int.from_bytes(content[:8], "little")
        try:
            about = json.dumps(json.loads(content[8:end]), sort_keys=True)  # their order is another in each process
        except ValueError:
            return content
        return _plain(about).encode() + content[end:]
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return content
    if path.suffix == ".tex" and _UPRIGHT.search(text):  # a comparison's table, whose numbers its .md has too
        text = re.sub(r"[\d.]+", "0", text)
    elif path.suffix in {".csv", ".md"}:
        text = "\n".join(_without_columns(text.split("\n"), path.suffix))
    return _plain(text).encode()


def _plain(text: str) -> str:
    return _WORDS.sub("TIME", _TIMES.sub(r"\1TIME", text))


def _without_columns(lines: Sequence[str], suffix: str) -> Iterator[str]:
    """Yield the rows of tables without their columns of times and memory."""
    masked: list[int] = []
    for line in lines:
        fields = next(csv.reader([line]), []) if suffix == ".csv" else line.split("|")
        heads = [index for index, field in enumerate(fields) if field.strip() in COLUMNS]
        if heads:
            masked = heads
        yield "\t".join("" if index in masked else field.strip() for index, field in enumerate(fields))
