"""``yes-no:NAME``, or the name alone: a causal language model that says yes or no about a pair, and embeds texts."""

from __future__ import annotations

from dataclasses import replace

from unimoe.core.errors import UsageError
from unimoe.evaluation.systems.named import OPTION, YES_NO, Naming, register_model
from unimoe.evaluation.systems.system import System, zero_shot_system
from unimoe.models.base import base_architecture
from unimoe.models.loader import ModelLoader

_OTHER_KINDS = {"ForSequenceClassification": "cross-encoder", "ForConditionalGeneration": "monot5"}


def causal_system(name: str, naming: Naming) -> System:
    """Return a causal language model as reranker and embedder, by the experiment's prompt.

    Raises:
        UsageError: it is a model of another kind.
        DataError: it cannot be loaded.
    """
    found = base_architecture(naming.experiment.model)
    if found and not found.endswith("ForCausalLM"):
        kind = next((kind for end, kind in _OTHER_KINDS.items() if found.endswith(end)), "encoder")
        raise UsageError(
            f"{OPTION} {name}: a {found}, no causal language model; if it is one that unimoe knows otherwise, write "
            f"{OPTION} {kind}:{name}"
        )
    loader = ModelLoader(naming.experiment, naming.device, naming.dtype)
    return replace(zero_shot_system(naming.experiment, loader), name=naming.arm_of(name))


register_model(YES_NO, causal_system)
