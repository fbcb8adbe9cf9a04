"""Random choices that hang on seed and step alone: the numpy counterpart of ``noise``."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(stream: str, seed: int, step: int) -> np.random.Generator:
    """A generator for one purpose in one step.

    Args:
        stream: the purpose; streams share nothing, with one another or with the directions.
        seed: of the training.
        step: of the training.
    """
    key = hashlib.blake2b(f"choices\n{stream}\n{seed}\n{step}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
