"""Does a gate's label hang on one seed or one dataset? Each is left out in turn.

What is left has fewer seeds or queries, and so a wider interval whatever the truth is. Each value is therefore judged
with the interval of the whole, moved: a label then changes because the value moved, not because data was taken away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from unimoe.analysis.gates.definitions import Gate, Label
from unimoe.analysis.gates.findings import Finding, label_of, quantity_of, region_of
from unimoe.analysis.gates.scores import GateScores

Kind = Literal["seed", "dataset"]


@dataclass(frozen=True)
class Row:
    """What a gate says without one seed or one dataset.

    Attributes:
        left_out: ``seed 1``, ``joint_r8 seed 1``, or a dataset; CQADupStack's forums go together.
        value: as in ``Finding``.
        region: label of the region the value lies in.
        label: the label of the value with the interval of the whole, moved to it.
    """

    left_out: str
    kind: Kind
    value: float
    region: Label
    label: Label


@dataclass(frozen=True)
class Stability:
    """Whether the label of a gate holds without any one seed or dataset.

    Attributes:
        rows: seeds first; a kind of which there is only one has none.
        holds: the label is the same in all rows; None where nothing can be left out, or nothing was decided.
        sentence: the same in words.
    """

    rows: tuple[Row, ...]
    holds: bool | None
    sentence: str


def stability_of(gate: Gate, scores: GateScores, whole: Finding) -> Stability:
    """Judge a gate without each of its seeds, and without each of its datasets.

    Args:
        gate: what is judged.
        scores: what it was judged on.
        whole: what that said.
    """
    rows = tuple(_rows(gate, scores, whole))
    untried = "; ".join(_not_tried(scores))
    if not rows:
        return Stability((), None, f"not tried: {untried}")
    if whole.why:
        return Stability(rows, None, "not tried: there is no label to keep")
    kinds = " or ".join(dict.fromkeys(row.kind for row in rows))
    changes = [row for row in rows if row.label != whole.label]
    if changes:
        labels = dict.fromkeys(row.label for row in changes)
        without = {label: " or ".join(row.left_out for row in changes if row.label == label) for label in labels}
        said = f"{whole.label} becomes " + ", ".join(f"{label} without {names}" for label, names in without.items())
    else:
        said = f"{whole.label} holds whichever {kinds} is left out"
    return Stability(rows, not changes, f"{said}; {untried}" if untried else said)


def _rows(gate: Gate, scores: GateScores, whole: Finding) -> Iterator[Row]:
    if scores.paired:
        if len(scores.seeds[0]) > 1:
            for seed in scores.seeds[0]:
                yield _row(gate, scores.without(seed), whole, f"seed {seed}", "seed")
    else:
        for place, arm in enumerate(scores.arms):
            for seed in scores.seeds[place] if len(scores.seeds[place]) > 1 else ():
                yield _row(gate, scores.without(seed, place), whole, f"{arm} seed {seed}", "seed")
    if len(scores.groups) > 1:
        for name, parts in scores.groups.items():
            rest = scores.only_datasets([dataset for dataset in scores.by_dataset if dataset not in parts])
            yield _row(gate, rest, whole, name, "dataset")


def _row(gate: Gate, rest: GateScores, whole: Finding, left_out: str, kind: Kind) -> Row:
    value = quantity_of(gate, tuple(rest.by_dataset)).value(rest.means)
    region = region_of(gate, value)
    if whole.why:
        return Row(left_out, kind, value, region, "INCONCLUSIVE")
    moved = value - whole.value
    confidence = gate.confidences(lambda cutoff: whole.estimate.confidence_below(cutoff - moved))
    return Row(left_out, kind, value, region, label_of(confidence, gate.confidence))


def _not_tried(scores: GateScores) -> Iterator[str]:
    if max(map(len, scores.seeds)) == 1:
        trained = any(seed is not None for seeds in scores.seeds for seed in seeds)
        yield f"no seed can be left out, there {'is one' if trained else 'are none'}"
    if len(scores.groups) == 1:
        yield "no dataset can be left out, there is one"
