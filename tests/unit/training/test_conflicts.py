"""The record of conflicts: its arithmetic by hand, its correction against a simulation, halves of a toy problem."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unimoe.cluster.processes import Processes
from unimoe.config.training import LOSSES, ArmConfig, LossConfig
from unimoe.results.logs import Conflict
from unimoe.training.aggregation import Aggregation, Task, make_aggregation
from unimoe.training.conflicts import (
    FlatGradients,
    JointGradients,
    TaskBatch,
    conflict_record,
    is_additive,
    stepped_up,
)
from unimoe.training.losses.listwise import ListwiseLoss

NAMES = ("m.layers.10.b", "m.layers.9.a", "m.layers.9.b")
LOW, HIGH = slice(0, 4), slice(4, 6)
"""Layer 9 and layer 10 in a flat vector: layers ascend by number."""


def weights() -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.zeros(2)) for name in NAMES}


def fill(toy: dict[str, nn.Parameter], flat: Tensor) -> None:
    """Add to the gradients what a backward pass would."""
    rows = flat.view(3, 2)
    for name, row in zip(("m.layers.9.a", "m.layers.9.b", "m.layers.10.b"), rows, strict=True):
        found = toy[name].grad
        toy[name].grad = row.clone() if found is None else found + row


class Problem:
    """Two tasks whose examples have given gradients; a loss is the mean over its examples."""

    def __init__(self, examples: int = 4, aggregation: str = "fixed") -> None:
        generator = torch.Generator().manual_seed(3)
        self.weights = weights()
        noise = torch.randn(2, examples, 6, generator=generator)
        self.ranking, self.embedding = (noise + 2 * torch.randn(2, 1, 6, generator=generator)).unbind()
        arm = ArmConfig.model_validate(
            {"task": "joint", "learning_rate": 1e-3, "ranking_weight": 0.25, "aggregation": aggregation}
        )
        self.aggregation: Aggregation = make_aggregation(arm)
        self.runs: list[tuple[str, list[int]]] = []

    def take_step(self, joint: JointGradients, step: int, additive: bool = True) -> Tensor:
        everything = list(range(len(self.ranking)))
        fill(self.weights, 0.25 * self.ranking.mean(dim=0))
        joint.ranking_done(step)
        fill(self.weights, 0.75 * self.embedding.mean(dim=0))
        batches: dict[Task, TaskBatch] = {
            "ranking": TaskBatch(everything, lambda rows: self._run("ranking", self.ranking, rows), additive),
            "embedding": TaskBatch(everything, lambda rows: self._run("embedding", self.embedding, rows), False),
        }
        joint.embedding_done(step, batches)
        return FlatGradients(self.weights).take()

    def _run(self, task: str, gradients: Tensor, rows: Sequence[int]) -> None:
        torch.rand(3)  # as dropout would
        self.runs.append((task, list(rows)))
        fill(self.weights, gradients[list(rows)].mean(dim=0))


def measured(problem: Problem, log: Path, additive: bool = True) -> list[Conflict]:
    problem.take_step(JointGradients(FlatGradients(problem.weights), problem.aggregation, log, 5), 0, additive)
    return [Conflict.model_validate_json(line) for line in log.read_text(encoding="utf-8").splitlines()]


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

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_what_is_not_finite_is_null_in_json(self, bad: float) -> None:
        record = conflict_record(bad, bad, 4.0, 0.5, 0.5)
        assert record["norm_rank"] is record["cosine"] is record["magnitude_similarity"] is None
        json.dumps(record, allow_nan=False)

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
        wholes = {task: (first + second) / 2 for task, (first, second) in halves.items()}
        record = conflict_record(
            float(wholes["rank"] @ wholes["embed"]),
            float(wholes["rank"] @ wholes["rank"]),
            float(wholes["embed"] @ wholes["embed"]),
            *(cos(*pair) for pair in halves.values()),
        )
        expected = cos(true["rank"], true["embed"])
        assert record["cosine_corrected"] == pytest.approx(expected, abs=0.03)
        assert record["cosine"] is not None
        assert abs(record["cosine"]) < 0.5 * abs(expected)


class TestHalves:
    def test_each_layer_has_its_cosines_and_norms(self, tmp_path: Path) -> None:
        problem = Problem()
        lines = measured(problem, tmp_path / "log.jsonl")
        assert [(line.step, line.layer) for line in lines] == [(1, 9), (1, 10)]
        for line, part in zip(lines, (LOW, HIGH), strict=True):
            rank, embed = problem.ranking[:, part], problem.embedding[:, part]
            assert line.cosine == pytest.approx(cos(rank.mean(0), embed.mean(0)), abs=1e-6)
            assert line.norm_rank == pytest.approx(float(rank.mean(0).norm()))
            assert line.norm_embed == pytest.approx(float(embed.mean(0).norm()))
            assert line.cosine_corrected is not None
            own = [cos(task[:2].mean(0), task[2:].mean(0)) for task in (rank, embed)]
            assert line.cosine_self_rank == pytest.approx(stepped_up(own[0]), abs=1e-6)
            assert line.cosine_self_embed == pytest.approx(stepped_up(own[1]), abs=1e-6)

    @pytest.mark.parametrize("examples", [4, 5])
    def test_the_second_half_follows_from_the_step_where_the_loss_is_additive(
        self, examples: int, tmp_path: Path
    ) -> None:
        derived, computed = Problem(examples), Problem(examples)
        first = measured(derived, tmp_path / "a.jsonl", additive=True)
        second = measured(computed, tmp_path / "b.jsonl", additive=False)
        assert [line.cosine_self_rank for line in first] == pytest.approx([line.cosine_self_rank for line in second])
        assert [task for task, _ in derived.runs] == ["ranking", "embedding", "embedding"]
        assert [task for task, _ in computed.runs] == ["ranking", "ranking", "embedding", "embedding"]
        assert [rows for _, rows in computed.runs][:2] == [
            list(range(examples // 2)),
            [*range(examples // 2, examples)],
        ]

    def test_only_every_so_many_steps_are_measured(self, tmp_path: Path) -> None:
        problem, log = Problem(), tmp_path / "log.jsonl"
        joint = JointGradients(FlatGradients(problem.weights), problem.aggregation, log, interval=3)
        for step in range(7):
            problem.take_step(joint, step)
        steps = [json.loads(line)["step"] for line in log.read_text(encoding="utf-8").splitlines()]
        assert steps == [1, 1, 4, 4, 7, 7]


class TestNoEffect:
    @pytest.mark.parametrize("aggregation", ["fixed", "uncertainty", "pcgrad", "ortho_lora", "cagrad", "gradvac"])
    def test_gradients_and_random_numbers_are_those_of_a_step_without(self, aggregation: str, tmp_path: Path) -> None:
        found = []
        for log in (tmp_path / "log.jsonl", None):
            torch.manual_seed(0)
            problem = Problem(aggregation=aggregation)
            gradient = problem.take_step(JointGradients(FlatGradients(problem.weights), problem.aggregation, log, 1), 0)
            found.append((gradient, torch.rand(1)))
        assert torch.equal(found[0][0], found[1][0])
        assert torch.equal(found[0][1], found[1][1])


class TestSurgery:
    def test_pcgrad_of_the_weighted_gradients(self) -> None:
        problem = Problem(aggregation="pcgrad")
        ranking, embedding = 0.25 * problem.ranking.mean(0), 0.75 * problem.embedding.mean(0)
        if float(ranking @ embedding) > 0:
            problem.embedding, embedding = -problem.embedding, -embedding
        product = ranking @ embedding
        expected = ranking + embedding - product / embedding.square().sum() * embedding
        expected -= product / ranking.square().sum() * ranking
        found = problem.take_step(JointGradients(FlatGradients(problem.weights), problem.aggregation, None, 1), 0)
        torch.testing.assert_close(found, expected)

    def test_ortho_lora_is_pcgrad_in_each_matrix(self) -> None:
        """Of three matrices one conflicts: its gradients lose their parts against each other, the others are added."""
        problem = Problem(aggregation="ortho_lora")
        ranking = torch.tensor([1.0, 2.0, 1.0, 0.0, 3.0, 1.0])
        embedding = torch.tensor([1.0, 1.0, -1.0, 1.0, 2.0, 5.0])  # over all matrices the two agree
        problem.ranking, problem.embedding = (rows.expand(4, -1) for rows in (ranking / 0.25, embedding / 0.75))
        found = problem.take_step(JointGradients(FlatGradients(problem.weights), problem.aggregation, None, 1), 0)
        torch.testing.assert_close(found, torch.tensor([2.0, 3.0, 0.5, 1.5, 5.0, 6.0]))


class TestAdditive:
    @pytest.mark.parametrize(
        ("loss", "dropout", "expected"),
        [
            ({"name": "yes_no"}, 0.0, True),
            ({"name": "softmax"}, 0.0, True),
            ({"name": "plistmle"}, 0.0, True),
            ({"name": "plistmle", "ties": "shuffle", "respect_input_order": False}, 0.0, False),
            ({"name": "yes_no"}, 0.1, False),
            ({"name": "lambdaloss"}, 0.0, False),
        ],
    )
    def test_only_means_over_queries_without_chance_are(
        self, loss: dict[str, Any], dropout: float, expected: bool
    ) -> None:
        assert is_additive(LossConfig(**loss), dropout) == expected

    @pytest.mark.parametrize("name", [name for name in LOSSES.names() if is_additive(LossConfig(name=name), 0.0)])
    def test_they_are_the_mean_of_their_halves(self, name: str) -> None:
        generator = torch.Generator().manual_seed(1)
        scores = [*torch.randn(4, 5, generator=generator)]
        labels = [*torch.tensor([2.0, 1.0, 0.0, 0.0, 0.0]).expand(4, 5)]
        loss = ListwiseLoss(LossConfig(name=name))
        if name == "yes_no":
            labels = [row.clamp(max=1) for row in labels]
        halves = [loss(scores[:1], labels[:1]), loss(scores[1:], labels[1:])]
        torch.testing.assert_close(loss(scores, labels), halves[0] / 4 + halves[1] * 3 / 4)


def test_every_process_gets_the_sum_and_none_counts_as_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    other = torch.arange(17.0)  # what the other process sends: a's twelve and b's five
    monkeypatch.setattr(Processes, "total", lambda _, values: values + other)
    a, b = (nn.Parameter(torch.zeros(shape, dtype=torch.bfloat16)) for shape in ((3, 4), (5,)))
    a.grad = torch.ones(3, 4, dtype=torch.bfloat16)
    FlatGradients({"x.layers.0.a": a, "x.layers.1.b": b}, Processes(0, 2)).sum_up()
    assert a.grad.flatten().tolist() == [1 + number for number in range(12)]
    assert a.grad.dtype == torch.bfloat16
    assert b.grad is not None
    assert b.grad.tolist() == [12, 13, 14, 15, 16]
