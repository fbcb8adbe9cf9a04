"""Half-relevant labels for unjudged candidates that several rankers rank high: a remedy for missing judgments.

Only unjudged candidates of training pools change; the new labels count in the ideal ranking too. Dev and test keep the
collection's judgments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from unimoe.config import ModelConfig, PromptConfig
from unimoe.config.base import EncoderConfig
from unimoe.core.errors import UsageError
from unimoe.core.io import cache_dir, hash_parts, read_json, write_json
from unimoe.core.trec import Run, ranked
from unimoe.data.collection import Collection
from unimoe.models.base import load_base
from unimoe.models.batching import batches
from unimoe.models.device import choose_device, choose_dtype, release_memory
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.retrieval.bm25 import bm25_run
from unimoe.retrieval.embeddings import Embedded, cached_embeddings
from unimoe.studies.common.splits import Splits
from unimoe.studies.heads.config import SoftLabelConfig, TrainConfig
from unimoe.studies.heads.pools import PoolSet

_PAIR_MODELS = ("lm:", "reranker:")
_LM_LENGTH = 256  # tokens of one prompt
_QUERIES = 8  # judged between two writes to the cache: a killed run loses at most these


def soften(train: PoolSet, splits: Splits, config: TrainConfig) -> tuple[PoolSet, int]:
    """Grade the candidates of the training pools that the voters of ``config.soft_labels`` agree on.

    Returns:
        The pools with the new grades, and how many candidates got one.
    """
    settings = config.soft_labels or SoftLabelConfig()
    if len(set(settings.voters)) < len(settings.voters):
        raise UsageError(f"soft_labels.voters {', '.join(settings.voters)}: one is named twice; an opinion counts once")
    return with_votes(train, [_ranking(voter, train, splits.train, config) for voter in settings.voters], settings)


def with_votes(train: PoolSet, rankings: Sequence[Run], settings: SoftLabelConfig) -> tuple[PoolSet, int]:
    """Grade the candidates that enough voters rank high.

    Args:
        train: the training pools.
        rankings: of each voter, query id to ``{document id: score}``; candidates without a score get no vote.
        settings: ``top_k``, ``votes`` and ``grade``.

    Returns:
        The pools with the new grades, and how many candidates got one.
    """
    grades, judged, changed = train.grades.clone(), list(train.judged), 0
    for place, (query_id, pool) in enumerate(zip(train.query_ids, train.document_ids, strict=True)):
        votes: Counter[str] = Counter()
        for scores in (run.get(query_id, {}) for run in rankings):
            inside = {document_id: scores[document_id] for document_id in pool if document_id in scores}
            votes.update(ranked(inside)[: settings.top_k])
        agreed = {document_id for document_id, count in votes.items() if count >= settings.votes}
        agreed -= train.qrels[query_id].keys()
        soft = [number for number, document_id in enumerate(pool) if document_id in agreed]
        grades[place, soft] = settings.grade
        judged[place] = torch.cat([judged[place], judged[place].new_full((len(soft),), settings.grade)])
        changed += len(soft)
    return replace(train, grades=grades, judged=judged), changed


def _ranking(voter: str, train: PoolSet, collection: Collection, config: TrainConfig) -> Run:
    """Return a voter's scores of the candidates of every query."""
    if voter == "bm25":
        found = bm25_run(collection, config.pools.depth, config.pools.bm25, cached=True)
        return {query_id: found[query_id] for query_id in train.query_ids}
    rank = _by_pairs if voter.startswith(_PAIR_MODELS) else _by_embeddings
    found = rank(voter, train, collection, config)
    release_memory()  # the model is not held any more
    return found


def _by_embeddings(voter: str, train: PoolSet, collection: Collection, config: TrainConfig) -> Run:
    from unimoe.models.encoder import load_encoder

    ids = sorted({document_id for pool in train.document_ids for document_id in pool})
    if voter == config.encoder.base:  # its embeddings are those of the pools
        documents, queries = Embedded(ids, train.documents.numpy()), Embedded(train.query_ids, train.queries.numpy())
    else:
        device, settings = choose_device(config.device), EncoderConfig(base=voter)
        embedder = load_encoder(settings, device, choose_dtype(device, settings.dtype))
        documents = cached_embeddings(embedder, {key: collection.corpus[key].full_text for key in ids}, "document")
        queries = cached_embeddings(embedder, {key: collection.queries[key] for key in train.query_ids}, "query")
    return {
        query_id: dict(zip(pool, (documents.of(pool) @ queries.of([query_id])[0]).tolist(), strict=True))
        for query_id, pool in zip(train.query_ids, train.document_ids, strict=True)
    }


def _by_pairs(voter: str, train: PoolSet, collection: Collection, config: TrainConfig) -> Run:
    """Score pairs by the yes/no margin of a causal language model, or by a reranker of any kind.

    The scores of a few queries at a time are kept in the user's cache, where the model's identity tells it from every
    other.
    """
    from unimoe.evaluation.system import named_system
    from unimoe.models.named import ModelSettings, default_experiment
    from unimoe.models.pair_model import PairModelReranker
    from unimoe.models.reranker import Reranker, rerank_run

    kind, _, name = voter.partition(":")
    if not name:
        raise UsageError(f"soft_labels.voters: {voter!r} names no model; append one as in evaluate --model")
    device = choose_device(config.device)
    dtype = choose_dtype(device)
    if kind == "lm":
        # Instruct models answer in their own template; Qwen3's rerankers were trained on theirs.
        prompt = PromptConfig(template="qwen3" if "qwen3-reranker" in name.lower() else "chat")
        model = UnimodelForExp1(load_base(ModelConfig(base=name), device, dtype), prompt, _LM_LENGTH)
        identity, is_kept = [model.base_identity, model.prompt_name, str(model.dtype)], True
        reranker: Reranker = PairModelReranker(model)
    else:
        system = named_system(name, ModelSettings(default_experiment(name), device, dtype))
        if "reranking" not in system.tasks:
            raise UsageError(f"soft_labels.voters: {name} embeds and does not rerank; name it without reranker:")
        assert system.model is not None  # noqa: S101 - for the type checker
        identity = [system.model.identity, str(system.model.prompt), str(dtype)]
        is_kept, reranker = system.model.reusable, system.model.reranker()

    run: Run = {}
    for part in batches([*zip(train.query_ids, train.document_ids, strict=True)], _QUERIES):
        texts = [text for query, pool in part for text in (query, collection.queries[query], *pool)]
        texts += [collection.corpus[document].full_text for _, pool in part for document in pool]
        path = cache_dir("votes") / f"{hash_parts(['run', *identity, *texts])}.json"
        if is_kept and path.exists():
            run |= read_json(path, dict[str, dict[str, float]])
            continue
        found, _ = rerank_run(reranker, collection, {query: dict.fromkeys(pool, 0.0) for query, pool in part})
        scores = {query: found[query] for query, _ in part}
        if is_kept:
            write_json(path, scores)
        run |= scores
    return run
