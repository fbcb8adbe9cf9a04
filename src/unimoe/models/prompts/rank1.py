"""Rank1's prompt, which opens a thought (Weller et al. 2025), and one for models that think in a chat template."""

from __future__ import annotations

from typing import Any

from unimoe.config import TEMPLATES, PromptConfig
from unimoe.models.prompts.chat import ChatTemplate


class Rank1Template:
    """The question, query and passage, without a conversation; the answer follows the thought at once."""

    answers = (" true", " false")
    after_thought = ""

    def __init__(self, prompt: PromptConfig) -> None: ...

    def conversation(self, tokenizer: Any) -> tuple[str, str]:
        """Return the question and the beginning of a thought."""
        question = "Determine if the following passage is relevant to the query. Answer only with 'true' or 'false'.\n"
        return question, "\n<think>"

    def before_document(self, query: str) -> str:
        """Return the query."""
        return f"Query: {query}\nPassage: "

    def around_document(self) -> tuple[str, str]:
        """Return the names of the fields."""
        return "Passage: ", "\nQuery: "


class ThinkingTemplate(ChatTemplate):
    """The chat template of a model that thinks, with its thought begun."""

    thinks, after_thought = True, "\n\n"

    def conversation(self, tokenizer: Any) -> tuple[str, str]:
        """Return what is around the user's message."""
        before, after = super().conversation(tokenizer)
        return before, after if "<think>" in after else f"{after}<think>\n"


TEMPLATES.add("rank1", Rank1Template)
TEMPLATES.add("think", ThinkingTemplate)
