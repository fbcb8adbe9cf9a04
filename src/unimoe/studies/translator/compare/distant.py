"""Trainings of a comparison by workers of a cluster, each with its test where it is reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from unimoe.cluster.folder_job import Tick, folder_jobs
from unimoe.cluster.units import UnitStore
from unimoe.cluster.work import Compute, Part, Recipe
from unimoe.evaluation.engines import ClusterEngine, Engine
from unimoe.studies.common.workers import GIVEN, Task, done_by_workers, refuse_other_data
from unimoe.studies.translator.compare.arms import TranslatorComparison
from unimoe.studies.translator.compare.testing import ComparedPairs, report, training_file
from unimoe.studies.translator.config import TranslatorConfig
from unimoe.studies.translator.data.sources import load_source
from unimoe.studies.translator.models.files import TENSORS_FILE
from unimoe.studies.translator.training.trainer import TranslatorTrainer


def train_by_workers(
    engine: Engine | None,
    pairs: ComparedPairs,
    trainers: Iterable[TranslatorTrainer],
    given: Sequence[str] = (),
    *,
    tested: bool,
) -> None:
    """Let workers do the trainings that are not done, each with its test where ``tested``; see ``done_by_workers``."""
    if not isinstance(engine, ClusterEngine):
        return
    base, tasks = pairs.comparison.base, []
    for trainer in trainers:
        if _is_done(trainer, tested):
            continue
        trainer.make_room()
        config, data = trainer.config, [trainer.state.fingerprint, pairs.test.content_hash]
        what = f"train {trainer.arm}, seed {config.seed}" + ("" if tested else f", {Path(config.output_dir).name}")
        more = {"arm": trainer.arm, "tested": tested, "data": data}
        tasks.append(Task.of(what, config, base.output_dir, max(1, trainer.batches), **more))
    recipe = {
        "maker": f"{__name__}:jobs_of",
        "comparison": pairs.comparison.model_dump(mode="json", exclude={"base": {"output_dir"}}),
        "source": pairs.source.origin,
        GIVEN: [*given],
    }
    done_by_workers(engine, recipe, tasks, Path(base.output_dir))


def jobs_of(recipe: Recipe, device: torch.device, store: UnitStore) -> Mapping[str, Compute]:
    """Return the job that trains a translator of a comparison and tests it."""
    origin = recipe["source"]
    captions = None if origin["captions_txt"] is None else Path(origin["captions_txt"])
    source = cache(lambda: load_source(origin["name"], captions, origin["encoder"]))

    def placed(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        return {**raw, "output_dir": str(folder), "device": device.type}

    def train(part: Part, folder: Path, tick: Tick) -> None:
        raw = recipe["comparison"]
        comparison = TranslatorComparison.model_validate(raw | {"base": placed(raw["base"], folder)})
        pairs = ComparedPairs(comparison, source())
        config = TranslatorConfig.model_validate(placed(part["config"], folder / part["folder"]))
        trainer = pairs.trainer(config, part["arm"])
        refuse_other_data(comparison.dataset, [trainer.state.fingerprint, pairs.test.content_hash], part["data"])
        facts = trainer.fit(lambda *_: tick())
        if part["tested"]:
            report(trainer, facts, pairs, recipe[GIVEN])

    return folder_jobs(train, store)


def _is_done(trainer: TranslatorTrainer, tested: bool) -> bool:
    """Return whether the last file that the driver takes over is there."""
    if tested:
        return training_file(trainer).exists()
    return (trainer.checkpoint / TENSORS_FILE).exists() and trainer.is_finished()
