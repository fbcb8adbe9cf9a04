"""JSON files of one schema version, such as results: pydantic models that are read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from unimoe.core.checksums import changed, unsealed
from unimoe.core.errors import DataError
from unimoe.core.io import read_bytes

SCHEMA_VERSION = 1

M = TypeVar("M", bound=BaseModel)


class Strict(BaseModel):
    """What such files are made of: no unknown key, no value of another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def read_strict(model: type[M], path: Path) -> M:
    """Read a file in one pass; only a refusal costs more, to find its reason.

    Raises:
        DataError: the file is missing, cut short, of another schema version, or breaks the schema.
    """
    content = unsealed(read_bytes(path), path)
    try:
        read = model.model_validate_json(content)
    except ValidationError as error:
        raise _refusal(path, content, error) from None
    if "schema_version" not in read.model_fields_set:
        raise _other_version(path, None)
    return read


def _refusal(path: Path, content: bytes, error: ValidationError) -> DataError:
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        why = first["ctx"]["error"]
        return DataError(f"{path}: not valid JSON ({why}); the file may be cut short, delete it and run again")
    raw = from_json(content)
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        return _other_version(path, version)
    if first["loc"] == ("checksum",):
        return changed(path)
    where = ".".join(str(part) for part in first["loc"]) or "file"
    message = first["msg"].removeprefix("Value error, ")
    return DataError(f"{path}: {where}: {message}; delete the file and evaluate again")


def _other_version(path: Path, version: object) -> DataError:
    return DataError(
        f"{path}: result schema version {version!r}, this unimoe reads version {SCHEMA_VERSION}; "
        "delete the file and evaluate again"
    )
