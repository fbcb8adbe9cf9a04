"""``encoder:NAME``: an encoder of sentence-transformers or transformers, which embeds and does not rerank."""

from __future__ import annotations

from unimoe.config.base import EncoderConfig
from unimoe.core.errors import UsageError
from unimoe.evaluation.systems.named import Naming, register_model
from unimoe.evaluation.systems.system import System
from unimoe.models.encoder import load_encoder

KIND = "encoder"


def encoder_system(name: str, naming: Naming) -> System:
    """Return an encoder by its own prefixes and length, unless the experiment sets ``evaluation.mteb``'s or the length.

    Raises:
        DataError: it cannot be loaded.
        UsageError: the length that is set exceeds the model's positions.
    """
    naming.refuse_layers(KIND)
    config = naming.experiment.model
    settings = EncoderConfig(
        base=name,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
        max_length=config.max_length if "max_length" in config.model_fields_set else None,
    )
    try:
        model = load_encoder(settings, naming.device, naming.dtype)
    except UsageError as error:
        raise UsageError(str(error).replace("encoder.max_length", "model.max_length")) from None
    experiment = naming.with_own_prefixes().experiment
    as_read = experiment.model.model_copy(update={"max_length": model.max_length})
    return System(
        naming.arm_of(name),
        experiment.model_copy(update={"model": as_read}),
        lambda: model,
        model.base_identity,
        model.prompt_name,
        naming.dtype_name,
        tasks=("embedding",),
    )


register_model(KIND, encoder_system)
