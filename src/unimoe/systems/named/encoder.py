"""``encoder:NAME``: an encoder of sentence-transformers or transformers, which embeds and does not rerank."""

from __future__ import annotations

from unimoe.config.encoder import EncoderConfig
from unimoe.models.encoder import load_encoder
from unimoe.systems.named import Naming, register_model
from unimoe.systems.system import System

KIND = "encoder"


def encoder_system(name: str, naming: Naming) -> System:
    """Return an encoder by its own prefixes and length, unless the experiment sets ``evaluation.mteb``'s.

    Raises:
        DataError: it cannot be loaded.
    """
    naming.refuse_layers(KIND)
    config = naming.experiment.model
    settings = EncoderConfig(base=name, revision=config.revision, trust_remote_code=config.trust_remote_code)
    model = load_encoder(settings, naming.device, naming.dtype)
    return System(
        naming.arm_of(name),
        naming.with_own_prefixes().experiment,
        lambda: model,
        model.base_identity,
        model.prompt_name,
        naming.dtype_name,
        model_tasks=("embedding",),
    )


register_model(KIND, encoder_system)
