"""Two systems' scores of the same pairs: numbers that a reader can check, and what cannot be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau
from support.results import make_result, query_ids

from unimoe.analysis.comparisons import difference
from unimoe.analysis.parity import Parity, Scored, compare_dataset, parity
from unimoe.cli.parity import parity_json, parity_lines, verdict_line
from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import Run, write_run
from unimoe.results import result_path, run_path, write_result
from unimoe.results.folder import result_paths

KEY = "reranking/apidocs"
QUERIES = query_ids(12)
EQUAL = (np.linspace(0.1, 0.9, 12),) * 2


def scores(seed: int = 0) -> Run:
    """Twelve candidates of every query, no two with one score."""
    rng = np.random.default_rng(seed)
    return {query: {f"d{n:02d}": float(score) for n, score in enumerate(rng.normal(size=12))} for query in QUERIES}


def compared(first: Run, second: Run, measures: Any = EQUAL, collections: str = "cc") -> Parity:
    sides = (
        Scored(make_result(name, None, dict(zip(QUERIES, values, strict=True)), hashes={"collection": held}), run)
        for name, run, values, held in zip("ab", (first, second), measures, collections, strict=True)
    )
    return compare_dataset(KEY, *sides)


class TestNumbers:
    def test_equal_scores_differ_in_nothing(self) -> None:
        found = compared(scores(), scores())
        assert (found.largest, found.mean, found.kendall_mean, found.top_changed) == (0.0, 0.0, 1.0, [])
        assert (found.queries, found.pairs, found.measure.value) == (12, 144, 0.0)
        assert verdict_line([found], 1e-9, 0.0) == (
            "parity: no score differs by 1e-09 of the scores' range or more, and the first ten documents change in 0 "
            "of 12 queries"
        )

    def test_taus_are_scipys_on_each_query(self) -> None:
        one, other = scores(0), scores(1)
        found = compared(one, other)
        taus = {q: kendalltau([*one[q].values()], [*other[q].values()]).statistic for q in QUERIES}
        assert found.kendall_mean == pytest.approx(np.mean([*taus.values()]))
        assert found.kendall_lowest is not None
        assert found.kendall_lowest[0] == pytest.approx(min(taus.values()))
        assert taus[found.kendall_lowest[1]] == min(taus.values())

    def test_what_orders_nothing_agrees_with_none_but_its_like_and_one_document_has_no_order(self) -> None:
        flat = {query: dict.fromkeys(own, 1.0) for query, own in scores().items()}
        assert compared(flat, flat).kendall_mean == 1.0
        assert compared(flat, scores()).kendall_mean == 0.0
        single = {query: {"d00": own["d00"]} for query, own in scores().items()}
        found = compared(single, single)
        assert (found.kendall_mean, found.kendall_lowest) == (None, None)
        assert not any("Kendall" in line for line in parity_lines(found))

    @pytest.mark.parametrize(("places", "changed"), [((0, 1), ["q004"]), ((10, 11), [])])
    def test_the_top_changes_where_two_of_its_ten_swap(self, places: tuple[int, int], changed: list[str]) -> None:
        one = scores()
        own = one["q004"]
        first, second = (sorted(own, key=lambda d: -own[d])[place] for place in places)
        swapped = {**one, "q004": {**own, first: own[second], second: own[first]}}
        assert compared(one, swapped).top_changed == changed

    def test_the_measure_has_the_interval_of_the_analysis(self) -> None:
        values = np.random.default_rng(3).uniform(size=(2, 12))
        found = compared(scores(), scores(), values)
        expected, unfit = difference(values[1][None], values[0][None])
        assert (found.measure.value, found.measure.interval, found.unfit) == (expected.value, expected.interval, unfit)
        assert found.measure.value == pytest.approx(values[1].mean() - values[0].mean())
        low, high = expected.interval or (0, 0)
        assert f"[{low:+.4f}, {high:+.4f}]" in parity_lines(found)[-1]

    def test_another_scale_with_the_same_order_is_named(self) -> None:
        squashed = {q: {d: 1 / (1 + np.exp(-s)) for d, s in own.items()} for q, own in scores().items()}
        assert "as a margin and a probability are" in verdict_line([compared(scores(), squashed)], 1e-3, 0.0)
        assert "as a margin" not in verdict_line([compared(scores(), scores(1))], 1e-3, 0.0)

    def test_plain_data_says_whether_it_is_within(self) -> None:
        moved = scores()
        moved["q003"]["d05"] += 0.5
        found = compared(scores(), moved)
        every = [score for own in moved.values() for score in own.values()]
        share = 0.5 / (max(every) - min(every))
        assert [parity_json([found], factor * share, 1.0)["within"] for factor in (1.01, 0.99)] == [True, False]
        (one,) = parity_json([found], 0.6, 1.0)["datasets"]
        assert one["relative_difference"] == pytest.approx(share)
        assert one["largest_difference"] == pytest.approx(0.5)
        assert one["largest_at"] == {"query": "q003", "document": "d05"}
        assert one["systems"] == ["a (smollm2@0123456789abcdef)", "b (smollm2@0123456789abcdef)"]
        assert (one["kendall_lowest_query"], one["unfit"] is None) == ("q003", False)


def test_other_pairs_and_collections_are_refused() -> None:
    less = scores()
    del less["q005"]["d03"]
    with pytest.raises(DataError, match="query 'q005', document 'd03' was scored by a alone; evaluate both on the"):
        compared(scores(), less)
    with pytest.raises(DataError, match="document 'd03' was scored by b alone"):
        compared(less, scores())
    with pytest.raises(DataError, match="two collections of one name"):
        compared(scores(), scores(), collections="cd")
    with pytest.raises(DataError, match="the first system has reranking/a, the second reranking/b"):
        parity({"reranking/a": Path()}, {"reranking/b": Path()})


class TestPlaces:
    def write(self, output_dir: Path, arm: str, seed: int | None = None) -> Path:
        write_result(output_dir, make_result(arm, seed, dict.fromkeys(QUERIES, 0.5)))
        place = (output_dir, arm, seed, "reranking", "apidocs")
        write_run(run_path(*place), scores(), arm)
        return result_path(*place)

    def test_a_file_and_the_folders_above_it_are_the_same_system(self, tmp_path: Path) -> None:
        file = self.write(tmp_path, "mine")
        self.write(tmp_path, "bm25")
        for place in (file, file.parents[2], file.parents[3], tmp_path):
            assert result_paths(place) == {KEY: file}
        for places in ((file, tmp_path), (str(file.parents[2]), result_paths(file))):
            (found,) = parity(*places)
            assert found.largest == 0.0
        run_path(tmp_path, "mine", None, "reranking", "apidocs").unlink()
        with pytest.raises(DataError, match=r"apidocs\.trec is missing.*run `unimoe evaluate` again"):
            parity(file, file)
        with pytest.raises(DataError, match=r"nowhere: no reranking results here; name a result file"):
            parity(file, tmp_path / "nowhere")

    def test_several_systems_have_to_be_told(self, tmp_path: Path) -> None:
        for arm, seed in (("joint_r8", 0), ("joint_r8", 1), ("zero_shot", None)):
            self.write(tmp_path, arm, seed)
        with pytest.raises(UsageError, match=r"holds results of 3 systems; name one of .*seed_0, .*seed_1, "):
            result_paths(tmp_path)
        assert list(result_paths(tmp_path / "joint_r8" / "seed_1")) == [KEY]
