"""The search model for MTEB: dense search through our vector store, or the reranking of given candidates in shards.

MTEB gives its retrieval and reranking tasks to such a model instead of its own, which embeds 50,000 documents at a time
in memory, hands all pairs to a cross-encoder at once, and starts a killed task from zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from unimoe.core.errors import DataError
from unimoe.core.io import hash_json
from unimoe.core.trec import Run, head
from unimoe.data.collection import Collection, Document
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper
from unimoe.models.reranker import ShardStore, rerank_run
from unimoe.results import safe_name
from unimoe.retrieval.dense import search
from unimoe.retrieval.embeddings import Embedded, encode_corpus, kept_embeddings

if TYPE_CHECKING:
    import datasets
    from mteb.abstasks.task_metadata import TaskMetadata

Texts = dict[str, Document]
Ranked = Mapping[str, Sequence[str]]


def task_texts(
    rows: datasets.Dataset, task: TaskMetadata, role: Literal["query", "document"]
) -> tuple[Texts, dict[str, str | None]]:
    """Return the queries or documents of a task by id, as MTEB gives them to a model, and their own instructions."""
    from mteb._create_dataloaders import _corpus_to_dict, create_dataloader
    from mteb.types import PromptType

    as_given: Any = _corpus_to_dict
    if role == "query":
        if not len(rows):
            raise DataError(f"{task.name}: a split has no queries; leave the task out")
        loader: Any = create_dataloader(rows, task_metadata=task, prompt_type=PromptType.query)
        rows, as_given = loader.dataset, dict
    names = [name for name in ("id", "title", "text", "instruction") if name in rows.column_names]
    table: Any = rows.select_columns(names).with_format("arrow")[:]
    found = table.to_pylist()
    instructions = {row["id"]: row.pop("instruction", None) or None for row in found}
    return {row["id"]: Document("", as_given(row)["text"]) for row in found}, instructions


class TaskSearch:
    """What MTEB ranks documents with: it gives the corpus first, then the queries.

    An encoder ranks them by the cosine of embeddings, a cross-encoder ranks a task's candidates. The vectors or shards
    that a killed task finds again are kept in ``folder``; ``excluded`` is what a search leaves out, by query, and
    ``passages`` are what is embedded in place of documents.
    """

    def __init__(self, model: MTEBEncoderWrapper | MTEBCrossEncoderWrapper, folder: Path) -> None:
        self._model, self._folder, self.mteb_model_meta = model, folder, model.mteb_model_meta
        self.excluded: Mapping[str, Iterable[str]] = {}
        self.passages: Mapping[str, Document] | None = None
        self.truncated: dict[tuple[str, str], list[str]] = {}
        """By split and subset, the queries so long that a reranker saw only their beginning."""
        self._corpus: Texts = {}

    def index(self, corpus: datasets.Dataset, *, task_metadata: TaskMetadata, **_: Any) -> None:
        """Take the corpus of a split, for the search that follows."""
        self._corpus, _instructions = task_texts(corpus, task_metadata, "document")

    def search(
        self,
        queries: datasets.Dataset,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        top_ranked: Ranked | None = None,
        **_: Any,
    ) -> Run:
        """Find the best ``top_k`` documents of each query, or rank those that ``top_ranked`` names."""
        corpus, self._corpus = self._corpus, {}  # the next search may need the memory
        asked, instructions = task_texts(queries, task_metadata, "query")
        candidates = None
        if top_ranked is not None:
            candidates = {query: top_ranked.get(query) or [] for query in asked}
            for query, documents in candidates.items():
                if strange := next((key for key in documents if key not in corpus), None):
                    raise DataError(
                        f"{task_metadata.name}, query {query!r}: candidate {strange!r} is no document of the corpus"
                    )
            corpus = {key: corpus[key] for key in dict.fromkeys(chain.from_iterable(candidates.values()))}
        if isinstance(self._model, MTEBEncoderWrapper):
            folder = self._folder / safe_name(f"{hf_split}-{hf_subset}")
            embedded = partial(self._embedded, self._model, task_metadata, folder)
            found = embedded("query", asked)  # first: a broken model is noticed in seconds
            if not corpus:
                return {query: {} for query in asked}
            searched = embedded("document", self.passages or corpus)
            searched = searched.by_document() if self.passages else searched  # ids of MTEB's own may hold spaces
            rows, excluded = None, self.excluded
            if candidates is not None and 2 * sum(map(len, candidates.values())) < len(asked) * len(corpus):
                row_of = {key: row for row, key in enumerate(searched.ids)}
                rows = [np.array([row_of[key] for key in candidates[query]], dtype=np.int64) for query in found.ids]
            elif candidates is not None:  # BRIGHT's tasks list nearly the whole corpus for each query
                excluded = {query: corpus.keys() - set(documents) for query, documents in candidates.items()}
            sides, device = (found.vectors, found.ids, searched.vectors, searched.ids), self._model.model.device
            how: dict[str, Any] = {"starts": searched.starts, "excluded": excluded, "candidates": rows}
            return search(*sides, top_k, device=device, **how)
        if candidates is None:
            raise DataError(f"{task_metadata.name}: gives no candidates to rerank; let the model embed there")
        alike: dict[str | None, dict[str, dict[str, float]]] = {}  # queries by their instruction
        for query, documents in candidates.items():
            own = self._model.prompts.instruction(task_metadata, instructions[query])
            alike.setdefault(own, {})[query] = dict.fromkeys(documents, 0.0)  # a first stage's scores are not known
        run: Run = {}
        for instruction, some in alike.items():
            part = Collection(
                task_metadata.name, hf_split, corpus, {query: asked[query].full_text for query in some}, {}
            )
            store = ShardStore(self._folder, self._fingerprint(instruction=instruction))
            reranker = self._model.reranker(instruction)
            self.truncated.setdefault((hf_split, hf_subset), []).extend(reranker.truncated_queries(part.queries))
            reranked, _scores = rerank_run(reranker, part, some, store=store, advance=self._model.advance)
            run |= {query: head(scores, top_k) for query, scores in reranked.items()}
        return run

    def _embedded(
        self, model: MTEBEncoderWrapper, task: TaskMetadata, folder: Path, role: str, texts: Mapping[str, Document]
    ) -> Embedded:
        """Return the vectors of queries or documents, which are kept for a killed run or for all."""
        options = model.options(task, role)
        how: dict[str, Any] = {
            "spread": model.model.spread(**options),
            "label": f"{task.name}, {role}",
            "advance": model.advance,
        }
        if model.kept and role == "document":
            prefix, batches = options["prefix"], model.batches
            return kept_embeddings(model.model, texts, prefix=prefix, batches=batches, name=task.name, **how)
        return encode_corpus(
            partial(model.model.encode, **options),
            texts,
            folder / role,
            fingerprint=self._fingerprint(**options),
            **how,
        )

    def _fingerprint(self, **options: Any) -> str:
        """Return the hash of what vectors and scores depend on besides the texts; the revision is one of all else."""
        return hash_json([self.mteb_model_meta.revision, options])
