"""Reading configs from YAML files.

Errors about unknown keys, wrong types and impossible values name the key's path and say what to write instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from unimoe.config import Experiment
from unimoe.config.base import Section
from unimoe.config.yaml_text import MOST_CHARACTERS, YamlError, parse_yaml
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.core.limits import shortened

C = TypeVar("C", bound=Section)


def load_config(kind: type[C], path: Path | str, overrides: Sequence[str] = ()) -> C:
    """Read a config of any kind from YAML and apply ``a.b=value`` overrides, whose values are YAML too.

    Args:
        kind: the kind of config, for example ``DenseExperiment``.
        path: a file, or the name of a shipped config such as ``retrieval/default``.
        overrides: ``key.path=value`` strings, applied in order.

    Raises:
        UsageError: the file is missing or malformed, a key unknown, a value of the wrong type or impossible.
    """
    file = find_config(Path(path))
    return parse_config(kind, overridden(read_yaml(file), overrides), source=str(file))


def load_experiment(path: Path | str, overrides: Sequence[str] = ()) -> Experiment:
    """Read the config of an experiment with arms, as ``load_config`` does."""
    return load_config(Experiment, path, overrides)


def apply_overrides(raw: Any, overrides: Sequence[str], source: str) -> Experiment:
    """Validate an experiment given as plain data, with ``a.b=value`` overrides applied to a copy of it."""
    return parse_experiment(overridden(raw, overrides), source)


def parse_experiment(raw: Any, source: str) -> Experiment:
    """Validate the config of an experiment with arms, as ``parse_config`` does."""
    return parse_config(Experiment, raw, source)


def parse_config(kind: type[C], raw: Any, source: str) -> C:
    """Validate a config given as plain data; ``source`` names it in errors, which are those of ``load_config``."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        mistakes = [explain(e, lambda loc: _section_keys(kind, loc)) for e in error.errors()]
        more = f"; and {len(mistakes) - 3} more" if len(mistakes) > 3 else ""
        raise UsageError(f"{source}: {'; '.join(mistakes[:3])}{more}") from None


def find_config(path: Path) -> Path:
    """Return the path of a config: as given, or of a shipped one (with or without ``.yaml``)."""
    if path.is_file():
        return path
    shipped = config_root()
    for candidate in (shipped / path, shipped / f"{path}.yaml"):
        if not path.is_absolute() and candidate.is_file():
            return candidate
    names = sorted(str(p.relative_to(shipped).with_suffix("")) for p in shipped.rglob("*.yaml"))
    raise UsageError(f"{path}: no such config file{did_you_mean(str(path), names)}; shipped: {', '.join(names)}")


def config_root() -> Path:
    """Return the folder of the shipped configs, in the installed package or in the clone."""
    package = Path(__file__).parents[1] / "configs"
    return package if package.is_dir() else Path(__file__).parents[3] / "configs"


def read_yaml(path: Path) -> Any:
    """Read a YAML file; a UsageError, which names file and line, where it cannot be read or is not YAML."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from None
    try:
        return parse_yaml(text)
    except YamlError as error:
        where = f"{path}:{error.line}" if error.line else str(path)
        raise UsageError(f"{where}: not valid YAML: {error}") from None


def overridden(raw: Any, overrides: Sequence[str]) -> Any:
    """Return a copy of plain data with ``a.b=value`` overrides applied in order."""
    if not isinstance(raw, dict):
        return raw
    raw = dict(raw)
    for override in overrides:
        _apply(raw, override)
    return raw


def _apply(raw: dict[str, Any], override: str) -> None:
    shown = repr(shortened(override))
    key, separator, text = override.partition("=")
    *sections, last = key.strip().split(".")
    if not separator or not all([*sections, last]):
        raise UsageError(f"--set {shown}: write it as key.path=value, for example --set training.steps=50")
    try:
        value = parse_yaml(text)
    except YamlError as error:
        raise UsageError(f"--set {shown}: the value is not valid YAML ({error}); put text in quotes") from None
    node = raw
    for depth, section in enumerate(sections, start=1):
        inner = node.get(section)
        if not isinstance(inner, dict | None):
            raise UsageError(f"--set {shown}: {'.'.join(sections[:depth])} is not a section; set it as a whole")
        node[section] = dict(inner or {})  # a copy: YAML aliases share one object
        node = node[section]
    node[last] = value


_MENDS = {  # pydantic's error types, in words for someone who edits YAML
    "missing": "this key is required; add it",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text, in quotes where it looks like something else",
    "list_type": "must be a list, as in [a, b]",
    "dict_type": "must be a section, keys with values",
    "model_type": "must be a section, keys with values",
    "model_attributes_type": "must be a section, keys with values",
    "finite_number": "must be finite",
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
    "string_too_long": "may have at most {max_length} characters",
    "string_pattern_mismatch": "may hold only letters, digits, '_', '.' and '-', and starts with a letter or digit",
    "invalid_key": "a key must be text; put it in quotes",
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
}
_SELF_EVIDENT = {"missing", "too_short", "string_too_short", "invalid_key", "value_error"}


def explain(error: Any, known_keys: Callable[[Sequence[Any]], list[str]]) -> str:
    """Return one line about a mistake: the key's path, what is wrong and what to write.

    ``error`` is one of pydantic's ``ValidationError.errors()``; ``known_keys`` returns the keys of a section's path.
    """
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"] if part != "[key]"]
    path, kind = "".join(parts).removeprefix("."), error["type"]  # arms.joint_r8.task, seeds[0]
    if kind == "extra_forbidden":
        known = known_keys(error["loc"][:-1])
        return f"{path}: unknown key{did_you_mean(str(error['loc'][-1]), known)}; known here: {', '.join(known)}"
    if kind == "string_type" and error["loc"][-1] == "[key]":
        kind = "invalid_key"
    mend = _MENDS.get(kind)
    message = mend.format(**error.get("ctx", {})) if mend else error["msg"].removeprefix("Value error, ")
    shown = "" if kind in _SELF_EVIDENT else f" (it is {_shown(error['input'])})"
    return f"{path}: {message}{shown}" if path else f"{message}{shown}"


def _shown(value: Any) -> str:
    """Return a value as YAML writes it, shortened to 60 characters."""
    if isinstance(value, dict | list):
        return "a section" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _section_keys(kind: type[BaseModel], loc: Sequence[Any]) -> list[str]:
    section = kind
    for part in loc:
        field = section.model_fields.get(str(part))
        inner = _section_in(field.annotation) if field else None  # no field: a key of a dictionary of sections
        section = inner or section
    return list(section.model_fields)


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a field holds, alone or in a container; None if it holds plain values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)
