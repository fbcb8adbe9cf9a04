"""``monot5:NAME``: a T5 that says true or false about a pair."""

from __future__ import annotations

from unimoe.evaluation.systems.named import OPTION, Naming, register_model
from unimoe.evaluation.systems.system import System
from unimoe.models.model_files import find_model, model_identity
from unimoe.models.rerankers.mono_t5 import load_mono_t5, mono_t5_prompt, refuse_no_t5

KIND = "monot5"


def mono_t5_system(name: str, naming: Naming) -> System:
    """Return a monoT5 from a folder or the hub.

    Raises:
        DataError: it is not there, or no T5.
    """
    naming.refuse_layers(KIND)
    config, prompt = naming.experiment.model, naming.experiment.prompt
    root, commit = find_model(OPTION, name, config.revision)
    refuse_no_t5(root)
    identity = model_identity(KIND, name, root, commit)
    return naming.reranker(
        name,
        lambda: load_mono_t5(root, identity, prompt, config.max_length, naming.device, naming.dtype),
        identity,
        mono_t5_prompt(root, prompt, config.max_length),
    )


register_model(KIND, mono_t5_system)
