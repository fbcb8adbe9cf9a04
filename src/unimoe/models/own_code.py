"""Code that comes with a model: its own class, and what its files name; and what is said where it may not run.

sentence-transformers asks only that the name of an activation begins with ``torch.``, and calls what it finds; below
that is ``torch.utils.collect_env.main``. So names are read here before it loads anything, and looked up without an
import of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from unimoe.core.errors import DataError
from unimoe.core.io import read_json
from unimoe.models.identity import module_folders, read_settings

TRUST = "read that code, and set model.trust_remote_code=true to run it"
ELSEWHERE = "score with it by python:MODULE:FUNCTION, which takes any scorer of pairs"
"""What is left to do about a reranker that unimoe cannot run."""

OWN_CODE = (
    "a class that transformers does not have: its own code would be needed (model.trust_remote_code), and gives no "
    "scores that unimoe knows"
)
_ASKED = ("ForCausalLM", "ForSequenceClassification", "ForConditionalGeneration")


def refuse_unknown_class(where: str, name: str, *, trusted: bool) -> None:
    """Raise a ``DataError`` about a reranker of a class that transformers does not have, unless its code may run.

    Without that code transformers would build another class by the same settings, or none. With it, the class must be
    one of the kinds that unimoe knows how to ask.
    """
    import transformers

    if not name or name in dir(transformers) or (trusted and name.endswith(_ASKED)):
        return
    if not name.endswith(_ASKED):
        raise DataError(f"{where}: a {name}, {OWN_CODE}; {ELSEWHERE}")
    raise DataError(
        f"{where}: a {name}, a class that transformers does not have, so that its own code would be needed; {TRUST}, "
        f"or {ELSEWHERE}"
    )


def or_own_code(model: Any) -> str:
    """Return what a message adds about a model that lacks weights: its own code may be what reads them."""
    return f"; or {TRUST}" if getattr(model.config, "auto_map", None) else ""


_LIBRARY = "sentence_transformers."
_ROUTES = ("router_config.json", "config.json")
"""Settings of a Router, the older name last."""

_OF_LOADERS = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
"""Settings that the library gives to the loaders of transformers as they are."""

_UNSAFE = {"weights_only", "offload_folder", "state_dict", "gguf_file", "adapter_kwargs"}
_UNSAFE |= {"tokenizer_file", "vocab_file", "merges_file", "code_revision"}
"""Arguments of loaders that let pickles run code, write files, or read others than those of the folder."""


def refuse_named_code(root: Path, key: str, *, trusted: bool) -> None:
    """Raise a ``DataError`` about a folder of sentence-transformers that names other code than torch's and its own.

    ``key`` is the section of the config with the ``trust_remote_code`` that allows it; ``trusted`` is what it says.
    """
    if trusted:
        return
    for file, setting in _unsafe(root):
        raise DataError(
            f"{file}: sets {setting} of a loader, which may run code, or reach files elsewhere; take it out, or set "
            f"{key}.trust_remote_code=true if you trust who wrote it"
        )
    for file, setting, name in _named(root):
        activates = setting != "type"
        if not (_is_activation(name) if activates else _is_module(name)):
            what = "a module of torch.nn" if activates else "a class of sentence-transformers"
            raise DataError(
                f"{file}: {setting} names {name!r}, which is not {what}; it is run only with "
                f"{key}.trust_remote_code=true, which you may set if you have read that code"
            )


def _named(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield each name of code with its file and its setting, ``type`` for a class."""
    listed = root / "modules.json"
    for module in (
        read_json(listed, list[dict[str, Any]], "save the model with save_pretrained()") if listed.is_file() else ()
    ):
        yield listed, "type", str(module.get("type"))
    for folder in _folders(root):
        for file in sorted(folder.glob("*config*.json")):
            settings = read_json(file, object, "correct it, or save the model again")
            classes = [*_routes(settings).values(), *_tokenizers(settings)]
            yield from ((file, "type", name) for name in classes if isinstance(name, str) and "." in name)
            yield from ((file, setting, name) for setting, name in _activations(settings))


def _unsafe(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the arguments of loaders that a folder may not set, with their files."""
    for folder in _folders(root):
        for file in sorted(folder.glob("sentence_*_config.json")):
            settings = read_settings(file)
            if settings.get("tokenizer_name_or_path") is not None:
                yield file, "tokenizer_name_or_path"
            for arguments in (settings.get(name) for name in _OF_LOADERS):
                names = _UNSAFE.intersection(arguments) if isinstance(arguments, dict) else ()
                yield from ((file, name) for name in sorted(names))


def _folders(root: Path) -> Iterator[Path]:
    """Yield the folders that a load reads: the model's own, its modules', and those of a Router's routes."""
    waiting, seen = [root, *module_folders(root)], set[Path]()
    while waiting:
        folder = waiting.pop(0)
        if folder.resolve() not in seen:
            seen.add(folder.resolve())
            yield folder
            waiting += [folder / name for file in _ROUTES for name in _routes(read_settings(folder / file))]


def _routes(settings: object) -> dict[str, Any]:
    types = settings.get("types") if isinstance(settings, dict) else None
    return types if isinstance(types, dict) else {}


def _tokenizers(settings: object) -> list[Any]:
    return [settings.get("tokenizer_class")] if isinstance(settings, dict) else []


def _activations(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the settings, at any depth, that give an activation by a dotted name; transformers' own have no dot."""
    inner = value.items() if isinstance(value, dict) else ()
    for setting, named in inner:
        if "activation" in setting and isinstance(named, str) and "." in named:
            yield setting, named
        yield from _activations(named)


def _is_activation(name: str) -> bool:
    """Return whether a name, looked up in what is imported, is a class of torch.nn's modules."""
    found: Any = torch
    library, *parts = name.split(".")
    for part in parts if library == "torch" else ():
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return isinstance(found, type) and issubclass(found, torch.nn.Module) and found.__module__.startswith("torch.nn.")


def _is_module(name: str) -> bool:
    """Return whether a name is a class of the library for modules or tokenizers; PyLate's are known by another."""
    from sentence_transformers.base.modules import Module
    from sentence_transformers.multi_vector_encoder.model import _CLASS_REF_ALIASES
    from sentence_transformers.sentence_transformer.modules.tokenizer import WordTokenizer
    from sentence_transformers.util import import_from_string

    name = _CLASS_REF_ALIASES.get(name, name)
    if not name.startswith(_LIBRARY):
        return False
    try:
        found: Any = import_from_string(name)
    except ImportError:  # the library's own message, which follows, says more
        return True
    return isinstance(found, type) and issubclass(found, Module | WordTokenizer)
