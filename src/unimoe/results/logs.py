"""Training logs and logs of gradient conflicts, as a killed and resumed training leaves them.

Of a step's records, the later one counts: a resumed run writes again what came after its last state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from unimoe.core.errors import DataError
from unimoe.core.io import find_files, read_bytes
from unimoe.core.limits import LONGEST_NAME, MOST, name_problem
from unimoe.results import Score

Log: TypeAlias = tuple[dict[str, Any], ...]
"""A training log: one record per line, with at least ``step`` and ``loss``."""

Record = TypeVar("Record", bound=BaseModel)
StepNumber: TypeAlias = Annotated[int, Field(ge=0, le=MOST)]


class _Training(BaseModel):
    """One line of ``train.jsonl``; it may have further keys."""

    model_config = ConfigDict(extra="allow")

    step: StepNumber
    loss: Score
    task: str | None = None
    ranking_loss: Score | None = None
    embedding_loss: Score | None = None


class Conflict(BaseModel):
    """One line of ``gradient_conflicts.jsonl``; a value that cannot be computed (a cosine with a zero vector) is None.

    Two independent batches of one task do not agree either: noise alone brings their cosine below 1. It is estimated
    from two disjoint halves of the batch: their cosine ``c`` makes ``2 c / (1 + c)``, where it is above 0.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    step: StepNumber
    layer: int | Annotated[str, Field(max_length=LONGEST_NAME)]  # its number, or its name
    cosine: Score | None  # between the gradients of ranking and embedding
    cosine_self_rank: Score | None  # between those of two independent ranking batches of that size
    cosine_self_embed: Score | None
    cosine_corrected: Score | None  # ``cosine / sqrt(cosine_self_rank * cosine_self_embed)``, where both are above 0
    norm_rank: Score | None
    norm_embed: Score | None
    magnitude_similarity: Score | None  # ``2 |a| |b| / (|a|^2 + |b|^2)``


ConflictLog: TypeAlias = Sequence[Conflict]
"""The conflicts of one training, a record for each step and layer."""


def read_logs(output_dir: Path) -> dict[tuple[str, int | None], Log]:
    """Read the training logs below an output folder by arm and seed; a DataError names a line that is no record."""
    logs = {}
    for key, read in _logs(output_dir, "train.jsonl", _Training, "a training record with step and loss"):
        records = {(record.step, str(record.task)): record.model_dump(exclude_unset=True) for record in read}
        logs[key] = tuple(records[step] for step in sorted(records))
    return logs


def read_conflict_logs(output_dir: Path) -> dict[tuple[str, int | None], ConflictLog]:
    """Read the logs of gradient conflicts that have a record, as ``read_logs`` does."""
    found = _logs(output_dir, "gradient_conflicts.jsonl", Conflict, "a record of gradient conflicts")
    logs = {key: tuple({(r.step, r.layer): r for r in read}.values()) for key, read in found}
    return {key: log for key, log in logs.items() if log}


def _logs(
    output_dir: Path, name: str, kind: type[Record], what: str
) -> Iterator[tuple[tuple[str, int | None], Iterator[Record]]]:
    """Yield the records of ``{arm}/seed_{N}/logs/{name}`` by arm and seed."""
    for path in find_files(output_dir, f"*/seed_*/logs/{name}") if output_dir.exists() else ():
        arm, seed = path.parts[-4], path.parts[-3].removeprefix("seed_")
        if problem := name_problem(arm, is_folder=True):
            raise DataError(f"{path}: the name of its arm {problem}; rename the folder")
        if seed.isdecimal():
            yield (arm, int(seed)), _records(path, kind, what)


def _records(path: Path, kind: type[Record], what: str) -> Iterator[Record]:
    """Yield the records of a log, without a last line that has no end: a killed run leaves one."""
    for number, line in enumerate(read_bytes(path).split(b"\n")[:-1], start=1):
        try:
            yield kind.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first["loc"] else first["msg"]
            raise DataError(f"{path}:{number}: not {what} ({why}); remove the line") from None
