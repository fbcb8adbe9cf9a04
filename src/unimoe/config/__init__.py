"""What can be set: sections of settings, their defaults and what they may be, for every kind of experiment.

``files`` reads them from YAML. What stands here is of an experiment with arms, and used by the other kinds too.
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
