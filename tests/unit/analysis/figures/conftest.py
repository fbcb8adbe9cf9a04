"""Small results, and the figures drawn of them."""

from __future__ import annotations

import numpy as np
import pytest
from support.large_experiments import write_conflict_log
from support.results import write_experiment

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.compare import Results, load_all_results
from unimoe.analysis.figures import Drawing, all_figures


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("figures") / "run"
    write_experiment(folder, caveats=["smoke run"])
    for seed in (0, 1, 2):
        write_conflict_log(folder, "joint_r8", seed, np.random.default_rng(seed), layers=4, steps=3)
    return load_all_results(folder)


@pytest.fixture(scope="module")
def drawings(results: Results) -> dict[str, Drawing]:
    return {drawing.name: drawing for drawing in all_figures(Analysis(results))}
