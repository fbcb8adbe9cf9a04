"""Trains one arm with one seed, and leaves a checkpoint.

The training state is saved every few steps. A resumed training takes the same steps with the same batches and random
numbers as an undisturbed one, and ends with the same weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from unimoe.checkpoint import ADAPTER_FILE, Checkpoint, read_checkpoint, training_fingerprint, write_manifest
from unimoe.config import ArmConfig, Experiment
from unimoe.errors import DataError, UsageError
from unimoe.io import append_jsonl, atomic_dir, atomic_path, hash_file, write_text
from unimoe.models.adapter import adapter_parameters, add_lora
from unimoe.models.base import BaseModel
from unimoe.models.trunk import Trunk
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.results import TrainingBudget, arm_dir
from unimoe.training.gradient.examples import EmbeddingSet, RankingSet, TrainingData, batch_order
from unimoe.training.gradient.optimizer import MasterAdamW, learning_rate_at
from unimoe.training.gradient.steps import Budget, Texts, embedding_backward, ranking_backward

_RANKING_STREAM, _EMBEDDING_STREAM = 0, 1


@dataclass(frozen=True)
class StepReport:
    """What one optimizer step did; also a line of ``logs/train.jsonl``."""

    step: int
    task: str
    loss: float
    ranking_loss: float | None
    embedding_loss: float | None
    lr: float
    grad_norm: float
    tokens: int
    tokens_per_s: float


def train_arm(
    experiment: Experiment,
    arm: str,
    seed: int,
    *,
    base: BaseModel,
    data: TrainingData,
    trunk: Trunk | None = None,
    resume: bool = True,
    on_step: Callable[[StepReport], None] | None = None,
) -> Path:
    """Train one arm and write ``{output_dir}/{arm}/seed_{N}/checkpoint``.

    Args:
        experiment: what to train, and on what.
        arm: one of its arms.
        seed: initialises the adapters and orders the batches.
        base: a freshly loaded base model; it is changed in place.
        data: where the examples come from.
        trunk: frozen lower layers shared with other arms and seeds.
        resume: go on from a saved state, or keep a finished checkpoint; otherwise there must be neither.
        on_step: told after every step.

    Returns:
        The checkpoint folder.

    Raises:
        DataError: a saved state or checkpoint is of another training, or the loss is not finite.
        UsageError: there is a state or checkpoint, and ``resume`` is off.
    """
    run = ArmTraining(experiment, arm, seed, base, data, trunk)
    if not resume:
        run.refuse_anything_there()
    if run.is_finished():
        return run.checkpoint_dir
    run.prepare()
    for step in range(run.step, experiment.training.steps):
        report = run.take_step(step)
        append_jsonl(run.log_path, vars(report))
        if on_step:
            on_step(report)
        if (step + 1) % experiment.training.save_every == 0 and step + 1 < experiment.training.steps:
            run.save_state()
    return run.finish()


class ArmTraining:
    """One training under way: model, optimizer, data, and where it stands.

    Args:
        experiment: what to train, and on what.
        arm: one of its arms.
        seed: initialises the adapters and orders the batches.
        base: a freshly loaded base model; it is changed in place.
        data: where the examples come from.
        trunk: frozen lower layers shared with other arms and seeds; made when absent.
    """

    def __init__(
        self, experiment: Experiment, arm: str, seed: int, base: BaseModel, data: TrainingData, trunk: Trunk | None
    ) -> None:
        self._experiment, self._arm_name, self._seed, self._base, self._data = experiment, arm, seed, base, data
        self._arm: ArmConfig = experiment.arm(arm)
        self._trunk = trunk
        folder = arm_dir(Path(experiment.output_dir), arm, seed)
        self.checkpoint_dir = folder / "checkpoint"
        self.log_path = folder / "logs" / "train.jsonl"
        self._state_path = folder / "state.safetensors"
        self.step, self._tokens = 0, 0
        dtype = base.model.get_output_embeddings().weight.dtype
        self._dtype = str(dtype).removeprefix("torch.")
        self._fingerprint = training_fingerprint(
            experiment, arm, seed, base=base.identity, dtype=self._dtype, data=data.content_hash
        )

    def is_finished(self) -> bool:
        """Whether the checkpoint of this very training exists; one of another training is an error."""
        if not self.checkpoint_dir.exists():
            return False
        found = read_checkpoint(self.checkpoint_dir)
        if found.fingerprint != self._fingerprint:
            raise DataError(
                f"{self.checkpoint_dir} is of another training (config, data or base model differ); "
                "choose another --output-dir, or delete it to start over"
            )
        return True

    def refuse_anything_there(self) -> None:
        """Raise a usage error where a training has left something: nothing is replaced unasked."""
        for path in (self.checkpoint_dir, self._state_path):
            if path.exists():
                raise UsageError(f"{path} exists; --resume goes on from it, or delete it to start over")

    def prepare(self) -> None:
        """Put adapters into the model, bring the examples, and go back to the saved state if there is one."""
        config = self._experiment
        self._peft = add_lora(self._base, config.lora, self._seed)
        self._model = UnimodelForExp1(
            self._base, config.prompt, config.model.max_length, config.lora.first_layer, self._trunk
        )
        self._model.train()
        self._optimizer = MasterAdamW(adapter_parameters(self._peft), config.training.weight_decay)
        self._budget = Budget(config.training.token_budget, config.training.batch_size)
        self._load_examples()
        if self._state_path.exists():
            self._load_state()
        self._cut_log()

    def take_step(self, step: int) -> StepReport:
        """One optimizer step: the ranking batch, the embedding batch, or both."""
        start = time.perf_counter()
        torch.manual_seed(self._seed * 1_000_003 + step)  # dropout: a resumed step draws what the first try drew
        losses: dict[str, float] = {}
        weights = self._weights()
        tokens = 0
        if self._ranking:
            data, texts, order = self._ranking
            loss = self._experiment.training.ranking.loss
            losses["ranking"], seen = ranking_backward(
                self._model, data, texts, order[step], weights["ranking"], loss, self._budget
            )
            tokens += seen
        if self._embedding:
            pairs, queries, documents, order = self._embedding
            losses["embedding"], seen = embedding_backward(
                self._model, pairs, queries, documents, order[step], weights["embedding"],
                self._experiment.training.embedding.temperature, self._budget,
            )  # fmt: skip
            tokens += seen
        total = sum(weights[task] * value for task, value in losses.items())
        if not math.isfinite(total):
            raise DataError(
                f"{self._arm_name}, seed {self._seed}, step {step + 1}: the loss is {total}; "
                "lower the arm's learning_rate, or set model.dtype to float32"
            )
        training = self._experiment.training
        rate = learning_rate_at(step, training.steps, training.warmup_steps, self._arm.learning_rate)
        norm = self._optimizer.step(rate, training.max_grad_norm)
        self.step, self._tokens = step + 1, self._tokens + tokens
        return StepReport(
            step=self.step,
            task=self._arm.task,
            loss=total,
            ranking_loss=losses.get("ranking"),
            embedding_loss=losses.get("embedding"),
            lr=rate,
            grad_norm=norm,
            tokens=tokens,
            tokens_per_s=tokens / (time.perf_counter() - start),
        )

    def save_state(self) -> None:
        """Write what a killed run needs to go on from here."""
        metadata = {"step": str(self.step), "tokens": str(self._tokens), "fingerprint": self._fingerprint}
        with atomic_path(self._state_path) as temporary:
            safetensors.torch.save_file(self._optimizer.state(), temporary, metadata)

    def finish(self) -> Path:
        """Write the checkpoint from the float32 masters, and drop the training state."""
        with atomic_dir(self.checkpoint_dir) as temporary:
            self._save_adapter(temporary)
            write_manifest(
                temporary,
                Checkpoint(
                    arm=self._arm_name,
                    seed=self._seed,
                    which="last",
                    base_model=self._base.identity,
                    dtype=self._dtype,
                    fingerprint=self._fingerprint,
                    adapter_hash=hash_file(temporary / ADAPTER_FILE),
                    training=self._budget_seen(),
                    config=self._experiment.model_dump(),
                ),
            )
        self._state_path.unlink(missing_ok=True)
        return self.checkpoint_dir

    def _weights(self) -> dict[str, float]:
        weight = self._arm.ranking_weight
        return {"ranking": 1.0, "embedding": 1.0} if weight is None else {"ranking": weight, "embedding": 1 - weight}

    def _load_examples(self) -> None:
        training, trunk = self._experiment.training, self._model.trunk
        self._ranking: tuple[RankingSet, Texts, list[list[int]]] | None = None
        self._embedding: tuple[EmbeddingSet, Texts, Texts, list[list[int]]] | None = None

        def texts(sequences: list[list[int]]) -> Texts:
            return Texts(sequences, trunk.states(sequences) if trunk else None)

        if self._arm.task != "emb_only":
            ranking = self._data.ranking(self._model)
            order = batch_order(
                len(ranking.groups), training.ranking.queries_per_step, training.steps, self._seed, _RANKING_STREAM
            )
            self._ranking = ranking, texts(ranking.sequences), order
        if self._arm.task != "rank_only":
            pairs = self._data.embedding(self._model)
            order = batch_order(
                len(pairs.groups), training.embedding.pairs_per_step, training.steps, self._seed, _EMBEDDING_STREAM
            )
            self._embedding = pairs, texts(pairs.queries), texts(pairs.documents), order

    def _budget_seen(self) -> TrainingBudget:
        training = self._experiment.training
        return TrainingBudget(
            steps=training.steps,
            ranking_examples=training.steps * training.ranking.queries_per_step if self._ranking else 0,
            embedding_examples=training.steps * training.embedding.pairs_per_step if self._embedding else 0,
            tokens=self._tokens,
        )

    def _save_adapter(self, folder: Path) -> None:
        self._peft.save_pretrained(folder)
        # What was trained are the masters; PEFT has just written their rounded copies.
        path = folder / ADAPTER_FILE
        rounded = safetensors.torch.load_file(path)
        masters = {
            name.replace(".default.", "."): value.contiguous() for name, value in self._optimizer.masters.items()
        }
        if masters.keys() != rounded.keys():
            raise AssertionError(f"adapter names differ: {sorted(masters.keys() ^ rounded.keys())[:3]}")
        safetensors.torch.save_file(masters, path, {"format": "pt"})

    def _load_state(self) -> None:
        try:
            with safetensors.safe_open(self._state_path, "pt", device=str(self._model.device)) as file:
                metadata: dict[str, Any] = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
        except safetensors.SafetensorError as error:
            raise DataError(f"{self._state_path}: damaged training state ({error}); delete it to start over") from None
        if metadata.get("fingerprint") != self._fingerprint:
            raise DataError(
                f"{self._state_path} is of another training (config, data or base model differ); "
                "choose another --output-dir, or delete it to start over"
            )
        self._optimizer.load_state(tensors)
        self.step, self._tokens = int(metadata["step"]), int(metadata["tokens"])

    def _cut_log(self) -> None:
        """Keep the log of the steps already taken: those after the saved state are taken again."""
        lines = self.log_path.read_text(encoding="utf-8").splitlines() if self.log_path.exists() else []
        write_text(self.log_path, "".join(f"{line}\n" for line in lines[: self.step]))
