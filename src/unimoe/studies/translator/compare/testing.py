"""The pairs of a comparison, and the test of a translator on those that are reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unimoe.core.io import read_json, write_json
from unimoe.models.device import describe_device
from unimoe.results import TrainingBudget, arm_dir
from unimoe.studies.translator.compare.arms import TranslatorComparison
from unimoe.studies.translator.config import CLOSED_FORMS, TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, split_by_image
from unimoe.studies.translator.data.sources import Source
from unimoe.studies.translator.evaluation import crossmodal_spec, evaluate_crossmodal
from unimoe.studies.translator.models.files import read_manifest
from unimoe.studies.translator.models.interface import milliseconds_per_query
from unimoe.studies.translator.training.trainer import TranslatorTrainer

TRAINING_FILE = "training.json"
"""Cost and outcome of a training, beside the arm's checkpoint."""


class ComparedPairs:
    """The pairs of a comparison; ``test`` holds those that are reported."""

    def __init__(self, comparison: TranslatorComparison, source: Source) -> None:
        self.comparison, self.source = comparison, source
        self._rest, self.test = split_by_image(source.pairs, comparison.test, comparison.split_seed)

    def split(self, seed: int) -> tuple[CaptionPairs, CaptionPairs]:
        """Return train and dev of a seed."""
        return split_by_image(self._rest, self.comparison.dev / (1.0 - self.comparison.test), seed)

    def trainer(self, config: TranslatorConfig, arm: str) -> TranslatorTrainer:
        """Return the training of an arm on the split of its seed."""
        return TranslatorTrainer(config, *self.split(config.seed), arm)


def training_file(trainer: TranslatorTrainer) -> Path:
    """Return where cost and outcome of a reported training are, which are written last."""
    return arm_dir(Path(trainer.config.output_dir), trainer.arm, trainer.config.seed) / TRAINING_FILE


def report(trainer: TranslatorTrainer, facts: Mapping[str, Any], pairs: ComparedPairs, given: Sequence[str]) -> float:
    """Test a training once, write down its cost, and return its MRR on the test captions.

    Args:
        trainer: finished.
        facts: that it returned.
        pairs: of the comparison.
        given: options of the command line, for provenance.
    """
    comparison, source, config = pairs.comparison, pairs.source, trainer.config
    closed_form = config.model in CLOSED_FORMS
    steps, seen = int(facts["steps"]), trainer.captions_seen
    budget = TrainingBudget(steps=steps, ranking_examples=0, embedding_examples=seen, tokens=0)
    translator = trainer.translator()
    spec = crossmodal_spec(
        trainer.arm,
        config.seed,
        experiment=comparison.name,
        dataset=comparison.dataset,
        split="test",
        pairs=pairs.test,
        config={
            "comparison": comparison.model_dump(),
            "training": config.model_dump(),
            "paired_seeds": True,  # a seed decides which images every arm is trained on
        },
        encoder=source.encoder,
        prompt=source.prompt,
        translator_hash=read_manifest(trainer.checkpoint).tensors_hash,
        checkpoint="none" if closed_form else "best",
        training=None if closed_form else budget,
        caveats=comparison.caveats,
    )
    result = evaluate_crossmodal(
        Path(config.output_dir),
        spec,
        translator,
        pairs.test,
        texts=None if source.texts is None else {key: source.texts[key] for key in pairs.test.caption_ids},
        device=trainer.device.type,
        given=given,
    )
    path = training_file(trainer)
    if not path.exists() or read_json(path, dict[str, Any])["fingerprint"] != trainer.state.fingerprint:
        speed = {"ms_per_query": milliseconds_per_query(translator), "device": describe_device(trainer.device)}
        write_json(path, {"fingerprint": trainer.state.fingerprint, **facts, **speed})
    return result.aggregate["mrr"]
