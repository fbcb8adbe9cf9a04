"""The comparison of ways to train a head. Light to import: the command line reads ``Part`` for its help."""

from enum import StrEnum


class Part(StrEnum):
    """The parts of the comparison."""

    METHODS = "methods"
    GRID = "grid"
    FLATNESS = "flatness"
    PARETO = "pareto"
