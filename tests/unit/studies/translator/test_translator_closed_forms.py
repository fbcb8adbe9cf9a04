"""The closed forms: what they recover, what they do with too little data, how they are chosen and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.caption_pairs import latent_pairs, linear_pairs, pairs_of
from support.json_files import read_plain, write_plain

from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.studies.translator.config import TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, split_by_image
from unimoe.studies.translator.models.files import (
    MANIFEST_FILE,
    TENSORS_FILE,
    load_translator,
    read_manifest,
    save_translator,
)
from unimoe.studies.translator.models.interface import LinearMap, ProjectionPair
from unimoe.studies.translator.training.closed_forms import (
    PairMoments,
    cross_validated,
    fit_cca,
    fit_closed_form,
    fit_geometry,
    fit_ridge,
    held_out_mrr,
)

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


class TestMoments:
    def test_they_are_those_of_numpy(self) -> None:
        pairs = latent_pairs(images=40)
        found, captions = PairMoments(pairs), pairs.captions.astype(np.float64)
        paired = pairs.images[pairs.image_of].astype(np.float64)
        for moments, vectors in ((found.captions, captions), (found.images, pairs.images.astype(np.float64))):
            values, basis = moments.spectrum
            assert np.allclose((basis * values) @ basis.T, np.cov(vectors.T, bias=True))
        expected = (captions - captions.mean(0)).T @ (paired - paired.mean(0)) / len(captions)
        assert np.allclose(found.cross, expected)
        assert np.allclose(found.paired_mean, paired.mean(0))

    def test_images_count_once_in_their_moments_and_by_captions_in_the_pairs(self) -> None:
        pairs = pairs_of(np.ones((4, 1)) * [[1], [2], [3], [4]], np.array([[1.0], [9.0]]), np.array([1, 0, 1, 1]))
        found = PairMoments(pairs)
        assert found.images.mean == pytest.approx(5.0)
        assert found.paired_mean == pytest.approx(7.0)
        assert found.cross == pytest.approx((1 * 9 + 2 * 1 + 3 * 9 + 4 * 9) / 4 - 2.5 * 7)


class TestRecovery:
    def test_a_known_map_is_found_exactly(self) -> None:
        pairs, weight, bias = linear_pairs()
        moments = PairMoments(pairs)
        fitted = fit_ridge(moments, 0.0)
        assert np.allclose(fitted.weight, weight, atol=1e-5)
        assert np.allclose(fitted.bias, bias, atol=1e-5)
        assert np.allclose(fitted.predict(pairs.captions), pairs.images[pairs.image_of], atol=1e-4)
        for power in (0.0, 0.5, 1.0):
            assert np.allclose(fit_geometry(moments, power=power, shrinkage=0.0).weight, weight, atol=1e-5)

    @every_form
    def test_without_noise_every_caption_finds_its_image(self, fit: Fit) -> None:
        train, test = split_by_image(linear_pairs()[0], 0.3, 0)
        assert held_out_mrr(fit(PairMoments(train)), test) == 1.0

    @every_form
    def test_with_noise_far_better_than_chance(self, fit: Fit) -> None:
        train, test = split_by_image(latent_pairs(), 0.3, 0)
        translator = fit(PairMoments(train))
        chance = float(np.mean(1 / np.arange(1, len(test.images) + 1)))
        assert held_out_mrr(translator, test) > 4 * chance
        for vectors in (translator.translate(test.captions), translator.gallery(test.images)):
            assert vectors.dtype == np.float32
            assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)

    def test_captions_in_a_subspace_have_a_least_squares_map(self) -> None:
        pairs, _, _ = linear_pairs(dims=(4, 6))
        wide = pairs_of(np.hstack([pairs.captions, pairs.captions[:, :2]]), pairs.images, pairs.image_of)
        fitted = fit_ridge(PairMoments(wide), 0.0)
        assert np.allclose(fitted.predict(wide.captions), wide.images[wide.image_of], atol=1e-4)
        assert np.abs(fitted.weight).max() < 10

    def test_a_centred_cosine_beats_the_plain_one_where_the_mean_is_large(self) -> None:
        train, test = split_by_image(latent_pairs(noise=1.0), 0.3, 0)
        maps = [fit_ridge(PairMoments(train), 1.0, centred_cosine=centred) for centred in (True, False)]
        assert held_out_mrr(maps[0], test) > held_out_mrr(maps[1], test)


class TestLittleData:
    @pytest.mark.parametrize("shrinkage", [0.0, "ledoit_wolf"])
    def test_fewer_images_than_dimensions_are_shrunk_and_it_says_so(self, shrinkage: Any) -> None:
        train, test = split_by_image(latent_pairs(images=40, dims=(24, 64)), 0.3, 0)
        moments = PairMoments(train)
        for translator in (fit_geometry(moments, shrinkage=shrinkage), fit_cca(moments, shrinkage=shrinkage)):
            assert any(note.startswith("28 images in 64 dimensions") for note in translator.notes)
            assert held_out_mrr(translator, test) > 0.4
        assert fit_ridge(moments, 1.0).notes[0].startswith("28 images in 64 dimensions")
        assert fit_geometry(PairMoments(latent_pairs())).notes == ()

    def test_nothing_to_align(self) -> None:
        pairs = pairs_of(np.ones((6, 3)), np.random.default_rng(0).standard_normal((6, 3)), np.arange(6))
        with pytest.raises(DataError, match="all 6 captions have the same embedding"):
            fit_geometry(PairMoments(pairs))

    def test_what_the_data_is_too_small_for_is_refused(self) -> None:
        with pytest.raises(UsageError, match="use 1 to 24"):
            fit_cca(PairMoments(latent_pairs()), components=25)
        with pytest.raises(UsageError, match="3 folds of 2 images"):
            chosen("ridge", latent_pairs(images=2))


class TestChoosing:
    def test_alpha_is_the_best_tried(self) -> None:
        pairs, alphas = latent_pairs(images=60, noise=2.0), [1e9, 1.0, 100.0]
        scores = cross_validated(pairs, [lambda m, alpha=alpha: fit_ridge(m, alpha) for alpha in alphas], 3, 0)  # type: ignore[misc]
        fitted, best = chosen("ridge", pairs, alphas=alphas), alphas[int(scores.argmax())]
        assert isinstance(fitted, LinearMap)
        assert len(set(scores.tolist())) == 3
        assert np.allclose(fitted.weight, fit_ridge(PairMoments(pairs), best).weight)
        assert fitted.notes[0].startswith(f"ridge alpha {best:.4g}")
        assert f"({scores.max():.4f})" in fitted.notes[0]

    def test_an_alpha_at_the_edge_is_said(self) -> None:
        assert ", the lowest tried: best MRR" in chosen("ridge", latent_pairs(images=60), alphas=[1.0, 1e9]).notes[0]

    def test_settings_of_cca_are_the_best_tried(self) -> None:
        pairs = latent_pairs(images=60, noise=2.0)
        fits: list[Fit] = [lambda m, power=power: fit_cca(m, power=power, shrinkage=0.3) for power in (0.5, 1.0, 2.0)]  # type: ignore[misc]
        best = fits[int(cross_validated(pairs, fits, 3, 0).argmax())](PairMoments(pairs))
        fitted = chosen("cca", pairs, shrinkage=0.3)
        assert isinstance(fitted, ProjectionPair)
        assert isinstance(best, ProjectionPair)
        assert np.allclose(fitted.image_weight, best.image_weight)
        assert "of 3 settings tried" in fitted.notes[0]


class TestBadInput:
    @every_form
    def test_vectors_of_another_encoder(self, fit: Fit) -> None:
        translator = fit(PairMoments(latent_pairs()))
        with pytest.raises(DataError, match=r"captions of shape \(2, 5\), but .* 24 dimensions"):
            translator.translate(np.ones((2, 5), dtype=np.float32))
        with pytest.raises(DataError, match=r"images of shape \(2, 5\), but .* 32 dimensions"):
            translator.gallery(np.ones((2, 5), dtype=np.float32))

    def test_a_vector_without_direction_carries_its_index(self) -> None:
        translator = LinearMap(np.eye(2), np.zeros(2))
        with pytest.raises(InputError, match="zero") as raised:
            translator.translate(np.array([[1, 0], [0, 0]], dtype=np.float32))
        assert raised.value.index == 1
        with pytest.raises(InputError, match="not finite"):
            translator.gallery(np.array([[np.inf, 0]], dtype=np.float32))


class TestFiles:
    @every_form
    @pytest.mark.parametrize("centred", [True, False])
    def test_what_is_kept_translates_as_before(self, fit: Fit, centred: bool, tmp_path: Path) -> None:
        pairs = latent_pairs(images=30)
        translator = fit(PairMoments(pairs))
        if isinstance(translator, LinearMap) and not centred:
            translator = LinearMap(translator.weight, translator.bias, notes=translator.notes)
        saved = save_translator(tmp_path / "t", translator, {"alpha": 1.0})
        loaded, stored = load_translator(tmp_path / "t"), read_manifest(tmp_path / "t")
        assert np.array_equal(loaded.translate(pairs.captions), translator.translate(pairs.captions))
        assert np.array_equal(loaded.gallery(pairs.images), translator.gallery(pairs.images))
        assert loaded.notes == translator.notes
        assert (stored.tensors_hash, stored.settings) == (saved, {"alpha": 1.0})

    def test_damage_is_found(self, tmp_path: Path) -> None:
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
