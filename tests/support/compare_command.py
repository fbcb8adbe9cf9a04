"""``unimoe compare`` called in this process, and the two arms that its tests compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.runs import random_qrels, random_run, write_arms
from support.scripts import Done, call_unimoe

Arms = tuple[list[Path], list[Path], Path]

DATASETS = {"dl19": 24, "dl20": 30, "cran": 36}
"""Queries of each dataset of the systems."""


def compare(*arguments: str | Path) -> Done:
    return call_unimoe("compare", *arguments)


def compare_arms(arms: Arms, *more: str | Path) -> Done:
    return compare("--specialist", *arms[0], "--joint", *arms[1], "--qrels", arms[2], *more)


def judged(arms: Arms, *more: str | Path) -> dict[str, Any]:
    """The JSON of a comparison, with its only gate under ``gate``."""
    done = compare_arms(arms, "--json", *more)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout, parse_constant=pytest.fail)
    (found["gate"],) = found["gates"]["gates"]
    return found


def words_of(done: Done) -> str:
    return " ".join(done.stdout.split())


def two_arms(folder: Path) -> Arms:
    """Write two seeds of a good specialist and three of a joint model that is clearly worse, on 40 queries."""
    rng = np.random.default_rng(3)
    qrels = random_qrels(40, rng)
    good, poor = ([random_run(qrels, noise, rng) for _ in range(seeds)] for noise, seeds in ((0.5, 2), (3.0, 3)))
    return write_arms(folder, qrels, good, poor)
