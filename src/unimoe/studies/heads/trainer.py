"""The training of a head by any method: it chooses the best step on dev, and writes a checkpoint.

    results = HeadTrainer(TrainConfig(task="scifact", num_steps=300)).train()
    results["test/ndcg@10"]

The state is saved every few steps. A resumed training takes the same steps as an undisturbed one, bit for bit on a CPU.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unimoe.core.errors import DataError
from unimoe.core.io import hash_json
from unimoe.models.device import choose_device, choose_dtype
from unimoe.models.embedder import Advance
from unimoe.results import arm_dir
from unimoe.studies.common.initial_weight import initial_weight
from unimoe.studies.heads.config import TrainConfig, is_gradient_method
from unimoe.studies.heads.data import HeadData, document_dates, load_head_data, to_device
from unimoe.studies.heads.eggroll.fp4 import dequantize, quantize
from unimoe.studies.heads.methods import GradientMethod, Method
from unimoe.studies.heads.model import HEAD_FILE, chosen_by, evaluate_head, load_head, save_head
from unimoe.studies.heads.pools import PoolSet
from unimoe.training.run_state import RunState

OnStep = Callable[[int, dict[str, float]], None]
"""Called with the number of steps taken and the log record of the last one."""

_WITHOUT_EFFECT = {"save_every", "device", "output_dir"}


@dataclass
class Progress:
    """How far the training of a head is.

    Attributes:
        weight: the head after ``step`` steps.
        best: the best head on dev so far.
        best_value: its main metric on dev.
        start_value: the metric before training.
        best_step: steps taken when the best was seen; 0 is the head before training.
        step: steps taken.
        seconds: time of the steps, without evaluations on dev.
        facts: the log record of the last step.
    """

    weight: Tensor
    best: Tensor
    best_value: float
    start_value: float
    best_step: int = 0
    step: int = 0
    seconds: float = 0.0
    facts: dict[str, float] = field(default_factory=dict)


class HeadTrainer:
    """Trains one head.

    Args:
        config: of the training.
        data: the pools without soft labels, which are added as the config says; by default they are loaded.
        arm: its name in results; by default the method's.
        root: holds its folder; by default the config's ``output_dir``.

    Attributes:
        train_pools: to train on, on the device.
        dev_pools: these choose the step.
        dates: of documents, where freshness is an objective; else None.
        head_path: of the trained head.
        state: of the training in progress.
    """

    def __init__(
        self, config: TrainConfig, data: HeadData | None = None, arm: str | None = None, root: Path | None = None
    ) -> None:
        self.config, self.arm = config, arm or config.method
        self.device = choose_device(config.device)
        self.data = (data or load_data(config)).with_votes(config.soft_labels)
        self.train_pools, self.dev_pools = (to_device(pools, self.device) for pools in (self.data.train, self.data.dev))
        folder = arm_dir(root or Path(config.output_dir), self.arm, self.seed)
        self.head_path = folder / "checkpoint" / HEAD_FILE
        settings = {"config": config.model_dump(exclude=_WITHOUT_EFFECT), "data": self.data.content_hash}
        decisive: list[Any] = list(settings.values())
        self.dates: dict[str, date] | None = None
        if "freshness" in config.objectives:
            self.dates = document_dates(config.task)
            decisive.append({key: day.isoformat() for key, day in self.dates.items()})
        self.state = RunState(folder, settings, hash_json(decisive), Progress)

    @property
    def seed(self) -> int | None:
        """The training seed; None where nothing is trained."""
        return None if self.config.method == "zero_shot" else self.config.seed

    def train(self, on_step: OnStep | None = None, *, test: bool = True) -> dict[str, float]:
        """Train unless that is done, and evaluate; ``test=False`` leaves the test queries out while settings change.

        Returns:
            Under ``train/``, ``val/`` (dev) and ``test/``: nDCG at the config's cutoff and the usual measures of the
            best step on dev; ``best_step``, ``steps``, and ``seconds`` of training without evaluations on dev.

        Raises:
            DataError: a checkpoint or state in the folder is of another training; a weight is not finite.
        """
        facts = self.fit(on_step)
        weight, _ = self.head()
        splits = {"train": self.train_pools, "val": self.dev_pools} | ({"test": self.data.test} if test else {})
        found = {
            f"{split}/{metric}": value
            for split, pools in splits.items()
            for metric, value in evaluate_head(weight.to(pools.rows.device), pools, self.config).aggregate.items()
        }
        return found | {name: facts[name] for name in ("best_step", "steps", "seconds")}

    def fit(self, on_step: OnStep | None = None) -> dict[str, float]:
        """Train unless that is done.

        Returns:
            ``val``, the main metric on dev of the best step, and ``start``, that of the head before training;
            ``best_step``, ``steps`` and ``seconds``; ``weight_bytes``, the memory of the weights between two steps.

        Raises:
            DataError: as in ``train``.
        """
        with self.state.alone():
            if not self.is_finished():
                self._take_steps(on_step)
        _, metadata = self.head()
        facts: dict[str, float] = json.loads(metadata["facts"])
        return facts

    def is_finished(self) -> bool:
        """Return whether the head of this training exists.

        Raises:
            DataError: there is a head of another training.
        """
        if not self.head_path.exists():
            return False
        _, metadata = load_head(self.head_path)
        config = {k: v for k, v in json.loads(metadata.get("config", "{}")).items() if k not in _WITHOUT_EFFECT}
        self.state.refuse_other(self.head_path, metadata.get("fingerprint"), {"config": config})
        return True

    def make_room(self) -> None:
        """Remove what an unfinished training left, so that a worker's files take its place.

        Raises:
            DataError: there is a head or a state of another training.
        """
        with self.state.alone():
            self.is_finished()
            self.state.load()
            self.state.delete()

    def head(self) -> tuple[Tensor, dict[str, str]]:
        """Return the trained head ``(D_out, D)`` and its metadata."""
        return load_head(self.head_path, self.data.test.queries.shape[1])

    def initial(self) -> Tensor:
        """Return the head before training, in four bits for ``fp4``; the identity where none is trained."""
        if self.config.method == "zero_shot":
            return torch.eye(self.data.train.queries.shape[1], device=self.device)
        config = self.config
        weight = initial_weight(config.init, self.data.train.documents, config.head_output_size, config.seed)
        return dequantize(quantize(weight.to(self.device))) if config.precision == "fp4" else weight.to(self.device)

    def batch(self, step: int) -> list[int]:
        """Return the places of a step's queries; the order of every epoch depends on the seed alone."""
        size = min(self.config.batch_size, len(self.train_pools))
        epoch, place = divmod(step, len(self.train_pools) // size)
        order = np.random.default_rng([self.config.seed, epoch]).permutation(len(self.train_pools))
        batch: list[int] = order[place * size : (place + 1) * size].tolist()
        return batch

    def _take_steps(self, on_step: OnStep | None) -> None:
        config, weight = self.config, self.initial()
        method = make_method(config, weight, self.train_pools, self.dates)
        if method is not None and (saved := self.state.load(self.device)):
            progress, parts = saved
            method.load_state(parts.get("method", {}))
        else:
            value = chosen_by(weight, self.dev_pools, config)
            progress = Progress(weight, weight, value, value)
        self.state.cut_logs(progress.step)
        while method is not None and progress.step < config.num_steps:
            self._take_step(method, progress)
            if on_step:
                on_step(progress.step, progress.facts)
            if progress.step % config.save_every == 0 and progress.step < config.num_steps:
                self.state.save(progress, method=method.state())
        self._finish(progress)

    def _take_step(self, method: Method, progress: Progress) -> None:
        config, start = self.config, time.perf_counter()
        weight, facts = method.step(progress.weight, self.train_pools.batch(self.batch(progress.step)), progress.step)
        progress.seconds += time.perf_counter() - start
        progress.weight, progress.facts, progress.step = weight, facts, progress.step + 1
        if not bool(weight.isfinite().all()):
            raise DataError(
                f"{self.arm}, seed {config.seed}, step {progress.step}: a weight is not finite; lower learning_rate "
                "or sigma"
            )
        if progress.step % config.eval_every == 0 or progress.step == config.num_steps:
            facts["val"] = value = chosen_by(weight, self.dev_pools, config)
            if value > progress.best_value:
                progress.best, progress.best_step, progress.best_value = weight, progress.step, value
        loss = facts["loss"] if "loss" in facts else 1.0 - facts["fitness"]
        self.state.log({"step": progress.step, **facts, "loss": loss, "seconds": progress.seconds})

    def _finish(self, progress: Progress) -> None:
        head = progress.best
        facts = {
            "val": progress.best_value,
            "start": progress.start_value,
            "best_step": progress.best_step,
            "steps": progress.step,
            "seconds": progress.seconds,
            "weight_bytes": progress.facts.get("weight_bytes", head.numel() * head.element_size()),
        }
        metadata = {
            "fingerprint": self.state.fingerprint,
            "arm": self.arm,
            "encoder": self.data.encoder,
            "prompt": self.data.prompt,
            "facts": json.dumps(facts),
            "config": json.dumps(self.config.model_dump()),
        }
        self.head_path.parent.mkdir(parents=True, exist_ok=True)
        save_head(self.head_path, head, metadata)
        self.state.delete()


def make_method(
    config: TrainConfig, weight: Tensor, train: PoolSet, dates: Mapping[str, date] | None = None
) -> Method | None:
    """Return the method of a config, None where nothing is trained; ``dates`` are those of documents, for freshness."""
    if config.method == "zero_shot":
        return None
    if is_gradient_method(config.method):
        return GradientMethod(config, config.method, config.learning_rate, weight)
    from unimoe.studies.heads.eggroll.method import evolution

    return evolution(config, weight, train, dates=dates)


def load_data(config: TrainConfig, advance: Advance | None = None) -> HeadData:
    """Return the pools of a config, embedded by its encoder; ``advance`` is called with the number of texts done."""
    from unimoe.models.encoder import load_encoder

    device = choose_device(config.device)
    encoder = load_encoder(config.encoder, device, choose_dtype(device, config.encoder.dtype))
    return load_head_data(config, encoder, advance)
