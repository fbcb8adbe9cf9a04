"""One small collection, with invented text, in the form in which every source publishes its own."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet  # type: ignore[import-untyped]

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


def write_zip(path: Path, folders: dict[str, Collection]) -> Path:
    """A zip as BEIR publishes it: entries for folders too, and ``metadata`` in the records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for folder, collection in folders.items():
            packed.mkdir(f"{folder}/qrels/")
            documents = [
                {"_id": key, "title": title, "text": text, "metadata": {}}
                for key, (title, text) in collection.corpus.items()
            ]
            queries = [{"_id": key, "text": text, "metadata": {}} for key, text in collection.queries.items()]
            judgments = "".join(f"{query}\t{key}\t{grade}\n" for query, key, grade in _judgments(collection))
            packed.writestr(f"{folder}/corpus.jsonl", "".join(json.dumps(record) + "\n" for record in documents))
            packed.writestr(f"{folder}/queries.jsonl", "".join(json.dumps(record) + "\n" for record in queries))
            packed.writestr(f"{folder}/qrels/{collection.split}.tsv", f"query-id\tcorpus-id\tscore\n{judgments}")
    return path


class FakeBeir:
    """In place of ``beir.util``: what it downloads are zips of a folder on this machine."""

    def __init__(self, archives: Path) -> None:
        self.archives = archives
        self.asked: list[str] = []

    def download_and_unzip(self, url: str, out_dir: str) -> str:
        """As the real one: the zip is left beside the folder it holds, whose path is returned."""
        name = url.rpartition("/")[2]
        self.asked.append(name)
        archive = Path(out_dir, name)
        archive.write_bytes((self.archives / name).read_bytes())
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(out_dir)
        return str(archive.with_suffix(""))


def write_msmarco(folder: Path, collection: Collection, *, compress: bool = False) -> Path:
    """The published files of MS MARCO's passage ranking; every passage is a candidate of every query, worst first."""
    candidates = [(query, key) for query in collection.queries for key in reversed(collection.corpus)]
    lines: dict[str, list[tuple[str, ...]]] = {
        "collection.tsv": [(key, text) for key, (_, text) in collection.corpus.items()],
        "queries.dev.small.tsv": list(collection.queries.items()),
        "qrels.dev.small.tsv": [(query, "0", key, str(grade)) for query, key, grade in _judgments(collection)],
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


def write_nanobeir(folder: Path, collection: Collection) -> Path:
    """The three tables of a NanoBEIR set, the corpus in two parts."""
    documents = [(key, text) for key, (_, text) in collection.corpus.items()]
    pairs = [(query, key) for query, key, _ in _judgments(collection)]
    _write_table(folder / "corpus" / "train-00000-of-00002.parquet", ("_id", "text"), documents[:1])
    _write_table(folder / "corpus" / "train-00001-of-00002.parquet", ("_id", "text"), documents[1:])
    _write_table(folder / "queries" / "train-00000-of-00001.parquet", ("_id", "text"), list(collection.queries.items()))
    _write_table(folder / "qrels" / "train-00000-of-00001.parquet", ("query-id", "corpus-id"), pairs)
    return folder


def ir_dataset(collection: Collection) -> SimpleNamespace:
    """A dataset as ``ir_datasets.load`` gives it."""
    return SimpleNamespace(
        docs_iter=lambda: (IrDocument(key, *document) for key, document in collection.corpus.items()),
        queries_iter=lambda: (IrQuery(key, text) for key, text in collection.queries.items()),
        qrels_iter=lambda: (IrQrel(query, key, grade) for query, key, grade in _judgments(collection)),
    )


class IrDocument(NamedTuple):
    """A document of ir_datasets; fields differ by dataset."""

    doc_id: str
    title: str
    text: str


class IrQuery(NamedTuple):
    """A query whose text has another field's name."""

    query_id: str
    title: str

    def default_text(self) -> str:
        """What ir_datasets itself takes for the text."""
        return self.title


class IrQrel(NamedTuple):
    """A judgment of ir_datasets."""

    query_id: str
    doc_id: str
    relevance: int


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


def _judgments(collection: Collection) -> Iterator[tuple[str, str, int]]:
    for query, grades in collection.qrels.items():
        for key, grade in grades.items():
            yield query, key, grade


def _write_table(path: Path, columns: tuple[str, str], rows: list[tuple[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = ([row[index] for row in rows] for index in range(2))
    pyarrow.parquet.write_table(pa.table(dict(zip(columns, values, strict=True))), path)
