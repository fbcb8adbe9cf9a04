"""``python:MODULE:FUNCTION``: a function from (query, document) pairs to scores, a ``Reranker``, or an encoder."""

from __future__ import annotations

import importlib
import sys
from copy import copy
from pathlib import Path
from types import ModuleType
from typing import Any

from unimoe.core.errors import DataError, UsageError, did_you_mean, users_code, with_article
from unimoe.models.function_identity import KIND, content_hash
from unimoe.models.functions import FunctionEmbedder
from unimoe.models.kinds import OPTION, ModelSettings, register_model
from unimoe.models.model import Model, as_reranker, reranks


def python_model(name: str, settings: ModelSettings) -> Model:
    """Return the model of a function or object in a module, which is imported as from the current folder.

    An attribute ``identity`` of it, a text, tells results of one state of it from those of another. Without it the
    identity is the hash of the module's file, which says nothing about the weights that it loads: it is always
    evaluated again.
    """
    found, identity = python_attribute(f"{OPTION} {KIND}:", name, "(query, document) pairs to scores")
    reranker = copy(as_reranker(found))  # the user's object stays as it is
    reranker.place = getattr(found, "device", "as the function chooses")
    return Model(
        identity,
        getattr(found, "prompt_name", None),
        rerank=lambda instruction=None, **batches: reranker,
        usage=getattr(found, "usage", {}),
        reusable=getattr(found, "identity", None) is not None,
        name=getattr(found, "name", name.partition(":")[2]),
    ).guarded(f"{KIND}:{name} raised")


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
    if isinstance(found, type) or not reranks(found):
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


register_model(KIND, python_model)
