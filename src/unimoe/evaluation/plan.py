"""Estimates what an evaluation would take: counts pairs and disk, samples tokens, and probes the speed.

Collections are counted and sampled. The sizes of MTEB's tasks come from the statistics that MTEB publishes with them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from unimoe.console import stdout
from unimoe.evaluation.mteb.sizes import TaskSize, task_size
from unimoe.evaluation.rerankers import UnimodelReranker, truncation_note
from unimoe.evaluation.shards import Pair, cut_shards, prepare
from unimoe.evaluation.spec import result_dataset
from unimoe.evaluation.systems import System
from unimoe.evaluation.tiers import LoadedDataset
from unimoe.models.token_tree import tree_tokens
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import Task

if TYPE_CHECKING:
    from mteb import AbsTask

T = TypeVar("T")

_SAMPLES, _SAMPLE_CHARACTERS = 4, 2**16
"""Tokens are counted in whole prefix groups at this many places of a dataset, with this much text at each."""

_PROBE_SECONDS, _PROBE_PROMPTS = 5.0, 32
_LINE_BYTES = 40  # of a run's line besides its ids; a shard's entry is shorter
_QUERY_BYTES = 600  # of a query's scores and drill-down


@dataclass(frozen=True)
class Work:
    """What one task on one dataset takes.

    Attributes:
        items: pairs to rerank, or texts to embed.
        tokens: that pass through the model, shared beginnings once; estimated from a sample.
        disk: bytes of run, result and shards.
    """

    task: Task
    dataset: str
    queries: int
    items: int
    tokens: int
    disk: int


def print_plan(
    system: System,
    datasets: Iterable[LoadedDataset],
    tasks: Sequence[Task],
    price: float | None,
    mteb: Iterable[tuple[Task, AbsTask]] = (),
) -> None:
    """Print datasets, queries, pairs, tokens, disk, and the expected time and cost of evaluating a system.

    ``price`` is that of an hour of this machine, in any currency; None prints hours alone. ``mteb`` has tasks of MTEB
    and what the system does there.
    """
    model, works, probe = system.model(), list[Work](), list[list[int]]()
    reranker = UnimodelReranker(model)
    header = f"{'task':<10} {'dataset':<26} {'queries':>8} {'pairs/texts':>12} {'tokens':>14} {'disk':>9}"
    stdout.print(header, soft_wrap=True)
    for data in datasets:
        for task in system.tasks:
            if task in tasks:
                work, sample = _work(task, data, model)
                works.append(work)
                probe = probe or sample
                _print_work(work)
                if task == "reranking" and (truncated := reranker.truncated_queries(data.collection.queries)):
                    stdout.print(truncation_note(data.dataset.name, truncated), soft_wrap=True)
    for task, mteb_task in mteb:
        size = task_size(mteb_task)
        if size is None:
            stdout.print(f"{task:<10} {mteb_task.metadata.name:<26} MTEB publishes no size of it", soft_wrap=True)
            continue
        probe = probe or _prose(mteb_task, model)
        works.append(_mteb_work(task, mteb_task, size, model))
        _print_work(works[-1])
    if probe:
        _print_total(works, probe_speed(model, probe), price)


def probe_speed(model: UnimodelForExp1, sequences: Sequence[list[int]]) -> float:
    """Return the tokens per second of this model on this machine, measured for some seconds on a dataset's own prompts.

    Each prompt is scored once: what is kept from a first pass would make a second one quicker.
    """
    parts = [sequences[begin : begin + _PROBE_PROMPTS] for begin in range(0, len(sequences), _PROBE_PROMPTS)]
    if len(parts) > 1:
        model.rerank_ids(parts.pop())  # a warm-up
    tokens, start = 0, time.perf_counter()
    for part in parts:
        model.rerank_ids(part)
        tokens += tree_tokens(part)
        if time.perf_counter() - start > _PROBE_SECONDS:
            break
    return tokens / (time.perf_counter() - start)


def _work(task: Task, data: LoadedDataset, model: UnimodelForExp1) -> tuple[Work, list[list[int]]]:
    if task == "reranking":
        items = sum(map(len, data.candidates.values()))
        tokens, sample = prompt_tokens(data, model, items)
        lines = sum(len(q) + len(d) + _LINE_BYTES for q, found in data.candidates.items() for d in found)
        disk = 2 * lines  # the run, and the shards until it is written
    else:
        texts = [document.full_text for document in data.pooled.corpus.values()]
        items = len(texts) + len(data.pooled.queries)
        tokens, sample = _text_tokens(texts, model, items)
        disk = len(data.pooled.queries) * min(1000, len(texts)) * _LINE_BYTES
    queries = len(data.collection.queries)
    return Work(task, result_dataset(task, data.dataset), queries, items, tokens, disk + queries * _QUERY_BYTES), sample


def _mteb_work(task: Task, mteb_task: AbsTask, size: TaskSize, model: UnimodelForExp1) -> Work:
    description = mteb_task.metadata.description or mteb_task.metadata.name  # a few have none
    rate = len(model.text_ids([description], "plain")[0]) / len(description)  # tokens of a character of English prose
    if task == "reranking":
        items, tokens = size.pairs, _reranking_tokens(size, model, rate)
    else:
        items, characters = size.queries + size.documents, size.query_characters + size.document_characters
        tokens = items * min(model.text_ids.max_length, rate * characters / max(1, items))
    return Work(task, mteb_task.metadata.name, size.queries, items, round(tokens), items * _LINE_BYTES)


def _reranking_tokens(size: TaskSize, model: UnimodelForExp1, rate: float) -> float:
    """Estimate the tokens of all prompts: the beginning counts once for each query or, document first, document."""
    prompt, documents = model.pair_ids, size.documents
    query = rate * size.query_characters / max(1, size.queries)
    document = rate * size.document_characters / max(1, documents)
    first, second, groups = query, document, size.queries
    if prompt.order == "document_first":
        first, second, groups = document, query, documents
    instruction = len(model.pair_ids([("", "")])[0])
    return groups * min(prompt.room, instruction + first) + size.pairs * min(prompt.room, second + len(prompt.suffix))


def _prose(mteb_task: AbsTask, model: UnimodelForExp1) -> list[list[int]]:
    """Return prompts made from the description of a task, to probe the speed where no collection is at hand."""
    words = (mteb_task.metadata.description or mteb_task.metadata.name).split()
    texts = [" ".join((words[begin:] + words[:begin]) * 4) for begin in range(4 * _PROBE_PROMPTS)]
    return model.pair_ids([(f"{number} {text[:60]}", text) for number, text in enumerate(texts)])


def prompt_tokens(data: LoadedDataset, model: UnimodelForExp1, items: int) -> tuple[int, list[list[int]]]:
    """Estimate the tokens of all prompts by whole prefix groups spread over the dataset; return those groups' ids."""
    collection = data.collection
    shards = cut_shards(collection, data.candidates, model.pair_ids.order, _SAMPLE_CHARACTERS)
    pairs: list[Pair] = [pair for shard in spread(shards) for pair in shard]
    if not pairs:
        return 0, []
    sample = list(map(list, prepare(UnimodelReranker(model), collection, pairs)))
    return round(tree_tokens(sample) * items / len(pairs)), sample


def _text_tokens(texts: Sequence[str], model: UnimodelForExp1, items: int) -> tuple[int, list[list[int]]]:
    sample = model.text_ids(spread(texts, 256), "document")
    return round(sum(map(len, sample)) * items / max(1, len(sample))), sample


def spread(items: Sequence[T], count: int = _SAMPLES) -> Sequence[T]:
    """Return about ``count`` items, from the whole of a list."""
    return items[:: max(1, len(items) // count)]


def _print_work(work: Work) -> None:
    stdout.print(
        f"{work.task:<10} {work.dataset:<26} {work.queries:>8,} {work.items:>12,} {work.tokens:>14,} "
        f"{work.disk / 2**20:>5,.0f} MiB",
        soft_wrap=True,
    )


def _print_total(works: Sequence[Work], speed: float, price: float | None) -> None:
    tokens = sum(work.tokens for work in works)
    hours = tokens / speed / 3600
    time_text = f"{hours:,.1f} hours" if hours >= 2 else f"{hours * 60:,.0f} minutes"
    cost = f", {hours * price:,.2f} at {price:g} an hour" if price is not None else ""
    disk = sum(work.disk for work in works) / 2**20
    stdout.print(
        f"total: {tokens:,} tokens, {disk:,.0f} MiB, {time_text}{cost} (probe: {speed:,.0f} tokens a second)",
        soft_wrap=True,
    )
