"""Which kind of model a folder says it is, and by which of its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from unimoe.core.io import Strict, read_json
from unimoe.models.identity import ADAPTER_SETTINGS, read_settings, transformer_folder
from unimoe.models.own_code import ELSEWHERE, OWN_CODE

YES_NO, ENCODER, CROSS_ENCODER = "yes-no", "encoder", "cross-encoder"
SPARSE, LATE, MONO_T5, RANK_LLAMA, CHECKPOINT = "sparse", "late", "monot5", "rankllama", "checkpoint"
LISTWISE, REASONING = "listwise", "reasoning"
WRITING = (LISTWISE, REASONING)
"""Kinds of models that write an answer, whose names may also be an address of a server."""

OF_FOLDERS = (YES_NO, ENCODER, CROSS_ENCODER, SPARSE, LATE, MONO_T5, RANK_LLAMA, *WRITING)
"""Kinds with hub ids or folders as names."""

Stated = tuple[str, str]
"""A kind, empty where nothing loads it, and what says so."""

_LIBRARY = {
    "SentenceTransformer": ENCODER,
    "CrossEncoder": CROSS_ENCODER,
    "SparseEncoder": SPARSE,
    "MultiVectorEncoder": LATE,
    "ColBERT": LATE,  # of PyLate
}
_MODULES = {"LogitScore": "CrossEncoder", "SpladePooling": "SparseEncoder", "MultiVectorMask": "MultiVectorEncoder"}
"""What a module says where no class is stated: folders of older versions of the library."""

_TASKS = {"FEATURE_EXTRACTION": ENCODER, "CAUSAL_LM": YES_NO, "SEQ_2_SEQ_LM": MONO_T5}
"""What an adapter's ``task_type`` says; that of a classifier depends on its base."""


class _TypedModule(Strict):
    type: str = ""


def stated_kind(root: Path, config: dict[str, Any], architecture: str, base: str | None) -> Stated:
    """Return the kind of the model in a folder; ``config`` and ``architecture`` are those of its transformer.

    ``base`` names the base model of an adapter.
    """
    adapted = f", an adapter of {base}" if base else ""
    if (root / "modules.json").is_file():
        kind, because = _of_modules(root)
        return kind, f"{because}{adapted}"
    if base and "checkpoint_version" in read_settings(root / "unimoe.json"):
        return CHECKPOINT, f"unimoe.json: a checkpoint of an arm{adapted}"
    settings = read_settings(transformer_folder(root) / ADAPTER_SETTINGS)
    task = settings.get("task_type") if base else None
    if task in _TASKS:
        return _TASKS[task], f"{ADAPTER_SETTINGS}: task_type {task}{adapted}"
    of_class = task == "SEQ_CLS"
    kind, because = _of_adapted_classifier(config, architecture) if of_class else _of_config(root, config, architecture)
    return kind, f"{ADAPTER_SETTINGS}: task_type {task}{adapted}, {because}" if base else because


def _of_modules(root: Path) -> Stated:
    """Return what ``modules.json`` and the library's settings next to it say."""
    modules = read_json(root / "modules.json", list[_TypedModule], "save the model with save_pretrained()")
    parts = [module.type.rpartition(".")[2] for module in modules]
    stated = read_settings(root / "config_sentence_transformers.json")
    older = "ColBERT" if "query_prefix" in stated else "SentenceTransformer"  # of PyLate, before there were types
    older = next((_MODULES[part] for part in parts if part in _MODULES), older)
    name = str(stated.get("model_type", older))
    files = "modules.json and config_sentence_transformers.json" if "model_type" in stated else "modules.json"
    because = f"{files}: a {name} of {', '.join(parts)}"
    return _LIBRARY.get(name, ""), because if name in _LIBRARY else f"{because}, which unimoe does not know"


def _of_config(root: Path, config: dict[str, Any], architecture: str) -> Stated:
    """Return what a ``config.json`` of transformers says."""
    if not config:
        return "", f"{root} holds neither modules.json nor config.json: save the model with save_pretrained()"
    if not architecture:
        return "", "config.json names no architecture"
    a = f"config.json: a {architecture}"
    if "sentence_transformers" in config:
        return CROSS_ENCODER, f"{a} with an entry of sentence-transformers, a CrossEncoder's"
    for ending, read in _READERS.items():
        if architecture.endswith(ending):
            kind, because = read(config, architecture)
            return kind, because if not kind or not _is_own(config, architecture) else f"{because}, by code of its own"
    if _is_own(config, architecture):
        return "", f"{a}, {OWN_CODE}: {ELSEWHERE}"
    return "", f"{a}, which is no kind that unimoe loads: {ELSEWHERE}"


def _is_own(config: dict[str, Any], architecture: str) -> bool:
    """Return whether a model's class comes with the model."""
    return bool(config.get("auto_map")) and not _known(architecture)


def _known(name: str) -> bool:
    import transformers

    return name in dir(transformers)


def is_decoder(model_type: object) -> bool:
    """Return whether transformers knows models of a type as causal language models, and not as masked ones."""
    from transformers.models.auto import modeling_auto

    causal, masked = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return model_type in causal and model_type not in masked and model_type != "xlnet"  # which reads both ways


def _of_adapted_classifier(config: dict[str, Any], architecture: str) -> Stated:
    a = f"config.json: a {architecture}"
    decoder = is_decoder(config.get("model_type")) or architecture.endswith("ForCausalLM")
    if decoder and not config.get("is_encoder_decoder"):
        return RANK_LLAMA, f"{a}, a decoder with a score head; the folder names no prompt"
    return CROSS_ENCODER, a


def _of_classifier(config: dict[str, Any], architecture: str) -> Stated:
    decoder = is_decoder(config.get("model_type")) and not config.get("is_encoder_decoder")
    head = ", a decoder with a score head; the folder names no prompt" if decoder else ""
    return CROSS_ENCODER, f"config.json: a {architecture}{head}"


def _of_answers(config: dict[str, Any], architecture: str) -> Stated:
    a = f"config.json: a {architecture}"
    if config.get("is_encoder_decoder"):
        return MONO_T5, f"{a}, an encoder and decoder that answers"
    return "", f"{a}, which reads more than text and is no kind that unimoe loads: name a function by python:"


def _of_bare(config: dict[str, Any], architecture: str) -> Stated:
    decoder = is_decoder(config.get("model_type"))
    return ENCODER, f"config.json: a {architecture}{' (a decoder)' if decoder else ''}; no pooling is stated"


def _of_masked(config: dict[str, Any], architecture: str) -> Stated:
    return ENCODER, f"config.json: a {architecture}; no pooling is stated, and no SparseEncoder (write sparse: for one)"


_READERS: dict[str, Callable[[dict[str, Any], str], Stated]] = {
    "ForSequenceClassification": _of_classifier,
    "ForCausalLM": lambda config, name: (YES_NO, f"config.json: a {name}"),
    "LMHeadModel": lambda config, name: (YES_NO, f"config.json: a {name}"),
    "ForConditionalGeneration": _of_answers,
    "ForMaskedLM": _of_masked,
    "HF_ColBERT": lambda config, name: (LATE, f"config.json: a {name}"),
    "ForRetrieval": lambda config, name: (LATE, f"config.json: a {name}"),
    "ForRanking": lambda config, name: (LISTWISE, f"config.json: a {name}, which scores a whole list"),
    "ForPreTraining": _of_bare,
    "Model": _of_bare,
}
"""What classes say, by how their names end."""
