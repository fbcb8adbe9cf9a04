"""The files of an encoder or a reranker: where they are, the hashes by which results know it, and how they are loaded.

They load without the bars and reports that transformers and PEFT write to stderr, and with errors of ours. Callers
check what matters in those reports (weights that are missing or do not fit). The bars of downloads are shown.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unimoe.core.errors import DataError, UnimoeError, refused_code
from unimoe.models.token_ids import add_stated_ends

if TYPE_CHECKING:
    import torch

    from unimoe.models.folder import ModelFolder


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Silence progress bars, warnings, load reports and sentence-transformers' remarks while the block runs."""
    from transformers.utils import logging as reports

    hub: Any = import_module("huggingface_hub.utils")
    verbosity, shown = reports.get_verbosity(), reports.is_progress_bar_enabled()
    hub_shown = not hub.are_progress_bars_disabled()
    library = logging.getLogger("sentence_transformers")
    level = library.level
    library.setLevel(logging.CRITICAL)
    reports.set_verbosity(logging.CRITICAL)
    reports.disable_progress_bar()  # type: ignore[no-untyped-call]
    if hub_shown:
        hub.enable_progress_bars()  # the switch turned off the hub's bars too
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        library.setLevel(level)
        reports.set_verbosity(verbosity)
        if shown:
            reports.enable_progress_bar()  # type: ignore[no-untyped-call]
            if not hub_shown:
                hub.disable_progress_bars()


@contextmanager
def loading(what: str, remedy: str, key: str = "model") -> Iterator[None]:
    """Load quietly; a library's error, of whatever kind, becomes a ``DataError`` ``what (its first line); remedy``.

    Of a model that needs code of its own it names ``trust_remote_code`` in the section ``key`` of the config.
    """
    try:
        with silence_transformers():
            yield
    except UnimoeError:
        raise
    except Exception as error:  # damaged files raise errors of many kinds, KeyError and plain Exception among them
        if "trust_remote_code=True" in str(error):
            raise DataError(
                f"{what} (it needs code of its own); read that code, and set {key}.trust_remote_code=true to run it"
            ) from None
        if refused_code(error):
            raise  # a full disk, or too little memory, is no fault of the files
        raise DataError(f"{what} ({first_line(error)}); {remedy}") from None


def load_pretrained(
    auto: Any, folder: ModelFolder, dtype: torch.dtype, *, config: Any = None, **options: Any
) -> tuple[Any, Any, list[str]]:
    """Load a tokenizer and a model by its Auto class, within ``loading``; an adapter's base, in PEFT's model.

    Returns:
        Tokenizer, model, and the names of the weights that are missing; transformers puts random ones in their place.
    """
    from unimoe.models.adapter_files import put_adapter, stored_weights

    tokenizer = folders_tokenizer(folder)
    # Older models have pickles alone, of which no code runs.
    options |= {"dtype": dtype, "weights_only": True, "trust_remote_code": folder.trusted}
    model, report = auto.from_pretrained(folder.whole.inner, config=config, output_loading_info=True, **options)
    refuse_another_vocabulary(tokenizer, model)
    missing = set(report["missing_keys"])
    if folder.base:
        model = put_adapter(model, folder.inner, folder.base.name)
        missing -= stored_weights(folder.inner)
    return tokenizer, model, sorted(missing)


def folders_tokenizer(folder: ModelFolder) -> Any:
    """Load the tokenizer of a model, with the tokens around a text that its files state."""
    from transformers import AutoTokenizer

    place = folder.tokenizer_root
    tokenizer: Any = AutoTokenizer.from_pretrained(place, trust_remote_code=folder.trusted)
    add_stated_ends(tokenizer, place)
    return tokenizer


def missing_weights(model: Any, place: Path, folder: ModelFolder) -> list[str]:
    """Return the names of weights of a model, loaded from a place in its folder, that no file there holds.

    Random ones take their place, and only the report of another load, here without weights, tells; a model of code of
    its own may not bear that.
    """
    from unimoe.models.adapter_files import stored_weights

    if not type(model).__module__.startswith("transformers."):
        return []
    whole = folder.base.inner if folder.base else place
    _, report = type(model).from_pretrained(whole, config=model.config, device_map="meta", output_loading_info=True)
    return sorted(set(report["missing_keys"]) - (stored_weights(place) if folder.base else set()))


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


def first_line(error: Exception) -> str:
    """Return the first line of a library's message that does not end in a colon."""
    if "ignore_mismatched_sizes" in str(error):
        return "its weights have other shapes than its config.json says"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith(":")), type(error).__name__)
