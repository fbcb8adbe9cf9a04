"""Captions and images out of files: matched, checked, split; and the one line that names what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.caption_pairs import pairs_of, plain_arrays, seed_arrays, write_arrays

from unimoe.core.errors import DataError, UsageError
from unimoe.studies.translator.data.caption_npz import load_captions, load_pairs
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, build_pairs, split_by_image

Arrays = dict[str, NDArray[Any]]
TWICE = [f"photo{row // 2}.jpg" for row in range(8)]
"""The image of each caption of ``seed_arrays``."""


def captions_txt(folder: Path, names: list[str]) -> Path:
    path = folder / "captions.txt"
    path.write_text("\n".join(["image,caption", *(f'{name},"a heron , wading"' for name in names)]) + "\n", "utf-8")
    return path


def numbered(images: int = 10, each: int = 3) -> CaptionPairs:
    """Embeddings say which caption and image they are of."""
    rows = np.arange(images * each)
    return pairs_of(np.c_[rows + 1, rows // each], np.arange(1, images + 1)[:, None], rows // each)


def test_both_layouts_give_the_same_pairs(tmp_path: Path) -> None:
    seed = load_pairs(write_arrays(tmp_path / "seed.npz", seed_arrays()))
    plain = load_pairs(write_arrays(tmp_path / "plain.npz", plain_arrays()))
    assert seed.content_hash == plain.content_hash
    assert seed.image_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert seed.captions.dtype == seed.images.dtype == np.float32
    assert seed.notes == ()
    for path, dims in ((tmp_path / "seed.npz", 6), (tmp_path / "plain.npz", 6)):
        ids, vectors = load_captions(path, dims)
        assert ids == [str(row) for row in range(8)]
        assert np.array_equal(vectors, seed.captions)


@pytest.mark.parametrize("label", ["one-hot", "numbers", "names", "column order"])
def test_labels_of_every_kind(tmp_path: Path, label: str) -> None:
    arrays = seed_arrays()
    wanted = np.array([3, 3, 0, 0, 1, 1, 2, 2])
    one_hot = np.eye(4)[wanted]
    arrays["captions/label"] = {
        "one-hot": one_hot.astype(np.uint8),
        "numbers": wanted,
        "names": np.array([f"photo{row}" for row in wanted]),
        "column order": np.asfortranarray(one_hot),
    }[label]
    assert load_pairs(write_arrays(tmp_path / "x.npz", arrays)).image_of.tolist() == wanted.tolist()


@pytest.mark.parametrize("prefix", ["", "Images/", "data\\Images\\"])
def test_captions_txt_names_the_image_whatever_stands_before_its_name(tmp_path: Path, prefix: str) -> None:
    arrays = seed_arrays()
    del arrays["captions/label"]
    path = captions_txt(tmp_path, [f"{prefix}{name}" for name in reversed(TWICE)])
    assert load_pairs(write_arrays(tmp_path / "x.npz", arrays), path).image_of.tolist() == [3, 3, 2, 2, 1, 1, 0, 0]


def test_a_caption_that_two_sources_give_different_images_is_left_out(tmp_path: Path) -> None:
    path = captions_txt(tmp_path, [*TWICE[:5], "photo0.jpg", *TWICE[6:]])
    pairs = load_pairs(write_arrays(tmp_path / "x.npz", seed_arrays()), path)
    assert pairs.caption_ids == ["0", "1", "2", "3", "4", "6", "7"]
    assert pairs.notes == ("1 captions whose label and captions.txt name different images, left out (5)",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (TWICE[::-1], r"captions\.txt and captions/label .* for 8 of 8 .* another order"),
        (TWICE[:7], r"captions\.txt: 7 captions, but .* has 8"),
    ],
)
def test_captions_txt_of_another_file_is_refused(names: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        load_pairs(write_arrays(tmp_path / "x.npz", seed_arrays()), captions_txt(tmp_path, names))


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


def with_value(key: str, row: int, value: float) -> Arrays:
    array = seed_arrays()[key].copy()
    array[row] = value
    return {key: array}


BAD: list[tuple[Callable[[], Arrays], dict[str, Any], str]] = [
    (seed_arrays, {"images/names": None}, "lacks images/names; it has captions/embeddings"),
    (plain_arrays, {"caption_image": None}, r"lacks caption_image; it has .*documentation"),
    (seed_arrays, {"captions/label": None}, r"lacks captions/label, .* give captions\.txt"),
    (seed_arrays, with_value("captions/embeddings", 2, np.nan), "embedding of caption '2' is not finite; embed it"),
    (seed_arrays, with_value("images/embeddings", 1, 0.0), r"embedding of image 'Images/photo1\.jpg' is zero"),
    (seed_arrays, {"captions/embeddings": np.full((8, 6), 1e300)}, "caption '0' is not finite, and 7 others"),
    (seed_arrays, {"captions/ids": np.array(["0"] * 8)}, "caption id '0' occurs twice"),
    (seed_arrays, {"captions/ids": np.arange(7)}, "7 caption ids for 8 embeddings"),
    (seed_arrays, {"images/names": np.array(["a/1.jpg", "b/1.jpg", "2", "3"])}, "share the stem '1'"),
    (seed_arrays, {"captions/ids": np.arange(8).astype(object)}, r"captions/ids is an array of Python.*astype"),
    (seed_arrays, {"captions/label": np.eye(8)[:, :3]}, r"captions/label has shape \(8, 3\)"),
    (seed_arrays, {"captions/label": np.linspace(0, 1, 8)}, "type float64; it must hold row numbers or names"),
    (seed_arrays, {"captions/embeddings": np.ones(8)}, r"captions/embeddings has shape \(8,\)"),
    (seed_arrays, {"captions/ids": np.ones((8, 2))}, r"captions/ids has shape \(8, 2\) and type float64"),
    (
        seed_arrays,
        {"metadata/embedding_dim_image": np.array([1536])},
        r"images/embeddings: 5 dimensions, expected 1536 \(as DINOv2 giant\) by metadata/",
    ),
]


@pytest.mark.parametrize(("made", "changes", "message"), BAD)
def test_one_line_names_file_and_remedy(
    made: Callable[[], Arrays], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    arrays = {key: array for key, array in (made() | changes).items() if array is not None}
    path = write_arrays(tmp_path / "train.npz", arrays)
    with pytest.raises(DataError, match=message) as raised:
        load_pairs(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "x.npz", plain_arrays())
    content = bytearray(path.read_bytes())
    content[content.index(plain_arrays()["captions"].tobytes())] ^= 255
    for damaged, message in (
        (bytes(content), "captions is damaged .*write the file again"),
        (b"", "no NPZ file"),
        (b"no archive", "no NPZ file"),
        (b"PK\x03\x04 cut", "no NPZ file"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"x\.npz: {message}"):
            load_pairs(path)
    with pytest.raises(DataError, match="no such file"):
        load_pairs(tmp_path / "gone.npz")


def test_no_image_is_on_both_sides_of_a_split() -> None:
    pairs = numbered()
    train, validation = split_by_image(pairs, 0.3, 0)
    assert len(validation.image_ids) == 3
    assert sorted(train.image_ids + validation.image_ids) == pairs.image_ids
    assert sorted(train.caption_ids + validation.caption_ids) == pairs.caption_ids
    for part in (train, validation):
        assert np.array_equal(part.captions[:, 1] + 1, part.images[part.image_of, 0])


def test_a_split_depends_on_seed_and_ids_alone() -> None:
    pairs = numbered()
    moved = pairs.subset(np.arange(10)[::-1])
    assert moved.image_ids == pairs.image_ids[::-1]
    assert set(split_by_image(moved, 0.3, 0)[1].image_ids) == set(split_by_image(pairs, 0.3, 0)[1].image_ids)
    assert len({tuple(split_by_image(pairs, 0.3, seed)[1].image_ids) for seed in range(6)}) > 1
    for fraction in (0.0, 1.0, 0.04, 0.96, float("nan")):
        with pytest.raises(UsageError, match="leaves a part of the split empty"):
            split_by_image(pairs, fraction, 0)
