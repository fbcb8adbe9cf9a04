"""``python:MODULE:FUNCTION``: any callable from (query, document) pairs to scores, or a ``Reranker`` of your own."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from unimoe.core.errors import DataError, UnimoeError, UsageError, did_you_mean
from unimoe.core.io import hash_file, hash_json
from unimoe.evaluation.reranking.rerankers import RERANKER_METHODS, FunctionReranker, with_article
from unimoe.evaluation.systems.named import OPTION, Naming, register_model, stated_system
from unimoe.evaluation.systems.system import System

KIND = "python"

_OPTIONAL = {"token_budget": None, "device": "as the function chooses"}
"""Attributes that a user's reranker may lack, with what counts instead."""


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
    if not isinstance(stated, str | None):
        raise UsageError(
            f"{OPTION} {KIND}:{name}: its identity is {with_article(type(stated).__name__)}; make it a text"
        )
    identity = f"{KIND}:{name}@{hash_json(stated) if stated is not None else _source_hash(module)}"
    reranker = found if _is_reranker(found) else FunctionReranker(found)
    return stated_system(PythonReranker(reranker, attribute, identity, reusable=stated is not None), naming)


class PythonReranker:
    """Gives a user's reranker the attributes that a system needs, and makes one line of any error that it raises."""

    def __init__(self, reranker: Any, name: str, identity: str, *, reusable: bool) -> None:
        self._reranker, self.identity, self.reusable = reranker, identity, reusable
        self.name: str = getattr(reranker, "name", name)

    def __getattr__(self, name: str) -> Any:
        if name in _OPTIONAL:
            return getattr(self._reranker, name, _OPTIONAL[name])
        found = getattr(self._reranker, name)
        return _raising_one_line(found, self.identity.rpartition("@")[0]) if name in RERANKER_METHODS else found


def _raising_one_line(method: Callable[..., Any], where: str) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            with chdir("."):  # a function that goes elsewhere takes no relative path of ours with it
                return method(*arguments, **named)
        except UnimoeError:
            raise
        except (Exception, SystemExit) as error:  # anything that a user's code raises
            raise DataError(f"{where} raised {_described(error)}; fix it") from error

    return call


def _imported(text: str, name: str) -> ModuleType:
    with _from_current_folder():
        try:
            with chdir("."):
                return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(f"{error.name}.")):
                raise UsageError(
                    f"{OPTION} {text}: no module {error.name!r}; run the command in its folder, or install it"
                ) from None
            raise DataError(f"{OPTION} {text}: importing it raised {_described(error)}; fix it") from error
        except (Exception, SystemExit) as error:  # anything that a user's module raises
            raise DataError(f"{OPTION} {text}: importing it raised {_described(error)}; fix it") from error


def _attribute(text: str, module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        known = [own for own in vars(found) if not own.startswith("_")] if hasattr(found, "__dict__") else []
        if not hasattr(found, part):
            raise UsageError(f"{OPTION} {text}: {module.__name__} has no {name}{did_you_mean(part, known)}")
        found = getattr(found, part)
    if isinstance(found, type) or not (callable(found) or _is_reranker(found)):
        what = "a class" if isinstance(found, type) else with_article(type(found).__name__)
        raise UsageError(f"{OPTION} {text}: {name} is {what}; name a function from (query, document) pairs to scores")
    return found


def _is_reranker(found: Any) -> bool:
    return all(callable(getattr(found, method, None)) for method in RERANKER_METHODS)


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


def _described(error: BaseException) -> str:
    """Return kind, message and place of an error in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    message = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}{f': {message}' if message else ''}{place}"


register_model(KIND, python_system)
