"""What an evaluation would take: counted where it can be, sampled and probed where it cannot."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from unimoe.console import stdout
from unimoe.evaluation.measurement import Measurement
from unimoe.evaluation.shards import Pair, cut_shards, question_ids
from unimoe.evaluation.subjects import Subject
from unimoe.evaluation.suite import measurements
from unimoe.evaluation.tiers import LoadedDataset
from unimoe.models.token_tree import tree_tokens
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import Task

T = TypeVar("T")

_SAMPLES, _SAMPLE_CHARACTERS = 4, 2**16
"""Whole prefix groups are tokenised at so many places of a dataset, so much text at each."""

_PROBE_SECONDS, _PROBE_QUESTIONS = 5.0, 32
_LINE_BYTES = 40  # of a run's line besides its ids; a shard's entry is shorter
_QUERY_BYTES = 600  # of a query's scores and drill-down


@dataclass(frozen=True)
class Work:
    """One task on one dataset.

    Attributes:
        items: pairs to rerank, or texts to embed.
        tokens: that pass through the model, shared beginnings once; from a sample.
        disk: bytes that run, result and shards take.
    """

    task: Task
    dataset: str
    queries: int
    items: int
    tokens: int
    disk: int


def print_plan(subject: Subject, datasets: Iterable[LoadedDataset], tasks: Sequence[Task], price: float | None) -> None:
    """Print datasets, queries, pairs, tokens, disk, and the time and cost that a short probe lets expect.

    Args:
        subject: what would be evaluated.
        datasets: on which collections.
        tasks: those of the subject's that are wanted.
        price: of an hour of this machine, in any currency; null prints hours alone.
    """
    if subject.load is None:
        raise ValueError("the first stage alone needs no plan")
    model, works, probe = subject.load(), list[Work](), list[list[int]]()
    header = f"{'task':<10} {'dataset':<26} {'queries':>8} {'pairs/texts':>12} {'tokens':>14} {'disk':>9}"
    stdout.print(header, soft_wrap=True)
    for data in datasets:
        for measurement in measurements([subject], data):
            if measurement.task in tasks:
                work, sample = _work(measurement, model)
                works.append(work)
                probe = probe or sample
                _print_work(work)
    if probe:
        _print_total(works, probe_speed(model, probe), price)


def probe_speed(model: UnimodelForExp1, sequences: Sequence[list[int]]) -> float:
    """Tokens per second of this model on this machine, measured for some seconds on a dataset's own questions.

    Each question is scored once: what is kept from a first pass would make a second one quicker.
    """
    parts = [sequences[begin : begin + _PROBE_QUESTIONS] for begin in range(0, len(sequences), _PROBE_QUESTIONS)]
    if len(parts) > 1:
        model.rerank_ids(parts.pop())  # a warm-up
    tokens, start = 0, time.perf_counter()
    for part in parts:
        model.rerank_ids(part)
        tokens += tree_tokens(part)
        if time.perf_counter() - start > _PROBE_SECONDS:
            break
    return tokens / (time.perf_counter() - start)


def _work(measurement: Measurement, model: UnimodelForExp1) -> tuple[Work, list[list[int]]]:
    data, task = measurement.data, measurement.task
    if task == "reranking":
        items = sum(map(len, data.candidates.values()))
        tokens, sample = _question_tokens(data, model, items)
        lines = sum(len(q) + len(d) + _LINE_BYTES for q, found in data.candidates.items() for d in found)
        disk = 2 * lines  # the run, and the shards until it is written
    else:
        texts = [document.full_text for document in data.pooled.corpus.values()]
        items = len(texts) + len(data.pooled.queries)
        tokens, sample = _text_tokens(texts, model, items)
        disk = len(data.pooled.queries) * min(1000, len(texts)) * _LINE_BYTES
    queries = len(data.collection.queries)
    return Work(task, measurement.dataset, queries, items, tokens, disk + queries * _QUERY_BYTES), sample


def _question_tokens(data: LoadedDataset, model: UnimodelForExp1, items: int) -> tuple[int, list[list[int]]]:
    """Tokens of all questions, from whole prefix groups spread over the dataset, and the token ids of those."""
    collection = data.collection
    shards = cut_shards(collection, data.candidates, model.pair_ids.order, _SAMPLE_CHARACTERS)
    pairs: list[Pair] = [pair for shard in _spread(shards) for pair in shard]
    if not pairs:
        return 0, []
    sample = question_ids(model, collection, pairs)
    return round(tree_tokens(sample) * items / len(pairs)), sample


def _text_tokens(texts: Sequence[str], model: UnimodelForExp1, items: int) -> tuple[int, list[list[int]]]:
    sample = model.text_ids(_spread(texts, 256), "document")
    return round(sum(map(len, sample)) * items / max(1, len(sample))), sample


def _spread(items: Sequence[T], count: int = _SAMPLES) -> Sequence[T]:
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
