"""Models that grade pairs: a causal language model that answers yes or no, adapted or not, or a cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from unimoe.checkpoint import read_checkpoint
from unimoe.config import ModelConfig
from unimoe.errors import DataError, InputError
from unimoe.io import hash_json
from unimoe.models.base import load_base
from unimoe.models.device import choose_dtype
from unimoe.models.loader import ModelLoader, weights_hash
from unimoe.models.quiet import first_line, quiet_loading
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.studies.biencoder.config import LabelConfig

CROSS_ENCODER = "cross-encoder:"


class Grader(Protocol):
    """Estimates the relevance of pairs of texts."""

    @property
    def identity(self) -> str:
        """Content hash of everything that the scores depend on besides the texts."""

    def probabilities(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Return P(relevant) of each ``(query, document)``, ``(N,)``.

        Raises:
            InputError: a pair cannot be scored; carries its index.
        """


def load_grader(config: LabelConfig, device: torch.device) -> Grader:
    """Load the grader that a config names.

    Raises:
        DataError: it cannot be loaded, or is not a reranker.
    """
    name = config.reranker
    if name.startswith(CROSS_ENCODER):
        return _CrossEncoder(name.removeprefix(CROSS_ENCODER), config.max_length, device)
    if Path(name, "adapter_config.json").is_file():
        checkpoint = read_checkpoint(Path(name))
        loader = ModelLoader(checkpoint.experiment, device, getattr(torch, checkpoint.dtype))
        return _YesNo(loader.trained(Path(name)), weights_hash(checkpoint, checkpoint.experiment.evaluation))
    model = ModelConfig(base=name, max_length=config.max_length)
    base = load_base(model, device, choose_dtype(device, model.dtype))
    return _YesNo(UnimodelForExp1(base, config.prompt, config.max_length).eval(), None)


@dataclass
class _YesNo:
    """Takes P(yes) of a causal language model."""

    model: UnimodelForExp1
    adapter: str | None

    @property
    def identity(self) -> str:
        return hash_json([self.model.base_identity, self.model.prompt_name, str(self.model.dtype), self.adapter])

    def probabilities(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        return self.model.rerank(pairs)


class _CrossEncoder:
    """Takes the sigmoid of a sequence classifier's one label."""

    def __init__(self, base: str, max_length: int, device: torch.device) -> None:
        from sentence_transformers import CrossEncoder

        try:
            with quiet_loading():
                self._model: Any = CrossEncoder(
                    base,
                    device=str(device),
                    max_length=max_length,
                    activation_fn=torch.nn.Sigmoid(),
                    model_kwargs={"use_safetensors": True},
                )
        except Exception as error:  # damaged files and refusals of the hub end in errors of many kinds
            raise DataError(
                f"reranker {CROSS_ENCODER}{base} cannot be loaded ({first_line(error)}); check the id or folder"
            ) from None
        if self._model.num_labels != 1:
            raise DataError(
                f"reranker {CROSS_ENCODER}{base} has {self._model.num_labels} labels; a cross-encoder has one"
            )
        sums = {name: float(weight.double().sum()) for name, weight in self._model.model.state_dict().items()}
        self.identity = hash_json([base, max_length, sums])

    def probabilities(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        found = np.asarray(self._model.predict(list(pairs), show_progress_bar=False), dtype=np.float32)
        if not np.isfinite(found).all():
            raise InputError(int(np.isfinite(found).argmin()), "the score is not finite; take another reranker")
        return found
