"""How captions find their images: ranks whatever the blocks, and a result that the analysis reads like any other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.caption_pairs import latent_pairs, pairs_of

from unimoe.analysis.compare import load_all_results
from unimoe.core.errors import DataError
from unimoe.core.trec import read_qrels, read_run
from unimoe.results import EvalResult, read_drilldown, read_result, result_path, run_path
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, split_by_image
from unimoe.studies.translator.evaluation import crossmodal_spec, evaluate_crossmodal, image_ranks, rank_metrics
from unimoe.studies.translator.models.interface import LinearMap, Translator
from unimoe.studies.translator.training.closed_forms import PairMoments, fit_ridge

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Case:
    """A translator and the pairs that it is evaluated on."""

    pairs: CaptionPairs
    translator: Translator

    def ranks(self) -> list[int]:
        pairs = self.pairs
        captions, images = self.translator.translate(pairs.captions), self.translator.gallery(pairs.images)
        ranks: list[int] = image_ranks(captions, images, pairs.image_of, image_ids=pairs.image_ids).tolist()
        return ranks

    def evaluate(
        self, folder: Path, arm: str = "ridge", seed: int | None = None, texts: Any = None, **changes: Any
    ) -> EvalResult:
        facts: dict[str, Any] = {
            "experiment": "translator",
            "dataset": "generated",
            "split": "test",
            "config": {"alpha": 1.0},
            "encoder": "words@0123",
            "prompt": "mean@4567",
            "translator_hash": "89ab",
        }
        spec = crossmodal_spec(arm, seed, pairs=self.pairs, **(facts | changes))
        return evaluate_crossmodal(folder, spec, self.translator, self.pairs, texts=texts)


def ridge() -> Case:
    train, test = split_by_image(latent_pairs(images=160, noise=3.0), 0.75, 0)
    return Case(test, fit_ridge(PairMoments(train), 1.0))


class TestRanks:
    def test_they_are_those_of_sorting_everything(self) -> None:
        case = ridge()
        pairs, translator = case.pairs, case.translator
        captions, images = translator.translate(pairs.captions), translator.gallery(pairs.images)
        scores = (captions.astype(np.float64) @ images.T.astype(np.float64)).astype(np.float32)
        expected = []
        for row, target in zip(scores.tolist(), pairs.image_of.tolist(), strict=True):
            order = sorted(zip(row, pairs.image_ids, strict=True), reverse=True)
            expected.append(1 + [key for _, key in order].index(pairs.image_ids[target]))
        assert case.ranks() == expected

    def test_vectors_of_any_length(self) -> None:
        rng = np.random.default_rng(0)
        captions, images = (1e3 * rng.standard_normal((30, 8)).astype(np.float32) for _ in range(2))
        scores = captions.astype(np.float64) @ images.T.astype(np.float64)
        expected = 1 + (scores > np.diag(scores)[:, None]).sum(1)
        assert image_ranks(captions, images, np.arange(30)).tolist() == expected.tolist()

    def test_metrics_by_hand(self) -> None:
        found = rank_metrics(np.array([1, 2, 4, 11]), 50)
        assert found["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 4 + 1 / 11) / 4)
        assert [found[f"recall@{k}"] for k in (1, 5, 10)] == [0.25, 0.75, 0.75]
        assert (found["rank"], found["median_rank"], found["p75_rank"], found["gallery_size"]) == (4.5, 3.0, 5.75, 50.0)


class TestResult:
    def test_it_holds_every_rank_and_the_size_of_the_gallery(self, tmp_path: Path) -> None:
        case = ridge()
        result = case.evaluate(tmp_path)
        assert result == read_result(result_path(tmp_path, "ridge", None, "crossmodal", "generated"))
        ranks = dict(zip(case.pairs.caption_ids, case.ranks(), strict=True))
        assert max(ranks.values()) > 100
        assert {key: round(value) for key, value in result.metric("rank").items()} == ranks
        assert result.per_query == {key: 1 / rank for key, rank in ranks.items()}
        assert result.aggregate["gallery_size"] == 120
        assert result.aggregate["recall@10"] == pytest.approx(np.mean([rank <= 10 for rank in ranks.values()]))
        assert result.provenance.hashes["collection"] == case.pairs.content_hash

    def test_run_judgments_and_texts_stand_beside_it(self, tmp_path: Path) -> None:
        case = ridge()
        pairs = case.pairs
        case.evaluate(tmp_path, texts={key: f"text of {key}" for key in pairs.caption_ids})
        run = read_run(run_path(tmp_path, "ridge", None, "crossmodal", "generated"))
        ranks = case.ranks()
        details = read_drilldown(result_path(tmp_path, "ridge", None, "crossmodal", "generated")).queries
        for key, row, rank in zip(pairs.caption_ids, pairs.image_of.tolist(), ranks, strict=True):
            image = pairs.image_ids[row]
            assert len(run[key]) == 100
            assert (list(run[key]).index(image) + 1 if image in run[key] else None) == (rank if rank <= 100 else None)
            assert details[key].ranks == {image: rank if rank <= 100 else None}
            assert details[key].text == f"text of {key}"
        assert len(read_qrels(tmp_path / "qrels" / "generated-test.qrels")) == len(pairs)

    def test_the_analysis_reads_it(self, tmp_path: Path) -> None:
        ridge().evaluate(tmp_path)
        ridge().evaluate(tmp_path, arm="adapter", seed=3, checkpoint="best")
        results = load_all_results(tmp_path)
        assert results["ridge"][None]["crossmodal/generated"]["mrr"] > 0.06
        assert results["adapter"][3]["crossmodal/generated"]["gallery_size"] == 120

    def test_what_is_done_is_not_done_again_unless_content_changed(self, tmp_path: Path) -> None:
        first = ridge().evaluate(tmp_path)
        assert ridge().evaluate(tmp_path) == first
        again = ridge().evaluate(tmp_path, translator_hash="cdef")
        assert again.provenance.hashes["checkpoint"] == "cdef"
        with pytest.raises(DataError, match="holds another evaluation"):
            ridge().evaluate(tmp_path, split="dev")

    def test_a_caption_or_an_image_without_direction_is_named(self, tmp_path: Path) -> None:
        still = LinearMap(np.zeros((2, 2)), np.zeros(2), None)
        with pytest.raises(DataError, match=r"generated, caption 'c00000': the vector is zero"):
            Case(squares(), still).evaluate(tmp_path)
        at_centre = LinearMap(np.eye(2), np.zeros(2), np.array([4.0, 1.0]))
        with pytest.raises(DataError, match=r"generated, image 'i00001': the vector is zero"):
            Case(squares(), at_centre).evaluate(tmp_path)
        assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} <= {".lock"}


def squares() -> CaptionPairs:
    return pairs_of(np.array([[1, 2], [3, 5]]), np.array([[1, 2], [4, 1]]), np.arange(2))
