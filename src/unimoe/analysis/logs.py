"""Training logs, as a killed and resumed training leaves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

from unimoe.errors import DataError
from unimoe.io import find_files

Log: TypeAlias = tuple[dict[str, Any], ...]
"""A training log: one record per line, with at least ``step`` and ``loss``."""


def read_logs(output_dir: Path) -> dict[tuple[str, int | None], Log]:
    """Read the training logs below an output folder, ``{arm}/seed_{N}/logs/train.jsonl``, by arm and seed.

    Raises:
        DataError: a line that is no training record; names file and line.
    """
    logs: dict[tuple[str, int | None], Log] = {}
    for path in find_files(output_dir, "*/seed_*/logs/train.jsonl"):
        config_name, seed = path.parts[-4], path.parts[-3].removeprefix("seed_")
        if seed.isdecimal():
            logs[config_name, int(seed)] = _read_log(path)
    return logs


def _read_log(path: Path) -> Log:
    """Return one record per step and task, the last of a resumed run's; drop the last line of a killed run."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    records: dict[tuple[int, Any], dict[str, Any]] = {}
    lines = text.split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
            step, loss = int(record["step"]), float(record["loss"])
            records[step, record.get("task")] = record | {"step": step, "loss": loss}
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DataError(f"{path}:{number}: not a training record with step and loss; remove the line") from None
    return tuple(records[step] for step in sorted(records, key=lambda step: (step[0], str(step[1]))))
