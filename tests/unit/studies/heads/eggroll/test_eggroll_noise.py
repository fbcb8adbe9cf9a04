"""Noise: no two streams share it, and it has the moments of a normal at every rank."""

from __future__ import annotations

import pytest
import torch
from support.toy_pools import doubled

from unimoe.studies.heads.eggroll.noise import directions, factors, generator, product_directions


def test_directions_seeds_steps_and_streams_share_no_noise() -> None:
    rows = [factors("directions", seed, step, 40, 512) for seed, step in ((42, 1), (43, 0), (42, 0), (-1, 1))]
    rows.append(factors("scores", 42, 1, 40, 512))
    every = torch.cat(rows)
    correlations = every @ every.T / 512 - torch.eye(len(every))
    assert float(correlations.abs().max()) < 6 / 512**0.5
    found = [generator("four bits", seed, step).random(64).tolist() for seed, step in ((0, 0), (0, 1), (1, 0))]
    assert len({*found[0], *found[1], *found[2]}) == 3 * 64


def test_a_later_step_does_not_shift_the_noise_of_an_earlier_one() -> None:
    """Neighbouring counters under one key would: row 1 of step 0 must not be row 0 of step 1."""
    first, second = factors("directions", 0, 0, 50, 64), factors("directions", 0, 1, 50, 64)
    assert not (first[:, None] == second[None]).all(dim=2).any()


def test_entries_have_the_moments_and_tails_of_a_normal() -> None:
    values = factors("directions", 0, 0, 1000, 1000).double().flatten()
    assert abs(float(values.mean())) < 4e-3
    assert float(values.var()) == pytest.approx(1, abs=6e-3)
    assert float((values**4).mean()) == pytest.approx(3, abs=0.05)
    for bound, share in ((1, 0.158655), (2, 0.022750), (3, 0.0013499)):
        assert float((values > bound).double().mean()) == pytest.approx(share, abs=5 * (share / 1e6) ** 0.5)


def test_product_directions_pair_every_input_factor_with_every_output_factor() -> None:
    found = product_directions(0, 0, 3, 2, 4, 5)
    assert found.shape == (3, 2)
    one = torch.zeros(6)
    one[2 * 2 + 1] = 1  # direction (i = 2, j = 1)
    torch.testing.assert_close(found.weighted_sum(one), torch.outer(found.a[1], found.b[2]))


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_directions_have_unit_variance_at_every_rank(rank: int) -> None:
    count = 400
    found = doubled(directions(0, 0, count, 8, 9, rank=rank))
    squares = [float(found.weighted_sum(one).square().sum()) for one in torch.eye(count, dtype=torch.float64)]
    assert sum(squares) / count / 72 == pytest.approx(1, abs=0.1)
