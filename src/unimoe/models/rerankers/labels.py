"""Which of a classifier's labels says relevant: by their names where they tell, else the last one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unimoe.core.errors import DataError
from unimoe.models.model_files import read_settings

_RELEVANT = {
    "relevant", "yes", "true", "positive", "pos", "entailment", "entailed", "entails", "related", "match", "matching",
    "correct", "duplicate", "paraphrase", "similar", "equivalent", "answer", "good", "1",
}  # fmt: skip
_NOT_RELEVANT = {"no", "false", "negative", "neg", "contradiction", "contradictory", "wrong", "bad", "0"}
_NEGATIONS = ("not", "non", "un", "ir", "in", "dis", "mis", "no")


def counts_against(folder: Path, labels: int) -> bool:
    """Return whether a classifier's score is against the document.

    So is that of a single label which says not relevant, and the logit of label 1 minus that of label 0 where label 0
    is the one that says relevant. Names without a meaning, such as ``LABEL_1``, leave it at label 1.

    Raises:
        DataError: of two labels the names do not tell which says relevant, or ``label2id`` says otherwise.
    """
    path = folder / "config.json"
    names = _label_names(path, labels)
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


def _label_names(path: Path, labels: int) -> list[str] | None:
    """Return the names of all labels in their order; None where the model's settings have none but numbers of ours."""
    settings = read_settings(path)
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
