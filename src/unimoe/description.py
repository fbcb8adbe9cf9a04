"""What a collection or a qrels file states of itself: its name, and from which grade on a document is relevant.

A folder in BEIR layout may hold ``collection.json``, and a qrels file may have a file beside it that is named like it
with ``.json`` behind, as in ``dl20.qrels.json``. Both hold ``{"name": "dl20", "relevance_level": 2}``, either key or
both. What is written beside a qrels file goes before what its folder says, and that before convention: the graded sets
of ``GRADED_FROM_1`` need no file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from unimoe.io import read_model

COLLECTION_FILE = "collection.json"

GRADED_FROM_1 = frozenset(
    {"apidocs", "dbpedia", "dbpedia-entity", "nfcorpus", "touche2020", "trec-covid", "treccovid", "webis-touche2020"}
)
"""Sets of several grades whose binary measures the field counts from 1, in lower case."""

_MEND = 'write {"name": "dl20", "relevance_level": 2} with a name of your own and the lowest relevant grade'


class Description(BaseModel):
    """What was stated.

    Attributes:
        name: what results call the collection; None where nothing states one.
        relevance_level: the lowest grade that binary measures count as relevant; None where nothing states one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(pattern=r"^[\w][\w .()/+\-]*$", max_length=100)] | None = None
    relevance_level: Annotated[int, Field(ge=1)] | None = None


def describe_collection(folder: Path) -> Description:
    """Read what a folder in BEIR layout states of the collection in it.

    Raises:
        DataError: the file is no JSON, or a key is unknown or has a wrong value.
    """
    return _read(folder / COLLECTION_FILE)


def describe_qrels(path: Path) -> Description:
    """Read what is stated of a qrels file: beside it, by the collection whose ``qrels`` folder holds it, or by name.

    Args:
        path: of the qrels; the ``.gz`` of a packed file is no part of its sidecar's name.

    Returns:
        Name and level. Judgments of ``GRADED_FROM_1`` have level 1: the folder of a collection, or what an evaluation
        exports, such as ``qrels/nfcorpus-test.qrels``.

    Raises:
        DataError: as in ``describe_collection``.
    """
    own = _read(sidecar_path(path))
    folder = path.absolute().parent
    whole = describe_collection(folder.parent) if folder.name == "qrels" else Description()
    level = own.relevance_level or whole.relevance_level
    if level is None and folder.name == "qrels":
        names = {folder.parent.name.lower(), path.name.rpartition("-")[0].lower()}
        level = None if names.isdisjoint(GRADED_FROM_1) else 1
    return Description(name=own.name or whole.name, relevance_level=level)


def sidecar_path(path: Path) -> Path:
    """Return where a qrels file is described."""
    return path.with_name(f"{path.name.removesuffix('.gz')}.json")


def _read(path: Path) -> Description:
    return read_model(path, Description, _MEND) if path.is_file() else Description()
