"""Runs that the tests of ``unimoe compare`` share."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.runs import DATASETS, Arms, one_relevant, run_with_ranks, two_arms, write_arms, write_systems


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Arms:
    return two_arms(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def one_query(tmp_path: Path) -> Arms:
    runs = [[run_with_ranks({"q1": rank})] for rank in (1, 3)]
    return write_arms(tmp_path, one_relevant("q1"), *runs)


@pytest.fixture(scope="module")
def systems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("systems")
    write_systems(folder, DATASETS)
    return folder
