"""Translators in a study: every seed splits the training images in its own way, and the test images stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from unimoe.analysis.statistics.variance import Array
from unimoe.analysis.tables import Cell
from unimoe.config.base import Section
from unimoe.config.files import parse_config
from unimoe.core.errors import UsageError
from unimoe.core.io import read_json, write_json, write_text
from unimoe.evaluation.spec import Evaluation, model_hashes
from unimoe.evaluation.store import ResultStore
from unimoe.models.device import describe_device
from unimoe.models.embedder import Advance
from unimoe.results import About, Identity, Task, TrainingBudget, arm_dir, clusters
from unimoe.results.folder import Results
from unimoe.studies.common.family import Family
from unimoe.studies.common.study import Study
from unimoe.studies.translator.config import CLOSED_FORMS, TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, equal_captions, split_by_image
from unimoe.studies.translator.data.sources import NamedPairs, load_source
from unimoe.studies.translator.evaluation import MAIN_METRIC, crossmodal_outcome
from unimoe.studies.translator.models.translators import TIMED_BATCH, milliseconds_per_query, read_manifest
from unimoe.studies.translator.training.trainer import TranslatorTrainer

TRAINING_FILE = "training.json"
"""Cost and outcome of a training, next to the arm's checkpoint."""

COUNTS = {
    "queue negatives": "queue_negatives",
    "mined": "mined_negatives",
    "further positives": "extra_positives",
    "past predictions": "past_predictions",
    "same-image pairs": "same_image_pairs",
}
"""Columns that count how often a component of the loss was active, and their names in the facts of a training."""

SplitShare = Annotated[float, Field(gt=0, lt=1)]


class TranslatorData(Section):
    """The pairs of a study.

    Attributes:
        source: flickr8k under UNIMOE_DATA, generated, generated-curved, or an NPZ file.
        captions: captions.txt, the image of each caption of an NPZ file.
        encoder: of Flickr8k's captions; null for the bundled one.
        dims: the dimensions that captions and images must have; null for any.
        dev: share of the images that chooses settings and epochs.
        test: share of the images that is reported, the same images for every seed, so that scores pair.
        split_seed: of the choice of the test images.
        counts: whether the table counts how often each component of the loss was active; a batch is then at most a
            quarter of the training images, and the bank of images smaller in proportion, so that each can be.
    """

    source: str = "flickr8k"
    captions: str | None = None
    encoder: str | None = None
    dims: tuple[int, int] | None = None
    dev: SplitShare = 0.15
    test: SplitShare = 0.25
    split_seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    counts: bool = False

    def load(self) -> NamedPairs:
        """Return the pairs."""
        captions = None if self.captions is None else Path(self.captions)
        return load_source(self.source, captions, self.encoder, self.dims)


class TranslatorFamily(Family[TranslatorConfig, TranslatorTrainer]):
    """Translators from caption vectors to image vectors.

    A seed splits the images outside the test part into train and dev, and draws first weights and batches.
    """

    config_type = TranslatorConfig
    takes_data = True
    task: ClassVar[Task] = "crossmodal"
    metrics = (MAIN_METRIC, "recall@1", "recall@5", "recall@10")

    def __init__(self, study: Study, device: torch.device | None = None, given: Sequence[str] = ()) -> None:
        self.settings = parse_config(TranslatorData, study.data, f"{study.name}: data")
        super().__init__(study, device, given)

    @cached_property
    def source(self) -> NamedPairs:
        """All pairs."""
        return self.settings.load()

    @cached_property
    def parts(self) -> tuple[CaptionPairs, CaptionPairs]:
        """The pairs that train and choose, and those that are reported."""
        return split_by_image(self.source.pairs, self.settings.test, self.settings.split_seed)

    @cached_property
    def caveats(self) -> list[str]:
        """The study's, and how many reported captions others have word by word."""
        return [*self.study.caveats, *equal_captions(*self.parts, "trains or chooses")]

    @property
    def datasets(self) -> list[str]:
        """The name of the pairs."""
        return [self.source.name]

    @property
    def collection(self) -> str:
        """The name of the pairs, which are not loaded yet."""
        return Path(self.settings.source).stem

    def training(self, config: TranslatorConfig, arm: str) -> TranslatorTrainer:
        """Return a training on the split of its seed."""
        train, dev = split_by_image(self.parts[0], self.settings.dev / (1.0 - self.settings.test), config.seed)
        fitted = fitted_batches(config, len(train.image_ids)) if self.settings.counts else config
        return TranslatorTrainer(fitted, train, dev, arm)

    def dev(self, training: TranslatorTrainer) -> dict[str, float]:
        """Return MRR on the dev images."""
        facts = training.fit()
        return {"val": facts["val"], "start": facts["start"], "best": facts["best_epoch"], "seconds": facts["seconds"]}

    def test(self, training: TranslatorTrainer, arm: str, advance: Advance) -> float:
        """Rank all test images for each test caption, and write down what the training cost."""
        config, source, pairs, facts = training.config, self.source, self.parts[1], training.fit()
        closed_form, translator = config.model in CLOSED_FORMS, training.translator()
        learnt = read_manifest(training.checkpoint).tensors_hash
        seen = training.captions_seen
        budget = TrainingBudget(steps=int(facts["steps"]), ranking_examples=0, embedding_examples=seen, tokens=0)
        about = About(
            config_name=arm,
            seed=config.seed,
            task=self.task,
            dataset=source.name,
            identity=Identity(
                experiment=self.study.name,
                base_model=source.encoder,
                checkpoint="none" if closed_form else "best",
                split="test",
                prompt=source.prompt,
            ),
            config={
                "study": self.study.model_dump(),
                "training": config.model_dump(),
                "paired_seeds": True,  # a seed decides which images every arm is trained on
            },
            caveats=self.caveats,
            training=None if closed_form else budget,
        )
        hashes = {"collection": pairs.content_hash} | model_hashes(source.encoder, source.prompt, learnt)
        spec = Evaluation(about, hashes, MAIN_METRIC, "float32")
        result = ResultStore(self.root, self.given).evaluated(
            spec, lambda: crossmodal_outcome(translator, pairs, source.name, source.texts, training.device.type)
        )
        image_of = zip(pairs.caption_ids, pairs.image_of, strict=True)
        lines = (f"{caption}\t{pairs.image_ids[row]}\n" for caption, row in image_of)
        write_text(
            self.root / clusters.Clusters.FILE, "".join(lines)
        )  # gates too draw whole images, not captions of one
        path = arm_dir(self.root, arm, config.seed) / TRAINING_FILE
        if not path.exists() or read_json(path, dict[str, Any])["fingerprint"] != training.state.fingerprint:
            speed = {"ms_per_query": milliseconds_per_query(translator), "device": describe_device(training.device)}
            write_json(path, {"fingerprint": training.state.fingerprint, **facts, **speed})
        return result.aggregate[MAIN_METRIC]

    def test_to_dev(self, training: TranslatorTrainer) -> float:
        """Return test captions per dev caption."""
        return len(self.parts[1]) / max(1, len(training.validation))

    def is_tested(self, training: TranslatorTrainer, arm: str, seed: int | None) -> bool:
        """Return whether the cost is written, which comes last."""
        return (arm_dir(self.root, arm, seed) / TRAINING_FILE).exists()

    def identity(self, training: TranslatorTrainer) -> list[str]:
        """Return hashes of the training and of the test pairs."""
        return [training.state.fingerprint, self.parts[1].content_hash]

    def scores(self, results: Results, arm: str, key: str, seeds: Sequence[int], metric: str) -> Array:
        """Return scores by image: captions of one image are one observation, over which they are averaged first."""
        pairs = self.parts[1]
        order = sorted(range(len(pairs)), key=pairs.caption_ids.__getitem__)  # as results list captions
        image_of = pairs.image_of[order]
        counts = np.bincount(image_of)
        by_caption = super().scores(results, arm, key, seeds, metric)
        return np.array([np.bincount(image_of, weights=row) / counts for row in by_caption])

    def columns(self, results: Results, arm: str, key: str, config: TranslatorConfig | None) -> dict[str, Cell]:
        """Return median rank, size and time; or how often the components of the loss were active."""
        seeds = results.seeds(arm, key)
        records = [read_json(arm_dir(self.root, arm, seed) / TRAINING_FILE, dict[str, Any]) for seed in seeds]

        def middle(name: str) -> float:
            return float(np.median([record[name] for record in records]))

        if self.settings.counts:
            counts = {
                column: Cell.count(round(float(np.mean([record["fired"].get(name, 0) for record in records]))))
                for column, name in COUNTS.items()
            }
            epoch = float(np.mean([record["best_epoch"] for record in records]))
            return counts | {"epoch": Cell.number(epoch, ".1f")}
        held = [result for seed in seeds if (result := results.result(arm, seed, key)) is not None]
        ranks = {"median": "median_rank", "p75": "p75_rank"}
        return {
            **{column: Cell.mean([one.aggregate[name] for one in held]) for column, name in ranks.items()},
            "parameters": Cell.count(records[0]["parameters"]),
            "MB": Cell.number(records[0]["weight_bytes"] / 1e6, ".2f"),
            "s": Cell.number(middle("seconds"), ".1f"),
            "µs/query": Cell.number(1e3 * middle("ms_per_query"), ".2f"),
        }

    def notes(self) -> Sequence[str]:
        """Say what the scores and costs are."""
        cosine = "centred cosine" if self.base.centre else "plain cosine"
        costs = (
            "Counts are of one training, mean over seeds: caption-image pairs with an image of the queue, pairs left "
            "by mining, past predictions that were a caption's further positives, image-caption pairs with a past "
            "prediction, pairs of captions of one image in a batch. epoch: the best on dev."
            if self.settings.counts
            else f"µs/query: translation alone in batches of {TIMED_BATCH}, median. s: of training, median over seeds. "
            "MB: of the weights as they are kept."
        )
        return (
            "Queries are images here: captions of one image are one observation, and scores are averaged over them "
            "first. Seeds pair: each splits the training images in its own way, the same for every arm.",
            costs,
            f"Ranked by the {cosine} in a gallery of {len(self.parts[1].image_ids):,} images.",
            *self.source.pairs.notes,
        )


def fitted_batches(config: TranslatorConfig, images: int) -> TranslatorConfig:
    """Return a configuration with batches that leave the queue other images of so many; a UsageError where none can."""
    sampler, bank = config.sampler, config.loss.bank
    batch = min(sampler.images, images // 4)
    if batch < 2 or config.epochs <= bank.warmup_epochs:
        raise UsageError(
            f"{images} training images and {config.epochs} epochs would leave the queue unused, which is not used in "
            f"the first {bank.warmup_epochs} epochs; give 8 images and {bank.warmup_epochs + 1} epochs at least"
        )
    share = batch / sampler.images

    def part(count: int) -> int:
        return max(1, int(count * share)) if count else 0

    smaller = {"images": batch, "batch": max(2, part(sampler.batch))}
    shrunk = {"queue": part(bank.queue), "recent": [*map(part, bank.recent)], "hardest": part(bank.hardest)}
    loss = config.loss.model_copy(update={"bank": bank.model_copy(update=shrunk)})
    return config.model_copy(update={"sampler": sampler.model_copy(update=smaller), "loss": loss})
