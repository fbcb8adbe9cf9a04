"""Configs: sections of settings with their defaults and limits; ``files`` reads them from YAML.

This package exports the sections of an experiment with arms, which other kinds of experiment share.
"""

from unimoe.config.experiment import (
    Batches,
    BM25Config,
    EvaluationConfig,
    Experiment,
    ModelConfig,
    MTEBConfig,
    PromptConfig,
)

__all__ = [
    "BM25Config",
    "Batches",
    "EvaluationConfig",
    "Experiment",
    "MTEBConfig",
    "ModelConfig",
    "PromptConfig",
]
