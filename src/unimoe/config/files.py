"""The one place that reads and writes YAML: configs, gate files, and the values of ``--set``.

It is YAML 1.2: ``1e-3`` is a number, ``yes`` and ``no`` are words. Repeated keys are refused, and tags other than
YAML's own. Errors name the key's path and say what to write instead.
"""

from __future__ import annotations

import unimoe.core.quiet_imports  # noqa: F401

# isort: split

import io
import json
import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.nodes import MappingNode, ScalarNode

from unimoe.config import Experiment
from unimoe.config.base import Section
from unimoe.core.errors import UsageError, did_you_mean, names_extra, path_of
from unimoe.core.limits import shortened

C = TypeVar("C", bound=Section)

_MOST_CHARACTERS = 200_000
"""Of a YAML file, and values in it: reading takes seconds for so many."""


def load_config(kind: type[C], path: Path | str, overrides: Sequence[str] = ()) -> C:
    """Read a config of any kind from YAML and apply ``a.b=value`` overrides, whose values are YAML too.

    Args:
        kind: the kind of config, for example ``DenseExperiment``.
        path: a file, or the name of a shipped config such as ``retrieval/default``.
        overrides: ``key.path=value`` strings, applied in order.

    Raises:
        UsageError: the file is missing or malformed, a key unknown, a value of the wrong type or impossible.
    """
    file = find_config(path_of(path, "the config"))
    return parse_config(kind, overridden(read_yaml(file), overrides), source=str(file))


@names_extra  # prompts are models', and need torch
def load_experiment(path: Path | str, overrides: Sequence[str] = ()) -> Experiment:
    """Read the config of an experiment with arms, as ``load_config`` does."""
    return load_config(Experiment, path, overrides)


def parse_config(kind: type[C], raw: Any, source: str) -> C:
    """Validate a config given as plain data; ``source`` names it in errors, which are those of ``load_config``."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        mistakes = [explain(mistake, kind) for mistake in error.errors()]
        more = f"; and {len(mistakes) - 3} more" if len(mistakes) > 3 else ""
        raise UsageError(f"{source}: {'; '.join(mistakes[:3])}{more}") from None


def find_config(path: Path) -> Path:
    """Return the path of a config: as given, or of a shipped one (with or without ``.yaml``)."""
    shipped = config_root()
    candidates = [path] if path.is_absolute() else [path, shipped / path, shipped / f"{path}.yaml"]
    if found := next(filter(Path.is_file, candidates), None):
        return found
    names = sorted(str(p.relative_to(shipped).with_suffix("")) for p in shipped.rglob("*.yaml"))
    near = [name for name in names if name.partition("/")[0] == str(path).partition("/")[0]]
    parts = (name.partition("/") for name in names)
    folders = dict.fromkeys(f"{folder}/..." if slash else folder for folder, slash, _ in parts)
    raise UsageError(
        f"{path}: no such config file{did_you_mean(str(path), names)}; shipped are {', '.join(near or folders)}"
    )


def config_root() -> Path:
    """Return the folder of the shipped configs, in the installed package or in the clone."""
    package = Path(__file__).parents[1] / "configs"
    return package if package.is_dir() else Path(__file__).parents[3] / "configs"


def read_yaml(path: Path) -> Any:
    """Read a YAML file; a UsageError, which names file and line, where it cannot be read or is not YAML."""
    try:
        with path.open("rb") as file:
            content = file.read(4 * _MOST_CHARACTERS + 1)  # UTF-8 has up to four bytes for a character
        text = content.decode("utf-8-sig") if len(content) <= 4 * _MOST_CHARACTERS else "#" * len(content)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from None
    if len(text) > _MOST_CHARACTERS:
        raise UsageError(f"{path}: more than {_MOST_CHARACTERS:,} characters, which no config has; give another file")
    return _parse_yaml(text, str(path))


def overridden(raw: Any, overrides: Sequence[str]) -> Any:
    """Return a copy of plain data with ``a.b=value`` overrides applied in order."""
    if not isinstance(raw, dict):
        return raw
    raw = dict(raw)
    for override in overrides:
        shown = f"--set {shortened(override)!r}"
        key, separator, text = override.partition("=")
        *sections, last = key.strip().split(".")
        if not separator or not all([*sections, last]):
            raise UsageError(f"{shown}: write it as key.path=value, for example --set training.steps=50")
        value = _parse_yaml(text, shown)
        node = raw
        for depth, section in enumerate(sections, start=1):
            inner = node.get(section)
            if isinstance(inner, str):  # ``loss: softmax`` is short for a section with that name
                inner = {"name": inner}
            if not isinstance(inner, dict | None):
                raise UsageError(f"{shown}: {'.'.join(sections[:depth])} is not a section; set it as a whole")
            node[section] = dict(inner or {})  # a copy: YAML aliases share one object
            node = node[section]
        node[last] = value
    return raw


_REMEDIES = {  # where pydantic's own words say less to someone who edits YAML
    "missing": "this key is required; add it",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list, as in [a, b]",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text, in quotes where it looks like something else",
    "dict_type": "must be a section, keys with values",
    "model_type": "must be a section, keys with values",
    "model_attributes_type": "must be a section, keys with values",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "may hold only letters, digits, '_', '.' and '-', and starts with a letter or digit",
    "invalid_key": "a key must be text; put it in quotes",
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
}
_SELF_EVIDENT = {"missing", "too_short", "string_too_short", "invalid_key", "value_error", "unknown_key"}


def explain(error: Any, kind: type[BaseModel]) -> str:
    """Return one line about a mistake: the key's path, what is wrong and what to write.

    ``error`` is one of pydantic's ``ValidationError.errors()`` about a value of this kind.
    """
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"] if part != "[key]"]
    path, mistake = "".join(parts).removeprefix("."), error["type"]  # arms.joint_r8.task, seeds[0]
    if mistake == "extra_forbidden":
        known = list(_section_at(kind, error["loc"][:-1]).model_fields)
        return f"{path}: unknown key{did_you_mean(str(error['loc'][-1]), known)}; known here: {', '.join(known)}"
    if mistake == "string_type" and error["loc"][-1] == "[key]":
        mistake = "invalid_key"
    own = re.sub(r"^\w+ should", "must", error["msg"].removeprefix("Value error, "))
    message = _REMEDIES[mistake].format(**error.get("ctx", {})) if mistake in _REMEDIES else own
    shown = "" if mistake in _SELF_EVIDENT else f" (it is {_shown(error['input'])})"
    return f"{path}: {message}{shown}" if path else f"{message}{shown}"


def _shown(value: Any) -> str:
    """Return a value as YAML writes it, shortened to 60 characters."""
    if isinstance(value, dict | list):
        return "a section" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _section_at(kind: type[BaseModel], path: Sequence[Any]) -> type[BaseModel]:
    for part in path:
        field = kind.model_fields.get(str(part))  # none: a key of a dictionary of sections
        kind = (_section_in(field.annotation) if field else None) or kind
    return kind


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a field holds, alone or in a container; None if it holds plain values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


class _Constructor(SafeConstructor):
    """Leaves dates as text, which the config's own types read, and a lone ``=`` too; refuses aliases that multiply."""

    def construct_document(self, node: Any) -> Any:
        """Return the value of a document whose aliases, written out, leave it at a size that can be read."""
        if _size(node, {}) > _MOST_CHARACTERS:
            raise ValueError(f"its aliases, written out, hold more than {_MOST_CHARACTERS:,} values")
        return super().construct_document(node)


def _size(node: Any, known: dict[int, int]) -> int:
    """Return the number of values in a node, those of an alias each time; a node within itself counts none."""
    if id(node) not in known:
        known[id(node)] = 0
        inside = chain.from_iterable(node.value) if isinstance(node, MappingNode) else node.value
        known[id(node)] = 1 if isinstance(node, ScalarNode) else 1 + sum(_size(one, known) for one in inside)
    return known[id(node)]


for _kind in ("timestamp", "value"):
    _Constructor.add_constructor(f"tag:yaml.org,2002:{_kind}", SafeConstructor.construct_yaml_str)


def _parse_yaml(text: str, source: str) -> Any:
    """Return the value of a YAML document as plain data; ``source`` names it in errors."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    try:
        return yaml.load(text)
    except Exception as error:  # besides YAMLError, errors of many kinds for a tag that its value does not fit
        mark = getattr(error, "problem_mark", None)
        said = [getattr(error, "context", None), getattr(error, "problem", None)]
        problem = ", ".join(filter(None, said)) or " ".join(str(error).split())
        where = f"{source}:{mark.line + 1}" if mark and source[:2] != "--" else source
        remedy = "fix it, or put text in quotes"
        raise UsageError(f"{where}: not valid YAML: {shortened(problem, 200)}; {remedy}") from None


def dump_yaml(value: Any) -> str:
    """Return plain data as YAML, with keys in their order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = False, False  # type: ignore[assignment]
    text = io.StringIO()
    yaml.dump(value, text)
    return text.getvalue()
