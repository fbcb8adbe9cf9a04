"""The closed forms: what they recover, what they do with too little data, how they are chosen and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.caption_pairs import latent_pairs, pairs_of
from support.json_files import read_plain, write_plain

from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.studies.translator.config import TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, split_by_image
from unimoe.studies.translator.data.sources import generated_pairs
from unimoe.studies.translator.models.files import (
    MANIFEST_FILE,
    TENSORS_FILE,
    load_translator,
    read_manifest,
    save_translator,
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


def test_a_centred_cosine_beats_the_plain_one_where_the_mean_is_large() -> None:
    train, test = split_by_image(latent_pairs(noise=1.0), 0.3, 0)
    maps = [fit_ridge(PairMoments(train), 1.0, centred_cosine=centred) for centred in (True, False)]
    assert held_out_mrr(maps[0], test) > held_out_mrr(maps[1], test)


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


def test_the_error_about_a_vector_without_direction_has_its_index() -> None:
    translator = LinearMap(np.eye(2), np.zeros(2))
    with pytest.raises(InputError, match="zero") as raised:
        translator.translate(np.array([[1, 0], [0, 0]], dtype=np.float32))
    assert raised.value.index == 1
    with pytest.raises(InputError, match="not finite"):
        translator.gallery(np.array([[np.inf, 0]], dtype=np.float32))


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
