"""Captions and images out of files: matched, checked, split; and the one line that names what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.caption_pairs import pairs_of, plain_arrays, seed_arrays, write_npz

from unimoe.core.errors import DataError, UsageError
from unimoe.studies.translator.data.caption_npz import image_stem, load_captions, load_pairs
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, build_pairs, split_by_image

Arrays = dict[str, NDArray[Any]]


def captions_txt(folder: Path, names: list[str], header: str = "image,caption") -> Path:
    path = folder / "captions.txt"
    path.write_text("\n".join([header, *(f'{name},"a heron , wading"' for name in names)]) + "\n", encoding="utf-8")
    return path


def named_twice(count: int = 4) -> list[str]:
    return [f"photo{row // 2}.jpg" for row in range(2 * count)]


def numbered(images: int = 10, each: int = 3) -> CaptionPairs:
    """Embeddings say which caption and image they are of."""
    rows = np.arange(images * each)
    return pairs_of(np.c_[rows + 1, rows // each], np.arange(1, images + 1)[:, None], rows // each)


class TestLayouts:
    def test_both_layouts_give_the_same_pairs(self, tmp_path: Path) -> None:
        seed = load_pairs(write_npz(tmp_path / "seed.npz", seed_arrays()))
        plain = load_pairs(write_npz(tmp_path / "plain.npz", plain_arrays()))
        assert seed.content_hash == plain.content_hash
        assert seed.image_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        assert seed.captions.dtype == seed.images.dtype == np.float32
        assert seed.dropped.notes == ()

    @pytest.mark.parametrize("label", ["one-hot", "numbers", "names", "column order"])
    def test_labels_of_every_kind(self, tmp_path: Path, label: str) -> None:
        arrays = seed_arrays()
        wanted = np.array([3, 3, 0, 0, 1, 1, 2, 2])
        one_hot = np.eye(4)[wanted]
        arrays["captions/label"] = {
            "one-hot": one_hot.astype(np.uint8),
            "numbers": wanted,
            "names": np.array([f"photo{row}" for row in wanted]),
            "column order": np.asfortranarray(one_hot),
        }[label]
        assert load_pairs(write_npz(tmp_path / "x.npz", arrays)).image_of.tolist() == wanted.tolist()

    @pytest.mark.parametrize("prefix", ["", "Images/", "data\\Images\\"])
    def test_captions_txt_tells_the_image_whatever_stands_before_its_name(self, tmp_path: Path, prefix: str) -> None:
        arrays = seed_arrays()
        del arrays["captions/label"]
        names = [f"{prefix}{name}" for name in reversed(named_twice())]
        pairs = load_pairs(write_npz(tmp_path / "x.npz", arrays), captions_txt(tmp_path, names))
        assert pairs.image_of.tolist() == [3, 3, 2, 2, 1, 1, 0, 0]

    def test_a_caption_that_two_sources_give_different_images_is_left_out(self, tmp_path: Path) -> None:
        names = named_twice()
        names[5] = "photo0.jpg"
        pairs = load_pairs(write_npz(tmp_path / "x.npz", seed_arrays()), captions_txt(tmp_path, names))
        assert pairs.dropped.contradictions == ("5",)
        assert pairs.dropped.captions_without_image == ()
        assert pairs.caption_ids == ["0", "1", "2", "3", "4", "6", "7"]

    def test_captions_txt_in_another_order_is_refused(self, tmp_path: Path) -> None:
        path = captions_txt(tmp_path, named_twice()[::-1])
        with pytest.raises(DataError, match=r"captions\.txt and captions/label .* for 8 of 8 .* another order"):
            load_pairs(write_npz(tmp_path / "x.npz", seed_arrays()), path)

    def test_captions_alone(self, tmp_path: Path) -> None:
        arrays = seed_arrays()
        test = {key: arrays[key] for key in ("captions/embeddings", "captions/ids", "metadata/embedding_dim_text")}
        ids, vectors = load_captions(write_npz(tmp_path / "test.npz", test), dims=6)
        assert ids == [str(row) for row in range(8)]
        assert np.array_equal(vectors, arrays["captions/embeddings"])
        plain = {key: plain_arrays()[key] for key in ("captions", "caption_ids")}
        assert load_captions(write_npz(tmp_path / "plain.npz", plain))[0] == ids

    @pytest.mark.parametrize(
        ("name", "stem"),
        [("Images/7.jpg", "7"), ("7.JPEG", "7"), ("a\\b\\x.y.png", "x.y"), ("v1.5", "v1.5"), (" 7.jpg ", "7")],
    )
    def test_the_stem_of_an_image(self, name: str, stem: str) -> None:
        assert image_stem(name) == stem


class TestDropped:
    def test_what_has_no_counterpart_is_dropped_and_listed(self) -> None:
        pairs = build_pairs(
            np.ones((4, 2)), ["a", "b", "c", "d"], ["x", None, "gone", "z"], np.eye(4), ["w", "x", "y", "z"], source="f"
        )
        assert pairs.caption_ids == ["a", "d"]
        assert pairs.image_ids == ["x", "z"]
        assert pairs.image_of.tolist() == [0, 1]
        assert np.array_equal(pairs.images, np.eye(4, dtype=np.float32)[[1, 3]])
        assert pairs.dropped.notes == (
            "2 captions without an image, left out (b, c)",
            "2 images without captions, left out (w, y)",
        )

    def test_long_lists_are_cut(self) -> None:
        ids = [f"c{row}" for row in range(9)]
        pairs = build_pairs(np.ones((9, 2)), ids, ["x", *["?"] * 8], np.ones((1, 2)), ["x"], source="f")
        assert pairs.dropped.notes == ("8 captions without an image, left out (c1, c2, c3, ...)",)

    def test_nothing_left(self) -> None:
        with pytest.raises(DataError, match=r"f: no caption has an image .*'1\.jpg', .* of '2\.jpg'\)"):
            build_pairs(np.ones((1, 2)), ["a"], ["1.jpg"], np.ones((1, 2)), ["2.jpg"], source="f")


def without(key: str) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.pop(key)


def with_value(key: str, row: int, value: float) -> Callable[[Arrays], object]:
    def change(arrays: Arrays) -> None:
        arrays[key] = arrays[key].copy()
        arrays[key][row] = value

    return change


def replaced(key: str, array: NDArray[Any]) -> Callable[[Arrays], object]:
    return lambda arrays: arrays.update({key: array})


class TestBadFiles:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (without("images/names"), "lacks images/names; it has captions/embeddings"),
            (without("captions/label"), r"lacks captions/label, .* give captions\.txt"),
            (with_value("captions/embeddings", 2, np.nan), "embedding of caption '2' is not finite; embed it again"),
            (with_value("images/embeddings", 1, 0.0), r"embedding of image 'Images/photo1\.jpg' is zero"),
            (replaced("captions/embeddings", np.full((8, 6), 1e300)), "caption '0' is not finite, and 7 others"),
            (replaced("captions/ids", np.array(["0"] * 8)), "caption id '0' occurs twice"),
            (replaced("captions/ids", np.arange(7)), "7 caption ids for 8 embeddings"),
            (replaced("images/names", np.array(["a/1.jpg", "b/1.jpg", "2", "3"])), "share the stem '1'"),
            (
                replaced("captions/ids", np.arange(8).astype(object)),
                r"captions/ids is an array of Python.*astype",
            ),
            (replaced("captions/label", np.eye(8)[:, :3]), r"captions/label has shape \(8, 3\)"),
            (replaced("captions/label", np.linspace(0, 1, 8)), "type float64; it must hold row numbers or names"),
            (replaced("captions/embeddings", np.ones(8)), r"captions/embeddings has shape \(8,\)"),
            (replaced("captions/ids", np.ones((8, 2))), r"captions/ids has shape \(8, 2\) and type float64"),
        ],
    )
    def test_one_line_names_file_and_mend(
        self, tmp_path: Path, change: Callable[[Arrays], object], message: str
    ) -> None:
        arrays = seed_arrays()
        change(arrays)
        path = write_npz(tmp_path / "train.npz", arrays)
        with pytest.raises(DataError, match=message) as raised:
            load_pairs(path)
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)

    def test_a_plain_file_that_lacks_a_key(self, tmp_path: Path) -> None:
        arrays = plain_arrays()
        del arrays["caption_image"]
        with pytest.raises(DataError, match=r"lacks caption_image; it has .*documentation"):
            load_pairs(write_npz(tmp_path / "x.npz", arrays))

    def test_captions_txt_of_another_length(self, tmp_path: Path) -> None:
        path = captions_txt(tmp_path, named_twice()[:7])
        with pytest.raises(DataError, match=r"captions\.txt: 7 captions, but .* has 8"):
            load_pairs(write_npz(tmp_path / "x.npz", seed_arrays()), path)

    @pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut"])
    def test_no_npz(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "x.npz"
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"x\.npz: no NPZ file"):
            load_pairs(path)
        with pytest.raises(DataError, match="no such file"):
            load_pairs(tmp_path / "gone.npz")

    def test_a_damaged_array(self, tmp_path: Path) -> None:
        path = write_npz(tmp_path / "x.npz", plain_arrays())
        content = bytearray(path.read_bytes())
        place = content.index(plain_arrays()["captions"].tobytes())
        content[place] ^= 255
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"captions is damaged .*write the file again"):
            load_pairs(path)


class TestDimensions:
    def test_the_encoder_that_is_likely_wrong_is_named(self, tmp_path: Path) -> None:
        arrays = plain_arrays(dims=(768, 1536))
        path = write_npz(tmp_path / "x.npz", arrays)
        message = r"768 dimensions \(as all-mpnet-base-v2.*\), expected 1024 \(as roberta-large-nli-stsb-mean-tokens"
        with pytest.raises(DataError, match=message):
            load_captions(path, dims=1024)
        assert load_captions(path, dims=768)[1].shape == (8, 768)
        images = write_npz(tmp_path / "y.npz", arrays | {"metadata/embedding_dim_image": np.array([768])})
        with pytest.raises(DataError, match=r"images: 1536 dimensions \(as DINOv2 giant\), expected 768 .*DINOv2 base"):
            load_pairs(images)

    def test_the_metadata_is_always_checked(self, tmp_path: Path) -> None:
        arrays = seed_arrays() | {"metadata/embedding_dim_image": np.array([1536])}
        with pytest.raises(DataError, match=r"images/embeddings: 5 dimensions, expected 1536 .* by metadata/"):
            load_pairs(write_npz(tmp_path / "x.npz", arrays))


class TestSplit:
    def test_no_image_is_on_both_sides(self) -> None:
        pairs = numbered()
        train, validation = split_by_image(pairs, 0.3, 0)
        assert len(validation.image_ids) == 3
        assert sorted(train.image_ids + validation.image_ids) == pairs.image_ids
        assert sorted(train.caption_ids + validation.caption_ids) == pairs.caption_ids
        for part in (train, validation):
            assert np.array_equal(part.captions[:, 1] + 1, part.images[part.image_of, 0])

    def test_the_split_depends_on_seed_and_ids_alone(self) -> None:
        pairs = numbered()
        moved = pairs.subset(np.arange(10)[::-1])
        same = split_by_image(moved, 0.3, 0)[1]
        assert set(same.image_ids) == set(split_by_image(pairs, 0.3, 0)[1].image_ids)
        others = {tuple(split_by_image(pairs, 0.3, seed)[1].image_ids) for seed in range(6)}
        assert len(others) > 1

    @pytest.mark.parametrize("fraction", [0.0, 1.0, 0.04, 0.96, float("nan")])
    def test_an_empty_part_is_refused(self, fraction: float) -> None:
        with pytest.raises(UsageError, match="leaves a part of the split empty"):
            split_by_image(numbered(), fraction, 0)

    def test_a_subset_keeps_the_order_asked_for(self) -> None:
        part = numbered().subset([7, 2])
        assert part.image_ids == ["i00007", "i00002"]
        assert part.images[:, 0].tolist() == [8, 3]
        assert part.image_of.tolist() == [1, 1, 1, 0, 0, 0]


def test_the_hash_sees_everything() -> None:
    pairs = numbered()
    moved = pairs.image_of.copy()
    moved[0] = 5
    others = [pairs.subset(range(9)), pairs_of(pairs.captions * 2, pairs.images, pairs.image_of)]
    others.append(pairs_of(pairs.captions, pairs.images, moved))
    assert len({pairs.content_hash, *(other.content_hash for other in others)}) == 4
    assert pairs.content_hash == numbered().content_hash
