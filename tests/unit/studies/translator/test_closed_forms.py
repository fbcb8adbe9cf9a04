"""Captions and images out of files, closed forms fitted to them, how these find images, and submissions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.caption_pairs import latent_pairs, pairs_of, read_submission, seed_arrays, write_arrays, write_npz
from support.scripts import read_plain, write_plain

from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.evaluation.spec import Evaluation
from unimoe.evaluation.store import ResultStore
from unimoe.formats.qrels import read_qrels
from unimoe.formats.runs import read_run
from unimoe.results import About, Identity, read_drilldown, read_result, result_path, run_path
from unimoe.results.folder import load_all_results
from unimoe.studies.translator.config import TranslatorConfig
from unimoe.studies.translator.data.caption_npz import load_captions, load_pairs
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, build_pairs, split_by_image
from unimoe.studies.translator.data.sources import generated_pairs
from unimoe.studies.translator.evaluation import crossmodal_outcome, image_ranks, rank_metrics
from unimoe.studies.translator.models import translators
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


TWICE = [f"photo{row // 2}.jpg" for row in range(8)]
"""The image of each caption of ``seed_arrays``."""


def captions_txt(folder: Path, names: list[str]) -> Path:
    path = folder / "captions.txt"
    path.write_text("\n".join(["image,caption", *(f'{name},"a heron , wading"' for name in names)]) + "\n", "utf-8")
    return path


def test_both_layouts_give_the_same_pairs(tmp_path: Path) -> None:
    seed = load_pairs(write_arrays(tmp_path / "seed.npz", seed_arrays()))
    assert load_pairs(write_npz(tmp_path / "plain.npz", seed)).content_hash == seed.content_hash
    assert seed.image_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert seed.captions.dtype == seed.images.dtype == np.float32
    assert seed.notes == ()
    for path in (tmp_path / "seed.npz", tmp_path / "plain.npz"):
        ids, vectors = load_captions(path, 6)
        assert ids == [str(row) for row in range(8)]
        assert np.array_equal(vectors, seed.captions)


def test_labels_of_every_kind(tmp_path: Path) -> None:
    wanted = np.array([3, 3, 0, 0, 1, 1, 2, 2])
    one_hot, names = np.eye(4)[wanted], np.array([f"photo{row}" for row in wanted])
    for label in (one_hot.astype(np.uint8), np.asfortranarray(one_hot), wanted, names):
        path = write_arrays(tmp_path / "x.npz", seed_arrays() | {"captions/label": label})
        assert load_pairs(path).image_of.tolist() == wanted.tolist()


def test_captions_txt_names_the_image_whatever_stands_before_its_name(tmp_path: Path) -> None:
    arrays = seed_arrays()
    del arrays["captions/label"]
    file = write_arrays(tmp_path / "x.npz", arrays)
    for prefix in ("", "Images/", "data\\Images\\"):
        path = captions_txt(tmp_path, [f"{prefix}{name}" for name in reversed(TWICE)])
        assert load_pairs(file, path).image_of.tolist() == [3, 3, 2, 2, 1, 1, 0, 0]


def test_a_caption_that_two_sources_give_different_images_is_left_out_and_another_file_refused(tmp_path: Path) -> None:
    file = write_arrays(tmp_path / "x.npz", seed_arrays())
    pairs = load_pairs(file, captions_txt(tmp_path, [*TWICE[:5], "photo0.jpg", *TWICE[6:]]))
    assert pairs.caption_ids == ["0", "1", "2", "3", "4", "6", "7"]
    assert pairs.notes == ("1 captions whose label and captions.txt name different images, left out (5)",)
    for names, message in (
        (TWICE[::-1], r"captions\.txt and captions/label .* for 8 of 8 .* another order"),
        (TWICE[:7], r"captions\.txt: 7 captions, but .* has 8"),
    ):
        with pytest.raises(DataError, match=message):
            load_pairs(file, captions_txt(tmp_path, names))


def test_what_has_no_counterpart_is_dropped_and_listed() -> None:
    ids, named = [*"abcdefg"], ["x", None, "gone", "z", *["?"] * 3]
    pairs = build_pairs(np.ones((7, 2)), ids, named, np.eye(4), ["w", "x", "y", "z"], source="f")
    assert (pairs.caption_ids, pairs.image_ids, pairs.image_of.tolist()) == (["a", "d"], ["x", "z"], [0, 1])
    assert np.array_equal(pairs.images, np.eye(4, dtype=np.float32)[[1, 3]])
    assert pairs.notes == (
        "5 captions without an image, left out (b, c, e, ...)",
        "2 images without captions, left out (w, y)",
    )
    with pytest.raises(DataError, match=r"f: no caption has an image .*'1\.jpg', .* of '2\.jpg'\)"):
        build_pairs(np.ones((1, 2)), ["a"], ["1.jpg"], np.ones((1, 2)), ["2.jpg"], source="f")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"images/names": None}, "lacks images/names; it has captions/embeddings"),
    ({"captions/label": None}, r"lacks captions/label, .* give captions\.txt"),
    ({"images/embeddings": np.eye(4, 5, k=-1)}, r"embedding of image 'Images/photo0\.jpg' is zero"),
    ({"captions/ids": np.arange(7)}, "7 caption ids for 8 embeddings"),
    ({"images/names": np.array(["a/1.jpg", "b/1.jpg", "2", "3"])}, "share the stem '1'"),
    ({"captions/label": np.eye(8)[:, :3]}, r"captions/label has shape \(8, 3\)"),
    ({"captions/label": np.linspace(0, 1, 8)}, "type float64; it must hold row numbers or names"),
    ({"captions/ids": np.ones((8, 2))}, r"captions/ids has shape \(8, 2\) and type float64"),
]
"""More are in tests/golden/malformed.txt."""


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_one_line_names_file_and_remedy(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "train.npz", seed_arrays() | changes)
    with pytest.raises(DataError, match=message) as raised:
        load_pairs(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_image_is_on_both_sides_of_a_split_which_depends_on_seed_and_ids_alone() -> None:
    rows = np.arange(30)  # embeddings say which caption and image they are of
    pairs = pairs_of(np.c_[rows + 1, rows // 3], np.arange(1, 11)[:, None], rows // 3)
    train, validation = split_by_image(pairs, 0.3, 0)
    assert len(validation.image_ids) == 3
    assert sorted(train.image_ids + validation.image_ids) == pairs.image_ids
    assert sorted(train.caption_ids + validation.caption_ids) == pairs.caption_ids
    for part in (train, validation):
        assert np.array_equal(part.captions[:, 1] + 1, part.images[part.image_of, 0])
    moved = pairs.subset(np.arange(10)[::-1])
    assert moved.image_ids == pairs.image_ids[::-1]
    assert set(split_by_image(moved, 0.3, 0)[1].image_ids) == set(validation.image_ids)
    assert len({tuple(split_by_image(pairs, 0.3, seed)[1].image_ids) for seed in range(6)}) > 1
    for fraction in (0.0, 1.0, 0.04, 0.96, float("nan")):
        with pytest.raises(UsageError, match="leaves a part of the split empty"):
            split_by_image(pairs, fraction, 0)


def test_one_image_under_two_ids_is_on_one_side_of_every_split() -> None:
    vectors = np.random.default_rng(0).standard_normal((10, 4)).repeat(2, axis=0)
    rows = np.arange(20)
    pairs = pairs_of(np.c_[rows + 1, rows + 2], vectors, rows)
    for seed in range(5):
        train, validation = split_by_image(pairs, 0.3, seed)
        sides = [{row.tobytes() for row in part.images} for part in (train, validation)]
        assert not sides[0] & sides[1]
        assert sorted(train.image_ids + validation.image_ids) == sorted(pairs.image_ids)
    with pytest.raises(UsageError, match="leaves a part of the split empty"):
        split_by_image(pairs_of(np.c_[rows + 1, rows + 2], np.ones((20, 4)), rows), 0.3, 0)


Fit = Callable[[PairMoments], LinearMap | ProjectionPair]

FORMS: dict[str, Fit] = {
    "ridge": lambda moments: fit_ridge(moments, 1e-6),
    "geometry": lambda moments: fit_geometry(moments, power=1.0),
    "rotation": fit_geometry,
    "cca": fit_cca,
}

every_form = pytest.mark.parametrize("fit", FORMS.values(), ids=FORMS)


def chosen(name: str, pairs: CaptionPairs, **settings: Any) -> Any:
    """Fit a closed form whose settings are chosen over three folds of images."""
    return fit_closed_form(name, pairs, TranslatorConfig.model_validate({name: {"folds": 3} | settings}))


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


def test_without_noise_the_map_is_found_and_captions_in_a_subspace_have_a_small_one() -> None:
    pairs, matrix = generated_pairs(200, 3, dims=(12, 20), noise=0.0)
    moments = PairMoments(pairs)
    for found in (fit_ridge(moments, 0.0), *(fit_geometry(moments, power=p, shrinkage=0.0) for p in (0.0, 0.5, 1.0))):
        assert np.allclose(found.weight, matrix, atol=1e-4)
    wide = pairs_of(np.hstack([pairs.captions, pairs.captions[:, :2]]), pairs.images + 3, pairs.image_of)
    fitted = fit_ridge(PairMoments(wide), 0.0)
    assert np.allclose(fitted.predict(wide.captions), wide.images[wide.image_of], atol=1e-3)
    assert np.abs(fitted.weight).max() < 10


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
    ccas: list[Fit] = [lambda m, power=power: fit_cca(m, power=power, shrinkage=0.3) for power in powers]  # type: ignore[misc]
    fitted = {"ridge": chosen("ridge", pairs, alphas=alphas), "cca": chosen("cca", pairs, shrinkage=0.3)}
    for (name, own), fits in zip(fitted.items(), (ridges, ccas), strict=True):
        scores = cross_validated(pairs, fits, 3, 0)
        assert len(set(scores.tolist())) == 3
        best = fits[int(scores.argmax())](PairMoments(pairs))
        assert np.allclose(own.translate(pairs.captions), best.translate(pairs.captions), atol=1e-6)
        assert "of 3 settings tried" in own.notes[0] or name == "ridge"
        assert f"({scores.max():.4f})" in own.notes[0]
    assert fitted["ridge"].notes[0].startswith("ridge alpha ")
    assert ", the lowest tried: best MRR" in chosen("ridge", latent_pairs(images=60), alphas=[1.0, 1e9]).notes[0]


@every_form
def test_a_saved_translator_translates_as_before_and_refuses_other_vectors(fit: Fit, tmp_path: Path) -> None:
    pairs = latent_pairs(images=30)
    translator = fit(PairMoments(pairs))
    translators.save_translator(tmp_path / "t", translator, {"alpha": 1.0})
    loaded = translators.load_translator(tmp_path / "t")
    assert np.array_equal(loaded.translate(pairs.captions), translator.translate(pairs.captions))
    assert np.array_equal(loaded.gallery(pairs.images), translator.gallery(pairs.images))
    assert loaded.notes == translator.notes
    assert translators.read_manifest(tmp_path / "t").settings == {"alpha": 1.0}
    for use, words in ((loaded.translate, "captions .* 24 dimensions"), (loaded.gallery, "images .* 32 dimensions")):
        with pytest.raises(DataError, match=words):
            use(np.ones((2, 5), dtype=np.float32))


def test_damage_to_a_saved_translator_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    with pytest.raises(DataError, match="t is missing; train it"):
        translators.load_translator(folder)
    translators.save_translator(folder, LinearMap(np.eye(2), np.zeros(2)), {})
    manifest = read_plain(folder / translators.MANIFEST_FILE)
    write_plain(folder / translators.MANIFEST_FILE, manifest | {"kind": "mlp"})
    with pytest.raises(DataError, match="no mlp that this"):
        translators.load_translator(folder)
    write_plain(folder / translators.MANIFEST_FILE, manifest)
    (folder / translators.TENSORS_FILE).write_bytes(b"other")
    with pytest.raises(DataError, match="content differs from its manifest"):
        translators.load_translator(folder)


def test_the_result_holds_every_rank_and_the_analysis_reads_it(tmp_path: Path) -> None:
    train, pairs = split_by_image(latent_pairs(images=160, noise=3.0), 0.75, 0)
    translator = fit_ridge(PairMoments(train), 1.0)
    captions, images = translator.translate(pairs.captions), translator.gallery(pairs.images)
    found = image_ranks(captions, images, pairs.image_of, image_ids=pairs.image_ids)
    ranks = dict(zip(pairs.caption_ids, found.tolist(), strict=True))
    identity = Identity(experiment="translator", checkpoint="none", split="test")
    hashes = {"collection": pairs.content_hash}
    about = About(
        config_name="ridge", seed=None, task="crossmodal", dataset="generated", identity=identity, config={}, caveats=[]
    )
    spec = Evaluation(about, hashes, "mrr", "float32")
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


def test_a_caption_or_an_image_without_direction_is_named() -> None:
    pairs = pairs_of(np.array([[1, 2], [3, 5]]), np.array([[1, 2], [4, 1]]), np.arange(2))
    for translator, named in (
        (LinearMap(np.zeros((2, 2)), np.zeros(2)), "caption 'c00000'"),
        (LinearMap(np.eye(2), np.zeros(2), np.array([4.0, 1.0])), "image 'i00001'"),
    ):
        with pytest.raises(DataError, match=rf"generated, {named}: the vector is zero"):
            crossmodal_outcome(translator, pairs, "generated")


def test_a_submission_has_exact_vectors_of_unit_length_and_a_refused_one_leaves_the_old_file(tmp_path: Path) -> None:
    path, vectors = tmp_path / "submission.csv", np.random.default_rng(0).standard_normal((20, 64))
    ids = [str(row) for row in range(18)] + ['a "quoted", id', "ünï"]
    translators.write_submission(path, ids, vectors)
    read_ids, found = read_submission(path)
    assert read_ids == ids
    assert np.array_equal(found, vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    translators.write_submission(path, ["7", "8"], np.array([[3.0, 4.0], [0.0, 2.0]], dtype=np.float32))
    for bad in (np.nan, 0.0):
        with pytest.raises(InputError, match="zero or not finite") as raised:
            translators.write_submission(path, ["a", "b"], np.array([[1.0, 0.0], [bad, 0.0]]))
        assert raised.value.index == 1
    with pytest.raises(DataError, match="an id is empty"):
        translators.write_submission(path, ["a", ""], np.eye(2))
    assert path.read_text() == 'id,embedding\n7,"[0.59999999999999998, 0.80000000000000004]"\n8,"[0, 1]"\n'
