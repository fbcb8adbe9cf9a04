"""Train translators on several splits and test each once; finished work is kept.

Settings are chosen on the dev images of a separate split. No image of the test part is in any other part of any seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unimoe.console import Steps
from unimoe.io import read_json, write_json
from unimoe.models.device import describe_device
from unimoe.results import TrainingBudget, arm_dir
from unimoe.studies.common.progress import fit_with_progress
from unimoe.studies.common.registered_gates import register_gates
from unimoe.studies.translator.compare.arms import (
    ADAPTERS,
    BASELINE,
    COMPONENTS,
    Changes,
    TranslatorComparison,
    ablation_config,
)
from unimoe.studies.translator.config import CLOSED_FORMS, TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, split_by_image
from unimoe.studies.translator.data.sources import Source
from unimoe.studies.translator.evaluation import crossmodal_spec, evaluate_crossmodal
from unimoe.studies.translator.models.files import read_translator
from unimoe.studies.translator.models.interface import milliseconds_per_query
from unimoe.studies.translator.training.trainer import TranslatorTrainer

TRAINING_FILE = "training.json"
"""Cost and outcome of a training, beside the arm's checkpoint."""


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
    """A comparison in its output folder; ``test`` holds the pairs that are reported, ``given`` is for provenance."""

    def __init__(self, comparison: TranslatorComparison, source: Source, given: Sequence[str] = ()) -> None:
        self.comparison, self.source, self._given = comparison, source, given
        self.output_dir = Path(comparison.base.output_dir)
        self._rest, self.test = split_by_image(source.pairs, comparison.test, comparison.split_seed)

    def compare(self) -> dict[str, Chosen]:
        """Register the gates, then choose settings, train and test every model that is not done.

        Raises:
            DataError: the folder holds other gates or another training.
        """
        if gates := self._gates():
            register_gates(gates, self.output_dir)
        steps = Steps(2 * len(self.comparison.models))
        chosen = {}
        for model in self.comparison.models:
            chosen[model] = self._choose(model, steps)
            self._test(model, chosen[model].config, steps)
        return chosen

    def ablate(self) -> list[str]:
        """Train and test every row of the ablation and return the rows' names; raises as ``compare``."""
        train, _ = self._split(self.comparison.seeds[0])
        configs = {name: ablation_config(self.comparison.base, name, len(train.image_ids)) for name in COMPONENTS}
        steps = Steps(len(configs))
        for name, config in configs.items():
            self._test(name, config, steps)
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
            steps.skip(f"{model}: nothing to choose on dev")
            return Chosen(*tried[0], None)
        train, dev = self._split(self.comparison.tuning_seed)
        trainers = []
        for place, (_, config) in enumerate(tried):
            own = {"seed": self.comparison.tuning_seed, "output_dir": str(self.output_dir / f"tuning/{model}-{place}")}
            trainers.append(TranslatorTrainer(config.model_copy(update=own), train, dev))
        with steps.step(f"{model}: {len(tried)} settings on dev", sum(t.batches for t in trainers)) as step:
            values = [fit_with_progress(trainer.fit, trainer.batches, step)["val"] for trainer in trainers]
            best = values.index(max(values))
            changes, config = tried[best]
            shown = ", ".join(f"{key} {value}" for key, value in changes.items())
            step.outcome = f"best {100 * values[best]:.2f} with {shown}"
        listed = [{**changes, "val": value} for (changes, _), value in zip(tried, values, strict=True)]
        write_json(self.output_dir / "tuning" / f"{model}.json", listed)
        return Chosen(changes, config, values[best])

    def _test(self, arm: str, config: TranslatorConfig, steps: Steps) -> None:
        trainers = []
        for seed in self.comparison.seeds:
            train, dev = self._split(seed)
            trainers.append(TranslatorTrainer(config.model_copy(update={"seed": seed}), train, dev, arm))
        with steps.step(f"{arm}: {len(trainers)} seeds", sum(t.batches for t in trainers)) as step:
            found = []
            for trainer in trainers:
                facts = fit_with_progress(trainer.fit, trainer.batches, step)
                found.append(self._report(trainer, facts))
            step.outcome = f"test {100 * sum(found) / len(found):.2f}"

    def _report(self, trainer: TranslatorTrainer, facts: Mapping[str, Any]) -> float:
        """Test a training once, write down its cost, and return its MRR on the test captions."""
        comparison, source, config = self.comparison, self.source, trainer.config
        closed_form = config.model in CLOSED_FORMS
        seen = int(facts["steps"]) * config.sampler.batch
        budget = TrainingBudget(steps=int(facts["steps"]), ranking_examples=0, embedding_examples=seen, tokens=0)
        translator = trainer.translator()
        spec = crossmodal_spec(
            trainer.arm,
            config.seed,
            experiment=comparison.name,
            dataset=comparison.dataset,
            split="test",
            pairs=self.test,
            config={
                "comparison": comparison.model_dump(),
                "training": config.model_dump(),
                "paired_seeds": True,  # a seed decides which images every arm is trained on
            },
            encoder=source.encoder,
            prompt=source.prompt,
            translator_hash=read_translator(trainer.checkpoint).content_hash,
            checkpoint="none" if closed_form else "best",
            training=None if closed_form else budget,
            caveats=comparison.caveats,
        )
        result = evaluate_crossmodal(
            self.output_dir,
            spec,
            translator,
            self.test,
            texts=None if source.texts is None else {key: source.texts[key] for key in self.test.caption_ids},
            device=trainer.device.type,
            given=self._given,
        )
        path = arm_dir(self.output_dir, trainer.arm, config.seed) / TRAINING_FILE
        if not path.exists() or read_json(path)["fingerprint"] != trainer.state.fingerprint:
            speed = {"ms_per_query": milliseconds_per_query(translator), "device": describe_device(trainer.device)}
            write_json(path, {"fingerprint": trainer.state.fingerprint, **facts, **speed})
        return result.aggregate["mrr"]

    def _split(self, seed: int) -> tuple[CaptionPairs, CaptionPairs]:
        """Return train and dev of a seed."""
        return split_by_image(self._rest, self.comparison.dev / (1.0 - self.comparison.test), seed)
