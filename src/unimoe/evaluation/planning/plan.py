"""Estimates what an evaluation would take: counts pairs and disk, samples tokens, and probes the speed.

Collections are counted and sampled. The sizes of MTEB's tasks come from the statistics that MTEB publishes with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from unimoe.core.console import in_hours, stdout
from unimoe.data.mteb_sizes import TaskSize, task_size
from unimoe.evaluation.planning.dataset import PlannedDataset
from unimoe.evaluation.planning.gauges import ItemGauge, ServedGauge, gauge_of, probed_speed, spread
from unimoe.evaluation.reranking.rerankers import PairModelReranker, reranker_of, truncation_note
from unimoe.evaluation.reranking.shards import Pair, cut_shards, prepare
from unimoe.evaluation.spec import result_dataset
from unimoe.evaluation.systems.system import System
from unimoe.evaluation.tiers.datasets import LoadedDataset
from unimoe.models.batching import batches
from unimoe.models.pair_model import PairModel
from unimoe.models.token_tree import tree_tokens
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import Task

if TYPE_CHECKING:
    from mteb import AbsTask

_SAMPLES, _SAMPLE_CHARACTERS = 4, 2**16
"""Tokens are counted in whole prefix groups at this many places of a dataset, with this much text at each."""

_PROBE_PROMPTS = 32
_LINE_BYTES = 40  # of a run's line besides its ids; a shard's entry is shorter
_QUERY_BYTES = 600  # of a query's scores and drill-down


@dataclass(frozen=True)
class Work:
    """What one task on one dataset takes.

    Attributes:
        task: one of a system's tasks, or the first stage's ``fusion``.
        items: pairs to rerank, or texts to embed.
        tokens: that pass through the model, shared beginnings once; estimated from a sample. None where pairs or
            texts are counted instead.
        disk: bytes of run, result and shards.
    """

    task: Task | Literal["fusion"]
    dataset: str
    queries: int
    items: int
    tokens: int | None
    disk: int


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
    model, works, samples, fusion = system.model(), list[Work](), list[list[Any]](), FusionPlan()
    gauge = TokenGauge(model) if callable(getattr(model, "rerank_ids", None)) else gauge_of(model)
    header = f"{'task':<10} {'dataset':<26} {'queries':>8} {'pairs/texts':>12} {'tokens':>14} {'disk':>9}"
    stdout.print(header, soft_wrap=True)
    for data in datasets:
        if data.texts:
            fusion.add(data)
            _print_work(fusion.works[-1])
        for task in system.tasks:
            if task in tasks:
                work, sample = _work(task, data, gauge)
                works.append(work)
                samples.append(sample)
                _print_work(work)
                queries = data.collection.queries if task == "reranking" else {}
                if queries and (truncated := reranker_of(model).truncated_queries(queries)):
                    stdout.print(truncation_note(data.dataset.name, truncated), soft_wrap=True)
    for task, mteb_task in mteb:
        size = task_size(mteb_task)
        if size is None:
            stdout.print(f"{task:<10} {mteb_task.metadata.name:<26} MTEB publishes no size of it", soft_wrap=True)
            continue
        samples.append(gauge.described((mteb_task.metadata.description or mteb_task.metadata.name).split(), size))
        works.append(_mteb_work(task, mteb_task, size, gauge))
        if isinstance(gauge, ServedGauge):
            gauge.task(size)
        _print_work(works[-1])
    if fusion.works:
        _print_total("fusion", fusion.works, "texts", _amount(fusion.works) / fusion.speed, price)
    if isinstance(gauge, ServedGauge):
        stdout.print(f"total: {gauge.total()}", soft_wrap=True)
    if any(samples):
        _print_total("total", works, gauge.unit, gauge.seconds([_amount([work]) for work in works], samples), price)


class FusionPlan:
    """What a fused first stage has to embed before there are candidates.

    Attributes:
        works: of each dataset.
        speed: texts per second, measured on the first dataset.
    """

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.speed, self._dimension = 0.0, 0

    def add(self, data: PlannedDataset) -> None:
        """Count a dataset."""
        texts = [document.full_text for document in data.collection.corpus.values()]
        if not self.works:
            encoder = data.hybrid.load()
            gauge, self._dimension = ItemGauge(encoder), encoder.dimension
            self.speed = gauge.speed(gauge.texts(texts))
        disk = 4 * self._dimension * len(texts)
        queries = data.texts - len(texts)
        self.works.append(Work("fusion", data.dataset.name, queries, data.texts, None, disk))


def probe_speed(model: PairModel, sequences: Sequence[list[int]]) -> float:
    """Return the tokens per second of this model on this machine, measured for some seconds on a dataset's own prompts.

    Each prompt is scored once: what is kept from a first pass would make a second one quicker.
    """
    return probed_speed(model.rerank_ids, list(batches(sequences, _PROBE_PROMPTS)), tree_tokens)


class TokenGauge:
    """Counts the tokens of a model of token ids, and probes its speed."""

    unit = "tokens"

    def __init__(self, model: Any) -> None:
        self.model: UnimodelForExp1 = model

    def described(self, words: Sequence[str], size: TaskSize) -> list[list[int]]:
        """Return prompts made of some words, where no collection is at hand."""
        texts = [" ".join((list(words[begin:]) + list(words[:begin])) * 4) for begin in range(4 * _PROBE_PROMPTS)]
        return self.model.pair_ids([(f"{number} {text[:60]}", text) for number, text in enumerate(texts)])

    def seconds(self, amounts: Sequence[int], samples: Sequence[list[list[int]]]) -> float:
        """Return how long some amounts of tokens take, by the first sample: tokens are alike everywhere."""
        return sum(amounts) / probe_speed(self.model, next(filter(None, samples)))


def _work(task: Task, data: LoadedDataset, gauge: TokenGauge | ItemGauge) -> tuple[Work, list[Any]]:
    tokens: int | None = None
    if task == "reranking":
        items = sum(map(len, data.candidates.values()))
        if isinstance(gauge, TokenGauge):
            tokens, sample = prompt_tokens(data, gauge.model, items)
        else:
            sample = gauge.pairs(data.collection, data.candidates)
        lines = sum(len(q) + len(d) + _LINE_BYTES for q, found in data.candidates.items() for d in found)
        disk = 2 * lines  # the run, and the shards until it is written
    else:
        texts = [document.full_text for document in data.pooled.corpus.values()]
        items = len(texts) + len(data.pooled.queries)
        if isinstance(gauge, TokenGauge):
            tokens, sample = _text_tokens(texts, gauge.model, items)
        else:
            sample = gauge.texts([*texts, *data.pooled.queries.values()])
        disk = len(data.pooled.queries) * min(1000, len(texts)) * _LINE_BYTES
    queries = len(data.collection.queries)
    return Work(task, result_dataset(task, data.dataset), queries, items, tokens, disk + queries * _QUERY_BYTES), sample


def _mteb_work(task: Task, mteb_task: AbsTask, size: TaskSize, gauge: TokenGauge | ItemGauge) -> Work:
    items = size.pairs if task == "reranking" else size.queries + size.documents
    tokens = _mteb_tokens(task, mteb_task, size, gauge.model) if isinstance(gauge, TokenGauge) else None
    return Work(task, mteb_task.metadata.name, size.queries, items, tokens, items * _LINE_BYTES)


def _mteb_tokens(task: Task, mteb_task: AbsTask, size: TaskSize, model: UnimodelForExp1) -> int:
    description = mteb_task.metadata.description or mteb_task.metadata.name  # a few have none
    ids = model.text_ids([description], "plain") if hasattr(model, "text_ids") else model.pair_ids([("", description)])
    rate = len(ids[0]) / len(description)  # tokens of a character of English prose
    if task == "reranking":
        return round(_reranking_tokens(size, model, rate))
    items, characters = size.queries + size.documents, size.query_characters + size.document_characters
    return round(items * min(model.text_ids.max_length, rate * characters / max(1, items)))


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


def prompt_tokens(data: LoadedDataset, model: UnimodelForExp1, items: int) -> tuple[int, list[list[int]]]:
    """Estimate the tokens of all prompts by whole prefix groups spread over the dataset; return those groups' ids."""
    collection = data.collection
    shards = cut_shards(collection, data.candidates, model.pair_ids.order, _SAMPLE_CHARACTERS)
    pairs: list[Pair] = [pair for shard in spread(shards, _SAMPLES) for pair in shard]
    if not pairs:
        return 0, []
    sample = list(map(list, prepare(PairModelReranker(model), collection, pairs)))
    return round(tree_tokens(sample) * items / len(pairs)), sample


def _text_tokens(texts: Sequence[str], model: UnimodelForExp1, items: int) -> tuple[int, list[list[int]]]:
    sample = model.text_ids(spread(texts, 256), "document")
    return round(sum(map(len, sample)) * items / max(1, len(sample))), sample


def _print_work(work: Work) -> None:
    tokens = "-" if work.tokens is None else f"{work.tokens:,}"
    stdout.print(
        f"{work.task:<10} {work.dataset:<26} {work.queries:>8,} {work.items:>12,} {tokens:>14} "
        f"{work.disk / 2**20:>5,.0f} MiB",
        soft_wrap=True,
    )


def _amount(works: Sequence[Work]) -> int:
    return sum(work.items if work.tokens is None else work.tokens for work in works)


def _print_total(label: str, works: Sequence[Work], unit: str, seconds: float, price: float | None) -> None:
    amount, hours = _amount(works), seconds / 3600
    cost = f", {hours * price:,.2f} at {price:g} an hour" if price is not None else ""
    disk, speed = sum(work.disk for work in works) / 2**20, amount / seconds
    stdout.print(
        f"{label}: {amount:,} {unit}, {disk:,.0f} MiB, {in_hours(seconds)}{cost} (probe: {speed:,.0f} {unit} a second)",
        soft_wrap=True,
    )
