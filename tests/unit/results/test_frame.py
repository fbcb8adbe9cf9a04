"""Results as a data frame."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.results import make_result

from unimoe.results.folder import Results


@pytest.fixture
def results() -> Results:
    held = [make_result("joint_r8", seed, {"b": 0.5, "a": 0.25 * (seed + 1)}) for seed in (0, 1)]
    return Results(Path("out"), [*held, make_result("bm25", None, {"b": 0.1, "a": 0.3})])


def test_it_has_a_row_for_each_mean(results: Results) -> None:
    frame = results.frame()
    assert list(frame.columns) == ["arm", "seed", "task", "dataset", "metric", "score"]
    of_joint = frame.query("arm == 'joint_r8' and metric == 'ndcg@10'")
    assert of_joint["score"].tolist() == [0.375, 0.5]
    assert frame.query("arm == 'bm25'")["seed"].isna().all()


def test_it_has_a_row_for_each_score_by_query_and_every_metric_has_its_own(results: Results) -> None:
    frame = results.frame(per_query=True).query("arm == 'joint_r8' and seed == 1")
    held = frame.pivot_table(index="query", columns="metric", values="score")
    assert held["ndcg@10"].to_dict() == {"a": 0.5, "b": 0.5}
    (result,) = (r for r in results.results if r.seed == 1)
    for metric, values in result.per_query_metrics.items():
        assert held[metric].tolist() == values  # by ascending query id
