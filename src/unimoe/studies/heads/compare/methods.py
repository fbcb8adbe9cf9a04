"""The comparison: try every arm's settings on dev, train the best with every seed, and test each training once.

Finished work is skipped, so that a killed comparison continues when it is started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unimoe.core.console import Step, Steps
from unimoe.core.io import write_json
from unimoe.data.catalog import result_name
from unimoe.evaluation.engines import Engine
from unimoe.evaluation.store import ResultStore
from unimoe.studies.common.registered_gates import register_gates
from unimoe.studies.heads.compare.arms import ARMS, Comparison, in_words
from unimoe.studies.heads.compare.distant import train_by_workers
from unimoe.studies.heads.compare.front import chosen_on_front, mean_diversity
from unimoe.studies.heads.compare.testing import pools_tested, report
from unimoe.studies.heads.config import TrainConfig
from unimoe.studies.heads.data import HeadData
from unimoe.studies.heads.trainer import HeadTrainer, load_data


@dataclass(frozen=True)
class Chosen:
    """The setting of an arm that was best on dev.

    Attributes:
        setting: the keys of the arm's grid with the chosen values.
        config: the whole configuration.
        tried: the keys and values of every setting, with ``val`` on dev, best step and seconds.
        dev: ``val`` of this one; None where there was nothing to choose.
    """

    setting: dict[str, Any]
    config: TrainConfig
    tried: list[dict[str, Any]]
    dev: float | None


class MethodComparison:
    """A comparison in its output folder, its gate registered there.

    Args:
        comparison: its configuration.
        data: the pools; by default those of the config are loaded.
        given: options of the command line, for provenance.
        engine: lets workers of a cluster do the trainings; by default this process does.

    Raises:
        DataError: the folder holds another gate, or the collection or encoder is not available.
    """

    def __init__(
        self,
        comparison: Comparison,
        data: HeadData | None = None,
        given: Sequence[str] = (),
        engine: Engine | None = None,
    ) -> None:
        self.comparison, self.output_dir, self._given = comparison, Path(comparison.base.output_dir), given
        self._engine = engine
        self.dataset = result_name(comparison.base.task)
        register_gate(comparison, self.output_dir)
        self.data = data if data is not None else load_data(comparison.base)

    def run(self) -> dict[str, Chosen]:
        """Do everything that is not done yet; return the setting chosen for each arm."""
        methods = self.comparison.methods
        steps = Steps(2 * len(methods))
        if self.comparison.base.pools.source == "bm25":  # the encoder's own order is that of zero-shot
            self._write_first_stage()
        if self.comparison.settings > 1:
            self.tune_by_workers([name for name in methods if ARMS[name].grid])
        chosen = {name: self._tune(name, steps) for name in methods}
        configs = {name: chosen[name].config for name in methods}
        every = (self.trainer(name, config, seed) for name, config in configs.items() for seed in self._seeds(config))
        train_by_workers(self._engine, self.comparison, every, self._given, tested=True)
        for name, config in configs.items():
            self._train(name, config, steps)
        return chosen

    def tune_by_workers(self, methods: Sequence[str]) -> None:
        """Let workers of a cluster do the trainings that choose the settings of some arms."""
        trainers = (trainer for name in methods for _, trainer in self.tuned(name))
        train_by_workers(self._engine, self.comparison, trainers, tested=False)

    def trainer(self, name: str, config: TrainConfig, seed: int) -> HeadTrainer:
        """Return the reported training of an arm."""
        return HeadTrainer(config.model_copy(update={"seed": seed}), self.data, name)

    def tuned(self, name: str) -> list[tuple[dict[str, Any], HeadTrainer]]:
        """Return the trainings that choose an arm's setting, each with its keys and values."""
        base = self.comparison.base.model_copy(update={"seed": self.comparison.tuning_seed})
        trainers = []
        for place, (setting, chosen) in enumerate(ARMS[name].settings(base, self.comparison.settings)):
            config = self._with_voters(chosen)
            folder = {"output_dir": str(self.output_dir / "tuning" / f"{name}-{place}")}
            trainers.append((setting, HeadTrainer(config.model_copy(update=folder), self.data, name)))
        return trainers

    def _with_voters(self, config: TrainConfig) -> TrainConfig:
        voters = self.comparison.voters
        if voters is None or config.soft_labels is None:
            return config
        return config.model_copy(update={"soft_labels": config.soft_labels.model_copy(update={"voters": voters})})

    def _tune(self, name: str, steps: Steps) -> Chosen:
        trainings = self.tuned(name)
        if len(trainings) == 1:
            with steps.step(name, None) as step:
                step.outcome = "nothing to choose"
            return Chosen(trainings[0][0], self._reported(trainings[0][1].config), [], None)
        tried: list[dict[str, Any]] = []
        size = len(trainings) * self.comparison.base.num_steps
        with steps.step(f"{name}: {len(trainings)} settings on dev", size) as step:
            for setting, trainer in trainings:
                tried.append({**setting, **_fit(trainer, step), **self._second_objective(trainer)})
            best = self._best(tried)
            setting, trainer = trainings[best]
            step.outcome = f"best {100 * tried[best]['val']:.2f} with {in_words(setting)}"
        write_json(self.output_dir / "tuning" / f"{name}.json", tried)
        return Chosen(setting, self._reported(trainer.config), tried, tried[best]["val"])

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

    def _seeds(self, config: TrainConfig) -> list[int]:
        return self.comparison.seeds if config.method != "zero_shot" else [config.seed]

    def _train(self, name: str, config: TrainConfig, steps: Steps) -> None:
        seeds = self._seeds(config)
        with steps.step(f"{name}: {len(seeds)} seeds", len(seeds) * config.num_steps) as step:
            means = []
            for seed in seeds:
                trainer = self.trainer(name, config, seed)
                _fit(trainer, step)
                means.append(report(trainer, self.comparison, self.output_dir, self._given))
            step.outcome = f"test {100 * sum(means) / len(means):.2f}"

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


def _fit(trainer: HeadTrainer, step: Step) -> dict[str, float]:
    trainer.run_with_bar(step)
    found = trainer.fit()
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
