"""How long a translator takes for a query."""

from __future__ import annotations

import statistics
import time

import numpy as np

from unimoe.studies.translator.models.interface import Translator

BATCH, WARMUP, ROUNDS = 512, 3, 15


def milliseconds_per_query(translator: Translator, batch: int = BATCH) -> float:
    """Median over ``ROUNDS`` batches, after ``WARMUP`` of them, from vectors in memory to unit vectors in memory.

    On a GPU the transfer both ways counts. The captions are random: time does not depend on them.
    """
    captions = np.random.default_rng(0).standard_normal((batch, translator.input_dim)).astype(np.float32)
    times = []
    for _ in range(WARMUP + ROUNDS):
        start = time.perf_counter()
        translator.translate(captions)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[WARMUP:]) / batch
