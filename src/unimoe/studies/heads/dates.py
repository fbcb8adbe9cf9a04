"""When documents were published, for the objective ``freshness``: what their BEIR ``metadata`` says."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path

from unimoe.data.catalog import available
from unimoe.data.sources.beir_sets import folder_of
from unimoe.errors import DataError
from unimoe.studies.common.splits import task_collection
from unimoe.trec import text_lines

_ISO = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2})(?:[T ].*)?)?)?")


def document_dates(task: str) -> dict[str, date]:
    """Document id to date, for the documents that have one.

    A date is ``{"metadata": {"date": "2020-05-31"}}`` in a line of ``corpus.jsonl``. A time behind it is left out; of
    a year or a month alone it is the first day.

    Args:
        task: a collection, as in ``TrainConfig.task``.

    Raises:
        DataError: no document has a date, or one is no date; names file and line.
    """
    name = task_collection(task)
    corpus = _corpus(name)
    dates = {} if corpus is None else _read(corpus)
    if not dates:
        raise DataError(
            f"{name}: objectives.freshness needs dates, and no document has one; leave it out, or write "
            '"metadata": {"date": "2020-05-31"} in the lines of corpus.jsonl'
        )
    return dates


def _corpus(name: str) -> Path | None:
    place = available(name)
    if place is None or place.is_file():
        if ":" in name:
            return None
        place = folder_of(name)
    return next((file for file in (place / "corpus.jsonl", place / "corpus.jsonl.gz") if file.is_file()), None)


def _read(corpus: Path) -> dict[str, date]:
    dates: dict[str, date] = {}
    for number, line in text_lines(corpus):
        record = json.loads(line)
        metadata = record.get("metadata")
        text = metadata.get("date") if isinstance(metadata, dict) else None
        if text not in (None, ""):
            dates.setdefault(str(record["_id"]), _date(str(text), corpus, number))
    return dates


def _date(text: str, corpus: Path, number: int) -> date:
    found = _ISO.fullmatch(text.strip())
    try:
        if found is None:
            raise ValueError
        year, month, day = (int(part or 1) for part in found.groups())
        return date(year, month, day)
    except ValueError:
        raise DataError(
            f"{corpus}:{number}: date {text!r} is no date such as 2020-05-31, 2020-05 or 2020; mend or remove it"
        ) from None
