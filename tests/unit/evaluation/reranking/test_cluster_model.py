"""Texts are embedded in units that depend on the texts alone, and named where one fails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from unimoe.core.errors import InputError
from unimoe.evaluation.reranking import cluster_model
from unimoe.evaluation.reranking.cluster_model import encode_texts

TEXTS = ["word " * (7 * n % 23) + str(n) for n in range(40)]


class Encoder:
    """Deterministic vectors that depend on the unit's size, as batches change last bits; ``bad`` cannot be embedded."""

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        for index, text in enumerate(texts):
            if text.startswith("bad"):
                raise InputError(index, "cannot be embedded")
        rows = [np.random.default_rng(sum(map(ord, text)) + 1).standard_normal(5) for text in texts]
        return np.array(rows, dtype=np.float32).reshape(-1, 5) + np.float32(1e-3 * len(texts))


class TestTexts:
    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster_model, "ENCODED_CHARACTERS", 150)

    def encoded(self, texts: list[str], done: list[int] | None = None) -> NDArray[np.float32]:
        advance = None if done is None else done.append
        return encode_texts(Encoder(), texts, map, advance)

    def test_each_text_has_its_vector_and_every_unit_is_reported(self) -> None:
        done: list[int] = []
        found = self.encoded(TEXTS, done)
        assert sum(done) == len(TEXTS)
        assert len(done) > 3
        for row, text in zip(found, TEXTS, strict=True):
            np.testing.assert_allclose(row, Encoder()([text])[0], atol=0.1)

    def test_texts_of_one_part_keep_their_order(self) -> None:
        few = ["a", "a longer one", "b"]
        assert self.encoded(few).tobytes() == Encoder()(few).tobytes()
        assert self.encoded([]).shape == (0, 5)

    @pytest.mark.parametrize("place", [0, 17, 39])
    def test_a_text_that_fails_is_named_by_its_place(self, place: int) -> None:
        texts = [*TEXTS[:place], "bad " + "x" * 40, *TEXTS[place + 1 :]]
        with pytest.raises(InputError) as raised:
            self.encoded(texts)
        assert (raised.value.index, raised.value.reason) == (place, "cannot be embedded")
