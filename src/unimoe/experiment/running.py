"""An experiment from its config to its verdict, as the command runs it and as Python does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from unimoe.analysis.analysis import Analysis
from unimoe.analysis.report import write_report
from unimoe.config import Experiment
from unimoe.config.files import load_experiment
from unimoe.core.console import stderr
from unimoe.core.io import sole_use
from unimoe.data.mteb_names import random_state_kept
from unimoe.evaluation.engines import Engine
from unimoe.experiment.job import ANALYZE, ExperimentRun, RunRecord
from unimoe.experiment.plan import plan_run
from unimoe.models.device import DeviceName, choose_device, describe_device
from unimoe.results import git_state
from unimoe.results.folder import load_all_results


def run_experiment(
    config: Path | str,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    output_dir: Path | str | None = None,
    device: DeviceName | None = None,
) -> Analysis:
    """Train, evaluate and judge every arm and seed as ``unimoe run --config`` does; what is done is skipped.

    Progress goes to stderr, results and the report to the experiment's folder.

    Args:
        config: a YAML file, or the name of a shipped one such as ``experiments/bundled``.
        overrides: values by key, such as ``{"training.steps": 50}``, or texts as ``load_experiment`` takes them.
        output_dir: the experiment's folder; by default the config's.
        device: ``cpu``, ``cuda`` or ``mps``; by default the best there is.

    Returns:
        Everything that can be asked of the ``results``, such as ``judgments`` and ``comparisons``.

    Raises:
        UsageError: the config is malformed, or the device is not there.
        DataError: the folder holds another experiment, or a model, collection or gate file cannot be used.
    """
    started = time.perf_counter()
    changes = list(overrides)
    if isinstance(overrides, Mapping):
        changes = [f"{key}={json.dumps(value, default=str)}" for key, value in overrides.items()]  # JSON is YAML
    experiment = load_experiment(config, changes)
    folder = Path(experiment.output_dir if output_dir is None else output_dir)
    experiment = experiment.model_copy(update={"output_dir": str(folder)})
    given = [f"--config {config}", *(f"--set {change}" for change in changes)]
    work = trained_and_evaluated(experiment, choose_device(device), given, Engine(), started)
    with random_state_kept(), sole_use(folder), work:
        analysis = Analysis(load_all_results(folder))
        write_report(analysis)
    return analysis


@contextmanager
def trained_and_evaluated(
    experiment: Experiment, device: torch.device, given: Sequence[str], engine: Engine, started: float
) -> Iterator[ExperimentRun]:
    """Train and evaluate what is not done yet, then run a block that analyses; ``run.json`` records what each costs.

    ``given`` holds the command-line overrides; ``started`` is the start of the job by ``time.perf_counter``.
    """
    with counted_products() as counted:
        run = ExperimentRun(experiment, device, given, engine)
        record = RunRecord(Path(experiment.output_dir), lambda: counted.flop, started)
        place, dtype = describe_device(device), run.loader.dtype_name
        # What a run's cost depends on besides its config.
        facts = {"dtype": dtype, "threads": torch.get_num_threads(), "git_commit": git_state()[0]}
        record.note({"device": place, **facts})
        arms, seeds = len(experiment.arms), len(experiment.seeds)
        stderr.print(
            f"{experiment.name}: {arms} arm{'s' * (arms > 1)} x {seeds} seed{'s' * (seeds > 1)}, "
            f"{experiment.model.base}, {place}, {dtype}; results in {experiment.output_dir}",
            soft_wrap=True,
        )
        expected = None if engine.remote else _estimated(experiment, run, record, started)
        run.train_and_evaluate(record, expected)
        stderr.print()
        with record.phase(ANALYZE):
            yield run


def _estimated(experiment: Experiment, run: ExperimentRun, record: RunRecord, started: float) -> Mapping[str, float]:
    """Print the expected time; return the seconds of a unit of each phase, the first run's where it is resumed."""
    if run.is_done():
        return {}
    known: Mapping[str, float] | None = record.fact("unit_seconds")
    if known is not None:  # it was begun before: it goes on at once
        return known
    expected = plan_run(experiment, run.loader, started, run.training_data)
    seconds = {"low": round(expected.low, 1), "high": round(expected.high, 1)}
    record.note({"estimate_seconds": seconds}, keep=True)
    record.note({"unit_seconds": {phase: round(seconds, 3) for phase, seconds in expected.units.items()}})
    for line in (f"{expected} on this machine", run.training_data.in_words()):
        stderr.print(line, soft_wrap=True)
    return expected.units


@dataclass
class ProductCounter:
    """Counts floating-point operations; ``flop`` is 2 for each multiply-add of a linear layer's products."""

    flop: int = 0

    def _after_forward(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not isinstance(module, nn.Linear) or torch.compiler.is_compiling():
            return
        product = 2 * output.numel() * module.in_features
        self.flop += product
        if output.requires_grad:
            rows = inputs[0] if inputs else None  # given by name, it is not shown to the hook
            wanted = int(rows is None or rows.requires_grad) + int(module.weight.requires_grad)

            def after_backward(_: Tensor) -> None:
                self.flop += wanted * product

            output.register_hook(after_backward)  # counts a backward pass only if it runs


@contextmanager
def counted_products() -> Iterator[ProductCounter]:
    """Count the products of every linear layer that runs in the block, whatever its model.

    The products of attention are left out, and those of compiled layers (``evaluation.compile``).
    """
    counter = ProductCounter()
    handle = register_module_forward_hook(counter._after_forward)
    try:
        yield counter
    finally:
        handle.remove()
