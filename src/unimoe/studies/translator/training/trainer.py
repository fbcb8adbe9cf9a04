"""Trains a translator and writes a checkpoint of its best epoch by MRR on the validation images.

    trainer = TranslatorTrainer(TranslatorConfig(model="bigjump"), train, validation)
    trainer.fit()
    ranks = image_ranks(trainer.translator().translate(captions), ...)

On a CPU, a resumed training takes the same steps as an undisturbed one. A closed form is a training without steps.
"""

from __future__ import annotations

import copy
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from unimoe.core.errors import DataError
from unimoe.core.io import hash_json
from unimoe.models.device import choose_device
from unimoe.results import arm_dir
from unimoe.studies.translator.config import BASES, CLOSED_FORMS, SamplerConfig, TranslatorConfig
from unimoe.studies.translator.data.caption_pairs import CaptionPairs, Integers
from unimoe.studies.translator.evaluation import evaluate
from unimoe.studies.translator.models.translators import (
    MANIFEST_FILE,
    TENSORS_FILE,
    NetworkTranslator,
    Translator,
    load_translator,
    make_network,
    read_manifest,
    save_translator,
    translator_tensors,
)
from unimoe.studies.translator.training.closed_forms import fit_closed_form, linear_map
from unimoe.studies.translator.training.objective import Objective
from unimoe.training.loop import OnStep, StepFacts, Training
from unimoe.training.run_state import Parts, RunState
from unimoe.training.steps import optimizer_tensors, overflow, restore_optimizer

WITHOUT_EFFECT = {"save_every", "tracking", "device", "output_dir", "validation"}
"""Keys of the config that the trained weights do not depend on, or not beyond the pairs that a trainer is given."""


class TranslatorTrainer(Training):
    """Trains one translator.

    Args:
        config: of the training.
        train: pairs to learn from.
        validation: pairs of other images, which choose the epoch.
        arm: its name in results; by default the model's.

    Attributes:
        checkpoint: folder of the best epoch.
        captions_seen: captions of all batches of the whole training, each as often as it is seen.
    """

    step_log: ClassVar[str | None] = None  # the log has a line for each epoch, with its scores

    def __init__(
        self, config: TranslatorConfig, train: CaptionPairs, validation: CaptionPairs, arm: str | None = None
    ) -> None:
        self.config, self.train, self.validation = config, train, validation
        self.arm, self.device = arm or config.model, choose_device(config.device)
        folder = arm_dir(Path(config.output_dir), self.arm, config.seed)
        self.checkpoint = folder / "checkpoint"
        settings = {
            "config": config.model_dump(exclude=WITHOUT_EFFECT),
            "data": [train.content_hash, validation.content_hash],
        }
        # Epochs of batches by image may differ in length, as a batch of one caption is left out.
        epochs = range(0 if config.model in CLOSED_FORMS else config.epochs)
        batches = [epoch_batches(config.sampler, train.image_of, config.seed, epoch) for epoch in epochs]
        self._ends = [*accumulate(map(len, batches))]
        self.captions_seen = sum(len(rows) for epoch in batches for rows in epoch)
        super().__init__(
            RunState(folder, settings, hash_json(list(settings.values())), tracking=config.tracking),
            self._ends[-1] if self._ends else 0,
            dev_every=None,
            save_every=1,
            scores_start=True,
        )

    def fit(self, on_batch: OnStep | None = None) -> dict[str, Any]:
        """Train unless that is done.

        Returns:
            ``val``, MRR on the validation images of the best epoch, and ``start``, that before the first step;
            ``best_epoch``, ``epochs``, ``steps``, ``seconds``; ``parameters`` and ``weight_bytes``; ``fired``, how
            often each component of the loss was active.
        """
        self.run(on_batch)
        facts: dict[str, Any] = read_manifest(self.checkpoint).settings["facts"]
        return facts

    def translator(self) -> Translator:
        """Load the translator of the best epoch."""
        return load_translator(self.checkpoint, self.device)

    @property
    def outputs(self) -> Sequence[Path]:
        """The files of the checkpoint."""
        return self.checkpoint / TENSORS_FILE, self.checkpoint / MANIFEST_FILE

    def is_finished(self) -> bool:
        """Return whether the checkpoint of this training exists and is complete."""
        if not (self.checkpoint / MANIFEST_FILE).exists():
            return False
        settings = read_manifest(self.checkpoint).settings
        config = {key: value for key, value in settings.get("config", {}).items() if key not in WITHOUT_EFFECT}
        self.state.refuse_other(self.checkpoint, settings.get("fingerprint"), {"config": config})
        return bool(settings["finished"])

    def is_scored_after(self, step: int) -> bool:
        """Return whether an epoch ends there."""
        return step in self._ends

    def is_saved_after(self, step: int) -> bool:
        """Return whether ``save_every`` epochs end there: only then the sums of an epoch need not be saved."""
        return step in self._ends and self._epochs(step) % self.config.save_every == 0

    def prepare(self) -> None:
        """Fit a closed form, or make the network, its optimizer and its objective."""
        config, train, device = self.config, self.train, self.device
        if not self._ends:
            start = time.perf_counter()
            self._model: Translator = fit_closed_form(config.model, train, config)
            self.progress.seconds = time.perf_counter() - start
            return
        base = BASES.get(config.model)
        fitted = linear_map(base, train, config) if base else None
        network = make_network(config.model, train, config.hidden, config.seed, fitted, centred=config.centre)
        self._model = self._network = network.to(device)
        self._offset = network.image_mean * config.centre
        self._captions = torch.from_numpy(train.captions).to(device)
        self._image_of = torch.from_numpy(train.image_of).to(device)
        images = torch.from_numpy(train.images).to(device)
        self._objective = Objective(config.loss, normalize(images - self._offset, dim=1), len(train))
        # Biases have no decay; nor has the closed form, which decay would pull towards zero.
        decaying = [weight for weight in network.layers.parameters() if weight.ndim == 2]
        others = [weight for weight in network.layers.parameters() if weight.ndim == 1]
        groups = [{"params": decaying, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=config.learning_rate)
        self._unfrozen = False

    def begin_step(self, number: int) -> None:
        """Set what changes from epoch to epoch, at its first step."""
        config, epoch = self.config, self._epochs(number)
        self._place = number - ([0, *self._ends])[epoch]
        if self._place:
            return
        self._unfreeze(epoch)
        self._temperature = config.temperature.at(epoch, config.epochs)
        self._recent = config.loss.bank.recent_at(epoch)
        self._batches = epoch_batches(config.sampler, self.train.image_of, config.seed, epoch)
        self._sums: dict[str, float] = {}

    def step(self, number: int) -> StepFacts:
        """Take the step of a batch; a loss that is not finite changes no weight."""
        rows = torch.from_numpy(self._batches[self._place]).to(self.device)
        predicted = self._network(self._captions[rows]) - self._offset
        terms = self._objective(predicted, rows, self._image_of[rows], self._temperature, self._recent)
        loss = torch.stack(list(terms.values())).sum()
        values = torch.stack([term.detach() for term in terms.values()]).tolist()
        facts = dict(zip(terms, values, strict=True)) | {"loss": sum(values)}
        if not np.isfinite(facts["loss"]):
            self._refuse(number, "the loss is not finite")
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        if overflow(self._network.parameters()):
            self._refuse(number, "the weights overflow")
        self._sums = {name: self._sums.get(name, 0.0) + value for name, value in facts.items()}
        return {"loss": facts["loss"]}

    def _refuse(self, number: int, what: str) -> NoReturn:
        """End the training with the best epoch as its checkpoint."""
        self._write_best(finished=False)
        raise DataError(
            f"{self.arm}, seed {self.config.seed}, epoch {self._epochs(number) + 1}, batch {self._place + 1}: {what}; "
            f"lower learning_rate or raise the temperature. {self.checkpoint} keeps epoch "
            f"{self._epochs(self.progress.best_step)}, the best so far"
        )

    def score_on_dev(self) -> tuple[float, StepFacts]:
        """Return MRR on the validation images, and the facts about the epoch that has ended."""
        progress = self.progress
        try:
            found = evaluate(self._model, self.validation, self.device)
        except DataError as error:
            if progress.step:
                self._write_best(finished=False)
            remedy = "; or lower learning_rate" if self._ends else ""
            raise DataError(f"{self.arm}, seed {self.config.seed}: {error}{remedy}") from None
        if not progress.step:
            return found["mrr"], {}
        counts, self._objective.counts = dict(self._objective.counts), Counter()
        fired = progress.extra.setdefault("fired", {})
        fired |= {name: fired.get(name, 0) + count for name, count in counts.items()}
        return found["mrr"], {
            "epoch": self._epochs(progress.step),
            "batches": len(self._batches),
            **{name: value / len(self._batches) for name, value in self._sums.items()},
            "fired": counts,
            **{f"val/{name}": value for name, value in found.items()},
            "temperature": self._temperature,
            "recent": self._recent,
            "closed_form_trained": self._unfrozen,
            "seconds": progress.seconds,
        }

    def keep_best(self) -> None:
        """Copy the network."""
        if self._ends:
            self._best: dict[str, Tensor] = copy.deepcopy(self._network.state_dict())

    def parts(self) -> Parts:
        """Return the network, its best epoch, the optimizer's moments and the queues."""
        return {
            "network": self._network.state_dict(),
            "best": self._best,
            "optimizer": optimizer_tensors(self._optimizer),
            "objective": self._objective.state(),
        }

    def load_parts(self, parts: Parts) -> None:
        """Restore what ``parts`` returned; the optimizer gets its parameters before their moments."""
        self._network.load_state_dict(parts["network"])
        self._best = {name: tensor.to(self.device) for name, tensor in parts["best"].items()}
        self._unfreeze(self._epochs(self.progress.step) - 1)
        restore_optimizer(self._optimizer, parts["optimizer"])
        self._objective.load_state(dict(parts.get("objective", {})))

    def finish(self) -> None:
        """Write the best epoch, with a manifest that says that the training is finished."""
        self._write_best(finished=True)

    def _epochs(self, step: int) -> int:
        """Return how many epochs have ended after so many steps."""
        return bisect_right(self._ends, step)

    def _unfreeze(self, epoch: int) -> None:
        """Let the optimizer train the closed form too, from its epoch on and at its own learning rate."""
        base, geometry = self._network.base, self.config.geometry
        first = geometry.unfreeze_epoch
        if base is None or self._unfrozen or first is None or epoch + 1 < first:
            return
        chosen = [base.weight] if geometry.freeze_bias else [base.weight, base.bias]
        for parameter in chosen:
            parameter.requires_grad_(True)
        rate = self.config.learning_rate * geometry.lr_scale
        self._optimizer.add_param_group({"params": chosen, "lr": rate, "weight_decay": 0.0})
        self._unfrozen = True

    def _write_best(self, *, finished: bool) -> None:
        """Write the best epoch, with the settings and facts that are kept with the weights."""
        best, progress = copy.deepcopy(self._model), self.progress
        if isinstance(best, NetworkTranslator):
            best.load_state_dict(self._best)
            weights = [weight.detach().cpu().numpy() for weight in best.parameters()]
        else:
            weights = [*translator_tensors(best).values()]
        facts = {
            "val": progress.best_score,
            "start": progress.start,
            "best_epoch": self._epochs(progress.best_step),
            "epochs": self._epochs(progress.step),
            "steps": progress.step,
            "seconds": progress.seconds,
            "parameters": sum(weight.size for weight in weights),
            "weight_bytes": sum(weight.nbytes for weight in weights),
            "fired": progress.extra.get("fired", {}),
        }
        settings = {
            "fingerprint": self.state.fingerprint,
            "finished": finished,
            "arm": self.arm,
            "config": self.config.model_dump(),
            "facts": facts,
        }
        save_translator(self.checkpoint, best, settings)


def epoch_batches(config: SamplerConfig, image_of: Integers, seed: int, epoch: int) -> list[Integers]:
    """Return the rows of captions of each batch of an epoch, which depend on seed and epoch alone.

    Shuffled batches hold every caption once. Batches by image pass over all images as often as it takes to see every
    caption once on average; on each pass an image gives its next K captions, or all where it has fewer. A last batch of
    one caption, which has no negative, is left out.
    """
    rng = np.random.default_rng([seed, epoch, 0x7A])
    if config.by_image:
        batches = _by_image(config, image_of, rng)
    else:
        order = rng.permutation(len(image_of))
        batches = [order[begin : begin + config.batch] for begin in range(0, len(order), config.batch)]
    return [batch for batch in batches if len(batch) > 1] or batches


def _by_image(config: SamplerConfig, image_of: Integers, rng: np.random.Generator) -> list[Integers]:
    shuffled = rng.permutation(len(image_of))
    grouped = shuffled[np.argsort(image_of[shuffled], kind="stable")]  # by image, in random order within
    images, begins, counts = np.unique(image_of[grouped], return_index=True, return_counts=True)
    passes = -(-len(image_of) // (len(images) * config.captions))
    batches = []
    for number in range(passes):
        order = rng.permutation(len(images))
        for begin in range(0, len(order), config.images):
            chosen = order[begin : begin + config.images]
            taken = np.minimum(counts[chosen], config.captions)
            image = np.repeat(chosen, taken)
            nth = np.arange(len(image)) - np.repeat(np.cumsum(taken) - taken, taken)
            place = (number * config.captions + nth) % counts[image]
            batches.append(grouped[begins[image] + place])
    return batches
