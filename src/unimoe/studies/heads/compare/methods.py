"""The comparison: try every arm's settings on dev, train the best with every seed, and test each training once.

Finished work is skipped, so that a killed comparison continues when it is started again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unimoe.console import Step, Steps
from unimoe.data.catalog import result_name
from unimoe.evaluation.spec import EvaluationSpec, Outcome
from unimoe.evaluation.store import ResultStore
from unimoe.io import hash_file, read_json, write_json
from unimoe.models.device import describe_device
from unimoe.results import TrainingBudget, arm_dir, result_path
from unimoe.studies.common.pool_results import RerankingPools
from unimoe.studies.common.progress import fit_with_progress
from unimoe.studies.common.registered_gates import register_gates
from unimoe.studies.heads.compare.arms import ARMS, Comparison, in_words
from unimoe.studies.heads.compare.front import chosen_on_front, mean_diversity
from unimoe.studies.heads.compare.memory import step_peak_bytes
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.data import HeadData, with_soft_labels
from unimoe.studies.heads.model import evaluate_head, main_metric, pool_scores
from unimoe.studies.heads.trainer import HeadTrainer, load_data, make_method

TRAINING_FILE = "training.json"
"""Beside an arm's checkpoint: scores on train and dev, time and memory of the training."""


@dataclass(frozen=True)
class Chosen:
    """The setting of an arm that was best on dev.

    Attributes:
        setting: the keys of the arm's grid with the chosen values.
        config: the whole configuration.
        tried: the keys and values of every setting, with ``val`` on dev, best step and seconds.
    """

    setting: dict[str, Any]
    config: TrainConfig
    tried: list[dict[str, Any]]


class MethodComparison:
    """A comparison in its output folder, its gate registered there.

    Args:
        comparison: its configuration.
        data: the pools; by default those of the config are loaded.
        given: options of the command line, for provenance.

    Raises:
        DataError: the folder holds another gate, or the collection or encoder is not available.
    """

    def __init__(self, comparison: Comparison, data: HeadData | None = None, given: Sequence[str] = ()) -> None:
        self.comparison, self.output_dir, self._given = comparison, Path(comparison.base.output_dir), given
        self.dataset = result_name(comparison.base.task)
        register_gate(comparison, self.output_dir)
        self.data = data if data is not None else load_data(comparison.base)
        self._softened: HeadData | None = None

    def run(self) -> dict[str, Chosen]:
        """Do everything that is not done yet; return the setting chosen for each arm."""
        methods = self.comparison.methods
        steps = Steps(2 * len(methods))
        if self.comparison.base.pools.source == "bm25":  # the encoder's own order is that of zero-shot
            self._write_first_stage()
        chosen = {}
        for name in methods:
            chosen[name] = self._tune(name, steps)
            self._train(name, chosen[name].config, steps)
        return chosen

    def trainer(self, name: str, config: TrainConfig, seed: int) -> HeadTrainer:
        """Return the reported training of an arm."""
        return HeadTrainer(config.model_copy(update={"seed": seed}), self._data_of(config), name)

    def tuned(self, name: str) -> list[tuple[dict[str, Any], HeadTrainer]]:
        """Return the trainings that choose an arm's setting, each with its keys and values."""
        base = self.comparison.base.model_copy(update={"seed": self.comparison.tuning_seed})
        trainers = []
        for place, (setting, chosen) in enumerate(ARMS[name].settings(base, self.comparison.settings)):
            config = self._with_voters(chosen)
            folder = {"output_dir": str(self.output_dir / "tuning" / f"{name}-{place}")}
            trainers.append((setting, HeadTrainer(config.model_copy(update=folder), self._data_of(config), name)))
        return trainers

    def _with_voters(self, config: TrainConfig) -> TrainConfig:
        voters = self.comparison.voters
        if voters is None or config.soft_labels is None:
            return config
        return config.model_copy(update={"soft_labels": config.soft_labels.model_copy(update={"voters": voters})})

    def _tune(self, name: str, steps: Steps) -> Chosen:
        trainings = self.tuned(name)
        if len(trainings) == 1:
            steps.skip(f"{name}: nothing to choose")
            return Chosen(trainings[0][0], self._reported(trainings[0][1].config), [])
        tried: list[dict[str, Any]] = []
        size = len(trainings) * self.comparison.base.num_steps
        with steps.step(f"{name}: {len(trainings)} settings on dev", size) as step:
            for setting, trainer in trainings:
                tried.append({**setting, **_fit(trainer, step), **self._second_objective(trainer)})
            best = self._best(tried)
            setting, trainer = trainings[best]
            step.outcome = f"best {100 * tried[best]['val']:.2f} with {in_words(setting)}"
        write_json(self.output_dir / "tuning" / f"{name}.json", tried)
        return Chosen(setting, self._reported(trainer.config), tried)

    def _second_objective(self, trainer: HeadTrainer) -> dict[str, float]:
        if "diversity" not in trainer.config.objectives:
            return {}
        weight, _ = trainer.head()
        return {"dev_diversity": mean_diversity(weight, self.data.dev, trainer.config)}

    def _best(self, tried: Sequence[dict[str, Any]]) -> int:
        """Return the index of the best setting on dev: by relevance, or on the front of relevance and diversity."""
        if all("dev_diversity" in one for one in tried):
            points = [(one["val"], one["dev_diversity"]) for one in tried]
            return chosen_on_front(points, self.comparison.give_up)
        return max(range(len(tried)), key=lambda i: (tried[i]["val"], -i))

    def _reported(self, config: TrainConfig) -> TrainConfig:
        """Return the configuration of a setting's reported trainings, except their seed."""
        return config.model_copy(update={"output_dir": str(self.output_dir), "seed": self.comparison.base.seed})

    def _train(self, name: str, config: TrainConfig, steps: Steps) -> None:
        seeds = self.comparison.seeds if config.method != "zero_shot" else [config.seed]
        with steps.step(f"{name}: {len(seeds)} seeds", len(seeds) * config.num_steps) as step:
            means = []
            for seed in seeds:
                trainer = self.trainer(name, config, seed)
                _fit(trainer, step)
                means.append(self._report(trainer))
            step.outcome = f"test {100 * sum(means) / len(means):.2f}"

    def _report(self, trainer: HeadTrainer) -> float:
        """Test a training once, and write its costs; return its main metric on the test queries."""
        metric = main_metric(trainer.config)
        place = (self.output_dir, trainer.arm, trainer.seed)
        path = arm_dir(*place) / TRAINING_FILE
        if result_path(*place, "reranking", self.dataset).exists() and path.exists():
            there = read_json(path)
            if there["fingerprint"] == trainer.state.fingerprint:
                return float(there["test"])
        store = ResultStore(self.output_dir, self._given)
        result = store.evaluated(spec_of(trainer, self.comparison), lambda: tested_outcome(trainer))
        facts, (weight, _) = trainer.fit(), trainer.head()
        train = evaluate_head(weight.to(trainer.device), trainer.train_pools, trainer.config)
        record = {
            "fingerprint": trainer.state.fingerprint,
            "train": train.aggregate[metric],
            "test": result.aggregate[metric],
            "peak_bytes": self._peak_bytes(trainer),
            **facts,
        }
        write_json(path, record)
        return result.aggregate[metric]

    def _peak_bytes(self, trainer: HeadTrainer) -> int | None:
        """Measure the peak of one step, beside weights and data; return None where nothing is trained."""
        weight = trainer.initial()
        method = make_method(trainer.config, weight, trainer.train_pools, trainer.dates)
        if method is None:
            return None
        return step_peak_bytes(method, weight, trainer.train_pools.batch(trainer.batch(0)))

    def _write_first_stage(self) -> None:
        """Write the result of the pools in the order of their source, an arm without seeds."""
        base, data = self.comparison.base, self.data
        pools = pools_tested(data, base)
        spec = pools.spec(
            "bm25",
            None,
            experiment=self.comparison.name,
            config=self.comparison.model_dump(),
            caveats=self.comparison.caveats,
        )
        ResultStore(self.output_dir, self._given).evaluated(spec, lambda: pools.outcome(data.candidates))

    def _data_of(self, config: TrainConfig) -> HeadData:
        if config.soft_labels is None:
            return self.data
        if self._softened is None:
            self._softened = with_soft_labels(self.data, config)
        return self._softened


def pools_tested(data: HeadData, config: TrainConfig) -> RerankingPools:
    """Return the test pools of the heads."""
    return RerankingPools(
        dataset=result_name(config.task),
        collection=data.splits.test,
        candidates=data.candidates,
        metric=main_metric(config),
        first_stage=data.first_stage,
        depth=config.pools.depth,
    )


def spec_of(trainer: HeadTrainer, comparison: Comparison) -> EvaluationSpec:
    """Return the evaluation of a finished training on the test pools."""
    data, config = trainer.data, trainer.config
    facts, untrained = trainer.fit(), trainer.seed is None
    steps = int(facts["steps"])
    seen = steps * min(config.batch_size, len(data.train))
    budget = TrainingBudget(steps=steps, ranking_examples=seen, embedding_examples=0, tokens=0)
    return pools_tested(data, config).spec(
        trainer.arm,
        trainer.seed,
        experiment=comparison.name,
        config={
            "comparison": comparison.model_dump(),
            "training": config.model_dump(),
            "paired_seeds": shares_seeds(config, comparison.base),
        },
        encoder=data.encoder,
        prompt=data.prompt,
        trained_hash=None if untrained else hash_file(trainer.head_path),
        training=None if untrained else budget,
        caveats=comparison.caveats,
    )


def tested_outcome(trainer: HeadTrainer) -> Outcome:
    """Score a finished training on the test pools."""
    data, start = trainer.data, time.perf_counter()
    weight, _ = trainer.head()
    run = data.test.run(pool_scores(weight, data.test, trainer.config))
    seconds, device = time.perf_counter() - start, describe_device(trainer.device)
    return pools_tested(data, trainer.config).outcome(
        run, items=sum(map(len, run.values())), seconds=seconds, device=device
    )


def shares_seeds(config: TrainConfig, base: TrainConfig) -> bool:
    """Return whether a seed gives a training the first weights and the order of queries that it gives the base.

    Every epoch's order depends on the seed alone, and so do the first weights of one kind and size.
    """
    keys = ("init", "head_output_size", "batch_size", "num_steps")
    return all(getattr(config, key) == getattr(base, key) for key in keys)


def _fit(trainer: HeadTrainer, step: Step) -> dict[str, float]:
    found = fit_with_progress(trainer.fit, trainer.config.num_steps, step)
    return {name: found[name] for name in ("val", "best_step", "seconds")}


SYSTEM, BASELINE = "eggroll", "infonce"


def register_gate(comparison: Comparison, output_dir: Path) -> None:
    """Register that evolution beats InfoNCE by more than the margin, if both are compared; see ``register_gates``.

    Raises:
        DataError: another gate is registered there.
    """
    if not {SYSTEM, BASELINE} <= set(comparison.methods):
        return
    base = comparison.base
    gate: dict[str, object] = {
        "kind": "superiority",
        "task": "reranking",
        "datasets": [result_name(base.task)],
        "metric": f"ndcg@{base.ndcg_k}",
        "system": SYSTEM,
        "baseline": BASELINE,
        "margin": comparison.margin,
        "seeds": sorted(comparison.seeds),
    }
    register_gates({f"{SYSTEM}-beats-{BASELINE}": gate}, output_dir)
