"""The systems that an experiment names to be evaluated beside its arms (``evaluation.systems``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from unimoe.config import Experiment
from unimoe.core.errors import DataError, UnimoeError, UsageError
from unimoe.evaluation.reranking.served import ServedReranker
from unimoe.evaluation.systems.named import ADDRESSES, OPTION, Naming, named_system
from unimoe.evaluation.systems.system import System
from unimoe.evaluation.tiers.datasets import LoadedDataset
from unimoe.models.served.embedder import ServedEmbedder

_OF_THE_BASE = {"revision": None, "layers": None}
"""What an experiment says of its base model, and of no other."""


def load_extra_systems(experiment: Experiment, device: torch.device, dtype: torch.dtype) -> list[System]:
    """Return the systems that an experiment names, each known to be there; their models are loaded when needed."""
    model = experiment.model.model_copy(update=_OF_THE_BASE)
    model.model_fields_set.discard("max_length")  # set for the base: an encoder has a length of its own
    other = experiment.model_copy(update={"model": model})
    systems = []
    for arm, name in experiment.evaluation.systems.items():
        served = name.partition(":")[0] in ADDRESSES  # and reads the base's token ids
        try:
            systems.append(named_system(name, Naming(experiment if served else other, device, dtype, arm)))
        except UnimoeError as error:
            kind = UsageError if isinstance(error, UsageError) else DataError
            raise kind(f"evaluation.systems.{arm}: {str(error).removeprefix(OPTION).lstrip()}") from None
    return systems


def planned_extra_systems(systems: Sequence[System], data: LoadedDataset) -> Iterator[str]:
    """Yield a line for each system: what it is evaluated on, and the requests and price of one behind a server."""
    texts = [document.full_text for document in data.pooled.corpus.values()] + list(data.pooled.queries.values())
    for system in systems:
        work = []
        if "reranking" in system.tasks:
            work.append(f"{sum(map(len, data.candidates.values())):,} pairs to rerank")
        if "embedding" in system.tasks:
            work.append(f"{len(texts):,} texts to embed")
        model = system.model() if system.dtype is None else None  # without weights to load
        if isinstance(model, ServedReranker):
            work.append(str(model.estimate(data.collection, data.candidates)))
        if isinstance(model, ServedEmbedder):
            work.append(str(model.estimate(texts)))
        yield f"beside the arms: {system.name} ({system.base_identity}), {', '.join(work)}"
