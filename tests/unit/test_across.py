from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.results import make_result, simulate

from unimoe.analysis.across import Across, across_table, compute_across, ratio_weights, side_by_side
from unimoe.analysis.compare import Results, compute_interference_metrics
from unimoe.results import TrainingBudget

Runs = Sequence[Sequence[float]] | Mapping[int, Sequence[float]]


def results(datasets: Mapping[str, tuple[Runs, Runs]], metrics: Mapping[str, str] | None = None) -> Results:
    """Specialist and joint by dataset; rows by seed, from seed 0 where none is named."""
    items = []
    for dataset, both in datasets.items():
        for arm, runs in zip(("rank_only_r8", "joint_r8"), both, strict=True):
            rows = runs if isinstance(runs, Mapping) else dict(enumerate(runs))
            metric = (metrics or {}).get(dataset, "ndcg@10")
            items += [make_result(arm, seed, row, dataset=dataset, metric=metric) for seed, row in rows.items()]
    return Results(Path("outputs"), items)


def across(datasets: Mapping[str, tuple[Runs, Runs]], metrics: Mapping[str, str] | None = None) -> Across:
    (found,) = compute_across(results(datasets, metrics))
    return found


def test_the_two_ways_of_averaging_differ() -> None:
    # TIRs 10 % and 1 %: their mean is 5.5 %. Means .5 against .487: 2.6 %.
    found = across({"hard": ([[0.1, 0.1]], [[0.09, 0.09]]), "easy": ([[0.9, 0.9]], [[0.891, 0.891]])})
    assert found.mean_of_tirs.mean == pytest.approx(0.055)
    assert found.tir_of_means.mean == pytest.approx((1.0 - 0.981) / 1.0)
    assert (found.mean_of_tirs.rule, found.tir_of_means.rule) == ("PASS", "MARGINAL")
    assert found.mean_of_tirs.crossed is None
    assert found.mean_of_tirs.std is None


def test_numbers_by_seed() -> None:
    found = across({"a": ([[0.5], [0.4]], [[0.4], [0.4]]), "b": ([[0.8], [0.8]], [[0.72], [0.8]])})
    assert found.seeds == (0, 1)
    assert found.mean_of_tirs.per_seed == pytest.approx((0.15, 0.0))
    assert found.tir_of_means.per_seed == pytest.approx((0.18 / 1.3, 0.0))
    # One query tells nothing about other queries.
    assert found.mean_of_tirs.crossed is None
    assert found.mean_of_tirs.fixed_queries is not None
    assert found.mean_of_tirs.fixed_queries.estimate == pytest.approx(0.075)


def test_metrics_are_never_mixed() -> None:
    arms = [[0.5, 0.6]], [[0.4, 0.6]]
    assert compute_across(results({"a": arms, "msmarco": arms}, {"msmarco": "mrr"})) == ()
    found = across({"a": arms, "b": arms, "msmarco": arms}, {"msmarco": "mrr"})
    assert (found.metric, found.datasets) == ("ndcg@10", ("a", "b"))


def test_cqadupstack_counts_once() -> None:
    forums = {"cqadupstack/tex": ([[0.2]], [[0.1]]), "cqadupstack/unix": ([[0.4]], [[0.4]])}
    found = across({**forums, "scifact": ([[0.8]], [[0.8]])})
    # CQADupStack is .3 against .25.
    assert found.mean_of_tirs.mean == pytest.approx((0.05 / 0.3 + 0.0) / 2)
    assert found.tir_of_means.mean == pytest.approx((0.55 - 0.525) / 0.55)
    assert any("CQADupStack count together" in note for note in across_table([found]).notes)


def test_ratio_weights_give_each_dataset_the_same_say() -> None:
    names = ["scifact", "cqadupstack/tex", "cqadupstack/unix"]
    assert ratio_weights(names, "mean_of_tirs").tolist() == [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
    assert ratio_weights(names, "tir_of_means").tolist() == [[0.5, 0.25, 0.25]]


def test_blocks_side_by_side_keep_their_weighted_mean_and_forget_what_differs_between_datasets() -> None:
    blocks = [np.full((2, 3), 0.1), np.full((2, 1), 0.5)]
    assert side_by_side(blocks, np.array([0.5, 0.5])) == pytest.approx(np.full((2, 4), 0.3))
    seeds = [np.array([[0.0], [0.2]]).repeat(n, axis=1) for n in (3, 1)]
    assert side_by_side(seeds, np.array([0.5, 0.5])).mean(axis=1) == pytest.approx([0.0, 0.2])


def test_a_seed_that_some_dataset_lacks_is_left_out_by_name() -> None:
    both = {0: [0.5, 0.6], 1: [0.5, 0.7]}
    found = across({"a": (both, both), "b": ({0: [0.5, 0.6]}, both), "c": (both, both)})
    assert found.seeds == (0,)
    assert found.left_out == ("seed 1: not in both arms on b",)
    assert any("left out seed 1" in note for note in across_table([found]).notes)


def test_without_a_common_seed_there_is_no_number() -> None:
    arms = [{seed: [0.5, 0.6]} for seed in (0, 1)]
    assert compute_across(results({"a": (arms[0], arms[0]), "b": (arms[1], arms[1])})) == ()


def test_a_dataset_without_a_tir_is_left_out_with_the_reason() -> None:
    arms = [[0.5, 0.6]], [[0.4, 0.6]]
    found = across({"a": arms, "b": arms, "joint only": ([], [[0.5]]), "zero": ([[0.0, 0.0]], arms[1])})
    assert found.datasets == ("a", "b")
    assert found.left_out == (
        "joint only: rank_only_r8 missing on joint only",
        "zero: rank_only_r8 scores nearly 0 on zero, and a ratio to it means nothing",
    )


def test_more_datasets_shrink_the_part_of_queries_not_that_of_shared_seeds() -> None:
    rng = np.random.default_rng(0)
    runs = [simulate(5, 60, 0.03, rng=rng, seed_sd=0.001, query_sd=0.15) for _ in range(6)]
    one = compute_interference_metrics(results({"a": as_runs(runs[0]), "b": as_runs(runs[1])})).measured[0]
    six = across({f"set{i}": as_runs(pair) for i, pair in enumerate(runs)})
    assert one.crossed is not None
    assert six.mean_of_tirs.crossed is not None
    ratio = six.mean_of_tirs.crossed.standard_error / one.crossed.standard_error
    assert ratio == pytest.approx(1 / np.sqrt(6), rel=0.3)
    shift = np.array([[-0.05], [0.0], [0.05], [0.1], [-0.1]])
    moved = across({f"set{i}": as_runs((s, j + shift)) for i, (s, j) in enumerate(runs)})
    assert moved.mean_of_tirs.crossed is not None
    assert moved.mean_of_tirs.crossed.seed_share > 0.8


def as_runs(pair: tuple[np.ndarray, np.ndarray]) -> tuple[Runs, Runs]:
    specialist, joint = (scores.tolist() for scores in pair)
    return specialist, joint


def test_the_table_shows_both_ways_and_both_intervals() -> None:
    rng = np.random.default_rng(1)
    found = across({f"set{i}": as_runs(simulate(3, 40, 0.05, rng=rng)) for i in range(2)})
    table = across_table([found])
    (group,) = table.groups
    assert group.heading == "reranking: joint_r8 against rank_only_r8 (ndcg@10, 2 datasets, 80 queries, seeds 0, 1, 2)"
    assert [row[0].text for row in group.rows] == ["mean of TIRs (default)", "TIR of mean scores"]
    for row, estimate in zip(group.rows, (found.mean_of_tirs, found.tir_of_means), strict=True):
        assert len(row) == len(table.columns)
        assert row[1].value == pytest.approx(100 * estimate.mean)
        ends = [end for i in estimate.intervals.values() if i is not None for end in (i.low, i.high)]
        assert [cell.value for cell in row[2:6]] == pytest.approx([100 * end for end in ends])
        assert [cell.text for cell in row[6:]] == [estimate.rule, estimate.label]


def test_warnings_and_caveats_travel_with_the_table() -> None:
    items = []
    for arm, examples in (("rank_only_r8", 100), ("joint_r8", 50)):
        budget = TrainingBudget(steps=1, ranking_examples=examples, embedding_examples=0, tokens=1)
        items += [
            make_result(arm, 0, [0.5, 0.6], dataset=dataset, training=budget, caveats=["smoke run"])
            for dataset in ("a", "b")
        ]
    notes = across_table(compute_across(Results(Path("outputs"), items))).notes
    assert "Caveat: smoke run" in notes
    assert any("b: unequal training" in note for note in notes)
