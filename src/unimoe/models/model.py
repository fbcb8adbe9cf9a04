"""What is evaluated: a model that scores pairs of texts, embeds texts, or does both; and what Python gives as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol, Unpack

import torch
from torch import nn

from unimoe.checks import Check
from unimoe.config import Batches, Experiment
from unimoe.core.errors import UsageError, users_code, with_article
from unimoe.models.adapter import adapted_model
from unimoe.models.base import BaseModel, decoder_layers, decoder_of
from unimoe.models.embedder import Advance, Embedder, TextKind, Vectors
from unimoe.models.functions import FunctionReranker
from unimoe.models.own_prompts import BARE, OwnPrompts
from unimoe.models.pair_model import PairModel, PairModelReranker, TokenReranker
from unimoe.models.reranker import Reranker
from unimoe.models.seen_queries import NOTHING_SEEN, SeenQueries
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import Task


class MakeReranker(Protocol):
    """Loads a model once, and returns what scores pairs with an instruction, in forward passes of a given size."""

    def __call__(self, instruction: str | None = None, **batches: Unpack[Batches]) -> Reranker:
        """Return what scores pairs."""


@dataclass(frozen=True)
class Model:
    """A model, known by name and hash before it is loaded.

    Attributes:
        identity: logical id and content hash of all files that its scores depend on, ``id@hash``.
        prompt: name and content hash of how it reads texts; None where that is not known.
        dtype: of its computation; None where that is not known.
        rerank: makes what scores pairs of texts; None where it embeds only.
        embed: returns what embeds texts; None where it reranks only.
        instructed: whether it reads the instructions of MTEB's tasks where the config says nothing about them.
        reusable: whether identity and prompt tell it from every other; where they do not, it is always evaluated again.
        max_length: tokens that it reads, where its own number counts in place of the config's.
        usage: what a server was paid so far, by name.
        name: that the model states itself.
        own_prompts: what its embedder reads before the texts of MTEB's tasks.
        said: how it is read, in one line; empty where nothing is to be said.
        caveats: why its scores may not be those of the model that people mean.
        seen: the queries that trained and chose it, as far as its folder says.
        reads_order: whether it reranks by reading a query's candidates in an order; see ``Reranker``.
    """

    identity: str
    prompt: str | None = None
    dtype: str | None = None
    rerank: MakeReranker | None = None
    embed: Callable[[], Embedder] | None = None
    instructed: bool = False
    reusable: bool = True
    max_length: int | None = None
    usage: Mapping[str, float] = field(default_factory=dict)
    name: str | None = None
    own_prompts: OwnPrompts = BARE
    said: str = ""
    caveats: tuple[str, ...] = ()
    seen: SeenQueries = NOTHING_SEEN
    reads_order: bool = False

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What it does."""
        does: dict[Task, object] = {"reranking": self.rerank, "embedding": self.embed}
        return tuple(task for task, how in does.items() if how)

    def reranker(self, instruction: str | None = None, **batches: Unpack[Batches]) -> Reranker:
        """Return what scores pairs; only a model of token ids reads an instruction and batches of a given size."""
        if self.rerank is None:
            raise UsageError(f"{self.identity}: embeds and does not rerank; name a reranker")
        return self.rerank(instruction, **batches)

    def embedder(self) -> Embedder:
        """Return what embeds texts."""
        if self.embed is None:
            raise UsageError(f"{self.identity}: reranks and does not embed; name an encoder")
        return self.embed()

    def guarded(self, what: str) -> Model:
        """Return the same of a user's code, with errors that become one line that begins with ``what``."""
        rerank, embed = self.rerank, self.embed

        def copied(thing: Any, methods: Sequence[str]) -> Any:
            found = copy(thing)
            for method in methods:  # set also where the object is frozen
                object.__setattr__(found, method, users_code(what)(getattr(found, method)))
            return found

        @cache
        def made() -> Reranker:
            assert rerank is not None  # noqa: S101 - for the type checker
            return copied(users_code(what)(rerank)(), RERANKER_METHODS)  # type: ignore[no-any-return]

        @cache
        def embedder() -> Embedder:
            assert embed is not None  # noqa: S101 - for the type checker
            return copied(users_code(what)(embed)(), ("encode",))  # type: ignore[no-any-return]

        return replace(self, rerank=rerank and (lambda instruction=None, **batches: made()), embed=embed and embedder)


RERANKER_METHODS = ("score", "prepare", "cut", "truncated_queries")
"""Of a user's reranker, which may raise any error."""


def model_of_pairs(load: Callable[[], PairModel], **facts: Any) -> Model:
    """Return the model of what scores token ids, and embeds texts where it is a causal language model.

    ``load`` is called once; ``facts`` are other attributes.
    """
    loaded = cache(load)

    def rerank(instruction: str | None = None, **batches: Unpack[Batches]) -> Reranker:
        return PairModelReranker(loaded(), instruction=instruction, **batches)

    return Model(rerank=rerank, **facts)


def causal_model(load: Callable[[], UnimodelForExp1], **facts: Any) -> Model:
    """Return the model of a causal language model, which reranks and embeds; see ``model_of_pairs``."""
    loaded = cache(load)
    return replace(model_of_pairs(loaded, **facts), embed=loaded, instructed=True)


def model_of_reranker(load: Callable[[], Reranker], **facts: Any) -> Model:
    """Return the model of a reranker that reads neither instruction nor batches; see ``model_of_pairs``."""
    loaded = cache(load)
    return Model(rerank=lambda instruction=None, **batches: loaded(), **facts)


def stated_model(model: Any) -> Model:
    """Return the model of an object that states its ``name`` and ``identity``, and scores pairs, embeds texts, or both.

    What embeds has ``encode``, and ``base_identity`` in place of ``identity``. An attribute ``reusable`` that is false
    says that the identity does not tell the model from every other.
    """
    facts = {
        name: getattr(model, name) for name in ("name", "reusable", "usage", "reads_order") if hasattr(model, name)
    }
    facts["prompt"] = getattr(model, "prompt_name", None)
    if embedder := as_embedder(model):
        facts |= {"embed": lambda: embedder, "own_prompts": embedder.own_prompts}
        if callable(getattr(model, "score", None)):
            facts["rerank"] = lambda instruction=None, **batches: as_reranker(model)
        return Model(embedder.base_identity, **facts)
    return model_of_reranker(lambda: as_reranker(model), identity=model.identity, **facts)


# What Python gives.


def as_reranker(model: Any, *, instruction: str | None = None, **batches: Unpack[Batches]) -> Reranker:
    """Return what scores pairs: a ``Reranker``, a model of token ids, or what scores pairs of texts.

    What has ``score`` alone gets the pairs of one query at a time, as a function does.
    """
    if isinstance(model, UnimodelForExp1 | TokenReranker):
        return PairModelReranker(model, instruction=instruction, **batches)
    return model if isinstance(model, Reranker) else FunctionReranker(getattr(model, "score", model))


def reranks(model: Any) -> bool:
    """Return whether ``as_reranker`` takes an object."""
    return callable(model) or callable(getattr(model, "score", None))


def given_reranker(model: Any, tokenizer: Any, config: Experiment) -> Reranker:
    """Return a model or function given from Python as a reranker.

    ``model`` is a causal language model of transformers, with or without adapters, a ``UnimodelForExp1``, a function
    from (query, document) pairs of texts to scores, or a ``Reranker``; ``config`` says how a language model is asked.
    """
    if not isinstance(model, nn.Module | type) and reranks(model):
        return as_reranker(model)
    return PairModelReranker(as_unimodel(model, tokenizer, config), **config.evaluation.batches)


def as_unimodel(model: Any, tokenizer: Any, config: Experiment) -> UnimodelForExp1:
    """Return a causal language model as the reranker and encoder that a config describes."""
    if isinstance(model, UnimodelForExp1):
        return model
    if not isinstance(model, nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else with_article(type(model).__name__)
        raise UsageError(
            f"{what} is no model; give a causal language model, or, to rerank, a function from (query, document) pairs "
            "to scores"
        )
    inner = adapted_model(model)
    if decoder_layers(decoder_of(inner)) is None:
        raise UsageError(
            f"a {type(model).__name__} has no decoder layers at model.layers; give a causal language model"
        )
    name = getattr(inner.config, "_name_or_path", "") or type(inner).__name__
    return UnimodelForExp1(BaseModel(inner, tokenizer, name), config.prompt, config.model.max_length)


def as_embedder(model: Any) -> Embedder | None:
    """Return an ``Embedder``, or an object with its ``encode`` and ``base_identity`` as one; None of any other."""
    if isinstance(model, Embedder):
        return model
    return (
        GivenEmbedder(model) if callable(getattr(model, "encode", None)) and hasattr(model, "base_identity") else None
    )


def checks_of_model(model: object, queries: Mapping[str, str]) -> list[Check]:
    """Return what a model given from Python says of itself: whether it has seen these queries, id to text."""
    found = model.caveats_on(queries) if isinstance(model, Embedder) else []
    return [Check("model", "caveat", line, unfit=True) for line in found]


class GivenEmbedder(Embedder):
    """An object of a user's own class that embeds texts."""

    def __init__(self, model: Any) -> None:
        self._model, self.base_identity = model, model.base_identity
        self.prompt_name, self.dimension = getattr(model, "prompt_name", "none"), getattr(model, "dimension", None)

    @property
    def device(self) -> torch.device:
        """Where vectors are computed."""
        return torch.device(getattr(self._model, "device", None) or "cpu")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the computation."""
        dtype: torch.dtype = getattr(self._model, "dtype", torch.float32)
        return dtype

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: TextKind = "plain",
        prefix: str | None = None,
        max_length: int | None = None,
        advance: Advance | None = None,
        **batches: Unpack[Batches],
    ) -> Vectors:
        """Embed texts; see ``Embedder``."""
        asked: dict[str, Any] = {"kind": kind, "prefix": prefix, "max_length": max_length, "advance": advance}
        vectors: Vectors = self._model.encode(texts, **asked, **batches)
        return vectors
