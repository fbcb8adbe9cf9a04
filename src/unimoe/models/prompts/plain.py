"""A prompt without a conversation around it, for models that are trained before they are used."""

from __future__ import annotations

from typing import Any

from unimoe.config import TEMPLATES, PromptConfig


class PlainTemplate:
    """Names of the fields alone, after the instruction unless it is empty; see ``Template``.

    Without an instruction it takes some 10 tokens in addition to query and document, a chat template 30 to 40.
    """

    def __init__(self, prompt: PromptConfig) -> None:
        self._separator = prompt.field_separator
        self._instruction = f"{prompt.instruction}{prompt.field_separator}" if prompt.instruction else ""

    def conversation(self, tokenizer: Any) -> tuple[str, str]:
        """Return nothing before the pair, and the name of the answer after it."""
        return "", "\nRelevant:"

    def before_document(self, query: str) -> str:
        """Return instruction and query."""
        return f"{self._instruction}Query: {query}{self._separator}Document: "

    def around_document(self) -> tuple[str, str]:
        """Return the instruction, and what comes before the query."""
        return f"{self._instruction}Document: ", f"{self._separator}Query: "


TEMPLATES.add("plain", PlainTemplate)
