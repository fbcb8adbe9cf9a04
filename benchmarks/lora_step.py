"""A LoRA training step against transformers' Trainer: the same model, adapters, examples, loss and dtype.

    uv run benchmarks/lora_step.py

Both train the bundled ranking arm (softmax over a query's gaps, 24 questions a step, adapters on the upper half). The
peer is what a user would write: PEFT's default adapters (float32 beside a bfloat16 base), right-padded batches with a
mask, the logits of the last tokens, ``Trainer`` with AdamW. Ours starts from the states of the frozen half, which are
computed once; ``with_trunk`` charges that to the steps of one training, as if no second arm or seed shared it.
"""

from __future__ import annotations

import json
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import peft
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from unimoe.config import Experiment
from unimoe.config_files import load_experiment
from unimoe.models.bench import ModelBench
from unimoe.models.device import choose_device, choose_dtype, describe_device
from unimoe.models.prompts import yes_no_ids
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training.gradient.examples import RankingSet, batch_order, load_training_data
from unimoe.training.gradient.losses import softmax_loss
from unimoe.training.gradient.trainer import ArmTraining

ROUNDS, STEPS = 5, 3


class Batches(Dataset[dict[str, Any]]):
    """One item per step: the padded questions of its queries."""

    def __init__(self, data: RankingSet, order: list[list[int]]) -> None:
        self._items = [self._padded([data.sequences[row] for g in batch for row in data.groups[g]]) for batch in order]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._items[index]

    @staticmethod
    def _padded(sequences: list[list[int]]) -> dict[str, Any]:
        longest = max(map(len, sequences))
        return {
            "input_ids": torch.tensor([ids + [0] * (longest - len(ids)) for ids in sequences]),
            "attention_mask": torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in sequences]),
        }


class RankingTrainer(Trainer):
    """Trainer with the ranking loss on the logits of each question's last token."""

    yes: int
    no: int
    queries: int

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        """Softmax over the gaps of each query's questions."""
        logits = model(**inputs).logits
        last = logits[torch.arange(len(logits)), inputs["attention_mask"].sum(dim=1) - 1].float()
        return softmax_loss((last[:, self.yes] - last[:, self.no]).view(self.queries, -1))


def peer_seconds(experiment: Experiment, bench: ModelBench, data: RankingSet, order: list[list[int]]) -> float:
    """Seconds per step of transformers' Trainer."""
    base, lora = bench.fresh_base(), experiment.lora
    model = peft.get_peft_model(
        base.model,
        peft.LoraConfig(
            r=lora.r,
            lora_alpha=lora.alpha,
            target_modules=list(lora.target_modules),
            layers_to_transform=list(range(lora.first_layer, base.layers)),
        ),
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=1,
            num_train_epochs=1,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
            use_cpu=bench.device.type == "cpu",
        )
        trainer = RankingTrainer(model, arguments, lambda items: items[0], Batches(data, order))
        trainer.yes, trainer.no = yes_no_ids(base.tokenizer)
        trainer.queries = len(order[0])
        start = time.perf_counter()
        trainer.train()
        return (time.perf_counter() - start) / len(order)


def our_seconds(training: ArmTraining, first: int) -> float:
    """Seconds per step of ours."""
    start = time.perf_counter()
    for step in range(first, first + STEPS):
        training.take_step(step)
    return (time.perf_counter() - start) / STEPS


def peak_mib() -> float:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure alternately and print one JSON object as the last line."""
    device = choose_device()
    with tempfile.TemporaryDirectory() as folder:
        experiment = load_experiment(
            Path("experiments/bundled"), [f"output_dir={folder}", "training.ranking.queries=60"]
        )
        bench = ModelBench(experiment, device, choose_dtype(device))
        training_data = load_training_data(experiment)
        start = time.perf_counter()
        training = ArmTraining(experiment, "rank_only_r8", 0, bench.fresh_base(), training_data, bench.trunk)
        training.prepare()
        preparation = time.perf_counter() - start
        data = training_data.ranking(
            UnimodelForExp1(bench.fresh_base(), experiment.prompt, experiment.model.max_length)
        )
        order = batch_order(len(data.groups), experiment.training.ranking.queries_per_step, STEPS, seed=0, stream=0)
        tokens = statistics.mean(sum(len(data.sequences[r]) for g in batch for r in data.groups[g]) for batch in order)
        our_seconds(training, 0)
        ours_peak = peak_mib()
        peer_seconds(experiment, bench, data, order[:1])
        pairs = [
            (our_seconds(training, STEPS * (1 + round_)), peer_seconds(experiment, bench, data, order))
            for round_ in range(ROUNDS)
        ]
    ours, peers = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(peer / own for own, peer in pairs)
    print(f"{describe_device(device)}, {bench.dtype_name}, {tokens:.0f} tokens a step, {ROUNDS} pairs of {STEPS} steps")
    print(f"ours {ours:.2f} s a step, Trainer {peers:.2f}; ratio {ratios[0]:.2f} to {ratios[-1]:.2f}")
    print(f"preparation of 240 questions, frozen states included: {preparation:.1f} s")
    print(
        json.dumps(
            {
                "tokens_per_s": round(tokens / ours),
                "vs_trainer": round(statistics.median(ratios), 2),
                "peak_memory_vs_trainer": round(ours_peak / peak_mib(), 2),
            }
        )
    )


if __name__ == "__main__":
    main()
