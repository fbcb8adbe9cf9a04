"""What a collection is: documents, queries and graded judgments of one split; and its description in a file.

A folder in BEIR layout may hold ``collection.json``, and a qrels file such as ``dl20.qrels`` may have a file
``dl20.qrels.json`` next to it. Both hold ``{"name": "dl20", "relevance_level": 2}``, or one of the two keys. The qrels
file's description overrides its folder's, which overrides the convention of the field: ``GRADED_FROM_1``. A folder's
may have ``"language": "de"`` and ``"excludes_self": true`` too.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from unimoe.checks import Check
from unimoe.checks.texts import OWN, counted, language_by_script, own_documents
from unimoe.core.errors import DataError, UsageError
from unimoe.core.io import hash_parts, read_json
from unimoe.core.limits import HIGHEST_GRADE, grade_problem, id_problem, shortened
from unimoe.core.trec import Grades, Qrels
from unimoe.data.languages import ENGLISH, checked_language
from unimoe.data.published import GRADED_FROM_1

T = TypeVar("T")


class Document(NamedTuple):
    """One document. Both parts may be empty."""

    title: str
    text: str

    @property
    def full_text(self) -> str:
        """What a retriever reads: title, a space, text, without outer white space."""
        return f"{self.title} {self.text}".strip()


@dataclass(frozen=True, repr=False)
class Collection:
    """One split of a test collection. Made by ``assemble``, which checks it.

    Attributes:
        name: what results and messages call the collection, for example ``scifact``.
        split: for example ``test``.
        corpus: document id to document.
        queries: query id to text: the judged queries of the split, and those judged in no split at all.
        qrels: query id to ``{document id: grade}``; training takes grades above 0 as relevant. A judgment of a
            document the corpus lacks is kept: it counts in the ideal ranking, as in trec_eval.
        checks: what was found when it was made: what is odd but usable, such as ``empty documents``, the language that
            its script tells, and queries that are documents. Subsets of a collection carry those of the whole.
        candidates_only: whether the corpus is no more than the candidates of a published first stage. They can be
            reranked; a search among them says nothing about a search of the whole corpus.
        relevance_level: the lowest grade that binary measures count as relevant.
        level_stated: whether the data or a convention of the field says so; else the level is 1 for want of another.
        language: the code of the documents' language, by which BM25 splits and stems words.
        excluded: query id to documents that are no candidates of it, as in BRIGHT; no query without any.
        excludes_self: whether the document with the query's id is no candidate either. Right where queries are
            documents too (ArguAna); elsewhere equal ids drop real documents, as MTEB does on some sets. None where the
            source does not say: they are candidates unless MTEB's rule of the set says otherwise.
    """

    name: str
    split: str
    corpus: dict[str, Document]
    queries: dict[str, str]
    qrels: Qrels
    checks: tuple[Check, ...] = ()
    candidates_only: bool = False
    relevance_level: int = 1
    level_stated: bool = False
    language: str = ENGLISH
    excluded: Mapping[str, frozenset[str]] = field(default_factory=dict)
    excludes_self: bool | None = None

    def __repr__(self) -> str:
        queries = f"{len(self.queries):,} queries, {len(self.qrels):,} of them judged"
        return f"Collection({self.name!r}, split {self.split!r}: {len(self.corpus):,} documents, {queries})"

    @classmethod
    def from_frames(cls, corpus: object, queries: object, qrels: object, **options: Any) -> Collection:
        """Make a collection of tables; ``unimoe.data.importing.from_tables`` says of which, and what the options are.

        A table is a frame of pandas or polars, a table of pyarrow, a list of dictionaries, a mapping of ids to texts
        (of query ids to ``{document id: grade}`` for the judgments), or the path of a file. The names of its columns
        tell what they hold.
        """
        from unimoe.data.importing import from_tables

        return from_tables(corpus, queries, qrels, **options)

    @cached_property
    def corpus_hash(self) -> str:
        """Content hash of the documents, whatever their order."""
        return hash_parts(part for key in sorted(self.corpus) for part in (key, *self.corpus[key]))

    @cached_property
    def queries_hash(self) -> str:
        """Content hash of the queries, and of the documents excluded for each, whatever their order."""
        excluded = [["", key, *sorted(self.excluded[key])] for key in sorted(self.queries) if key in self.excluded]
        texts = ((key, self.queries[key]) for key in sorted(self.queries))
        return hash_parts(chain.from_iterable(chain(texts, excluded)))

    @cached_property
    def content_hash(self) -> str:
        """Content hash of documents, queries, judgments, their level, split and language, whatever their order."""
        judgments = hash_parts(
            part
            for query in sorted(self.qrels)
            for document, grade in sorted(self.qrels[query].items())
            for part in (query, document, str(grade))
        )
        level = [] if self.relevance_level == 1 else [f"relevance level {self.relevance_level}"]
        language = [] if self.language == ENGLISH else [f"language {self.language}"]
        return hash_parts([self.split, self.corpus_hash, self.queries_hash, judgments, *level, *language])

    @cached_property
    def unjudged_queries(self) -> list[str]:
        """Queries without any judgment, sorted; they are ranked but count in no mean."""
        return sorted(self.queries.keys() - self.qrels.keys())

    @property
    def judged_queries(self) -> dict[str, str]:
        """Query id to text of the queries that count: those of the split."""
        return {query: self.queries[query] for query in self.qrels}

    def with_rule(self, excludes_self: bool) -> Collection:
        """Return the same where it is known whether a query's own document is a candidate."""
        return replace(self, excludes_self=excludes_self, checks=tuple(c for c in self.checks if c.name != OWN))

    def left_out(self, query: str) -> frozenset[str]:
        """Return the documents that are no candidates of a query."""
        return self.excluded.get(query, frozenset()) | frozenset([query] if self.excludes_self else [])

    def relevant_documents(self) -> set[str]:
        """Return the documents of the corpus that are relevant (grade above 0) to some query."""
        return {d for grades in self.qrels.values() for d, grade in grades.items() if grade > 0 and d in self.corpus}

    def sample_queries(self, n: int, seed: int = 0) -> Collection:
        """Return the same corpus with a seeded sample of so many judged queries, or with all where there are no more.

        A query's place depends on its id and the seed alone, so a larger ``n`` adds queries and removes none.
        """
        _refuse_no_count(n, "queries")
        return self.with_queries(set(_first_by_hash(self.qrels, n, seed)))

    def split_queries(self, test_size: float, seed: int = 0) -> tuple[Collection, Collection]:
        """Split the judged queries over the same corpus: the first part to train on, the second to test on.

        A query is in one part with all its judgments. ``test_size`` is the second part's share, rounded up to whole
        queries; a larger one moves queries from the first part to the second and none back, whatever their order.
        """
        if not 0.0 < test_size < 1.0:
            raise UsageError(f"a test part of {test_size:g} of the queries was asked for; choose between 0 and 1")
        n = math.ceil(round(test_size * len(self.qrels), 9))  # .2 * 15 is a little more than 3
        if n == len(self.qrels):
            raise UsageError(
                f"{self.name}: of {len(self.qrels)} judged queries, {test_size:g} for testing leaves none to train on; "
                "make the test part smaller, or score all queries"
            )
        test = set(_first_by_hash(self.qrels, n, seed))
        return self.with_queries(self.qrels.keys() - test), self.with_queries(test)

    def with_queries(self, chosen: Container[str]) -> Collection:
        """Return the same corpus with some of the queries and their judgments."""
        return replace(
            self,
            queries={key: text for key, text in self.queries.items() if key in chosen},
            qrels={key: grades for key, grades in self.qrels.items() if key in chosen},
        )

    def pool(self, n: int, seed: int = 0) -> Collection:
        """Return the same queries over a seeded sample of so many documents, which holds every relevant one.

        As with queries, a larger ``n`` adds documents and removes none.
        """
        _refuse_no_count(n, "documents")
        relevant = self.relevant_documents()
        if n < len(relevant):
            raise UsageError(
                f"{self.name}: a pool of {n} documents cannot hold the {len(relevant)} relevant ones; "
                f"ask for at least {len(relevant)}, or for fewer queries"
            )
        others = (key for key in self.corpus if key not in relevant)
        chosen = relevant.union(_first_by_hash(others, n - len(relevant), seed))
        return replace(self, corpus={key: document for key, document in self.corpus.items() if key in chosen})


def assemble(
    name: str,
    split: str,
    documents: Iterable[tuple[str, Document]],
    queries: Iterable[tuple[str, str]],
    qrels: Grades,
    *,
    judged_elsewhere: Container[str] = frozenset(),
    relevance_level: int | None = None,
    language: str | None = None,
    excluded: Mapping[str, Iterable[str]] | None = None,
    excludes_self: bool | None = None,
) -> Collection:
    """Build a collection from what a source holds, check it, and count what is odd.

    Of documents or queries with the same id the first is kept; a repetition is counted as a duplicate, and as
    conflicting too where its content differs. Documents and queries are consumed once; queries may be of other splits,
    and those that are ``judged_elsewhere`` are left out. Relevance level, language and rule about queries' own
    documents are None where the source states none; the script of the documents tells the language then.
    Judgments of documents that are ``excluded`` for the query are dropped, and counted; excluded ids of no document,
    such as BRIGHT's ``N/A``, say nothing.

    Raises:
        DataError: no judgment, a judged query without text, a grade that is no whole number or too high, or an id that
            is empty or holds white space or control characters.
    """
    corpus, duplicate_documents, conflicting_documents = _first_of_each(documents)
    texts, duplicate_queries, conflicting_queries = _first_of_each(queries)
    left_out = {key: corpus.keys() & set(ids) for key, ids in (excluded or {}).items() if key in texts}
    both = [d for key, ids in left_out.items() for d in qrels.get(key, {}) if d in ids]
    if both:
        qrels = {q: {d: grade for d, grade in g.items() if d not in left_out.get(q, ())} for q, g in qrels.items()}
    judged = {key: grades for key, grades in qrels.items() if grades}
    if not judged:
        raise DataError(f"{name}: split {split!r} holds no judgments; without them nothing can be scored")
    for key in judged:
        if not texts.get(key, "").strip():
            state = "has an empty text" if key in texts else "is not among the queries"
            raise DataError(
                f"{name}: query {key!r} is judged in split {split!r} but {state}; "
                "add its text to the queries or remove its judgments"
            )
    kept = {key: text for key, text in texts.items() if key in judged or key not in judged_elsewhere}
    for key in chain(corpus, kept):
        if problem := id_problem(key):  # the fields of a TREC file are parted by white space
            raise DataError(f"{name}: id {shortened(key)!r} {problem}; rename it")
    for query_id, grades in judged.items():
        for document_id, grade in grades.items():
            if abs(grade) > HIGHEST_GRADE or grade != int(grade):
                where = f"{name}: query {query_id!r}, document {document_id!r}"
                raise DataError(f"{where}: grade {grade:g} {grade_problem(grade)}; collections hold whole grades")
    kinds = {
        "duplicate documents": duplicate_documents,
        "conflicting documents": conflicting_documents,
        "duplicate queries": duplicate_queries,
        "conflicting queries": conflicting_queries,
        "empty documents": [key for key, document in corpus.items() if not document.text.strip()],
        "empty queries": [key for key, text in kept.items() if not text.strip()],
        "unjudged queries": [key for key in kept if key not in judged],
        "judgments of excluded documents": both,
    }
    checks = [check for kind, ids in kinds.items() for check in counted(name, kind, ids)]
    unknown = [key for grades in judged.values() for key in grades if key not in corpus]
    checks += counted(name, "judgments of unknown documents", unknown, sum(map(len, judged.values())), 1.0)
    if language is None:
        language, found = language_by_script(name, corpus)
        checks += [found] if found else []
    if excludes_self is None and (found := own_documents(name, {key: texts[key] for key in judged}, corpus)):
        checks.append(found)
    return Collection(
        name,
        split,
        corpus,
        kept,
        cast(Qrels, judged),
        tuple(checks),
        relevance_level=relevance_level or 1,
        level_stated=relevance_level is not None,
        language=language,
        excluded={key: frozenset(ids) for key, ids in left_out.items() if ids and key in kept},
        excludes_self=excludes_self,
    )


def _first_of_each(items: Iterable[tuple[str, T]]) -> tuple[dict[str, T], list[str], list[str]]:
    """Return the first item of each id, the ids of all others, and of those that differ from the first."""
    kept: dict[str, T] = {}
    duplicate: list[str] = []
    conflicting: list[str] = []
    for key, value in items:
        if key not in kept:
            kept[key] = value
            continue
        duplicate.append(key)
        if kept[key] != value:
            conflicting.append(key)
    return kept, duplicate, conflicting


def _refuse_no_count(n: int, what: str) -> None:
    if not hasattr(n, "__index__") or n < 1:
        raise UsageError(f"a sample of {n} {what} was asked for; ask for a whole number, at least 1")


def _first_by_hash(keys: Iterable[str], n: int, seed: int) -> list[str]:
    return heapq.nsmallest(n, keys, key=lambda key: hash_parts([str(seed), key]))


COLLECTION_FILE = "collection.json"

_Kind = TypeVar("_Kind", bound="Description")

_REMEDY = 'write {"name": "dl20", "relevance_level": 2} with a name of your own and the lowest relevant grade'
_FOLDER_REMEDY = f'{_REMEDY}; a folder may state "language": "de" and "excludes_self": true too'


class Description(BaseModel):
    """A description; None for what it leaves open.

    Attributes:
        name: the collection's name in results.
        relevance_level: the lowest grade that binary measures count as relevant.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(pattern=r"^[\w][\w .()/+\-]*$", max_length=100)] | None = None
    relevance_level: Annotated[int, Field(ge=1, le=HIGHEST_GRADE)] | None = None


class FolderDescription(Description):
    """The description of a folder.

    Attributes:
        language: the code of the documents' language; by default their script tells it.
        excludes_self: whether the document with a query's id is no candidate of that query; by default MTEB's rule.
    """

    language: Annotated[str, AfterValidator(checked_language)] | None = None
    excludes_self: bool | None = None


def described(**stated: object) -> FolderDescription:
    """Return the description of a collection from Python's arguments or a command's options; None states nothing."""
    try:
        return FolderDescription.model_validate({key: value for key, value in stated.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(f"{first['loc'][0]}: {first['msg'].removeprefix('Value error, ')}; correct it") from None


def describe_collection(folder: Path) -> FolderDescription:
    """Read the description in a collection's folder."""
    return _read(folder / COLLECTION_FILE, FolderDescription, _FOLDER_REMEDY)


def describe_qrels(path: Path) -> Description:
    """Read the description of a qrels file: its own, else that of the collection that holds it in ``qrels``.

    In a ``qrels`` folder the level of a set of ``GRADED_FROM_1`` is 1: the folder of a collection, or of an
    evaluation's export such as ``qrels/nfcorpus-test.qrels``.
    """
    own = _read(sidecar_path(path), Description)
    folder = path.absolute().parent
    whole = describe_collection(folder.parent) if folder.name == "qrels" else Description()
    level = own.relevance_level or whole.relevance_level
    if level is None and folder.name == "qrels":
        names = {folder.parent.name.lower(), path.name.rpartition("-")[0].lower()}
        level = None if names.isdisjoint(GRADED_FROM_1) else 1
    return Description(name=own.name or whole.name, relevance_level=level)


def sidecar_path(path: Path) -> Path:
    """Return the path of a qrels file's description; ``.gz`` is no part of its name."""
    return path.parent / f"{path.name.removesuffix('.gz')}.json"


def _read(path: Path, kind: type[_Kind], remedy: str = _REMEDY) -> _Kind:
    return read_json(path, kind, remedy) if path.is_file() else kind()
