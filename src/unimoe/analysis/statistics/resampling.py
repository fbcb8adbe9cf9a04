"""Resampling over queries: bootstrap means, sign flips, and resamples for any statistic.

Columns of the first two are comparisons, rows are queries. All columns share their draws, so that what is said of one
agrees with what is said of another. Draws depend on the seed, the rows and the iterations only, never on the columns.
"""

from __future__ import annotations

import unimoe.core.quiet_imports  # noqa: F401

# isort: split

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import pdtr
from threadpoolctl import ThreadpoolController

from unimoe.analysis.statistics.variance import Array
from unimoe.results.clusters import cluster_sums

_TAILS, _FEW = (0.025, 0.975), 3
_ROUNDING = 1e-12
_CELLS = 2**20  # resamples times rows drawn at once: their counts take 4 MiB, and calls cost nothing beside
_UNDECIDED = 255


def checks_of_pairs(
    columns: Array, pairs: NDArray[np.intp], codes: NDArray[np.intp] | None, iterations: int, seed: int
) -> tuple[Array, Array]:
    """Return percentile intervals ``(pairs, 2)`` and sign-flip p of the mean differences of two columns each.

    Under the same draws the mean of a difference is the difference of two means, so that all pairs of many systems cost
    a column for each system. What is drawn is rows or, where these have ``codes``, whole clusters.
    """
    against: NDArray[np.intp] | None = pairs
    if len(pairs) <= _FEW * columns.shape[1]:  # single precision does for a pair's own column, at a third of the time
        columns, against = columns[:, pairs[:, 0]] - columns[:, pairs[:, 1]], None
        columns[np.abs(columns) < _ROUNDING] = 0.0  # a tie, except for the rounding of an average
    if codes is None:
        means = bootstrap_means(columns, iterations, seed, exact=against is not None)
    else:  # sums over the queries that are drawn, divided by how many these are
        summed = cluster_sums(np.column_stack([columns, np.ones(len(columns))]), codes)
        means, columns = bootstrap_means(summed, iterations, seed, exact=against is not None), summed[:, :-1]
        means = means[:, :-1] / means[:, -1:]
    ends = [np.quantile(found, _TAILS, axis=1).T for _, found in _differences(means.T, against)]
    return np.concatenate(ends), sign_flip_p(columns, iterations, seed, against)


def bootstrap_means(values: Array, iterations: int, seed: int, *, exact: bool = False) -> Array:
    """Return means of resampled rows of ``(rows, columns)``, the same resamples for every column.

    A resample is a row of counts, so that many resamples of many columns are one matrix product: around the column
    means, in single precision unless ``exact``, on one BLAS thread, since more only fight over these small matrices.

    How often each row is drawn is multinomial. Most of it comes from independent Poisson counts, which are cheap and,
    given their sum, multinomial themselves; their rate is a little below 1, and single draws fill up what lacks to as
    many draws as there are rows. The few resamples that overshoot are drawn one by one instead.
    """
    n, columns = values.shape
    centre = values.mean(axis=0)
    deviations = (values - centre).astype(np.float64 if exact else np.float32)
    with_ones = np.column_stack([deviations, np.ones(n, deviations.dtype)])  # the last sum is the number of draws
    rng = np.random.default_rng(seed)
    rate = max(0.0, 1.0 - 2.5 / np.sqrt(n))  # 0.6 % of resamples overshoot
    sums = np.empty((iterations, columns))
    with _libraries().limit(limits=1, user_api="blas"):
        for part in _chunks(iterations, n):
            drawn = _poisson_counts(rng, rate, part.stop - part.start, n).astype(deviations.dtype) @ with_ones
            missing = n - drawn[:, -1].astype(np.int64)
            overshot = missing < 0
            drawn[overshot] = 0.0
            missing[overshot] = n
            sums[part] = drawn[:, :-1] + _sums_of_draws(rng, deviations, missing)
    return np.asarray(centre + sums / n)


def sign_flip_p(columns: Array, iterations: int, seed: int, pairs: NDArray[np.intp] | None = None) -> Array:
    """Return two-sided p of mean 0 for each column of ``(rows, columns)``, or for differences of two columns each.

    Rows' signs are flipped at random. That is exact where the differences are symmetric about 0 under the null, and
    near its nominal level at the sizes met here, unlike a p read off the bootstrap (Urbano, Lima & Hanjalic 2019). The
    observed differences count as one of the permutations, so that p is never 0 (Phipson & Smyth 2010).
    """
    n = len(columns)
    whole = [(found.sum(axis=1), np.abs(found).sum(axis=1)) for _, found in _differences(columns.T, pairs)]
    total, absolute = (np.concatenate(parts) for parts in zip(*whole, strict=True))
    threshold = np.abs(total) - 1e-5 * absolute  # rounding must not turn a tie with the observed sum into a loss
    # The rounding of two systems is larger than the difference of a pair that are nearly equal.
    values = columns.astype(np.float32 if pairs is None else np.float64)
    rng = np.random.default_rng(seed)
    width = -(-n // 8)
    extreme = np.zeros(len(total), dtype=np.int64)
    with _libraries().limit(limits=1, user_api="blas"):
        for part in _chunks(iterations, n):
            size = part.stop - part.start
            random_bytes = np.frombuffer(_random_bytes(rng, size * width), dtype=np.uint8).reshape(size, width)
            flipped = np.unpackbits(random_bytes, axis=1, count=n).astype(values.dtype) @ values
            for place, of_pairs in _differences(flipped.T, pairs):
                sums = np.abs(total[place, None] - 2.0 * of_pairs)
                extreme[place] += (sums >= threshold[place, None]).sum(axis=1)
    return np.asarray((extreme + 1) / (iterations + 1))


def _differences(rows: NDArray[Any], pairs: NDArray[np.intp] | None) -> Iterator[tuple[slice, Array]]:
    """Yield differences of two rows each, some pairs at a time with their places; without pairs all rows."""
    if pairs is None:
        yield slice(0, len(rows)), np.asarray(rows, dtype=np.float64)
        return
    rows = np.ascontiguousarray(rows)
    for part in _chunks(len(pairs), rows.shape[1]):
        found = rows[pairs[part, 0]] - rows[pairs[part, 1]]
        found[np.abs(found) < _ROUNDING] = 0.0
        yield part, found


def drawn_queries(
    queries: int, codes: NDArray[np.intp] | None, iterations: int, seed: int
) -> Iterator[NDArray[np.intp]]:
    """Yield the places of resampled queries, or of those in resampled clusters, which are known by their codes."""
    members = [] if codes is None else [np.flatnonzero(codes == number) for number in range(codes.max() + 1)]
    rng = np.random.default_rng(seed)
    for _ in range(iterations):
        drawn = rng.integers(len(members) or queries, size=len(members) or queries)
        yield drawn if codes is None else np.concatenate([members[cluster] for cluster in drawn])


def _poisson_counts(rng: np.random.Generator, rate: float, rows: int, columns: int) -> NDArray[np.uint8]:
    """Return independent Poisson counts, ``(rows, columns)``, one random byte each.

    The byte is the first digit of a uniform number, and decides unless a step of the distribution function falls within
    its range, as happens in 2 % of cases; the uniform number's other digits are drawn for those alone.
    """
    distribution = pdtr(np.arange(20), rate)
    table = np.searchsorted(distribution, np.arange(256) / 256, side="right").astype(np.uint8)
    steps = (256 * distribution).astype(np.int64)
    table[steps[steps < 256]] = _UNDECIDED
    first_digits = _random_bytes(rng, rows * columns)
    counts = np.frombuffer(bytearray(first_digits.translate(table.tobytes())), dtype=np.uint8)
    undecided = np.flatnonzero(counts == _UNDECIDED)
    uniform = (np.frombuffer(first_digits, dtype=np.uint8)[undecided] + rng.random(len(undecided))) / 256
    counts[undecided] = np.searchsorted(distribution, uniform, side="right")
    return counts.reshape(rows, columns)


def _sums_of_draws(rng: np.random.Generator, values: NDArray[Any], draws: NDArray[np.int64]) -> NDArray[Any]:
    """Return sums over uniformly drawn rows of ``values``, by each number of ``draws``: ``(len(draws), columns)``."""
    ends = np.concatenate([[0], np.cumsum(draws)]).astype(np.int32)
    drawn = rng.integers(0, len(values), size=ends[-1], dtype=np.int32)
    counts = csr_array((np.ones(len(drawn), values.dtype), drawn, ends), shape=(len(draws), len(values)))
    return np.asarray(counts @ values)


def _random_bytes(rng: np.random.Generator, size: int) -> bytes:
    """Return random bytes as ``rng.bytes`` does, from whole words at twice its speed."""
    return rng.integers(0, 2**64, size=-(-size // 8), dtype=np.uint64).tobytes()[:size]


@cache
def _libraries() -> ThreadpoolController:
    """Return the numerical libraries with threads to limit; finding them takes as long as a small resampling."""
    return ThreadpoolController()


def _chunks(iterations: int, rows: int) -> Iterator[slice]:
    size = max(1, _CELLS // rows)
    for start in range(0, iterations, size):
        yield slice(start, min(start + size, iterations))
