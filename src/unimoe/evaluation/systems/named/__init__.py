"""Systems by name: what ``--model`` takes, ``KIND:NAME``, or the hub id or folder of a causal language model.

The kinds ``http`` and ``https`` are those of a server's address.

A kind is a line of the table in ``kinds``, a file in this folder, or registered by a program::

    from unimoe.evaluation.systems.named import register_model

    register_model("mine", make)  # then --model mine:NAME

``make`` gets the text after the colon and a ``Naming``, and returns a ``System``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from unimoe.config import Experiment
from unimoe.config.files import find_config, overridden, parse_config, read_yaml
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.core.registry import Registry
from unimoe.evaluation.systems.system import System, arm_name, model_recipe
from unimoe.models.base import model_type
from unimoe.models.bundled import BUNDLED_ID
from unimoe.models.checkpoint import ADAPTER_FILE
from unimoe.models.prompts import default_prompt
from unimoe.models.served.client import refuse_secrets
from unimoe.results import Task, safe_name

OPTION = "--model"
YES_NO, BUNDLED, CROSS_ENCODER = "yes-no", "bundled", "cross-encoder"
ADDRESSES = ("http", "https")

_SETTINGS = "experiments/bundled"
"""The shipped config whose evaluation settings count where no other is given."""


@dataclass(frozen=True)
class Naming:
    """The settings by which a name becomes a system.

    Of the experiment, the sections model, prompt and evaluation are used; the name, if it is no address, replaces
    ``model.base``. ``arm`` is the name in results, None for one made of the model's.
    """

    experiment: Experiment
    device: torch.device
    dtype: torch.dtype
    arm: str | None = None

    @property
    def dtype_name(self) -> str:
        """``bfloat16``, ``float32``, ..."""
        return str(self.dtype).removeprefix("torch.")

    def arm_of(self, model: str) -> str:
        """Return the name in results of the model called ``model``: the last part of a path that names it."""
        parts = [part for part in re.split(r"[:/\\]", model) if part] or [model]
        named = [part for part in parts if not re.fullmatch(r"checkpoint[\w.\-]*|seed_\w+|\.+", part)]
        return arm_name(self.arm or safe_name((named or parts)[-1]))

    def reranker(self, name: str, load: Callable[[], Any], identity: str, prompt: str) -> System:
        """Return the system of a model that reranks by a prompt of its own, which is loaded once."""
        own: dict[str, Any] = {"tasks": ("reranking",), "instructed": False}
        return System(self.arm_of(name), self.experiment, cache(load), identity, prompt, self.dtype_name, **own)

    def with_own_prefixes(self) -> Naming:
        """Return the same, with no instruction of MTEB's before texts to embed unless the experiment sets one."""
        evaluation = self.experiment.evaluation
        if "task_instruction" in evaluation.mteb.model_fields_set:
            return self
        own = evaluation.mteb.model_copy(update={"task_instruction": None})  # what decoders are trained on
        changed = evaluation.model_copy(update={"mteb": own})
        return replace(self, experiment=self.experiment.model_copy(update={"evaluation": changed}))

    def refuse_layers(self, kind: str) -> None:
        """Refuse ``model.layers`` with a kind of model that is always whole."""
        if self.experiment.model.layers is not None:
            raise UsageError(f"model.layers cuts causal language models only; leave it out with {OPTION} {kind}:")


MODELS: Registry[Callable[[str, Naming], System]] = Registry(
    "kind of model", "unimoe.evaluation.systems.named", "unimoe.rerankers"
)
"""The makers of systems, by the text before the colon."""

register_model = MODELS.add


def named_system(name: str, naming: Naming) -> System:
    """Return the system that a name means; its model is loaded when it is needed."""
    kind, rest = _split(name)
    experiment = naming.experiment
    if kind in ADDRESSES:  # the base model is the one whose tokenizer makes token ids
        return MODELS[kind](rest, naming)
    experiment = experiment.model_copy(update={"model": experiment.model.model_copy(update={"base": rest})})
    system = MODELS[kind](rest, replace(naming, experiment=experiment))
    recipe = model_recipe("named", system.experiment, name=name, arm=naming.arm, dtype=naming.dtype_name)
    return replace(system, recipe=recipe)


def is_checkpoint(name: str) -> bool:
    """Return whether a name is the folder of a trained arm's checkpoint."""
    return Path(name, ADAPTER_FILE).is_file() and Path(name, "unimoe.json").is_file()


def default_experiment(name: str, overrides: tuple[str, ...] = ()) -> Experiment:
    """Return the settings of a model that comes without a config: those of the shipped one, and the model's prompt."""
    kind, rest = _split(name)
    based = kind in ADDRESSES and any(text.startswith("model.base=") for text in overrides)
    own: dict[str, Any] = {"name": "models", "model": {"base": rest}, "prompt": {}, "lora": {}}
    raw = read_yaml(find_config(Path(_SETTINGS))) | own
    if kind == YES_NO or rest == BUNDLED_ID or based:
        given = overridden({"model": raw["model"]}, [text for text in overrides if text.startswith("model.")])
        raw["prompt"] = default_prompt(model_type(parse_config(Experiment, raw | given, OPTION).model)).settings
    return parse_config(Experiment, overridden(raw, overrides), source=f"{OPTION} {name}")


def stated_system(model: Any, naming: Naming, tasks: tuple[Task, ...] = ("reranking",)) -> System:
    """Return the system of a reranker or embedder that states its ``name`` and ``identity`` itself.

    An embedder's identity is its ``base_identity``. An attribute ``reusable`` that is false says that the identity does
    not tell the model from every other.
    """
    return System(
        naming.arm_of(model.name),
        naming.experiment,
        lambda: model,
        model.base_identity if "embedding" in tasks else model.identity,
        getattr(model, "prompt_name", None),
        None,
        tasks=tasks,
        instructed=False,
        reusable=getattr(model, "reusable", True),
    )


def _split(name: str) -> tuple[str, str]:
    """Return the kind of a name, and the text that its maker gets."""
    kind, colon, rest = name.partition(":")
    known = MODELS.names()
    forms = ", ".join(f"{known_kind}:..." for known_kind in known)
    if not name.strip():
        raise UsageError(f"{OPTION} names nothing; write a hub id, a folder, or {forms}")
    if not colon or Path(name).exists():
        if Path(name, "adapter_config.json").is_file() and not Path(name, "config.json").is_file():
            raise UsageError(
                f"{OPTION} {name}: an adapter alone, and no checkpoint of unimoe's training; merge it into its base "
                f"and save the whole, or write {OPTION} rankllama:{name} if it has a score head"
            )
        return YES_NO, name
    if kind not in known:
        raise UsageError(
            f"{OPTION} {name}: no kind of model {kind!r}{did_you_mean(kind, known)}; write a hub id, a folder, or "
            f"{forms}"
        )
    if not rest.strip():
        raise UsageError(f"{OPTION} {name}: names no model; write one after the colon")
    if kind in ADDRESSES:
        refuse_secrets(name)  # before a message or a result repeats the address
    return kind, name if kind == BUNDLED else rest
