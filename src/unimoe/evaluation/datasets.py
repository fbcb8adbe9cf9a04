"""The collections of a tier, or those named by hand: how much of each is scored, what is odd, and what fails."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from unimoe.checks import Check, lines, report
from unimoe.checks.texts import concerned, without_candidates
from unimoe.config import DenseExperiment, EvaluationConfig, Experiment
from unimoe.core.console import stderr
from unimoe.core.errors import UnimoeError, UsageError, did_you_mean, refuse_missing
from unimoe.core.grouping import gathered
from unimoe.core.io import hash_json
from unimoe.core.trec import Run
from unimoe.data.catalog import available, load_collection, members, refuse_unknown, result_name
from unimoe.data.collection import COLLECTION_FILE, Collection
from unimoe.data.published import BEIR_NAMES, CQADUPSTACK, FAMILY_NAMES, SHORT_NAMES, canonical_name
from unimoe.data.source import UnavailableError, find_source
from unimoe.data.sources.nanobeir import NANOBEIR
from unimoe.metrics import DEFAULT_METRICS
from unimoe.metrics.scoring import level_note
from unimoe.results import Task
from unimoe.retrieval.first_stage import FirstStage, FirstStageRun, cut_run
from unimoe.retrieval.passages import Passages, as_read

if TYPE_CHECKING:
    import torch

_TIERS = {
    "fast": ("scifact", "nfcorpus", "fiqa"),
    "nano": NANOBEIR,
    "full": (*BEIR_NAMES, *CQADUPSTACK),  # BEIR's 15 public sets, one of which is twelve collections
}

_POOL_SEED = 0


@dataclass(frozen=True)
class Dataset:
    """One collection of the catalogue, and how much of it is scored.

    Attributes:
        settings: where candidates come from, how many are reranked per query, and how models read long documents.
        queries: judged queries scored, a fixed sample; None for all.
        pool: documents of dense retrieval, a fixed sample that holds every relevant one; None for the whole corpus.
        max_queries: the cut asked for by hand; None without one.
        named: whether the first stage is in the names of the systems, as it is where there are several.
    """

    collection: str
    split: str
    settings: EvaluationConfig = field(default_factory=EvaluationConfig)
    queries: int | None = None
    pool: int | None = None
    max_queries: int | None = None
    named: bool = False

    def on(self, first_stage: str) -> Dataset:
        """Return the same with the candidates of one of several first stages, which names of systems then have."""
        return replace(self, settings=self.settings.model_copy(update={"first_stage": first_stage}), named=True)

    @cached_property
    def name(self) -> str:
        """Its name in results, captions and file names."""
        return result_name(self.collection)

    @cached_property
    def exclude_self(self) -> bool | None:
        """Whether the document with the query's id is left out: MTEB's rule; None where it has no task of the set."""
        source, name = find_source(self.collection)
        task = source.mteb_task(name)
        if task is None:
            return None
        from unimoe.data.mteb_names import ignores_identical_ids  # MTEB takes seconds to import

        return ignores_identical_ids(task)

    @property
    def passages(self) -> Passages | None:
        """How documents are cut that a model reads; None for whole ones."""
        return Passages.of(self.settings)

    def with_rule(self, collection: Collection) -> Collection:
        """Return a collection that heeds MTEB's rule about queries' own documents, unless it states one itself."""
        rule = self.exclude_self if collection.excludes_self is None else None
        return collection if rule is None else collection.with_rule(rule)

    @property
    def main_metric(self) -> str:
        """The metric that the collection's source names; the mean of a suite takes it."""
        source, name = find_source(self.collection)
        return source.main_metric(name, self.split)


def tier_datasets(experiment: Experiment, tier: str, max_queries: int | None = None) -> list[Dataset]:
    """Return the datasets of a tier, at most ``max_queries`` of each scored."""
    if tier in _TIERS:
        return chosen_datasets(experiment, _TIERS[tier], max_queries)
    if tier != "bundled":
        names = ("bundled", *_TIERS)
        raise UsageError(f"unknown tier {tier!r}{did_you_mean(tier, names)}; use {', '.join(names)}")
    spec = experiment.evaluation.bundled
    settings = experiment.evaluation.model_copy(update={"depth": spec.depth})
    return [Dataset(spec.collection, spec.split, settings, spec.queries, spec.pool, max_queries)]


def chosen_datasets(
    experiment: Experiment | DenseExperiment, names: Iterable[str], max_queries: int | None = None
) -> list[Dataset]:
    """Return datasets by name, each once in the catalogue's spelling, at most ``max_queries`` of each scored.

    ``cqadupstack`` stands for its twelve, and ``@dev`` at the end chooses a split; without it the split is test, for MS
    MARCO dev.
    """
    splits: dict[str, str] = {}
    for collection, split in (pair for name in names for pair in collections_of(name)):
        refuse_unknown(collection)  # now, not after hours of the others
        if splits.setdefault(collection, split) != split:
            raise UsageError(
                f"{collection} is named with the splits {splits[collection]} and {split}; "
                "evaluate them one after the other, into two output folders"
            )
    refuse_equal_names(splits)
    return [Dataset(*named, experiment.evaluation, max_queries=max_queries) for named in splits.items()]


def collections_of(name: str) -> list[tuple[str, str]]:
    """Return the collections that one name stands for, with the split to score; see ``chosen_datasets``."""
    match = re.fullmatch(r"(.+)@([\w.-]+)", name)
    name, split = match.groups() if match else (name, None)
    published = {known.lower(): known for known in (*SHORT_NAMES, *NANOBEIR, *FAMILY_NAMES)}
    spelled = [published.get(canonical_name(member), member) for member in members(name)]
    sources = [(collection, *find_source(collection)) for collection in spelled]
    return [(collection, split or source.default_split(rest)) for collection, source, rest in sources]


def refuse_equal_names(collections: Iterable[str]) -> None:
    """Refuse collections of the catalogue with results that would overwrite each other."""
    for alike in gathered((result_name(name).casefold(), name) for name in collections).values():
        first, *others = alike
        if first in others:
            raise UsageError(f"{first} is named twice; its results would take each other's place, name it once")
        if others:
            folder = next((name for name in (others[0], first) if name.startswith("path:")), first)
            raise UsageError(
                f"{first} and {others[0]} would both be {result_name(others[0])!r} in results; "
                f"state another name in {Path(folder.removeprefix('path:'), COLLECTION_FILE)}"
            )


class LoadedDataset:
    """A dataset in memory: the ``whole`` collection, the queries scored, and the first stage's candidates.

    ``device`` is where the encoder of a fused first stage computes; None for the best device of this machine.
    """

    def __init__(self, dataset: Dataset, device: torch.device | None = None) -> None:
        self.dataset = dataset
        self.whole = dataset.with_rule(load_collection(dataset.collection, dataset.split))
        bm25 = dataset.settings.bm25.in_language(self.whole.language)
        settings = dataset.settings.model_copy(update={"bm25": bm25})
        self._stage = FirstStage(settings, dataset.collection, device)
        self._stage.refuse_impossible(self.whole)

    @property
    def checks(self) -> list[Check]:
        """What was found of the collection and of its candidates."""
        name, stage = self.dataset.name, self.first_stage
        by_words = self._stage.by_words and self.dataset.settings.bm25.language is None
        lacking = without_candidates(name, self.queries_without_candidates, len(self.collection.qrels))
        unordered = Check("order", "note", f"{name}: {stage.source} gives no order, so it gets no scores")
        own = concerned(self.collection.checks, by_words=by_words)
        found = [*own, *lacking, *self._stage.checks(self.collection)]
        return found if stage.ordered else [*found, unordered]

    @cached_property
    def collection(self) -> Collection:
        """The queries scored, over the whole corpus."""
        most, queries = self.dataset.max_queries, self.dataset.queries
        if most is not None:
            return cut_queries(self.whole, most, queries)
        return self.whole if queries is None else self.whole.sample_queries(queries)

    @cached_property
    def pooled(self) -> Collection:
        """The queries scored, over the documents of dense retrieval."""
        pool = self.dataset.pool
        if pool is None or pool >= len(self.whole.corpus):
            return self.collection
        return self.collection.pool(pool, _POOL_SEED)

    @cached_property
    def read(self) -> Collection:
        """``pooled`` as an encoder reads it: with passages in the place of documents, where these are cut."""
        return as_read(self.pooled, self.dataset.passages)

    @cached_property
    def first_stage(self) -> FirstStageRun:
        """What the first stage found in the whole corpus, at least as deep as recall is reported."""
        return self._stage.candidates(self.whole, self.collection)

    @cached_property
    def candidates(self) -> Run:
        """The candidates to rerank: the first stage's best ``depth`` of every query."""
        return cut_run(self.first_stage.run, self.dataset.settings.depth)

    @cached_property
    def to_read(self) -> tuple[Collection, Run]:
        """The candidates with their texts as a reranker reads them: documents, or the passages of each."""
        passages = self.dataset.passages
        whole = self.collection, self.candidates
        return whole if passages is None else passages.of_candidates(*whole)

    @property
    def queries_without_candidates(self) -> list[str]:
        """Judged queries that the first stage found nothing for, sorted; they count 0."""
        return sorted(query_id for query_id in self.collection.qrels if not self.candidates[query_id])

    @cached_property
    def candidates_hash(self) -> str:
        """Content hash of the candidates."""
        return hash_json(self.candidates)

    def caveats(self, task: Task) -> list[str]:
        """Return why scores of a task on this dataset are unfit for decisions; nothing where they are fit."""
        checks = concerned(self.collection.checks, by_words=False) if task == "embedding" else self.checks
        return lines(checks, "caveat")


def cut_queries(collection: Collection, most: int, usual: int | None = None) -> Collection:
    """Return a collection with a fixed sample of its queries to score, which says so where any are left out.

    There are as many as ``most``, or as the ``usual`` number where that is lower.
    """
    cut, judged = collection.sample_queries(min(most, usual or most)), len(collection.qrels)
    line = f"--max-queries {most}: {judged:,} queries are judged"
    said = [Check("queries", "caveat", line, {"judged": judged})] if len(cut.qrels) < judged else []
    return replace(cut, checks=(*cut.checks, *said))


class Failures:
    """Keeps an evaluation of many datasets going when one fails: lists its name, and the reason that stderr shows."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {"collection": [], "MTEB task": []}
        self.reasons: list[str] = []
        self._first: Exception | None = None

    @contextmanager
    def kept(self, name: str, kind: str = "collection") -> Iterator[None]:
        """Run a block about one collection, or one ``MTEB task``, and go on after it whatever it raises."""
        try:
            yield
        except Exception as error:  # the others are still worth having
            if name not in self.names[kind]:
                self.names[kind].append(name)
            self._first = self._first or error
            line = failure_line(name, error)
            if line not in self.reasons:  # several systems may fail by one reason
                self.reasons.append(line)
                stderr.print(line, style="yellow", soft_wrap=True)

    def refuse(self, done: bool) -> None:
        """End with an error where something failed; ``done`` says whether anything was evaluated."""
        if self._first and not done and not isinstance(self._first, UnavailableError):
            raise self._first
        refuse_missing(self.names)


def failure_line(name: str, error: Exception) -> str:
    """Return one line about a collection or a task that failed."""
    if isinstance(error, UnavailableError):
        return f"not available: {error}"
    reason = failure_reason(error)
    return f"failed: {reason}" if reason.startswith(name) else f"failed: {name}: {reason}"


def failure_reason(error: Exception) -> str:
    """Return why something has no score, in one line."""
    message = " ".join(str(error).split())[:300]
    return message if isinstance(error, UnimoeError) else f"{type(error).__name__}: {message}"


def load_reporting(dataset: Dataset, device: torch.device | None = None) -> LoadedDataset:
    """Load a dataset as ``LoadedDataset`` does, and say on stderr what was found of it and its candidates."""
    data = LoadedDataset(dataset, device)
    report_checks(dataset, data.collection, data.checks)
    return data


def report_checks(dataset: Dataset, collection: Collection, checks: Iterable[Check]) -> None:
    """Print on stderr what was found of a collection, and a warning where its relevance level was never stated."""
    report(checks)
    folder, stated = available(dataset.collection), collection.relevance_level if collection.level_stated else None
    place = folder / COLLECTION_FILE if folder else f"the {COLLECTION_FILE} of a folder in BEIR layout"
    remedy = f"state relevance_level in {place}"
    if note := level_note(DEFAULT_METRICS, collection.qrels, stated, where=collection.name, remedy=remedy):
        stderr.print(f"warning: {note}", style="yellow", soft_wrap=True)
