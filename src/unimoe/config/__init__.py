"""What can be set: sections of settings, their defaults and what they may be, for every kind of experiment.

``files`` reads them from YAML. Here stand the settings of an experiment's arms and of what all kinds share.
"""

from unimoe.config.experiment import (
    QWEN3_INSTRUCTION,
    BM25Config,
    BundledTier,
    EvaluationConfig,
    Experiment,
    ModelConfig,
    MTEBConfig,
    PromptConfig,
)

__all__ = [
    "QWEN3_INSTRUCTION",
    "BM25Config",
    "BundledTier",
    "EvaluationConfig",
    "Experiment",
    "MTEBConfig",
    "ModelConfig",
    "PromptConfig",
]
