"""What evolution aims at, by hand, and labels that models agree on; precision of four bits, and the genetic method."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder
from support.scripts import read_plain, write_plain
from support.studies import INPUTS, random_head, topics_folder, toy_config, toy_data, toy_pools
from support.tiny_models import save_tiny_cross_encoder, save_tiny_encoder, save_tiny_model
from torch import Tensor

from unimoe.config.base import EncoderConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import ranked
from unimoe.models.encoder import load_encoder
from unimoe.retrieval.bm25 import bm25_run
from unimoe.studies.heads.config import SoftLabelConfig, TrainConfig
from unimoe.studies.heads.data import HeadData, recency_of
from unimoe.studies.heads.eggroll import objectives as aims
from unimoe.studies.heads.eggroll.fp4 import BLOCK, Packed, dequantize, quantize
from unimoe.studies.heads.eggroll.genetic import Genetic
from unimoe.studies.heads.eggroll.method import evolution
from unimoe.studies.heads.eggroll.noise import directions, generator
from unimoe.studies.heads.eggroll.soft_labels import soften, with_votes
from unimoe.studies.heads.model import evaluate_head
from unimoe.studies.heads.pools import PoolSet
from unimoe.studies.heads.trainer import HeadTrainer

pytestmark = pytest.mark.usefixtures("one_thread")

D2, D3 = 1 / math.log2(3), 1 / 2  # exposure at ranks 2 and 3; at rank 1 it is 1

# One pool of four documents, the last padded, and two rankings of it: 0 1 2 and 2 1 0.
SCORES = torch.tensor([[[3.0, 1.0], [2.0, 2.0], [1.0, 3.0], [-torch.inf, -torch.inf]]])
VALID = torch.tensor([[True, True, True, False]])
POOLS = toy_pools(6, 8)


def test_diversity_fairness_and_freshness_by_hand() -> None:
    first, two, all_of_them = (aims.first_documents(SCORES, VALID, count) for count in (1, 2, 4))
    documents = torch.tensor([[[2.0, 0.0], [0.6, 0.8], [0.0, 1.0], [5.0, 5.0]]])
    # Cosines: 0 and 1: 0.6, 1 and 2: 0.8, 0 and 2: 0.
    assert aims.diversity(two, documents)[0].tolist() == pytest.approx([0.4, 0.2])
    assert aims.diversity(all_of_them, documents)[0].tolist() == pytest.approx([(0.4 + 0.2 + 1) / 3] * 2)
    alone = torch.tensor([[True, False, False, False]])  # one document has no pair
    assert aims.diversity(aims.first_documents(SCORES, alone, 3), documents)[0, 0] == 0
    groups, total = torch.tensor([[-1.0, 1, 1, 0]]), 1 + D2 + D3
    expected = [1 - abs(1 - D2 - D3) / total, 1 - abs(D3 - 1 - D2) / total]
    assert aims.fairness(all_of_them, groups)[0].tolist() == pytest.approx(expected), "padding is not exposed"
    assert aims.fairness(first, groups)[0].tolist() == pytest.approx([0, 0], abs=1e-6)
    assert aims.fairness(first, torch.tensor([[1.0, 0, 0, 0]]))[0].tolist() == [1, 1]
    found = aims.freshness(two, torch.tensor([[1.0, 0.5, 0.0, 0.0]]))
    assert found[0].tolist() == pytest.approx([(1 + D2 / 2) / (1 + D2), (D2 / 2) / (1 + D2)], rel=1e-5)
    batch = POOLS.batch([1])  # 8 documents, none padded
    given = aims.Objectives(TrainConfig.model_validate({"objectives": {"fairness": 1.0}, "ndcg_k": 5}), POOLS)
    found = given.means(batch, [(slice(0, 1), -batch.ranks.float().unsqueeze(2))])["fairness"]
    upper, lower = sum(1 / math.log2(1 + rank) for rank in range(1, 5)), 1 / math.log2(6)
    assert float(found) == pytest.approx(1 - (upper - lower) / (upper + lower), rel=1e-5)


def test_the_front_by_hand() -> None:
    assert aims.pareto_front([(0.9, 0.1), (0.5, 0.5), (0.4, 0.5), (0.1, 0.9), (0.5, 0.4), (0.05, 0.05)]) == [0, 1, 3]
    assert aims.pareto_front([(1.0, 2.0), (1.0, 2.0), (0.0, 2.0)]) == [0, 1], "equal points stay together"
    assert aims.pareto_front([(0.3,), (0.7,), (0.5,)]) == [1]


def give_dates(folder: Path, dates: Mapping[str, object]) -> None:
    corpus = folder / "corpus.jsonl"
    records = [json.loads(line) for line in corpus.read_text(encoding="utf-8").splitlines()]
    for record in records:
        record["metadata"] = {"date": dates.get(record["_id"], "")}
    corpus.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")


def of_documents(*ids: str) -> PoolSet:
    return replace(POOLS, document_ids=[[*ids]], rows=torch.zeros(1, len(ids)), valid=torch.ones(1, len(ids)) > 0)


def test_years_months_and_times_are_dates_and_what_is_none_is_named(tmp_path: Path) -> None:
    folder = topics_folder(tmp_path / "c")
    dates = {"d000": "2020-01-11", "d001": "2020-01-06T10:00:00Z", "d002": "2020-01", "d003": 2020}
    give_dates(folder, dates)
    pools = of_documents("d000", "d001", "d002", "d003")
    assert recency_of(pools, f"path:{folder}").tolist() == [[1.0, 0.5, 0.0, 0.0]]
    with pytest.raises(DataError, match=r"freshness needs dates, and 1 documents of the pools have none \(d004\)"):
        recency_of(of_documents("d000", "d004"), f"path:{folder}")
    corpus = folder / "corpus.jsonl"
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes()))
    plain = corpus.rename(tmp_path / "plain")
    assert recency_of(pools, f"path:{folder}").tolist() == [[1.0, 0.5, 0.0, 0.0]]
    (folder / "corpus.jsonl.gz").unlink()
    plain.rename(corpus)
    for wrong in ("yesterday", "2020-13-01", "2020-02-30", "2020-5-1"):
        give_dates(folder, {"d002": wrong})
        with pytest.raises(DataError, match=rf"corpus.jsonl:3: date '{wrong}' is no date"):
            recency_of(pools, f"path:{folder}")


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


def descending(*ids: str) -> dict[str, float]:
    return {document_id: -float(place) for place, document_id in enumerate(ids)}


VOTES = SoftLabelConfig(voters=["bm25", "another", "third"], top_k=2)
PAIR = toy_pools(2, 5, padded=False)
IDS = PAIR.document_ids[0]


def softened(*rankings: dict[str, float], pools: PoolSet = PAIR) -> tuple[list[float], Any, int]:
    """Return the grades and judged grades of the first query, and how many candidates got a grade."""
    changed, count = with_votes(pools, [{"q000": ranking, "q001": {}} for ranking in rankings], VOTES)
    assert torch.equal(changed.grades[1], pools.grades[1])
    return changed.grades[0].tolist(), changed.judged[0].tolist(), count


def test_votes_by_hand() -> None:
    before, relevant = PAIR.grades.clone(), int(PAIR.grades[0].argmax())
    first, second, third, fourth = (document_id for n, document_id in enumerate(IDS) if n != relevant)
    positive = IDS[relevant]
    # first: two votes; second: one; the positive: three; third and fourth: beyond the second place everywhere.
    grades, judged, count = softened(
        descending(positive, first, third, fourth),
        descending(first, positive, fourth),
        descending(second, positive, third, fourth),
    )
    assert (count, grades[IDS.index(first)], grades[relevant], sum(grades)) == (1, 0.5, 1, 1.5)
    assert judged == [1, 0.5]
    assert torch.equal(PAIR.grades, before)
    assert [len(judged) for judged in PAIR.judged] == [1, 1]
    rejected = replace(PAIR, qrels={"q000": dict.fromkeys(IDS, 0), "q001": {}})  # judged, and so not to be voted on
    assert softened(descending(*IDS), descending(*IDS), pools=rejected)[::2] == (before[0].tolist(), 0)


def test_soft_labels_count_in_fitness_but_not_in_what_is_reported() -> None:
    pools = toy_pools(4, 8, padded=False)
    runs = [{q: descending(*ids) for q, ids in zip(pools.query_ids, pools.document_ids, strict=True)}] * 2
    changed, count = with_votes(pools, runs, VOTES.model_copy(update={"top_k": 4}))
    assert count > 0
    config, weight = TrainConfig(population_size=4, sigma=1e-6, head_output_size=8), random_head()
    found = []
    for given in (pools, changed):
        _, facts = evolution(config, weight, given).step(weight, given.batch(range(4)), 0)
        found.append(facts["fitness"])
    assert found[0] == pytest.approx(evaluate_head(weight, pools, config).aggregate["ndcg@10"], abs=1e-6)
    assert found[1] != pytest.approx(found[0], abs=1e-3)
    reported = [evaluate_head(weight, given, config).aggregate for given in (pools, changed)]
    assert reported[0] == reported[1]


@pytest.fixture
def topics(tmp_path: Path, tmp_cache: Path) -> tuple[TrainConfig, HeadData]:
    # Of each topic five documents are about it, and only three are judged.
    config = toy_config(topics_folder(tmp_path / "topics"), tmp_path / "out")
    return config, toy_data(config)


def voting(config: TrainConfig, *voters: str, top_k: int = 5) -> TrainConfig:
    return config.model_copy(update={"soft_labels": SoftLabelConfig(voters=list(voters), top_k=top_k)})


@pytest.mark.parametrize("kind", ["bm25", "encoder", "cross-encoder"])
def test_unjudged_candidates_that_the_heads_encoder_and_a_voter_rank_high_get_half_a_grade(
    kind: str, topics: tuple[TrainConfig, HeadData], tmp_path: Path
) -> None:
    config, data = topics
    train, place = data.train, 3
    query_id, pool = train.query_ids[place], train.document_ids[place]
    query = data.splits.train.queries[query_id]
    texts = [data.splits.train.corpus[key].full_text for key in pool]
    if kind == "bm25":
        voter, found = kind, bm25_run(data.splits.train, config.pools.depth, config.pools.bm25)[query_id]
        theirs = [found.get(key, -1.0) for key in pool]
    elif kind == "encoder":
        voter = str(save_tiny_encoder(tmp_path / "model"))
        encoder = load_encoder(EncoderConfig(base=voter), torch.device("cpu"), torch.float32)
        theirs = encoder.encode(texts, kind="document") @ encoder.encode([query], kind="query")[0]
    else:
        folder = save_tiny_cross_encoder(tmp_path / "model")
        voter = f"reranker:cross-encoder:{folder}"
        theirs = CrossEncoder(str(folder), device="cpu").predict([(query, text) for text in texts])
    own = train.documents[train.rows[place, : len(pool)]] @ train.queries[place]
    high = [set(ranked(dict(zip(pool, map(float, scores), strict=True)))[:5]) for scores in (own, theirs)]
    softened, count = soften(train, data.splits, voting(config, config.encoder.base, voter))
    soft = {pool[n] for n in (softened.grades[place] == 0.5).nonzero().flatten().tolist()}
    assert soft == set.intersection(*high) - train.qrels[query_id].keys()
    assert softened.judged[place].tolist() == train.judged[place].tolist() + [0.5] * len(soft)
    assert count == int((softened.grades == 0.5).sum()) > 0
    assert torch.equal(softened.grades[train.grades > 0], train.grades[train.grades > 0])


def test_a_language_model_votes_and_its_answers_are_kept(
    topics: tuple[TrainConfig, HeadData], tmp_path: Path, tmp_cache: Path
) -> None:
    config, data = topics
    chosen = voting(config, "bm25", f"lm:{save_tiny_model(tmp_path / 'lm')}", top_k=10)
    first, count = soften(data.train, data.splits, chosen)
    kept = sorted((tmp_cache / "votes").glob("*.json"))
    assert len(kept) == -(-len(data.train) // 8)
    assert count > 0
    again, _ = soften(data.train, data.splits, chosen)
    assert torch.equal(first.grades, again.grades)
    for path in kept:
        turned_round = {q: {d: -margin for d, margin in run.items()} for q, run in read_plain(path).items()}
        write_plain(path, turned_round)
    turned, _ = soften(data.train, data.splits, chosen)
    assert not torch.equal(first.grades, turned.grades)


def test_a_voter_that_cannot_be_had_is_refused(topics: tuple[TrainConfig, HeadData]) -> None:
    config, data = topics
    words = {"bm25": "bm25, bm25: one is named twice", "lm:": "names no model"}
    words |= {f"{kind}bundled:nothing": "bundled:nothing" for kind in ("", "lm:", "reranker:")}
    for voter, message in words.items():
        with pytest.raises((UsageError, DataError), match=message):
            soften(data.train, data.splits, voting(config, "bm25", voter))


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


def test_a_generation_by_hand() -> None:
    """Elites unchanged, the best first; a child mixes two winners of tournaments, or copies one, and mutates."""
    settings = {"individuals": 9, "elites": 2, "tournament": 3, "crossover": 0.4, "mutation": 0.1}
    config = TrainConfig.model_validate({"method": "genetic", "genetic": settings, "seed": 5})
    heads = torch.stack([random_head(seed=seed) for seed in range(9)])
    fitness = [evaluate_head(head, FEW, config).aggregate["ndcg@10"] for head in heads]
    method = Genetic(config, aims.Objectives(config, FEW))
    method.load_state({"population": heads})
    best, facts = method.step(heads[4], EVERY, 7)
    chance, noise = generator("breeding", 5, 7), directions(5, 7, 7, 8, INPUTS)
    drawn, mixed, shares = chance.integers(9, size=(7, 2, 3)).tolist(), chance.random(7) < 0.4, chance.random(7)
    expected = [heads[place] for place in sorted(range(9), key=lambda place: -fitness[place])[:2]]
    assert torch.equal(best, expected[0])
    for (one, other), mix, share, a, b in zip(drawn, mixed, shares, noise.a, noise.b, strict=True):
        first, second = (heads[max(some, key=lambda place: fitness[place])] for some in (one, other))
        bred = float(share) * first + (1 - float(share)) * second if mix else first
        expected.append(bred + 0.1 * bred.square().mean().sqrt() * a.T @ b)
    torch.testing.assert_close(method.state()["population"], torch.stack(expected))
    assert len(set(mixed)) == 2
    found = [facts[name] for name in ("fitness", "fitness_mean", "best_individual")]
    assert found == pytest.approx([max(fitness), sum(fitness) / 9, fitness.index(max(fitness))])


def test_four_bits_keep_the_elites_and_round_the_children() -> None:
    """What lives on is the same to the bit, all heads have codes of four bits, and the best is never lost."""
    raw = {"method": "genetic", "head_output_size": 8, "genetic": {"individuals": 16}, "precision": "fp4"}
    config = TrainConfig.model_validate(raw)
    method, weight, found = Genetic(config, aims.Objectives(config, FEW)), random_head(), []
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
