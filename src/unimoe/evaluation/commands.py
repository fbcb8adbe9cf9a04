"""What ``evaluate`` does once its options are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from unimoe.checkpoint import Checkpoint, read_checkpoint
from unimoe.config import Experiment
from unimoe.config_files import apply_overrides
from unimoe.console import Steps, stdout
from unimoe.errors import UsageError
from unimoe.evaluation.evaluator import Evaluator, Subject
from unimoe.evaluation.subjects import evaluation_config, first_stage_subject, trained_subject, zero_shot_subject
from unimoe.evaluation.suite import evaluate_subject, load_available, refuse_silence
from unimoe.evaluation.tiers import TierName, tier_datasets
from unimoe.models.bench import ModelBench
from unimoe.models.device import choose_dtype
from unimoe.results import result_path


@dataclass(frozen=True)
class EvaluationRequest:
    """What was asked for.

    Attributes:
        checkpoint: a checkpoint folder; null for the base model as it is.
        config: evaluation settings in place of the checkpoint's; required without a checkpoint.
        overrides: ``key=value`` strings, for the checkpoint's config where no other is given.
        tier: ``bundled``, ``fast`` or ``full``.
        max_queries: queries of each dataset, at most.
        output_dir: where results go; by default beside the checkpoint.
        given: for provenance.
    """

    checkpoint: Path | None
    config: Experiment | None
    overrides: tuple[str, ...]
    tier: str
    max_queries: int | None
    output_dir: Path | None
    given: list[str]


def run_evaluation(request: EvaluationRequest, device: torch.device) -> None:
    """Evaluate the asked-for arm, and the first stage beside it; prints a line per result on stdout.

    Raises:
        MissingPartError: all was done but for collections that cannot be had.
        UnimoeError: the checkpoint or config cannot be used.
    """
    experiment, output_dir, subject_of = _what(request, device)
    datasets, missing = load_available(tier_datasets(experiment, cast("TierName", request.tier), request.max_queries))
    subjects = [first_stage_subject(experiment), subject_of()]
    steps = Steps(sum(len(subject.tasks) for subject in subjects) * len(datasets))
    for subject in subjects:
        evaluate_subject(Evaluator(output_dir, request.given), subject, datasets, steps)
    for data in datasets:
        for subject in subjects:
            for task in subject.tasks:
                stdout.print(
                    str(result_path(output_dir, subject.name, subject.seed, task, data.dataset.collection)),
                    soft_wrap=True,
                )
    refuse_silence(missing)


def _what(request: EvaluationRequest, device: torch.device) -> tuple[Experiment, Path, Callable[[], Subject]]:
    """The configuration, the output folder, and the arm."""
    if request.checkpoint is None:
        if request.config is None:
            raise UsageError("--zero-shot needs --config, which names the base model")
        experiment = request.config
        bench = ModelBench(experiment, device, choose_dtype(device, experiment.model.dtype))
        return (
            experiment,
            request.output_dir or Path(experiment.output_dir),
            lambda: zero_shot_subject(experiment, bench),
        )
    folder = request.checkpoint
    checkpoint = read_checkpoint(folder)
    experiment = evaluation_config(checkpoint, request.config or _overridden(checkpoint, request.overrides))
    # "auto" means what the training computed in: a score in another dtype would not be the one that was trained for.
    dtype = experiment.model.dtype if experiment.model.dtype != "auto" else checkpoint.dtype
    bench = ModelBench(experiment, device, getattr(torch, dtype))
    output_dir = request.output_dir or _home(folder, checkpoint) or Path(experiment.output_dir)
    return experiment, output_dir, lambda: trained_subject(experiment, bench, folder)


def _overridden(checkpoint: Checkpoint, overrides: tuple[str, ...]) -> Experiment | None:
    return apply_overrides(checkpoint.config, overrides, source="checkpoint's config") if overrides else None


def _home(folder: Path, checkpoint: Checkpoint) -> Path | None:
    """The experiment's folder, where the checkpoint stands in its place in one."""
    places = folder.resolve().parts[-3:]
    expected = (checkpoint.arm, f"seed_{checkpoint.seed}", "checkpoint")
    return folder.resolve().parents[2] if places == expected else None
