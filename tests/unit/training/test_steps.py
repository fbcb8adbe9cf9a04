from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from support.tiny_models import ModelKind, tiny_base
from torch import Tensor, nn

from unimoe.config import PromptConfig
from unimoe.config.training import LoraConfig, LossConfig
from unimoe.core.errors import DataError
from unimoe.models.adapter import adapter_parameters, add_lora
from unimoe.models.batched import BatchedDecoder
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training import steps
from unimoe.training.examples import EmbeddingSet, RankingSet, Texts
from unimoe.training.losses.built_in import info_nce
from unimoe.training.steps import Budget, embedding_backward, ranking_backward

ALL = Budget(tokens=100_000)
LITTLE = Budget(tokens=40)
SMALL_BUDGETS = [LITTLE, Budget(tokens=1), Budget(tokens=1, sequences=2)]
TEMPERATURE = 0.1
Gradients = dict[str, Tensor]
RANKING_LOSSES: tuple[str, ...] = ("yes_no", "softmax", "plistmle", "lambdaloss", "score_es", "pg_rank")


class Bench(NamedTuple):
    model: UnimodelForExp1
    weights: dict[str, nn.Parameter]
    ranking: RankingSet
    embedding: EmbeddingSet

    def rank(self, batch: list[int], budget: Budget, weight: float = 1.0, loss: str = "yes_no") -> tuple[float, int]:
        torch.manual_seed(0)  # as the trainer does before every step
        return ranking_backward(self.model, self.ranking, batch, weight, LossConfig(name=loss), budget)

    def embed(
        self, batch: list[int], budget: Budget, weight: float = 1.0, contrast: int | None = None
    ) -> tuple[float, int]:
        return embedding_backward(self.model, self.embedding, batch, weight, TEMPERATURE, budget, contrast)

    def take_gradients(self) -> Gradients:
        """The accumulated gradients by name; they start over afterwards."""
        taken = {name: weight.grad for name, weight in self.weights.items() if weight.grad is not None}
        for weight in self.weights.values():
            weight.grad = None
        return taken


def bench(kind: ModelKind = "llama", first_layer: int = 0, dropout: float = 0.0) -> Bench:
    base = tiny_base(kind)
    weights = adapter_parameters(add_lora(base, LoraConfig(first_layer=first_layer, dropout=dropout), seed=0))
    torch.manual_seed(1)
    for weight in weights.values():
        nn.init.normal_(weight, std=0.1)
    model = UnimodelForExp1(base, PromptConfig(template="chat", instruction="find"), 128, first_layer).train()
    questions = [("cat", "mat " * n) for n in (1, 9, 2)] + [("dog", "rain " * n) for n in (5, 1, 7)]
    ranking = RankingSet(
        Texts.of(model, model.pair_ids(questions)),
        [[0, 1, 2], [3, 4, 5]],
        query_ids=["a", "b"],
        labels=[[2.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
        batched=[[0], [1]],
    )
    documents = ["the cat sat", "rain fell on the roof", "a quick sort " * 5, "old house", "list"]
    embedding = EmbeddingSet(
        queries=Texts.of(model, model.text_ids(["cat", "rain on a house", "sort"], "query")),
        documents=Texts.of(model, model.text_ids(documents, "document")),
        groups=[[0, 1], [3, 4], [2, 0]],
        relevant=[frozenset({0}), frozenset({1, 3}), frozenset({2})],
        query_ids=["a", "b", "c"],
    )
    return Bench(model, weights, ranking, embedding)


@pytest.fixture(scope="module", params=[("llama", 0), ("qwen3", 0), ("llama", 2)], ids=str)
def table(request: pytest.FixtureRequest) -> Bench:
    return bench(*request.param)


def assert_equal(found: Gradients, expected: Gradients) -> None:
    assert found.keys() == expected.keys() != set()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert largest > 1e-4
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5 * max(1.0, largest), msg=name)


class TestRanking:
    def test_it_is_the_gradient_of_the_mean_yes_no_loss(self, table: Bench) -> None:
        loss, tokens = table.rank([0, 1], ALL)
        found = table.take_gradients()
        pair_losses = []
        for group in table.ranking.groups:
            for place, row in enumerate(group):
                gap = table.model.margins(table.model.last_states([table.ranking.prompts.ids[row]]))[0]
                pair_losses.append(nn.functional.softplus(-gap if place == 0 else gap))
        expected = torch.stack(pair_losses).mean()
        expected.backward()  # type: ignore[no-untyped-call]
        assert loss == pytest.approx(expected.item(), rel=1e-5)
        assert tokens == sum(map(len, table.ranking.prompts.ids))
        assert_equal(found, table.take_gradients())

    def test_a_grade_that_a_loss_cannot_take_is_an_error_with_the_query(self, table: Bench) -> None:
        graded = replace(table.ranking, labels=[[2.0, 0.0, 0.0], [128.0, 0.0, 0.0]])
        with pytest.raises(DataError, match=r"^training query 'b': LambdaLoss' gain 2\^128 is beyond float32; scale"):
            table._replace(ranking=graded).rank([0, 1], ALL, loss="lambdaloss")

    @pytest.mark.parametrize("kind", RANKING_LOSSES)
    @pytest.mark.parametrize("budget", SMALL_BUDGETS, ids=str)
    def test_parts_give_the_gradient_of_the_whole(self, table: Bench, kind: str, budget: Budget) -> None:
        whole, tokens = table.rank([1, 0], ALL, loss=kind)
        expected = table.take_gradients()
        loss, seen = table.rank([1, 0], budget, loss=kind)
        assert loss == pytest.approx(whole, rel=1e-5)
        assert seen == tokens
        assert_equal(table.take_gradients(), expected)


class TestEmbedding:
    def test_it_is_the_gradient_of_info_nce(self, table: Bench) -> None:
        loss, tokens = table.embed([0, 1, 2], ALL)
        found = table.take_gradients()
        model, data = table.model, table.embedding
        queries = torch.cat([model.embeddings(model.last_states([ids])) for ids in data.queries.ids])
        documents = torch.cat([model.embeddings(model.last_states([ids])) for ids in data.documents.ids])
        excluded = torch.zeros(3, 5, dtype=torch.bool)
        excluded[1, 1] = True  # relevant to the second query, a negative of the first
        expected = info_nce(queries @ documents.T / TEMPERATURE, torch.tensor([0, 3, 2]), excluded)
        expected.backward()  # type: ignore[no-untyped-call]
        assert loss == pytest.approx(expected.item(), rel=1e-5)
        assert tokens == sum(map(len, [*data.queries.ids, *data.documents.ids]))
        assert_equal(found, table.take_gradients())
        for budget in SMALL_BUDGETS:
            assert table.embed([0, 1, 2], budget) == pytest.approx((loss, tokens), rel=1e-5)
            assert_equal(table.take_gradients(), found)

    @pytest.mark.parametrize("batches", [[[0, 1], [2, 0]], [[0, 1], [2]]], ids=["equal", "the last one smaller"])
    def test_accumulated_batches_are_contrasted_apart_and_every_query_counts_the_same(
        self, table: Bench, batches: list[list[int]]
    ) -> None:
        rows = [row for batch in batches for row in batch]
        loss, tokens = table.embed(rows, ALL, 0.5, contrast=2)
        found = table.take_gradients()
        apart = [table.embed(batch, ALL, 0.5 * len(batch) / len(rows)) for batch in batches]
        expected = sum(loss * len(batch) / len(rows) for (loss, _), batch in zip(apart, batches, strict=True))
        assert (loss, tokens) == pytest.approx((expected, sum(seen for _, seen in apart)), rel=1e-6)
        assert_equal(found, table.take_gradients())


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("first_layer", [0, 2])
def test_gradients_of_trees_are_those_of_padded_batches(
    kind: ModelKind, first_layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees, padded = bench(kind, first_layer), bench(kind, first_layer)
    assert trees.model._batched.trains_trees
    found = [*trees.rank([1, 0], ALL, loss="softmax"), *trees.embed([0, 1, 2], ALL)]
    monkeypatch.setattr(BatchedDecoder, "trains_trees", False)
    expected = [*padded.rank([1, 0], ALL, loss="softmax"), *padded.embed([0, 1, 2], ALL)]
    assert found == pytest.approx(expected, rel=1e-5)
    assert_equal(trees.take_gradients(), padded.take_gradients())


def test_both_runs_of_a_part_drop_the_same_units(monkeypatch: pytest.MonkeyPatch) -> None:
    table = bench(dropout=0.5)
    runs: dict[tuple[int, ...], list[Tensor]] = {}
    original = steps._states

    def spy(model: UnimodelForExp1, texts: Texts, part: list[int], seed: int | None = None) -> Tensor:
        states = original(model, texts, part, seed)
        runs.setdefault(tuple(part), []).append(states.detach())
        return states

    monkeypatch.setattr(steps, "_states", spy)
    table.embed([0, 1, 2], LITTLE)
    table.embed([0, 1, 2], LITTLE)
    assert len(runs) > 1
    for first, again, next_first, next_again in runs.values():
        assert torch.equal(first, again)
        assert torch.equal(next_first, next_again)
        assert not torch.equal(first, next_first)  # another step drops others
