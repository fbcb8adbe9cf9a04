"""Where collections come from: ``load_collection`` takes a name and finds the data.

apidocs             the bundled collection, built from installed packages
scifact             a folder of that name under $UNIMOE_DATA, else a download of the BEIR set
path:DIR            a folder in BEIR layout
ir_datasets:ID      anything ir_datasets knows; the id names the split too
mteb:TASK           an MTEB retrieval task, ``mteb:TASK:SUBSET`` where it has several subsets
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unimoe.data.apidocs import apidocs_folder, load_apidocs
from unimoe.data.beir_layout import is_beir_folder, read_beir
from unimoe.data.collection import Collection, Document, assemble
from unimoe.errors import DataError, UnimoeError, UsageError, did_you_mean
from unimoe.io import cache_dir, lock
from unimoe.trec import Qrels

BEIR_NAMES = (
    "arguana",
    "climate-fever",
    "dbpedia-entity",
    "fever",
    "fiqa",
    "hotpotqa",
    "msmarco",
    "nfcorpus",
    "nq",
    "quora",
    "scidocs",
    "scifact",
    "trec-covid",
    "webis-touche2020",
)
"""Short names that can be downloaded: BEIR's public sets that are one folder each."""

ALIASES = {"fiqa2018": "fiqa", "touche2020": "webis-touche2020", "dbpedia": "dbpedia-entity", "treccovid": "trec-covid"}
"""Other spellings of short names, in lower case."""

BEIR_URL = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/{name}.zip"


DOWNLOAD = "install the extra (uv sync --extra collections) and connect to the network"


class UnavailableError(DataError):
    """A collection that exists but cannot be had here."""


def load_collection(name: str, split: str) -> Collection:
    """Load one split of a collection.

    Args:
        name: ``apidocs``, a short name, ``path:DIR``, ``ir_datasets:ID`` or ``mteb:TASK``; see the module's top.
        split: for example ``test``; with ``ir_datasets:`` only a label.

    Raises:
        UsageError: no such name or split; names the closest.
        UnavailableError: neither at hand nor to be downloaded; says what to do.
        DataError: the data is malformed.
    """
    source, separator, rest = name.partition(":")
    if not separator:
        return load_apidocs(split) if name == "apidocs" else _load_short(name, split)
    if source not in _LOADERS or not rest:
        raise UsageError(
            f"collection {name!r}: write a short name, path:DIR, ir_datasets:ID or mteb:TASK"
            f"{did_you_mean(source, _LOADERS)}"
        )
    return _LOADERS[source](rest, split)


def available(name: str) -> Path | None:
    """The folder a collection can be read from without a network, or None.

    ``apidocs`` is always at hand; its folder is filled on first use. What ir_datasets and mteb keep is theirs to know.
    """
    if name == "apidocs":
        return apidocs_folder()
    if name.startswith("path:"):
        folder: Path | None = Path(name.removeprefix("path:"))
    else:
        folder = None if ":" in name else _local_folder(name)
    return folder if folder is not None and is_beir_folder(folder) else None


def _load_short(name: str, split: str) -> Collection:
    canonical = _canonical(name)
    folder = _local_folder(name)
    if folder is None:
        if canonical not in BEIR_NAMES:
            known = ("apidocs", *BEIR_NAMES)
            raise UsageError(
                f"unknown collection {name!r}{did_you_mean(canonical, known)}; known are {', '.join(known)}, "
                "folders under UNIMOE_DATA, path:DIR, ir_datasets:ID and mteb:TASK"
            )
        folder = _download(canonical)
    return read_beir(folder, split, name=canonical if canonical in BEIR_NAMES else name)


def _canonical(name: str) -> str:
    return ALIASES.get(name.lower(), name.lower())


def _local_folder(name: str) -> Path | None:
    """The folder of a short name under $UNIMOE_DATA, as spelled or in canonical spelling, or an earlier download."""
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)*", name):
        raise UsageError(f"collection {name!r} is no short name; write path:{name} if it is a folder")
    root = os.environ.get("UNIMOE_DATA")
    candidates = [Path(root, spelling) for spelling in (name, name.lower(), _canonical(name))] if root else []
    candidates.append(_download_folder(_canonical(name)))
    return next((folder for folder in candidates if folder.is_dir()), None)


def _download_folder(name: str) -> Path:
    return cache_dir("collections", "beir") / name


def _download(name: str) -> Path:
    folder = _download_folder(name)
    with lock(folder), tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        if folder.is_dir():
            return folder
        try:
            from beir.util import download_and_unzip

            fetched = Path(download_and_unzip(BEIR_URL.format(name=name), temporary))
        except Exception as error:
            advice = f"set UNIMOE_DATA to a folder that holds {name}/ in BEIR layout, or {DOWNLOAD}"
            raise _unavailable(name, advice, error) from None
        if not is_beir_folder(fetched):
            raise UnavailableError(f"collection {name!r}: {BEIR_URL.format(name=name)} is not a folder in BEIR layout")
        fetched.replace(folder)
    return folder


def _unavailable(name: str, advice: str, cause: Exception) -> UnavailableError:
    reason = " ".join(f"{type(cause).__name__}: {cause}".split())[:200]
    return UnavailableError(f"collection {name!r} is not at hand; {advice} ({reason})")


def _load_path(folder: str, split: str) -> Collection:
    return read_beir(Path(folder), split)


def _load_ir_datasets(identifier: str, split: str) -> Collection:
    try:
        import ir_datasets

        dataset = ir_datasets.load(identifier)
    except KeyError:
        raise UsageError(f"ir_datasets has no dataset {identifier!r}; see ir-datasets.com for its ids") from None
    except Exception as error:
        raise _unavailable(f"ir_datasets:{identifier}", DOWNLOAD, error) from None
    missing = [part for part in ("docs", "queries", "qrels") if not hasattr(dataset, f"{part}_iter")]
    if missing:
        raise UsageError(f"ir_datasets:{identifier} has no {' and no '.join(missing)}; name one of its splits")
    try:
        return _from_ir_datasets(dataset, identifier, split)
    except UnimoeError:
        raise
    except Exception as error:  # it downloads while it iterates
        raise _unavailable(f"ir_datasets:{identifier}", DOWNLOAD, error) from None


def _from_ir_datasets(dataset: Any, identifier: str, split: str) -> Collection:
    qrels: Qrels = {}
    for judgment in dataset.qrels_iter():
        qrels.setdefault(judgment.query_id, {})[judgment.doc_id] = int(judgment.relevance)
    queries = ((query.query_id, _field_text(query)) for query in dataset.queries_iter())
    documents = ((document.doc_id, _ir_document(document)) for document in dataset.docs_iter())
    return assemble(identifier, split, documents, queries, qrels)


def _ir_document(document: Any) -> Document:
    if hasattr(document, "text"):
        return Document(getattr(document, "title", None) or "", document.text or "")
    return Document("", _field_text(document))


def _field_text(record: Any) -> str:
    """The text of an ir_datasets record, whose fields differ by dataset."""
    return str(record.text if hasattr(record, "text") else record.default_text())


def _load_mteb(identifier: str, split: str) -> Collection:
    import mteb

    task_name, _, subset = identifier.partition(":")
    try:
        task = mteb.get_task(task_name)
    except KeyError as error:
        close = re.search(r"Did you mean: ('[^']+')", str(error.args[0]))
        raise UsageError(
            f"mteb has no task {task_name!r}" + (f" (did you mean {close[1]}?)" if close else "")
        ) from None
    if not hasattr(task, "convert_v1_dataset_format_to_v2"):
        raise UsageError(f"mteb:{task_name} is not a retrieval task: it has no corpus; name one that is")
    if split not in task.eval_splits:
        raise UsageError(f"mteb:{task_name} has no split {split!r}; it has {', '.join(task.eval_splits)}")
    try:
        task.filter_eval_splits([split])
        task.load_data()
    except Exception as error:
        advice = "connect to the network, or copy the Hugging Face cache of a machine that has it"
        raise _unavailable(f"mteb:{identifier}", advice, error) from None
    task.convert_v1_dataset_format_to_v2(num_proc=None)
    return _from_mteb(task, identifier, subset, split)


def _from_mteb(task: Any, identifier: str, subset: str, split: str) -> Collection:
    subsets = list(task.dataset)
    if not subset and len(subsets) > 1:
        raise UsageError(f"mteb:{identifier} has subsets {', '.join(subsets)}; write mteb:{identifier}:{subsets[0]}")
    if subset and subset not in subsets:
        raise UsageError(f"mteb:{identifier}: no such subset{did_you_mean(subset, subsets)}; use {', '.join(subsets)}")
    data = task.dataset[subset or subsets[0]][split]
    qrels = {
        query: {key: int(grade) for key, grade in grades.items()} for query, grades in data["relevant_docs"].items()
    }
    documents = ((key, Document(row.get("title") or "", text)) for key, text, row in _rows(data["corpus"], identifier))
    # Like mteb itself: a query is its text and, where the task gives one, its instruction.
    queries = (
        (key, f"{text} {row.get('instruction') or ''}".strip()) for key, text, row in _rows(data["queries"], identifier)
    )
    return assemble(identifier, split, documents, queries, qrels)


def _rows(rows: Any, identifier: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for row in rows:
        if not isinstance(row.get("text"), str):
            raise DataError(f"mteb:{identifier}: {row.get('id')!r} is not text; only text retrieval can be loaded")
        yield str(row["id"]), row["text"], row


_LOADERS = {"path": _load_path, "ir_datasets": _load_ir_datasets, "mteb": _load_mteb}
