"""The experiment: train, evaluate and judge every arm and seed.

What is done is skipped, so a killed experiment continues when it is run again.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from unimoe.analysis.gates.definitions import Registration, load_gates
from unimoe.analysis.gates.judging import Judgment, all_decided, judge_all
from unimoe.analysis.gates.registration import REGISTERED, look_stages, own_gates, register, registered_in, unmet
from unimoe.checks import report
from unimoe.config import Experiment
from unimoe.core.console import Steps, in_hours, stderr
from unimoe.core.errors import DataError
from unimoe.core.io import read_json, write_json
from unimoe.data.mteb_names import mteb_name
from unimoe.evaluation.chosen import load_extra_systems
from unimoe.evaluation.datasets import LoadedDataset, load_reporting, tier_datasets
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.evaluate import Evaluator, evaluations
from unimoe.evaluation.folder_settings import folder_dtype, keep_settings, refuse_other_settings
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.evaluation.store import partial_scores
from unimoe.evaluation.system import (
    ZERO_SHOT_ARM,
    System,
    first_stage_system,
    tasks_of,
    trained_system,
    zero_shot_system,
)
from unimoe.experiment.training_job import arm_training, train_by_worker, train_here
from unimoe.models.checkpoint import judged_checkpoint
from unimoe.models.device import release_memory
from unimoe.models.loader import ModelLoader, refuse_missing_layers
from unimoe.results import Task, result_path
from unimoe.results.folder import load_all_results
from unimoe.training.examples import TrainingData, load_training_data

_LATER_TIERS = ("fast", "nano", "full")
"""Tiers on which checkpoints may be evaluated later, in the same folder and under the same gates."""

LOAD, ANALYZE = "load and first stage", "analyze"
_PHASES: dict[Task, str] = {"reranking": "rerank", "embedding": "embed"}
"""Phases of the job's record, without those for training each kind of arm."""

RECORD = "run.json"  # what a job has cost, in its output folder, written whenever a phase ends
SMOKE_CAVEAT = "smoke run: a few steps, one seed"


class ExperimentRun:
    """An experiment in its output folder, with its gates registered there.

    ``given`` are command-line overrides, which results record; ``engine`` is where it trains and evaluates,
    by default in this process.

    Raises:
        UsageError: the base model does not have the layers that the config names.
        DataError: the output folder holds an experiment with other settings or gates, the gate file is malformed, or
            the base model is not available.
    """

    def __init__(
        self, experiment: Experiment, device: torch.device, given: Sequence[str] = (), engine: Engine | None = None
    ) -> None:
        self.experiment, self._engine = experiment, engine or Engine()
        self._output_dir = Path(experiment.output_dir)
        self._gates = gates = checked_gates(experiment)
        dtype = folder_dtype(experiment, device, self._engine)
        keep_settings(experiment, dtype)
        self.loader = ModelLoader(experiment, device, dtype)
        self._beside = load_extra_systems(experiment, device, self.loader.dtype)
        if gates.gates and not register(gates, self._output_dir) and gates.path is not None:
            late = f"{self._output_dir} has results and no {REGISTERED}: too late to register {gates.path}"
            stderr.print(f"{late}; verdicts --gates still judges by it", soft_wrap=True)
        self._evaluator = Evaluator(given, self._engine)
        self._begun: set[str] = set()  # phases with a finished unit in this process

    def is_done(self) -> bool:
        """Return whether every arm and seed is trained and has a result on each task, as far as gates are open."""
        (bundled,) = tier_datasets(self.experiment, "bundled")
        for seeds in self._stages():
            wanted = product(self.experiment.arms.items(), seeds)
            units = [(name, seed, task) for (name, arm), seed in wanted for task in tasks_of(arm)]
            if not all(result_path(self._output_dir, *unit, bundled.name).exists() for unit in units):
                return False
            if self._decided():
                break
        return True

    def train_and_evaluate(self, record: RunRecord, expected: Mapping[str, float] | None = None) -> None:
        """Evaluate the baselines, then train and evaluate all arms seed by seed, so that one seed is complete early.

        Where the gates register looks, it judges at each, and stops once every gate has its label. ``record`` takes
        what each phase costs; the time left is shown by the ``expected`` seconds of one unit of each phase.

        Raises:
            UnimoeError: before any training, if the bundled tier's collection is not available.
        """
        self._record, self._expected = record, dict(expected or {})
        with record.phase(LOAD):
            _ = self._data
            report(self.training_data.checks)  # refuses queries that train and are reported
            zero_shot = zero_shot_system(self.experiment, self.loader)
            baselines = [first_stage_system(self.experiment), zero_shot, *self._beside]
        first = [_PHASES[task] if system.model else LOAD for system in baselines for task in system.tasks]
        self._units = first + self._phases_of_a_seed() * len(self.experiment.seeds)
        self._steps = Steps(len(self._units), self._seconds_left if expected else None, bars=not self._engine.remote)
        stages = self._stages()
        for number, seeds in enumerate(stages):
            self._engine.run(self._jobs(() if number else baselines, seeds), at_once=len(self._units))
            later = [str(seed) for stage in stages[number + 1 :] for seed in stage]
            if later and self._decided():
                skipped = f"seed{'s' * (len(later) > 1)} {', '.join(later)}"
                stderr.print(f"Every gate has its label: {skipped} would change nothing", soft_wrap=True)
                break

    def _stages(self) -> list[list[int]]:
        """Return the seeds in parts, each up to the next look of a gate."""
        return look_stages(self._gates.gates.values(), self.experiment.seeds)

    def _decided(self) -> bool:
        return all_decided(load_all_results(self._output_dir), self._gates)

    def _phases_of_a_seed(self) -> list[str]:
        """Return the phase of each unit of one seed, in order."""
        arms = [(arm.task, tasks_of(arm)) for arm in self.experiment.arms.values()]
        return [phase for task, own in arms for phase in (f"train {task}", *(_PHASES[each] for each in own))]

    def next_look(self) -> Iterator[str]:
        """Yield, for each gate that is still open after the last seed, its next look and what the seeds would cost."""
        trained = len(self.experiment.seeds)
        if all(gate.looks is None or gate.looks[-1] <= trained for gate in self._gates.gates.values()):
            return
        seconds = sum(self._expected.get(phase, 0.0) for phase in self._phases_of_a_seed())
        for item in judge_all(load_all_results(self._output_dir), self._gates):
            look = next((look for look in item.gate.looks or () if look > trained), None)
            if look and isinstance(item, Judgment) and item.label == "INCONCLUSIVE":
                cost = f", about {in_hours(seconds * (look - trained))} here" if seconds else ""
                yield f"Gate {item.name}: the next look is at {look} seeds, {look - trained} more{cost}"

    def _jobs(self, baselines: Sequence[System], seeds: Sequence[int]) -> Iterator[Callable[[], None]]:
        """Yield the parts of the work that depend on no other part."""
        for system in baselines:
            yield partial(self._evaluate, system)
        for seed in seeds:
            done = self._steps.done
            for arm in self.experiment.arms:
                yield partial(self._train_and_evaluate_arm, arm, seed)
            if self._steps.done > done and not self._engine.remote:
                dataset = self._data.dataset
                table = partial_scores(self.experiment, dataset.name, dataset.main_metric)
                stderr.print("\n".join(["", *table, ""]), soft_wrap=True)

    def _train_and_evaluate_arm(self, arm: str, seed: int) -> None:
        with self._phase(f"train {self.experiment.arm_named(arm).task}"):
            folder = self._train(arm, seed)
        self._evaluate(trained_system(self.experiment, self.loader, folder))

    def _evaluate(self, system: System) -> None:
        for evaluation in evaluations(system, self._data):
            with self._phase(_PHASES[evaluation.about.task] if system.model else LOAD):
                self._evaluator.take(evaluation, self._steps)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Record a unit of a phase, and expect the next one to take as long.

        The first unit in a process takes longer, because the states of the frozen layers are computed in it.
        """
        if self._engine.remote:  # phases overlap there
            yield
            return
        start, done = time.perf_counter(), self._steps.done
        with self._record.phase(name):
            yield
        if self._steps.done > done:
            if name in self._begun:
                self._expected[name] = time.perf_counter() - start
            self._begun.add(name)

    def _seconds_left(self, units: int) -> float:
        return sum(self._expected.get(phase, 0.0) for phase in (*self._units[units:], ANALYZE))

    @cached_property
    def training_data(self) -> TrainingData:
        """The examples of all trainings."""
        return load_training_data(self.experiment, self._data.whole)

    @cached_property
    def _data(self) -> LoadedDataset:
        """The queries that are reported."""
        (bundled,) = tier_datasets(self.experiment, "bundled")
        return load_reporting(bundled, self.loader.device)

    def _train(self, arm: str, seed: int) -> Path:
        with self._steps.step(f"train {arm}, seed {seed}", self.experiment.training.steps) as step:
            training = arm_training(self.experiment, arm, seed, self.loader, self.training_data)
            if cluster := self._engine.cluster:
                losses = train_by_worker(cluster, training)
            else:
                losses = train_here(training, lambda: step.advance(1))
            step.was_done, step.outcome = not losses, "already done"
            if losses:
                loss = f"loss {losses[0]:.3f} -> {losses[-1]:.3f}"
                step.outcome = ", ".join(filter(None, (loss, training.choice)))
        del training
        release_memory()
        return judged_checkpoint(self.experiment, arm, seed)


def checked_gates(experiment: Experiment) -> Registration:
    """Return the gates of an experiment that can run in its output folder; a plan refuses what the run would refuse.

    Raises:
        UsageError: the base model does not have the layers that the config names, or a prompt belongs to no task.
        DataError: the output folder holds an experiment with other settings, or the gates do not fit the experiment.
    """
    refuse_missing_layers(experiment)
    own = (dataset.name for dataset in tier_datasets(experiment, "bundled"))
    TaskPrompts(experiment.evaluation.mteb).refuse_unknown_keys(own)
    refuse_other_settings(experiment)
    return matching_gates(experiment)


def matching_gates(experiment: Experiment) -> Registration:
    """Return the gates that judge an experiment: those that its config names, else the default ones for its arms.

    Raises:
        DataError: the gate file is malformed, or names an arm, seed or dataset that the experiment lacks, so that it
            would end without a verdict.
    """
    (bundled,) = tier_datasets(experiment, "bundled")
    output_dir = Path(experiment.output_dir)
    if not experiment.gates:
        here = registered_in(output_dir)
        return here or own_gates(experiment.arms, [bundled.name], bundled.main_metric, experiment.seeds)
    gates = load_gates(Path(experiment.gates))
    later = {d.name for tier in _LATER_TIERS for d in tier_datasets(experiment, tier)}
    datasets: dict[Task, set[str]] = {
        "reranking": {bundled.name} | later,
        "embedding": {bundled.name, *filter(None, map(mteb_name, later))},
        "retrieval": {bundled.name},
    }
    arms = [*experiment.arms, "bm25", "first_stage", ZERO_SHOT_ARM, *experiment.evaluation.systems]
    lacking = list(unmet(gates, arms, experiment.seeds, datasets))
    if lacking and SMOKE_CAVEAT not in experiment.caveats:
        raise DataError("; ".join(lacking))
    for line in lacking:
        stderr.print(f"note: {line}", soft_wrap=True)
    return gates


def smoke_version(experiment: Experiment) -> Experiment:
    """Return an experiment of the same arms that takes a minute or two; its results are unfit for decisions."""
    settings = experiment.model_dump()
    training, tier = settings["training"], settings["evaluation"]["bundled"]
    ranking, embedding, dev = training["ranking"], training["embedding"], training["dev"]
    queries = min(tier["queries"], 20)
    part = math.ceil(tier["pool"] * queries / tier["queries"])  # it holds these queries' relevant documents
    tier |= {"queries": queries, "depth": min(tier["depth"], 5), "pool": min(tier["pool"], max(120, part))}
    training |= {"steps": 4, "warmup_steps": 0, "warmup_ratio": None, "save_every": 2}
    ranking["queries"] = max(24, ranking["queries_per_step"])
    embedding["queries"] = max(48, embedding["pairs_per_step"])
    dev |= {"queries": min(dev["queries"], 20), "depth": min(dev["depth"], 5)}
    settings |= {"seeds": experiment.seeds[:1], "caveats": [*experiment.caveats, SMOKE_CAVEAT]}
    small = Experiment.model_validate(settings)
    # The other sections stay as they are: what nobody set is not to count as set.
    evaluation = experiment.evaluation.model_copy(update={"bundled": small.evaluation.bundled})
    own = {"seeds": small.seeds, "caveats": small.caveats, "training": small.training, "evaluation": evaluation}
    return experiment.model_copy(update=own)


class _Costs(BaseModel):
    matmul_tflop: float = 0.0
    seconds: float = 0.0
    peak_mib: float = 0.0

    def add(self, tflop: float, seconds: float) -> None:
        self.matmul_tflop = round(self.matmul_tflop + tflop, 6)
        self.seconds = round(self.seconds + seconds, 6)
        self.peak_mib = round(max(self.peak_mib, peak_mib()), 1)


class _JobRecord(_Costs):
    model_config = ConfigDict(extra="allow")  # facts about the run

    phases: dict[str, _Costs] = Field(default_factory=dict)


class RunRecord:
    """Adds up the work, the seconds and the memory of a job, over all runs of it in one folder.

    ``flop`` returns the floating-point operations counted so far in this process, and the job started at ``since``, by
    ``time.perf_counter``; what came before the first phase is added to it.
    """

    def __init__(self, folder: Path, flop: Callable[[], int], since: float) -> None:
        self._path, self._flop, self._since, self._flop_before = folder / RECORD, flop, since, 0

    @property
    def elapsed(self) -> float:
        """Seconds in the phases so far, those of earlier runs included."""
        return self._read().seconds

    def fact(self, name: str) -> Any:
        """Return a fact that this run or an earlier one noted; None where none did."""
        return self._read().model_dump().get(name)

    def note(self, facts: Mapping[str, Any], *, keep: bool = False) -> None:
        """Write facts about the run next to its phases; with ``keep``, one that is there stays as it is."""
        there = self._read().model_dump()
        write_json(self._path, {**facts, **there} if keep else {**there, **facts})

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add what the block takes to the phase of this name; a block that fails, or is killed, adds nothing."""
        yield
        now, flop, record = time.perf_counter(), self._flop(), self._read()
        for costs in (record, record.phases.setdefault(name, _Costs())):
            costs.add((flop - self._flop_before) / 1e12, now - self._since)
        self._since, self._flop_before = now, flop
        write_json(self._path, record.model_dump())

    def _read(self) -> _JobRecord:
        return read_json(self._path, _JobRecord) if self._path.exists() else _JobRecord()


def peak_mib() -> float:
    """Return the most memory that this process has held, in MiB."""
    import resource

    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes on macOS, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
