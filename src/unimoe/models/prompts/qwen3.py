"""The prompt of Qwen3-Reranker, exactly as its model card gives it."""

from __future__ import annotations

from typing import Any

from unimoe.config import TEMPLATES, PromptConfig

_PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class Qwen3Template:
    """The prompt of Qwen3-Reranker; see ``Template``."""

    def __init__(self, prompt: PromptConfig) -> None:
        self._separator = prompt.field_separator
        self._instruct = f"<Instruct>: {prompt.instruction}{prompt.field_separator}"

    def conversation(self, tokenizer: Any) -> tuple[str, str]:
        """Return Qwen's system message and the empty thoughts before the answer."""
        return _PREFIX, _SUFFIX

    def before_document(self, query: str) -> str:
        """Return instruction and query."""
        return f"{self._instruct}<Query>: {query}{self._separator}<Document>: "

    def around_document(self) -> tuple[str, str]:
        """Return the instruction, and what comes before the query."""
        return f"{self._instruct}<Document>: ", f"{self._separator}<Query>: "


TEMPLATES.add("qwen3", Qwen3Template)
