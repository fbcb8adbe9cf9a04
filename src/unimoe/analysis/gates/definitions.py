"""Gate files: decisions written down before there are scores to look at.

A gate names its arms, task, datasets, metric, cutoffs and confidence. Its four labels mean the same for every kind:
PASS, the claim holds; FAIL, it does not; MARGINAL, between two cutoffs; INCONCLUSIVE, the results cannot decide. The
cutoffs of a gate are the only ones that any table, figure or sentence about its arms shows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from unimoe.analysis.statistics.sequential import FEWEST, MOST, confidence_at_looks
from unimoe.analysis.statistics.variance import Estimand, Held
from unimoe.config.base import MetricName, Name, Positive, Section
from unimoe.config.files import explain, find_config, read_yaml
from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.io import hash_bytes, read_bytes
from unimoe.results import Task

Label = Literal["PASS", "FAIL", "MARGINAL", "INCONCLUSIVE"]
Averaging = Literal["mean_of_tirs", "tir_of_means"]
At: TypeAlias = Callable[[float], Held]  # the confidence that the true value lies below a cutoff, and above


def instant(value: Any) -> datetime:
    """Return the instant of ISO 8601 text; a date alone is its first moment, and no time zone means UTC."""
    try:
        parsed = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError("write date and time as 2026-01-31T12:00:00Z") from None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _distinct(values: list[Any]) -> list[Any]:
    if twice := [value for value in values if values.count(value) > 1]:
        raise ValueError(f"{twice[0]!r} is listed twice")
    return values


def _ascending(values: list[int]) -> list[int]:
    if values != sorted(set(values)):
        raise ValueError(f"{values} does not ascend; give the numbers of seeds in order, such as [3, 5, 8]")
    return values


def _share(value: float) -> float:
    if value >= 1:
        raise ValueError(f"{value:g} means {value * 100:g} %; {value:g} % is written {value / 100:g}")
    return value


Text = Annotated[str, Field(min_length=1)]
Seeds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1), AfterValidator(_distinct)]
Looks = Annotated[list[Annotated[int, Field(ge=FEWEST, le=MOST)]], Field(min_length=1), AfterValidator(_ascending)]
Share = Annotated[float, Field(ge=0), AfterValidator(_share)]
PositiveShare = Annotated[Positive, AfterValidator(_share)]


class _Gate(Section):
    """What every gate has. With several datasets the value is their mean, in which CQADupStack's forums count once."""

    roles: ClassVar[tuple[str, str]] = ("system", "baseline")  # keys of the two arms
    task: Task
    datasets: Annotated[list[Text], Field(min_length=1), AfterValidator(_distinct)]
    metric: MetricName  # one that the results hold by query, in any spelling of the field: ``ndcg@10``, ``nDCG@10``
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.90  # a label needs at least this, else it is INCONCLUSIVE
    estimand: Estimand = "seeds_and_queries"  # what the label holds for, as in ``ESTIMANDS``
    seeds: Seeds | None = None  # exactly these training seeds of each arm; null for all that an arm has
    pool_runs: bool = False  # whether both arms, of one recipe, share the variance of a run, where seeds make no pairs
    looks: Looks | None = None  # numbers of seeds at which to judge; the first look with a label decides
    # Judgments by a model of all queries, where people judged a random sample; of several datasets, by their names.
    predicted_qrels: Text | dict[str, Text] | None = None

    @property
    def arms(self) -> tuple[str, str]:
        """Specialist and joint, or system and baseline."""
        first, second = (getattr(self, role) for role in self.roles)
        return first, second

    @property
    def sides(self) -> tuple[str, str]:
        """The arm that is judged, and the one that it is compared with: joint and specialist, system and baseline."""
        return self.arms if self.roles[0] == "system" else (self.arms[1], self.arms[0])

    @property
    def against(self) -> str:
        """Both sides in words: ``joint_r8 against rank_only_r8``."""
        return " against ".join(self.sides)

    @property
    def needed(self) -> tuple[str, ...]:
        """Every arm of which the gate needs results: both, and one that a specialist must beat."""
        return (*self.arms, *filter(None, [getattr(self, "specialist_must_beat", None)]))

    @property
    def tolerates(self) -> tuple[Label, float, int] | None:
        """The label that says that little is lost, how much, and the place of the arm with that score."""
        return None

    @property
    def keys(self) -> list[str]:
        """The ``task/dataset`` key of each dataset."""
        return [f"{self.task}/{dataset}" for dataset in self.datasets]

    @property
    def label_confidence(self) -> float:
        """The confidence that a label needs at each look: more than ``confidence`` where there are several."""
        return confidence_at_looks(tuple(self.looks), self.confidence) if self.looks else self.confidence

    @property
    def predicted(self) -> dict[str, Path]:
        """The file of a model's judgments of each dataset that has some."""
        given = self.predicted_qrels or {}
        by_dataset = {self.datasets[0]: given} if isinstance(given, str) else given
        return {dataset: Path(path) for dataset, path in by_dataset.items() if dataset in self.datasets}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if isinstance(self.predicted_qrels, str) and len(self.datasets) > 1:
            raise ValueError("predicted_qrels of several datasets: write a file for each, as DATASET: FILE")
        if isinstance(self.predicted_qrels, dict) and (
            unknown := [name for name in self.predicted_qrels if name not in self.datasets]
        ):
            raise ValueError(f"predicted_qrels of {unknown[0]!r}, which is none of the datasets")
        if self.arms[0] == self.arms[1]:
            raise ValueError(f"both arms are {self.arms[0]!r}; a gate compares two")
        if self.looks and self.seeds and len(self.seeds) < self.looks[-1]:
            raise ValueError(
                f"the last look is at {self.looks[-1]} seeds, but only {len(self.seeds)} are registered; "
                "give more seeds, or end the looks there"
            )
        if self.looks and self.estimand == "queries":
            raise ValueError("looks count seeds, and estimand 'queries' takes these very runs; leave one of them out")
        return self


class InterferenceGate(_Gate):
    """TIR = (specialist - joint) / specialist: PASS from ``pass_at``, FAIL below ``fail_below``, MARGINAL between.

    ``specialist_must_beat`` is an arm, usually zero_shot, that the specialist must beat with the gate's confidence for
    any label but INCONCLUSIVE: a loss against a specialist that has learnt nothing means nothing. By default it is
    zero_shot where that has results; null only adds a caveat.
    """

    roles = ("specialist", "joint")
    kind: Literal["interference"]
    specialist: Text
    joint: Text
    specialist_must_beat: Text | None = None
    pass_at: PositiveShare = 0.02  # a ratio, .02 for 2 %
    fail_below: PositiveShare = 0.01  # a ratio, at most ``pass_at``
    across: Averaging = "mean_of_tirs"  # with several datasets: this, or the TIR of the arms' mean scores

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.fail_below > self.pass_at:
            raise ValueError(f"fail_below {self.fail_below} lies above pass_at {self.pass_at}; exchange them")
        return self

    @property
    def must_learn(self) -> bool:
        """Whether a specialist that has learnt nothing makes the verdict INCONCLUSIVE; a written null says no."""
        return self.specialist_must_beat is not None or "specialist_must_beat" not in self.model_fields_set

    @property
    def other_way(self) -> Averaging:
        """The way across datasets that the gate does not take."""
        return "tir_of_means" if self.across == "mean_of_tirs" else "mean_of_tirs"

    @property
    def tolerates(self) -> tuple[Label, float, int] | None:
        """FAIL, below a share of the specialist's score."""
        return "FAIL", self.fail_below, 0

    @property
    def cutoffs(self) -> tuple[float, ...]:
        """Ascending; one where there is no room for MARGINAL."""
        return tuple(sorted({self.fail_below, self.pass_at}))

    def confidences(self, at: At) -> dict[Label, float]:
        """Return the confidence in each label."""
        first, last = at(self.fail_below), at(self.pass_at)
        # With few queries the degrees of freedom vary, and the confidence may fall a little from cutoff to cutoff.
        between = max(0.0, first.above + last.below - 1.0)
        return {"PASS": min(last.above, 1.0 - first.below), "FAIL": first.below, "MARGINAL": between}


class DifferenceGate(_Gate):
    """System minus baseline, in the metric's unit (0 to 1), which ``margin`` has too.

    Superiority: the system beats the baseline by at least the margin. Non-inferiority: it is not worse by more than
    that. Equivalence: they differ by at most that either way, by two one-sided tests (Schuirmann 1987).
    """

    kind: Literal["superiority", "non_inferiority", "equivalence"]
    system: Text
    baseline: Text
    margin: Share

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.kind == "equivalence" and not self.margin:
            raise ValueError("margin must be above 0: nobody shows that two arms are exactly equal")
        return self

    @property
    def tolerates(self) -> tuple[Label, float, int] | None:
        """PASS of non-inferiority and equivalence, up to the margin; None of superiority."""
        return None if self.kind == "superiority" or not self.margin else ("PASS", self.margin, 1)

    @property
    def cutoffs(self) -> tuple[float, ...]:
        """Ascending; of equivalence both margins, the upper of which still is equivalent, as the lower one is."""
        if self.kind == "equivalence":
            return -self.margin, math.nextafter(self.margin, math.inf)
        return (self.margin if self.kind == "superiority" else 0.0 - self.margin,)  # never -0

    def confidences(self, at: At) -> dict[Label, float]:
        """Return the confidence in PASS and FAIL; of equivalence, in the weaker of its two one-sided tests.

        Two violations make FAIL there, either way, so its confidence is two-sided: each has half of the chance to err.
        """
        if self.kind != "equivalence":
            held = at(self.cutoffs[0])
            return {"PASS": held.above, "FAIL": held.below}
        low, high = map(at, self.cutoffs)
        return {"PASS": min(low.above, high.below), "FAIL": max(0.0, 2.0 * max(low.below, high.above) - 1.0)}


Gate: TypeAlias = InterferenceGate | DifferenceGate

_CHECKSUM = re.compile(rb'# "checksum": "(.*)"\r?\n')
_KINDS = {kind: gate for gate in get_args(Gate) for kind in get_args(gate.model_fields["kind"].annotation)}


class GateFile(Section):
    """Gates by name, and when they were fixed: results made before could have been known when cutoffs were chosen."""

    registered: Annotated[datetime, BeforeValidator(instant)]
    gates: Annotated[dict[Name, Annotated[Gate, Field(discriminator="kind")]], Field(min_length=1)]


@dataclass(frozen=True)
class Registration:
    """Gates, and the file they were read from with the hash that says which one it was."""

    gates: Mapping[str, Gate]
    path: Path | None = None  # None, as the others, for gates that no file registers
    content_hash: str | None = None
    registered: datetime | None = None


def load_gates(path: Path) -> Registration:
    """Read a gate file strictly, by its path or the name of a shipped config such as ``gates/kill_gate``.

    Raises:
        DataError: the file is missing or malformed, a key unknown, a value impossible, or cutoffs contradictory; or it
            is no longer what was registered in an output folder.
    """
    try:
        file = find_config(path)
        parsed = GateFile.model_validate(read_yaml(file))
    except UsageError as error:  # exit code 2 is left to wrong options: a CI job must not mistake it
        raise DataError(str(error)) from None
    except ValidationError as error:
        raise DataError(f"{file}: {'; '.join(map(_explain, error.errors()))}") from None
    return Registration(parsed.gates, file, _hash(unsealed(file)), parsed.registered)


def given_gates(gates: Mapping[str, Any]) -> Registration:
    """Return gates given by name, as gates or as plain data; no file registers them, and mistakes are UsageErrors."""
    try:
        return Registration(GateFile.model_validate({"registered": "0001-01-01", "gates": gates}).gates)
    except ValidationError as error:
        raise UsageError("; ".join(map(_explain, error.errors()))) from None


def sealed(content: bytes) -> bytes:
    """Return a gate file's content below a comment with its checksum: a registered gate must stay as it was."""
    return f'# "checksum": "{_hash(content)}"\n'.encode() + content


def unsealed(path: Path) -> bytes:
    """Return a gate file's content without its checksum, which a person's file lacks; ``DataError`` if it changed."""
    content = read_bytes(path)
    seal = _CHECKSUM.match(content)
    body = content[seal.end() :] if seal else content
    if seal and _hash(body).encode() != seal[1]:
        raise DataError(
            f"{path}: was changed after it was registered; restore it, or remove its `checksum` if the change is meant"
        )
    return body


def _hash(content: bytes) -> str:
    return hash_bytes(content.replace(b"\r\n", b"\n"))  # line ends do not count, which git may change


def _explain(error: Any) -> str:
    """Say one of pydantic's mistakes; a gate's path is ``gates.kill``, without the kind that is put behind it."""
    gate, kind, key = error["loc"][:2], error["loc"][2:3], error["loc"][3:]
    said: dict[str, Any] = {**error, "loc": (*gate, *key)}
    if said["type"] == "union_tag_not_found":
        return explain(said | {"loc": (*gate, "kind"), "type": "missing"}, GateFile)
    if said["type"] == "union_tag_invalid":
        tag, expected = str(said["ctx"]["tag"]), {"expected": "one of " + ", ".join(_KINDS)}
        said |= {"loc": (*gate, "kind"), "type": "literal_error", "ctx": expected, "input": tag}
        return explain(said, GateFile) + did_you_mean(tag, _KINDS)
    return explain(said, _KINDS.get(str(kind[0]), GateFile) if kind else GateFile)
