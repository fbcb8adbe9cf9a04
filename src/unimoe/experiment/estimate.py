"""How long an experiment will take: the speed of its own model on its own texts, times the counts of its config.

Work is counted in the matrix products of its linear layers, forward and backward.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from unimoe.config import Experiment
from unimoe.config.training import ArmConfig, ArmTask
from unimoe.evaluation.chosen import load_extra_systems, planned_extra_systems
from unimoe.evaluation.datasets import LoadedDataset, tier_datasets
from unimoe.evaluation.plan import PlannedDataset, prompt_sample, spread
from unimoe.evaluation.system import ZERO_SHOT_ARM
from unimoe.experiment.job import ANALYZE, checked_gates, smoke_version
from unimoe.models.adapter import adapter_parameters
from unimoe.models.batching import default_token_budget
from unimoe.models.checkpoint import ADAPTER_FILE, folder_name
from unimoe.models.device import choose_dtype, release_memory, synchronize
from unimoe.models.frozen_layers import MEMORY_LIMIT, SETS_LIMIT
from unimoe.models.loader import ModelLoader
from unimoe.models.tree_attention import tree_tokens
from unimoe.results import arm_dir, result_path
from unimoe.training.aggregation import TrainingTask
from unimoe.training.examples import EmbeddingSet, RankingSet, TrainingData, load_training_data
from unimoe.training.gradients import ArmGradients, TaskBatches
from unimoe.training.trainer import model_in_training

_SPREAD = 0.2
"""How far the low and the high end of an estimate are from its middle."""

_LONG_SECONDS = 30 * 60.0
_WORTH_NAMING = 0.9
"""The part of the time that a shorter way must stay below."""
_EVALUATION_SECONDS = 0.5  # candidates, scores and files of one evaluation
_ANALYSIS_SECONDS = 8.0  # resampling, figures, report


@dataclass(frozen=True)
class Cost:
    """Seconds, and floating-point operations of matrix products."""

    seconds: float = 0.0
    flop: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.flop + other.flop)

    def __mul__(self, times: float) -> Cost:
        return Cost(self.seconds * times, self.flop * times)

    @property
    def range(self) -> tuple[float, float]:
        """The low and the high end of the seconds."""
        return self.seconds * (1 - _SPREAD), self.seconds * (1 + _SPREAD)


@dataclass(frozen=True)
class Item:
    """What one item of some work costs above the frozen layers, and in them, and the bytes of its states from there."""

    own: Cost
    frozen: Cost
    state_bytes: float

    def passes(self, items: float, times: float, limit: int, whole: float | None = None) -> Cost:
        """Return the cost of so many passes over some items; the frozen layers' states of the whole set are kept.

        They are computed in every pass where they are above the limit of memory.
        """
        whole = items if whole is None else whole
        kept = self.state_bytes * whole <= limit
        return self.own * (items * times) + self.frozen * (whole * min(times, 1) if kept else items * times)


@dataclass(frozen=True)
class Speeds:
    """What a probe has measured.

    Attributes:
        items: a query of a ranking batch (``rank_only``), a pair of an embedding batch (``emb_only``), forward and
            backward; a pair to rerank (``rerank``) and a text to embed (``embed``).
        load: of loading the base model.
        pairs: pairs to rerank for each query.
        queries: judged queries of the evaluation.
        documents: documents of its corpus.
    """

    items: Mapping[str, Item]
    load: Cost
    pairs: float
    queries: int
    documents: int


class RunEstimate(NamedTuple):
    """What a run is expected to cost, a line for each shorter way, and the seconds of one unit of each phase."""

    cost: Cost
    shorter: list[str]
    units: dict[str, float]


def estimate(
    experiment: Experiment, loader: ModelLoader, started: float, training: TrainingData | None = None
) -> RunEstimate:
    """Estimate what a run costs that started then, by ``time.perf_counter``; finished parts are left out.

    ``loader`` is that of its models, ``training`` are its examples, where they are loaded.

    Raises:
        UnimoeError: the experiment cannot run.
    """
    (dataset,) = tier_datasets(experiment, "bundled")
    data = LoadedDataset(dataset, loader.device)
    speeds = measure(loader, experiment, data, training or load_training_data(experiment))
    release_memory()
    left = job_cost(experiment, speeds)
    whole = left + Cost(time.perf_counter() - started)
    return RunEstimate(whole, list(shorter_ways(experiment, speeds, whole)), _unit_seconds(experiment, speeds))


def planned(experiment: Experiment, device: torch.device, started: float) -> Iterator[str]:
    """Yield what an experiment costs on a device, and shorter ways, in words; nothing is written."""
    checked_gates(experiment)
    loader = ModelLoader(experiment, device, choose_dtype(device, experiment.model.dtype, trains=True))
    training = load_training_data(experiment)
    expected = estimate(experiment, loader, started, training)
    seeds = len(experiment.seeds)
    yield f"{in_words(expected.cost)} for {experiment.name}, {seeds} seed{'s' * (seeds > 1)}, on this device"
    yield from expected.shorter
    yield training.in_words()
    if beside := load_extra_systems(experiment, device, loader.dtype):
        (dataset,) = tier_datasets(experiment, "bundled")
        yield from planned_extra_systems(beside, PlannedDataset(dataset, device))


def measure(loader: ModelLoader, experiment: Experiment, data: LoadedDataset, training: TrainingData) -> Speeds:
    """Measure real batches of the experiment's model: training, reranking, embedding, frozen layers. It takes seconds.

    Raises:
        UnimoeError: the experiment cannot run.
    """
    import unimoe.evaluation.mteb.tasks  # noqa: F401 - seconds, which the job spends too

    training.refuse_reported(data.collection)
    for arm in experiment.arms.values():
        training.refuse_too_few(arm.task)
    tokens = default_token_budget(loader.device) // 2
    small = _small(experiment, tokens)
    base = loader.fresh_base()
    load = _measured(loader, loader.fresh_base)  # again, from files that are in memory now, as they are for each arm
    peft, model = model_in_training(small, base, seed=0)
    weights = adapter_parameters(peft)
    model.eval()
    examples = training.probe(small.training)
    ranking, pairs = examples.ranking(model), examples.embedding(model)

    prompts = prompt_sample(data, model)
    read, queries = data.read.corpus, data.pooled.queries
    texts = spread([*(document.full_text for document in read.values()), *queries.values()], 512)
    repeated = (len(read) + len(queries)) / (len(data.pooled.corpus) + len(queries))  # by passages
    text_ids = model.text_ids(texts, "document")
    sample, some_texts = _head(prompts, tokens), texts[: len(_head(text_ids, tokens))]
    # The second run counts: the first one warms up, and the states of its frozen layers are kept.
    model.rerank_ids(sample)
    rerank = _measured(loader, lambda: model.rerank_ids(sample))
    model.encode(some_texts, kind="document")
    encode = _measured(loader, lambda: model.encode(some_texts, kind="document"))

    def step(task: ArmTask, data: RankingSet | EmbeddingSet) -> Cost:
        arm, batch = ArmConfig(task=task, learning_rate=1.0), TaskBatches(data, [range(len(data.groups))])
        kind: TrainingTask = "ranking" if task == "rank_only" else "embedding"
        gradients = ArmGradients(small, arm, model, weights, {kind: batch}, Path("not written"))
        if loader.device.type != "cpu":
            gradients.add(0)  # a GPU loads its kernels in the first pass
        return _measured(loader, lambda: gradients.add(0))

    ranked, embedded = tree_tokens(ranking.prompts.ids), (pairs.queries + pairs.documents).tokens
    others = ranking.prompts.ids[::-1]  # in another order they are another set, whose states are not kept yet
    lower = _measured(loader, lambda: model.kept_states(others)) * (1 / ranked) if model.frozen_layers else Cost()
    state_bytes = base.model.config.hidden_size * base.model.get_input_embeddings().weight.element_size()
    model.train()

    def item(cost: Cost, tokens: int, of_each: float) -> Item:
        return Item(cost * (of_each / max(1, tokens)), lower * of_each, state_bytes * of_each)

    return Speeds(
        {
            "rank_only": item(step("rank_only", ranking), ranked, ranked / len(ranking.groups)),
            "emb_only": item(step("emb_only", pairs), embedded, embedded / len(pairs.groups)),
            "rerank": item(rerank, tree_tokens(sample), tree_tokens(prompts) / max(1, len(prompts))),
            "embed": item(encode, _tokens(text_ids[: len(some_texts)]), _tokens(text_ids) / len(texts) * repeated),
        },
        load,
        pairs=sum(map(len, data.to_read[1].values())) / max(1, len(data.candidates)),
        queries=len(data.collection.qrels),
        documents=len(data.whole.corpus),
    )


def job_cost(experiment: Experiment, speeds: Speeds, *, fresh: bool = False) -> Cost:
    """Return what the experiment still costs; with ``fresh``, what it costs in an empty folder."""
    folder, (bundled,) = Path(experiment.output_dir), tier_datasets(experiment, "bundled")
    arms = [(name, seed, arm.task) for seed in experiment.seeds for name, arm in experiment.arms.items()]

    def is_trained(arm: str, seed: int) -> bool:
        return (arm_dir(folder, arm, seed) / folder_name("last") / ADAPTER_FILE).exists()

    def evaluations(task: str, but: str) -> int:
        wanted = [(arm, seed) for arm, seed, own in [(ZERO_SHOT_ARM, None, "joint"), *arms] if own != but]
        return sum(fresh or not result_path(folder, *system, task, bundled.name).exists() for system in wanted)

    trained = [task for arm, seed, task in arms if fresh or not is_trained(arm, seed)]
    reranks, embeds = evaluations("reranking", ""), evaluations("embedding", "rank_only")
    pairs, texts = _evaluated(experiment, speeds)
    return (
        _training_cost(experiment, speeds, trained)
        + speeds.items["rerank"].passes(pairs, reranks, SETS_LIMIT)
        + speeds.items["embed"].passes(texts, embeds, SETS_LIMIT)
        + Cost(_EVALUATION_SECONDS) * (reranks + embeds)
        + speeds.load * (2 + 2 * len(trained))
        + Cost(_ANALYSIS_SECONDS)
    )


def in_words(cost: Cost) -> str:
    """Return a cost as a range of minutes or seconds, and its work."""
    low, high = cost.range
    if high < 120:
        time_text = f"{low:.0f} to {high:.0f} seconds"
    else:
        few, many = max(1, math.floor(low / 60)), math.ceil(high / 60)
        time_text = f"{few} to {many} minutes"
    return f"{time_text}, {cost.flop / 1e12:,.3g} TFLOP"


def shorter_ways(experiment: Experiment, speeds: Speeds, cost: Cost) -> Iterator[str]:
    """Yield a line for each clearly shorter way to run an experiment whose cost is long."""
    if cost.seconds <= _LONG_SECONDS:
        return
    ways = {"--smoke": smoke_version(experiment)}
    if len(experiment.seeds) > 1:
        one = experiment.model_copy(update={"seeds": experiment.seeds[:1]})
        without = " --set gates=null" if experiment.gates else ""  # a gate of its own may ask for more seeds
        ways[f"--set seeds='{one.seeds}'{without}"] = one
    tier = experiment.evaluation.bundled
    if queries := min(tier.queries, speeds.queries) // 2:
        half = tier.model_copy(update={"queries": queries})
        evaluation = experiment.evaluation.model_copy(update={"bundled": half})
        ways[f"--set evaluation.bundled.queries={queries}"] = experiment.model_copy(update={"evaluation": evaluation})
    for option, way in ways.items():
        needed = job_cost(way, speeds, fresh=True)
        if needed.seconds < _WORTH_NAMING * cost.seconds:
            yield f"shorter: {option}, {in_words(needed)}"


def _training_cost(experiment: Experiment, speeds: Speeds, tasks: Sequence[str]) -> Cost:
    """Return what the training of arms of these tasks costs, their evaluations on dev included."""
    training, dev, cost = experiment.training, experiment.training.dev, Cost()
    batches, measures = training.steps * training.accumulation_steps, training.conflicts.measure
    ranking, embedding = training.ranking, training.embedding
    # Items of a batch and of the training set, and what a record of conflicts computes again.
    for kind, batch, whole, again in (
        ("rank_only", ranking.queries_per_step, ranking.queries, 0.5),
        ("emb_only", embedding.pairs_per_step, embedding.queries, 1.0),
    ):
        conflicts = again / training.conflicts.interval if measures else 0.0
        times = sum(1 + conflicts * (task == "joint") for task in tasks if task in (kind, "joint"))
        cost += speeds.items[kind].passes(batch * batches, times, MEMORY_LIMIT, whole or batch)
    rounds = math.ceil(training.steps / training.evaluate_every) if training.evaluate_every else 0
    ranks, embeds = (sum(task != but for task in tasks) for but in ("emb_only", "rank_only"))
    texts = (dev.pool or speeds.documents) + dev.queries
    cost += speeds.items["rerank"].own * (rounds * ranks * dev.queries * dev.depth)
    return cost + speeds.items["embed"].own * (rounds * embeds * texts)


def _unit_seconds(experiment: Experiment, speeds: Speeds) -> dict[str, float]:
    """Return the seconds of one unit of each phase; what all units share is left out, since the first one takes it."""
    own = replace(speeds, items={name: replace(item, frozen=Cost()) for name, item in speeds.items.items()})
    trained = {
        f"train {arm.task}": _training_cost(experiment, own, [arm.task]).seconds + speeds.load.seconds
        for arm in experiment.arms.values()
    }
    evaluated = {
        name: items * speeds.items[name].own.seconds + speeds.load.seconds + _EVALUATION_SECONDS
        for name, items in zip(("rerank", "embed"), _evaluated(experiment, speeds), strict=True)
    }
    return {**trained, **evaluated, ANALYZE: _ANALYSIS_SECONDS}


def _evaluated(experiment: Experiment, speeds: Speeds) -> tuple[float, float]:
    """Return the pairs to rerank, and the texts to embed."""
    tier = experiment.evaluation.bundled
    queries = min(tier.queries, speeds.queries)
    return queries * min(speeds.pairs, tier.depth), min(tier.pool, speeds.documents) + queries


def _small(experiment: Experiment, tokens: int) -> Experiment:
    """Return the experiment with a single step of a few examples, of about so many tokens."""
    training, length = experiment.training, experiment.model.max_length
    ranking, embedding = training.ranking, training.embedding
    prompts = ranking.group + ranking.hard_negatives + ranking.random_negatives
    groups = min(ranking.queries_per_step // ranking.group, max(1, tokens // (ranking.group * prompts * length)))
    queries = groups * ranking.group
    pairs = min(embedding.pairs_per_step, max(2, tokens // ((2 + embedding.hard_negatives) * length)))
    update: dict[str, Any] = {
        "steps": 1,
        "accumulation_steps": 1,
        "conflicts": training.conflicts.model_copy(update={"measure": False}),
        "ranking": ranking.model_copy(update={"queries": queries, "queries_per_step": queries}),
        "embedding": embedding.model_copy(update={"queries": pairs, "pairs_per_step": pairs}),
    }
    return experiment.model_copy(update={"training": training.model_copy(update=update)})


def _measured(loader: ModelLoader, run: Callable[[], object]) -> Cost:
    with counted_products() as counted:
        synchronize(loader.device)
        start = time.perf_counter()
        run()
        synchronize(loader.device)
        return Cost(time.perf_counter() - start, counted.flop)


def _head(sequences: list[list[int]], tokens: int) -> list[list[int]]:
    """Return the first sequences, at least two, of about so many tokens."""
    return sequences[: max(2, sum(total <= tokens for total in accumulate(map(len, sequences))))]


def _tokens(sequences: Sequence[Sequence[int]]) -> int:
    return max(1, sum(map(len, sequences)))


@dataclass
class ProductCounter:
    """Counts floating-point operations; ``flop`` is 2 for each multiply-add of a linear layer's products."""

    flop: int = 0

    def _after_forward(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not isinstance(module, nn.Linear) or torch.compiler.is_compiling():
            return
        product = 2 * output.numel() * module.in_features
        self.flop += product
        if output.requires_grad:
            rows = inputs[0] if inputs else None  # given by name, it is not shown to the hook
            wanted = int(rows is None or rows.requires_grad) + int(module.weight.requires_grad)

            def after_backward(_: Tensor) -> None:
                self.flop += wanted * product

            output.register_hook(after_backward)  # counts a backward pass only if it runs


@contextmanager
def counted_products() -> Iterator[ProductCounter]:
    """Count the products of every linear layer that runs in the block, whatever its model.

    The products of attention are left out, and those of compiled layers (``evaluation.compile``).
    """
    counter = ProductCounter()
    handle = register_module_forward_hook(counter._after_forward)
    try:
        yield counter
    finally:
        handle.remove()
