from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_models import tiny_base

from unimoe.config import PromptConfig
from unimoe.config.training import ArmTask, TrainingConfig
from unimoe.core.errors import DataError
from unimoe.core.trec import Run
from unimoe.data.collection import Collection, Document, assemble
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training.examples import (
    TrainingData,
    Triple,
    batch_order,
    embedding_set,
    mine_triples,
    neighbourhoods,
    ranking_set,
)

DOCUMENTS = [f"d{i:02}" for i in range(30)]


def collection(queries: int = 6) -> Collection:
    """Query ``qi`` has grade 2 for document i, grade 1 for i + 1, grade 0 for i + 2."""
    texts = [(key, Document("", f"text of {key}")) for key in DOCUMENTS]
    qrels = {f"q{i}": {DOCUMENTS[i]: 2, DOCUMENTS[i + 1]: 1, DOCUMENTS[i + 2]: 0} for i in range(queries)}
    return assemble("toy", "train", texts, [(key, f"find {key}") for key in qrels], qrels)


def candidates(of: Collection, depth: int = 10) -> Run:
    """The first documents in order, for every query."""
    return {key: {document: float(depth - i) for i, document in enumerate(DOCUMENTS[:depth])} for key in of.queries}


@pytest.fixture(scope="module")
def model() -> UnimodelForExp1:
    return UnimodelForExp1(tiny_base(), PromptConfig(), 256)


class TestMining:
    def test_the_positive_has_the_highest_grade_and_queries_without_one_are_left_out(self) -> None:
        toy = collection(4)
        for query, grades in (("q1", {"d05": 1, "d07": 3, "d09": 2}), ("q2", {"d01": 0}), ("q3", {"unknown": 1})):
            toy.qrels[query] = grades
        triples = mine_triples(toy, candidates(toy), hard=2, random=1, negatives_from=10)
        assert [(t.query_id, t.positive) for t in triples] == [("q0", "d00"), ("q1", "d07")]

    @pytest.mark.parametrize(("hard", "random"), [(5, 0), (0, 5), (4, 20)])
    def test_negatives_are_never_relevant_and_never_twice(self, hard: int, random: int) -> None:
        toy = collection()
        for triple in mine_triples(toy, candidates(toy), hard, random, negatives_from=10):
            assert len(triple.negatives) == len(set(triple.negatives)) == hard + random
            grades = toy.qrels[triple.query_id]
            assert all(grades.get(document, 0) == 0 for document in triple.negatives)

    def test_hard_negatives_come_from_the_first_candidates_by_score(self) -> None:
        toy = collection(1)
        run: Run = {"q0": {document: float(i) for i, document in enumerate(DOCUMENTS)}}  # the last is the best
        (triple,) = mine_triples(toy, run, hard=4, random=0, negatives_from=4)
        assert set(triple.negatives) == set(DOCUMENTS[-4:])

    @pytest.mark.parametrize(("hard", "random", "left"), [(9, 0, 8), (0, 29, 28), (3, 26, 25)])
    def test_too_little_to_draw_from_is_refused(self, hard: int, random: int, left: int) -> None:
        toy, asked = collection(1), random or hard
        with pytest.raises(DataError, match=rf"query 'q0': {asked} negatives wanted, but only {left} documents"):
            mine_triples(toy, candidates(toy), hard, random, negatives_from=10)
        toy.qrels["q0"] = {"d01": 0}
        with pytest.raises(DataError, match="toy, split train: no query has a relevant document"):
            mine_triples(toy, candidates(toy), 1, 0, 10)


class TestNeighbourhoods:
    def test_a_query_meets_those_whose_positive_is_among_its_candidates(self) -> None:
        triples = [Triple(f"q{i}", f"d{i}", []) for i in range(7)]
        run = {"q0": {"d5": 2.0, "d3": 1.0}, "q5": {"d1": 1.0}, "q2": {"d6": 1.0}}
        # q0 finds q5, before q3, and q3; then q1 comes first of the rest, finds nobody, and q2 follows, who finds q6.
        assert neighbourhoods(triples, run, size=3, depth=10) == [[0, 5, 3], [1, 2, 6]]
        assert neighbourhoods(triples, run, size=2, depth=1) == [[0, 5], [1, 2], [3, 4]]

    @given(st.lists(st.integers(0, 5), min_size=1, max_size=25), st.integers(1, 6), st.integers(1, 4))
    def test_groups_are_whole_and_no_query_is_twice(self, positives: list[int], size: int, depth: int) -> None:
        triples = [Triple(f"q{i}", f"d{p}", []) for i, p in enumerate(positives)]
        run = {f"q{i}": {f"d{(i + step) % 6}": 1.0 / step for step in (1, 2, 3)} for i in range(len(positives))}
        groups = neighbourhoods(triples, run, size, depth)
        assert len(groups) == len(triples) // size
        assert all(len(group) == size for group in groups)
        assert len(set(chain(*groups))) == len(groups) * size


class TestSets:
    def test_neighbours_are_ranked_against_the_positives_of_their_group(self, model: UnimodelForExp1) -> None:
        toy = collection()  # document i + 1 is relevant to query i too, so no negative
        triples = mine_triples(toy, candidates(toy), 0, 0, 10)
        data = ranking_set(model, toy, triples, [[2, 0, 1], [5, 3, 4]])
        assert data.query_ids == ["q2", "q0", "q1", "q5", "q3", "q4"]
        assert data.batched == [[0, 1, 2], [3, 4, 5]]
        asked = [["d02", "d00", "d01"], ["d00", "d02"], ["d01", "d00"]]
        for query, documents, group in zip(data.query_ids, asked, data.groups, strict=False):
            pairs = [(f"find {query}", f"text of {document}") for document in documents]
            assert [data.prompts.ids[row] for row in group] == model.pair_ids(pairs)
        assert data.labels[:3] == [[2, 0, 0], [2, 0], [2, 0]]

    def test_an_embedding_set_holds_each_document_once_and_knows_all_relevant_ones(
        self, model: UnimodelForExp1
    ) -> None:
        toy = collection()
        triples = mine_triples(toy, candidates(toy), 3, 0, 10)
        data = embedding_set(model, toy, triples)
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

    @pytest.mark.parametrize(
        ("task", "few", "key"),
        [
            ("rank_only", 4, "ranking.queries_per_step"),
            ("emb_only", 3, "embedding.pairs_per_step"),
            ("joint", 4, "ranking.queries_per_step"),
        ],
    )
    def test_fewer_queries_to_train_on_than_a_step_takes_are_refused(self, task: ArmTask, few: int, key: str) -> None:
        toy = collection()
        data = TrainingData(toy, candidates(toy), training(queries=6, queries_per_step=4, pairs_per_step=3))
        data.refuse_too_few(task)
        for query in ("q0", "q1", "q2", "q3"):
            toy.qrels[query] = {"d05": 0}
        with pytest.raises(DataError, match=f"set has 2 examples, one step takes {few}; lower training.{key}, or"):
            data.refuse_too_few(task)


def training(*, queries: int, queries_per_step: int = 1, pairs_per_step: int = 2) -> TrainingConfig:
    raw: dict[str, Any] = {
        "collection": "toy",
        "steps": 1,
        "ranking": {"queries": queries, "queries_per_step": queries_per_step, "negatives_from": 10},
        "embedding": {"queries": queries, "pairs_per_step": pairs_per_step},
    }
    return TrainingConfig.model_validate(raw)


@pytest.mark.parametrize("per_step", [1, 3, 4, 10])
def test_every_epoch_sees_every_example_once_in_an_order_of_seed_and_stream_alone(per_step: int) -> None:
    order = batch_order(10, per_step, 20, seed=3, stream=1)
    flat = list(chain(*order))
    epochs = [flat[start : start + 10] for start in range(0, len(flat) - 9, 10)]
    assert len(epochs) >= 2
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert batch_order(10, per_step, 20, seed=3, stream=1) == order
    for seed, stream in ((2, 1), (3, 0)):
        assert batch_order(10, per_step, 20, seed, stream) != order
