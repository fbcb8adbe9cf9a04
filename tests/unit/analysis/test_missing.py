"""What has no TIR, each with the reason that names what is absent and nothing that is there."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from support.results import without_queries

from unimoe.analysis.arms import Described, NotComputable
from unimoe.analysis.arms import without_queries as described
from unimoe.results import EvalResult
from unimoe.results.folder import Results


class TestWithoutQueries:
    def of(self, *items: EvalResult) -> list[Described | NotComputable]:
        return list(described(Results(Path("out"), items)))

    def test_tir_of_the_mean_scores_by_hand(self) -> None:
        scores = {"emb_only_r8": (0.8, 0.6), "joint_r8": (0.6, 0.6)}
        (item,) = self.of(*(without_queries(arm, s, x) for arm, row in scores.items() for s, x in enumerate(row)))
        assert isinstance(item, Described)
        assert item.tir == pytest.approx(1.0 - 0.6 / 0.7)
        assert item.std == pytest.approx(0.25 / math.sqrt(2))
        assert (item.metric, item.seeds) == ("cosine_spearman", (0, 1))

    def test_seeds_without_a_pair_are_named(self) -> None:
        (item,) = self.of(without_queries("emb_only_r8", 0, 0.5), without_queries("joint_r8", 1, 0.5))
        assert isinstance(item, NotComputable)
        assert item.reason == "emb_only_r8 and joint_r8 have no seed in common on STSBenchmark"
