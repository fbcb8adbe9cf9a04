"""``python:MODULE:FUNCTION``: a function from pairs to scores, a ``Reranker``, or an encoder; and its identity."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from functools import partial
from pathlib import Path
from textwrap import dedent
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch

from unimoe.core.errors import DataError, UsageError, did_you_mean, users_code, with_article
from unimoe.core.io import hash_bytes, hash_file, hash_json
from unimoe.models.functions import FunctionEmbedder
from unimoe.models.model import Model, as_reranker, reranks
from unimoe.models.named import OPTION, ModelSettings, register_model
from unimoe.models.reranker import Reranker


def python_model(name: str, settings: ModelSettings) -> Model:
    """Return the model of a function or object in a module, which is imported as from the current folder.

    An attribute ``identity`` of it, a text, tells results of one state of it from those of another. Without it the
    identity is the hash of the module's file, which says nothing about the weights that it loads: it is always
    evaluated again.
    """
    found, identity = python_attribute(f"{OPTION} {KIND}:", name, "(query, document) pairs to scores")
    reranker = copy(as_reranker(found))  # the user's object stays as it is
    if reranker.place == Reranker.place:  # it states none; set also where the object is frozen
        place = getattr(found, "device", None) or "as the function chooses"
        object.__setattr__(reranker, "place", place if isinstance(place, torch.device) else str(place))
    return Model(
        identity,
        getattr(found, "prompt_name", None),
        rerank=lambda instruction=None, **batches: reranker,
        usage=getattr(found, "usage", {}),
        reusable=getattr(found, "identity", None) is not None,
        name=getattr(found, "name", name.partition(":")[2]),
        reads_order=reranker.reads_order,
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


KIND = "python"

Facts: TypeAlias = str | list["Facts"]

_SHARED_NAMES = {"<stdin>", "<string>"}  # of code without a file: what Python finds by them may be other code's text
_MOST_ITEMS = 1_000  # of a container; of a larger one, such as a whole collection, its size alone counts
_MOST_VALUES, _DEEPEST = 20_000, 50  # in all, and within each other; of what is beyond, the kind alone counts


def scorer_identity(scorer: Any) -> str:
    """Return the identity that a model given from Python states, else that of a function."""
    stated: str | None = getattr(scorer, "base_identity", None)
    return stated or function_identity(scorer)


def function_identity(function: Any) -> str:
    """Return ``python:MODULE:FUNCTION@HASH`` of a function, method, partial or callable object given from Python.

    The hash is that of its ``identity``, a text, else of its module's file, as for a system named
    ``python:MODULE:FUNCTION``. Where that file does not tell it from others, or there is none, it is the hash of what
    the function computes with: its source, else its bytecode, defaults, closure and bound arguments.
    """
    named = function
    while isinstance(named, partial):
        named = named.func
    named = named if hasattr(named, "__qualname__") else type(named)
    module = getattr(named, "__module__", None) or "builtins"
    file = _file_of(module)
    if file and isinstance(named, FunctionType) and named.__code__ not in set(_codes_in(file)):
        file = None  # typed at a prompt in the folder of the script that runs
    if isinstance(getattr(function, "identity", None), str) or (file and _settled(function, file)):
        found = content_hash(function, module)
    else:
        found = hash_json([hash_file(file) if file else "", _Reader(module, with_globals=file is None).facts(function)])
    return f"{KIND}:{module}:{named.__qualname__}@{found}"


def content_hash(function: Any, module: str) -> str:
    """Return the hash of what a function states as its identity, else of its module's file, else of its own content."""
    if isinstance(stated := getattr(function, "identity", None), str):
        return hash_json(stated)
    file = _file_of(module)
    return hash_file(file) if file else hash_json(_Reader(module, with_globals=True).facts(function))


def _file_of(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)  # of what is piped to Python it is ``<stdin>``
    return Path(file) if file and Path(file).is_file() else None


def _settled(thing: Any, file: Path) -> bool:
    """Return whether the text of its file says all about a function or object."""
    if isinstance(thing, MethodType):
        return _settled(thing.__func__, file) and (isinstance(thing.__self__, type) or _settled(thing.__self__, file))
    if isinstance(thing, FunctionType):
        of_name = [code for code in _codes_in(file) if code.co_qualname == thing.__code__.co_qualname]
        return not thing.__closure__ and of_name == [thing.__code__]
    return not isinstance(thing, partial) and not _state(thing)


def _codes_in(file: Path) -> Iterator[CodeType]:
    """Yield the code of every function of a module, each as often as it is defined; nothing of a compiled module."""
    try:
        left = [compile(file.read_bytes(), str(file), "exec", dont_inherit=True)]
    except (SyntaxError, ValueError):
        return
    while left:
        inside = [value for value in left.pop().co_consts if isinstance(value, CodeType)]
        yield from inside
        left += inside


class _Reader:
    """Reads what is known of a function of ``module``: its text and the values that it holds, without addresses.

    ``with_globals`` adds the functions and plain values that it reads from a module without a file.
    """

    def __init__(self, module: str, *, with_globals: bool) -> None:
        self._module, self._with_globals, self._left = module, with_globals, _MOST_VALUES

    def facts(self, thing: Any, seen: tuple[int, ...] = ()) -> Facts:
        """Return what is known of a value that is held within those ``seen``."""

        def of(*values: Any) -> list[Facts]:
            return [self.facts(value, (*seen, id(thing))) for value in values]

        kind = f"{type(thing).__module__}.{type(thing).__qualname__}"
        self._left -= 1
        if id(thing) in seen:  # a function that calls itself
            return "itself"
        if _is_plain(thing):
            return repr(thing)
        if self._left < 0 or len(seen) > _DEEPEST:
            return kind
        if isinstance(thing, CodeType):
            if source := _source(thing):
                return source
            names = (thing.co_names, thing.co_varnames, thing.co_freevars)
            return [thing.co_code.hex(), *of(*names, thing.co_argcount, thing.co_kwonlyargcount, thing.co_consts)]
        if isinstance(thing, FunctionType):
            held = [cell.cell_contents for cell in thing.__closure__ or () if cell != CellType()]  # one may be empty
            read = _globals_of(thing) if self._with_globals else {}
            return of(thing.__code__, thing.__defaults__, thing.__kwdefaults__, held, read)
        if isinstance(thing, MethodType):
            own = thing.__self__
            return of(thing.__func__, own if isinstance(own, type) else _state(own))
        if isinstance(thing, partial):
            return of(thing.func, thing.args, thing.keywords)
        if hasattr(type(thing), "__array__"):  # a tensor, a frame
            with suppress(Exception):  # on a GPU, in bfloat16
                thing = np.asarray(thing)
        if isinstance(thing, np.ndarray) and thing.dtype != object:
            return [str(thing.dtype), str(thing.shape), hash_bytes(thing.tobytes())]
        if isinstance(thing, list | tuple | set | frozenset | dict):
            if len(thing) > _MOST_ITEMS:
                return f"{kind} of {len(thing)}"
            items = of(*(thing.items() if isinstance(thing, dict) else thing))
            return [kind, *(sorted(items, key=str) if isinstance(thing, set | frozenset) else items)]
        if isinstance(thing, type):
            own = {name: value for name, value in vars(thing).items() if isinstance(value, FunctionType)}
            return [thing.__qualname__, *of(own if _file_of(thing.__module__) is None else None)]
        made_in = type(thing).__module__
        if not seen or made_in == self._module or _file_of(made_in) is None:  # of what libraries made, only the kind
            return [kind, *of(type(thing), _state(thing))]
        return kind


def _state(thing: Any) -> Any:
    """Return the attributes of an object, those in slots too; None where it has none."""
    return object.__getstate__(thing)  # past a method of its own, which may leave some out


def _is_plain(thing: Any) -> bool:
    return thing is None or isinstance(thing, bool | int | float | complex | str | bytes)


def _source(code: CodeType) -> str:
    """Return the text of a function; empty where there is none, or where it is part of a line with other code."""
    if code.co_name.startswith("<") or code.co_filename in _SHARED_NAMES:  # a lambda, or what loops inside one
        return ""
    try:
        return dedent(inspect.getsource(code))
    except (OSError, TypeError, IndexError, SyntaxError):
        return ""


def _globals_of(function: FunctionType) -> dict[str, Any]:
    """Return the functions, classes and plain values by name that a function reads where it was typed."""
    names, left = set[str](), [function.__code__]
    while left:
        code = left.pop()
        names.update(code.co_names)
        left += [value for value in code.co_consts if isinstance(value, CodeType)]
    found = {name: function.__globals__[name] for name in sorted(names) if name in function.__globals__}
    here = function.__module__
    return {
        name: value
        for name, value in found.items()
        if _is_plain(value) or (isinstance(value, FunctionType | type) and value.__module__ == here)
    }


register_model(KIND, python_model)
