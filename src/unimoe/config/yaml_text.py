"""The one place that reads YAML: configs, gate files, and the values of ``--set``.

It is YAML 1.2 as people write it: ``1e-3`` is a number, ``yes`` and ``no`` are words. What a config has no use for is
refused, for it can only be a mistake or an attack: repeated keys, tags, deep nesting, aliases that multiply.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

import yaml

from unimoe.core.limits import shortened, text_problem

MOST_CHARACTERS = 200_000
DEEPEST = 20
MOST_VALUES = 10_000
"""Of a file, each alias counted with all that it repeats."""

LARGEST_WHOLE = 2**63 - 1


class YamlError(Exception):
    """A text that is not YAML, or not YAML for a config.

    Attributes:
        line: the number of the line, from 1; None where the mistake has none.
    """

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.line = line


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document as plain data.

    Raises:
        YamlError: it is malformed, or beyond the limits of this module.
    """
    if len(text) > MOST_CHARACTERS:
        raise YamlError(f"more than {MOST_CHARACTERS:,} characters; is it the right file?")
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        said = [getattr(error, "context", None), getattr(error, "problem", None)]
        problem = ", ".join(filter(None, said)) or " ".join(str(error).split())
        raise YamlError(problem, mark.line + 1 if mark else None) from None


class _Loader(yaml.SafeLoader):
    """Reads numbers and booleans as YAML 1.2 does. ruamel.yaml would do that too, but is another dependency."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth, self._values = 0, 0
        self._sizes: dict[int, int] = {}
        """Values below each finished node, itself included."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            _refuse(f"the tag {shortened(tag)} has no meaning here; write the value alone", event)
        if self._depth == DEEPEST:
            _refuse(f"more than {DEEPEST} levels deep", event)
        before, self._depth = self._values, self._depth + 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not isinstance(event, yaml.AliasEvent):
            self._values += 1
            self._sizes[id(node)] = self._values - before
        elif id(node) in self._sizes:
            self._values += self._sizes[id(node)]
        else:
            _refuse(f"the alias *{event.anchor} lies within its own anchor", event)
        if self._values > MOST_VALUES:
            _refuse(f"more than {MOST_VALUES:,} values, aliases spelled out", event)
        return node

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                _refuse("a key must be one word", key)
            if key.value in seen:
                _refuse(f"key {shortened(key.value)!r} is repeated; keep one of them", key)
            seen.add(key.value)
        return node

    def compose_scalar_node(self, anchor: dict[Any, yaml.Node]) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if problem := text_problem(node.value):
            _refuse(f"{shortened(node.value)!a} {problem}; remove it", node)
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > len(str(LARGEST_WHOLE)) + 1 or abs(int(node.value)) > LARGEST_WHOLE:
            _refuse(f"{shortened(node.value)} is too large a number for any key", node)
        return int(node.value)


def _refuse(problem: str, at: Any) -> NoReturn:
    raise yaml.composer.ComposerError(None, None, problem, at.start_mark)


_SCALARS = {  # tag: pattern, first characters; all other scalars are text
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?[0-9]+", list("-+0123456789")),
    "float": (
        r"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.inf|\.Inf|\.INF)"
        r"|\.nan|\.NaN|\.NAN",
        list("-+.0123456789"),
    ),
    "merge": (r"<<", ["<"]),
}
_Loader.yaml_implicit_resolvers = {}
for _tag, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
