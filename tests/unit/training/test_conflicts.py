"""The record of conflicts: its arithmetic by hand, its correction against a simulation, halves of a toy problem."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from unimoe.config.training import LOSSES, ArmConfig, LossConfig
from unimoe.results.logs import Conflict
from unimoe.training.aggregation import Surgery, Task, make_aggregation
from unimoe.training.conflicts import (
    FlatGradients,
    TaskBatch,
    conflict_record,
    conflict_records,
    is_additive,
    stepped_up,
)
from unimoe.training.gradients import combined
from unimoe.training.losses.listwise import ListwiseLoss

NAMES = ("m.layers.9.a", "m.layers.9.b", "m.layers.10.b")
LOW, HIGH = slice(0, 4), slice(4, 6)
"""Layer 9 and layer 10 in a flat vector: layers ascend by number."""


class Problem:
    """Two tasks whose examples have given gradients; a loss is the mean over its examples."""

    def __init__(self, examples: int = 4) -> None:
        generator = torch.Generator().manual_seed(3)
        noise = torch.randn(2, examples, 6, generator=generator)
        ranking, embedding = (noise + 2 * torch.randn(2, 1, 6, generator=generator)).unbind()
        self.gradients: dict[Task, Tensor] = {"ranking": ranking, "embedding": embedding}
        self.weights = {name: nn.Parameter(torch.zeros(2)) for name in (NAMES[2], *NAMES[:2])}
        self.runs: list[tuple[str, list[int]]] = []

    def backward(self, rows: Sequence[int], task: Task) -> None:
        torch.rand(3)  # as dropout would
        self.runs.append((task, list(rows)))
        for name, part in zip(NAMES, self.gradients[task][list(rows)].mean(dim=0).view(3, 2), strict=True):
            found = self.weights[name].grad
            self.weights[name].grad = part.clone() if found is None else found + part

    def records(self, additive: bool = True) -> list[Conflict]:
        rows = range(len(self.gradients["ranking"]))
        batches = {
            task: TaskBatch(rows, partial(self.backward, task=task), additive and task == "ranking")
            for task in self.gradients
        }
        whole = {task: own.mean(dim=0) for task, own in self.gradients.items()}
        found = conflict_records(FlatGradients(self.weights), whole, batches)
        return [Conflict.model_validate({"step": 1, **record}) for record in found]


def cos(first: Tensor, second: Tensor) -> float:
    return float(nn.functional.cosine_similarity(first, second, dim=0))


class TestRecord:
    def test_by_hand(self) -> None:
        # (3, 4) and (0, 2): product 8, lengths 5 and 2
        record = conflict_record(8.0, 25.0, 4.0, 1 / 3, 0.6)
        assert record["cosine"] == pytest.approx(0.8)
        assert record["cosine_self_rank"] == pytest.approx(0.5)  # 2 (1/3) / (4/3)
        assert record["cosine_self_embed"] == pytest.approx(0.75)  # 1.2 / 1.6
        assert record["cosine_corrected"] == pytest.approx(0.8 / 0.375**0.5)
        assert (record["norm_rank"], record["norm_embed"]) == (5.0, 2.0)
        assert record["magnitude_similarity"] == pytest.approx(20 / 29)

    def test_correction_finds_the_cosine_below_the_noise(self) -> None:
        generator = torch.Generator().manual_seed(0)
        size, batch = 200_000, 8
        shared, own = torch.randn(2, size, generator=generator).unbind()
        true = {"rank": shared, "embed": -0.5 * shared + own}
        noise = {"rank": 6.0, "embed": 3.0}
        halves = {
            task: [mean + noise[task] / (batch / 2) ** 0.5 * torch.randn(size, generator=generator) for _ in range(2)]
            for task, mean in true.items()
        }
        rank, embed = ((first + second) / 2 for first, second in halves.values())
        products = (float(rank @ embed), float(rank @ rank), float(embed @ embed))
        record = conflict_record(*products, *(cos(*pair) for pair in halves.values()))
        expected = cos(true["rank"], true["embed"])
        assert record["cosine_corrected"] == pytest.approx(expected, abs=0.03)
        assert record["cosine"] is not None
        assert abs(record["cosine"]) < 0.5 * abs(expected)


class TestHalves:
    def test_each_layer_has_its_cosines_and_norms(self) -> None:
        problem = Problem()
        lines = problem.records()
        assert [line.layer for line in lines] == [9, 10]
        for line, part in zip(lines, (LOW, HIGH), strict=True):
            rank, embed = (own[:, part] for own in problem.gradients.values())
            assert line.cosine == pytest.approx(cos(rank.mean(0), embed.mean(0)), abs=1e-6)
            assert line.norm_rank == pytest.approx(float(rank.mean(0).norm()))
            assert line.norm_embed == pytest.approx(float(embed.mean(0).norm()))
            assert line.cosine_corrected is not None
            own = [cos(task[:2].mean(0), task[2:].mean(0)) for task in (rank, embed)]
            assert line.cosine_self_rank == pytest.approx(stepped_up(own[0]), abs=1e-6)
            assert line.cosine_self_embed == pytest.approx(stepped_up(own[1]), abs=1e-6)

    @pytest.mark.parametrize("examples", [4, 5])
    def test_the_second_half_follows_from_the_step_where_the_loss_is_additive(self, examples: int) -> None:
        derived, computed = Problem(examples), Problem(examples)
        torch.manual_seed(0)
        first, second = derived.records(additive=True), computed.records(additive=False)
        expected = [line.cosine_self_rank for line in second]
        assert [line.cosine_self_rank for line in first] == pytest.approx(expected)
        assert [task for task, _ in derived.runs] == ["ranking", "embedding", "embedding"]
        low, high = list(range(examples // 2)), list(range(examples // 2, examples))
        assert computed.runs[:2] == [("ranking", low), ("ranking", high)]
        drawn = float(torch.rand(()))
        torch.manual_seed(0)
        assert float(torch.rand(())) == drawn, "no random number of the training is used"


class TestSurgery:
    @pytest.fixture
    def flat(self) -> FlatGradients:
        return FlatGradients(Problem().weights)

    def combined(self, name: str, flat: FlatGradients, ranking: Tensor, embedding: Tensor) -> Tensor:
        arm = {"task": "joint", "learning_rate": 1e-3, "ranking_weight": 0.25, "aggregation": name}
        surgery = make_aggregation(ArmConfig.model_validate(arm))
        assert isinstance(surgery, Surgery)
        return combined(surgery, flat, ranking, embedding)

    def test_pcgrad_takes_from_each_gradient_its_part_against_the_other(self, flat: FlatGradients) -> None:
        ranking, embedding = torch.randn(2, 6, generator=torch.Generator().manual_seed(3)).unbind()
        embedding = -embedding if ranking @ embedding > 0 else embedding
        product = ranking @ embedding
        expected = ranking + embedding - product / embedding.square().sum() * embedding
        expected -= product / ranking.square().sum() * ranking
        torch.testing.assert_close(self.combined("pcgrad", flat, ranking, embedding), expected)

    def test_ortho_lora_is_pcgrad_in_each_matrix(self, flat: FlatGradients) -> None:
        """Of three matrices one conflicts: its gradients lose their parts against each other, the others are added."""
        ranking = torch.tensor([1.0, 2.0, 1.0, 0.0, 3.0, 1.0])
        embedding = torch.tensor([1.0, 1.0, -1.0, 1.0, 2.0, 5.0])  # over all matrices the two agree
        expected = torch.tensor([2.0, 3.0, 0.5, 1.5, 5.0, 6.0])
        torch.testing.assert_close(self.combined("ortho_lora", flat, ranking, embedding), expected)


class TestAdditive:
    @pytest.mark.parametrize("name", [name for name in LOSSES.names() if is_additive(LossConfig(name=name), 0.0)])
    def test_such_a_loss_is_the_mean_of_its_halves_unless_chance_decides(self, name: str) -> None:
        assert not is_additive(LossConfig(name=name), dropout=0.1)
        scores = [*torch.randn(4, 5, generator=torch.Generator().manual_seed(1))]
        labels = [*torch.tensor([1.0 if name == "yes_no" else 2.0, 1.0, 0.0, 0.0, 0.0]).expand(4, 5)]
        loss = ListwiseLoss(LossConfig(name=name))
        halves = [loss(scores[:1], labels[:1]), loss(scores[1:], labels[1:])]
        torch.testing.assert_close(loss(scores, labels), halves[0] / 4 + halves[1] * 3 / 4)
