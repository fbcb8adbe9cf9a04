"""The files of an encoder or a reranker: where they are, the hashes by which results know it, and how they are loaded.

They load without the bars and reports that transformers and PEFT write to stderr, and with errors of ours. Callers
check what matters in those reports (weights that are missing or do not fit). The bars of downloads are shown.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unimoe.core.errors import DataError, InputError, UnimoeError
from unimoe.core.io import Strict, hash_file, hash_json, hash_parts, read_json

if TYPE_CHECKING:
    import torch

_FROM_HUB = ["*.json", "*.txt", "*.model", "*.jinja", "*.safetensors"]
TRUST = "read that code, and let it run by model.trust_remote_code=true (encoder.trust_remote_code of an encoder)"
_NOT_FROM_HUB = ["onnx/*", "openvino/*", "flax/*", "coreml/*"]
ELSEWHERE = "score with it by python:MODULE:FUNCTION, which takes any scorer of pairs"
"""What is left to do about a reranker that unimoe cannot run."""

_ASKED = ("ForCausalLM", "ForSequenceClassification", "ForConditionalGeneration")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "adapter_model.bin")
_SETTINGS = ("*.json", "*.txt", "*.model", "*.jinja")
_OTHERS = ("unimoe.json", "trainer_state.json")
"""Files of a training, which change no score."""


class _Module(Strict):
    path: str


def folder_named(key: str, base: str) -> Path | None:
    """Return the folder that ``base`` names; None where it can only be a hub id. ``key`` is the config key with it."""
    if Path(base).is_dir():
        return Path(base)
    if base.startswith(("/", ".", "~")) or base.count("/") > 1:
        raise DataError(f"{key} {base!r}: no such folder; check the path, or train the model that is to be there")
    return None


def find_model(
    key: str, base: str, revision: str | None = None, *, trust_remote_code: bool = False, remedy: str = ""
) -> tuple[Path, str | None]:
    """Return the folder of a model, downloaded where it is the hub's, and the commit of a downloaded one.

    Errors name ``key``, the config key or option that holds the name, and ``remedy``, what else to do.
    """
    if (named := folder_named(key, base)) is not None:
        return named, None
    from huggingface_hub import snapshot_download

    patterns = _FROM_HUB + ["*.py"] * trust_remote_code

    def fetch(allowed: list[str]) -> Path:
        return Path(snapshot_download(base, revision=revision, allow_patterns=allowed, ignore_patterns=_NOT_FROM_HUB))

    try:
        folder = fetch(patterns)
        if not any(folder.rglob("*.safetensors")):
            # Older models have only these; the libraries read them as weights alone, which runs no code.
            folder = fetch([*patterns, "*pytorch_model*.bin", "*adapter_model.bin"])
    except Exception as error:  # the hub's client ends in errors of many kinds: offline, no such id, gated, malformed
        raise DataError(
            f"{key} {base!r} cannot be loaded ({first_line(error)}); check the id or folder, connect to the hub{remedy}"
        ) from None
    return folder, folder.name[:16]


def module_folders(root: Path) -> list[Path]:
    """Return the folders of a sentence-transformers model's modules; the folder itself where it lists none."""
    listed = root / "modules.json"
    if not listed.is_file():
        return [root]
    modules = read_json(listed, list[_Module], "save the model with save_pretrained()")
    if not modules:
        raise DataError(f"{listed}: lists no modules with a path; save the model with save_pretrained()")
    return [root / module.path for module in modules]


def transformer_folder(root: Path) -> Path:
    """Return the folder of the transformers model inside one of sentence-transformers, or the folder itself."""
    return module_folders(root)[0]


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold the weights in a folder: safetensors, else pickled ones, which are read as data."""
    files = next(filter(None, (sorted(folder.glob(pattern)) for pattern in _WEIGHTS)), None)
    if files is None:
        raise DataError(f"{folder}: neither *.safetensors nor pytorch_model.bin; save the model with save_pretrained()")
    return files


def weights_hash(*folders: Path) -> str:
    """Return the content hash of the weights in folders."""
    return hash_parts(hash_file(file) for folder in folders for file in weight_files(folder))


def settings_hash(root: Path) -> str:
    """Return the content hash of all settings in a folder: of the model, its tokenizer and its modules."""
    files = {file for pattern in _SETTINGS for file in root.rglob(pattern) if file.name not in _OTHERS}
    return hash_parts(part for file in sorted(files) for part in (str(file.relative_to(root)), hash_file(file)))


def content_identity(name: str, root: Path, commit: str | None) -> str:
    """Return how results know a model: its name, and the hub's commit or the content hash of its weights."""
    if commit:
        return f"{name}@{commit}"

    def has_weights(folder: Path) -> bool:
        return any(any(folder.glob(pattern)) for pattern in _WEIGHTS)

    first, *others = module_folders(root)
    if not has_weights(first):  # a Router of sentence-transformers keeps them in the folders of its routes
        first, *others = sorted({file.parent for file in root.rglob("*.safetensors")}) or [first]
    return f"{name}@{weights_hash(first, *filter(has_weights, others))}"


def model_identity(kind: str, base: str, root: Path, commit: str | None) -> str:
    """Return how results know a reranker: its family, and its ``content_identity``."""
    return f"{kind}:{content_identity(base if commit else root.resolve().name, root, commit)}"


def reading(family: str, root: Path, max_length: int, *others: Any) -> str:
    """Return name and content hash of all settings by which a folder's model reads and judges a pair."""
    return f"{family}(max_length={max_length})@{hash_json([settings_hash(root), max_length, *others])}"


def architecture(folder: Path) -> str:
    """Return the class that a folder's ``config.json`` names; an empty string where it names none."""
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder}: no config.json; give the folder of a model that save_pretrained() has written")
    names = read_settings(folder / "config.json").get("architectures")
    return str(names[0]) if names else ""


def refuse_own_code(folder: Path, *, trusted: bool) -> None:
    """Raise a ``DataError`` about a folder whose class is none of transformers'; see ``refuse_unknown_class``."""
    refuse_unknown_class(str(folder), architecture(folder), trusted=trusted)


def refuse_unknown_class(where: str, name: str, *, trusted: bool) -> None:
    """Raise a ``DataError`` about a reranker of a class that transformers does not have, unless its code may run.

    Without that code transformers would build another class by the same settings, or none. With it, the class must be
    one of the kinds that unimoe knows how to ask.
    """
    import transformers

    if not name or name in dir(transformers) or (trusted and name.endswith(_ASKED)):
        return
    code = "and its own code gives no scores that unimoe knows" if trusted else "so that its own code would be needed"
    remedy = "" if trusted else f"{TRUST}, or "
    raise DataError(f"{where}: a {name}, a class that transformers does not have, {code}; {remedy}{ELSEWHERE}")


def or_own_code(model: Any) -> str:
    """Return what a message adds about a model that lacks weights, whose own code may be what reads them."""
    return f"; or {TRUST}" if getattr(model.config, "auto_map", None) else ""


def is_decoder(model_type: str | None) -> bool:
    """Return whether transformers knows models of a type as causal language models, and not as masked ones."""
    from transformers.models.auto import modeling_auto

    causal, masked = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return model_type in causal and model_type not in masked and model_type != "xlnet"  # which reads both ways


def label_count(folder: Path) -> int | None:
    """Return the labels of a classifier by its ``config.json``; None where they are not named."""
    labels = read_settings(folder / "config.json").get("id2label")
    return None if labels is None else len(labels)


def read_settings(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is no file."""
    return read_json(path, dict[str, Any], "correct it, or save the model again") if path.is_file() else {}


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Silence progress bars, warnings and load reports while the block runs."""
    from transformers.utils import logging as reports

    hub: Any = import_module("huggingface_hub.utils")
    verbosity, shown = reports.get_verbosity(), reports.is_progress_bar_enabled()
    hub_shown = not hub.are_progress_bars_disabled()
    reports.set_verbosity(logging.CRITICAL)
    reports.disable_progress_bar()  # type: ignore[no-untyped-call]
    if hub_shown:
        hub.enable_progress_bars()  # the switch turned off the hub's bars too
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        reports.set_verbosity(verbosity)
        if shown:
            reports.enable_progress_bar()  # type: ignore[no-untyped-call]
            if not hub_shown:
                hub.disable_progress_bars()


@contextmanager
def loading(what: str, remedy: str) -> Iterator[None]:
    """Load quietly; a library's error, of whatever kind, becomes a ``DataError`` ``what (its first line); remedy``."""
    try:
        with silence_transformers():
            yield
    except UnimoeError:
        raise
    except Exception as error:  # damaged files raise errors of many kinds, KeyError and plain Exception among them
        if "trust_remote_code" in str(error):
            remedy = f"{TRUST}, or {remedy}"
        raise DataError(f"{what} ({first_line(error)}); {remedy}") from None


def load_pretrained(
    auto: Any, source: str | Path, dtype: torch.dtype, *, config: Any = None, **options: Any
) -> tuple[Any, Any, list[str]]:
    """Load a tokenizer and a model by its Auto class, from a folder or hub id, within ``loading``.

    Returns:
        Tokenizer, model, and the names of the weights that are missing; transformers puts random ones in their place.
    """
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(source, **options)
    model, report = auto.from_pretrained(
        source, config=config, dtype=dtype, use_safetensors=True, output_loading_info=True, **options
    )
    refuse_another_vocabulary(tokenizer, model)
    return tokenizer, model, sorted(report["missing_keys"])


def missing_weights(model: Any, folder: Path) -> list[str]:
    """Return the names of a loaded model's weights that no file of its folder holds.

    Random ones take their place, and only the report of another load, here without weights, tells; a model of code of
    its own may not bear that.
    """
    if not type(model).__module__.startswith("transformers."):
        return []
    _, report = type(model).from_pretrained(folder, config=model.config, device_map="meta", output_loading_info=True)
    return sorted(report["missing_keys"])


def refuse_another_vocabulary(tokenizer: Any, model: Any) -> None:
    """Raise a ``ValueError`` about a tokenizer without tokens, or with some that the model has no embedding for.

    Tokens added to it do not count: many a model has one for padding without a row of its own.
    """
    added = tokenizer.get_added_vocab()
    ids = [index for token, index in tokenizer.get_vocab().items() if token not in added]
    rows = model.get_input_embeddings().weight.shape[0]
    if not ids:
        raise ValueError("its tokenizer has no vocabulary")
    if max(ids) >= rows:
        raise ValueError(f"its tokenizer has a token {max(ids):,}, and its embedding {rows:,} rows: of another model?")


def rowless_tokens(tokenizer: Any, model: Any) -> dict[int, str]:
    """Return the added tokens of a tokenizer, by id, that a model has no embedding for: a text with one cannot be read.

    Many a model has one for padding, which no text holds.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    return {index: token for token, index in tokenizer.get_added_vocab().items() if index >= rows}


def refuse_rowless(sequences: Sequence[Sequence[int]], rowless: Mapping[int, str], first: int = 0) -> None:
    """Raise an ``InputError`` about one of some sequences of token ids that holds one of ``rowless_tokens``.

    ``first`` is the number of the first sequence.
    """
    for number, ids in enumerate(sequences if rowless else (), first):
        if found := rowless.keys() & set(ids):
            reason = f"the text holds {rowless[min(found)]!r}, a token that the model has no embedding for; remove it"
            raise InputError(number, reason)


def first_line(error: Exception) -> str:
    """Return the first line of a library's message that does not end in a colon."""
    if "ignore_mismatched_sizes" in str(error):
        return "its weights have other shapes than its config.json says"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith(":")), type(error).__name__)
