"""Models whose class comes with them, as code of their own: what is said where it may not run, or gives no scores."""

from __future__ import annotations

from typing import Any

from unimoe.core.errors import DataError

TRUST = "read that code, and set model.trust_remote_code=true to run it"
ELSEWHERE = "score with it by python:MODULE:FUNCTION, which takes any scorer of pairs"
"""What is left to do about a reranker that unimoe cannot run."""

OWN_CODE = (
    "a class that transformers does not have: its own code would be needed (model.trust_remote_code), and gives no "
    "scores that unimoe knows"
)
_ASKED = ("ForCausalLM", "ForSequenceClassification", "ForConditionalGeneration")


def refuse_unknown_class(where: str, name: str, *, trusted: bool) -> None:
    """Raise a ``DataError`` about a reranker of a class that transformers does not have, unless its code may run.

    Without that code transformers would build another class by the same settings, or none. With it, the class must be
    one of the kinds that unimoe knows how to ask.
    """
    import transformers

    if not name or name in dir(transformers) or (trusted and name.endswith(_ASKED)):
        return
    if not name.endswith(_ASKED):
        raise DataError(f"{where}: a {name}, {OWN_CODE}; {ELSEWHERE}")
    raise DataError(
        f"{where}: a {name}, a class that transformers does not have, so that its own code would be needed; {TRUST}, "
        f"or {ELSEWHERE}"
    )


def or_own_code(model: Any) -> str:
    """Return what a message adds about a model that lacks weights, whose own code may be what reads them."""
    return f"; or {TRUST}" if getattr(model.config, "auto_map", None) else ""
