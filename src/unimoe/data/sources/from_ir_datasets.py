"""Collections of ir_datasets, which downloads them and knows them by id."""

from __future__ import annotations

import re
from typing import Any

from unimoe.core.errors import UnimoeError, UsageError
from unimoe.core.trec import Qrels
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.published import MTEB_TASKS, TREC_DL
from unimoe.data.source import DOWNLOAD_ADVICE, SOURCES, Source, not_at_hand


class IrDatasets(Source):
    """Anything that ir_datasets knows; the id names the split too."""

    usage = "ir_datasets:ID"
    has_published_names = True

    def load(self, name: str, split: str) -> Collection:
        """Load a dataset such as ``msmarco-passage/dev/small``; the split is only a label."""
        try:
            import ir_datasets

            dataset = ir_datasets.load(name)
        except KeyError:
            raise UsageError(f"ir_datasets has no dataset {name!r}; see ir-datasets.com for its ids") from None
        except Exception as error:
            raise not_at_hand(f"ir_datasets:{name}", DOWNLOAD_ADVICE, error) from None
        missing = [part for part in ("docs", "queries", "qrels") if not hasattr(dataset, f"{part}_iter")]
        if missing:
            raise UsageError(f"ir_datasets:{name} has no {' and no '.join(missing)}; name one of its splits")
        try:
            qrels: Qrels = {}
            for judgment in dataset.qrels_iter():
                qrels.setdefault(judgment.query_id, {})[judgment.doc_id] = int(judgment.relevance)
            queries = ((query.query_id, _text(query)) for query in dataset.queries_iter())
            documents = ((document.doc_id, _document(document)) for document in dataset.docs_iter())
            return assemble(name, split, documents, queries, qrels)
        except UnimoeError:
            raise
        except Exception as error:  # it downloads while it iterates
            raise not_at_hand(f"ir_datasets:{name}", DOWNLOAD_ADVICE, error) from None

    def relevance_level(self, name: str, split: str) -> int | None:
        """Return 2 for TREC DL's passages and 1 for its documents; else that of the set behind the id."""
        if re.search(r"trec-dl-(20\d\d|hard)", name):
            return 1 if "document" in name else TREC_DL
        return super().relevance_level(name, split)

    def mteb_task(self, name: str) -> str | None:
        """Return MTEB's task of a BEIR set; MS MARCO's passages are one, under either name."""
        return MTEB_TASKS["msmarco"] if self.set_name(name) == "msmarco-passage" else super().mteb_task(name)


def _document(record: Any) -> Document:
    if hasattr(record, "text"):
        return Document(getattr(record, "title", None) or "", record.text or "")
    return Document("", _text(record))


def _text(record: Any) -> str:
    """Return the text of a record; its fields differ by dataset."""
    return str(record.text if hasattr(record, "text") else record.default_text())


SOURCES.add("ir_datasets", IrDatasets())
