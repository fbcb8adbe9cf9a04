"""Objectives of a ranking by hand, their weighted sum, the dates that freshness reads, and the front of two."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.heads import topics_folder, toy_config, toy_data
from support.toy_pools import toy_pools

from unimoe.core.errors import DataError
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.data import recency_of
from unimoe.studies.heads.eggroll.objectives import (
    Objectives,
    diversity,
    fairness,
    first_documents,
    freshness,
    pareto_front,
)
from unimoe.studies.heads.pools import PoolSet
from unimoe.studies.heads.trainer import HeadTrainer

D2, D3 = 1 / math.log2(3), 1 / 2  # exposure at ranks 2 and 3; at rank 1 it is 1

# One pool of four documents, the last padded, and two rankings of it: 0 1 2 and 2 1 0.
SCORES = torch.tensor([[[3.0, 1.0], [2.0, 2.0], [1.0, 3.0], [-torch.inf, -torch.inf]]])
VALID = torch.tensor([[True, True, True, False]])
POOLS = toy_pools(6, 8)


def test_first_documents_are_the_best_and_a_pool_may_hold_fewer() -> None:
    top = first_documents(SCORES, VALID, 2)
    assert top.places[0].T.tolist() == [[0, 1], [2, 1]]
    assert bool(top.inside.all())
    assert first_documents(SCORES, VALID, 10).inside[0].T.tolist() == [[True, True, True, False]] * 2


def test_diversity_by_hand() -> None:
    documents = torch.tensor([[[2.0, 0.0], [0.6, 0.8], [0.0, 1.0], [5.0, 5.0]]])
    # Cosines: 0 and 1: 0.6, 1 and 2: 0.8, 0 and 2: 0.
    assert diversity(first_documents(SCORES, VALID, 2), documents)[0].tolist() == pytest.approx([0.4, 0.2])
    three = diversity(first_documents(SCORES, VALID, 4), documents)
    assert three[0].tolist() == pytest.approx([(0.4 + 0.2 + 1) / 3] * 2)
    alone = torch.tensor([[True, False, False, False]])  # one document has no pair
    assert diversity(first_documents(SCORES, alone, 3), documents)[0, 0] == 0


def test_fairness_by_hand() -> None:
    groups, total = torch.tensor([[-1.0, 1, 1, 0]]), 1 + D2 + D3
    expected = [1 - abs(1 - D2 - D3) / total, 1 - abs(D3 - 1 - D2) / total]
    assert fairness(first_documents(SCORES, VALID, 3), groups)[0].tolist() == pytest.approx(expected)
    first = first_documents(SCORES, VALID, 1)
    assert fairness(first, groups)[0].tolist() == pytest.approx([0, 0], abs=1e-6)
    assert fairness(first, torch.tensor([[1.0, 0, 0, 0]]))[0].tolist() == [1, 1]


def test_the_groups_of_fairness_are_the_halves_of_the_first_stage() -> None:
    batch = POOLS.batch([1])  # 8 documents, none padded
    given = Objectives(TrainConfig.model_validate({"objectives": {"fairness": 1.0}, "ndcg_k": 5}), POOLS)
    found = given.means(batch, [(slice(0, 1), -batch.ranks.float().unsqueeze(2))])["fairness"]
    upper, lower = sum(1 / math.log2(1 + rank) for rank in range(1, 5)), 1 / math.log2(6)
    assert float(found) == pytest.approx(1 - (upper - lower) / (upper + lower))


def test_freshness_by_hand() -> None:
    found = freshness(first_documents(SCORES, VALID, 2), torch.tensor([[1.0, 0.5, 0.0, 0.0]]))
    assert found[0].tolist() == pytest.approx([(1 + D2 / 2) / (1 + D2), (D2 / 2) / (1 + D2)])


def test_the_mean_of_all_does_not_depend_on_blocks() -> None:
    scores = torch.randn(6, 8, 3, generator=torch.Generator().manual_seed(0))
    scores = scores.masked_fill(~POOLS.valid.unsqueeze(2), -torch.inf)
    weights = {"relevance": 1.0, "diversity": 0.5, "fairness": 0.25, "freshness": 2.0}
    dated = replace(POOLS, recency=torch.rand(POOLS.rows.shape))
    given = Objectives(TrainConfig.model_validate({"objectives": weights, "ndcg_k": 5}), dated)
    batch = dated.batch(range(6))
    whole = given.means(batch, [(slice(0, 6), scores)])
    parts = given.means(batch, [(part, scores[part]) for part in (slice(0, 1), slice(1, 6))])
    for name, value in whole.items():
        torch.testing.assert_close(value, parts[name])
    torch.testing.assert_close(given.total(whole), sum(whole[name] * weight for name, weight in weights.items()))


def test_equal_rankings_are_tied_to_the_last_bit() -> None:
    pools = toy_pools(1, 8, padded=False, relevant=8)
    scores = torch.stack([torch.randperm(8, generator=torch.Generator().manual_seed(n)) for n in range(200)], dim=1)
    found = Objectives(TrainConfig(ndcg_k=8), pools).means(
        pools.batch([0]), [(slice(0, 1), scores.float().unsqueeze(0))]
    )
    assert set(found["relevance"].tolist()) == {1.0}


def test_the_front_by_hand() -> None:
    assert pareto_front([(0.9, 0.1), (0.5, 0.5), (0.4, 0.5), (0.1, 0.9), (0.5, 0.4), (0.05, 0.05)]) == [0, 1, 3]
    assert pareto_front([(1.0, 2.0), (1.0, 2.0), (0.0, 2.0)]) == [0, 1], "equal points stay together"
    assert pareto_front([(0.3,), (0.7,), (0.5,)]) == [1]


def give_dates(folder: Path, dates: Mapping[str, object]) -> None:
    corpus = folder / "corpus.jsonl"
    records = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    for record in records:
        record["metadata"] = {"date": dates.get(record["_id"], "")}
    corpus.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")


def of_documents(*ids: str) -> PoolSet:
    return replace(POOLS, document_ids=[[*ids]], rows=torch.zeros(1, len(ids)), valid=torch.ones(1, len(ids)) > 0)


def test_years_months_and_times_are_dates(tmp_path: Path) -> None:
    folder = topics_folder(tmp_path / "c")
    dates = {"d000": "2020-01-11", "d001": "2020-01-06T10:00:00Z", "d002": "2020-01", "d003": 2020}
    give_dates(folder, dates)
    pools = of_documents("d000", "d001", "d002", "d003")
    assert recency_of(pools, f"path:{folder}").tolist() == [[1.0, 0.5, 0.0, 0.0]]
    corpus = folder / "corpus.jsonl"
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    corpus.unlink()
    assert recency_of(pools, f"path:{folder}").tolist() == [[1.0, 0.5, 0.0, 0.0]]
    with pytest.raises(DataError, match=r"freshness needs dates, and 1 documents of the pools have none \(d004\)"):
        recency_of(of_documents("d000", "d004"), f"path:{folder}")


@pytest.mark.parametrize("wrong", ["yesterday", "2020-13-01", "2020-02-30", "2020-5-1"])
def test_what_is_no_date_is_named(tmp_path: Path, wrong: str) -> None:
    folder = topics_folder(tmp_path / "c")
    give_dates(folder, {"d002": wrong})
    with pytest.raises(DataError, match=rf"corpus.jsonl:3: date '{wrong}' is no date"):
        recency_of(of_documents("d000"), f"path:{folder}")


@pytest.mark.usefixtures("tmp_cache")
def test_freshness_trains_with_dates_and_other_dates_are_another_training(tmp_path: Path) -> None:
    folder = topics_folder(tmp_path / "c")
    objectives = {"relevance": 1.0, "freshness": 0.5}
    config = toy_config(folder, tmp_path / "out", method="eggroll", objectives=objectives, num_steps=2)
    data, ids = toy_data(config), [f"d{number:03d}" for number in range(60)]
    trainers = []
    for first in (2000, 2010):
        give_dates(folder, {key: f"{first + number % 20}" for number, key in enumerate(ids)} | {"d000": "1999"})
        trainers.append(HeadTrainer(config, data))
    assert trainers[0].state.fingerprint != trainers[1].state.fingerprint
    trainers[0].fit()
    logged = [json.loads(line) for line in trainers[0].state.log_path.read_text(encoding="utf-8").splitlines()]
    assert all(0 < line["freshness"] < 1 for line in logged)
