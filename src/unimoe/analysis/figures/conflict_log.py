"""The log of gradient conflicts: how far the two tasks' gradients agree, per measured step and layer."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from unimoe.analysis.loading import Seed
from unimoe.errors import DataError
from unimoe.io import find_files


class Conflict(BaseModel):
    """One line of ``gradient_conflicts.jsonl``; what cannot be computed, such as a cosine with a zero vector, is null.

    Attributes:
        layer: its number, or its name.
        cosine: between the gradients of ranking and embedding.
        cosine_self_rank: between those of two independent ranking batches of that size; noise alone brings it below 1.
            Estimated from two disjoint halves of the batch: their cosine ``c`` makes ``2 c / (1 + c)``, where it is
            above 0.
        cosine_self_embed: the same of the embedding batch.
        cosine_corrected: ``cosine / sqrt(cosine_self_rank * cosine_self_embed)``; null where either is not above 0.
        magnitude_similarity: ``2 |a| |b| / (|a|^2 + |b|^2)``.
    """

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)

    step: int
    layer: int | str
    cosine: float | None
    cosine_self_rank: float | None
    cosine_self_embed: float | None
    cosine_corrected: float | None
    norm_rank: float | None
    norm_embed: float | None
    magnitude_similarity: float | None


def read_conflict_logs(output_dir: Path) -> dict[tuple[str, Seed], tuple[Conflict, ...]]:
    """The conflicts of every arm and seed of an output folder, ``*/seed_*/logs/gradient_conflicts.jsonl``.

    Raises:
        DataError: a line that is no such record, by file and line.
    """
    logs: dict[tuple[str, Seed], tuple[Conflict, ...]] = {}
    for path in find_files(output_dir, "*/seed_*/logs/gradient_conflicts.jsonl"):
        seed = path.parts[-3].removeprefix("seed_")
        if seed.isdecimal() and (log := _read(path)):
            logs[path.parts[-4], int(seed)] = log
    return logs


def _read(path: Path) -> tuple[Conflict, ...]:
    """One record per step and layer; a resumed run's repetition replaces the first one.

    A last line without an end is what a killed run leaves, and is dropped.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    records: dict[tuple[int, int | str], Conflict] = {}
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            record = Conflict.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first["loc"] else first["msg"]
            raise DataError(f"{path}:{number}: not a record of gradient conflicts ({what}); remove the line") from None
        records[record.step, record.layer] = record
    return tuple(records.values())
