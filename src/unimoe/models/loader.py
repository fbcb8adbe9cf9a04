"""Loading the models of an experiment's arms, which share the frozen lower layers of one base model."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import torch

from unimoe.config import EvaluationConfig, Experiment
from unimoe.core.io import hash_json
from unimoe.models.adapter import load_lora, merge_lora
from unimoe.models.base import (
    BaseModel,
    base_identity,
    base_layers,
    decoder_layers,
    decoder_of,
    load_base,
    refuse_own_code,
)
from unimoe.models.checkpoint import Checkpoint
from unimoe.models.frozen_layers import FrozenLayers, refuse_mixed_layers, split_decoder
from unimoe.models.prompts import prompt_name
from unimoe.models.unimodel import UnimodelForExp1


class ModelLoader:
    """Loads the models that an experiment's sections model, prompt and lora describe."""

    def __init__(self, experiment: Experiment, device: torch.device, dtype: torch.dtype) -> None:
        self._experiment, self.device, self.dtype = experiment, device, dtype
        self.dtype_name = str(dtype).removeprefix("torch.")
        self.prompt = prompt_name(experiment.prompt, experiment.model.max_length)

    @cached_property
    def identity(self) -> str:
        """Logical id and content hash of the base model."""
        return base_identity(self._experiment.model)

    def refuse_own_code(self) -> None:
        """Refuse a base model with code that this user does not trust."""
        refuse_own_code(self._experiment.model)

    @cached_property
    def first_layer(self) -> int:
        """The lowest layer with adapters."""
        return self._experiment.lora.first_of(len(base_layers(self._experiment.model)))

    @cached_property
    def frozen_layers(self) -> FrozenLayers | None:
        """The frozen lower layers that all arms share; None if the first layer has adapters."""
        if self.first_layer == 0:
            return None
        return FrozenLayers(split_decoder(decoder_of(self.fresh_base().model), self.first_layer)[0])

    @cached_property
    def _base(self) -> BaseModel:
        return load_base(self._experiment.model, self.device, self.dtype)

    def fresh_base(self) -> BaseModel:
        """Return the base model with modules of its own, which adapters change, and weights that all copies share."""
        kept = self._base.model
        shared = {id(weights): weights for weights in chain(kept.parameters(), kept.buffers())}
        return replace(self._base, model=copy.deepcopy(kept, shared))

    def apart(self) -> ModelLoader:
        """Return a loader of the same weights with frozen layers that keep nothing for the models of this one."""
        _ = self._base
        other = copy.copy(self)
        other.__dict__.pop("frozen_layers", None)
        return other

    def zero_shot(self) -> UnimodelForExp1:
        """Load the base model without adapters."""
        return self._unimodel(self.fresh_base())

    def trained(self, checkpoint: Path) -> UnimodelForExp1:
        """Load the base model with the adapters of a checkpoint folder, merged where the config says so."""
        if self._experiment.evaluation.merge_adapters:
            base = load_base(self._experiment.model, self.device, self.dtype)  # its weights change
            merge_lora(base, load_base(self._experiment.model, torch.device("cpu"), torch.float32), checkpoint)
        else:
            base = self.fresh_base()
            load_lora(base, checkpoint)
        return self._unimodel(base)

    def _unimodel(self, base: BaseModel) -> UnimodelForExp1:
        config = self._experiment
        if config.evaluation.compile:
            for layer in decoder_layers(decoder_of(base.model)):
                layer.compile(dynamic=True)
        return UnimodelForExp1(
            base,
            config.prompt,
            config.model.max_length,
            self.first_layer,
            self.frozen_layers,
            varlen=config.evaluation.varlen,
        ).eval()


def refuse_missing_layers(experiment: Experiment) -> None:
    """Refuse layers that the base model does not have, by its configuration, before anything is loaded or written.

    A ``UsageError`` tells of ``model.layers`` or ``lora.first_layer`` beyond the last layer, and of layers of several
    kinds of which only the upper ones are adapted.
    """
    kinds = base_layers(experiment.model)
    if experiment.lora.first_of(len(kinds)) > 0:
        refuse_mixed_layers(kinds)


def weights_hash(checkpoint: Checkpoint, evaluation: EvaluationConfig) -> str:
    """Return the content hash of a checkpoint's weights as they score: merged, adapters are other weights."""
    merged = evaluation.merge_adapters
    return hash_json([checkpoint.adapter_hash, "merged"]) if merged else checkpoint.adapter_hash
