"""What a door says of what comes in: a refusal, a caveat or a note, each one line with numbers, and the same as data.

Runs, judgments and collections are checked here and nowhere else, so every entrance (command, Python function, study)
says the same of the same data.

refusal   a number would mean something else than its name says; ``--allow NAME`` makes a caveat of some
caveat    a number is to be read with this in mind; the line travels into tables and reports
note      good to know
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from unimoe.core.errors import DataError

Weight: TypeAlias = Literal["refusal", "caveat", "note"]


@dataclass(frozen=True)
class Check:
    """One finding about what came in.

    Attributes:
        name: what was checked, such as ``ranks``; also what ``--allow`` takes, where a refusal can be allowed.
        weight: refusal, caveat or note; see the package.
        line: the finding in one line, with numbers and the name of what it is about.
        data: the same numbers by name, for ``result.checks`` and ``--json``.
        remedy: what to do about a refusal, an imperative; empty for others.
        unfit: whether nothing may be decided on the numbers, so that a gate on them is advisory.
    """

    name: str
    weight: Weight
    line: str
    data: Mapping[str, Any] = field(default_factory=dict)
    remedy: str = ""
    unfit: bool = False


def settled(checks: Iterable[Check], allow: Collection[str] = (), *, offer: bool = True) -> tuple[Check, ...]:
    """Return what was found, allowed refusals as caveats; raise another as a DataError, which may offer ``--allow``."""
    found = []
    for check in checks:
        if check.weight == "refusal":
            if check.name not in allow:
                raise DataError(f"{check.line}; {check.remedy}{f', or --allow {check.name}' if offer else ''}")
            check = replace(check, weight="caveat", line=f"{check.line} (--allow {check.name})", remedy="", unfit=True)
        found.append(check)
    return tuple(found)


def lines(checks: Iterable[Check], weight: Weight) -> list[str]:
    """Return the lines of one weight, each once."""
    return list(dict.fromkeys(check.line for check in checks if check.weight == weight))


def report(checks: Iterable[Check]) -> None:
    """Print notes and caveats on stderr, a line each."""
    from unimoe.core.console import stderr

    for check in checks:
        before, style = ("caveat: ", "yellow") if check.weight == "caveat" else ("", "dim")
        stderr.print(f"{before}{check.line}", style=style, soft_wrap=True)
