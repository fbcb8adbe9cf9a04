"""Queries in clusters: the sandwich formula by hand and by statsmodels, and refusals of malformed files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

from unimoe.analysis.compare import compare, compare_statistic, load_all_results
from unimoe.analysis.statistics.variance import moments
from unimoe.core.errors import DataError
from unimoe.results.clusters import Clusters, by_cluster

CODES = np.array([0, 0, 1, 2, 2, 2])
ONE = np.array([[1.0]])


def test_a_variance_by_hand() -> None:
    """Scores 1, 3 | 2 | 6, 4, 2, mean 3: cluster sums of deviations -2, -1, 3, so 14 * 3/2 / 36 = .5833."""
    found = moments([[by_cluster(np.array([[1.0, 3.0, 2.0, 6.0, 4.0, 2.0]]), CODES)]]).terms(ONE)
    assert found.variance == pytest.approx(14 * 1.5 / 36)
    assert found.freedom == pytest.approx(2.0)


def test_the_sandwich_of_statsmodels() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 12, 80)
    codes = np.unique(codes, return_inverse=True)[1]
    scores = rng.normal(0.5, 0.1, 80) + rng.normal(0.0, 0.2, 12)[codes]
    peer = sm.OLS(scores, np.ones(80)).fit(
        cov_type="cluster", cov_kwds={"groups": codes, "use_correction": False}, use_t=True
    )
    number = codes.max() + 1
    found = moments([[by_cluster(scores[None], codes)]])
    assert found.means[0, 0] == pytest.approx(scores.mean())
    assert found.terms(ONE).variance == pytest.approx(float(peer.cov_params()[0, 0]) * number / (number - 1))


def test_clusters_of_one_query_change_nothing() -> None:
    scores = np.random.default_rng(1).uniform(size=(3, 9))
    assert by_cluster(scores, np.arange(9)) == pytest.approx(scores)


def runs() -> tuple[dict[str, dict[str, dict[str, float]]], dict[str, dict[str, int]]]:
    rng = np.random.default_rng(2)
    qrels = {f"q{i}": {"a": 1} for i in range(40)}

    def run(share: float) -> dict[str, dict[str, float]]:
        return {q: {"a": 2.0 if rng.random() < share else 0.5, "b": 1.0} for q in qrels}

    return {"x": run(0.3), "y": run(0.7), "z": run(0.5)}, qrels


def test_repeating_every_query_changes_no_test_once_it_is_in_a_cluster(tmp_path: Path) -> None:
    systems, qrels = runs()
    alone = compare(systems, qrels)
    twice = {q + end: grades for q, grades in qrels.items() for end in ("", "-again")}
    again = {name: {q + end: documents for q, documents in run.items() for end in ("", "-again")}
             for name, run in systems.items()}  # fmt: skip
    file = tmp_path / "clusters.tsv"
    file.write_text("".join(f"{query_id}\t{query_id.removesuffix('-again')}\n" for query_id in twice))
    found = compare(again, twice, clusters=file)
    columns = ["difference", "low", "high", "p", "check_p"]
    assert found.tests()[columns].to_numpy() == pytest.approx(alone.tests()[columns].to_numpy())
    assert compare(again, twice).tests()["p"].iloc[0] < alone.tests()["p"].iloc[0]
    whole = compare_statistic(found, np.mean, "y", "x", iterations=200)
    single = compare_statistic(alone, np.mean, "y", "x", iterations=200)
    assert (whole.low, whole.high) == pytest.approx((single.low, single.high))


def test_systems_that_differ_in_five_clusters_have_no_test() -> None:
    """Fifteen queries of 120 differ, but they are five of forty clusters, of two sizes: no more than five queries."""
    qrels = {f"q{i}": {"a": 1} for i in range(120)}
    sizes = {q: f"c{number // 3}" if number < 60 else f"d{number // 6}" for number, q in enumerate(qrels)}
    first = {q: {"a": 2.0, "b": 1.0} for q in qrels}
    other = first | {f"q{i}": {"a": 0.5, "b": 1.0} for i in range(15)}
    (row,) = compare({"x": first, "y": other}, qrels, clusters=sizes).tests().to_dict("records")
    assert row["p"] is None or np.isnan(row["p"])
    assert "differ on 5 of 30 clusters" in row["unfit"]


def test_a_saved_comparison_keeps_its_clusters(tmp_path: Path) -> None:
    from unimoe.analysis.saved_comparison import save_comparison

    systems, qrels = runs()
    found = compare(systems, qrels, clusters={q: q[:2] for q in qrels})
    found.results.output_dir = tmp_path
    save_comparison(found.results, None, [], overwrite=False)
    again = load_all_results(tmp_path)
    assert again.clusters is not None
    assert dict(again.clusters.of) == {q: q[:2] for q in qrels}
    (tmp_path / "clusters.tsv").write_text("q0\tx\n")
    with pytest.raises(DataError, match=r"clusters.tsv: queries of retrieval/dataset without a cluster: 39 "):
        load_all_results(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q0 c\n", "clusters.tsv:1: not a line of query id, tab, cluster id"),
        ("q0\tc\nq0\td\n", "clusters.tsv:2: query 'q0' is in two clusters"),
        ("q0\tc\nq1\td\n", r"queries of one without a cluster: 1 \(q2\); add a line"),
        ("q0\tc\nq1\td\nq2\td\nq9\td\n", r"queries that are on no dataset here: 1 \(q9\); remove their lines"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "clusters.tsv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        Clusters.read(path).refuse_others({"one": ["q0", "q1", "q2"]})


def test_a_query_without_a_cluster_id_is_refused_by_name() -> None:
    """Such as pandas has for an empty cell."""
    for absent in (None, float("nan"), pd.NA, " "):
        with pytest.raises(DataError, match=r"clusters: 1 \(q7\) have no cluster id"):
            Clusters.read({"q1": "a", "q7": absent})  # type: ignore[dict-item]
