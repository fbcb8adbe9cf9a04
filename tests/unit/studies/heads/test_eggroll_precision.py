"""Precision of four bits, by hand and against torch's own cast, and the genetic method in both precisions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.heads import best_head, random_head, toy_pools
from torch import Tensor

from unimoe.core.errors import DataError
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.fp4 import BLOCK, MAGNITUDES, Packed, dequantize, quantize
from unimoe.studies.heads.eggroll.genetic import Genetic
from unimoe.studies.heads.eggroll.objectives import Objectives

pytestmark = pytest.mark.usefixtures("one_thread")


# The largest is 6 and the tensor's scale 2^-8, the smallest power of two above 6 / (6 x 448), so the block's is 256.
EXACT = torch.tensor([[6.0, 3.0, 1.5, 0.5, -6.0, -4.0, 2.0, 0.0, 1.0, -1.0, -0.5, -3.0, 4.0, -1.5, -2.0, 0.0]])
HALVES = [(7, 5), (3, 1), (15, 14), (4, 0), (2, 10), (9, 13), (6, 11), (12, 0)]
"""Its codes, two to a byte: sign 8, then the place in MAGNITUDES."""


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def uniform(weight: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    blocks = -(-weight.shape[1] // BLOCK)
    return torch.rand(weight.shape, generator=generator), torch.rand(len(weight), blocks, generator=generator)


def test_codes_and_scales_by_hand_where_ties_go_to_the_even_code() -> None:
    packed = quantize(EXACT)
    assert packed.codes.tolist() == [[low + 16 * high for low, high in HALVES]]
    assert packed.scales.float().tolist() == [[256.0]]
    assert packed.scales.dtype == torch.float8_e4m3fn
    assert float(packed.scale) == 2**-8
    assert torch.equal(dequantize(packed), EXACT)
    for scale in (1e-38, 1e37):  # at the ends of float32
        torch.testing.assert_close(dequantize(quantize(scale * EXACT)), scale * EXACT, rtol=0.07, atol=0)
    assert quantize(normal(128, 384)).bytes == 128 * 384 * 4.5 / 8 + 4
    values = torch.tensor([[6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.75, -1.75, -5, 0.26, 0.74, 4.9, 5.1, 3.49]])
    expected = [6, 0, 1, 1, 2, 2, 4, 4, -1, -2, -4, 0.5, 0.5, 4, 6, 3]
    assert dequantize(quantize(values)).tolist() == [expected]
    zeros = torch.zeros(2, 32)
    zeros[1, 20] = 3.0
    assert torch.equal(dequantize(quantize(zeros)), zeros)
    for bad in (torch.nan, torch.inf):
        with pytest.raises(DataError, match="not finite"):
            quantize(torch.tensor([[1.0, bad]]))


def test_every_weight_goes_to_the_nearest_value_of_its_block_whose_scale_is_that_of_torchs_own_cast() -> None:
    weight = normal(24, 64).double().exp() * 0.01
    weight[::2] *= -1
    packed = quantize(weight)
    steps = (packed.scales.double() * packed.scale).repeat_interleave(BLOCK, dim=1)
    grid = torch.tensor([*MAGNITUDES, *(-value for value in MAGNITUDES)], dtype=torch.float64)
    nearest = (weight[..., None] - steps[..., None] * grid).abs().min(dim=2).values
    torch.testing.assert_close((weight - dequantize(packed)).abs(), nearest, rtol=1e-5, atol=1e-9)
    weight = normal(64, 32, seed=1) * 10.0 ** torch.arange(64)[:, None].sub(32).div(12)
    packed = quantize(weight)
    wanted = weight.view(64, 2, BLOCK).abs().amax(2) / 6 / packed.scale
    assert torch.equal(packed.scales.float(), wanted.to(torch.float8_e4m3fn).float())
    assert float(wanted.max()) <= 448 < 2 * float(wanted.max())


def test_stochastic_rounding_keeps_the_mean() -> None:
    weight = normal(4, 32, seed=4)
    weight[0, 20] = 0.99 * weight[0, 16:].abs().max()  # out of reach where the block's scale is rounded down
    many = weight.repeat(4000, 1)
    draws = dequantize(quantize(many, uniform(many, 0))).double().view(4000, 4, 32)
    error = (draws.mean(0) - weight) / (draws.std(0) / 4000**0.5).clamp(min=1e-6)
    assert float(error.abs().max()) < 4.5  # of 128 normal variates
    assert float((dequantize(quantize(weight)) - weight).abs().max()) > 0.05


FEW = toy_pools(24, 12)
EVERY = FEW.batch(range(24))


def genetic(precision: str = "float32", **settings: Any) -> Genetic:
    raw = {"method": "genetic", "head_output_size": 8, "genetic": settings, "precision": precision}
    config = TrainConfig.model_validate(raw)
    return Genetic(config, Objectives(config, FEW))


def test_four_bits_keep_the_elites_and_round_the_children() -> None:
    """What lives on is the same to the bit, all heads have codes of four bits, and the best is never lost."""
    method, weight, found = genetic("fp4", individuals=16), random_head(), []
    for step in range(30):
        before = Packed.of_state(method.state())
        weight, facts = method.step(weight, EVERY, step)
        packed = Packed.of_state(method.state())
        assert packed is not None
        after = dequantize(packed)
        assert torch.equal(after[0], weight)
        if before is not None:
            assert any(torch.equal(weight, head) for head in dequantize(before))
        assert all(len(block.unique()) <= 15 for row in after.flatten(0, 1) for block in row.split(16))
        found.append(facts["fitness"])
    assert found == sorted(found)
    assert found[-1] > found[0]
    assert facts["method_bytes"] == 16 * facts["weight_bytes"] < 16 * weight.numel()


def test_mutations_have_rank_one_and_the_size_asked_for() -> None:
    method = genetic(individuals=200, elites=1, crossover=0.0, mutation=0.1)
    method.step(random_head(), EVERY, 0)
    before = method.state()["population"]
    method.load_state({"population": random_head().expand(200, -1, -1).clone()})
    method.step(random_head(), EVERY, 1)
    changes = method.state()["population"][1:] - random_head()
    assert int(torch.linalg.matrix_rank(changes, rtol=1e-4).max()) == 1
    sizes = changes.flatten(1).norm(dim=1) / random_head().norm()
    assert float(sizes.square().mean().sqrt()) == pytest.approx(0.1, rel=0.1)
    assert not torch.equal(before[1:], method.state()["population"][1:])


def test_children_of_two_parents_lie_between_them() -> None:
    method = genetic(individuals=64, elites=1, crossover=1.0, mutation=1e-9)
    ends = torch.stack([random_head(seed=1), random_head(seed=2)])
    method.load_state({"population": ends.repeat(32, 1, 1)})
    method.step(random_head(), EVERY, 0)
    line = (ends[1] - ends[0]).flatten()
    along = (method.state()["population"] - ends[0]).flatten(1)
    shares = along @ line / line.square().sum()
    torch.testing.assert_close(along, shares[:, None] * line, atol=1e-5, rtol=0)
    assert ((shares > -1e-6) & (shares < 1 + 1e-6)).all()
    assert ((shares > 0.05) & (shares < 0.95)).sum() > 8


def test_tournaments_prefer_the_fit() -> None:
    heads = torch.stack([best_head() if number < 4 else random_head(seed=number) for number in range(32)])

    def share_of_best(tournament: int) -> float:
        method = genetic(individuals=32, elites=1, crossover=0.0, mutation=1e-9, tournament=tournament)
        method.load_state({"population": heads})
        method.step(random_head(), EVERY, 0)
        return float(((method.state()["population"][1:] - best_head()).flatten(1).norm(dim=1) < 1e-5).float().mean())

    # Chance of a best one among n draws of 32, with 4 of them the best: 1 - (28 / 32)^n.
    assert share_of_best(16) > 0.6  # 0.88
    assert share_of_best(2) < 0.5  # 0.23
