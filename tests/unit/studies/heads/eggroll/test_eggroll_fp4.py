"""Four bits: the format by hand and against torch's own cast, rounding that keeps the mean, a head learned in it."""

from __future__ import annotations

import pytest
import torch
from support.toy_pools import random_head, toy_pools
from torch import Tensor

from unimoe.core.errors import DataError
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.eggroll.fp4 import BLOCK, MAGNITUDES, dequantize, quantize
from unimoe.studies.heads.eggroll.method import evolution
from unimoe.studies.heads.model import evaluate_head

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


def test_codes_and_scales_by_hand() -> None:
    packed = quantize(EXACT)
    assert packed.codes.tolist() == [[low + 16 * high for low, high in HALVES]]
    assert packed.scales.float().tolist() == [[256.0]]
    assert packed.scales.dtype == torch.float8_e4m3fn
    assert float(packed.scale) == 2**-8
    assert torch.equal(dequantize(packed), EXACT)
    assert quantize(normal(128, 384)).bytes == 128 * 384 * 4.5 / 8 + 4


def test_ties_go_to_the_even_code() -> None:
    values = torch.tensor([[6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.75, -1.75, -5, 0.26, 0.74, 4.9, 5.1, 3.49]])
    expected = [6, 0, 1, 1, 2, 2, 4, 4, -1, -2, -4, 0.5, 0.5, 4, 6, 3]
    assert dequantize(quantize(values)).tolist() == [expected]


def test_every_weight_goes_to_the_nearest_of_its_blocks_sixteen_values() -> None:
    weight = normal(24, 64).double().exp() * 0.01
    weight[::2] *= -1
    packed = quantize(weight)
    steps = (packed.scales.double() * packed.scale).repeat_interleave(BLOCK, dim=1)
    grid = torch.tensor([*MAGNITUDES, *(-value for value in MAGNITUDES)], dtype=torch.float64)
    nearest = (weight[..., None] - steps[..., None] * grid).abs().min(dim=2).values
    torch.testing.assert_close((weight - dequantize(packed)).abs(), nearest, rtol=1e-5, atol=1e-9)


def test_block_scales_are_those_of_torchs_own_cast() -> None:
    weight = normal(64, 32, seed=1) * 10.0 ** torch.arange(64)[:, None].sub(32).div(12)
    packed = quantize(weight)
    wanted = weight.view(64, 2, BLOCK).abs().amax(2) / 6 / packed.scale
    assert torch.equal(packed.scales.float(), wanted.to(torch.float8_e4m3fn).float())
    assert float(wanted.max()) <= 448 < 2 * float(wanted.max())


def test_what_is_encoded_already_stays_and_zeros_stay_zeros() -> None:
    once = dequantize(quantize(normal(32, 96, seed=2)))
    zeros = torch.zeros(2, 32)
    zeros[1, 20] = 3.0
    for weight in (once, zeros):
        assert torch.equal(dequantize(quantize(weight)), weight)
        assert torch.equal(dequantize(quantize(weight, uniform(weight, 0))), weight)


def test_the_last_block_may_be_short_and_each_matrix_is_encoded_by_itself() -> None:
    matrices = normal(3, 5, 20, seed=3) * torch.tensor([1, 1e-3, 9])[:, None, None]
    together = quantize(matrices)
    assert together.codes.shape == (3, 5, 16)
    for number, matrix in enumerate(matrices):
        filled = quantize(torch.cat([matrix, torch.zeros(5, 12)], dim=1))
        assert torch.equal(dequantize(together)[number], dequantize(filled)[:, :20])
        assert together.scale[number] == filled.scale


@pytest.mark.parametrize("scale", [1e-38, 1e37])
def test_very_small_and_very_large_weights(scale: float) -> None:
    torch.testing.assert_close(dequantize(quantize(scale * EXACT)), scale * EXACT, rtol=0.07, atol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(DataError, match="not finite"):
        quantize(torch.tensor([[1.0, bad]]))


def test_stochastic_rounding_keeps_the_mean() -> None:
    weight = normal(4, 32, seed=4)
    weight[0, 20] = 0.99 * weight[0, 16:].abs().max()  # out of reach where the block's scale is rounded down
    many = weight.repeat(4000, 1)
    draws = dequantize(quantize(many, uniform(many, 0))).double().view(4000, 4, 32)
    error = (draws.mean(0) - weight) / (draws.std(0) / 4000**0.5).clamp(min=1e-6)
    assert float(error.abs().max()) < 4.5  # of 128 normal variates
    assert float((dequantize(quantize(weight)) - weight).abs().max()) > 0.05


def test_stochastic_rounding_goes_to_a_neighbour() -> None:
    values = EXACT.clone()
    values[0, 1:4] = torch.tensor([2.4, -5.0, 0.1])
    found = {tuple(dequantize(quantize(values, uniform(values, seed)))[0, 1:4].tolist()) for seed in range(200)}
    assert found == {(a, b, c) for a in (2.0, 3.0) for b in (-4.0, -6.0) for c in (0.0, 0.5)}


POOLS = toy_pools(32, 16, noise=1.0)
BATCH = POOLS.batch(range(32))


def config(**settings: object) -> TrainConfig:
    fast = {"precision": "fp4", "head_output_size": 8, "num_steps": 100, "population_size": 64, "learning_rate": 0.02}
    return TrainConfig.model_validate(fast | settings)


def test_a_head_is_learned_in_four_bits_and_adams_moments_are_owned_up_to() -> None:
    method, weight = evolution(config(), random_head(), POOLS), random_head()
    before = evaluate_head(weight, POOLS, config()).aggregate["ndcg@10"]
    for step in range(40):
        weight, facts = method.step(weight, BATCH, step)
    assert evaluate_head(weight, POOLS, config()).aggregate["ndcg@10"] > before + 0.15
    assert facts["method_bytes"] >= 2 * 4 * weight.numel()
    assert facts["weight_bytes"] < 4 * weight.numel() / 4


def test_between_steps_there_is_no_more_than_the_packed_weights() -> None:
    method, weight = evolution(config(optimizer="sgd", learning_rate=1e-4), random_head(), POOLS), random_head()
    weight, facts = method.step(weight, BATCH, 0)
    state = method.state()
    packed = [state[name] for name in ("codes", "scales", "scale")]
    assert facts["weight_bytes"] == sum(part.numel() * part.element_size() for part in packed)
    assert all(value.numel() <= 1 for name, value in state.items() if name.startswith("inner."))
    assert torch.equal(dequantize(quantize(weight)), weight)


def test_a_weight_from_elsewhere_is_taken_and_not_the_one_held() -> None:
    used, fresh = (evolution(config(optimizer="sgd", learning_rate=1e-4), random_head(), POOLS) for _ in range(2))
    used.step(random_head(), BATCH, 0)
    other = random_head(seed=5)
    assert torch.equal(used.step(other, BATCH, 1)[0], fresh.step(other, BATCH, 1)[0])
