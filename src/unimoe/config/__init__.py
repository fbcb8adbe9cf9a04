"""Configs: sections of settings with their defaults and limits; ``files`` reads them from YAML.

This package exports the sections of an experiment with arms, which other kinds of experiment share.
"""

from unimoe.config.experiment import (
    BM25Config,
    EvaluationConfig,
    Experiment,
    ModelConfig,
    MTEBConfig,
    PromptConfig,
)

__all__ = [
    "BM25Config",
    "EvaluationConfig",
    "Experiment",
    "MTEBConfig",
    "ModelConfig",
    "PromptConfig",
]
