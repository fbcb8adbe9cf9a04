"""A learning rate for each loss, chosen on dev with as many tries for one as for another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import torch

from unimoe.core.console import Steps
from unimoe.core.errors import UsageError
from unimoe.core.io import write_json
from unimoe.evaluation.engines import Engine
from unimoe.studies.cross_encoder.config import CrossEncoderConfig
from unimoe.studies.cross_encoder.distant import train_by_workers
from unimoe.studies.cross_encoder.jobs import training_of
from unimoe.studies.cross_encoder.training.data import CrossEncoderData

TUNING = "tuning"
"""Folder of the trainings that choose a rate, in the comparison's."""


def chosen_rates(
    base: CrossEncoderConfig,
    arms: Sequence[str],
    rates: Sequence[float],
    configured: Callable[[str], CrossEncoderConfig],
    data: CrossEncoderData,
    device: torch.device,
    engine: Engine | None,
) -> dict[str, float]:
    """Train every arm at every rate with a seed that is not reported, and return the best rate of each on dev.

    Finished trainings are skipped, whatever the order of the rates. Of rates with equal scores the lowest wins.

    Args:
        base: of the comparison.
        arms: the losses.
        rates: to try.
        configured: gives the configuration of an arm with the seed of these trainings.
        data: of the comparison.
        device: of the trainings.
        engine: lets workers of a cluster do the trainings.

    Raises:
        UsageError: there are no dev queries to choose by.
    """
    if not data.dev:
        raise UsageError("--rates: there are no dev queries to choose by; name evaluation.dev")
    folder, rates = Path(base.output_dir) / TUNING, sorted(set(rates))
    configs = {
        arm: [
            configured(arm).model_copy(update={"learning_rate": rate, "output_dir": str(folder / f"{arm}-{rate}")})
            for rate in rates
        ]
        for arm in arms
    }
    train_by_workers(engine, base, [*chain(*configs.values())], data, tested=False)
    found: dict[str, float] = {}
    steps = Steps(len(arms))
    for arm in arms:
        trainings, tried = [training_of(config, data, device) for config in configs[arm]], list[dict[str, float]]()
        with steps.step(f"{arm}: {len(rates)} rates on dev", sum(one.steps for one in trainings)) as step:
            for rate, training in zip(rates, trainings, strict=True):
                training.run_with_bar(step)
                manifest = training.fit()
                assert manifest.dev is not None  # noqa: S101 - for the type checker: there are dev queries
                tried.append({"learning_rate": rate, "dev": manifest.dev})
            found[arm] = max(tried, key=lambda one: one["dev"])["learning_rate"]
            step.outcome = f"best {found[arm]:g}"
        write_json(folder / f"{arm}.json", tried)
    return found
