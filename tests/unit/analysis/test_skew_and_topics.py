"""What gates say of skewed losses, of few queries that differ, and of topics that stand in several datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.results import INTERFERENCE, judged, make_result, results_of
from support.runs import random_qrels, random_run

from unimoe import compare
from unimoe.analysis.gates.findings import mean_difference
from unimoe.analysis.gates.judging import Judgment
from unimoe.analysis.gates.scores import drawn_together
from unimoe.analysis.gates.wording import text_of
from unimoe.analysis.statistics.estimates import LossRatios, estimate
from unimoe.analysis.statistics.variance import groups_of, moments
from unimoe.core.trec import Run
from unimoe.results.topics import Asked, shared_topics

Array = NDArray[np.float64]


def lossy(queries: int, lost: Sequence[int], noise: float, **gate: Any) -> Judgment:
    """Judge a joint arm that loses its whole score on some queries; each run adds noise to each query."""
    rng = np.random.default_rng(4)
    specialist = rng.uniform(0.5, 0.9, queries)
    joint = np.where(np.isin(np.arange(queries), lost), 0.0, specialist)
    results = [
        make_result(arm, seed, scores + noise * rng.uniform(-1.0, 1.0, queries) * (scores > 0.0))
        for arm, scores in (("rank_only_r8", specialist), ("joint_r8", joint))
        for seed in range(3)
    ]
    return judged(results_of(*results), **INTERFERENCE | {"specialist_must_beat": None} | gate)


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-4, 0.01])
@pytest.mark.parametrize("lost", [[7], [7, 20, 90], [3, 9, 27, 81, 243]])
def test_few_lost_queries_decide_nothing_whatever_noise_the_runs_add(noise: float, lost: list[int]) -> None:
    item = lossy(300, lost, noise, estimand="seeds_and_queries" if noise else "queries")
    assert item.label == "INCONCLUSIVE"
    assert f"on {len(lost)} of 300 queries, and fewer than 6 cannot decide" in item.found.why


def test_arms_that_differ_by_their_runs_alone_can_still_be_told_equal() -> None:
    item = lossy(300, [], 0.05)
    assert (item.label, item.found.why) == ("FAIL", "")
    assert lossy(300, [], 1e-6).label == "INCONCLUSIVE", "noise below a tenth of a point is none"


def test_a_fail_names_losses_that_its_queries_may_hide() -> None:
    hidden = "100 queries may hide losses of the whole score on up to 2.3 % of queries, and the gate tolerates 1 %"
    assert any(note.startswith(hidden) for note in lossy(100, [], 0.01, fail_below=0.01).notes)
    assert not any("may hide" in note for note in lossy(300, [], 0.01, fail_below=0.01).notes)
    assert not any("may hide" in note for note in lossy(100, [], 0.01, fail_below=0.05, pass_at=0.05).notes)


def test_label_and_bound_need_t_and_halls_transformation_and_say_where_t_is_rough() -> None:
    item = lossy(300, range(0, 300, 25), 0.002, fail_below=0.059, pass_at=0.059)  # 12 queries lose all: 4 %
    found, by_t = item.found, item.found.estimate.confidence_below(0.059)
    assert item.label == "INCONCLUSIVE"
    assert found.confidence["FAIL"] == found.estimate.held(0.059).below
    assert found.confidence["FAIL"] < 0.9 < by_t
    wide = lossy(300, range(0, 300, 25), 0.002, fail_below=0.08, pass_at=0.08)
    bound = wide.found.estimate.bound(0.9)
    assert wide.label == "FAIL"
    assert wide.found.estimate.held(bound).below == pytest.approx(0.9)
    assert text_of(wide.gate, wide.found).bound == f"at most {100 * bound:+.2f} %"
    assert any(note.startswith("differences are skewed (skewness +4.") for note in wide.notes)


@pytest.mark.parametrize("shares", [(1.0, 0.01), (0.5, 0.02)])
def test_false_fails_of_rare_losses_keep_their_level(shares: tuple[float, float]) -> None:
    """At a true TIR of exactly 1 %, one run of each arm, t alone says FAIL in 13 to 22 % and both in at most 11."""
    share, often = shares
    rng, reps, false = np.random.default_rng(1), 400, {"both": 0, "t": 0}
    for _ in range(reps):
        specialist = rng.uniform(0.3, 0.9, 1_000)
        joint = specialist * (1.0 - share * (rng.random(1_000) < often))
        quantity = LossRatios(np.ones((1, 1)))
        found = estimate(moments([[specialist[None], joint[None]]], groups_of((1, 1), paired=False)), quantity)
        false["both"] += found.held(0.01).below >= 0.9
        false["t"] += found.confidence_below(0.01) >= 0.9
    assert false["both"] <= 0.13 * reps  # 10 % and two standard errors
    assert false["t"] > false["both"]


QRELS = random_qrels(40, np.random.default_rng(1))
RNG = np.random.default_rng(2)
RUNS: dict[str, Run] = {name: random_run(QRELS, noise, RNG) for name, noise in (("a", 2.0), ("b", 1.8))}


def average(names: Sequence[str], **options: Any) -> dict[str, Any]:
    """Compare two systems on the same judgments under several names, and return the last row: of the average."""
    one = compare(RUNS, dict.fromkeys(names, QRELS), untrained=["a", "b"], **options)
    return one.test_rows[-1]


def test_copies_of_a_dataset_are_as_uncertain_as_one() -> None:
    alone = average(["d0"])
    for number in (2, 5, 10):
        copies = average([f"d{place}" for place in range(number)])
        assert copies["dataset"] == f"average of {number}"
        assert [copies[name] for name in ("p", "low", "high")] == pytest.approx(
            [alone[name] for name in ("p", "low", "high")], rel=1e-6
        )
    assert average(["d0", "d1"], topics="separate")["p"] < 0.8 * alone["p"]


def test_clusters_may_span_datasets() -> None:
    renamed = {f"x{query}": of for query, of in QRELS.items()}
    runs: dict[str, Any] = {
        name: {"d0": run, "d1": {f"x{query}": of for query, of in run.items()}} for name, run in RUNS.items()
    }
    clusters = {name: query for query in QRELS for name in (query, f"x{query}")}
    both = compare(runs, {"d0": QRELS, "d1": renamed}, untrained=["a", "b"], clusters=clusters)
    assert both.test_rows[-1]["p"] == pytest.approx(average(["d0"])["p"], rel=1e-6)
    assert any(line.startswith("40 of 40 clusters stand in several retrieval datasets") for line in both.warnings)
    apart = compare(runs, {"d0": QRELS, "d1": renamed}, untrained=["a", "b"])
    assert apart.test_rows[-1]["p"] == average(["d0", "d1"], topics="separate")["p"]
    assert not any("stand in several" in line for line in apart.warnings)


def test_texts_tell_ids_that_coincide_by_chance_but_translations_share_documents() -> None:
    def asked(language: str, documents: str) -> dict[str, Asked | None]:
        return {str(q): Asked(f"{language} question {q}", {f"{documents}{q}": 1}) for q in range(20)}

    assert shared_topics([asked("english", "d"), asked("deutsch", "e")]) is None
    for other in (asked("deutsch", "d"), asked("English ", "e"), dict.fromkeys(map(str, range(20)))):
        shared = shared_topics([asked("english", "d"), other])
        assert shared is not None
        assert shared[0].tolist() == shared[1].tolist()
    by_text = shared_topics([asked("english", "d"), {f"x{q}": of for q, of in asked("english", "e").items()}])
    assert by_text is not None
    assert by_text[0].tolist() == by_text[1].tolist()


def test_fifty_topics_in_five_languages_without_a_difference_are_significant_as_often_as_they_may() -> None:
    rng, small, reps = np.random.default_rng(5), 0, 1_000
    languages = [f"l{place}" for place in range(5)]
    together = drawn_together([np.arange(50, dtype=np.intp)] * 5)
    for _ in range(reps):
        of_topic = rng.normal(0.0, 0.2, 50)
        gaps = [of_topic + rng.normal(0.0, 0.1, 50) for _ in languages]
        blocks = [[gap[None] + 0.5, np.full((1, 50), 0.5)] for gap in gaps]
        p = estimate(moments(blocks, drawn=together), mean_difference(languages)).p
        small += p is not None and p < 0.05
    assert 0.03 <= small / reps <= 0.08


def test_one_shared_topic_leaves_each_dataset_its_own_freedom() -> None:
    """Twelve queries and 500: an average whose variance is that of the twelve has about eleven degrees of freedom."""
    rng = np.random.default_rng(6)
    blocks = [[rng.normal(0.5, sd, (1, n)), np.full((1, n), 0.4)] for n, sd in ((12, 0.3), (500, 0.3))]
    small, large = np.arange(12, dtype=np.intp), np.arange(11, 511, dtype=np.intp)  # 11 is on both
    apart, together = (
        estimate(moments(blocks, drawn=drawn), mean_difference(["x", "y"]))
        for drawn in ((), drawn_together([small, large]))
    )
    assert together.degrees_of_freedom == pytest.approx(apart.degrees_of_freedom, rel=0.3)
    assert together.standard_error == pytest.approx(apart.standard_error, rel=0.05)


def test_languages_with_other_labelled_topics_are_as_certain_as_with_the_same() -> None:
    """Topics on two datasets, of each of which people judged a sample of its own: each kind has a mean of its own."""
    rng, topics, labelled = np.random.default_rng(7), np.arange(400, dtype=np.intp), np.arange(400) < 60
    shifted = np.roll(labelled, 30)

    def error(masks: Sequence[NDArray[np.bool_]]) -> float:
        blocks = []
        for mask in masks:
            rows = rng.normal(0.0, 0.1, (1, 400)) + np.where(mask, 3.0, -0.5)  # scales and means of two kinds
            blocks.append([rows, np.zeros((1, 400))])
        drawn = drawn_together([topics, topics], masks)
        return estimate(moments(blocks, drawn=drawn), mean_difference(["x", "y"])).standard_error

    for masks in ([labelled, labelled], [labelled, shifted]):
        assert np.mean([error(masks) for _ in range(40)]) == pytest.approx(0.1 / np.sqrt(2 * 400), rel=0.03)
