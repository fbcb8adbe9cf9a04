"""What a template of a reranker's prompt is: all text around a query and a document, in either order."""

from __future__ import annotations

from typing import Any, Protocol

from unimoe.config import PromptConfig


class Template(Protocol):
    """The text of a yes/no prompt about a pair.

    A prompt is the beginning of a conversation, a body that holds query and document, and the end after which the model
    answers. The parts of the conversation are tokenized apart from the body.

    Made from the ``prompt`` section of a config.
    """

    def __init__(self, prompt: PromptConfig) -> None: ...

    def conversation(self, tokenizer: Any) -> tuple[str, str]:
        """Return the text before the body and the text after it.

        Raises:
            UsageError: the tokenizer cannot write the conversation.
        """

    def before_document(self, query: str) -> str:
        """Return the body up to the document, where the query comes first."""

    def around_document(self) -> tuple[str, str]:
        """Return the text before the document and that between it and the query, where the document comes first."""
