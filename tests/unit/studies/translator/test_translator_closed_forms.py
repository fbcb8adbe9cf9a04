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
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, split_by_image
from unimoe.studies.translator.models.files import (
    MANIFEST_FILE,
    TENSORS_FILE,
    load_closed_form,
    read_translator,
    save_closed_form,
    save_translator,
)
from unimoe.studies.translator.models.interface import LinearMap, ProjectionPair, Translator
from unimoe.studies.translator.models.ridge import fit_ridge
from unimoe.studies.translator.models.statistics import PairStatistics, fold_statistics, pair_statistics, total
from unimoe.studies.translator.models.whitening import fit_cca, fit_geometry
from unimoe.studies.translator.training.closed_forms import cross_validated_cca, cross_validated_ridge, held_out_mrr

Fit = Callable[[PairStatistics], LinearMap | ProjectionPair]

FORMS: dict[str, Fit] = {
    "ridge": lambda statistics: fit_ridge(statistics, 1e-6),
    "geometry": lambda statistics: fit_geometry(statistics, power=1.0),
    "rotation": fit_geometry,
    "cca": fit_cca,
}
every_form = pytest.mark.parametrize("fit", FORMS.values(), ids=FORMS)


def mrr(translator: Translator, pairs: CaptionPairs) -> float:
    return held_out_mrr(translator, pairs, np.arange(len(pairs.images)))


class TestStatistics:
    @pytest.mark.parametrize("block", [1, 7, 100000])
    def test_blocks_change_nothing(self, block: int) -> None:
        pairs = latent_pairs(images=40)
        found, captions = pair_statistics(pairs, block=block), pairs.captions.astype(np.float64)
        paired = pairs.images[pairs.image_of].astype(np.float64)
        assert np.allclose(found.captions.covariance, np.cov(captions.T, bias=True))
        assert np.allclose(found.images.covariance, np.cov(pairs.images.astype(np.float64).T, bias=True))
        expected = (captions - captions.mean(0)).T @ (paired - paired.mean(0)) / len(captions)
        assert np.allclose(found.cross_covariance, expected)
        assert np.allclose(found.paired_mean, paired.mean(0))

    def test_images_count_once_in_their_moments_and_by_captions_in_the_pairs(self) -> None:
        pairs = pairs_of(np.ones((4, 1)) * [[1], [2], [3], [4]], np.array([[1.0], [9.0]]), np.array([1, 0, 1, 1]))
        found = pair_statistics(pairs)
        assert found.images.mean == pytest.approx(5.0)
        assert found.paired_mean == pytest.approx(7.0)
        assert found.cross == pytest.approx(1 * 9 + 2 * 1 + 3 * 9 + 4 * 9)

    def test_folds_add_up_and_share_no_image(self) -> None:
        pairs = latent_pairs(images=23)
        parts = fold_statistics(pairs, 5, seed=1)
        whole = pair_statistics(pairs)
        assert sum(part.images.count for part in parts) == 23
        assert all(part.captions.count == 5 * part.images.count for part in parts)
        assert np.allclose(total(parts).cross, whole.cross)
        rest = whole - parts[0]
        assert np.allclose(rest.captions.square, total(parts[1:]).captions.square)
        assert rest.captions.count == total(parts[1:]).captions.count

    @pytest.mark.parametrize("folds", [1, 24])
    def test_folds_without_images(self, folds: int) -> None:
        with pytest.raises(UsageError, match=f"{folds} folds of 23 images"):
            fold_statistics(latent_pairs(images=23), folds, seed=0)


class TestRecovery:
    def test_ridge_finds_a_known_map_exactly(self) -> None:
        pairs, weight, bias = linear_pairs()
        fitted = fit_ridge(pair_statistics(pairs), 0.0)
        assert np.allclose(fitted.weight, weight, atol=1e-5)
        assert np.allclose(fitted.bias, bias, atol=1e-5)
        assert np.allclose(fitted.predict(pairs.captions), pairs.images[pairs.image_of], atol=1e-4)

    def test_geometry_finds_a_known_map_exactly(self) -> None:
        pairs, weight, _ = linear_pairs()
        for power in (0.0, 0.5, 1.0):
            fitted = fit_geometry(pair_statistics(pairs), power=power, shrinkage=0.0)
            assert np.allclose(fitted.weight, weight, atol=1e-5)

    @every_form
    def test_without_noise_every_caption_finds_its_image(self, fit: Fit) -> None:
        train, test = split_by_image(linear_pairs()[0], 0.3, 0)
        assert mrr(fit(pair_statistics(train)), test) == 1.0

    @every_form
    def test_with_noise_far_better_than_chance(self, fit: Fit) -> None:
        train, test = split_by_image(latent_pairs(), 0.3, 0)
        translator = fit(pair_statistics(train))
        chance = float(np.mean(1 / np.arange(1, len(test.images) + 1)))
        assert mrr(translator, test) > 4 * chance
        for vectors in (translator.translate(test.captions), translator.gallery(test.images)):
            assert vectors.dtype == np.float32
            assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)

    def test_captions_in_a_subspace_have_a_least_squares_map(self) -> None:
        pairs, _, _ = linear_pairs(dims=(4, 6))
        wide = pairs_of(np.hstack([pairs.captions, pairs.captions[:, :2]]), pairs.images, pairs.image_of)
        fitted = fit_ridge(pair_statistics(wide), 0.0)
        assert np.allclose(fitted.predict(wide.captions), wide.images[wide.image_of], atol=1e-4)
        assert np.abs(fitted.weight).max() < 10

    def test_a_centred_cosine_beats_the_plain_one_where_the_mean_is_large(self) -> None:
        train, test = split_by_image(latent_pairs(noise=1.0), 0.3, 0)
        statistics = pair_statistics(train)
        scores = [mrr(fit_ridge(statistics, 1.0, centred_cosine=centred), test) for centred in (True, False)]
        assert scores[0] > scores[1]


class TestLittleData:
    @pytest.mark.parametrize("shrinkage", [0.0, "ledoit_wolf"])
    def test_fewer_images_than_dimensions_are_shrunk_and_it_says_so(self, shrinkage: float) -> None:
        train, test = split_by_image(latent_pairs(images=40, dims=(24, 64)), 0.3, 0)
        for fit in (fit_geometry, fit_cca):
            translator = fit(pair_statistics(train), shrinkage=shrinkage)
            assert any(note.startswith("28 images in 64 dimensions") for note in translator.notes)
            assert mrr(translator, test) > 0.4
        assert fit_ridge(pair_statistics(train), 1.0).notes[0].startswith("28 images in 64 dimensions")

    def test_enough_images_need_no_note(self) -> None:
        assert fit_geometry(pair_statistics(latent_pairs())).notes == ()

    def test_nothing_to_align(self) -> None:
        pairs = pairs_of(np.ones((6, 3)), np.random.default_rng(0).standard_normal((6, 3)), np.arange(6))
        with pytest.raises(DataError, match="all 6 captions have the same embedding"):
            fit_geometry(pair_statistics(pairs))

    @pytest.mark.parametrize("shrinkage", [-0.1, 1.1, float("nan")])
    def test_no_such_shrinkage(self, shrinkage: float) -> None:
        with pytest.raises(UsageError, match="between 0 and 1"):
            fit_cca(pair_statistics(latent_pairs()), shrinkage=shrinkage)

    @pytest.mark.parametrize("components", [0, 25])
    def test_no_such_components(self, components: int) -> None:
        with pytest.raises(UsageError, match="use 1 to 24"):
            fit_cca(pair_statistics(latent_pairs()), components=components)


class TestChoosing:
    def test_alpha_is_the_best_tried(self) -> None:
        pairs = latent_pairs(images=60, noise=2.0)
        fitted, scores = cross_validated_ridge(pairs, alphas=[1e9, 1.0, 100.0], folds=3)
        assert [*scores] == [1.0, 100.0, 1e9]
        best = max(scores, key=scores.__getitem__)
        assert np.allclose(fitted.weight, fit_ridge(pair_statistics(pairs), best).weight)
        assert fitted.notes[0].startswith(f"ridge alpha {best:.4g}")

    def test_an_alpha_at_the_edge_is_said(self) -> None:
        fitted, _ = cross_validated_ridge(latent_pairs(images=60), alphas=[1.0, 1e9], folds=3)
        assert ", the lowest tried: best MRR" in fitted.notes[0]

    @pytest.mark.parametrize("alphas", [[], [1.0, -1.0]])
    def test_no_such_alphas(self, alphas: list[float]) -> None:
        with pytest.raises(UsageError, match="none of them negative"):
            cross_validated_ridge(latent_pairs(images=20), alphas=alphas)

    def test_settings_are_the_best_tried_where_not_fitted(self) -> None:
        pairs = latent_pairs(images=60, noise=2.0)
        grid: list[dict[str, Any]] = [{"power": 0.0}, {"power": 1.0}, {"power": 4.0}]
        fitted, scores = cross_validated_cca(pairs, grid, folds=3)
        best = grid[scores.index(max(scores))]
        assert len(set(scores)) == 3
        assert np.allclose(fitted.image_weight, fit_cca(pair_statistics(pairs), **best).image_weight)
        assert fitted.notes[0].startswith(f"power {best['power']}: best MRR of 3 folds")


class TestBadInput:
    def test_vectors_of_another_encoder(self) -> None:
        for fit in FORMS.values():
            translator = fit(pair_statistics(latent_pairs()))
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

    def test_a_negative_penalty(self) -> None:
        with pytest.raises(UsageError, match="alpha -1"):
            fit_ridge(pair_statistics(latent_pairs()), -1.0)


class TestFiles:
    @every_form
    def test_what_is_kept_translates_as_before(self, fit: Fit, tmp_path: Path) -> None:
        pairs = latent_pairs(images=30)
        translator = fit(pair_statistics(pairs))
        saved = save_closed_form(tmp_path / "t", translator, {"alpha": 1.0})
        loaded, stored = load_closed_form(tmp_path / "t"), read_translator(tmp_path / "t")
        assert np.array_equal(loaded.translate(pairs.captions), translator.translate(pairs.captions))
        assert np.array_equal(loaded.gallery(pairs.images), translator.gallery(pairs.images))
        assert loaded.notes == translator.notes
        assert (stored.content_hash, stored.settings) == (saved, {"alpha": 1.0})

    def test_a_plain_cosine_stays_one(self, tmp_path: Path) -> None:
        save_closed_form(tmp_path / "t", fit_ridge(pair_statistics(latent_pairs()), 1.0, centred_cosine=False))
        loaded = load_closed_form(tmp_path / "t")
        assert isinstance(loaded, LinearMap)
        assert loaded.centre is None

    def test_another_kind_is_no_closed_form(self, tmp_path: Path) -> None:
        save_translator(tmp_path / "t", "mlp", {"w": np.ones((2, 2))}, {})
        assert read_translator(tmp_path / "t").kind == "mlp"
        with pytest.raises(DataError, match="kind 'mlp', no closed form; use linear_map or projection_pair"):
            load_closed_form(tmp_path / "t")
        save_translator(tmp_path / "t", "linear_map", {"w": np.ones((2, 2))}, {})
        with pytest.raises(DataError, match="a linear_map cannot be made of w"):
            load_closed_form(tmp_path / "t")

    def test_damage_is_found(self, tmp_path: Path) -> None:
        folder = tmp_path / "t"
        with pytest.raises(DataError, match="no such translator"):
            read_translator(folder)
        save_translator(folder, "mlp", {"w": np.ones((2, 2))}, {})
        manifest = read_plain(folder / MANIFEST_FILE)
        write_plain(folder / MANIFEST_FILE, manifest | {"translator_version": 9})
        with pytest.raises(DataError, match="translator_version"):
            read_translator(folder)
        write_plain(folder / MANIFEST_FILE, manifest)
        (folder / TENSORS_FILE).write_bytes(b"other")
        with pytest.raises(DataError, match="content differs from its manifest"):
            read_translator(folder)
        (folder / TENSORS_FILE).unlink()
        with pytest.raises(DataError, match=f"{TENSORS_FILE} is missing"):
            read_translator(folder)
