"""``unimoe train``: one arm with one seed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from unimoe.checks import report
from unimoe.cli.options import (
    DEFAULT_EXPERIMENT,
    Config,
    Device,
    OutputDir,
    Override,
    Threads,
    chosen_device,
    joined_quietly,
    placed,
    quiet_libraries,
)
from unimoe.core.advice import run_command
from unimoe.core.console import Steps, stderr, stdout
from unimoe.core.errors import UsageError


def _refuse_task(task: str | None) -> None:
    """Say what trains a head, as the original's ``train.py`` did."""
    if task is not None:
        raise UsageError(
            f"--task {task}: this command trains an arm of an experiment; for a head type "
            f"`{run_command(f'train-head --task {task}')}`, which takes --num-steps and --device too"
        )


def _refuse_num_steps(steps: str | None) -> None:
    if steps is not None:
        raise UsageError(f"--num_steps {steps}: type --set training.steps={steps}")


def train(
    arm: Annotated[str, typer.Option(help="One of the config's arms.")],
    config: Config = DEFAULT_EXPERIMENT,
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Initialises the adapters and orders the batches.")
    ] = 0,
    override: Override = None,
    output_dir: OutputDir = None,
    device: Device = None,
    threads: Threads = None,
    task: Annotated[str | None, typer.Option(hidden=True, is_eager=True, callback=_refuse_task)] = None,
    num_steps: Annotated[
        str | None, typer.Option("--num_steps", "--num-steps", hidden=True, callback=_refuse_num_steps)
    ] = None,
) -> None:
    """Train one arm with one seed, and print the checkpoint's folder.

    A stopped training continues when you run the command again, and a finished one is kept: delete its folder to
    start over. Under torchrun or accelerate launch the processes share each batch. With training.evaluate_every, the
    folder checkpoint-best keeps the checkpoint that is best on dev, that before training where no step is better.
    """
    from unimoe.config.files import load_experiment

    experiment = placed(load_experiment(config, override or []), output_dir)
    experiment.arm_named(arm)
    quiet_libraries()
    from unimoe.evaluation.dev_eval import DevEvaluation
    from unimoe.models.device import choose_dtype, use_threads
    from unimoe.models.loader import ModelLoader, refuse_missing_layers
    from unimoe.training.examples import load_training_data
    from unimoe.training.trainer import ArmTraining

    with joined_quietly() as processes:
        refuse_missing_layers(experiment)
        target = chosen_device(device)
        dtype = choose_dtype(target, experiment.model.dtype, trains=True)
        loader = ModelLoader(experiment, target, processes.leaders_dtype(dtype))
        with Steps(1).step(f"train {arm}, seed {seed}", experiment.training.steps) as step:

            def on_step(_: int, facts: dict[str, Any]) -> None:
                step.advance(1)
                step.outcome = f"loss {facts['loss']:.3f}"

            data = load_training_data(experiment)
            stderr.print(data.in_words(), soft_wrap=True)
            report(data.checks)
            use_threads(threads)
            training = ArmTraining(experiment, arm, seed, loader, data, DevEvaluation(experiment, arm), processes)
            training.run(on_step)
            step.outcome = ", ".join(filter(None, (step.outcome, training.choice)))
    stdout.print(str(training.last), soft_wrap=True)
