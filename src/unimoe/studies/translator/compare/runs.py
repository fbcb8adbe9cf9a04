"""Train translators on several splits and test each once; finished work is kept.

Settings are chosen on the dev images of a separate split. No image of the test part is in any other part of any seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unimoe.core.console import Steps
from unimoe.core.io import write_json
from unimoe.evaluation.engines import Engine
from unimoe.studies.common.registered_gates import register_gates
from unimoe.studies.translator.compare.arms import (
    ADAPTERS,
    BASELINE,
    COMPONENTS,
    Changes,
    TranslatorComparison,
    ablation_config,
)
from unimoe.studies.translator.compare.distant import train_by_workers
from unimoe.studies.translator.compare.testing import ComparedPairs, report
from unimoe.studies.translator.config import TranslatorConfig
from unimoe.studies.translator.data.sources import Source
from unimoe.studies.translator.training.trainer import TranslatorTrainer


@dataclass(frozen=True)
class Chosen:
    """The setting of a model that was best on dev.

    Attributes:
        changes: its changes to the base.
        config: the whole configuration.
        dev: its MRR on the tuning split's dev images; None where there was nothing to choose.
    """

    changes: Changes
    config: TranslatorConfig
    dev: float | None


class TranslatorRun:
    """A comparison in its output folder.

    Args:
        comparison: its configuration.
        source: of its pairs.
        given: command-line options, for provenance.
        engine: lets workers of a cluster do the trainings; by default this process does.

    Attributes:
        test: the pairs that are reported.
    """

    def __init__(
        self,
        comparison: TranslatorComparison,
        source: Source,
        given: Sequence[str] = (),
        engine: Engine | None = None,
    ) -> None:
        self.comparison, self.source, self._given, self._engine = comparison, source, given, engine
        self.output_dir = Path(comparison.base.output_dir)
        self._pairs = ComparedPairs(comparison, source)
        self.test = self._pairs.test

    def compare(self) -> dict[str, Chosen]:
        """Register the gates, then choose settings, train and test every model that is not done.

        Raises:
            DataError: the folder holds other gates or another training.
        """
        if gates := self._gates():
            register_gates(gates, self.output_dir)
        steps = Steps(2 * len(self.comparison.models))
        models = self.comparison.models
        tuned = (trainer for model in models if len(self.comparison.tried(model)) > 1 for trainer in self._tuned(model))
        train_by_workers(self._engine, self._pairs, tuned, tested=False)
        chosen = {model: self._choose(model, steps) for model in models}
        self._test_all({model: chosen[model].config for model in models}, steps)
        return chosen

    def ablate(self) -> list[str]:
        """Train and test every row of the ablation and return the rows' names; raises as ``compare``."""
        train, _ = self._pairs.split(self.comparison.seeds[0])
        configs = {name: ablation_config(self.comparison.base, name, len(train.image_ids)) for name in COMPONENTS}
        self._test_all(configs, Steps(len(configs)))
        return list(COMPONENTS)

    def _gates(self) -> dict[str, Mapping[str, object]]:
        comparison = self.comparison
        shared: dict[str, object] = {"kind": "superiority", "task": "crossmodal", "datasets": [comparison.dataset]}
        shared |= {"metric": "mrr", "baseline": BASELINE, "margin": comparison.margin}
        pairs = [name for name in ADAPTERS if {name, BASELINE} <= set(comparison.models)]
        seeds = sorted(comparison.seeds)
        return {f"{name}-beats-{BASELINE}": {**shared, "system": name, "seeds": seeds} for name in pairs}

    def _choose(self, model: str, steps: Steps) -> Chosen:
        tried = self.comparison.tried(model)
        if len(tried) == 1:
            with steps.step(model, None) as step:
                step.outcome = "nothing to choose on dev"
            return Chosen(*tried[0], None)
        trainers = self._tuned(model)
        with steps.step(f"{model}: {len(tried)} settings on dev", sum(t.batches for t in trainers)) as step:
            values = []
            for trainer in trainers:
                trainer.run_with_bar(step)
                values.append(trainer.fit()["val"])
            best = values.index(max(values))
            changes, config = tried[best]
            shown = ", ".join(f"{key} {value}" for key, value in changes.items())
            step.outcome = f"best {100 * values[best]:.2f} with {shown}"
        listed = [{**changes, "val": value} for (changes, _), value in zip(tried, values, strict=True)]
        write_json(self.output_dir / "tuning" / f"{model}.json", listed)
        return Chosen(changes, config, values[best])

    def _tuned(self, model: str) -> list[TranslatorTrainer]:
        """Return the trainings that choose a model's setting."""
        trainers = []
        for place, (_, config) in enumerate(self.comparison.tried(model)):
            own = {"seed": self.comparison.tuning_seed, "output_dir": str(self.output_dir / f"tuning/{model}-{place}")}
            trainers.append(self._pairs.trainer(config.model_copy(update=own), model))
        return trainers

    def _reported(self, arm: str, config: TranslatorConfig) -> list[TranslatorTrainer]:
        configs = (config.model_copy(update={"seed": seed}) for seed in self.comparison.seeds)
        return [self._pairs.trainer(own, arm) for own in configs]

    def _test_all(self, configs: Mapping[str, TranslatorConfig], steps: Steps) -> None:
        """Train every arm with every seed, and test each training once."""
        every = (trainer for arm, config in configs.items() for trainer in self._reported(arm, config))
        train_by_workers(self._engine, self._pairs, every, self._given, tested=True)
        for arm, config in configs.items():
            self._test(arm, config, steps)

    def _test(self, arm: str, config: TranslatorConfig, steps: Steps) -> None:
        trainers = self._reported(arm, config)
        with steps.step(f"{arm}: {len(trainers)} seeds", sum(t.batches for t in trainers)) as step:
            found = []
            for trainer in trainers:
                trainer.run_with_bar(step)
                found.append(report(trainer, trainer.fit(), self._pairs, self._given))
            step.outcome = f"test {100 * sum(found) / len(found):.2f}"
