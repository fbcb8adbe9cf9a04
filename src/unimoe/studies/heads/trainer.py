"""Trains a head by any method, chooses the best step on dev, and leaves a checkpoint.

    results = HeadTrainer(TrainConfig(task="scifact", num_steps=300)).train()
    results["test/ndcg@10"]

The state is saved every few steps; a resumed training takes the same steps as an undisturbed one, to the last bit on a
CPU.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unimoe.errors import DataError
from unimoe.io import append_jsonl, hash_json, write_text
from unimoe.models.device import choose_device, choose_dtype
from unimoe.models.embedder import Advance
from unimoe.results import arm_dir
from unimoe.studies.common.initial_weight import initial_weight
from unimoe.studies.heads.config import TrainConfig, is_gradient_method
from unimoe.studies.heads.data import HeadData, load_head_data, to_device
from unimoe.studies.heads.dates import document_dates
from unimoe.studies.heads.methods import GradientMethod, Method
from unimoe.studies.heads.model import HEAD_FILE, load_head, save_head
from unimoe.studies.heads.pools import PoolSet
from unimoe.studies.heads.scores import chosen_by, evaluate_head
from unimoe.studies.heads.state import Progress, load_state, save_state
from unimoe.training.state_files import refuse_other_fingerprint

OnStep = Callable[[int, dict[str, float]], None]
"""Told the number of steps taken and what is logged of the last one."""

_NOT_DECISIVE = {"save_every", "device", "output_dir"}


class HeadTrainer:
    """One training of a head.

    Args:
        config: what to train, on what, and how.
        data: the pools; loaded by the config when absent.
        arm: its name in results; by default the method's.

    Attributes:
        train_pools: what is trained on, on the device.
        dev_pools: what chooses the step.
        dates: of documents, where freshness is an objective; else null.
        head_path: where the trained head goes.
        log_path: where steps are logged.
        fingerprint: content hash of all that determines the training.
    """

    def __init__(self, config: TrainConfig, data: HeadData | None = None, arm: str | None = None) -> None:
        self.config, self.arm = config, arm or config.method
        self.device = choose_device(config.device)
        self.data = data if data is not None else load_data(config)
        self.train_pools, self.dev_pools = (to_device(pools, self.device) for pools in (self.data.train, self.data.dev))
        folder = arm_dir(Path(config.output_dir), self.arm, self.seed)
        self.head_path, self.log_path = folder / "checkpoint" / HEAD_FILE, folder / "logs" / "train.jsonl"
        self.state_path = folder / "state.safetensors"
        decisive = [config.model_dump(exclude=_NOT_DECISIVE), self.data.content_hash]
        self.dates: dict[str, date] | None = None
        if "freshness" in config.objectives:
            self.dates = document_dates(config.task)
            decisive.append({key: day.isoformat() for key, day in self.dates.items()})
        self.fingerprint = hash_json(decisive)

    @property
    def seed(self) -> int | None:
        """The training seed; null where nothing is trained."""
        return None if self.config.method == "zero_shot" else self.config.seed

    def train(self, on_step: OnStep | None = None) -> dict[str, float]:
        """Train, or find it trained, and evaluate.

        Returns:
            Under ``train/``, ``val/`` (dev) and ``test/``: nDCG at the config's cutoff and the usual measures of the
            best step on dev; ``best_step``, ``steps``, and ``seconds`` of training without looks at dev.

        Raises:
            DataError: a checkpoint or state in the folder is of another training; the fitness or loss is not finite.
        """
        facts = self.fit(on_step)
        weight, _ = self.head()
        splits = (("train", self.train_pools), ("val", self.dev_pools), ("test", self.data.test))
        found = {
            f"{split}/{metric}": value
            for split, pools in splits
            for metric, value in evaluate_head(weight.to(pools.rows.device), pools, self.config).aggregate.items()
        }
        return found | {name: facts[name] for name in ("best_step", "steps", "seconds")}

    def fit(self, on_step: OnStep | None = None) -> dict[str, float]:
        """Train, or find it trained.

        Returns:
            ``val``, the main metric on dev of the best step, and ``start``, that of the head before training;
            ``best_step``, ``steps`` and ``seconds``; ``weight_bytes``, what the weights between two steps occupy.

        Raises:
            DataError: as in ``train``.
        """
        if not self.is_finished():
            self._take_steps(on_step)
        _, metadata = self.head()
        facts: dict[str, float] = json.loads(metadata["facts"])
        return facts

    def is_finished(self) -> bool:
        """Whether the head of this very training is there.

        Raises:
            DataError: there is one of another training.
        """
        if not self.head_path.exists():
            return False
        _, metadata = load_head(self.head_path)
        refuse_other_fingerprint(self.head_path, self.fingerprint, metadata.get("fingerprint"))
        return True

    def head(self) -> tuple[Tensor, dict[str, str]]:
        """The trained head ``(D_out, D)``, and what is written about it."""
        return load_head(self.head_path, self.data.test.queries.shape[1])

    def initial(self) -> Tensor:
        """The head before training; the identity where none is trained."""
        if self.config.method == "zero_shot":
            return torch.eye(self.data.train.queries.shape[1], device=self.device)
        config = self.config
        weight = initial_weight(config.init, self.data.train.documents, config.head_output_size, config.seed)
        return weight.to(self.device)

    def batch(self, step: int) -> list[int]:
        """The places of a step's queries: every epoch has an order of its own, which hangs on the seed alone."""
        size = min(self.config.batch_size, len(self.train_pools))
        epoch, place = divmod(step, len(self.train_pools) // size)
        order = np.random.default_rng([self.config.seed, epoch]).permutation(len(self.train_pools))
        batch: list[int] = order[place * size : (place + 1) * size].tolist()
        return batch

    def _take_steps(self, on_step: OnStep | None) -> None:
        config, weight = self.config, self.initial()
        method = make_method(config, weight, self.train_pools, self.dates)
        if self.state_path.exists() and method is not None:
            progress, kept = load_state(self.state_path, self.fingerprint, self.device)
            method.load_state(kept)
        else:
            value = chosen_by(weight, self.dev_pools, config)
            progress = Progress(weight, weight, value, value)
        self._cut_log(progress.step)
        while method is not None and progress.step < config.num_steps:
            self._take_step(method, progress)
            if on_step:
                on_step(progress.step, progress.facts)
            if progress.step % config.save_every == 0 and progress.step < config.num_steps:
                save_state(self.state_path, self.fingerprint, progress, method.state())
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
        append_jsonl(self.log_path, {"step": progress.step, **facts, "loss": loss, "seconds": progress.seconds})

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
            "fingerprint": self.fingerprint,
            "arm": self.arm,
            "encoder": self.data.encoder,
            "prompt": self.data.prompt,
            "facts": json.dumps(facts),
            "config": json.dumps(self.config.model_dump()),
        }
        self.head_path.parent.mkdir(parents=True, exist_ok=True)
        save_head(self.head_path, head, metadata)
        self.state_path.unlink(missing_ok=True)

    def _cut_log(self, steps: int) -> None:
        """Keep the log of the steps already taken: those after the saved state are taken again."""
        lines = self.log_path.read_text(encoding="utf-8").splitlines() if self.log_path.exists() else []
        write_text(self.log_path, "".join(f"{line}\n" for line in lines[:steps]))


def make_method(
    config: TrainConfig, weight: Tensor, train: PoolSet, dates: Mapping[str, date] | None = None
) -> Method | None:
    """The method of a config; null where nothing is trained. ``dates`` of documents are for the objective freshness."""
    if config.method == "zero_shot":
        return None
    if is_gradient_method(config.method):
        return GradientMethod(config, config.method, config.learning_rate, weight)
    from unimoe.studies.heads.eggroll.method import evolution

    return evolution(config, weight, train, dates=dates)


def load_data(config: TrainConfig, advance: Advance | None = None) -> HeadData:
    """The pools of a config, embedded by its encoder; ``advance`` is called with the number of texts done."""
    from unimoe.models.encoder import load_encoder

    device = choose_device(config.device)
    encoder = load_encoder(config.encoder, device, choose_dtype(device, config.encoder.dtype))
    return load_head_data(config, encoder, advance)
