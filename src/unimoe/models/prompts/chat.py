"""A prompt in the chat template of the model's tokenizer, for any instruct model."""

from __future__ import annotations

from typing import Any

from unimoe.config import TEMPLATES, PromptConfig
from unimoe.core.errors import UsageError
from unimoe.models.model_files import first_line

_BODY_MARK = "\u2063BODY\u2063"


class ChatTemplate:
    """Instruction as system message, query and document as user message; see ``Template``."""

    thinks = False

    def __init__(self, prompt: PromptConfig) -> None:
        self._separator, self._instruction = prompt.field_separator, prompt.instruction

    def conversation(self, tokenizer: Any) -> tuple[str, str]:
        """Return what the tokenizer's chat template writes around the user's message."""
        from jinja2 import TemplateError

        if not tokenizer.chat_template:
            raise UsageError(
                "prompt.template chat: this tokenizer has no chat template; use an instruct model or plain"
            )
        messages = [
            {"role": "system", "content": f'{self._instruction} Answer only "yes" or "no".'},
            {"role": "user", "content": _BODY_MARK},
        ]
        try:
            # Templates of models that can think open their thoughts, unless thinking is off; others ignore it.
            text = tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=self.thinks
            )
        except TemplateError as error:  # some take no system message
            reason = first_line(error)
            raise UsageError(f"prompt.template chat: this chat template refuses ({reason}); use plain") from None
        before, mark, after = text.partition(_BODY_MARK)
        if not mark:
            raise UsageError("prompt.template chat: this chat template drops the user's message; use plain")
        return before, after

    def before_document(self, query: str) -> str:
        """Return the query."""
        return f"Query: {query}{self._separator}Document: "

    def around_document(self) -> tuple[str, str]:
        """Return the names of the fields."""
        return "Document: ", f"{self._separator}Query: "


TEMPLATES.add("chat", ChatTemplate)
