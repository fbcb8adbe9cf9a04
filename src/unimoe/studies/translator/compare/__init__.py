"""The comparison of translators. Light to import: the command line reads ``Part`` for its help."""

from enum import StrEnum


class Part(StrEnum):
    """The two comparisons: of all models, or of the components of one."""

    MODELS = "models"
    ABLATION = "ablation"
