"""Half-relevant labels for unjudged candidates that several rankers rank high: a remedy for missing judgments.

Only unjudged candidates of training pools change; the new labels count in the ideal ranking too. Dev and test keep the
collection's judgments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from unimoe.config import ModelConfig, PromptConfig
from unimoe.config.base import EncoderConfig
from unimoe.core.errors import DataError, UsageError, named_inputs
from unimoe.core.io import cache_dir, hash_parts, lock, read_json, write_json
from unimoe.core.trec import Run, ranked
from unimoe.data.collection import Collection
from unimoe.models.base import load_base
from unimoe.models.bundled import BUNDLED_ID
from unimoe.models.device import choose_device, choose_dtype, release_memory
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.embeddings import cached_embeddings
from unimoe.studies.common.splits import Splits
from unimoe.studies.heads.config import SoftLabelConfig, TrainConfig
from unimoe.studies.heads.pools import PoolSet

LM_PREFIX, RERANKER_PREFIX = "lm:", "reranker:"
_LM_LENGTH = 256  # tokens of one prompt
_QUERIES = 8  # judged between two writes to the cache: a killed run loses at most these

Asked = tuple[str, str]
Scoring = Callable[[Sequence[Asked], Sequence[tuple[str, str]]], Sequence[float]]
"""From pairs of ids, query first, and their texts to scores."""


def soften(train: PoolSet, splits: Splits, config: TrainConfig) -> tuple[PoolSet, int]:
    """Grade the candidates of the training pools that the voters of ``config.soft_labels`` agree on.

    Returns:
        The pools with the new grades, and how many candidates got one.

    Raises:
        UsageError: the config has no soft labels, or a voter is named twice or is no name.
        DataError: a model is not available.
    """
    settings = config.soft_labels
    if settings is None:
        raise UsageError("soft_labels is null, so there are no voters; set soft_labels.voters")
    twice = [voter for voter, times in Counter(settings.voters).items() if times > 1]
    if twice:
        raise UsageError(f"soft_labels.voters names {twice[0]!r} twice; an opinion counts once")
    return with_votes(train, [_ranking(voter, train, splits.train, config) for voter in settings.voters], settings)


def with_votes(train: PoolSet, rankings: Iterable[Run], settings: SoftLabelConfig) -> tuple[PoolSet, int]:
    """Grade the candidates that enough voters rank high.

    Args:
        train: the training pools.
        rankings: of each voter, query id to ``{document id: score}``; candidates without a score get no vote.
        settings: ``top_k``, ``votes`` and ``grade``.

    Returns:
        The pools with the new grades, and how many candidates got one.
    """
    votes: dict[str, Counter[str]] = {query_id: Counter() for query_id in train.query_ids}
    for run in rankings:
        for query_id, pool in zip(train.query_ids, train.document_ids, strict=True):
            scores = run.get(query_id, {})
            inside = {document_id: scores[document_id] for document_id in pool if document_id in scores}
            votes[query_id].update(ranked(inside)[: settings.top_k])
    grades, judged, changed = train.grades.clone(), list(train.judged), 0
    for place, (query_id, pool) in enumerate(zip(train.query_ids, train.document_ids, strict=True)):
        known, counted = train.qrels[query_id], votes[query_id]
        agreed = {document_id for document_id, count in counted.items() if count >= settings.votes} - known.keys()
        soft = [number for number, document_id in enumerate(pool) if document_id in agreed]
        grades[place, soft] = settings.grade
        judged[place] = torch.cat([judged[place], judged[place].new_full((len(soft),), settings.grade)])
        changed += len(soft)
    return train.with_grades(grades, judged), changed


def _ranking(voter: str, train: PoolSet, collection: Collection, config: TrainConfig) -> Run:
    """Return a voter's scores of the candidates of every query."""
    if voter == "bm25":
        found = bm25_run(collection, config.pools.depth, config.pools.bm25, cached=True)
        return {query_id: found[query_id] for query_id in train.query_ids}
    if voter == config.encoder.base:  # its embeddings are those of the pools
        return _similarities(train, train.queries, train.documents)
    for prefix, score in ((LM_PREFIX, _margins_by_model), (RERANKER_PREFIX, _scores_by_reranker), ("", _embedded_by)):
        if voter.startswith(prefix):
            found = score(voter.removeprefix(prefix), train, collection, config)
            break
    release_memory()  # the model is not held any more
    return found


def _embedded_by(voter: str, train: PoolSet, collection: Collection, config: TrainConfig) -> Run:
    from unimoe.models.encoder import load_encoder

    device, settings = choose_device(config.device), EncoderConfig(base=voter)
    embedder = load_encoder(settings, device, choose_dtype(device, settings.dtype))
    ids = _ids_by_row(train)
    documents = cached_embeddings(embedder, {key: collection.corpus[key].full_text for key in ids}, "document")
    queries = cached_embeddings(embedder, {key: collection.queries[key] for key in train.query_ids}, "query")
    return _similarities(train, torch.from_numpy(queries.of(train.query_ids)), torch.from_numpy(documents.of(ids)))


def _similarities(train: PoolSet, queries: Tensor, documents: Tensor) -> Run:
    """Return dot products of queries ``(Q, D)`` with their pools' documents, whose rows are those of the pool set."""
    scores = torch.zeros(train.rows.shape)
    for place, rows in enumerate(train.rows.cpu()):
        scores[place] = documents[rows.to(documents.device)] @ queries[place]
    return train.run(scores)


def _ids_by_row(train: PoolSet) -> list[str]:
    """Return the id of every row of ``train.documents``."""
    pools = zip(train.rows.tolist(), train.document_ids, strict=True)
    ids = {row: document_id for rows, pool in pools for row, document_id in zip(rows, pool, strict=False)}
    return [ids[row] for row in sorted(ids)]


def _scores_by_reranker(name: str, train: PoolSet, collection: Collection, config: TrainConfig) -> Run:
    """Score by a reranker of any kind, kept in the user's cache where its identity tells it from every other."""
    from unimoe.evaluation.reranking.rerankers import reranker_of
    from unimoe.evaluation.reranking.shards import rerank_run
    from unimoe.evaluation.systems.named import Naming, default_experiment, named_system

    if not name:
        raise UsageError(f"soft_labels.voters: {RERANKER_PREFIX!r} names no model; append one as in evaluate --model")
    device = choose_device(config.device)
    dtype = choose_dtype(device)
    system = named_system(name, Naming(default_experiment(name), device, dtype))
    if "reranking" not in system.tasks:
        raise UsageError(f"soft_labels.voters: {name} embeds and does not rerank; name it without {RERANKER_PREFIX}")
    reranker = reranker_of(system.model())
    identity = [str(system.base_identity), str(system.prompt), str(dtype)]

    def score(asked: Sequence[Asked], texts: Sequence[tuple[str, str]]) -> list[float]:
        candidates: Run = {}
        for query_id, document_id in asked:
            candidates.setdefault(query_id, {})[document_id] = 0.0
        found, _ = rerank_run(reranker, collection, candidates)
        return [found[query_id][document_id] for query_id, document_id in asked]

    return _kept_scores(train, collection, identity if system.reusable else None, score)


def _margins_by_model(name: str, train: PoolSet, collection: Collection, config: TrainConfig) -> Run:
    """Score by the yes/no margin of a causal language model, kept in the user's cache a few queries at a time."""
    if not name:
        raise UsageError(f"soft_labels.voters: {LM_PREFIX!r} names no model; append a hub id, a folder or {BUNDLED_ID}")
    device = choose_device(config.device)
    base = load_base(ModelConfig(base=name), device, choose_dtype(device))
    # Instruct models answer in their own template; Qwen3's rerankers were trained on theirs.
    prompt = PromptConfig(template="qwen3" if "qwen3-reranker" in name.lower() else "chat")
    model = UnimodelForExp1(base, prompt, _LM_LENGTH)
    identity = [model.base_identity, model.prompt_name, str(model.dtype)]

    def score(asked: Sequence[Asked], texts: Sequence[tuple[str, str]]) -> list[float]:
        with named_inputs(lambda index: "query {!r}, document {!r}".format(*asked[index])):
            margins: list[float] = model.rerank(texts, output="gap").tolist()
        return margins

    return _kept_scores(train, collection, identity, score)


def _kept_scores(train: PoolSet, collection: Collection, identity: Sequence[str] | None, score: Scoring) -> Run:
    """Score the candidates of a few queries at a time, each part once for one identity; always where it is None."""
    run: Run = {query_id: {} for query_id in train.query_ids}
    pools = list(zip(train.query_ids, train.document_ids, strict=True))
    for begin in range(0, len(pools), _QUERIES):
        part = pools[begin : begin + _QUERIES]
        asked = [(query_id, document_id) for query_id, pool in part for document_id in pool]
        texts = [(collection.queries[query], collection.corpus[document].full_text) for query, document in asked]
        if identity is None:
            values: Sequence[float] = score(asked, texts)
        else:
            key = hash_parts([*identity, *(text for pair in [*asked, *texts] for text in pair)])
            path = cache_dir("votes") / f"{key}.json"
            with lock(path):
                kept = _read_values(path, len(asked))
                values = score(asked, texts) if kept is None else kept
                write_json(path, {"gaps": list(values)})
        for (query_id, document_id), value in zip(asked, values, strict=True):
            run[query_id][document_id] = value
    return run


def _read_values(path: Path, count: int) -> list[float] | None:
    """Read the values in a file; None where it is missing or damaged, for they can be computed again."""
    try:
        values = read_json(path, dict[str, list[float]])["gaps"]
    except (DataError, KeyError):
        return None
    return values if len(values) == count else None
