"""How captions find their images: ranks whatever the blocks, and a result that the analysis reads like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.caption_pairs import latent_pairs, pairs_of

from unimoe.core.errors import DataError
from unimoe.core.trec import read_qrels, read_run
from unimoe.evaluation.spec import Evaluation
from unimoe.evaluation.store import ResultStore
from unimoe.results import Identity, read_drilldown, read_result, result_path, run_path
from unimoe.results.folder import load_all_results
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, split_by_image
from unimoe.studies.translator.evaluation import crossmodal_outcome, image_ranks, rank_metrics
from unimoe.studies.translator.models.translators import LinearMap
from unimoe.studies.translator.training.closed_forms import PairMoments, fit_ridge

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def ridge() -> tuple[CaptionPairs, LinearMap]:
    """120 test images, and a map that was fitted on 40 others."""
    train, test = split_by_image(latent_pairs(images=160, noise=3.0), 0.75, 0)
    return test, fit_ridge(PairMoments(train), 1.0)


def sorted_ranks(pairs: CaptionPairs, translator: LinearMap) -> dict[str, int]:
    """Ranks by sorting all scores, of equal ones the higher id first."""
    captions, images = translator.translate(pairs.captions), translator.gallery(pairs.images)
    scores = (captions.astype(np.float64) @ images.T.astype(np.float64)).astype(np.float32)
    ranks = {}
    for key, row, target in zip(pairs.caption_ids, scores.tolist(), pairs.image_of, strict=True):
        order = [image for _, image in sorted(zip(row, pairs.image_ids, strict=True), reverse=True)]
        ranks[key] = 1 + order.index(pairs.image_ids[target])
    return ranks


def test_the_result_holds_every_rank_and_the_analysis_reads_it(
    ridge: tuple[CaptionPairs, LinearMap], tmp_path: Path
) -> None:
    pairs, translator = ridge
    ranks = sorted_ranks(pairs, translator)
    identity = Identity(experiment="translator", checkpoint="none", split="test")
    hashes = {"collection": pairs.content_hash}
    spec = Evaluation("ridge", None, "crossmodal", "generated", identity, hashes, {}, "mrr", "float32")
    texts = {key: f"text of {key}" for key in pairs.caption_ids}
    result = ResultStore(tmp_path).evaluated(spec, lambda: crossmodal_outcome(translator, pairs, "generated", texts))

    place = tmp_path, "ridge", None, "crossmodal", "generated"
    assert result == read_result(result_path(*place))
    assert max(ranks.values()) > 100
    assert {key: round(value) for key, value in result.metric("rank").items()} == ranks
    assert result.per_query == {key: 1 / rank for key, rank in ranks.items()}
    assert result.aggregate["gallery_size"] == 120
    assert load_all_results(tmp_path)["ridge"][None]["crossmodal/generated"]["mrr"] > 0.06
    run, details = read_run(run_path(*place)), read_drilldown(result_path(*place)).queries
    for key, row in zip(pairs.caption_ids, pairs.image_of.tolist(), strict=True):
        image, shown = pairs.image_ids[row], ranks[key] if ranks[key] <= 100 else None
        assert len(run[key]) == 100
        assert (list(run[key]).index(image) + 1 if image in run[key] else None) == shown
        assert (details[key].ranks, details[key].text) == ({image: shown}, f"text of {key}")
    assert len(read_qrels(tmp_path / "qrels" / "generated-test.qrels")) == len(pairs)


def test_vectors_of_any_length_have_ranks() -> None:
    rng = np.random.default_rng(0)
    captions, images = (1e3 * rng.standard_normal((30, 8)).astype(np.float32) for _ in range(2))
    scores = captions.astype(np.float64) @ images.T.astype(np.float64)
    expected = 1 + (scores > np.diag(scores)[:, None]).sum(1)
    assert image_ranks(captions, images, np.arange(30)).tolist() == expected.tolist()
    ties = np.array([[3], [2], [2], [1]], dtype=np.float32)  # without ids the later row goes first
    assert image_ranks(np.ones((4, 1), dtype=np.float32), ties, np.arange(4)).tolist() == [1, 3, 2, 4]


def test_metrics_by_hand() -> None:
    found = rank_metrics(np.array([1, 2, 4, 11]), 50)
    assert found["mrr"] == pytest.approx((1 + 1 / 2 + 1 / 4 + 1 / 11) / 4)
    assert [found[f"recall@{k}"] for k in (1, 5, 10)] == [0.25, 0.75, 0.75]
    assert (found["rank"], found["median_rank"], found["p75_rank"], found["gallery_size"]) == (4.5, 3.0, 5.75, 50.0)


@pytest.mark.parametrize(
    ("translator", "named"),
    [
        (LinearMap(np.zeros((2, 2)), np.zeros(2)), "caption 'c00000'"),
        (LinearMap(np.eye(2), np.zeros(2), np.array([4.0, 1.0])), "image 'i00001'"),
    ],
)
def test_a_caption_or_an_image_without_direction_is_named(translator: LinearMap, named: str) -> None:
    pairs = pairs_of(np.array([[1, 2], [3, 5]]), np.array([[1, 2], [4, 1]]), np.arange(2))
    with pytest.raises(DataError, match=rf"generated, {named}: the vector is zero"):
        crossmodal_outcome(translator, pairs, "generated")
