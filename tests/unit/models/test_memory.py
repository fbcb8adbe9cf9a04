"""Memory that runs out: models shrink their batches and keep them small, whatever the library calls the error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.tiny_encoders import load, save_tiny_encoder
from support.tiny_rerankers import PAIRS, save_tiny_cross_encoder, save_tiny_t5

from unimoe.config import PromptConfig
from unimoe.core.errors import DataError
from unimoe.evaluation.reranking.rerankers import CrossEncoderReranker
from unimoe.models.rerankers.cross_encoder import load_cross_encoder
from unimoe.models.rerankers.mono_t5 import load_mono_t5

pytestmark = pytest.mark.usefixtures("one_thread")

CPU, FLOAT = torch.device("cpu"), torch.float32
CUBLAS = "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
TEXTS = [f"{document} {query}" for query, document in PAIRS] * 2

Scoring = tuple[Callable[[], Sequence[float]], Any]
"""What scores all texts or pairs, and the module of torch whose memory runs out."""


def encoder(folder: Path) -> Scoring:
    model = load(save_tiny_encoder(folder))
    return lambda: model.encode(TEXTS)[:, 0].tolist(), model.model.transformers_model


def mono_t5(folder: Path) -> Scoring:
    model = load_mono_t5(save_tiny_t5(folder), "t5@1", PromptConfig(), 64, CPU, FLOAT)
    return lambda: model.rerank_ids(model.pair_ids(PAIRS * 2)).tolist(), model.model


def cross_encoder(folder: Path) -> Scoring:
    loaded: Any = load_cross_encoder(save_tiny_cross_encoder(folder), CPU, FLOAT, 64)
    model = CrossEncoderReranker(loaded, 32)
    return lambda: model.score(PAIRS * 2), loaded[0].model


def bounded(monkeypatch: pytest.MonkeyPatch, module: Any, limit: int, error: RuntimeError) -> list[int]:
    """Let memory run out above a number of tokens; return the tokens of each pass, whether they fit or not."""
    asked: list[int] = []
    forward = module.forward

    def scarce(*arguments: Any, **inputs: Any) -> Any:
        asked.append(inputs["input_ids"].numel())
        if asked[-1] > limit:
            raise error
        return forward(*arguments, **inputs)

    monkeypatch.setattr(module, "forward", scarce)
    return asked


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), RuntimeError(CUBLAS)], ids=["torch", "cublas"])
@pytest.mark.parametrize("make", [encoder, mono_t5, cross_encoder])
class TestOutOfMemory:
    def test_the_scores_are_the_same_and_no_later_batch_is_too_large(
        self, make: Callable[[Path], Scoring], error: RuntimeError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        score, module = make(tmp_path)
        expected = score()
        asked = bounded(monkeypatch, module, limit=10**6, error=error)
        score()
        whole = max(asked)
        asked = bounded(monkeypatch, module, limit=whole // 2, error=error)
        np.testing.assert_allclose(score(), expected, atol=1e-4)
        assert max(asked) == whole
        asked.clear()
        np.testing.assert_allclose(score(), expected, atol=1e-4)
        assert 0 < max(asked) <= whole // 2

    def test_one_that_does_not_fit_alone_is_refused(
        self, make: Callable[[Path], Scoring], error: RuntimeError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        score, module = make(tmp_path)
        bounded(monkeypatch, module, limit=1, error=error)
        with pytest.raises(DataError, match=r"alone does not fit in memory; lower \S*max_length"):
            score()


def test_another_error_is_no_lack_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    score, module = encoder(tmp_path)
    bounded(monkeypatch, module, limit=1, error=RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        score()
