"""Numpydoc docstrings taken apart: signature, summary, See Also, and the rest."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

LEFT_OUT = {"See Also", "References"}
"""Sections that are no part of the text: the first is the judgments, the second is not about the object."""

_SIGNATURE = re.compile(r"^[\w.\s,=]*\b[\w.]+\(.*\)(\s*->\s*.+)?$", re.DOTALL)
_RULE = re.compile(r"^(-{3,}|={3,})$")
_ROLE = re.compile(r":[\w:]+:`~?([^`]+)`")
_NAME = re.compile(r"^[A-Za-z_]\w*(\.\w+)*$")
_SENTENCE_END = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!\bvs)(?<!\bcf)\.\s+(?=[A-Z])")
_CHANGING = re.compile(
    r"^:Alias on this platform\b.*$"  # NumPy's scalar types
    r"|\bat 0x[0-9a-f]+"  # addresses of objects
    r"|^.*# may vary$"  # outputs, some of them computed when SciPy is imported
    # SciPy's table of array libraries, in 700 docstrings, and in one of NumPy's once SciPy has been imported
    r"|^[ \t]*\*\*Array API Standard Support\*\*(?s:.*?)See :ref:`dev-arrayapi` for more information\.",
    re.MULTILINE,
)
_SET = re.compile(r"\{('\w+'(?:, '\w+')+)\}")


@dataclass(frozen=True)
class Docstring:
    """What one docstring holds.

    Attributes:
        summary: its first sentence, on one line; empty when there is none.
        text: everything else but the signature and the sections in ``LEFT_OUT``; white space within lines collapsed.
        see_also: the names listed under See Also, as written.
    """

    summary: str
    text: str
    see_also: tuple[str, ...]


def parse(docstring: str) -> Docstring | None:
    """Take a docstring apart; None when it has no numpydoc section.

    What changes with the platform or from one process to the next is removed or put in order.
    """
    steady = _SET.sub(_sorted_set, _CHANGING.sub("", inspect.cleandoc(docstring)))
    sections = _sections(steady)
    preamble = sections.pop("", "")
    if not sections:
        return None
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", preamble) if part.strip()]
    while paragraphs and _SIGNATURE.match(paragraphs[0]):
        paragraphs.pop(0)
    summary, rest = _first_sentence(paragraphs[0]) if paragraphs else ("", "")
    parts = [rest, *paragraphs[1:]]
    parts += [
        f"{title}\n{_collapse(body)}" for title, body in sections.items() if body.strip() and title not in LEFT_OUT
    ]
    text = "\n".join(part for part in parts if part)
    return Docstring(summary, text, tuple(_see_also(sections.get("See Also", ""))))


def _sorted_set(match: re.Match[str]) -> str:
    """SciPy prints sets of names, whose order follows the process's hash seed."""
    return "{" + ", ".join(sorted(match[1].split(", "))) + "}"


def _sections(text: str) -> dict[str, str]:
    """Section title to body; the part before the first title has the empty title."""
    lines = text.splitlines()
    bodies: dict[str, list[str]] = {"": []}
    title = ""
    for number, line in enumerate(lines):
        follower = lines[number + 1] if number + 1 < len(lines) else ""
        if line and not line[0].isspace() and _RULE.match(follower.strip()) and len(line) < 30:
            title = line.strip()
            bodies.setdefault(title, [])
        elif not (title and number and _RULE.match(line.strip()) and lines[number - 1].strip() == title):
            bodies[title].append(line)
    return {name: "\n".join(body) for name, body in bodies.items()}


def _first_sentence(paragraph: str) -> tuple[str, str]:
    end = _SENTENCE_END.search(paragraph)
    return (paragraph[: end.start() + 1], paragraph[end.end() :]) if end else (paragraph, "")


def _collapse(body: str) -> str:
    # Indentation differs between Python versions, which dedent docstrings or do not.
    return "\n".join(" ".join(line.split()) for line in body.splitlines() if line.strip())


def _see_also(body: str) -> list[str]:
    """Names from lines such as ``sum, prod : Description`` or ``:func:`norm```; indented lines are descriptions."""
    names: list[str] = []
    for line in body.splitlines():
        if not line.strip() or line[0].isspace():
            continue
        listed = re.split(r"\s*:(?:\s|$)", _ROLE.sub(r"\1", line))[0]
        for part in listed.split(","):
            name = part.strip(" `.").removesuffix("()")
            if _NAME.match(name):
                names.append(name)
    return names
