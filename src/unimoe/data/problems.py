"""What is odd about a collection without making it unusable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

ProblemKind = Literal[
    "duplicate documents",
    "conflicting documents",
    "duplicate queries",
    "conflicting queries",
    "judgments of unknown documents",
    "empty documents",
    "empty queries",
    "unjudged queries",
]
EXAMPLES_KEPT = 3


@dataclass(frozen=True)
class Finding:
    """How often one problem was met, and the first few ids that have it."""

    count: int
    examples: tuple[str, ...]


@dataclass
class Problems:
    """What is odd about a collection without making it unusable, counted by kind."""

    found: dict[ProblemKind, Finding] = field(default_factory=dict)

    def note(self, kind: ProblemKind, identifier: str) -> None:
        """Count one more ``identifier`` that has this problem."""
        old = self.found.get(kind, Finding(0, ()))
        examples = old.examples if len(old.examples) == EXAMPLES_KEPT else (*old.examples, identifier)
        self.found[kind] = Finding(old.count + 1, examples)

    def count(self, kind: ProblemKind) -> int:
        """How often this problem was met."""
        return self.found[kind].count if kind in self.found else 0

    def summary(self) -> str:
        """One line for people, such as ``duplicate documents: 2 (d1, d7)``; empty when nothing is odd."""
        return "; ".join(
            f"{kind}: {finding.count:,} ({', '.join(finding.examples)}{', ...' * (finding.count > EXAMPLES_KEPT)})"
            for kind in get_args(ProblemKind)
            if (finding := self.found.get(kind))
        )
