"""Runs that the tests of ``unimoe compare`` share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.runs import (
    DATASETS,
    Arms,
    one_relevant,
    random_qrels,
    random_run,
    run_with_ranks,
    write_arms,
    write_systems,
)


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Arms:
    """Two seeds of a good specialist and three of a joint model that is clearly worse, on 40 queries."""
    rng = np.random.default_rng(3)
    qrels = random_qrels(40, rng)
    good, poor = ([random_run(qrels, noise, rng) for _ in range(seeds)] for noise, seeds in ((0.5, 2), (3.0, 3)))
    return write_arms(tmp_path_factory.mktemp("runs"), qrels, good, poor)


@pytest.fixture
def one_query(tmp_path: Path) -> Arms:
    runs = [[run_with_ranks({"q1": rank})] for rank in (1, 3)]
    return write_arms(tmp_path, one_relevant("q1"), *runs)


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("systems")
    write_systems(folder, DATASETS)
    return folder
