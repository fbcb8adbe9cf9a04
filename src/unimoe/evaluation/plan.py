"""What an evaluation would take: pairs or texts, tokens, disk, time and cost.

Collections are counted, and a sample of each is timed for a moment; the rest is multiplied. The sizes of MTEB's tasks
come from the statistics that MTEB publishes with them, and texts of these lengths are made up to be timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from unimoe.core.console import in_hours, stdout
from unimoe.core.errors import UsageError
from unimoe.core.trec import Run
from unimoe.data.collection import Document
from unimoe.data.mteb_names import TaskSize, task_size
from unimoe.evaluation.chosen import ChosenData
from unimoe.evaluation.datasets import Dataset, Failures, LoadedDataset, report_checks
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.system import System
from unimoe.evaluation.tasks.embed import card_of, result_dataset
from unimoe.models.batching import batches
from unimoe.models.embedder import Embedder
from unimoe.models.model import Model
from unimoe.models.pair_model import PairModelReranker
from unimoe.models.reranker import Cut, Pair, candidate_pairs, cut_pairs, pair_texts, prepare, truncation_note
from unimoe.models.served.client import RequestEstimate
from unimoe.models.tree_attention import tree_tokens
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import Task
from unimoe.retrieval.embeddings import is_kept

if TYPE_CHECKING:
    from mteb import AbsTask

T = TypeVar("T")

_PLACES, _PLACE_CHARACTERS = 4, 2**16
"""Pairs are sampled in whole prefix groups at this many places of a dataset, with this much text at each."""

_TEXTS, _PART = 256, 16  # texts of a sample, texts or pairs of a timed part
_SECONDS = 2.0  # of a probe, after its warm-up
_LINE_BYTES = 40  # of a run's line besides its ids; a shard's entry is shorter
_QUERY_BYTES = 600  # of a query's scores and drill-down


class PlannedDataset(LoadedDataset):
    """A dataset for a plan, which embeds nothing: BM25's candidates stand for those of a model that are not cached.

    Attributes:
        texts: that the first stage has to embed, those of queries first; none where the candidates are its own.
        asked: the number of queries among them.
    """

    def __init__(self, dataset: Dataset, device: torch.device | None = None) -> None:
        super().__init__(dataset, device)
        self.texts, self.asked = self._stage.texts_to_embed(self.whole), len(self.whole.queries)
        self.search = self._stage.search
        if self.texts:
            by_words = self._stage.settings.model_copy(update={"first_stage": "bm25s"})
            self._stage = replace(self._stage, settings=by_words)

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
    collection, parts, queries = data.collection, list[Any](), len(data.collection.queries)
    if task == "reranking":
        collection, candidates = data.to_read
        pairs = list(candidate_pairs(collection, candidates))
        items = len(pairs)
        # The run, and the shards until it is written.
        disk = 2 * sum(len(query) + len(document) + _LINE_BYTES for query, document in pairs)
        reranker = model.reranker()
        asked = reranker.asked(collection, candidates)
        if asked is None:
            groups = (pair_texts(collection, group) for group in _groups(data, reranker.cut_by))
            parts = [part for group in groups for part in batches(group, _PART)]
    else:
        texts, read, embedder = [*data.pooled.queries.values()], data.read.corpus, model.embedder()
        if not _holds_vectors(system, embedder, data.pooled.name, read):
            texts = [*(document.full_text for document in read.values()), *texts]
        items, disk = len(texts), len(data.pooled.queries) * min(1000, len(data.pooled.corpus)) * _LINE_BYTES
        asked = embedder.asked(len(texts), sum(map(len, texts)))
        if asked is None:
            parts = [*batches(spread(texts, _TEXTS), _PART)]
    name = result_dataset(task, data.dataset)
    return _timed(model, PlannedWork(task, name, queries, items, disk + queries * _QUERY_BYTES, asked), parts)


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
    asked = model.embedder().asked(items, characters) if task == "embedding" else model.reranker().asked_task(size)
    if asked:
        return replace(work, asked=asked)
    words = (mteb_task.metadata.description or mteb_task.metadata.name).split()
    if task == "embedding":
        return _timed(model, work, [*batches(_made_up(words, characters, items), _PART)])
    queries = _made_up(words, size.query_characters, size.queries)
    documents = _made_up(words, size.document_characters, size.documents)
    together = max(1, size.pairs // max(1, size.queries))  # candidates of one query, which prompts share
    pairs = [(queries[row // together], document) for row, document in enumerate(documents)]
    return _timed(model, work, [*batches(pairs, _PART)])


def _timed(model: Model, work: PlannedWork, parts: Sequence[Sequence[Any]]) -> PlannedWork:
    """Add the tokens and seconds of some work, of which parts of pairs or of texts are a sample."""
    if not parts:
        return work
    if work.task != "reranking":
        embedder = model.embedder()
        if isinstance(embedder, UnimodelForExp1):
            whole = list(chain.from_iterable(parts))
            tokens = sum(map(len, embedder.text_ids(whole, "document")))
            work = replace(work, tokens=round(tokens * work.items / len(whole)))
        return replace(work, seconds=work.items * seconds_each(embedder.encode, parts))
    reranker = model.reranker()
    ready = [reranker.prepare(part) for part in parts]
    if isinstance(reranker, PairModelReranker):
        ids: list[Any] = list(chain.from_iterable(ready))
        work = replace(work, tokens=round(tree_tokens(ids) * work.items / len(ids)))
    return replace(work, seconds=work.items * seconds_each(reranker.score, ready))


def plan_evaluation(
    systems: Sequence[System], data: ChosenData, device: torch.device, price_per_hour: float | None
) -> None:
    """Print what ``run_evaluation`` would do and take; run only a short probe of the model."""
    (system, *others), failures = systems, Failures()
    if others:
        raise UsageError("--plan counts the work of one system; name one, the others take as long")
    data.report_left_out(system)

    def planned() -> Iterable[PlannedDataset]:
        for dataset in data.datasets:
            with failures.kept(dataset.name):
                found = PlannedDataset(dataset, device)
                report_checks(dataset, found.collection, found.checks)
                yield found

    in_mteb = [(task, one) for one in data.mteb for task in data.tasks(system, one)]
    print_plan(system, planned(), data.tasks(system), price_per_hour, in_mteb)
    failures.refuse(done=True)


def print_plan(
    system: System,
    datasets: Iterable[PlannedDataset],
    tasks: Sequence[Task],
    price: float | None,
    mteb: Iterable[tuple[Task, AbsTask]] = (),
) -> None:
    """Print datasets, queries, pairs, tokens, disk, and the expected time and cost of evaluating a system.

    ``price`` is that of an hour of this machine, in any currency; None prints hours alone. ``mteb`` has tasks of MTEB
    and what the system does there.
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
            parts = [*batches(spread(documents or data.texts, _TEXTS), _PART)]
            seconds = len(data.texts) * seconds_each(encoder.encode, parts)
            kept = 4 * len(documents) * width
            add(fusion, PlannedWork(stage, data.dataset.name, data.asked, len(data.texts), kept, seconds=seconds))
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


def prompt_sample(data: LoadedDataset, model: UnimodelForExp1) -> list[list[int]]:
    """Return the token ids of whole prefix groups from several places of a dataset."""
    pairs = list(chain.from_iterable(_groups(data, (model.pair_ids.order, _PLACE_CHARACTERS))))
    return list(map(list, prepare(PairModelReranker(model), data.to_read[0], pairs))) if pairs else []


def _groups(data: LoadedDataset, cut_by: Cut) -> Sequence[list[Pair]]:
    """Return whole prefix groups from several places of a dataset; those of a function have one query."""
    order, size = cut_by if cut_by[0] != "length" else ("query_first", 0)
    return spread(cut_pairs(*data.to_read, (order, min(size, _PLACE_CHARACTERS))), _PLACES)


def seconds_each(run: Callable[[Sequence[T]], object], parts: Sequence[Sequence[T]]) -> float:
    """Return the seconds that a function takes for an item, by as many parts as the time allows.

    The last part is the warm-up. None is done twice, as what the model keeps would make it quicker.
    """
    *timed, last = parts
    if timed:
        run(last)
    done, start = 0, time.perf_counter()
    for part in timed or [last]:
        run(part)
        done += len(part)
        if time.perf_counter() - start > _SECONDS:
            break
    return (time.perf_counter() - start) / done


def spread(items: Sequence[T], count: int) -> Sequence[T]:
    """Return about ``count`` items, from the whole of a list."""
    return items[:: max(1, len(items) // count)]


def _made_up(words: Sequence[str], characters: int, texts: int) -> list[str]:
    """Make texts of the mean length of so many, no two of which begin alike."""
    mean = characters // max(1, texts)
    made = (" ".join([str(row), *words[row % len(words) :], *words]) for row in range(_TEXTS // 4))
    return [(text * (1 + mean // len(text)))[: max(1, mean)] for text in made]
