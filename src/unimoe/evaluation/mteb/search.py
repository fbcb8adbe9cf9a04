"""Search models for MTEB: dense search through our vector store, and the reranking of given candidates in shards.

MTEB gives its retrieval and reranking tasks to such a model instead of its own, which embeds 50,000 documents at a time
in memory, hands all pairs to a cross-encoder at once, and starts a killed task from zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from unimoe.cluster.work import Progress
from unimoe.core.errors import DataError
from unimoe.core.io import hash_json
from unimoe.core.trec import Run, head
from unimoe.data.collection import Collection, Document
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper, MTEBWrapper
from unimoe.evaluation.reranking.cluster_model import ENCODED_CHARACTERS, shared, workers_of
from unimoe.evaluation.reranking.shards import Candidates, ShardStore, rerank_run
from unimoe.results import safe_name
from unimoe.retrieval.dense import search, search_among
from unimoe.retrieval.embeddings import Embedded, encode_corpus

if TYPE_CHECKING:
    import datasets
    from mteb.abstasks.task_metadata import TaskMetadata

Adapter = TypeVar("Adapter", bound=MTEBWrapper[Any])

_BLOCK_PAIRS = 2**16  # of a cross-encoder; their texts are in memory at once


class TaskTexts(Mapping[str, Document]):
    """The queries or documents of a task as MTEB gives them to a model, by id; read from a mapped file one by one."""

    def __init__(self, rows: datasets.Dataset, task: TaskMetadata, role: Literal["query", "document"]) -> None:
        from mteb._create_dataloaders import _corpus_to_dict, create_dataloader
        from mteb.types import PromptType

        self._as_given: Callable[[dict[str, str]], dict[str, str]] = dict
        if role == "document":  # one by one: MTEB's loader would copy the corpus
            self._as_given = _corpus_to_dict
        else:
            if not len(rows):
                raise DataError(f"{task.name}: a split has no queries; leave the task out")
            loader: Any = create_dataloader(rows, task_metadata=task, prompt_type=PromptType.query)
            rows = loader.dataset
        names = [name for name in ("id", "title", "text", "instruction") if name in rows.column_names]
        table: Any = rows.select_columns(names).with_format("arrow")[:]
        self._columns = {name: table.column(name) for name in names}
        self._instructions = self._columns.pop("instruction", None)
        self._row = {key: row for row, key in enumerate(self._columns["id"].to_pylist())}

    def __getitem__(self, key: str) -> Document:
        row = self._row[key]
        given = {name: column[row].as_py() for name, column in self._columns.items()}
        return Document("", self._as_given(given)["text"])

    def instruction(self, key: str) -> str | None:
        """Return a query's own instruction; None in tasks that give it none."""
        return None if self._instructions is None else self._instructions[self._row[key]].as_py() or None

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)

    def __contains__(self, key: object) -> bool:
        return key in self._row


class _SearchModel(Generic[Adapter]):
    """What MTEB searches with: it gives the corpus first, then the queries."""

    def __init__(self, model: Adapter, folder: Path) -> None:
        self._model, self._folder, self.mteb_model_meta = model, folder, model.mteb_model_meta
        self.truncated: dict[tuple[str, str], list[str]] = {}
        """By split and subset, the queries so long that a reranker saw only their beginning."""
        self._corpus: TaskTexts | None = None

    def index(self, corpus: datasets.Dataset, *, task_metadata: TaskMetadata, **_: Any) -> None:
        """Take the corpus of a split, for the search that follows."""
        self._corpus = TaskTexts(corpus, task_metadata, "document")

    def _taken(self) -> TaskTexts:
        """Return the corpus, and let it go: the next search may need the memory."""
        corpus, self._corpus = self._corpus, None
        if corpus is None:
            raise ValueError("give the corpus to index() before each search")
        return corpus


class DenseSearch(_SearchModel[MTEBEncoderWrapper]):
    """Ranks documents by the cosine of embeddings.

    Vectors are kept below ``folder``, by split, subset and role, so that a killed task finds them again.
    """

    def search(
        self,
        queries: datasets.Dataset,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> Run:
        """Find the best documents of each query, or rank those that are given.

        Args:
            queries: of a split.
            task_metadata: MTEB's card of the task.
            hf_split: name of the split.
            hf_subset: name of the subset.
            top_k: documents wanted per query.
            top_ranked: query id to the ids of the documents to rank; None for the whole corpus.

        Raises:
            DataError: an embedding is not finite or zero; the message names the task and the text's id. A document to
                rank is not in the corpus.
        """
        corpus: Mapping[str, Document] = self._taken()
        asked = TaskTexts(queries, task_metadata, "query")
        folder = self._folder / safe_name(f"{hf_split}-{hf_subset}")
        if top_ranked is not None:
            candidates = _candidates(task_metadata.name, asked, corpus, top_ranked)
            corpus = _of(corpus, candidates)
        found = self._embedded(asked, task_metadata, "query", folder)  # first: a broken model is noticed in seconds
        if not corpus:
            return {query: {} for query in asked}
        store = self._embedded(corpus, task_metadata, "document", folder)
        if top_ranked is not None:
            return search_among(found.vectors, found.ids, store.vectors, store.ids, candidates, top_k)
        return search(
            found.vectors,
            found.ids,
            store.vectors,
            store.ids,
            top_k,
            device=self._model.model.device,
        )

    def _embedded(self, texts: Mapping[str, Document], task: TaskMetadata, role: str, folder: Path) -> Embedded:
        """Return the vectors of queries or documents: the store's, or in memory where they are few queries."""
        model, options = self._model, self._model.options(task, role)
        ids = sorted(texts)
        if role == "query" and sum(len(text.full_text) for text in texts.values()) < ENCODED_CHARACTERS:
            plain = [texts[key].full_text for key in ids]
            return Embedded(ids, model.encode_named(plain, list(map(repr, ids)), task, role))
        progress = Progress(model.advance)
        return encode_corpus(
            partial(model.model.encode, advance=progress.batch, **options),
            texts,
            folder / role,
            fingerprint=_fingerprint(model, options),
            characters=ENCODED_CHARACTERS,
            spread=shared(workers_of(model.model), **options),
            label=f"{task.name}, {role}",
            advance=progress.part,
        )


class CandidateReranking(_SearchModel[MTEBCrossEncoderWrapper]):
    """Ranks the candidates of a task by a cross-encoder, in shards that a killed task finds again in ``folder``."""

    def search(
        self,
        queries: datasets.Dataset,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> Run:
        """Score the candidates of each query; arguments as in ``DenseSearch.search``.

        Raises:
            DataError: there are no candidates, one is not in the corpus, or a pair cannot be scored; names them.
        """
        corpus, name = self._taken(), task_metadata.name
        if top_ranked is None:
            raise DataError(f"{name}: gives no candidates to rerank; let the model embed there")
        asked = TaskTexts(queries, task_metadata, "query")
        candidates = _candidates(name, asked, corpus, top_ranked)
        alike: dict[str | None, dict[str, Sequence[str]]] = {}  # queries by their instruction
        for query, documents in candidates.items():
            own = self._model.prompts.instruction(task_metadata, asked.instruction(query))
            alike.setdefault(own, {})[query] = documents
        run: Run = {}
        model = self._model
        for instruction, some in alike.items():
            reranker = model.reranker(instruction)
            store = ShardStore(self._folder, _fingerprint(model, getattr(reranker, "options", {})))
            for block in _blocks(some):
                texts = {query: asked[query].full_text for query in block}
                self.truncated.setdefault((hf_split, hf_subset), []).extend(reranker.truncated_queries(texts))
                part = Collection(name, hf_split, _of(corpus, block), texts, {})
                reranked, _scores = rerank_run(reranker, part, block, store=store, advance=model.advance)
                run |= {query: head(scores, top_k) for query, scores in reranked.items()}
        return run


def _fingerprint(model: MTEBWrapper[Any], options: Mapping[str, Any]) -> str:
    """Return the hash of what vectors and scores depend on besides the texts; the revision is one of all else."""
    return hash_json([model.mteb_model_meta.revision, dict(options)])


def _of(corpus: Mapping[str, Document], candidates: Mapping[str, Iterable[str]]) -> dict[str, Document]:
    return {key: corpus[key] for key in dict.fromkeys(key for found in candidates.values() for key in found)}


def _candidates(
    task: str,
    queries: Mapping[str, Document],
    corpus: Mapping[str, Document],
    top_ranked: Mapping[str, Sequence[str]],
) -> dict[str, Sequence[str]]:
    """Return the documents to rank for each query, none where the task names none.

    Raises:
        DataError: one is not in the corpus.
    """
    found = {query: top_ranked.get(query) or [] for query in queries}
    for query, documents in found.items():
        for document in documents:
            if document not in corpus:
                raise DataError(f"{task}, query {query!r}: candidate {document!r} is no document of the corpus")
    return found


def _blocks(candidates: Mapping[str, Sequence[str]]) -> Iterator[Candidates]:
    """Yield the candidates of some queries at a time; the scores of a first stage are not known, and are 0."""
    block: dict[str, dict[str, float]] = {}
    pairs = 0
    for query, documents in candidates.items():
        block[query] = dict.fromkeys(documents, 0.0)
        pairs += len(documents)
        if pairs >= _BLOCK_PAIRS:
            yield block
            block, pairs = {}, 0
    if block:
        yield block
