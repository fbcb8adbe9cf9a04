"""One small collection, with invented text, in the form in which every source publishes its own."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.sources.beir_layout import write_parts

SMALL = assemble(
    "small",
    "test",
    [
        ("7", Document("", "Herons wait in shallow water.")),
        ("12", Document("", "Itâ\x80\x99s wrongly decoded; a\x85control, a\u2028separator, caf\u00e9 \U0001f426.")),
        ("9", Document("", "Tides follow the moon.")),
    ],
    [("101", "where do herons hunt"), ("205", "why is there a tide")],
    {"101": {"7": 1, "12": 1}, "205": {"9": 1}},
)
"""What every source can express: no titles, grade 1 alone, no query without a judgment."""


def content(collection: Collection) -> tuple[Any, ...]:
    """What has to be equal, whatever the source."""
    return collection.corpus, collection.queries, collection.qrels


def write_beir(collection: Collection, folder: Path, *, compress: bool = False) -> Path:
    """A folder in BEIR layout."""
    folder.mkdir(parents=True)
    qrels = {collection.split: collection.qrels}
    write_parts(folder, collection.corpus, collection.queries, qrels, compress=compress)
    return folder


def write_msmarco(folder: Path, collection: Collection, *, compress: bool = False) -> Path:
    """The published files of MS MARCO's passage ranking; every passage is a candidate of every query, worst first."""
    candidates = [(query, key) for query in collection.queries for key in reversed(collection.corpus)]
    lines: dict[str, list[tuple[str, ...]]] = {
        "collection.tsv": [(key, text) for key, (_, text) in collection.corpus.items()],
        "queries.dev.small.tsv": list(collection.queries.items()),
        "qrels.dev.small.tsv": [
            (q, "0", key, str(grade)) for q, grades in collection.qrels.items() for key, grade in grades.items()
        ],
        "top1000.dev": [(q, key, collection.queries[q], collection.corpus[key].text) for q, key in candidates],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in lines.items():
        data = "".join("\t".join(row) + "\n" for row in rows).encode()
        if compress:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
        else:
            (folder / name).write_bytes(data)
    return folder


class MtebTask:
    """What mteb gives for a retrieval task, with rows as plain dicts."""

    eval_splits: tuple[str, ...] = ("dev", "test")

    def __init__(
        self, rows: dict[str, Any], subsets: tuple[str, ...] = ("default",), error: Exception | None = None
    ) -> None:
        self.rows, self.hf_subsets, self.error = rows, list(subsets), error
        languages = {subset: [f"{subset}-Latn"] for subset in subsets}
        self.metadata = SimpleNamespace(type="Retrieval", hf_subsets=subsets, hf_subsets_to_langscripts=languages)
        self.dataset: dict[str, Any] = {}

    @classmethod
    def of(cls, collection: Collection) -> MtebTask:
        """The task that holds a collection."""
        documents = [{"id": key, "title": title, "text": text} for key, (title, text) in collection.corpus.items()]
        queries = [{"id": key, "text": text} for key, text in collection.queries.items()]
        return cls({"corpus": documents, "queries": queries, "relevant_docs": collection.qrels})

    def filter_eval_splits(self, splits: list[str]) -> MtebTask:
        """Keep these splits only."""
        self.eval_splits = tuple(splits)
        return self

    def load_data(self) -> None:
        """Fill ``dataset``, or fail as the hub does."""
        if self.error is not None:
            raise self.error
        self.dataset = {subset: dict.fromkeys(self.eval_splits, self.rows) for subset in self.hf_subsets}

    def convert_v1_dataset_format_to_v2(self, num_proc: int | None) -> None:
        """The rows are in the second format already."""
