"""Two systems' scores of the same pairs: numbers that a reader can check, and what cannot be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau
from support.results import make_result, query_ids

from unimoe.analysis.comparisons import difference
from unimoe.analysis.parity import Scored, compare_dataset, parity
from unimoe.cli.parity import parity_json, parity_lines, verdict_line
from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import Run, write_run
from unimoe.results import result_path, run_path, write_result
from unimoe.results.folder import result_paths

KEY = "reranking/apidocs"
QUERIES = query_ids(12)


def scores(seed: int = 0) -> Run:
    """Twelve candidates of every query, no two with one score."""
    rng = np.random.default_rng(seed)
    return {query: {f"d{n:02d}": float(score) for n, score in enumerate(rng.normal(size=12))} for query in QUERIES}


def scored(run: Run, name: str = "a", *, measure: Any = None, **facts: Any) -> Scored:
    values = np.linspace(0.1, 0.9, len(QUERIES)) if measure is None else measure
    return Scored(make_result(name, None, dict(zip(QUERIES, values, strict=True)), **facts), run)


def changed(run: Run, query: str, document: str, by: float) -> Run:
    return {q: {d: s + by * ((q, d) == (query, document)) for d, s in own.items()} for q, own in run.items()}


class TestNumbers:
    def test_equal_scores_differ_in_nothing(self) -> None:
        found = compare_dataset(KEY, scored(scores()), scored(scores(), "b"))
        assert (found.largest, found.mean, found.kendall_mean, found.top_changed) == (0.0, 0.0, 1.0, [])
        assert (found.queries, found.pairs, found.measure.value) == (12, 144, 0.0)
        assert verdict_line([found], 1e-9, 0.0) == (
            "parity: no score differs by 1e-09 of the scores' range or more, and the first ten documents change in 0 "
            "of 12 queries"
        )

    def test_taus_are_scipys_on_each_query(self) -> None:
        one, other = scores(0), scores(1)
        found = compare_dataset(KEY, scored(one), scored(other, "b"))
        taus = {q: kendalltau([*one[q].values()], [*other[q].values()]).statistic for q in QUERIES}
        assert found.kendall_mean == pytest.approx(np.mean([*taus.values()]))
        assert found.kendall_lowest is not None
        assert found.kendall_lowest[0] == pytest.approx(min(taus.values()))
        assert taus[found.kendall_lowest[1]] == min(taus.values())

    def test_a_system_that_orders_nothing_agrees_with_none_but_its_like(self) -> None:
        flat = {query: dict.fromkeys(own, 1.0) for query, own in scores().items()}
        assert compare_dataset(KEY, scored(flat), scored(flat, "b")).kendall_mean == 1.0
        assert compare_dataset(KEY, scored(flat), scored(scores(), "b")).kendall_mean == 0.0

    def test_queries_of_one_document_have_no_order(self) -> None:
        single = {query: {"d00": own["d00"]} for query, own in scores().items()}
        found = compare_dataset(KEY, scored(single), scored(single, "b"))
        assert (found.kendall_mean, found.kendall_lowest) == (None, None)
        assert not any("Kendall" in line for line in parity_lines(found))

    def test_the_top_changes_where_one_of_its_ten_does_or_two_swap(self) -> None:
        one = scores()
        order = sorted(one["q004"], key=lambda d: -one["q004"][d])
        swapped = {**one, "q004": {**one["q004"], order[0]: one["q004"][order[1]], order[1]: one["q004"][order[0]]}}
        last = sorted(one["q009"], key=lambda d: -one["q009"][d])[10:]
        below = {**one, "q009": {**one["q009"], last[0]: one["q009"][last[1]], last[1]: one["q009"][last[0]]}}
        assert compare_dataset(KEY, scored(one), scored(swapped, "b")).top_changed == ["q004"]
        assert compare_dataset(KEY, scored(one), scored(below, "b")).top_changed == []

    def test_the_measure_has_the_interval_of_the_analysis(self) -> None:
        rng = np.random.default_rng(3)
        values = [rng.uniform(size=len(QUERIES)) for _ in range(2)]
        found = compare_dataset(KEY, scored(scores(), measure=values[0]), scored(scores(), "b", measure=values[1]))
        expected, unfit = difference(values[1][None], values[0][None])
        assert (found.measure.value, found.measure.interval, found.unfit) == (expected.value, expected.interval, unfit)
        assert found.measure.value == pytest.approx(values[1].mean() - values[0].mean())
        low, high = expected.interval or (0, 0)
        assert f"[{low:+.4f}, {high:+.4f}]" in parity_lines(found)[-1]

    def test_another_scale_with_the_same_order_is_named(self) -> None:
        squashed = {q: {d: 1 / (1 + np.exp(-s)) for d, s in own.items()} for q, own in scores().items()}
        found = compare_dataset(KEY, scored(scores()), scored(squashed, "b"))
        assert "as a margin and a probability are" in verdict_line([found], 1e-3, 0.0)
        assert "as a margin" not in verdict_line(
            [compare_dataset(KEY, scored(scores()), scored(scores(1), "b"))], 1e-3, 0.0
        )

    def test_plain_data_says_whether_it_is_within(self) -> None:
        found = compare_dataset(KEY, scored(scores()), scored(changed(scores(), "q003", "d05", 0.5), "b"))
        other = changed(scores(), "q003", "d05", 0.5)
        every = [score for own in other.values() for score in own.values()]
        share = 0.5 / (max(every) - min(every))
        within = [parity_json([found], tolerance * share, 1.0)["within"] for tolerance in (1.01, 0.99)]
        assert within == [True, False]
        (one,) = parity_json([found], 0.6, 1.0)["datasets"]
        assert one["relative_difference"] == pytest.approx(share)
        assert one["largest_at"] == {"query": "q003", "document": "d05"}
        assert one["systems"] == ["a (smollm2@0123456789abcdef)", "b (smollm2@0123456789abcdef)"]


class TestRefused:
    def test_other_pairs(self) -> None:
        less = {
            query: {d: s for d, s in own.items() if (query, d) != ("q005", "d03")} for query, own in scores().items()
        }
        with pytest.raises(DataError, match="query 'q005', document 'd03' was scored by a alone; evaluate both on the"):
            compare_dataset(KEY, scored(scores()), scored(less, "b"))
        with pytest.raises(DataError, match="document 'd03' was scored by b alone"):
            compare_dataset(KEY, scored(less), scored(scores(), "b"))

    def test_another_collection_of_the_same_name(self) -> None:
        sides = [scored(scores(), hashes={"collection": text}) for text in ("one", "other")]
        with pytest.raises(DataError, match="two collections of one name"):
            compare_dataset(KEY, *sides)

    def test_no_dataset_in_common(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="the first system has reranking/a, the second reranking/b"):
            parity({"reranking/a": tmp_path}, {"reranking/b": tmp_path})


class TestPlaces:
    def write(self, output_dir: Path, arm: str, seed: int | None = None, *, run: bool = True) -> Path:
        result = make_result(arm, seed, dict.fromkeys(QUERIES, 0.5))
        write_result(output_dir, result)
        place = (output_dir, arm, seed, "reranking", "apidocs")
        if run:
            path = run_path(*place)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_run(path, scores(), arm)
        return result_path(*place)

    def test_a_file_and_the_folders_above_it_are_the_same_system(self, tmp_path: Path) -> None:
        file = self.write(tmp_path, "mine")
        self.write(tmp_path, "bm25")
        for place in (file, file.parents[2], file.parents[3], tmp_path):
            assert result_paths(place) == {KEY: file}
        for places in ((file, tmp_path), (str(file.parents[2]), result_paths(file))):
            (found,) = parity(*places)
            assert found.largest == 0.0

    def test_several_systems_have_to_be_told(self, tmp_path: Path) -> None:
        for arm, seed in (("joint_r8", 0), ("joint_r8", 1), ("zero_shot", None)):
            self.write(tmp_path, arm, seed)
        with pytest.raises(UsageError, match=r"holds results of 3 systems; name one of .*seed_0, .*seed_1, "):
            result_paths(tmp_path)
        assert list(result_paths(tmp_path / "joint_r8" / "seed_1")) == [KEY]

    def test_without_a_run_it_says_what_to_do(self, tmp_path: Path) -> None:
        file = self.write(tmp_path, "mine", run=False)
        with pytest.raises(DataError, match=r"apidocs\.trec is missing.*run `unimoe evaluate` again"):
            parity({KEY: file}, {KEY: file})
