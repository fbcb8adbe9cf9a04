"""A LoRA training step against transformers' Trainer and sentence-transformers' CrossEncoderTrainer.

    uv run benchmarks/lora_step.py

All train the bundled ranking arm from the same token ids: softmax over a query's margins, 24 prompts a step, adapters
on the upper half, the same dtype. ``Trainer`` is what a user would write: PEFT's default adapters (float32 beside a
bfloat16 base), right-padded batches with a mask, all logits, AdamW. ``CrossEncoderTrainer`` is the same loop around a
CrossEncoder with LogitScore, which computes the last token's logits alone.

Ours starts from the states of the frozen half, which are computed once for all arms and seeds. In the bundled
experiment a training sees each prompt once: ``*_shared`` adds to every step its part of that computation, shared by all
of the experiment's trainings that rank; ``*_alone`` adds all of it, as if there were one arm and one seed.

``score_es_vs_softmax`` and ``pg_rank_vs_softmax`` are ratios of time: our step with one of these losses over ours with
softmax, on the same batches. Rounds take as many steps as let the script end within eight minutes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from unimoe.config import Experiment
from unimoe.config.base import Dtype
from unimoe.config.files import load_experiment, overridden, parse_config
from unimoe.core.memory import keep_freed_memory
from unimoe.models.bundled import prepared_bundled_model
from unimoe.models.device import choose_device, choose_dtype, describe_device
from unimoe.models.loader import ModelLoader
from unimoe.models.prompts import answer_ids
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training.examples import RankingSet, TrainingData, batch_order, load_training_data
from unimoe.training.trainer import ArmTraining

ROUNDS, FEWEST_ROUNDS, STEPS = 5, 3, 3
"""Rounds and the steps of each side in a round, where time allows."""

TURNS = 11
"""Steps of each of our losses, one after the other."""

QUERIES = 16

Run = Callable[[int], float]
"""Takes that many steps, and returns the seconds of one."""


class Batches(Dataset[dict[str, Any]]):
    """One item per step: the padded questions of its queries."""

    def __init__(self, data: RankingSet, order: list[list[int]]) -> None:
        self._items = [padded([data.prompts.ids[row] for g in batch for row in data.groups[g]]) for batch in order]

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._items[index]


def padded(sequences: list[list[int]], left: bool = False) -> dict[str, torch.Tensor]:
    """Token ids and mask of a batch."""
    longest = max(map(len, sequences))
    pads = [[0] * (longest - len(ids)) for ids in sequences]
    ones = [[1] * len(ids) for ids in sequences]
    pairs = zip(sequences, pads, strict=True), zip(ones, pads, strict=True)
    ids, mask = ([pad + row if left else row + pad for row, pad in both] for both in pairs)
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def first_of(gaps: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of picking each query's first question ``(Q, K)``."""
    return torch.nn.functional.cross_entropy(gaps, torch.zeros(len(gaps), dtype=torch.long, device=gaps.device))


class RankingTrainer(Trainer):
    """Trainer with the ranking loss on the logits of each question's last token."""

    yes: int
    no: int
    queries: int

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        """Softmax over the gaps of each query's questions."""
        logits = model(**inputs).logits
        last = logits[torch.arange(len(logits)), inputs["attention_mask"].sum(dim=1) - 1].float()
        return first_of((last[:, self.yes] - last[:, self.no]).view(self.queries, -1))


class SoftmaxOverScores(torch.nn.Module):
    """The same loss for CrossEncoderTrainer; the texts it is given name the rows of a batch."""

    def __init__(self, model: Any, data: RankingSet) -> None:
        super().__init__()
        self.model, self._data = model, data

    def forward(self, inputs: list[list[str]], labels: Any = None, **_: Any) -> torch.Tensor:
        """Softmax over the scores of each query's questions."""
        groups = [self._data.groups[int(name)] for name in inputs[0]]
        batch = padded([self._data.prompts.ids[row] for group in groups for row in group], left=True)
        features = {key: value.to(self.model.device) for key, value in batch.items()}
        scores = self.model(features | {"logits_to_keep": 1, "modality": "text"})["scores"]
        return first_of(scores.float().view(len(groups), -1))


def adapters(experiment: Experiment, layers: int) -> Any:
    """PEFT's settings of the arm's adapters."""
    lora = experiment.lora
    return peft.LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        target_modules=list(lora.target_modules),
        layers_to_transform=list(range(lora.first_of(layers), layers)),
    )


def arguments(device: torch.device, batch: int) -> dict[str, Any]:
    """The settings of both trainers."""
    return {
        "per_device_train_batch_size": batch,
        "num_train_epochs": 1,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": device.type == "cpu",
    }


class Sides:
    """The trainings, each ready to take steps.

    Args:
        folder: where they may write.
        device: where to compute.
        dtype: as in ``model.dtype``.
    """

    def __init__(self, folder: Path, device: torch.device, dtype: Dtype) -> None:
        given = [f"output_dir={folder}", f"training.ranking.queries={QUERIES}"]
        self.experiment = load_experiment(Path("experiments/bundled"), given)
        self.loader = ModelLoader(self.experiment, device, choose_dtype(device, dtype))
        self._folder, self._device = folder, device
        self._source: TrainingData = load_training_data(self.experiment)
        base = self.loader.fresh_base()
        self._attention = base.model.config._attn_implementation
        model = UnimodelForExp1(base, self.experiment.prompt, self.experiment.model.max_length)
        self.data = self._source.ranking(model)
        self.preparation = 0.0

    def order(self, steps: int) -> list[list[int]]:
        """Which groups each step sees."""
        per_step = self.experiment.training.ranking.queries_per_step
        return batch_order(len(self.data.groups), per_step, steps, seed=0, stream=0)

    def ours(self, *changes: str) -> Run:
        """The trainer of unimoe, with changes of the experiment's settings."""
        changed = overridden(self.experiment.model_dump(), changes)
        experiment = parse_config(Experiment, changed, source="lora_step")
        training = ArmTraining(experiment, "rank_only_r8", 0, self.loader, self._source)
        start = time.perf_counter()
        training.prepare()
        self.preparation = max(self.preparation, time.perf_counter() - start)  # the first computes for all

        def run(steps: int) -> float:
            first, start = training.progress.step, time.perf_counter()
            for step in range(first, first + steps):
                training.step(step)
            training.progress.step = first + steps
            return (time.perf_counter() - start) / steps

        return run

    def trainer(self) -> Run:
        """The Trainer of transformers."""
        base = self.loader.fresh_base()
        model = peft.get_peft_model(base.model, adapters(self.experiment, base.layers))
        yes, no = answer_ids(base.tokenizer)

        def run(steps: int) -> float:
            order = self.order(steps)
            settings = TrainingArguments(
                output_dir=str(self._folder), remove_unused_columns=False, **arguments(self._device, 1)
            )
            trainer = RankingTrainer(model, settings, lambda items: items[0], Batches(self.data, order))
            trainer.yes, trainer.no, trainer.queries = yes, no, len(order[0])
            return timed(trainer.train, steps)

        return run

    def cross_encoder(self) -> Run:
        """The CrossEncoderTrainer of sentence-transformers."""
        from datasets import Dataset as Rows
        from sentence_transformers import CrossEncoder
        from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments

        kwargs: dict[str, Any] = {"dtype": self.loader.dtype, "attn_implementation": self._attention}
        encoder: Any = CrossEncoder(str(prepared_bundled_model()), device=str(self._device), model_kwargs=kwargs)
        encoder.add_adapter(adapters(self.experiment, encoder[0].model.config.num_hidden_layers))
        loss = SoftmaxOverScores(encoder, self.data)

        def run(steps: int) -> float:
            order = self.order(steps)
            names = [str(group) for batch in order for group in batch]
            settings = CrossEncoderTrainingArguments(
                output_dir=str(self._folder), **arguments(self._device, len(order[0]))
            )
            trainer: Any = CrossEncoderTrainer(
                model=encoder, args=settings, train_dataset=Rows.from_dict({"query": names, "same": names}), loss=loss
            )
            return timed(trainer.train, steps)

        return run


PEERS = ("trainer", "cross_encoder")
LOSSES = ("score_es", "pg_rank")
SIDES = ("ours", *PEERS)


def timed(train: Callable[[], Any], steps: int) -> float:
    """Seconds of one of the steps that ``train`` takes."""
    start = time.perf_counter()
    train()
    return (time.perf_counter() - start) / steps


def main() -> None:
    """Measure alternately and print one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--minutes", type=float, default=7, help="rounds are sized to end by then")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    options = parser.parse_args()
    keep_freed_memory()  # as the commands do
    start, device = time.perf_counter(), choose_device()
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(Path(folder), device, options.dtype)
        runs = {"ours": sides.ours(), "trainer": sides.trainer(), "cross_encoder": sides.cross_encoder()}
        of_losses = {loss: sides.ours(f"training.ranking.loss={loss}") for loss in LOSSES}
        losses = turns({"softmax": runs["ours"], **of_losses})
        first = sum(run(1) for run in runs.values())  # the warm-up; it is slower than what follows
        rounds: list[dict[str, float]] = []
        while len(rounds) < options.rounds:
            left = start + 60 * options.minutes - time.perf_counter()
            if len(rounds) >= FEWEST_ROUNDS and left < first:
                break
            steps = min(STEPS, max(1, int(left / (options.rounds - len(rounds)) / first)))
            rounds.append({side: run(steps) for side, run in runs.items()})
            first = sum(rounds[-1].values())
        report(sides, rounds, losses, device)


def turns(runs: dict[str, Run]) -> dict[str, list[float]]:
    """Take single steps of each loss in turn, after one each; return the sorted ratios of their times to softmax's."""
    for run in runs.values():
        run(1)
    taken = [{loss: run(1) for loss, run in runs.items()} for _ in range(TURNS)]
    return {loss: sorted(times[loss] / times["softmax"] for times in taken) for loss in LOSSES}


def report(
    sides: Sides,
    rounds: list[dict[str, float]],
    losses: dict[str, list[float]],
    device: torch.device,
) -> None:
    """Medians, spreads and the JSON line."""
    order = sides.order(STEPS)
    tokens = statistics.mean(
        sum(len(sides.data.prompts.ids[r]) for g in b for r in sides.data.groups[g]) for b in order
    )
    seconds = {side: statistics.median(times[side] for times in rounds) for side in SIDES}
    ratios = {side: sorted(times[side] / times["ours"] for times in rounds) for side in SIDES[1:]}
    questions = len(order[0]) * len(sides.data.groups[0])
    alone = sides.preparation * questions / len(sides.data.prompts.ids)
    ranking = [arm for arm in sides.experiment.arms.values() if arm.task != "emb_only"]
    trainings = len(ranking) * len(sides.experiment.seeds)
    print(f"{describe_device(device)}, {sides.loader.dtype_name}, {tokens:.0f} tokens a step, {len(rounds)} rounds")
    for side in SIDES:
        spread = f", ratio {ratios[side][0]:.2f} to {ratios[side][-1]:.2f}" if side in ratios else ""
        print(f"{side}: {seconds[side]:.2f} s a step{spread}")
    for loss, found in losses.items():
        print(f"{loss}: {statistics.median(found):.3f} of softmax's time a step, {found[0]:.2f} to {found[-1]:.2f}")
    print(f"frozen states of a step's {questions} questions: {alone:.2f} s, shared by {trainings} trainings")
    result: dict[str, float] = {"tokens_per_s": round(tokens / seconds["ours"])}
    for side in PEERS:
        result |= {
            f"vs_{side}": round(statistics.median(ratios[side]), 2),
            f"vs_{side}_shared": round(seconds[side] / (seconds["ours"] + alone / trainings), 2),
            f"vs_{side}_alone": round(seconds[side] / (seconds["ours"] + alone), 2),
        }
    result |= {f"{loss}_vs_softmax": round(statistics.median(found), 3) for loss, found in losses.items()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
