"""What an evaluation would take: pairs or texts, tokens, disk, time and cost.

Collections are counted, and a sample of each is timed for a moment; the rest is multiplied. The sizes of MTEB's tasks
come from the statistics that MTEB publishes with them, and texts of these lengths are made up to be timed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch

from unimoe.core.console import in_hours, stdout
from unimoe.core.errors import UsageError
from unimoe.core.planning import Job, spread
from unimoe.core.trec import Run
from unimoe.data.collection import Document
from unimoe.data.mteb_names import TaskSize, task_size
from unimoe.evaluation.chosen import ChosenData
from unimoe.evaluation.datasets import Dataset, Failures, LoadedDataset, report_checks
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.system import System
from unimoe.evaluation.tasks.embed import card_of, result_dataset
from unimoe.models.batching import batches
from unimoe.models.device import warn_of_other_work
from unimoe.models.embedder import Embedder
from unimoe.models.matcher import Matcher
from unimoe.models.model import Model
from unimoe.models.reranker import (
    GPU_SHARD_CHARACTERS,
    Reranker,
    TextPair,
    candidate_pairs,
    cut_pairs,
    pair_texts,
    truncation_note,
)
from unimoe.models.served.client import RequestEstimate
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import Task
from unimoe.retrieval.bm25 import engine_of
from unimoe.retrieval.embeddings import is_kept

if TYPE_CHECKING:
    from mteb import AbsTask

_PLACES, _PLACE_CHARACTERS = 4, 2**16
"""Pairs are sampled in whole prefix groups at this many places of a dataset, with this much text at each."""

_LINE_BYTES = 40  # of a run's line besides its ids; a shard's entry is shorter
_QUERY_BYTES = 600  # of a query's scores and drill-down


class PlannedDataset(LoadedDataset):
    """A dataset for a plan, which embeds nothing: BM25's candidates stand for those of a model that are not cached.

    Attributes:
        texts: that the first stage has to embed, those of queries first; none where the candidates are its own.
        asked: the number of queries among them.
        searched: the seconds that BM25 took for a ranking that was not kept; None where it was, or is not needed.
    """

    def __init__(self, dataset: Dataset, device: torch.device | None = None) -> None:
        super().__init__(dataset, device)
        self.texts, self.asked = self._stage.texts_to_embed(self.whole), len(self.whole.queries)
        self.search, by_words = self._stage.search, self._stage.searches_by_words(self.whole)
        if self.texts:
            words = self._stage.settings.model_copy(update={"first_stage": "bm25s"})
            self._stage = replace(self._stage, settings=words)
        start = time.perf_counter()
        _ = self.first_stage  # kept, so that the evaluation finds it
        self.searched = time.perf_counter() - start if by_words else None

    @cached_property
    def candidates(self) -> Run:
        """BM25's candidates, filled up to the depth where an encoder will rank every document."""
        found, depth = super().candidates, self.dataset.settings.depth
        if not self.texts:
            return found
        most = 1 + max(map(len, self.whole.excluded.values()), default=0)
        others = dict.fromkeys(islice(self.whole.corpus, depth + most), 0.0)
        filled = {}
        for query, scores in found.items():
            left_out = scores.keys() | self.whole.left_out(query)
            more = ((key, score) for key, score in others.items() if key not in left_out)
            filled[query] = scores | dict(islice(more, max(0, depth - len(scores))))
        return filled


@dataclass(frozen=True)
class PlannedWork:
    """What one task on one dataset takes: ``items`` are pairs or texts, ``disk`` is in bytes.

    ``tokens`` are by a sample, shared beginnings once, and None where the model takes texts. ``seconds`` are 0 where
    there is nothing to do, or a server does it: ``asked`` is what it will be. It is not timed, since that would cost.
    """

    task: str
    dataset: str
    queries: int
    items: int
    disk: int
    asked: RequestEstimate | None = None
    tokens: int | None = None
    seconds: float = 0.0


def _on_collection(system: System, model: Model, task: Task, data: LoadedDataset) -> PlannedWork:
    queries, asked = data.collection.queries, data.pooled.queries
    if task == "reranking":
        pairs, reranker = list(candidate_pairs(*data.to_read)), model.reranker()
        # The run, and the shards until it is written.
        disk = 2 * sum(len(query) + len(document) + _LINE_BYTES for query, document in pairs)
        request = reranker.asked(*data.to_read)
        job = None if request else rerank_job(reranker, sampled_pairs(data, reranker), len(pairs))
        items = len(pairs)
    else:
        texts, read, embedder = [*asked.values()], data.read.corpus, model.embedder()
        if not _holds_vectors(system, embedder, data.pooled.name, read):
            texts = [*(document.full_text for document in read.values()), *texts]
        items, disk = len(texts), len(asked) * min(1000, len(data.pooled.corpus)) * _LINE_BYTES
        request = embedder.asked(len(texts), sum(map(len, texts)))
        job = None if request else embed_job(embedder, texts, len(texts))
    name = result_dataset(task, data.dataset)
    work = PlannedWork(task, name, len(queries), items, disk + len(queries) * _QUERY_BYTES, request)
    return _timed(model, work, job)


def _holds_vectors(system: System, embedder: Embedder, collection: str, read: Mapping[str, Document]) -> bool:
    """Return whether an evaluation has kept the vectors of a collection's documents, or of their passages."""
    if system.checkpoint or not (system.model and system.model.reusable):
        return False
    prefix = TaskPrompts(system.experiment.evaluation.mteb).prefix(card_of(collection), "document")
    return is_kept(embedder, read, prefix=prefix)


def _on_mteb_task(model: Model, task: Task, mteb_task: AbsTask, size: TaskSize) -> PlannedWork:
    """Return what a task of MTEB takes, by its published size."""
    items = size.pairs if task == "reranking" else size.queries + size.documents
    work = PlannedWork(task, mteb_task.metadata.name, size.queries, items, items * _LINE_BYTES)
    characters = size.query_characters + size.document_characters
    request = model.embedder().asked(items, characters) if task == "embedding" else model.reranker().asked_task(size)
    if request:
        return replace(work, asked=request)
    words = (mteb_task.metadata.description or mteb_task.metadata.name).split()
    if task == "embedding":
        return _timed(model, work, embed_job(model.embedder(), _made_up(words, characters, items), items))
    queries = _made_up(words, size.query_characters, size.queries)
    documents = _made_up(words, size.document_characters, size.documents)
    together = max(1, size.pairs // max(1, size.queries))  # candidates of one query, which prompts share
    pairs = [(queries[row // together], document) for row, document in enumerate(documents)]
    return _timed(model, work, rerank_job(model.reranker(), [pairs], items))


def rerank_job(reranker: Reranker, groups: Iterable[Sequence[TextPair]], pairs: int) -> Job[Sequence[Any]]:
    """Return the reranking of so many pairs, of which groups of texts are a sample."""
    whole = reranker.reads_order  # a list that is cut would be another
    parts = (part for group in groups for part in ([group] if whole else batches(group, _part_on(reranker.place))))
    return Job("rerank", pairs, [reranker.prepare(part) for part in parts], reranker.score)


def embed_job(encoder: Embedder | Matcher, texts: Sequence[str], size: int) -> Job[Sequence[str]]:
    """Return the embedding of so many texts; some of them are a sample."""
    part = _part_on(encoder.device)
    return Job("embed", size, [*batches(spread(texts, 16 * part), part)], encoder.encode)


def _part_on(place: object) -> int:
    """Return the texts or pairs of a timed part."""
    return 128 if str(place).startswith(("cuda", "mps")) else 16


def sampled_pairs(data: LoadedDataset, reranker: Reranker) -> Iterator[list[TextPair]]:
    """Yield whole prefix groups from several places of a dataset; those of a function have one query."""
    order, size = reranker.cut_by if reranker.cut_by[0] != "length" else ("query_first", 0)
    size = min(size, _PLACE_CHARACTERS)
    if order == "ranked":  # lists, which may be written together: as many as a GPU is kept busy by
        size = _PLACE_CHARACTERS if str(reranker.place).startswith("cpu") else GPU_SHARD_CHARACTERS
    groups = spread(cut_pairs(*data.to_read, (order, size)), _PLACES)
    return (pair_texts(data.to_read[0], group) for group in groups)


def _timed(model: Model, work: PlannedWork, job: Job[Any] | None) -> PlannedWork:
    """Add the tokens and seconds of some work."""
    if job is None or not job.units:
        return work
    sample: list[Any] = [*chain.from_iterable(job.units)]
    tokens: int | None = None
    if work.task == "reranking":
        tokens = model.reranker().tokens_of(job.units)
    elif isinstance(embedder := model.embedder(), UnimodelForExp1):
        tokens = sum(map(len, embedder.text_ids(sample, "document")))
    if tokens is not None:
        work = replace(work, tokens=round(tokens * work.items / len(sample)))
    return replace(work, seconds=work.items * job.seconds_each())


def plan_evaluation(
    systems: Sequence[System], data: ChosenData, device: torch.device, price_per_hour: float | None
) -> None:
    """Print what ``run_evaluation`` would do and take; run only a short probe of the model."""
    (system, *others), failures = systems, Failures()
    if any(other.name != system.name for other in others):
        raise UsageError("--plan counts the work of one system; name one, the others take as long")
    data.report_left_out(system)

    def planned() -> Iterable[PlannedDataset]:
        for dataset in data.datasets:
            with failures.kept(dataset.name):
                found = PlannedDataset(dataset, device)
                report_checks(dataset, found.collection, found.checks)
                yield found

    in_mteb = [(task, one) for one in data.mteb for task in data.tasks(system, one)]
    if print_plan(system, planned(), data.tasks(system), price_per_hour, in_mteb):
        warn_of_other_work(device.type)
    if others:
        stdout.print(f"so much for each of the {len(systems)} orders of the candidates", soft_wrap=True)
    failures.refuse(done=True)


def print_plan(
    system: System,
    datasets: Iterable[PlannedDataset],
    tasks: Sequence[Task],
    price: float | None,
    mteb: Iterable[tuple[Task, AbsTask]] = (),
) -> float:
    """Print datasets, queries, pairs, tokens, disk, and the expected time and cost of evaluating a system.

    ``price`` is that of an hour of this machine, in any currency; None prints hours alone. ``mteb`` has tasks of MTEB
    and what the system does there. Return the seconds that were foretold.
    """
    model, works, fusion, encoders = system.model, list[PlannedWork](), list[PlannedWork](), dict[str, Any]()
    assert model is not None  # noqa: S101 - for the type checker
    header = f"{'task':<10} {'dataset':<26} {'queries':>8} {'pairs/texts':>12} {'tokens':>14} {'disk':>9}"
    stdout.print(header, soft_wrap=True)

    def add(works: list[PlannedWork], work: PlannedWork) -> None:
        works.append(work)
        tokens = "-" if work.tokens is None else f"{work.tokens:,}"
        columns = f"{work.task:<10} {work.dataset:<26} {work.queries:>8,} {work.items:>12,} {tokens:>14}"
        stdout.print(f"{columns} {work.disk / 2**20:>5,.0f} MiB", soft_wrap=True)

    for data in datasets:
        if data.texts and data.search:  # before there are candidates
            documents, stage = data.texts[data.asked :], data.dataset.settings.first_stage
            encoder = encoders[stage] = encoders[stage] if stage in encoders else data.search.load()
            width = encoder.dimension or 0 if isinstance(encoder, Embedder) else 0  # a matcher keeps no vectors
            seconds = len(data.texts) * embed_job(encoder, documents or data.texts, len(data.texts)).seconds_each()
            kept = 4 * len(documents) * width
            add(fusion, PlannedWork(stage, data.dataset.name, data.asked, len(data.texts), kept, seconds=seconds))
        if data.searched is not None:
            found = sum(map(len, data.first_stage.run.values()))
            place, texts = (engine_of(data.dataset.settings), data.dataset.name), data.asked + len(data.whole.corpus)
            add(fusion, PlannedWork(*place, data.asked, texts, found * _LINE_BYTES, seconds=data.searched))
        for task in tasks:
            done = {work.dataset for work in works if work.task == "embedding"}
            if task == "embedding" and result_dataset(task, data.dataset) in done:
                continue  # once, whatever the first stages
            add(works, _on_collection(system, model, task, data))
            queries = data.collection.queries if task == "reranking" else {}
            if queries and (truncated := model.reranker().truncated_queries(queries)):
                stdout.print(truncation_note(data.dataset.name, truncated), soft_wrap=True)
    for task, mteb_task in mteb:
        if size := task_size(mteb_task):
            add(works, _on_mteb_task(model, task, mteb_task, size))
        else:
            stdout.print(f"{task:<10} {mteb_task.metadata.name:<26} MTEB publishes no size of it", soft_wrap=True)
    if asked := [work.asked for work in works if work.asked]:
        prices = [one.price for one in asked if one.price is not None]
        requests, tokens = sum(one.requests for one in asked), sum(one.tokens for one in asked)
        stdout.print(f"total: {RequestEstimate(requests, tokens, sum(prices) if prices else None)}", soft_wrap=True)
    counted = "tokens" if any(work.tokens for work in works) else "texts" if model.embed else "pairs"
    stages = {work.task for work in fusion}
    first = "first stages" if len(stages) > 1 else "".join(stages)
    for label, some, unit in ((first, fusion, "texts"), ("total", works, counted)):
        if seconds := sum(work.seconds for work in some):
            amount = sum(work.items if work.tokens is None else work.tokens for work in some)
            cost = "" if price is None else f", {seconds / 3600 * price:,.2f} at {price:g} an hour"
            speed, disk = f"(probe: {amount / seconds:,.0f} {unit} a second)", sum(work.disk for work in some) / 2**20
            stdout.print(
                f"{label}: {amount:,} {unit}, {disk:,.0f} MiB, {in_hours(seconds)}{cost} {speed}", soft_wrap=True
            )
    return sum(work.seconds for work in (*fusion, *works))


def _made_up(words: Sequence[str], characters: int, texts: int) -> list[str]:
    """Make texts of the mean length of so many, no two of which begin alike."""
    mean = characters // max(1, texts)
    made = (" ".join([str(row), *words[row % len(words) :], *words]) for row in range(64))
    return [(text * (1 + mean // len(text)))[: max(1, mean)] for text in made]
