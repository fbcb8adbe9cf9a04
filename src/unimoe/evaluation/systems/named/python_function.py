"""``python:MODULE:FUNCTION``: a function from (query, document) pairs to scores, a ``Reranker``, or an encoder."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from types import ModuleType
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from unimoe.config import Batches
from unimoe.core.errors import DataError, InputError, UsageError, did_you_mean, users_code
from unimoe.evaluation.reranking.rerankers import is_reranker, reranker_of, with_article
from unimoe.evaluation.systems.function_identity import KIND, content_hash
from unimoe.evaluation.systems.named import METHODS, OPTION, Naming, register_model
from unimoe.evaluation.systems.system import System
from unimoe.models.embedder import Advance, TextKind, Vectors, refuse_zero_vectors
from unimoe.models.own_prompts import BARE

TextEncoder = Callable[..., ArrayLike]
"""From a list of N texts, and their ``kind`` where it has such a parameter, to vectors ``(N, D)``."""


def python_system(name: str, naming: Naming) -> System:
    """Return the system of a function or object in a module, which is imported as from the current folder.

    An attribute ``identity`` of it, a text, tells results of one state of it from those of another. Without it the
    identity is the hash of the module's file, which says nothing about the weights that it loads: it is always
    evaluated again.
    """
    found, identity = python_attribute(f"{OPTION} {KIND}:", name, "(query, document) pairs to scores")
    reranker: Any = copy(reranker_of(found))  # the user's object stays as it is
    reranker.place = getattr(reranker, "device", "as the function chooses")
    for method in METHODS:
        setattr(reranker, method, users_code(f"{KIND}:{name} raised")(getattr(reranker, method)))
    return System(
        naming.arm_of(getattr(found, "name", name.partition(":")[2])),
        naming.experiment,
        lambda: reranker,
        identity,
        getattr(found, "prompt_name", None),
        tasks=("reranking",),
        instructed=False,
        reusable=getattr(found, "identity", None) is not None,
    )


def python_attribute(option: str, name: str, maps: str) -> tuple[Any, str]:
    """Return what ``MODULE:FUNCTION`` names, with its identity, ``python:MODULE:FUNCTION@HASH``.

    ``option`` is what the user wrote before the name, and ``maps`` says what the function takes and returns.
    """
    where = f"{option}{name}"
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{where}: write {KIND}:MODULE:FUNCTION")
    found: Any = _imported(where, module_name)
    for part in attribute.split("."):
        known = [own for own in vars(found) if not own.startswith("_")] if hasattr(found, "__dict__") else []
        if not hasattr(found, part):
            raise UsageError(f"{where}: {module_name} has no {attribute}{did_you_mean(part, known)}")
        found = getattr(found, part)
    if isinstance(found, type) or not (callable(found) or is_reranker(found)):
        what = "a class" if isinstance(found, type) else with_article(type(found).__name__)
        raise UsageError(f"{where}: {attribute} is {what}; name a function from {maps}")
    stated = getattr(found, "identity", None)
    if not isinstance(stated, str | None):
        raise UsageError(f"{where}: its identity is {with_article(type(stated).__name__)}; make it a text")
    return found, f"{KIND}:{name}@{content_hash(found, module_name)}"


def named_embedder(setting: str, name: str) -> FunctionEmbedder:
    """Return what ``python:MODULE:FUNCTION`` names as an encoder; ``setting`` is what errors call its place.

    Its vectors are kept, so a function that does not state its identity is refused.
    """
    found, identity = python_attribute(f"{setting} {KIND}:", name, "texts to vectors")
    if getattr(found, "identity", None) is None:
        function = name.partition(":")[2]
        raise UsageError(f"{setting} {KIND}:{name}: say what it computes with, as {function}.identity = 'MODEL v1'")
    return FunctionEmbedder(users_code(f"{KIND}:{name} raised")(found), identity)


class FunctionEmbedder:
    """Embeds texts by a function, whose vectors it scales to unit length; satisfies ``Embedder``.

    A function with a parameter ``kind`` gets ``"query"`` or ``"document"`` there.
    """

    device, dtype = torch.device("cpu"), torch.float32  # of the vectors
    place, prompt_name, own_prompts = "as the function chooses", "none", BARE

    def __init__(self, function: TextEncoder, identity: str) -> None:
        self._function, self.base_identity, self._width = function, identity, 0
        try:
            self._reads_kind = "kind" in inspect.signature(function).parameters
        except ValueError:  # a compiled function may have no signature
            self._reads_kind = False

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: TextKind = "plain",
        prefix: str | None = None,
        max_length: int | None = None,
        advance: Advance | None = None,
        **_: Unpack[Batches],
    ) -> Vectors:
        """Call the function once with all texts; a DataError where it returns something else than their vectors."""
        if max_length is not None:
            raise UsageError("a function cuts texts itself; leave retrieval.query_length and document_length null")
        asked = [f"{prefix or ''}{text}" for text in texts]
        found: Any = self._function(asked, kind=kind) if self._reads_kind else self._function(asked)
        vectors: NDArray[np.float64] = np.empty(0)
        with suppress(TypeError, ValueError):  # rows of several lengths, or no numbers
            given = found.detach().cpu().double() if isinstance(found, torch.Tensor) else found
            vectors = np.asarray(given, dtype=np.float64)
        if vectors.ndim != 2 or len(vectors) != len(texts) or vectors.shape[1] != (self._width or vectors.shape[1]):
            wanted = f"an array of numbers ({len(texts)}, {self._width or 'D'}) for {len(texts)} texts"
            raise DataError(f"the encoder returned {type(found).__name__} {np.shape(vectors)}; return {wanted}")
        self._width = vectors.shape[1]
        if len(bad := np.flatnonzero(~np.isfinite(vectors).all(axis=1))):
            raise InputError(int(bad[0]), "the embedding is not finite")
        refuse_zero_vectors(vectors.astype(np.float32))
        unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        if advance:
            advance(len(texts))
        return unit


def _imported(where: str, name: str) -> ModuleType:
    """Import a module as from the current folder."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        with users_code(f"{where}: importing it raised"):
            return importlib.import_module(name)
    except DataError as error:
        missing = getattr(error.__cause__, "name", None) if isinstance(error.__cause__, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            raise UsageError(f"{where}: no module {missing!r}; run the command in its folder, or install it") from None
        raise
    finally:
        sys.path.remove(here)


register_model(KIND, python_system)
