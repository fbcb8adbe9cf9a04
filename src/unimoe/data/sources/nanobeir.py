"""NanoBEIR: thirteen BEIR sets cut to about 50 queries and 10,000 documents, for quick looks.

A set is published as a dataset ``zeta-alpha-ai/NanoSciFact`` on the Hugging Face hub with three tables:
``corpus/train-*.parquet`` and ``queries/train-*.parquet`` with the columns ``_id`` and ``text``, and
``qrels/train-*.parquet`` with ``query-id`` and ``corpus-id``, where every row is a relevant document.
"""

from __future__ import annotations

from pathlib import Path

from unimoe.core.errors import DataError, UsageError, did_you_mean
from unimoe.core.trec import Qrels
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.published import NANO_SETS, NANO_SPELLED
from unimoe.data.source import SOURCES, not_at_hand, user_folder
from unimoe.data.sources.from_mteb import MtebFamily

NANOBEIR = tuple(f"nanobeir:{name}" for name in NANO_SETS)
"""The sets, as the catalogue names them."""

_COLUMNS = {"corpus": ["_id", "text"], "queries": ["_id", "text"], "qrels": ["query-id", "corpus-id"]}
_PUBLISHED = {name.lower(): f"Nano{name}" for name in NANO_SETS}
_FILES = "train-*.parquet"


class NanoBeir(MtebFamily):
    """The NanoBEIR sets, for which nDCG@10 and grade 1 hold throughout; ``de/SciFact`` is one in another language."""

    def __init__(self) -> None:
        super().__init__("nanobeir")

    def load(self, name: str, split: str) -> Collection:
        """Load a set from ``nanobeir/NanoSciFact`` under $UNIMOE_DATA, else from the Hugging Face hub.

        The hub calls the one split ``train``; here it is ``test``, since nothing is to be trained on it.
        """
        if "/" in name:
            return super().load(name, split)
        published = _PUBLISHED[name.lower()]
        if split != "test":
            raise UsageError(f"nanobeir:{name} has no split {split!r}; it has test")
        folder = _user_copy(name) or _fetch(published)
        qrels: Qrels = {}
        for query_id, document_id in _rows(folder, "qrels"):
            qrels.setdefault(query_id, {})[document_id] = 1
        documents = ((key, Document("", text)) for key, text in _rows(folder, "corpus"))
        return assemble(published, split, documents, _rows(folder, "queries"), qrels)

    def refuse_unknown(self, name: str) -> None:
        """Refuse a name that is no set's."""
        if "/" in name:
            super().refuse_unknown(name)
        elif name.lower() not in _PUBLISHED:
            close = did_you_mean(name.lower(), _PUBLISHED)
            raise UsageError(f"unknown collection 'nanobeir:{name}'{close}; there are {', '.join(NANO_SETS)}")

    def available(self, name: str) -> Path | None:
        """Return the folder under $UNIMOE_DATA that holds a set, or None; the hub's cache is not searched."""
        if "/" in name:
            return super().available(name)
        folder = _user_copy(name)
        return folder if folder and all(any((folder / part).glob(_FILES)) for part in _COLUMNS) else None

    def mteb_task(self, name: str) -> str | None:
        """Return MTEB's task of a set; its rules may differ from those of the whole set's."""
        if "/" in name:
            return super().mteb_task(name)
        tasks = {known.lower(): f"Nano{NANO_SPELLED.get(known, known)}Retrieval" for known in NANO_SETS}
        return tasks.get(name.lower())


def _user_copy(name: str) -> Path | None:
    root, published = user_folder(), _PUBLISHED.get(name.lower())
    folder = root / "nanobeir" / published if root is not None and published is not None else None
    return folder if folder is not None and folder.is_dir() else None


def _fetch(published: str) -> Path:
    try:
        from huggingface_hub import snapshot_download

        patterns = [f"{part}/{_FILES}" for part in _COLUMNS]
        return Path(snapshot_download(f"zeta-alpha-ai/{published}", repo_type="dataset", allow_patterns=patterns))
    except Exception as error:
        advice = (
            f"connect to the network, or set UNIMOE_DATA to a folder that holds nanobeir/{published}/ "
            f"with the published tables {', '.join(_COLUMNS)}"
        )
        raise not_at_hand(f"nanobeir:{published.removeprefix('Nano')}", advice, error) from None


def _rows(folder: Path, part: str) -> list[tuple[str, str]]:
    """Return the two columns of one table, row by row."""
    import pandas as pd

    try:
        tables = [pd.read_parquet(file, columns=_COLUMNS[part]) for file in sorted((folder / part).glob(_FILES))]
        rows = list(pd.concat(tables)[_COLUMNS[part]].itertuples(index=False, name=None))
        if not all(isinstance(value, str) for row in rows for value in row):
            raise ValueError("a value is not text")
        return rows
    except (OSError, ValueError) as error:
        columns, reason = " and ".join(_COLUMNS[part]), str(error).partition("\n")[0]
        raise DataError(
            f"{folder}: {part}/{_FILES} has no table of {columns} ({reason}); fetch the set again"
        ) from None


SOURCES.add("nanobeir", NanoBeir())
