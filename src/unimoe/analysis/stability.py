"""Does a gate's label hang on one seed or one dataset? Each is left out in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from unimoe.analysis.crossed import Label
from unimoe.analysis.gates.definitions import Gate
from unimoe.analysis.gates.scores import GateScores, collect
from unimoe.analysis.gates.values import find
from unimoe.analysis.loading import Results

Kind = Literal["seed", "dataset"]


@dataclass(frozen=True)
class Row:
    """What a gate says without one seed or one dataset.

    Attributes:
        left_out: ``seed 1``, or a dataset; CQADupStack's forums go together.
        value: as in ``Finding``.
        rule: label of the value.
        label: label with confidence; None where what remains has no interval, so that it could not have held.
    """

    left_out: str
    kind: Kind
    value: float
    rule: Label
    label: Label | None


@dataclass(frozen=True)
class Stability:
    """Whether the labels of a gate hold without any one seed or dataset.

    Attributes:
        rows: seeds first; a kind of which there is only one has none.
        rule_holds: the rule's label is the same in all rows; None without rows.
        label_holds: the same of the label with confidence; None too where it cannot be tried, as without one of two
            seeds.
        sentence: the same in words.
    """

    rows: tuple[Row, ...]
    rule_holds: bool | None
    label_holds: bool | None
    sentence: str


def leave_one_out(results: Results, gate: Gate) -> Stability:
    """Judge a gate without each of its seeds, and without each of its datasets.

    Raises:
        DataError: the gate cannot be judged on these results at all.
    """
    return stability_of(gate, collect(results, gate))


def stability_of(gate: Gate, scores: GateScores) -> Stability:
    """The same on scores that have been collected."""
    rows = tuple(_rows(gate, scores))
    whole = find(gate, scores)
    if not rows:
        return Stability((), None, None, _nothing_to_leave_out(scores))
    tried = [row.label for row in rows if row.label is not None]
    rule_changes = [row for row in rows if row.rule != whole.rule]
    label_changes = [row for row in rows if row.label not in (None, whole.label)]
    label_holds = not label_changes if tried and whole.interval else None
    kinds = " or ".join(dict.fromkeys(row.kind for row in rows))
    said = [_said("the rule's", whole.rule, [(row.left_out, row.rule) for row in rule_changes], kinds)]
    if label_holds is None:
        said.append("the label with confidence cannot be tried on what then remains")
    else:
        changes = [(row.left_out, row.label) for row in label_changes if row.label is not None]
        said.append(_said("with confidence", whole.label, changes, kinds))
    return Stability(rows, not rule_changes, label_holds, "; ".join([*said, *_not_tried(scores)]))


def _rows(gate: Gate, scores: GateScores) -> Iterator[Row]:
    if len(scores.seeds) > 1:
        for seed in scores.seeds:
            rest = scores.only_seeds([other for other in scores.seeds if other != seed])
            yield _row(gate, rest, f"seed {seed}", "seed")
    if len(scores.groups) > 1:
        for name, parts in scores.groups.items():
            rest = scores.only_datasets([dataset for dataset in scores.by_dataset if dataset not in parts])
            yield _row(gate, rest, name, "dataset")


def _row(gate: Gate, scores: GateScores, left_out: str, kind: Kind) -> Row:
    found = find(gate, scores)
    return Row(left_out, kind, found.value, found.rule, found.label if found.interval else None)


def _said(which: str, label: Label, changes: list[tuple[str, Label]], kinds: str) -> str:
    if not changes:
        return f"{which} {label} holds whichever {kinds} is left out"
    without = {
        other: " or ".join(left_out for left_out, its_label in changes if its_label == other) for _, other in changes
    }
    return f"{which} {label} becomes " + ", ".join(f"{other} without {names}" for other, names in without.items())


def _not_tried(scores: GateScores) -> Iterator[str]:
    if len(scores.seeds) == 1:
        yield "no seed can be left out, there is one" if scores.trained else "no seed can be left out, there are none"
    if len(scores.groups) == 1:
        yield "no dataset can be left out, there is one"


def _nothing_to_leave_out(scores: GateScores) -> str:
    return f"not tried: {'; '.join(_not_tried(scores))}"
