"""How long an experiment will take: steps, pairs and texts of its own model are timed, and multiplied by its counts."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unimoe.checks import lines
from unimoe.config import Experiment
from unimoe.config.training import ArmConfig, ArmTask
from unimoe.core.planning import Job
from unimoe.evaluation.chosen import load_extra_systems, planned_extra_systems
from unimoe.evaluation.datasets import LoadedDataset, tier_datasets
from unimoe.evaluation.plan import PlannedDataset, embed_job, rerank_job, sampled_pairs
from unimoe.evaluation.system import ZERO_SHOT_ARM
from unimoe.experiment.job import ANALYZE, checked_gates
from unimoe.models.batching import default_token_budget
from unimoe.models.checkpoint import ADAPTER_FILE, folder_name
from unimoe.models.device import choose_dtype, other_work, release_memory
from unimoe.models.frozen_layers import MEMORY_LIMIT, SETS_LIMIT, FrozenLayers
from unimoe.models.loader import ModelLoader
from unimoe.models.pair_model import PairModelReranker
from unimoe.models.token_tree import tree_tokens
from unimoe.results import arm_dir, result_path
from unimoe.training.examples import TrainingData, load_training_data
from unimoe.training.trainer import ArmTraining, model_in_training

_SPREAD = 0.2
"""How far the low and the high end of a time are from its middle."""

_EVALUATION_SECONDS = 0.5  # candidates, scores and files of one evaluation
_ANALYSIS_SECONDS = 8.0  # resampling, figures, report


@dataclass(frozen=True)
class Pace:
    """Seconds that one item takes whenever it is met, and those that it takes more the first time.

    States of the frozen layers are kept, unless those of a whole set do not fit memory.
    """

    own: float
    first: float = 0.0

    def passes(self, items: float, times: float, whole: float | None = None) -> float:
        """Return the seconds of so many passes over some items, of a set that holds the ``whole``."""
        return self.own * items * times + self.first * (items if whole is None else whole) * min(times, 1)


@dataclass(frozen=True)
class Paces:
    """What was measured.

    Attributes:
        train: a query of a ranking batch (``rank_only``), a pair of an embedding batch (``emb_only``), with its
            part of the step.
        rerank: of a pair.
        embed: of a text.
        load: seconds until a base model can be trained.
        pairs: pairs to rerank in an evaluation.
        texts: texts to embed in one.
        documents: of the whole collection.
    """

    train: Mapping[ArmTask, Pace]
    rerank: Pace
    embed: Pace
    load: float
    pairs: float
    texts: float
    documents: int


class RunPlan(NamedTuple):
    """What a run is expected to take: the low and the high end of its seconds, and those of one unit of each phase."""

    low: float
    high: float
    units: dict[str, float]

    def __str__(self) -> str:
        if self.high < 120:
            return f"{self.low:.0f} to {self.high:.0f} seconds"
        return f"{max(1, math.floor(self.low / 60))} to {math.ceil(self.high / 60)} minutes"


def plan_run(
    experiment: Experiment, loader: ModelLoader, started: float, training: TrainingData | None = None
) -> RunPlan:
    """Foretell what a run takes that started then, by ``time.perf_counter``; finished parts are left out.

    ``loader`` is that of its models, ``training`` are its examples, where they are loaded.

    Raises:
        UnimoeError: the experiment cannot run.
    """
    (dataset,) = tier_datasets(experiment, "bundled")
    data = LoadedDataset(dataset, loader.device)
    paces = measured(experiment, loader.apart(), data, training or load_training_data(experiment))
    release_memory()
    seconds = seconds_left(experiment, paces) + time.perf_counter() - started
    return RunPlan(seconds * (1 - _SPREAD), seconds * (1 + _SPREAD), _unit_seconds(experiment, paces))


def planned(experiment: Experiment, device: torch.device, started: float) -> Iterator[str]:
    """Yield what an experiment takes on a device, in words; nothing is written."""
    checked_gates(experiment)
    loader = ModelLoader(experiment, device, choose_dtype(device, experiment.model.dtype, trains=True))
    training = load_training_data(experiment)
    expected, seeds = plan_run(experiment, loader, started, training), len(experiment.seeds)
    yield f"{expected} for {experiment.name}, {seeds} seed{'s' * (seeds > 1)}, on this device"
    if slowed := other_work(device.type):
        yield slowed
    yield training.in_words()
    yield from lines(training.checks, "caveat")
    if beside := load_extra_systems(experiment, device, loader.dtype):
        (dataset,) = tier_datasets(experiment, "bundled")
        yield from planned_extra_systems(beside, PlannedDataset(dataset, device))


def measured(experiment: Experiment, loader: ModelLoader, data: LoadedDataset, training: TrainingData) -> Paces:
    """Time real batches of the experiment's model for some seconds: reranking, embedding, training.

    Raises:
        UnimoeError: the experiment cannot run.
    """
    import unimoe.evaluation.mteb.tasks  # noqa: F401 - seconds, which the job spends too

    for arm in experiment.arms.values():
        training.refuse_too_few(arm.task)
    _, model = model_in_training(experiment, loader.fresh_base(), 0, loader.frozen_layers)
    model.eval()
    reranker = PairModelReranker(model, **experiment.evaluation.batches)
    read, queries = data.read.corpus, [*data.pooled.queries.values()]
    pairs = sum(map(len, data.to_read[1].values()))
    texts = [*(document.full_text for document in read.values()), *queries]
    rerank, embed = rerank_job(reranker, sampled_pairs(data, reranker), pairs), embed_job(model, texts, len(texts))
    prompts: list[Any] = [*chain.from_iterable(rerank.units)]
    long, frozen = model.text_ids([*chain.from_iterable(embed.units)], "document"), loader.frozen_layers
    paces = {
        "rerank": _pace(rerank, frozen, tree_tokens(prompts) / max(1, len(prompts))),
        "embed": _pace(embed, frozen, sum(map(len, long)) / max(1, len(long))),
    }
    del model, reranker
    few, examples = training.sample(experiment, default_token_budget(loader.device) // 2)
    kinds = {kind for arm in experiment.arms.values() for kind in _kinds(arm.task)}
    found = {kind: _train_pace(few, kind, loader, examples, _set_size(experiment, kind)) for kind in sorted(kinds)}
    return Paces(
        train={kind: pace for kind, (pace, _) in found.items()},
        **paces,
        load=min(load for _, load in found.values()),
        pairs=pairs,
        texts=len(texts),
        documents=len(data.whole.corpus),
    )


def _pace(job: Job[Any], frozen: FrozenLayers | None, tokens: float) -> Pace:
    """Return the pace of reranking or embedding, of which an item has so many tokens."""
    if not job.units:
        return Pace(0.0)
    first, again = job.seconds_first_and_again()
    kept = frozen is not None and job.size * tokens * frozen.token_bytes <= SETS_LIMIT
    return Pace(again, first - again) if kept else Pace(first)


def _train_pace(
    few: Experiment, kind: ArmTask, loader: ModelLoader, examples: TrainingData, whole: int
) -> tuple[Pace, float]:
    """Return the pace of steps of a few examples of the ``whole``, and the seconds in which their model is made."""
    arms = {kind: ArmConfig(task=kind, learning_rate=1e-9)}
    training = ArmTraining(few.model_copy(update={"arms": arms}), kind, 0, loader, examples)
    recipe = few.training
    size = recipe.ranking.queries_per_step if kind == "rank_only" else recipe.embedding.pairs_per_step
    made = Job("load", 1, [training], ArmTraining.prepare, weigh=lambda _: 1)
    first, load = made.seconds_first_and_again()  # the second time it finds the states of the frozen layers
    own = training.steps_to_time().seconds_each() / size
    states = (first - load) / (2 * size) if loader.frozen_layers else 0.0
    tokens = training.progress.extra["tokens"] / training.progress.step / size
    if loader.frozen_layers and tokens * whole * loader.frozen_layers.token_bytes > MEMORY_LIMIT:
        return Pace(own + states), load
    return Pace(own, states), load


def _set_size(experiment: Experiment, kind: ArmTask) -> int:
    """Return the number of a task's queries to train on; of all, no more are counted than the steps take."""
    training = experiment.training
    if kind == "rank_only":
        size, batch = training.ranking.queries, training.ranking.queries_per_step
    else:
        size, batch = training.embedding.queries, training.embedding.pairs_per_step
    return size or batch * training.steps * training.accumulation_steps


def seconds_left(experiment: Experiment, paces: Paces) -> float:
    """Return the seconds of what is not done yet in the experiment's folder."""
    folder, (bundled,) = Path(experiment.output_dir), tier_datasets(experiment, "bundled")
    arms = [(name, seed, arm.task) for seed in experiment.seeds for name, arm in experiment.arms.items()]
    trained = [
        task
        for arm, seed, task in arms
        if not (arm_dir(folder, arm, seed) / folder_name("last") / ADAPTER_FILE).exists()
    ]

    def evaluations(task: str, but: str) -> int:
        wanted = [(arm, seed) for arm, seed, own in [(ZERO_SHOT_ARM, None, "joint"), *arms] if own != but]
        return sum(not result_path(folder, *system, task, bundled.name).exists() for system in wanted)

    reranks, embeds = evaluations("reranking", ""), evaluations("embedding", "rank_only")
    return (
        _training_seconds(experiment, paces, trained)
        + paces.rerank.passes(paces.pairs, reranks)
        + paces.embed.passes(paces.texts, embeds)
        + _EVALUATION_SECONDS * (reranks + embeds)
        + paces.load * (2 + 2 * len(trained))
        + _ANALYSIS_SECONDS
    )


def _training_seconds(experiment: Experiment, paces: Paces, tasks: Sequence[ArmTask], *, later: bool = False) -> float:
    """Return the seconds of training arms of these tasks, with their evaluations on dev.

    ``later`` leaves out the states that the first of them keeps for all.
    """
    training, dev, seconds = experiment.training, experiment.training.dev, 0.0
    for kind, pace in paces.train.items():
        # Items of a batch and of the training set, and what a record of conflicts computes again.
        if kind == "rank_only":
            batch, again = training.ranking.queries_per_step, 0.5
        else:
            batch, again = training.embedding.pairs_per_step, 1.0
        conflicts = again / training.conflicts.interval if training.conflicts.measure else 0.0
        times = sum(1 + conflicts * (task == "joint") for task in tasks if kind in _kinds(task))
        pace = Pace(pace.own) if later else pace
        seconds += pace.passes(batch * training.steps * training.accumulation_steps, times, _set_size(experiment, kind))
    rounds = 1 + math.ceil(training.steps / training.evaluate_every) if training.evaluate_every else 0
    ranks, embeds = (sum(task != but for task in tasks) for but in ("emb_only", "rank_only"))
    texts = (dev.pool or paces.documents) + dev.queries
    return seconds + rounds * (paces.rerank.own * ranks * dev.queries * dev.depth + paces.embed.own * embeds * texts)


def _unit_seconds(experiment: Experiment, paces: Paces) -> dict[str, float]:
    """Return the seconds of one unit of each phase; what all units share is left out, since the first one takes it."""
    trained = {
        f"train {arm.task}": _training_seconds(experiment, paces, [arm.task], later=True) + paces.load
        for arm in experiment.arms.values()
    }
    evaluated = {"rerank": paces.rerank.own * paces.pairs, "embed": paces.embed.own * paces.texts}
    return {
        **trained,
        **{phase: seconds + paces.load + _EVALUATION_SECONDS for phase, seconds in evaluated.items()},
        ANALYZE: _ANALYSIS_SECONDS,
    }


def _kinds(task: ArmTask) -> tuple[ArmTask, ...]:
    """Return the tasks of the batches that an arm sees."""
    return ("rank_only", "emb_only") if task == "joint" else (task,)
