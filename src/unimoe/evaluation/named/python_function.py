"""``python:MODULE:FUNCTION``: any callable from (query, document) pairs to scores, or a ``Reranker`` of your own."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from unimoe.errors import DataError, UnimoeError, UsageError, did_you_mean
from unimoe.evaluation.named import OPTION, Naming, register_model, stated_system
from unimoe.evaluation.rerankers import RERANKER_METHODS, FunctionReranker, with_article
from unimoe.evaluation.systems import System
from unimoe.io import hash_file, hash_json
from unimoe.models.embedder import Advance
from unimoe.models.pair_model import TextPair

KIND = "python"


def python_system(name: str, naming: Naming) -> System:
    """Return the system of a function or object in a module, which is imported as from the current folder.

    An attribute ``identity`` of it, a text, tells results of one state of it from those of another. Without it the
    identity is the hash of the module's file, which says nothing about the weights that it loads: it is always
    evaluated again.

    Raises:
        UsageError: there is no such module or function.
        DataError: importing the module raises an error.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{OPTION} {KIND}:{name}: write {KIND}:MODULE:FUNCTION")
    module = _imported(f"{KIND}:{name}", module_name)
    found = _attribute(f"{KIND}:{name}", module, attribute)
    stated = getattr(found, "identity", None)
    identity = f"{KIND}:{name}@{hash_json(stated) if stated is not None else _source_hash(module)}"
    if all(callable(getattr(found, method, None)) for method in RERANKER_METHODS):
        model: Any = _Stated(found, attribute, identity, reusable=stated is not None)
    else:
        model = PythonReranker(found, attribute, identity, reusable=stated is not None)
    return stated_system(model, naming)


class PythonReranker(FunctionReranker):
    """A function by name, whose errors are told in one line.

    Args:
        function: from pairs to scores.
        name: its name in results.
        identity: as results know it.
        reusable: whether the identity tells it from every other.
    """

    device = "as the function chooses"
    options: Mapping[str, Any] = {}

    def __init__(self, function: Any, name: str, identity: str, *, reusable: bool) -> None:
        super().__init__(function)
        self.name, self.identity, self.reusable = name, identity, reusable

    def score(self, prepared: Sequence[TextPair], advance: Advance | None = None) -> list[float]:
        """Call the function; errors are those of ``FunctionReranker``, and a DataError for any that it raises."""
        try:
            return super().score(prepared, advance)
        except UnimoeError:
            raise
        except Exception as error:  # anything that a user's function raises
            raise DataError(f"{self.identity.rpartition('@')[0]} raised {_told(error)}; mend it") from error


class _Stated:
    """A reranker of a user's own with the attributes that a system needs."""

    def __init__(self, reranker: Any, name: str, identity: str, *, reusable: bool) -> None:
        self._reranker, self.identity, self.reusable = reranker, identity, reusable
        self.name: str = getattr(reranker, "name", name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reranker, name)


def _imported(text: str, name: str) -> ModuleType:
    with _from_current_folder():
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(f"{error.name}.")):
                raise UsageError(
                    f"{OPTION} {text}: no module {error.name!r}; run the command in its folder, or install it"
                ) from None
            raise DataError(f"{OPTION} {text}: importing it raised {_told(error)}; mend it") from error
        except Exception as error:  # anything that a user's module raises
            raise DataError(f"{OPTION} {text}: importing it raised {_told(error)}; mend it") from error


def _attribute(text: str, module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        known = [own for own in vars(found) if not own.startswith("_")] if hasattr(found, "__dict__") else []
        if not hasattr(found, part):
            raise UsageError(f"{OPTION} {text}: {module.__name__} has no {name}{did_you_mean(part, known)}")
        found = getattr(found, part)
    is_reranker = all(callable(getattr(found, method, None)) for method in RERANKER_METHODS)
    if isinstance(found, type) or not (callable(found) or is_reranker):
        what = "a class" if isinstance(found, type) else with_article(type(found).__name__)
        raise UsageError(f"{OPTION} {text}: {name} is {what}; name a function from (query, document) pairs to scores")
    return found


@contextmanager
def _from_current_folder() -> Iterator[None]:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _source_hash(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return hash_file(Path(file)) if file else "unknown"


def _told(error: Exception) -> str:
    """Return kind, message and place of an error in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    message = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}{f': {message}' if message else ''}{place}"


register_model(KIND, python_system)
