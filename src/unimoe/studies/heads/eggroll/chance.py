"""Random choices that depend on seed and step alone: the numpy counterpart of ``noise``."""

from __future__ import annotations

import hashlib

import numpy as np


def generator(stream: str, seed: int, step: int) -> np.random.Generator:
    """Make a generator for one purpose in one step; no two streams, seeds or steps share random numbers."""
    key = hashlib.blake2b(f"choices\n{stream}\n{seed}\n{step}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
