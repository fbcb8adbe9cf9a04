"""Trains a cross-encoder on lists of documents, and writes a folder of sentence-transformers with a manifest.

Without dropout the steps are those of sentence-transformers' own trainer: its order of batches, AdamW, and schedule.
They are equal to the bit where all pairs have one length. Others are sorted by it, so that little is padded, which
rounds otherwise; and dropout, which draws by place, drops other units.

A new one is an encoder that reads query and document together, with one output. sentence-transformers makes and trains
it; this file finds the weights, seeds the head, and refuses bad bases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import torch
from torch import Tensor, nn

from unimoe.config.base import BUNDLED_ENCODER
from unimoe.core.errors import DataError, first_few, named_inputs
from unimoe.core.io import atomic_dir, hash_json
from unimoe.metrics import score_run
from unimoe.models.folder import ModelFolder, find_folder
from unimoe.models.model_files import first_line, missing_weights, silence_transformers
from unimoe.models.reranker import rerank_run
from unimoe.models.rerankers.cross_encoder import CrossEncoderReranker
from unimoe.models.seen_queries import SeenQueries, seen_by
from unimoe.results import TrainingBudget, arm_dir
from unimoe.studies.common.adapters import add_adapters, name_trained_base
from unimoe.studies.common.trained_model import MANIFEST, TrainedModel, freeze_lower_layers, read_trained, write_trained
from unimoe.studies.cross_encoder.config import CrossEncoderConfig, CrossEncoderModelConfig
from unimoe.studies.cross_encoder.data import CrossEncoderData, LabelledList, fit_for
from unimoe.training.loop import OnStep, StepFacts, Training
from unimoe.training.losses.listwise import ListwiseLoss
from unimoe.training.losses.sampled import generator_of
from unimoe.training.run_state import Parts, RunState
from unimoe.training.steps import optimizer_tensors, overflow, restore_optimizer

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

_METRICS = ("ndcg@10", "mrr@10", "map")
_WITHOUT_EFFECT = {"name", "tracking", "output_dir", "push_to_hub", "caveats"}


class CrossEncoderManifest(TrainedModel):
    """The manifest of a trained cross-encoder.

    Attributes:
        start: mean nDCG@10 on dev before training; a new head is random, and so is its order.
        dev: mean nDCG@10 on dev at the best step.
        best_step: the steps taken until then; 0 where none is better than the start.
        seconds: of the steps, those before a kill included up to the state that was resumed.
    """

    manifest_version: Literal[1] = 1
    start: float
    dev: float
    best_step: int
    seconds: float


class CrossEncoderTraining(Training):
    """Trains one cross-encoder on the lists that its loss can learn from; the dev sets choose the checkpoint."""

    dev_log: ClassVar[str] = "dev"

    def __init__(self, config: CrossEncoderConfig, data: CrossEncoderData, device: torch.device) -> None:
        self.config, self.lists, self._dev, self.device = config, fit_for(config.loss, data.lists), data.dev, device
        self._base = find_cross_encoder(config.model)
        self.base_seen = seen_by(self._base.inner)
        folder = arm_dir(Path(config.output_dir), config.arm, config.seed)
        self.checkpoint_dir = folder / "checkpoint"
        self._bfloat16 = config.dtype == "bfloat16"
        if config.dtype == "auto":
            self._bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
        content = {
            "lists": self.lists.content_hash,
            "dev": " ".join(one.content_hash for one in self._dev),
            "base": self._base.identity,
            "dtype": "bfloat16" if self._bfloat16 else "float32",
        }
        settings = {"config": _determining(config.model_dump()), "content": content}
        self._per_epoch = -(-len(self.lists.lists) // config.batch_size)
        super().__init__(
            RunState(folder, settings, hash_json(list(settings.values())), tracking=config.tracking),
            config.max_steps or max(1, round(config.epochs * self._per_epoch)),
            dev_every=config.eval_every,
            save_every=config.eval_every,
            scores_start=True,
        )

    @property
    def outputs(self) -> Sequence[Path]:
        """The manifest of the checkpoint."""
        return (self.checkpoint_dir / MANIFEST,)

    def is_finished(self) -> bool:
        """Return whether the checkpoint exists; a ``DataError`` where it is damaged, or of another training."""
        if not self.checkpoint_dir.exists():
            return False
        manifest = self._manifest()
        self.state.refuse_other(self.checkpoint_dir, manifest.fingerprint, {"config": _determining(manifest.config)})
        return True

    def fit(self, on_step: OnStep | None = None) -> CrossEncoderManifest:
        """Train unless that is done, and return the manifest."""
        self.run(on_step)
        return self._manifest()

    def _manifest(self) -> CrossEncoderManifest:
        return read_trained(self.checkpoint_dir, CrossEncoderManifest, "cross-encoder")

    def prepare(self) -> None:
        """Make the model and its optimizer."""
        from transformers import get_linear_schedule_with_warmup, set_seed

        config = self.config
        self._model = new_cross_encoder(config, self._base, self.device)
        set_seed(config.seed)  # again, as the head may have drawn more or fewer numbers
        self._weights = {name: weight for name, weight in self._model.named_parameters() if weight.requires_grad}
        decays = [weight.ndim > 1 and "bias" not in name for name, weight in self._weights.items()]
        groups = [
            {"params": [weight for weight, decay in zip(self._weights.values(), decays, strict=True) if decay is kind],
             "weight_decay": config.weight_decay if kind else 0.0}
            for kind in (True, False)
        ]  # fmt: skip
        self._optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, fused=True)
        warmup = math.ceil(config.warmup_ratio * self.steps)
        schedule = get_linear_schedule_with_warmup(self._optimizer, warmup, self.steps)  # type: ignore[no-untyped-call]
        self._rate_at = schedule.lr_lambdas[0]
        self._epoch, self._order = -1, list[int]()
        self._best: dict[str, torch.Tensor] = {}

    def begin_step(self, number: int) -> None:
        """Shuffle the lists of an epoch; its order depends on seed and epoch alone."""
        epoch, place = divmod(number, self._per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.config.seed + epoch)
            self._epoch, self._order = epoch, torch.randperm(len(self.lists.lists), generator=generator).tolist()
            if place == 0:
                _begin_loader()

    def step(self, number: int) -> StepFacts:
        """Take a step on the lists of a batch."""
        config, place = self.config, number % self._per_epoch
        rows = self._order[place * config.batch_size : (place + 1) * config.batch_size]
        batch = [self.lists.lists[row] for row in rows]
        self._model.train()
        loss = self._loss(number, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(self._model.parameters(), config.max_grad_norm))
        if not math.isfinite(norm):
            self._refuse(number, f"the gradient's norm is {norm}", batch)
        rate = config.learning_rate * self._rate_at(number)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if overflow(self._weights.values()):
            self._refuse(number, "the weights overflow", batch)
        self.progress.count("lists", len(batch))
        return {"loss": float(loss.detach()), "lr": rate, "grad_norm": norm}

    def _refuse(self, number: int, what: str, batch: Sequence[LabelledList]) -> NoReturn:
        raise DataError(
            f"{self.config.arm}, seed {self.config.seed}, step {number + 1}: {what}; its queries are "
            f"{first_few([repr(one.query_id) for one in batch])}; lower learning_rate, or set dtype to float32; what "
            "was saved before is kept"
        )

    def _loss(self, number: int, batch: Sequence[LabelledList]) -> Tensor:
        """Return the loss of a step's lists; its random numbers depend on seed and step alone."""
        pairs = [(one.query, text) for one in batch for text in one.documents]
        scores = self._scores(pairs, len(batch))
        loss_of = ListwiseLoss(self.config.loss, generator=generator_of(self.config.seed, number))
        labels = [torch.tensor(one.labels) for one in batch]
        with named_inputs(lambda index: f"query {batch[index].query_id!r}"):
            lists = scores.split([len(one.documents) for one in batch])  # type: ignore[no-untyped-call]
            loss: Tensor = loss_of(lists, labels, number / max(1, self.steps - 1))
        if not loss.isfinite():
            self._refuse(number, f"the loss is {float(loss.detach())}", batch)
        return loss

    def _scores(self, pairs: Sequence[tuple[str, str]], queries: int) -> Tensor:
        """Return the logits ``(N,)``, computed in batches of similar length, so that little is padded."""
        given = self.config.mini_batch_size
        size = queries if given is None else given or len(pairs)
        order = sorted(range(len(pairs)), key=lambda index: -sum(map(len, pairs[index])))
        parts = []
        for begin in range(0, len(order), size):
            features = self._model.preprocess([pairs[index] for index in order[begin : begin + size]])
            self.progress.count("tokens", int(features["attention_mask"].sum()))
            on = {key: value.to(self.device) for key, value in features.items() if isinstance(value, Tensor)}
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
                scores = self._model({**features, **on})["scores"]
            parts.append(scores.view(-1).float())
        return torch.cat(parts)[torch.tensor(order).argsort().to(self.device)]

    def score_on_dev(self) -> tuple[float, StepFacts]:
        """Rerank the dev sets as evaluation does; return their mean nDCG@10, and all measures of each."""
        found = StepFacts()
        reranker = CrossEncoderReranker(self._model, self.config.evaluation.batch_size)
        for data in self._dev:
            with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
                run, _ = rerank_run(reranker, data.collection, data.candidates)
            self.refuse_equal(run)
            scores = score_run(data.collection.qrels, run, _METRICS, data.collection.relevance_level).aggregate
            found |= {f"{data.name}_{metric}": scores[metric] for metric in _METRICS}
        if self.progress.step:  # the library's trainer scores no start
            _begin_loader()
        mean = sum(found[f"{data.name}_ndcg@10"] for data in self._dev) / len(self._dev)
        return mean, {**found, "mean_ndcg@10": mean}

    def keep_best(self) -> None:
        """Copy the weights that train."""
        self._best = {name: weight.detach().cpu().clone() for name, weight in self._weights.items()}

    def parts(self) -> Parts:
        """Return the weights that train, the best ones, the optimizer's moments, and dropout's random numbers."""
        random = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        return {
            "weights": self._weights,
            "best": self._best,
            "optimizer": optimizer_tensors(self._optimizer),
            "random": random,
        }

    def load_parts(self, parts: Parts) -> None:
        """Restore what ``parts`` returned."""
        self._set_weights(parts["weights"])
        self._best = dict(parts["best"])
        restore_optimizer(self._optimizer, parts["optimizer"])
        torch.set_rng_state(parts["random"]["cpu"])
        if "cuda" in parts["random"] and self.device.type == "cuda":
            torch.cuda.set_rng_state(parts["random"]["cuda"], self.device)

    def _set_weights(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in self._weights.items():
            weight.data.copy_(weights[name])

    def finish(self) -> None:
        """Write the best model, with its card and manifest."""
        progress = self.progress
        self._set_weights(self._best)
        self._fill_card()
        with atomic_dir(self.checkpoint_dir) as temporary:
            with silence_transformers():
                self._model.save_pretrained(str(temporary))
            if self.config.lora:
                name_trained_base(temporary, self.config.model.base, self.config.model.revision)
            chose = (text for one in self._dev for text in one.collection.judged_queries.values())
            (self.base_seen | SeenQueries.of((one.query for one in self.lists.lists), chose)).write(temporary)
            write_trained(
                temporary,
                CrossEncoderManifest,
                arm=self.config.arm,
                seed=self.config.seed,
                which="best",
                base_model=self._base.identity,
                fingerprint=self.state.fingerprint,
                start=progress.start,
                dev=progress.best_score,
                best_step=progress.best_step,
                training=TrainingBudget(
                    steps=progress.step,
                    ranking_examples=progress.extra["lists"],
                    embedding_examples=0,
                    tokens=progress.extra["tokens"],
                ),
                seconds=progress.seconds,
                config=self.config.model_dump(),
            )

    def _fill_card(self) -> None:
        """Say in the model's card what it was trained on, and how."""
        from datasets import Dataset

        card, config = self._model.model_card_data, self.config
        loss = ListwiseLoss(config.loss)
        rows = [
            {"query_id": one.query_id, "query": one.query, "docs": [*one.documents], "labels": [*one.labels]}
            for one in self.lists.lists
        ]  # with the columns that the loss takes, in its order
        data = Dataset.from_list(rows)
        with silence_transformers():
            card.train_datasets = card.extract_dataset_metadata(data, card.train_datasets, loss, "train")
        card.set_losses([loss])
        names = ("learning_rate", "batch_size", "warmup_ratio", "weight_decay", "max_grad_norm", "seed")
        settings = {name: getattr(config, name) for name in names} | {"steps": self.steps}
        if config.lora:
            settings["lora"] = config.lora.model_dump()
            card.tags = [*(card.tags or ()), "lora"]
        card.all_hyperparameters = settings  # the library shows none without these


def _determining(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a dumped configuration that determine the training."""
    settings = {key: value for key, value in config.items() if key not in _WITHOUT_EFFECT}
    evaluation = {key: value for key, value in config["evaluation"].items() if not key.startswith("test")}
    return settings | {"evaluation": evaluation}


def _begin_loader() -> None:
    """Draw the number that a DataLoader draws at its beginning, as the library's trainer does."""
    torch.empty((), dtype=torch.int64).random_()


def find_cross_encoder(config: CrossEncoderModelConfig) -> ModelFolder:
    """Find the folder of a base by name; one with several labels is refused, and an adapter."""
    remedy, trust = f", or set model.base to {BUNDLED_ENCODER}", config.trust_remote_code
    found = find_folder("model.base", config.base, config.revision, trust_remote_code=trust, remedy=remedy)
    found.refuse_no_config()
    if found.base:
        raise DataError(f"model.base {config.base!r} is an adapter; merge it into its base, and save the whole model")
    labels = found.labels if found.architecture.endswith("ForSequenceClassification") else None
    if labels not in (None, 1):
        raise DataError(
            f"model.base {config.base!r} has {labels} labels, a ranking loss needs one score per pair; "
            "take the encoder it was made from"
        )
    return found


def new_cross_encoder(settings: CrossEncoderConfig, base: ModelFolder, device: torch.device) -> CrossEncoder:
    """Make a cross-encoder of one label on a base; the seed initialises its new head and adapters."""
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from transformers import set_seed

    config = settings.model
    set_seed(settings.seed)  # the trainer sets it again, but only after the head is initialised
    trust = {"trust_remote_code": config.trust_remote_code}
    try:
        with silence_transformers():
            reader = Transformer(
                str(base.inner),
                transformer_task="sequence-classification",
                config_kwargs={"num_labels": 1, **trust},
                model_kwargs={"dtype": torch.float32, **trust},
                processor_kwargs={"model_max_length": config.max_length, **trust},
            )
            # Without local_files_only, the model card asks the hub whether parts of the path name a model there.
            model: CrossEncoder = CrossEncoder(modules=[reader], device=str(device), local_files_only=True)
    except Exception as error:  # loading ends in errors of many kinds: no such architecture, damaged or missing files
        raise DataError(
            f"model.base {config.base!r} cannot be loaded as a cross-encoder ({first_line(error)}); take an encoder "
            "that transformers knows for sequence classification"
        ) from None
    model.model_card_data.base_model = None if config.base.startswith("bundled:") else config.base
    if config.frozen_layers:
        transformer: Any = model[0]
        layers = freeze_lower_layers(transformer.model.base_model, config.frozen_layers)
        if config.frozen_layers > layers:
            raise DataError(f"model.frozen_layers {config.frozen_layers}: the base has {layers} layers")
    if settings.lora:
        inner: Any = model[0].model
        add_adapters(inner, settings.lora, settings.seed, _heads(inner, base))
    return model


def _heads(model: Any, base: ModelFolder) -> list[str]:
    """Return the modules of a classifier that make the score, and those that the base has no weights for.

    They train as a whole, and are saved with the adapters: nobody else has these weights.
    """
    prefix = model.base_model_prefix
    heads = [
        name for name, part in model.named_children() if name != prefix and next(part.parameters(), None) is not None
    ]
    poolers = [f"{prefix}.{name}" for name, part in model.base_model.named_children() if name == "pooler"]
    with silence_transformers():
        new = [name.rpartition(".")[0] for name in missing_weights(model, base.inner, base)]
    found = list[str]()
    for name in (*heads, *poolers, *new):
        if not any(name == known or name.startswith(f"{known}.") for known in found):
            found.append(name)
    return found
