"""Rerankers: models of token ids, cross-encoders of sentence-transformers, a Python function, or your own class."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unimoe.config import Batches, Experiment
from unimoe.core.errors import DataError, UsageError, first_few
from unimoe.evaluation.reranking.shards import Cut, Reranker, shard_characters
from unimoe.models.adapter import adapted_model
from unimoe.models.base import BaseModel, decoder_layers, decoder_of
from unimoe.models.batching import FittingBatches, batches, default_token_budget, gather
from unimoe.models.embedder import Advance, TextKind, Vectors
from unimoe.models.matcher import Matcher
from unimoe.models.model_files import rowless_tokens
from unimoe.models.pair_model import PairModel, TextPair
from unimoe.models.prompts import well_formed
from unimoe.models.rerankers.cross_encoder import refuse_rowless_texts
from unimoe.models.unimodel import UnimodelForExp1

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

_SHARD_BATCHES = 64
"""Batches of a shard of pairs in falling length: shards change no batch."""

"""Where equal scores count, and the share of queries up to which they are not worth a note."""

PairScorer = Callable[[list[TextPair]], Sequence[float] | NDArray[np.floating]]
"""Takes the ``(query, document)`` texts of one query and returns a score for each, higher for more relevant."""


class PairModelReranker(Reranker):
    """Scores pairs by a model of token ids, such as the margin between the logits of yes and no.

    ``instruction`` is what the prompts say, instead of the model's own; ``batches`` the size of a forward pass.
    """

    def __init__(self, model: PairModel, *, instruction: str | None = None, **batches: Unpack[Batches]) -> None:
        self._model, self._instruction, self._batches = model, instruction, batches

    @property
    def token_budget(self) -> int | None:
        """Tokens of one forward pass; see ``Reranker``."""
        return used_budget(self._model, **self._batches)

    @property
    def cut_by(self) -> Cut:
        """Whole prefix groups: batches never cross a shard, and what prompts share is computed once."""
        return self._model.pair_ids.order, shard_characters(self._model.device)

    def prepare(self, pairs: Sequence[TextPair]) -> list[list[int]]:
        """Return the token ids of the pairs' prompts."""
        return self._model.pair_ids(pairs, self._instruction)

    def truncated_queries(self, queries: Mapping[str, str]) -> list[str]:
        """Return the ids of queries that leave no room for a document."""
        return list(compress(queries, self._model.pair_ids.too_long(queries.values(), self._instruction)))

    def score(self, prepared: Sequence[list[int]], advance: Advance | None = None) -> list[float]:
        """Return the score of each prompt; equal prompts are scored once, so that their scores are equal."""
        place: dict[tuple[int, ...], int] = {}
        places = [place.setdefault(tuple(ids), len(place)) for ids in prepared]
        margins = self._model.rerank_ids(list(map(list, place)), advance=advance, **self._batches)
        if advance and len(place) < len(places):
            advance(len(places) - len(place))
        scores: list[float] = margins[places].tolist()
        return scores


class FunctionReranker(Reranker):
    """Scores pairs by a function from (query, document) pairs of texts to a score for each.

    It is called with all candidates of one query at a time, so that it may compare them with each other.
    """

    def __init__(self, function: PairScorer) -> None:
        self._function = function

    def score(self, prepared: Sequence[TextPair], advance: Advance | None = None) -> list[float]:
        """Call the function; a DataError where it returns something else than a number for each pair."""
        found: Any = self._function(list(prepared))
        try:
            given = found.detach().cpu().double() if isinstance(found, torch.Tensor) else found
            values = np.asarray(given)
            if np.ma.is_masked(found) or values.dtype.kind not in "biufO":  # text or complex numbers
                raise TypeError
            scores = values.astype(np.float64)
        except (TypeError, ValueError, RuntimeError):  # the last: a list of tensors that require a gradient
            raise DataError(f"the reranker returned {type(found).__name__}; return a number for each pair") from None
        if scores.ndim != 1:
            raise DataError(f"the reranker returned scores of shape {scores.shape}; return a number for each pair")
        if advance:
            advance(len(prepared))
        return list(scores.tolist())


class CrossEncoderReranker(Reranker):
    """Scores pairs by the logit of a cross-encoder of sentence-transformers, which cuts the longer side of a pair.

    Of two labels it is the logit of label 1 minus that of label 0. A forward pass has ``batch_size`` pairs, fewer once
    memory ran out.
    """

    def __init__(self, model: CrossEncoder, batch_size: int) -> None:
        self._model, self._batch_size = model, batch_size
        self._rowless = rowless_tokens(model.tokenizer, model[0].model)
        self._fitting = FittingBatches("a pair", "model.max_length", "pairs", plan=_longest_first, size=len)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._model.device

    @property
    def cut_by(self) -> Cut:
        """Falling length, so that pairs of similar length share a batch."""
        return "length", _SHARD_BATCHES * self._batch_size

    def score(self, prepared: Sequence[TextPair], advance: Advance | None = None) -> list[float]:
        """Return the logit of each pair."""
        pairs = [(well_formed(query), well_formed(document)) for query, document in prepared]
        refuse_rowless_texts(pairs, self._model, self._rowless)

        def logits(batch: list[int]) -> Tensor:
            found: Tensor = self._model.predict(
                [pairs[index] for index in batch],
                batch_size=len(batch),
                show_progress_bar=False,
                activation_fn=nn.Identity(),
                convert_to_tensor=True,
            ).float()
            return found[:, 1] - found[:, 0] if found.ndim > 1 else found

        reason = "its score is not finite; the weights are damaged, or the training diverged"
        scored = self._fitting.run(pairs, logits, self._batch_size)
        scores: list[float] = gather((len(pairs),), scored, reason, advance).tolist()
        return scores


def _longest_first(pairs: Sequence[TextPair], size: int, _: int | None) -> list[list[int]]:
    order = sorted(range(len(pairs)), key=lambda index: -sum(map(len, pairs[index])))
    return [list(batch) for batch in batches(order, size)]


class MatcherReranker(Reranker):
    """Scores pairs by a sparse encoder or late interaction, which encodes each text of a shard once."""

    def __init__(self, model: Matcher, **batches: Unpack[Batches]) -> None:
        self._model, self._batches, self.device = model, batches, model.device

    @property
    def cut_by(self) -> Cut:
        """By documents, which are longer than queries."""
        return "document_first", shard_characters(self.device)

    def score(self, prepared: Sequence[TextPair], advance: Advance | None = None) -> list[float]:
        """Return the similarity of each pair."""
        kinds: tuple[TextKind, TextKind] = ("query", "document")
        sides = []
        for texts, kind in zip(zip(*prepared, strict=True), kinds, strict=False):  # no pairs have no sides
            place = {text: number for number, text in enumerate(dict.fromkeys(texts))}
            sides += [self._model.encode(list(place), kind=kind, **self._batches), [place[text] for text in texts]]
        scores: list[float] = self._model.pairwise(*sides).tolist() if sides else []
        if advance:
            advance(len(prepared))
        return scores


class RemoteModel(ABC):
    """A model that workers elsewhere hold, with the tokens of their forward pass and whether its scores are logits."""

    budget: int | None
    logits: bool

    @abstractmethod
    def reranker(self, **options: Any) -> Reranker:
        """Return what scores pairs by the workers; ``options`` are the arguments of ``reranker_of`` there."""

    @abstractmethod
    def spread(self, units: Iterable[Sequence[str]], options: Mapping[str, Any]) -> Iterator[Vectors]:
        """Embed units of texts by all workers; ``options`` are the arguments of ``Embedder.encode`` there."""


def truncation_note(name: str, truncated: Sequence[str]) -> str:
    """Return a sentence about the queries of a dataset that a reranker sees only the beginning of."""
    return (
        f"{name}: queries that fill the whole prompt, of which the model sees the beginning and no document: "
        f"{len(truncated):,} ({first_few(truncated)}); raise model.max_length to read them whole"
    )


def used_budget(model: Any, token_budget: int | None = None, batch_size: int | None = None) -> int | None:
    """Return the tokens of one forward pass, fewer once memory ran out; None where sequences are counted instead."""
    if isinstance(model, RemoteModel):
        return model.budget
    if isinstance(device_of(model), str):
        return None
    reduced: int | None = getattr(model, "reduced_budget", None)
    if reduced or batch_size:
        return reduced
    return token_budget or default_token_budget(model.device)


def reranker_of(model: Any, *, instruction: str | None = None, **batches: Unpack[Batches]) -> Reranker:
    """Return what scores the pairs of a system: a model of token ids, a ``Reranker``, or what scores pairs of texts.

    What has ``score`` alone gets the pairs of one query at a time, as a function does. Only a model of token ids reads
    an instruction and batches of a given size.
    """
    if callable(getattr(model, "rerank_ids", None)):
        return PairModelReranker(model, instruction=instruction, **batches)
    if isinstance(model, RemoteModel):
        return model.reranker(instruction=instruction, **batches)
    return model if isinstance(model, Reranker) else FunctionReranker(getattr(model, "score", model))


def returns_logits(model: Any) -> bool:
    """Return whether a model's scores are logits, as those of unimoe's families are; others say what theirs are."""
    if isinstance(model, RemoteModel):
        return model.logits
    return callable(getattr(model, "rerank_ids", None)) or isinstance(model, CrossEncoderReranker)


def device_of(model: Any) -> torch.device | str:
    """Return where a system's model computes; a description where torch does not know the place."""
    place: torch.device | str = getattr(model, "place", getattr(model, "device", "not known"))
    return place


def is_reranker(model: Any) -> bool:
    """Return whether an object has the one method that a ``Reranker`` needs."""
    return callable(getattr(model, "score", None))


def as_reranker(model: Any, tokenizer: Any, config: Experiment) -> Reranker:
    """Return a model or function given from Python as a reranker.

    ``model`` is a causal language model of transformers, with or without adapters, a ``UnimodelForExp1``, a function
    from (query, document) pairs of texts to scores, or a ``Reranker``; ``config`` says how a language model is asked.
    """
    if not isinstance(model, nn.Module | type) and (callable(model) or is_reranker(model)):
        return reranker_of(model)
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


def with_article(name: str) -> str:
    """Return a name with ``a`` or ``an`` before it, for messages."""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
