"""The training of a head by any method: it chooses the best step on dev, and writes a checkpoint.

    results = HeadTrainer(TrainConfig(task="scifact", num_steps=300)).train()
    results["test/ndcg@10"]

A resumed training takes the same steps as an undisturbed one, bit for bit on a CPU.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from unimoe.core.errors import DataError
from unimoe.core.io import hash_json
from unimoe.metrics import score_run
from unimoe.models.device import choose_device, choose_dtype
from unimoe.models.embedder import Advance
from unimoe.models.tensor_files import save_tensors
from unimoe.results import arm_dir
from unimoe.studies.heads.config import TrainConfig, gradient_methods
from unimoe.studies.heads.data import HeadData, load_head_data, recency_of, to_device
from unimoe.studies.heads.eggroll.fp4 import dequantize, quantize
from unimoe.studies.heads.methods import GradientMethod, Method
from unimoe.studies.heads.model import HEAD_FILE, evaluate_head, initial_weight, load_head, main_metric
from unimoe.studies.heads.pools import PoolSet
from unimoe.training.loop import OnStep, StepFacts, Training
from unimoe.training.run_state import Parts, RunState
from unimoe.training.steps import overflow

NOISE_ALONE = 2.0 / torch.finfo(torch.float32).eps
"""A sigma of so many times what it perturbs leaves the noise alone: a sum of both rounds the rest away."""

_WITHOUT_EFFECT = {"save_every", "device", "output_dir"}


class HeadTrainer(Training):
    """Trains one head.

    Args:
        config: of the training.
        data: the pools without soft labels, which are added as the config says; by default they are loaded.
        arm: its name in results; by default the method's.

    Attributes:
        train_pools: to train on, on the device.
        dev_pools: these choose the step.
        head_path: of the trained head.
    """

    logs_seconds: ClassVar[bool] = True

    def __init__(self, config: TrainConfig, data: HeadData | None = None, arm: str | None = None) -> None:
        self.config, self.arm = config, arm or config.method
        self.device = choose_device(config.device)
        self.data = (data or load_data(config)).with_votes(config.soft_labels)
        settings = {"config": config.model_dump(exclude=_WITHOUT_EFFECT), "data": self.data.content_hash}
        decisive: list[Any] = list(settings.values())
        if "freshness" in config.objectives:
            recency = recency_of(self.data.train, config.task)
            self.data = replace(self.data, train=replace(self.data.train, recency=recency))
            decisive.append(recency.tolist())
        self.train_pools, self.dev_pools = (to_device(pools, self.device) for pools in (self.data.train, self.data.dev))
        folder = arm_dir(Path(config.output_dir), self.arm, self.seed)
        self.head_path = folder / "checkpoint" / HEAD_FILE
        super().__init__(
            RunState(folder, settings, hash_json(decisive)),
            0 if config.method == "zero_shot" else config.num_steps,
            dev_every=config.eval_every,
            save_every=config.save_every,
            scores_start=True,
        )

    @property
    def seed(self) -> int | None:
        """The training seed; None where nothing is trained."""
        return None if self.config.method == "zero_shot" else self.config.seed

    def train(self, on_step: OnStep | None = None, *, test: bool = True) -> dict[str, float]:
        """Train unless that is done, and evaluate; ``test=False`` leaves the test queries out while settings change.

        Returns:
            Under ``train/``, ``val/`` (dev) and ``test/``: nDCG at the config's cutoff and the usual measures of the
            best step on dev; ``best_step``, ``steps``, and ``seconds`` of training without evaluations on dev.
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

    def baselines(self, pools: PoolSet) -> dict[str, float]:
        """Return the main metric on pools of the head before training, the frozen encoder, and BM25 where it made them.

        Of training pools BM25 has no order: positives that it did not find are in them.
        """
        metric, pools = main_metric(self.config), to_device(pools, self.device)
        cosine = self.config.model_copy(update={"scoring": "cosine"})
        encoder = torch.eye(pools.queries.shape[1], device=self.device)
        found = {
            "start": evaluate_head(self.initial(), pools, self.config, ()).aggregate[metric],
            "encoder": evaluate_head(encoder, pools, cosine, ()).aggregate[metric],
        }
        if self.config.pools.source == "bm25" and pools.name != "train":
            run = pools.run(-pools.ranks)
            found["bm25"] = score_run(pools.qrels, run, [metric], pools.relevance_level).aggregate[metric]
        return found

    def fit(self, on_step: OnStep | None = None) -> dict[str, float]:
        """Train unless that is done.

        Returns:
            ``val``, the main metric on dev of the best step, and ``start``, that of the head before training;
            ``best_step``, ``steps`` and ``seconds``; ``weight_bytes``, the memory of the weights between two steps.
        """
        self.run(on_step)
        _, metadata = self.head()
        facts: dict[str, float] = json.loads(metadata["facts"])
        return facts

    @property
    def outputs(self) -> Sequence[Path]:
        """The trained head."""
        return (self.head_path,)

    def is_finished(self) -> bool:
        """Return whether the head of this training exists."""
        if not self.head_path.exists():
            return False
        _, metadata = load_head(self.head_path)
        config = {k: v for k, v in json.loads(metadata.get("config", "{}")).items() if k not in _WITHOUT_EFFECT}
        self.state.refuse_other(self.head_path, metadata.get("fingerprint"), {"config": config})
        return True

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

    def prepare(self) -> None:
        """Make the first head and the method that trains it."""
        self._weight = self._best = self.initial()
        if self.steps:
            self._method = make_method(self.config, self._weight, self.train_pools)
        self._weight_bytes: float = self._weight.numel() * self._weight.element_size()

    def step(self, number: int) -> StepFacts:
        """Take a step of the method."""
        try:
            self._weight, facts = self._method.step(self._weight, self.train_pools.batch(self.batch(number)), number)
            facts["loss"] = facts["loss"] if "loss" in facts else 1.0 - facts["fitness"]
            refuse_overflow(self.config, self._weight, facts)
        except DataError as error:
            raise DataError(f"{self.arm}, seed {self.config.seed}, step {number + 1}: {error}") from None
        self._weight_bytes = facts.get("weight_bytes", self._weight_bytes)
        return {**facts}

    def score_on_dev(self) -> tuple[float, StepFacts]:
        """Return the main metric on dev."""
        metric = main_metric(self.config)
        value = evaluate_head(self._weight, self.dev_pools, self.config, ()).aggregate[metric]
        return value, {"val": value}

    def parts(self) -> Parts:
        """Return the head, the best one, and what the method keeps."""
        return {"heads": {"now": self._weight, "best": self._best}, "method": self._method.state()}

    def load_parts(self, parts: Parts) -> None:
        """Restore what ``parts`` returned."""
        here = {part: {name: t.to(self.device) for name, t in named.items()} for part, named in parts.items()}
        self._weight, self._best = here["heads"]["now"], here["heads"]["best"]
        self._method.load_state(here.get("method", {}))

    def keep_best(self) -> None:
        """Keep the head."""
        self._best = self._weight

    def finish(self) -> None:
        """Write the best head, with the facts about its training."""
        progress = self.progress
        facts = {
            "val": progress.best_score,
            "start": progress.start,
            "best_step": progress.best_step,
            "steps": progress.step,
            "seconds": progress.seconds,
            "weight_bytes": self._weight_bytes,
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
        save_tensors(self.head_path, {"weight": self._best}, metadata)


def refuse_overflow(config: TrainConfig, weight: Tensor, facts: Mapping[str, float]) -> None:
    """Refuse a step after which scores would not be finite, or that noise alone decides."""
    sigma = facts.get("sigma_relative", 0.0)
    if not sigma <= NOISE_ALONE:
        raise DataError(f"sigma is {sigma:.2g} times what it perturbs, of which float32 keeps nothing; lower sigma")
    rate = "gradient_learning_rate" if config.method == "hybrid" and "sigma" not in facts else "learning_rate"
    if not math.isfinite(facts["loss"]):
        raise DataError(f"the loss is {facts['loss']}; lower {rate}, or raise temperature")
    if overflow([weight]):
        raise DataError(f"the weights overflow; lower {rate}")


def make_method(config: TrainConfig, weight: Tensor, train: PoolSet) -> Method:
    """Return the method of a config that trains."""
    if config.method in gradient_methods():
        return GradientMethod(config, config.method, config.learning_rate)
    from unimoe.studies.heads.eggroll.method import evolution

    return evolution(config, weight, train)


def load_data(config: TrainConfig, advance: Advance | None = None) -> HeadData:
    """Return the pools of a config, embedded by its encoder; ``advance`` is called with the number of texts done."""
    from unimoe.models.encoder import load_encoder

    device = choose_device(config.device)
    encoder = load_encoder(config.encoder, device, choose_dtype(device, config.encoder.dtype))
    return load_head_data(config, encoder, advance)
