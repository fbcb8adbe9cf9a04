"""Write docs/configuration.md: every key of every kind of YAML file, from the classes that read it.

uv run python docs/configuration.py
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from unimoe.config import DenseExperiment, Experiment
from unimoe.config.labels import LabelConfig, TrainingLabelConfig
from unimoe.config.losses import LOSSES, Loss
from unimoe.studies.biencoder.config import BiEncoderConfig
from unimoe.studies.common.study import Study
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.translator.config import TranslatorConfig

PAGE = Path(__file__).with_name("configuration.md")

KINDS: list[tuple[str, str, type[BaseModel]]] = [
    ("An experiment", "`configs/experiments/bundled.yaml`; `unimoe run`, `train`, `evaluate`, `doctor`.", Experiment),
    ("Dense retrieval", "`configs/retrieval/default.yaml`; `unimoe retrieve`.", DenseExperiment),
    ("A bi-encoder", "`configs/biencoder/default.yaml`; `unimoe train-biencoder`.", BiEncoderConfig),
    ("Labels of runs", "`configs/labels.yaml`; `unimoe label --runs`.", LabelConfig),
    ("Labels to train on", "`configs/biencoder/labels.yaml`; `unimoe label` without `--runs`.", TrainingLabelConfig),
    ("A cross-encoder", "`configs/cross_encoder/default.yaml`; `unimoe train-cross-encoder`.", CrossEncoderConfig),
    ("A head", "`configs/studies/heads.yaml`; `unimoe train-head`.", TrainConfig),
    ("A study", "`configs/studies/losses.yaml`; `unimoe study`, and the scripts that compare.", Study),
    ("A translator", "`configs/translator.yaml`; `unimoe train-translator`.", TranslatorConfig),
]

_LOSSES = """## The losses

A loss is given by its name, or by a section of its `name` and its keys: `loss: {name: plistmle, discount: log1p}`. So
it is in `training.ranking.loss`, in an arm's `loss` and in a cross-encoder's. The keys of a loss are listed after its
name; every loss has the first, unless its own says otherwise.

| key | default | means |
|---|---|---|"""

_HEAD = """# Configuration

This page lists every key of every kind of YAML file, with its default. `--set a.b=value` overrides a key on the command
line; an unknown key is refused with the closest right one. **required** means that there is no default. The keys of a
gate file are in [Gates](gates.md). `docs/configuration.py` writes this page from the code.
"""


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEAD, *("\n".join(_kind(*kind)) for kind in KINDS), *_losses()])


def _kind(title: str, used_by: str, model: type[BaseModel]) -> Iterator[str]:
    yield f"## {title}\n\n{used_by}\n"
    yield "| key | default | means |\n|---|---|---|"
    yield from _rows(model, "", None)
    yield ""


def _losses() -> Iterator[str]:
    every = [*_rows(Loss, "", None)]
    yield "\n".join([_LOSSES, *every])
    for name, kind in LOSSES.items():
        yield f"| **`{name}`** |  | {_cell((kind.__doc__ or '').split(chr(10), 1)[0])} |"
        yield from (row for row in _rows(kind, f"{name}.", None) if row.replace(f"{name}.", "", 1) not in every)
    yield ""


def _rows(model: type[BaseModel], prefix: str, defaults: BaseModel | None) -> Iterator[str]:
    """Yield a row for each key; ``defaults`` is what a file without this section has in its place."""
    meanings = _attributes(model)
    for name, field in model.model_fields.items():
        section = _section(field.annotation)
        value = field.get_default(call_default_factory=True)
        if section is not None:
            summary = (section.__doc__ or "").split("\n", 1)[0]
            several = " (by name)" if get_origin(field.annotation) is dict else ""
            meaning = meanings.get(name, summary)
            yield f"| **`{prefix}{name}`**{several} | {_default(value, section)} | {_cell(meaning)} |"
            if section is Loss or any(section is kind for _, _, kind in KINDS):  # it has a table of its own
                continue
            inner = f"{prefix}{name}.NAME." if several else f"{prefix}{name}."
            absent = getattr(defaults, name, value)
            yield from _rows(section, inner, absent if isinstance(absent, section) else None)
        else:
            meaning = ". ".join(filter(None, [_choices(field.annotation), meanings.get(name, "").rstrip(".")]))
            default = _default(value, None)
            if defaults is not None and (absent := getattr(defaults, name)) != value:
                default += f"; {_default(absent, None)} if `{prefix.split('.')[0]}` is left out"
            yield f"| `{prefix}{name}` | {default} | {_cell(meaning)} |"


def _attributes(model: type[BaseModel]) -> dict[str, str]:
    """Return what the docstring of a class says of each attribute, those of its parents included."""
    found: dict[str, str] = {}
    for parent in reversed(model.__mro__):
        _, _, attributes = inspect.cleandoc(parent.__dict__.get("__doc__") or "").partition("Attributes:\n")
        for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", attributes, re.MULTILINE):
            found[name] = " ".join(text.split())
    return found


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the nested section that a field holds, in whatever container; None for plain values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (dict, list, Union, types.UnionType, Annotated):
        return next(filter(None, map(_section, get_args(annotation))), None)
    return None


def _choices(annotation: Any) -> str:
    """Return the values that a field may have, where they are few."""
    while get_origin(annotation) is Union or isinstance(annotation, types.UnionType):
        annotation = get_args(annotation)[0]
    if get_origin(annotation) is not Literal or len(get_args(annotation)) > 6:
        return ""
    return ", ".join(f"`{value!r}`" if "\n" in str(value) else f"`{value}`" for value in get_args(annotation))


def _default(value: Any, section: type[BaseModel] | None) -> str:
    if value is PydanticUndefined:
        return "**required**"
    if isinstance(value, Loss):
        return f"`{value.name}`"
    if section is not None and isinstance(value, section):
        return ""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if value in ([], {}, ()):
        return "none"
    return f"`{value!r}`" if isinstance(value, str) and (not value or "\n" in value) else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
