"""Loading models without the bars and reports that transformers and PEFT write to stderr.

What matters in those reports (weights that are missing or do not fit) is checked by the callers and raised as an error.
Bars of downloads stay.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Hold back progress bars, warnings and load reports while the block runs."""
    with _without_reports(), _without_bars(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def first_line(error: Exception) -> str:
    """The first line of a library's message that says something: it does not end in a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith(":")), type(error).__name__)


@contextmanager
def _without_reports() -> Iterator[None]:
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


@contextmanager
def _without_bars() -> Iterator[None]:
    from transformers.utils import logging as transformers_logging

    hub: Any = import_module("huggingface_hub.utils")
    gguf_loader: Any = import_module("transformers.modeling_gguf_pytorch_utils")
    # Every bar of transformers obeys its switch, except the GGUF loader's, which is tqdm's own.
    gguf_tqdm, gguf_loader.tqdm = gguf_loader.tqdm, transformers_logging.tqdm
    shown, hub_shown = transformers_logging.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if hub_shown:
        hub.enable_progress_bars()  # the switch turns off the hub's bars too
    try:
        yield
    finally:
        gguf_loader.tqdm = gguf_tqdm
        if shown:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
            if not hub_shown:
                hub.disable_progress_bars()
