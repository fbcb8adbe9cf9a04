"""How long an experiment will take: the speed of its own model on its own texts, times the counts of its config."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unimoe.config import Experiment
from unimoe.config.training import ArmConfig
from unimoe.evaluation.chosen import load_extra_systems, planned_extra_systems
from unimoe.evaluation.plan import PlannedDataset, prompt_sample, spread
from unimoe.evaluation.systems.system import ZERO_SHOT_ARM
from unimoe.evaluation.tiers.datasets import LoadedDataset, tier_datasets
from unimoe.experiment.job import ANALYZE, checked_gates, smoke_version
from unimoe.models.adapter import adapter_parameters
from unimoe.models.checkpoint import ADAPTER_FILE, folder_name
from unimoe.models.device import choose_dtype, release_memory, synchronize
from unimoe.models.frozen_layers import MEMORY_LIMIT, SETS_LIMIT
from unimoe.models.loader import ModelLoader
from unimoe.models.token_tree import tree_tokens
from unimoe.models.work import counted_products
from unimoe.results import arm_dir, result_path
from unimoe.training.examples import TrainingData, load_training_data
from unimoe.training.gradients import ArmGradients, EmbeddingBatches, RankingBatches
from unimoe.training.steps import Budget, Texts
from unimoe.training.trainer import model_in_training

if TYPE_CHECKING:
    import torch

_PROBE_TOKENS = 1024
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
class Speeds:
    """What a probe has measured: costs of one token, and mean tokens.

    Attributes:
        lower: of a token in the frozen layers.
        ranking: of a token in a training step on ranking examples, forward and backward.
        embedding: the same on embedding examples.
        reranking: of a token in reranking, above the frozen layers.
        encoding: the same in embedding texts.
        load: of loading the base model.
        ranking_query: tokens of a training query's prompts.
        embedding_query: tokens of a training query and its documents.
        prompt: tokens of a pair to rerank, shared beginnings once.
        document: tokens of a document to embed.
        query: tokens of a query to embed.
        pairs: pairs to rerank for each query.
        queries: judged queries of the evaluation.
        documents: documents of its corpus.
        state_bytes: of one token's state.
    """

    lower: Cost
    ranking: Cost
    embedding: Cost
    reranking: Cost
    encoding: Cost
    load: Cost
    ranking_query: float
    embedding_query: float
    prompt: float
    document: float
    query: float
    pairs: float
    queries: int
    documents: int
    state_bytes: int


@dataclass(frozen=True)
class Estimate:
    """What a run is expected to cost.

    Attributes:
        cost: from its start to its end.
        shorter: a line for each shorter way, where it takes long.
        units: seconds of one unit of each phase.
    """

    cost: Cost
    shorter: list[str]
    units: dict[str, float]


def estimate(
    experiment: Experiment, loader: ModelLoader, started: float, training: TrainingData | None = None
) -> Estimate:
    """Estimate what a run costs.

    Args:
        experiment: what is done of it in its output folder is left out.
        loader: of its models.
        started: when the run started, by ``time.perf_counter``.
        training: its examples, where they are loaded.

    Raises:
        UnimoeError: the experiment cannot run.
    """
    (dataset,) = tier_datasets(experiment, "bundled")
    speeds = measure(
        loader, experiment, LoadedDataset(dataset, loader.device), training or load_training_data(experiment)
    )
    release_memory()
    left = job_cost(experiment, speeds)
    whole = left + Cost(time.perf_counter() - started)
    return Estimate(whole, list(shorter_ways(experiment, speeds, whole)), _unit_seconds(experiment, speeds))


def planned(experiment: Experiment, device: torch.device, started: float) -> Iterator[str]:
    """Yield what an experiment costs from a start now, and shorter ways, in words; nothing is written.

    Args:
        experiment: the experiment.
        device: the device that it would run on.
        started: when the command started, by ``time.perf_counter``.
    """
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

    for arm in experiment.arms.values():
        training.refuse_too_few(arm.task)
    small = _small(experiment)
    base = loader.fresh_base()
    load = _measured(loader, loader.fresh_base)  # again, from files that are in memory now, as they are for each arm
    peft, model = model_in_training(small, base, seed=0)
    weights = adapter_parameters(peft)
    model.eval()
    examples = training.probe(small.training)
    ranking, pairs = examples.ranking(model), examples.embedding(model)
    budget = Budget(small.training.token_budget, small.training.batch_size)

    def frozen(sequences: list[list[int]]) -> Texts:
        return Texts(sequences, model.kept_states(sequences))

    def step(task: str, ranks: RankingBatches | None, embeds: EmbeddingBatches | None) -> Cost:
        arm = ArmConfig.model_validate({"task": task, "learning_rate": 1.0})
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "conflicts.jsonl")
            gradients = ArmGradients(small, arm, model, weights, ranks, embeds, log, budget)
            return _measured(loader, lambda: gradients.add(0))

    prompts = prompt_sample(data, model)
    sample = _head(prompts)
    documents = [document.full_text for document in spread(list(data.pooled.corpus.values()), 256)]
    queries = spread(list(data.collection.queries.values()), 256)
    document_ids, query_ids = model.text_ids(documents, "document"), model.text_ids(queries, "query")
    texts = documents[: len(_head(document_ids))]
    rerank = _second(loader, lambda: model.rerank_ids(sample)) * (1 / max(1, tree_tokens(sample)))
    encode = _second(loader, lambda: model.encode(texts, kind="document")) * (1 / _tokens(document_ids[: len(texts)]))

    lower = _measured(loader, lambda: frozen(ranking.sequences)) * (1 / tree_tokens(ranking.sequences))
    model.train()
    ranks = RankingBatches(ranking, frozen(ranking.sequences), [range(len(ranking.groups))])
    embeds = EmbeddingBatches(pairs, frozen(pairs.queries), frozen(pairs.documents), [range(len(pairs.groups))])
    return Speeds(
        lower=lower if model.frozen_layers else Cost(),
        ranking=step("rank_only", ranks, None) * (1 / tree_tokens(ranking.sequences)),
        embedding=step("emb_only", None, embeds) * (1 / _tokens([*pairs.queries, *pairs.documents])),
        reranking=rerank,
        encoding=encode,
        load=load,
        ranking_query=tree_tokens(ranking.sequences) / len(ranking.groups),
        embedding_query=_tokens([*pairs.queries, *pairs.documents]) / len(pairs.groups),
        prompt=tree_tokens(prompts) / max(1, len(prompts)),
        document=_tokens(document_ids) / len(documents),
        query=_tokens(query_ids) / len(queries),
        pairs=sum(map(len, data.candidates.values())) / max(1, len(data.candidates)),
        queries=len(data.collection.qrels),
        documents=data.whole_size,
        state_bytes=base.model.config.hidden_size * base.model.get_input_embeddings().weight.element_size(),
    )


def job_cost(experiment: Experiment, speeds: Speeds, *, fresh: bool = False) -> Cost:
    """Return what the experiment still costs; with ``fresh``, what it costs in an empty folder."""
    trainings = [pair for pair in _trainings(experiment) if fresh or not _is_trained(experiment, *pair)]
    return (
        _training_cost(experiment, speeds, trainings)
        + _evaluation_cost(experiment, speeds, fresh)
        + speeds.load * (2 + 2 * len(trainings))
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
    queries = min(tier.queries, speeds.queries) // 2
    if queries:
        half = tier.model_copy(update={"queries": queries})
        evaluation = experiment.evaluation.model_copy(update={"bundled": half})
        ways[f"--set evaluation.bundled.queries={queries}"] = experiment.model_copy(update={"evaluation": evaluation})
    for option, way in ways.items():
        needed = job_cost(way, speeds, fresh=True)
        if needed.seconds < _WORTH_NAMING * cost.seconds:
            yield f"shorter: {option}, {in_words(needed)}"


def _trainings(experiment: Experiment) -> list[tuple[str, int]]:
    return [(arm, seed) for seed in experiment.seeds for arm in experiment.arms]


def _is_trained(experiment: Experiment, arm: str, seed: int) -> bool:
    return (arm_dir(Path(experiment.output_dir), arm, seed) / folder_name("last") / ADAPTER_FILE).exists()


def _training_cost(experiment: Experiment, speeds: Speeds, trainings: Sequence[tuple[str, int]]) -> Cost:
    training, cost = experiment.training, Cost()
    conflicts = 1 / training.conflicts.interval if training.conflicts.measure else 0.0
    tokens = {
        "rank_only": training.ranking.queries_per_step * speeds.ranking_query,
        "emb_only": training.embedding.pairs_per_step * speeds.embedding_query,
    }
    sets = {
        "rank_only": (training.ranking.queries or training.ranking.queries_per_step) * speeds.ranking_query,
        "emb_only": (training.embedding.queries or training.embedding.pairs_per_step) * speeds.embedding_query,
    }
    per_token = {"rank_only": speeds.ranking, "emb_only": speeds.embedding}
    halves = {"rank_only": 0.5, "emb_only": 1.0}  # what a record of conflicts computes again
    batches = training.steps * training.accumulation_steps
    for kind in ("rank_only", "emb_only"):
        tasks = [experiment.arms[arm].task for arm, _ in trainings if experiment.arms[arm].task in (kind, "joint")]
        kept = sets[kind] * speeds.state_bytes <= MEMORY_LIMIT
        own = per_token[kind] if kept else per_token[kind] + speeds.lower
        passes = sum(1 + conflicts * halves[kind] if task == "joint" else 1 for task in tasks)
        cost += own * (tokens[kind] * batches * passes)
        cost += speeds.lower * (sets[kind] if tasks and kept else 0)
    if training.evaluate_every:
        dev = training.dev
        rounds = math.ceil(training.steps / training.evaluate_every)
        for arm, _ in trainings:
            task = experiment.arms[arm].task
            if task != "emb_only":
                cost += speeds.reranking * (rounds * dev.queries * dev.depth * speeds.prompt)
            if task != "rank_only":
                texts = (dev.pool or speeds.documents) * speeds.document + dev.queries * speeds.query
                cost += speeds.encoding * (rounds * texts)
    return cost


def _unit_seconds(experiment: Experiment, speeds: Speeds) -> dict[str, float]:
    """Return the seconds of one unit of each phase; what all units share is left out, since the first one takes it."""
    pairs, texts = _evaluation_tokens(experiment, speeds)
    shared, one, seed = replace(speeds, lower=Cost()), speeds.load.seconds + _EVALUATION_SECONDS, experiment.seeds[0]
    trained = {
        f"train {arm.task}": _training_cost(experiment, shared, [(name, seed)]).seconds + speeds.load.seconds
        for name, arm in experiment.arms.items()
    }
    evaluated = {"rerank": pairs * speeds.reranking.seconds + one, "embed": texts * speeds.encoding.seconds + one}
    return {**trained, **evaluated, ANALYZE: _ANALYSIS_SECONDS}


def _evaluation_tokens(experiment: Experiment, speeds: Speeds) -> tuple[float, float]:
    """Return the tokens of all pairs to rerank, and of all texts to embed."""
    tier = experiment.evaluation.bundled
    queries = min(tier.queries, speeds.queries)
    pairs = queries * min(speeds.pairs, tier.depth) * speeds.prompt
    return pairs, min(tier.pool, speeds.documents) * speeds.document + queries * speeds.query


def _evaluation_cost(experiment: Experiment, speeds: Speeds, fresh: bool) -> Cost:
    folder = Path(experiment.output_dir)
    (bundled,) = tier_datasets(experiment, "bundled")
    pairs, texts = _evaluation_tokens(experiment, speeds)
    systems = [(ZERO_SHOT_ARM, None, "joint"), *((a, s, experiment.arms[a].task) for a, s in _trainings(experiment))]

    def left(task: str) -> int:
        wanted = [(arm, seed) for arm, seed, kind in systems if task == "reranking" or kind != "rank_only"]
        return sum(fresh or not result_path(folder, arm, seed, task, bundled.name).exists() for arm, seed in wanted)

    reranks, embeds = left("reranking"), left("embedding")
    kept = (pairs + texts) * speeds.state_bytes <= SETS_LIMIT
    lower = pairs * (min(1, reranks) if kept else reranks) + texts * (min(1, embeds) if kept else embeds)
    return (
        speeds.reranking * (pairs * reranks)
        + speeds.encoding * (texts * embeds)
        + speeds.lower * lower
        + Cost(_EVALUATION_SECONDS) * (reranks + embeds)
    )


def _small(experiment: Experiment) -> Experiment:
    """Return the experiment with a single step of a few examples, about as many tokens as a batch of evaluation."""
    training, length = experiment.training, experiment.model.max_length
    ranking, embedding = training.ranking, training.embedding
    prompts = ranking.group + ranking.hard_negatives + ranking.random_negatives
    groups = min(ranking.queries_per_step // ranking.group, max(1, _PROBE_TOKENS // (ranking.group * prompts * length)))
    queries = groups * ranking.group
    pairs = min(embedding.pairs_per_step, max(2, _PROBE_TOKENS // ((2 + embedding.hard_negatives) * length)))
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


def _second(loader: ModelLoader, run: Callable[[], object]) -> Cost:
    """Return the cost of a second run: the first one warms up, and the states of its frozen layers are kept."""
    run()
    return _measured(loader, run)


def _head(sequences: list[list[int]]) -> list[list[int]]:
    """Return the first sequences, at least two, of about as many tokens as a probe takes."""
    sums = accumulate(map(len, sequences))
    return sequences[: max(2, sum(tokens <= _PROBE_TOKENS for tokens in sums))]


def _tokens(sequences: Sequence[Sequence[int]]) -> int:
    return max(1, sum(map(len, sequences)))
