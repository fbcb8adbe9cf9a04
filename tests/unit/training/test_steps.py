"""The examples of a training, and the gradient of a step."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import pytest
import torch
from support.experiments import tiny_examples
from support.tiny_models import ModelKind, tiny_base
from torch import Tensor, nn

from unimoe.config import PromptConfig
from unimoe.config.losses import LOSSES
from unimoe.config.training import ArmTask, LoraConfig, TrainingConfig
from unimoe.core.errors import DataError
from unimoe.core.trec import Run
from unimoe.data.collection import Collection, Document, assemble
from unimoe.models.adapter import adapter_parameters, add_lora
from unimoe.models.batched import BatchedDecoder
from unimoe.models.prompts import answer_ids
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training import examples, steps
from unimoe.training.losses.formulas import info_nce
from unimoe.training.steps import Budget, embedding_backward, ranking_backward

DOCUMENTS = [f"d{i:02}" for i in range(30)]


def collection(queries: int = 6) -> Collection:
    """Query ``qi`` has grade 2 for document i, grade 1 for i + 1, grade 0 for i + 2."""
    texts = [(key, Document("", f"text of {key}")) for key in DOCUMENTS]
    qrels = {f"q{i}": {DOCUMENTS[i]: 2, DOCUMENTS[i + 1]: 1, DOCUMENTS[i + 2]: 0} for i in range(queries)}
    return assemble("toy", "train", texts, [(key, f"find {key}") for key in qrels], qrels)


def candidates(of: Collection) -> Run:
    """The first documents are the best for every query, and come last."""
    scores = {document: -float(place) for place, document in enumerate(DOCUMENTS)}
    return {key: dict(reversed(scores.items())) for key in of.queries}


@pytest.fixture(scope="module")
def model() -> UnimodelForExp1:
    return UnimodelForExp1(tiny_base(), PromptConfig(), 256)


def test_the_positive_has_the_highest_grade_and_queries_without_one_are_left_out() -> None:
    toy = collection(4)
    for query, grades in (("q1", {"d05": 1, "d07": 3, "d09": 2}), ("q2", {"d01": 0}), ("q3", {"unknown": 1})):
        toy.qrels[query] = grades
    triples = examples.mine_triples(toy, candidates(toy), hard=2, random=1, negatives_from=10)
    assert [(t.query_id, t.positive) for t in triples] == [("q0", "d00"), ("q1", "d07")]
    few = examples.mine_triples(
        toy, candidates(toy) | {"q0": {"d00": 3.0, "d20": 2.0}}, hard=2, random=1, negatives_from=10
    )
    assert few == triples[1:], "q0 has one negative"


@pytest.mark.parametrize(("hard", "random"), [(5, 0), (0, 5), (4, 20)])
def test_negatives_are_never_relevant_or_twice_and_hard_ones_come_from_the_first_candidates(
    hard: int, random: int
) -> None:
    toy = replace(collection(), excluded={f"q{number}": frozenset(DOCUMENTS[-2:]) for number in range(4)})
    for triple in examples.mine_triples(toy, candidates(toy), hard, random, negatives_from=10):
        assert not toy.left_out(triple.query_id) & set(triple.negatives)
        assert len(triple.negatives) == len(set(triple.negatives)) == hard + random
        assert set(triple.negatives[:hard]) <= set(DOCUMENTS[:10])
        grades = toy.qrels[triple.query_id]
        assert all(grades.get(document, 0) == 0 for document in triple.negatives)


def test_too_little_to_draw_from_is_refused() -> None:
    toy = collection(1)
    for hard, random, left in ((9, 0, 8), (0, 29, 28), (3, 26, 25)):
        words = rf"query 'q0': {random or hard} negatives wanted, but only {left} documents"
        with pytest.raises(DataError, match=words):
            examples.mine_triples(toy, candidates(toy), hard, random, negatives_from=10)
    toy.qrels["q0"] = {"d01": 0}
    with pytest.raises(DataError, match="toy, split train: no query has a relevant document"):
        examples.mine_triples(toy, candidates(toy), 1, 0, 10)


def test_a_query_meets_those_whose_positive_is_among_its_candidates() -> None:
    triples = [examples.Triple(f"q{i}", f"d{i}", []) for i in range(7)]
    run = {"q0": {"d5": 2.0, "d3": 1.0}, "q5": {"d1": 1.0}, "q2": {"d6": 1.0}}
    # q0 finds q5, before q3, and q3; then q1 comes first of the rest, finds nobody, and q2 follows, who finds q6.
    assert examples.neighbourhoods(triples, run, size=3, depth=10) == [[0, 5, 3], [1, 2, 6]]
    assert examples.neighbourhoods(triples, run, size=2, depth=1) == [[0, 5], [1, 2], [3, 4]]


def test_neighbours_are_ranked_against_the_positives_of_their_group(model: UnimodelForExp1) -> None:
    toy = collection()  # document i + 1 is relevant to query i too, so no negative
    triples = examples.mine_triples(toy, candidates(toy), 0, 0, 10)
    data = examples.ranking_set(model, toy, triples, [[2, 0, 1], [5, 3, 4]])
    assert data.query_ids == ["q2", "q0", "q1", "q5", "q3", "q4"]
    assert data.batched == [[0, 1, 2], [3, 4, 5]]
    asked = [["d02", "d00", "d01"], ["d00", "d02"], ["d01", "d00"]]
    for query, documents, group in zip(data.query_ids, asked, data.groups, strict=False):
        pairs = [(f"find {query}", f"text of {document}") for document in documents]
        assert [data.prompts.ids[row] for row in group] == model.pair_ids(pairs)
    assert data.labels[:3] == [[2, 0, 0], [2, 0], [2, 0]]


def test_an_embedding_set_holds_each_document_once_and_knows_all_relevant_ones(model: UnimodelForExp1) -> None:
    toy = collection()
    triples = examples.mine_triples(toy, candidates(toy), 3, 0, 10)
    data = examples.embedding_set(model, toy, triples)
    used = {document for triple in triples for document in (triple.positive, *triple.negatives)}
    assert len(data.documents.ids) == len(used) < sum(map(len, data.groups))
    for triple, group in zip(triples, data.groups, strict=True):
        texts = [f"text of {document}" for document in (triple.positive, *triple.negatives)]
        assert [data.documents.ids[row] for row in group] == model.text_ids(texts, "document")
    assert data.queries.ids == model.text_ids([f"find {t.query_id}" for t in triples], "query")
    rows = {tuple(ids): row for row, ids in enumerate(data.documents.ids)}
    first, second = (rows[tuple(model.text_ids([f"text of {key}"], "document")[0])] for key in ("d00", "d01"))
    assert {first, second} <= data.relevant[0]  # its own positive, and that of q1
    assert first not in data.relevant[1]


def test_fewer_queries_to_train_on_than_a_step_takes_are_refused() -> None:
    toy, ranking = collection(), {"queries": 6, "queries_per_step": 4, "negatives_from": 10}
    raw = {"collection": "toy", "steps": 1, "ranking": ranking, "embedding": {"queries": 6, "pairs_per_step": 3}}
    data = examples.TrainingData(toy, candidates(toy), TrainingConfig.model_validate(raw))
    data.refuse_too_few("joint")
    for query in ("q0", "q1", "q2", "q3"):
        toy.qrels[query] = {"d05": 0}
    tasks: tuple[tuple[ArmTask, str], ...] = (
        ("rank_only", "4; lower training.ranking.queries_per_step"),
        ("emb_only", "3; lower training.embedding.pairs_per_step"),
        ("joint", "4; lower training.ranking.queries_per_step"),
    )
    for task, words in tasks:
        with pytest.raises(DataError, match=f"set has 2 examples, one step takes {words}, or"):
            data.refuse_too_few(task)


@pytest.mark.parametrize("per_step", [1, 3, 4, 10])
def test_every_epoch_sees_every_example_once_in_an_order_of_seed_and_stream_alone(per_step: int) -> None:
    order = examples.batch_order(10, per_step, 20, seed=3, stream=1)
    flat = list(chain(*order))
    epochs = [flat[start : start + 10] for start in range(0, len(flat) - 9, 10)]
    assert len(epochs) >= 2
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert examples.batch_order(10, per_step, 20, seed=3, stream=1) == order
    for seed, stream in ((2, 1), (3, 0)):
        assert examples.batch_order(10, per_step, 20, seed, stream) != order


ALL = Budget(tokens=100_000)
LITTLE = Budget(tokens=40)
SMALL_BUDGETS = [LITTLE, Budget(tokens=1, sequences=2)]
TEMPERATURE = 0.1
Gradients = dict[str, Tensor]


class Bench(NamedTuple):
    model: UnimodelForExp1
    weights: dict[str, nn.Parameter]
    ranking: examples.RankingSet
    embedding: examples.EmbeddingSet

    def rank(self, batch: list[int], budget: Budget, weight: float = 1.0, loss: str = "yes_no") -> tuple[float, int]:
        torch.manual_seed(0)  # as the trainer does before every step
        return ranking_backward(self.model, self.ranking, batch, weight, LOSSES[loss](), budget)

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


def bench(kind: ModelKind = "llama", first_layer: int = 0, dropout: float = 0.0, **prompt: Any) -> Bench:
    base = tiny_base(kind)
    weights = adapter_parameters(add_lora(base, LoraConfig(first_layer=first_layer, dropout=dropout), seed=0))
    torch.manual_seed(1)
    for weight in weights.values():
        nn.init.normal_(weight, std=0.1)
    asked = PromptConfig(template="chat", instruction="find", **prompt)
    model = UnimodelForExp1(base, asked, 128, first_layer).train()
    return Bench(model, weights, *tiny_examples(model))


@pytest.fixture(scope="module", params=[("llama", 0), ("qwen3", 0), ("llama", 2)], ids=str)
def table(request: pytest.FixtureRequest) -> Bench:
    return bench(*request.param)


def assert_equal(found: Gradients, expected: Gradients) -> None:
    assert found.keys() == expected.keys() != set()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert largest > 1e-4
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=3e-5 * max(1.0, largest), msg=name)


def test_a_step_of_ranking_is_the_gradient_of_the_mean_yes_no_loss(table: Bench) -> None:
    assert_mean_yes_no_loss(table)


def test_a_single_answer_is_trained_by_its_logit() -> None:
    alone = bench(answers=["yes"])
    assert_mean_yes_no_loss(alone)
    rows = alone.ranking.prompts.ids[:2]
    states, head = alone.model.last_states(rows), alone.model.model.get_output_embeddings()
    (token,) = answer_ids(alone.model.tokenizer, ["yes"])
    torch.testing.assert_close(alone.model.margins(states), head(states)[:, token], rtol=1e-5, atol=1e-5)


def assert_mean_yes_no_loss(table: Bench) -> None:
    loss, tokens = table.rank([0, 1], ALL)
    found = table.take_gradients()
    pair_losses = []
    for group in table.ranking.groups:
        for place, row in enumerate(group):
            gap = table.model.margins(table.model.last_states([table.ranking.prompts.ids[row]]))[0]
            pair_losses.append(nn.functional.softplus(-gap if place == 0 else gap))
    expected = torch.stack(pair_losses).mean()
    expected.backward()  # type: ignore[no-untyped-call]
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    assert tokens == sum(map(len, table.ranking.prompts.ids))
    assert_equal(found, table.take_gradients())


def test_a_grade_that_a_loss_cannot_take_is_an_error_with_the_query(table: Bench) -> None:
    graded = replace(table.ranking, labels=[[2.0, 0.0, 0.0], [128.0, 0.0, 0.0]])
    with pytest.raises(DataError, match=r"^training query 'b': LambdaLoss' gain 2\^128 is beyond float32; scale"):
        table._replace(ranking=graded).rank([0, 1], ALL, loss="lambdaloss")


@pytest.mark.parametrize("kind", ["yes_no", "lambdaloss", "score_es"])
@pytest.mark.parametrize("budget", SMALL_BUDGETS, ids=str)
def test_parts_give_the_gradient_of_the_whole(table: Bench, kind: str, budget: Budget) -> None:
    whole, tokens = table.rank([1, 0], ALL, loss=kind)
    expected = table.take_gradients()
    loss, seen = table.rank([1, 0], budget, loss=kind)
    assert loss == pytest.approx(whole, rel=1e-4)
    assert seen == tokens
    assert_equal(table.take_gradients(), expected)


def test_a_step_of_embedding_is_the_gradient_of_info_nce(table: Bench) -> None:
    loss, tokens = table.embed([0, 1, 2], ALL)
    found = table.take_gradients()
    model, data = table.model, table.embedding
    queries = torch.cat([model.embeddings(model.last_states([ids])) for ids in data.queries.ids])
    documents = torch.cat([model.embeddings(model.last_states([ids])) for ids in data.documents.ids])
    excluded = torch.zeros(3, 5, dtype=torch.bool)
    excluded[1, 1] = True  # relevant to the second query, a negative of the first
    expected = info_nce(queries @ documents.T / TEMPERATURE, torch.tensor([0, 3, 2]), excluded)
    expected.backward()  # type: ignore[no-untyped-call]
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    assert tokens == sum(map(len, [*data.queries.ids, *data.documents.ids]))
    assert_equal(found, table.take_gradients())
    for budget in SMALL_BUDGETS:
        assert table.embed([0, 1, 2], budget) == pytest.approx((loss, tokens), rel=1e-4)
        assert_equal(table.take_gradients(), found)


@pytest.mark.parametrize("batches", [[[0, 1], [2, 0]], [[0, 1], [2]]], ids=["equal", "the last one smaller"])
def test_accumulated_batches_are_contrasted_apart_and_every_query_counts_the_same(
    table: Bench, batches: list[list[int]]
) -> None:
    rows = [row for batch in batches for row in batch]
    loss, tokens = table.embed(rows, ALL, 0.5, contrast=2)
    found = table.take_gradients()
    apart = [table.embed(batch, ALL, 0.5 * len(batch) / len(rows)) for batch in batches]
    expected = sum(loss * len(batch) / len(rows) for (loss, _), batch in zip(apart, batches, strict=True))
    assert (loss, tokens) == pytest.approx((expected, sum(seen for _, seen in apart)), rel=1e-5)
    assert_equal(found, table.take_gradients())


def test_gradients_of_trees_are_those_of_padded_batches(table: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert table.model._batched.trains_trees
    found = [*table.rank([1, 0], ALL, loss="softmax"), *table.embed([0, 1, 2], ALL)]
    gradients = table.take_gradients()
    monkeypatch.setattr(BatchedDecoder, "trains_trees", False)
    assert found == pytest.approx([*table.rank([1, 0], ALL, loss="softmax"), *table.embed([0, 1, 2], ALL)], rel=1e-4)
    assert_equal(gradients, table.take_gradients())


def test_both_runs_of_a_part_drop_the_same_units(monkeypatch: pytest.MonkeyPatch) -> None:
    table = bench(dropout=0.5)
    runs: dict[tuple[int, ...], list[Tensor]] = {}
    original = steps._states

    def spy(model: UnimodelForExp1, texts: examples.TokenizedTexts, part: list[int], seed: int | None = None) -> Tensor:
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
