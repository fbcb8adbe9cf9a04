"""What a model's files say about its scores: the files that a load may read, and the hashes by which results know them.

All of them count, not the weights alone: a changed ``config.json``, tokenizer or template gives other scores. A file
that is hashed for nothing costs another evaluation; one that is left out costs a wrong number that nobody sees.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from unimoe.core.errors import DataError
from unimoe.core.io import Strict, hash_file, hash_json, hash_parts, read_json
from unimoe.core.limits import path_problem

ADAPTER_SETTINGS = "adapter_config.json"
TEMPLATES = "additional_chat_templates"

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin")
_SETTINGS = ("*.json", "*.txt", "*.model", "*.jinja")
_UNREAD = (
    *(".*", "*.md", "LICENSE*", "LICENCE*", "NOTICE*", "*.pdf", "*.html", "*.log", "*.lock", "*.tmp"),
    *("*.csv", "*.jsonl", "*.trec", "*.parquet"),
    *("*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.webp"),
    *("*.onnx", "*.onnx_data", "*.xml", "*.gguf", "*.h5", "*.msgpack", "*.ot", "*.mlmodel", "*.tflite", "*.pth"),
    *("checkpoint-*", "optimizer.*", "scheduler.*", "rng_state*", "scaler.pt", "trainer_state.json"),
    *("training_args.bin", "*_results.json", "events.out.tfevents*", "unimoe.json", "unimoe.queries.json"),
)
"""Names of files and folders that no load reads: documents, images, weights of other libraries, states of trainings."""


class _Module(Strict):
    path: str


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is no file."""
    return read_json(path, dict[str, Any], "correct it, or save the model again") if path.is_file() else {}


def module_folders(root: Path) -> list[Path]:
    """Return the folders of a sentence-transformers model's modules; the folder itself where it lists none."""
    listed = root / "modules.json"
    if not listed.is_file():
        return [root]
    modules = read_json(listed, list[_Module], "save the model with save_pretrained()")
    if not modules:
        raise DataError(f"{listed}: lists no modules with a path; save the model with save_pretrained()")
    for module in modules:
        if problem := path_problem(module.path):
            raise DataError(f"{listed}: the path {module.path!r} {problem}; save the model with save_pretrained()")
    return [root / module.path for module in modules]


def transformer_folder(root: Path) -> Path:
    """Return the folder of the transformers model inside one of sentence-transformers, or the folder itself."""
    return module_folders(root)[0]


def content_files(root: Path) -> dict[str, Path]:
    """Return the files of a model's folder that a load may read, by their names there.

    Of folders inside, those of modules, of a router's routes, of templates and of code count. Results of an evaluation
    that was started in the model's own folder do not.
    """
    root = Path(os.path.normpath(root))
    inside = {root / TEMPLATES, *module_folders(root)}
    for file in ("router_config.json", "config.json"):  # the older name last
        routes = read_settings(root / file).get("structure")
        if isinstance(routes, dict):
            inside |= {root / str(name) for names in routes.values() for name in names}
    # Not the folder itself; and the libraries refuse one outside. Links count as what they link to.
    inside = {place for folder in inside if root in (place := Path(os.path.normpath(folder))).parents}
    found = {path for path in root.iterdir() if path.is_file()}
    if any(path.suffix == ".py" for path in found):
        inside |= {path for path in root.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    found |= {path for folder in inside for path in _below(folder)}
    named = {path.relative_to(root).as_posix(): path for path in sorted(found)}
    return {name: path for name, path in named.items() if not _is_unread(name)}


def _below(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, through links too, each folder once."""
    seen = set[str]()
    for place, inner, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            inner.clear()
            continue
        seen.add(real)
        yield from (path for name in names if (path := Path(place, name)).is_file())


def _is_unread(name: str) -> bool:
    return any(fnmatchcase(part, pattern) for part in name.split("/") for pattern in _UNREAD)


def is_weights(path: Path) -> bool:
    """Return whether a file holds weights, by its name."""
    return any(fnmatchcase(path.name, pattern) for pattern in _WEIGHTS)


def content_hash(root: Path) -> str:
    """Return the content hash of all files of a model that a load may read; they include weights."""
    files = content_files(root)
    if not any(map(is_weights, files.values())):
        raise DataError(f"{root}: neither *.safetensors nor pytorch_model.bin; save the model with save_pretrained()")
    return _hash_of(files)


def weights_hash(root: Path) -> str:
    """Return the content hash of the weights alone, by which results of before know the bundled models."""
    return hash_parts(hash_file(path) for path in content_files(root).values() if is_weights(path))


def hash_without_weights(root: Path) -> str:
    """Return the content hash of all files of a model but its weights."""
    return _hash_of({name: path for name, path in content_files(root).items() if not is_weights(path)})


def settings_hash(root: Path) -> str:
    """Return the content hash of all settings in a folder: of the model, its tokenizer and its modules."""
    files = content_files(root)
    return _hash_of({n: p for n, p in files.items() if any(fnmatchcase(p.name, one) for one in _SETTINGS)})


def _hash_of(files: dict[str, Path]) -> str:
    return hash_parts(part for name, path in files.items() for part in (name, hash_file(path)))


def reading(family: str, root: Path, max_length: int, *others: Any) -> str:
    """Return name and content hash of all settings by which a folder's model reads and judges a pair."""
    return f"{family}(max_length={max_length})@{hash_json([settings_hash(root), max_length, *others])}"
