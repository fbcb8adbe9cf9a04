"""What the record of gradient conflicts adds to the training of a joint arm.

    uv run benchmarks/conflict_record.py

Two trainings of the bundled joint arm take the same steps alternately: one measures each of them, the other none. A
measured step computes half of the ranking batch and both halves of the embedding batch once more. ``overhead`` is the
share of training time at the default interval. On a CPU, time is processor time of this
process, which other processes do not lengthen.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from unimoe.config.files import load_experiment
from unimoe.config.training import ConflictConfig
from unimoe.models.device import choose_device, choose_dtype, describe_device
from unimoe.models.loader import ModelLoader
from unimoe.training.examples import load_training_data
from unimoe.training.trainer import ArmTraining

ROUNDS = 5


def ready(folder: Path, measure: bool, device: torch.device) -> ArmTraining:
    """A training of the bundled joint arm that measures every step or none."""
    settings = [
        f"output_dir={folder}",
        "training.ranking.queries=60",
        "training.embedding.queries=100",
        f"training.conflicts.measure={json.dumps(measure)}",
        "training.conflicts.interval=1",
    ]
    experiment = load_experiment(Path("experiments/bundled"), settings)
    loader = ModelLoader(experiment, device, choose_dtype(device))
    training = ArmTraining(
        experiment, "joint_r8", 0, loader.fresh_base(), load_training_data(experiment), loader.frozen_layers
    )
    training.prepare()
    return training


def seconds(training: ArmTraining, device: torch.device) -> float:
    """Of the next step."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    start = clock()
    training.step(training.progress.step)
    training.progress.step += 1
    if device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def main() -> None:
    """Measure alternately and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    device = choose_device()
    with tempfile.TemporaryDirectory() as folder:
        plain, measured = (ready(Path(folder) / str(measure), measure, device) for measure in (False, True))
        pairs = []
        for _ in range(rounds + 1):
            pairs.append((seconds(plain, device), seconds(measured, device)))
            print(f"{pairs[-1][0]:.2f} s, measured {pairs[-1][1]:.2f} s", file=sys.stderr, flush=True)
        del pairs[0]  # warm-up
    step, with_record = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(both / alone for alone, both in pairs)
    interval = ConflictConfig().interval
    print(f"{describe_device(device)}, {rounds} pairs of steps")
    print(f"a step {step:.2f} s, measured {with_record:.2f} s; ratio {ratios[0]:.2f} to {ratios[-1]:.2f}")
    ratio = statistics.median(ratios)
    print(json.dumps({"measured_step": round(ratio, 2), "overhead": round((ratio - 1) / interval, 3)}))


if __name__ == "__main__":
    main()
