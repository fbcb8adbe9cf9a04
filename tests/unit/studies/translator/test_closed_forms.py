"""Closed forms of a translator, how captions find their images by them, and submissions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.caption_pairs import latent_pairs, pairs_of
from support.json_files import read_plain, write_plain
from support.studies import read_submission

from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.core.trec import read_qrels, read_run
from unimoe.evaluation.spec import Evaluation
from unimoe.evaluation.store import ResultStore
from unimoe.results import Identity, read_drilldown, read_result, result_path, run_path
from unimoe.results.folder import load_all_results
from unimoe.studies.translator.config import TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, split_by_image
from unimoe.studies.translator.data.sources import generated_pairs
from unimoe.studies.translator.evaluation import crossmodal_outcome, rank_metrics
from unimoe.studies.translator.models.files import (
    MANIFEST_FILE,
    TENSORS_FILE,
    load_translator,
    read_manifest,
    save_translator,
    write_submission,
)
from unimoe.studies.translator.models.translators import LinearMap, ProjectionPair
from unimoe.studies.translator.training.closed_forms import (
    PairMoments,
    cross_validated,
    fit_cca,
    fit_closed_form,
    fit_geometry,
    fit_ridge,
    held_out_mrr,
)

pytestmark = pytest.mark.usefixtures("one_thread")


Fit = Callable[[PairMoments], LinearMap | ProjectionPair]

FORMS: dict[str, Fit] = {
    "ridge": lambda moments: fit_ridge(moments, 1e-6),
    "geometry": lambda moments: fit_geometry(moments, power=1.0),
    "rotation": fit_geometry,
    "cca": fit_cca,
}

every_form = pytest.mark.parametrize("fit", FORMS.values(), ids=FORMS)


def chosen(name: str, pairs: CaptionPairs, **settings: Any) -> LinearMap | ProjectionPair:
    """Fit a closed form whose settings are chosen over three folds of images."""
    return fit_closed_form(name, pairs, TranslatorConfig.model_validate({name: {"folds": 3} | settings}))


def test_captions_in_a_subspace_have_a_least_squares_map() -> None:
    pairs, matrix = generated_pairs(200, 3, dims=(12, 20), noise=0.0)
    wide = pairs_of(np.hstack([pairs.captions, pairs.captions[:, :2]]), pairs.images + 3, pairs.image_of)
    fitted = fit_ridge(PairMoments(wide), 0.0)
    assert np.allclose(fitted.predict(wide.captions), wide.images[wide.image_of], atol=1e-3)
    assert np.abs(fitted.weight).max() < 10
    narrow = PairMoments(pairs)
    for found in (fit_ridge(narrow, 0.0), *(fit_geometry(narrow, power=p, shrinkage=0.0) for p in (0.0, 0.5, 1.0))):
        assert np.allclose(found.weight, matrix, atol=1e-4)


@every_form
def test_captions_find_their_images(fit: Fit) -> None:
    train, test = split_by_image(generated_pairs(200, 3, dims=(12, 20), noise=0.0)[0], 0.3, 0)
    assert held_out_mrr(fit(PairMoments(train)), test) == 1.0
    train, test = split_by_image(latent_pairs(), 0.3, 0)
    translator = fit(PairMoments(train))
    assert held_out_mrr(translator, test) > 4 * float(np.mean(1 / np.arange(1, len(test.images) + 1)))  # of chance
    for vectors in (translator.translate(test.captions), translator.gallery(test.images)):
        assert vectors.dtype == np.float32
        assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("shrinkage", [0.0, "ledoit_wolf"])
def test_fewer_images_than_dimensions_are_shrunk_and_a_note_says_so(shrinkage: Any) -> None:
    train, test = split_by_image(latent_pairs(images=40, dims=(24, 64)), 0.3, 0)
    moments = PairMoments(train)
    for translator in (fit_geometry(moments, shrinkage=shrinkage), fit_cca(moments, shrinkage=shrinkage)):
        assert any(note.startswith("28 images in 64 dimensions") for note in translator.notes)
        assert held_out_mrr(translator, test) > 0.4
    assert fit_ridge(moments, 1.0).notes[0].startswith("28 images in 64 dimensions")
    assert fit_geometry(PairMoments(latent_pairs())).notes == ()


def test_what_the_data_is_too_small_for_is_refused() -> None:
    alike = pairs_of(np.ones((6, 3)), np.random.default_rng(0).standard_normal((6, 3)), np.arange(6))
    with pytest.raises(DataError, match="all 6 captions have the same embedding"):
        fit_geometry(PairMoments(alike))
    with pytest.raises(UsageError, match="use 1 to 24"):
        fit_cca(PairMoments(latent_pairs()), components=25)
    with pytest.raises(UsageError, match="3 folds of 2 images"):
        chosen("ridge", latent_pairs(images=2))


def test_the_best_settings_over_folds_are_chosen() -> None:
    pairs, alphas, powers = latent_pairs(images=60, noise=2.0), [1e9, 1.0, 100.0], (0.5, 1.0, 2.0)
    ridges: list[Fit] = [lambda m, alpha=alpha: fit_ridge(m, alpha) for alpha in alphas]  # type: ignore[misc]
    scores = cross_validated(pairs, ridges, 3, 0)
    fitted, best = chosen("ridge", pairs, alphas=alphas), alphas[int(scores.argmax())]
    assert isinstance(fitted, LinearMap)
    assert len(set(scores.tolist())) == 3
    assert np.allclose(fitted.weight, fit_ridge(PairMoments(pairs), best).weight)
    assert fitted.notes[0].startswith(f"ridge alpha {best:.4g}")
    assert f"({scores.max():.4f})" in fitted.notes[0]
    assert ", the lowest tried: best MRR" in chosen("ridge", latent_pairs(images=60), alphas=[1.0, 1e9]).notes[0]
    ccas: list[Fit] = [lambda m, power=power: fit_cca(m, power=power, shrinkage=0.3) for power in powers]  # type: ignore[misc]
    scores = cross_validated(pairs, ccas, 3, 0)
    own = chosen("cca", pairs, shrinkage=0.3)
    assert isinstance(own, ProjectionPair)
    expected = fit_cca(PairMoments(pairs), power=powers[int(scores.argmax())], shrinkage=0.3)
    assert np.allclose(own.image_weight, expected.image_weight)
    assert "of 3 settings tried" in own.notes[0]


@every_form
def test_vectors_of_another_encoder_are_refused(fit: Fit) -> None:
    translator = fit(PairMoments(latent_pairs()))
    with pytest.raises(DataError, match=r"captions of shape \(2, 5\), but .* 24 dimensions"):
        translator.translate(np.ones((2, 5), dtype=np.float32))
    with pytest.raises(DataError, match=r"images of shape \(2, 5\), but .* 32 dimensions"):
        translator.gallery(np.ones((2, 5), dtype=np.float32))


@every_form
def test_a_saved_translator_translates_as_before(fit: Fit, tmp_path: Path) -> None:
    pairs = latent_pairs(images=30)
    translator = fit(PairMoments(pairs))
    save_translator(tmp_path / "t", translator, {"alpha": 1.0})
    loaded = load_translator(tmp_path / "t")
    assert np.array_equal(loaded.translate(pairs.captions), translator.translate(pairs.captions))
    assert np.array_equal(loaded.gallery(pairs.images), translator.gallery(pairs.images))
    assert loaded.notes == translator.notes
    assert read_manifest(tmp_path / "t").settings == {"alpha": 1.0}


def test_damage_to_a_saved_translator_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    with pytest.raises(DataError, match="t is missing; train it"):
        load_translator(folder)
    save_translator(folder, LinearMap(np.eye(2), np.zeros(2)), {})
    manifest = read_plain(folder / MANIFEST_FILE)
    for key, value, words in (("translator_version", 9, "translator_version"), ("kind", "mlp", "no mlp that this")):
        write_plain(folder / MANIFEST_FILE, manifest | {key: value})
        with pytest.raises(DataError, match=words):
            load_translator(folder)
    write_plain(folder / MANIFEST_FILE, manifest)
    (folder / TENSORS_FILE).write_bytes(b"other")
    with pytest.raises(DataError, match="content differs from its manifest"):
        load_translator(folder)


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


def test_vectors_come_back_exactly_and_of_unit_length(tmp_path: Path) -> None:
    path, vectors = tmp_path / "submission.csv", np.random.default_rng(0).standard_normal((20, 64))
    ids = [str(row) for row in range(18)] + ['a "quoted", id', "ünï"]
    write_submission(path, ids, vectors)
    read_ids, found = read_submission(path)
    assert read_ids == ids
    assert np.array_equal(found, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    write_submission(path, ["7", "8"], np.array([[3.0, 4.0], [0.0, 2.0]], dtype=np.float32))
    assert path.read_text() == 'id,embedding\n7,"[0.59999999999999998, 0.80000000000000004]"\n8,"[0, 1]"\n'


def test_a_refused_submission_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    write_submission(path, ["a", "b"], np.eye(2))
    before = path.read_text()
    for bad in (np.nan, 0.0):
        with pytest.raises(InputError, match="zero or not finite") as raised:
            write_submission(path, ["a", "b"], np.array([[1.0, 0.0], [bad, 0.0]]))
        assert raised.value.index == 1
    with pytest.raises(DataError, match="an id is empty"):
        write_submission(path, ["a", ""], np.eye(2))
    assert path.read_text() == before
