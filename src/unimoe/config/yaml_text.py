"""The one place that reads and writes YAML: configs, gate files, and the values of ``--set``.

It is YAML 1.2: ``1e-3`` is a number, ``yes`` and ``no`` are words. Repeated keys are refused,
and tags other than YAML's own.
"""

from __future__ import annotations

import io
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor

from unimoe.core.limits import shortened, text_problem

MOST_CHARACTERS = 200_000
MOST_VALUES = 10_000
"""Of a file, each alias counted with all that it repeats."""

LARGEST_WHOLE = 2**63 - 1


class YamlError(Exception):
    """A text that is not YAML, or not YAML for a config; ``line`` counts from 1, None where the mistake has none."""

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


class _Constructor(SafeConstructor):
    """Leaves dates as text, which the config's own types read, and a lone ``=`` too."""


for _kind in ("timestamp", "value"):
    _Constructor.add_constructor(f"tag:yaml.org,2002:{_kind}", SafeConstructor.construct_yaml_str)


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document as plain data; a YamlError where it is malformed or beyond the limits."""
    if len(text) > MOST_CHARACTERS:
        raise YamlError(f"more than {MOST_CHARACTERS:,} characters; is it the right file?")
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    try:
        value = yaml.load(text)
    except RecursionError:
        raise YamlError("nested too deeply") from None
    except Exception as error:  # besides YAMLError, errors of many kinds for a tag that its value does not fit
        mark = getattr(error, "problem_mark", None)
        said = [getattr(error, "context", None), getattr(error, "problem", None)]
        problem = ", ".join(filter(None, said)) or " ".join(str(error).split())
        raise YamlError(shortened(problem, 200), mark.line + 1 if mark else None) from None
    _refuse_unusable(value)
    return value


def dump_yaml(value: Any) -> str:
    """Return plain data as YAML, with keys in their order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.sort_base_mapping_type_on_output = False, False  # type: ignore[assignment]
    text = io.StringIO()
    yaml.dump(value, text)
    return text.getvalue()


def _refuse_unusable(value: Any) -> None:
    """Refuse aliases that multiply, and what no key can use: huge whole numbers, NUL, half a surrogate pair."""
    left, seen = [value], 0
    while left:
        item = left.pop()
        seen += 1
        if seen > MOST_VALUES:  # an alias within its own anchor ends here too
            raise YamlError(f"more than {MOST_VALUES:,} values, aliases spelled out")
        if isinstance(item, dict):
            left.extend((*item.keys(), *item.values()))
        elif isinstance(item, list | tuple):
            left.extend(item)
        elif isinstance(item, int) and abs(item) > LARGEST_WHOLE:
            raise YamlError(f"{shortened(str(item))} is too large a number for any key")
        elif isinstance(item, str) and (problem := text_problem(item)):
            raise YamlError(f"{shortened(item)!a} {problem}; remove it")
