"""Descriptions of collections and qrels files: a name, and the lowest grade that counts as relevant.

A folder in BEIR layout may hold ``collection.json``, and a qrels file such as ``dl20.qrels`` may have a file
``dl20.qrels.json`` beside it. Both hold ``{"name": "dl20", "relevance_level": 2}``, or one of the two keys. The qrels
file's description overrides its folder's, which overrides the convention of the field: ``GRADED_FROM_1``. A folder's
may have ``"language": "de"`` and ``"excludes_self": true`` too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from unimoe.core.errors import UsageError
from unimoe.core.io import read_json
from unimoe.core.limits import HIGHEST_GRADE
from unimoe.data.languages import checked_language
from unimoe.data.published import GRADED_FROM_1

COLLECTION_FILE = "collection.json"

_Kind = TypeVar("_Kind", bound="Description")

_REMEDY = 'write {"name": "dl20", "relevance_level": 2} with a name of your own and the lowest relevant grade'
_FOLDER_REMEDY = f'{_REMEDY}; a folder may state "language": "de" and "excludes_self": true too'


class Description(BaseModel):
    """A description; None for what it leaves open.

    Attributes:
        name: the collection's name in results.
        relevance_level: the lowest grade that binary measures count as relevant.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(pattern=r"^[\w][\w .()/+\-]*$", max_length=100)] | None = None
    relevance_level: Annotated[int, Field(ge=1, le=HIGHEST_GRADE)] | None = None


class FolderDescription(Description):
    """The description of a folder.

    Attributes:
        language: the code of the documents' language; by default their script tells it.
        excludes_self: whether the document whose id is a query's is no candidate of that query; by default MTEB's rule.
    """

    language: Annotated[str, AfterValidator(checked_language)] | None = None
    excludes_self: bool | None = None


def described(**stated: object) -> FolderDescription:
    """Return the description of a collection from Python's arguments or a command's options; None states nothing."""
    try:
        return FolderDescription.model_validate({key: value for key, value in stated.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(f"{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}; correct it") from None


def describe_collection(folder: Path) -> FolderDescription:
    """Read the description in a collection's folder."""
    return _read(folder / COLLECTION_FILE, FolderDescription, _FOLDER_REMEDY)


def describe_qrels(path: Path) -> Description:
    """Read the description of a qrels file: its own, else that of the collection whose ``qrels`` folder holds it.

    In a ``qrels`` folder the level of a set of ``GRADED_FROM_1`` is 1: the folder of a collection, or of an
    evaluation's export such as ``qrels/nfcorpus-test.qrels``.
    """
    own = _read(sidecar_path(path), Description)
    folder = path.absolute().parent
    whole = describe_collection(folder.parent) if folder.name == "qrels" else Description()
    level = own.relevance_level or whole.relevance_level
    if level is None and folder.name == "qrels":
        names = {folder.parent.name.lower(), path.name.rpartition("-")[0].lower()}
        level = None if names.isdisjoint(GRADED_FROM_1) else 1
    return Description(name=own.name or whole.name, relevance_level=level)


def sidecar_path(path: Path) -> Path:
    """Return the path of a qrels file's description; ``.gz`` is no part of its name."""
    return path.parent / f"{path.name.removesuffix('.gz')}.json"


def _read(path: Path, kind: type[_Kind], remedy: str = _REMEDY) -> _Kind:
    return read_json(path, kind, remedy) if path.is_file() else kind()
