from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from sentence_transformers import CrossEncoder
from support.heads import topics_folder, toy_config, toy_data
from support.json_files import read_plain, write_plain
from support.tiny_encoders import save_tiny_encoder
from support.tiny_models import save_tiny_model
from support.tiny_rerankers import save_tiny_cross_encoder
from support.toy_pools import random_head, toy_pools

from unimoe.config.base import EncoderConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import ranked
from unimoe.models.encoder import load_encoder
from unimoe.retrieval.bm25 import bm25_run
from unimoe.studies.heads.config import SoftLabelConfig, TrainConfig
from unimoe.studies.heads.data import HeadData
from unimoe.studies.heads.eggroll.method import evolution
from unimoe.studies.heads.eggroll.soft_labels import soften, with_votes
from unimoe.studies.heads.model import evaluate_head
from unimoe.studies.heads.pools import PoolSet


def settings(**changes: Any) -> SoftLabelConfig:
    return SoftLabelConfig.model_validate({"voters": ["bm25", "another", "third"], "top_k": 2, **changes})


def descending(*ids: str) -> dict[str, float]:
    return {document_id: -float(place) for place, document_id in enumerate(ids)}


POOLS = toy_pools(2, 5, padded=False)
IDS = POOLS.document_ids[0]


def softened(*rankings: dict[str, float], pools: PoolSet = POOLS, **changes: Any) -> tuple[list[float], Any, int]:
    """Return the grades and judged grades of the first query, and how many candidates got a grade."""
    changed, count = with_votes(pools, [{"q000": ranking, "q001": {}} for ranking in rankings], settings(**changes))
    assert torch.equal(changed.grades[1], pools.grades[1])
    return changed.grades[0].tolist(), changed.judged[0].tolist(), count


def test_votes_by_hand() -> None:
    before, relevant = POOLS.grades.clone(), int(POOLS.grades[0].argmax())
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
    assert torch.equal(POOLS.grades, before)
    assert [len(judged) for judged in POOLS.judged] == [1, 1]


def test_more_votes_are_harder_to_get_and_documents_outside_the_pool_take_no_place() -> None:
    ranking, reverse = descending(*IDS), descending(*IDS[::-1])
    assert softened(ranking, ranking, reverse, votes=3)[2] == 0
    assert softened(ranking, ranking, ranking, votes=3)[2] > 0
    outside = descending("x1", "x2", *IDS)
    assert softened(outside, outside) == softened(ranking, ranking)


def test_what_was_judged_not_relevant_stays_so() -> None:
    rejected = replace(POOLS, qrels={"q000": dict.fromkeys(IDS, 0), "q001": {}})
    grades, _, count = softened(descending(*IDS), descending(*IDS), pools=rejected)
    assert (grades, count) == (POOLS.grades[0].tolist(), 0)


def test_soft_labels_count_in_fitness_but_not_in_what_is_reported() -> None:
    pools = toy_pools(4, 8, padded=False)
    runs = [{q: descending(*ids) for q, ids in zip(pools.query_ids, pools.document_ids, strict=True)}] * 2
    changed, count = with_votes(pools, runs, settings(top_k=4))
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


def agreed(*rankings: dict[str, float]) -> set[str]:
    """The documents among the first five of all rankings."""
    return set.intersection(*(set(ranked(ranking)[:5]) for ranking in rankings))


def soft_ids(pools: PoolSet, place: int) -> set[str]:
    return {pools.document_ids[place][n] for n in (pools.grades[place] == 0.5).nonzero().flatten().tolist()}


def own_ranking(train: PoolSet, place: int) -> dict[str, float]:
    """The candidates of a query by the head's own encoder."""
    pool = train.document_ids[place]
    similarities = train.documents[train.rows[place, : len(pool)]] @ train.queries[place]
    return dict(zip(pool, similarities.tolist(), strict=True))


def test_bm25_and_the_heads_own_encoder_agree(topics: tuple[TrainConfig, HeadData]) -> None:
    config, data = topics
    softened, count = soften(data.train, data.splits, voting(config, "bm25", config.encoder.base))
    train, found = data.train, 0
    bm25 = bm25_run(data.splits.train, config.pools.depth, config.pools.bm25)
    for place, (query_id, pool) in enumerate(zip(train.query_ids, train.document_ids, strict=True)):
        inside = {document_id: score for document_id, score in bm25[query_id].items() if document_id in pool}
        soft = soft_ids(softened, place)
        assert soft == agreed(own_ranking(train, place), inside) - train.qrels[query_id].keys()
        assert softened.judged[place].tolist() == train.judged[place].tolist() + [0.5] * len(soft)
        found += len(soft)
    assert count == found > 0
    assert torch.equal(softened.grades[train.grades > 0], train.grades[train.grades > 0])


@pytest.mark.parametrize("kind", ["encoder", "cross-encoder"])
def test_another_model_ranks_by_its_own_scores(
    kind: str, topics: tuple[TrainConfig, HeadData], tmp_path: Path, tmp_cache: Path
) -> None:
    config, data = topics
    train, place = data.train, 3
    query_id, pool = train.query_ids[place], train.document_ids[place]
    query = data.splits.train.queries[query_id]
    texts = [data.splits.train.corpus[key].full_text for key in pool]
    if kind == "encoder":
        voter = str(save_tiny_encoder(tmp_path / "model"))
        encoder = load_encoder(EncoderConfig(base=voter), torch.device("cpu"), torch.float32)
        theirs = encoder.encode(texts, kind="document") @ encoder.encode([query], kind="query")[0]
    else:
        folder = save_tiny_cross_encoder(tmp_path / "model")
        voter = f"reranker:cross-encoder:{folder}"
        theirs = CrossEncoder(str(folder), device="cpu").predict([(query, text) for text in texts])
    chosen = voting(config, config.encoder.base, voter)
    softened, _ = soften(train, data.splits, chosen)
    ranking = dict(zip(pool, map(float, theirs), strict=True))
    assert soft_ids(softened, place) == agreed(own_ranking(train, place), ranking) - train.qrels[query_id].keys()
    assert torch.equal(softened.grades, soften(train, data.splits, chosen)[0].grades)


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


@pytest.mark.parametrize(
    ("voter", "words"),
    [
        ("bm25", "bm25, bm25: one is named twice"),
        ("lm:", "names no model"),
        ("reranker:", "names no model"),
        ("lm:bundled:nothing", "bundled:nothing"),
        ("bundled:nothing", "bundled:nothing"),
        ("reranker:bundled:nothing", "bundled:nothing"),
    ],
)
def test_a_voter_that_cannot_be_had_is_refused(voter: str, words: str, topics: tuple[TrainConfig, HeadData]) -> None:
    config, data = topics
    with pytest.raises((UsageError, DataError), match=words):
        soften(data.train, data.splits, voting(config, "bm25", voter))


def test_more_votes_than_voters_are_refused() -> None:
    with pytest.raises(ValidationError, match="only 2 voters"):
        SoftLabelConfig(voters=["bm25", "x"], votes=3)
