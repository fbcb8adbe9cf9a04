"""What the folder of a classifier says, or does not: which label says relevant, and how pairs were put to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unimoe.config import PromptConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.models.folder import ModelFolder
from unimoe.models.identity import read_settings
from unimoe.models.kinds import is_decoder

_RELEVANT = {
    "relevant", "relevance", "yes", "true", "positive", "pos", "entailment", "entailed", "entails", "related", "match",
    "matching", "correct", "duplicate", "paraphrase", "similar", "equivalent", "answer", "good", "1",
}  # fmt: skip
_NOT_RELEVANT = {"no", "false", "negative", "neg", "contradiction", "contradictory", "wrong", "bad", "0"}
_NEGATIONS = ("not", "non", "un", "ir", "in", "dis", "mis", "no")


def reads_prompt(folder: ModelFolder, prompt: PromptConfig) -> bool:
    """Return whether the pairs of a classifier become a prompt of ours: it was made of a causal reranker.

    A conversion keeps the causal model's head on yes and no as the head of a classifier, and its folder does not say
    what it was asked. That is ``prompt.template``, if it is set. What sentence-transformers has saved is read as that
    library reads it.

    Raises:
        UsageError: nothing says what it was asked.
    """
    if not folder.architecture.endswith("ForSequenceClassification") or not is_decoder(folder.model_type):
        return False
    if _saved_by_library(folder):
        return False
    if "template" in prompt.model_fields_set:
        return True
    # A library's entry in settings that it saved, which a conversion may have kept; and what was not run in batches.
    if "sentence_transformers" in folder.config or folder.config.get("pad_token_id") is None:
        return False
    raise UsageError(
        f"{folder.name}: a {folder.architecture}, which does not say how pairs were put to it: if it was converted "
        "from a causal reranker, such as Qwen3's, give its prompt by --set prompt.template=qwen3 (or another); write "
        "rankllama: if it reads as RankLLaMA; save it by sentence-transformers' CrossEncoder if it reads bare pairs"
    )


def bare_pairs(folder: ModelFolder) -> tuple[str, ...]:
    """Return the caveat of a decoder that is shown bare pairs, without a word of its folder on how it was asked."""
    stated = _saved_by_library(folder) or "sentence_transformers" in folder.config
    if stated or not is_decoder(folder.model_type) or has_chat_template(folder):
        return ()
    return (f"{folder.name}: pairs were put to it bare; if it was made of a causal reranker, set prompt.template",)


def has_chat_template(folder: ModelFolder) -> bool:
    """Return whether a model's tokenizer comes with a chat template."""
    place = folder.tokenizer_root
    return any(place.glob("chat_template*")) or bool(
        read_settings(place / "tokenizer_config.json").get("chat_template")
    )


def _saved_by_library(folder: ModelFolder) -> bool:
    return any((folder.root / name).is_file() for name in ("modules.json", "config_sentence_transformers.json"))


def counts_against(folder: ModelFolder, labels: int) -> bool:
    """Return whether a classifier's score is against the document.

    So is that of a single label which says not relevant, and the logit of label 1 minus that of label 0 where label 0
    is the one that says relevant. Names without a meaning, such as ``LABEL_1``, leave it at label 1.

    Raises:
        DataError: of two labels the names do not tell which says relevant, or ``label2id`` says otherwise.
    """
    path = folder.whole.inner / "config.json"
    names = _label_names(path, folder.config, labels)
    if names is None:
        return False
    meant = [_says_relevant(name) for name in names]
    if labels == 1:
        return meant[0] is False
    if {*meant} != {True, False}:
        raise DataError(
            f"{path}: its labels {names[0]!r} and {names[1]!r} do not tell which one says relevant; name them in "
            "id2label, such as not_relevant and relevant"
        )
    return meant == [True, False]


def turned_around(folder: ModelFolder) -> str:
    """Return in words that a classifier's scores are against documents; empty where they are not."""
    named = folder.config.get("id2label") or folder.config.get("label2id")
    labels = len(named) if isinstance(named, Mapping) else 0
    if labels not in (1, 2) or not counts_against(folder, labels):
        return ""
    names = _label_names(folder.whole.inner / "config.json", folder.config, labels) or [""]
    return f"scores are turned around, since label 0 is {names[0]!r}"


def _label_names(path: Path, settings: Mapping[str, Any], labels: int) -> list[str] | None:
    """Return the names of all labels in their order; None where the model's settings have none but numbers of ours."""
    by_id, by_name = settings.get("id2label"), settings.get("label2id")
    found = [names for names in (_in_order(by_id, labels), _in_order(_turned(by_name), labels)) if names]
    if len(found) == 2 and found[0] != found[1]:
        raise DataError(f"{path}: id2label says {by_id}, and label2id {by_name}; correct the one that is wrong")
    return found[0] if found else None


def _in_order(names: Any, labels: int) -> list[str] | None:
    if not isinstance(names, Mapping) or {str(key) for key in names} != {str(index) for index in range(labels)}:
        return None
    found = {str(key): str(name) for key, name in names.items()}
    ordered = [found[str(index)] for index in range(labels)]
    # What transformers writes where nobody has given names, and what says nothing where there is no other.
    numbered = all(_word(name) == str(index) for index, name in enumerate(ordered))
    return None if numbered else ordered


def _turned(ids: Any) -> Any:
    return {index: name for name, index in ids.items()} if isinstance(ids, Mapping) else None


def _says_relevant(name: str) -> bool | None:
    """Return what a name says, whatever its case and separators; None where it says neither."""
    word = _word(name)
    if word in _RELEVANT:
        return True
    negated = any(word.startswith(start) and word.removeprefix(start) in _RELEVANT for start in _NEGATIONS)
    return False if negated or word in _NOT_RELEVANT else None


def _word(name: str) -> str:
    return "".join(re.findall(r"[^\W_]+", name)).casefold().removeprefix("label").removeprefix("is")
