"""Small collections, one as every source has it, others invented; and what a command writes about them."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from unimoe.config import Experiment
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


_TIMES = re.compile(r'"(created|wall_time_s|items_per_s|checksum)": ("[^"]*"|[\d.e-]+|null)')
"""What may differ between the result files of two runs of one measurement: times, and checksums of all the rest."""

_SYLLABLES = ("ba", "ke", "li", "mo", "nu", "ra", "so", "ti")
_WORDS = [first + second for first in _SYLLABLES for second in _SYLLABLES]


def invented(
    documents: int = 12, queries: int = 4, *, words: int = 20, unjudged: int = 0, name: str = "invented"
) -> Collection:
    """A collection whose documents all match every query a little; equal arguments, equal content.

    Args:
        documents: how many.
        queries: judged ones; each has one relevant document, and another of grade 2.
        words: of each document, give or take a few.
        unjudged: queries without judgments.
        name: the collection's.
    """
    rng = random.Random(0)
    ids = [f"d{number:02d}" for number in range(documents)]
    texts = [Document("", " ".join(rng.choices(_WORDS, k=words + rng.randrange(5)))) for _ in ids]
    asked = [(f"q{number}", " ".join(rng.sample(_WORDS, 3))) for number in range(queries + unjudged)]
    qrels = {query_id: dict(zip(rng.sample(ids, 2), (1, 2), strict=True)) for query_id, _ in asked[:queries]}
    return assemble(name, "test", zip(ids, texts, strict=True), asked, qrels)


def write_invented(folder: Path, collection: Collection) -> Path:
    """A collection as a folder in BEIR layout."""
    folder.mkdir(parents=True)
    write_parts(folder, collection.corpus, collection.queries, {collection.split: collection.qrels})
    return folder


def with_evaluation(experiment: Experiment, **settings: object) -> Experiment:
    """An experiment with other evaluation settings."""
    return experiment.model_copy(update={"evaluation": experiment.evaluation.model_copy(update=settings)})


def written(output_dir: Path) -> dict[str, str]:
    """Everything in an output folder to the last byte, except times in results; without locks and MTEB's own files."""
    files = (
        path for path in output_dir.rglob("*") if path.is_file() and not path.name.endswith((".lock", ".mteb.json"))
    )
    return {str(path.relative_to(output_dir)): _TIMES.sub(r'"\1": 0', path.read_text("utf-8")) for path in files}
