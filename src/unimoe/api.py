"""Functions of ``import unimoe`` that need no config: they take names and plain data, and have defaults for the rest.

torch is imported only when something is reranked, a model is loaded, or MTEB is asked for its rule of a published set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from unimoe.checks import Check, report
from unimoe.checks.texts import concerned, without_candidates
from unimoe.config import BM25Config, DenseConfig, ModelConfig, PromptConfig
from unimoe.config.base import BUNDLED_ENCODER, EncoderConfig
from unimoe.core.errors import DataError, UsageError, names_extra, path_of
from unimoe.core.io import hash_file, hash_json
from unimoe.core.shown import Shown, View
from unimoe.core.trec import Run
from unimoe.data import catalog
from unimoe.data.collection import Collection
from unimoe.evaluation.datasets import Dataset, collections_of, cut_queries
from unimoe.formats.runs import read_run
from unimoe.metrics import DEFAULT_METRICS, Scores
from unimoe.models.bundled import BUNDLED_ID
from unimoe.models.checkpoint import ADAPTER_FILE, read_checkpoint
from unimoe.models.seen_queries import seen_by
from unimoe.results.runs.scoring import score_run
from unimoe.retrieval.bm25 import bm25_run, first_stage_name
from unimoe.retrieval.first_stage import caveats_of_candidates, cut_run, fitting_candidates

if TYPE_CHECKING:
    from unimoe.models.device import DeviceName
    from unimoe.models.embedder import Embedder
    from unimoe.models.encoder import SentenceEncoder
    from unimoe.models.functions import PairScorer, TextEncoder
    from unimoe.models.reranker import Reranker
    from unimoe.models.unimodel import UnimodelForExp1


@dataclass(frozen=True, repr=False)
class EvaluatedRun(Shown):
    """How well a reranker or an encoder ordered the documents of a collection.

    Attributes:
        run: query id to ``{document id: score}``.
        scores: the measures of the run, per query and on average.
        identity: the base model's name and hash, or ``python:MODULE:FUNCTION@HASH`` of ``FUNCTION.identity``, else of
            the module's file, else (without a file, or with others of its name) of what the function computes with.
        candidates: BM25 with its parameters, or a run with its hash; None where all documents were searched.
        first_stage: the measures of the candidates in their own order; None where there is none.
        checks: what was found of the collection and of the candidates; stderr showed the caveats.
    """

    run: Run
    scores: Scores
    identity: str
    candidates: str | None = None
    first_stage: Scores | None = None
    checks: tuple[Check, ...] = ()

    @property
    def _view(self) -> View:
        from unimoe.analysis.shown import scores_view  # tables are only loaded by those who look

        reranks = f", reranks {self.candidates}" if self.candidates else ""
        what = f"{self.identity}{reranks}, {len(self.run):,} queries"
        facts = {"identity": self.identity, "candidates": self.candidates}
        scores = replace(self.scores, checks=(*self.checks, *self.scores.checks))
        return scores_view(scores, what, facts, self.run, self.first_stage)


@names_extra
def load_collection(name: str, split: str | None = None) -> Collection:
    """Load documents, queries and judgments.

    Args:
        name: ``apidocs`` (bundled), ``scifact``, ``path:DIR`` (BEIR layout), ``nanobeir:NAME``, ``ir_datasets:ID`` or
            ``mteb:TASK``.
        split: ``test`` by default, ``dev`` for MS MARCO.

    Raises:
        UsageError: there is no such collection or split.
        DataError: the collection is malformed.
        UnavailableError: it is neither on this machine nor to be downloaded.
    """
    if not isinstance(name, str):
        raise UsageError(f"the collection is a {type(name).__name__}; give its name, such as 'scifact'")
    if not isinstance(split, str | None):
        raise UsageError(f"the split is a {type(split).__name__}; give its name, such as 'test'")
    catalog.refuse_unknown(name)
    ((collection, default_split),) = collections_of(name)
    return catalog.load_collection(collection, split or default_split)


@names_extra
def bm25_candidates(collection: Collection | str, depth: int = 100, params: BM25Config | None = None) -> Run:
    """Rank the documents of a collection by BM25 for each of its queries.

    The document with the query's id is left out where MTEB's task of the collection does so, as for ArguAna. The run is
    kept in the user's cache.

    Args:
        collection: as loaded, or its name.
        depth: documents kept per query, at most.
        params: k1, b, language and stemmer; by default .9, .4 and those of the collection's language.

    Returns:
        Query id to ``{document id: score}``, best first.
    """
    dataset, loaded = _dataset(collection)
    if not hasattr(depth, "__index__"):
        raise UsageError(f"depth {depth!r} is no whole number; use at least 1")
    if not isinstance(params, BM25Config | None):
        raise UsageError(f"params is a {type(params).__name__}; give a BM25Config, such as BM25Config(k1=1.2)")
    ruled, params = dataset.with_rule(loaded), params or BM25Config()
    run = bm25_run(ruled, depth, params, cached=True)
    _reported(ruled, run, by_words=params.language is None)
    return run


@names_extra
def evaluate_reranker(
    scorer: PairScorer | Reranker | UnimodelForExp1,
    collection: Collection | str,
    *,
    candidates: object = None,
    depth: int = 100,
    max_queries: int | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> EvaluatedRun:
    """Rerank the candidates of every query with a function or model, and score the result.

    Args:
        scorer: a function from a list of ``(query, document)`` texts to as many scores. It is called once for each
            query with all its candidates, so it may compare them with each other. Or what ``load_model`` gives.
        collection: as loaded, or its name.
        candidates: a run to rerank, in any form that ``read_run`` takes; BM25's by default. The document with the
            query's id is left out as in ``bm25_candidates``.
        depth: candidates reranked per query, at most.
        max_queries: score a fixed sample of this many queries; by default all.
        metrics: as in ``score_run``.

    Raises:
        DataError: a run that cannot be read, a candidate is no document of the collection, candidates without an order
            would have to be cut, or the function returns another number of scores than it got pairs, or a score that
            is not finite.
        UsageError: an unknown collection or metric, or a number below 1.
    """
    from unimoe.models.model import as_reranker, checks_of_model, reranks
    from unimoe.models.reranker import rerank_run
    from unimoe.models.rerankers.python_function import scorer_identity

    dataset, loaded = _dataset(collection)
    if not reranks(scorer):
        raise UsageError(f"the scorer is a {type(scorer).__name__}; give a function from (query, document) to scores")
    if type(depth) is not int or depth < 1:
        raise UsageError(f"depth {depth}: reranks nothing; use a whole number from 1")
    identity = scorer_identity(scorer)  # before a call can change its state
    loaded = dataset.with_rule(loaded)
    if candidates is None:
        source, known = first_stage_name(BM25Config().in_language(loaded.language)), list[Check]()
        found = bm25_run(loaded, depth, BM25Config(), cached=True)
    else:
        found, known = read_run(candidates), caveats_of_candidates(candidates)
        if isinstance(candidates, str | Path):
            source = f"run:{Path(candidates).name}@{hash_file(Path(candidates))}"
        else:
            source = f"run@{hash_json(found)}"
    scored = loaded if max_queries is None else cut_queries(loaded, max_queries)
    known += checks_of_model(scorer, scored.judged_queries)
    fitting, ordered = fitting_candidates(found, scored, depth, loaded.name)
    chosen = cut_run(fitting, depth)
    if not any(chosen.values()):
        raise DataError(f"{loaded.name}: no scored query has candidates; give a run of this collection and split")
    run, _ = rerank_run(as_reranker(scorer), scored, chosen)
    level = scored.relevance_level if scored.level_stated else None
    return EvaluatedRun(
        run,
        score_run(scored.qrels, run, metrics, level),
        identity,
        source,
        score_run(scored.qrels, chosen, metrics, level) if ordered else None,
        _reported(scored, chosen, known, by_words=candidates is None),
    )


@names_extra
def evaluate_encoder(
    encoder: TextEncoder | Embedder,
    collection: Collection | str,
    *,
    depth: int = 100,
    max_queries: int | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> EvaluatedRun:
    """Search a collection with a function that embeds texts, and score what is found.

    Args:
        encoder: a function from a list of N texts to vectors ``(N, D)``, which are compared by their cosine. It gets
            all queries in one call, then documents in calls of a million characters. A function with a parameter
            ``kind`` gets ``query`` or ``document`` there. Or what ``load_encoder`` or ``load_model`` gives.
        collection: as loaded, or its name. The document with the query's id is left out as in ``bm25_candidates``.
        depth: documents kept per query, at most.
        max_queries: score a fixed sample of this many queries; by default all.
        metrics: as in ``score_run``.

    Raises:
        DataError: the function returns something else than a vector for each text, or one that is zero or not finite.
        UsageError: an unknown collection or metric, or a number below 1.
    """
    from unimoe.evaluation.tasks.search import dense_collection
    from unimoe.models.functions import FunctionEmbedder
    from unimoe.models.model import as_embedder, checks_of_model
    from unimoe.models.rerankers.python_function import function_identity
    from unimoe.retrieval.dense import dense_run

    dataset, loaded = _dataset(collection, max_queries)
    if type(depth) is not int or depth < 1:
        raise UsageError(f"depth {depth}: keeps nothing; use a whole number from 1")
    if given := as_embedder(encoder):
        model = given
    elif callable(encoder):
        model = FunctionEmbedder(encoder, function_identity(encoder))
    else:
        raise UsageError(f"the encoder is a {type(encoder).__name__}; give a function from texts to vectors (N, D)")
    config = DenseConfig(depth=depth, cutoffs=[1])
    test = dense_collection(dataset, loaded, config).test
    with TemporaryDirectory() as store:  # a function's vectors are not kept: nothing tells its weights from others
        run = dense_run(model, test, config, store_dir=Path(store))
    level = test.relevance_level if test.level_stated else None
    scores, known = score_run(test.qrels, run, metrics, level), checks_of_model(model, test.judged_queries)
    return EvaluatedRun(run, scores, model.base_identity, checks=_reported(test, known=known))


@names_extra
def load_model(
    base: str | Path | ModelConfig = BUNDLED_ID,
    *,
    adapter: str | Path | None = None,
    prompt: PromptConfig | None = None,
    device: DeviceName | None = None,
) -> UnimodelForExp1:
    """Load a causal language model that reranks (``model.rerank(pairs)``) and encodes (``model.encode(texts)``).

    Args:
        base: a hub id, a folder, the bundled model, or the checkpoint folder of a trained arm, which brings its base
            model, prompt and dtype along. A ``ModelConfig`` also sets length, layers, dtype, revision.
        adapter: a folder with a PEFT adapter of the base model.
        prompt: how texts are put to the model; by default Qwen3's own prompt for Qwen3 models, and the tokenizer's
            chat template for others.
        device: ``cpu``, ``cuda`` or ``mps``; by default the best there is.

    Raises:
        DataError: the model or the adapter cannot be loaded.
        UsageError: the device is not there, or a checkpoint is given together with what it brings along.
    """
    from unimoe.evaluation.system import checkpoint_loader, trained_system
    from unimoe.models.adapter import adapted_identity, load_lora
    from unimoe.models.base import load_base
    from unimoe.models.device import choose_device, choose_dtype
    from unimoe.models.prompts import default_prompt
    from unimoe.models.unimodel import UnimodelForExp1

    chosen = choose_device(device)
    if not isinstance(prompt, PromptConfig | None):
        raise UsageError(f"the prompt is a {type(prompt).__name__}; give a PromptConfig")
    adapter = None if adapter is None else path_of(adapter, "the adapter")
    if not isinstance(base, ModelConfig) and (path_of(base, "the base model") / ADAPTER_FILE).is_file():
        if adapter is not None or prompt is not None:
            raise UsageError(f"{base}: a checkpoint has its own adapter and prompt; leave out what you gave")
        checkpoint = read_checkpoint(Path(base))
        loader = checkpoint_loader(checkpoint.experiment, checkpoint, chosen)  # in the dtype it was trained in
        trained_system(checkpoint.experiment, loader, Path(base))  # refuses an adapter of another base model
        model = loader.trained(Path(base))
        model.base_identity, model.seen = adapted_identity(model.base_identity, Path(base)), seen_by(Path(base))
        return model
    config = base if isinstance(base, ModelConfig) else ModelConfig(base=str(base))
    loaded = load_base(config, chosen, choose_dtype(chosen, config.dtype))
    if adapter is not None:
        load_lora(loaded, adapter)
        loaded = replace(loaded, identity=adapted_identity(loaded.identity, adapter))
    if prompt is None:
        prompt = default_prompt(loaded.model.config.model_type)
    model = UnimodelForExp1(loaded, prompt, config.max_length).eval()
    model.seen = seen_by(adapter)
    return model


@names_extra
def load_encoder(
    base: str | Path | EncoderConfig = BUNDLED_ENCODER, device: DeviceName | None = None
) -> SentenceEncoder:
    """Load a text encoder: ``encoder.encode(texts)`` gives one vector for each text, which dot products compare.

    Args:
        base: a hub id, a folder (of sentence-transformers or transformers), or the bundled MiniLM. An ``EncoderConfig``
            also sets prefixes, pooling, length and dtype.
        device: ``cpu``, ``cuda`` or ``mps``; by default the best there is.

    Raises:
        DataError: the encoder cannot be loaded.
        UsageError: the device is not there.
    """
    from unimoe.models.device import choose_device, choose_dtype
    from unimoe.models.encoder import load_encoder as load

    if not isinstance(base, EncoderConfig):
        path_of(base, "the encoder")  # as which a hub id passes too
        base = EncoderConfig(base=str(base))
    chosen = choose_device(device)
    return load(base, chosen, choose_dtype(chosen, base.dtype))


def _dataset(collection: Collection | str, max_queries: int | None = None) -> tuple[Dataset, Collection]:
    """Return a collection, as loaded or by name, and what evaluations know of it, such as MTEB's rule of equal ids."""
    loaded = collection if isinstance(collection, Collection) else load_collection(collection)
    name = collections_of(collection)[0][0] if isinstance(collection, str) else collection.name
    return Dataset(name, loaded.split, max_queries=max_queries), loaded


def _reported(
    collection: Collection, candidates: Run | None = None, known: Sequence[Check] = (), *, by_words: bool = False
) -> tuple[Check, ...]:
    """Return what was found of a collection and of the candidates of its queries, and print the caveats on stderr."""
    found = [*known, *concerned(collection.checks, by_words=by_words)]
    lacking = [query for query in collection.qrels if candidates is not None and not candidates.get(query)]
    found += without_candidates(collection.name, lacking, len(collection.qrels))
    report(check for check in found if check.weight == "caveat")
    return tuple(found)
