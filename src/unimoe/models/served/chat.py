"""Answers by a chat model behind a server, one request each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from unimoe.config.served import APIS, ServedConfig
from unimoe.core.errors import UsageError
from unimoe.models.lists import BEGIN_OF_THOUGHT, END_OF_THOUGHT
from unimoe.models.prompts.lists import Conversation, control_tokens
from unimoe.models.served.api import API, reply
from unimoe.models.served.client import Client
from unimoe.models.writer import Ask, Written


class ChatWriter:
    """Writes by a server's chat model; ``client`` counts what all of its answers cost. Otherwise a ``LocalWriter``."""

    place, control = "a server", control_tokens()

    def __init__(self, url: str, settings: ServedConfig) -> None:
        api: API = APIS[settings.api]
        if api.chat is None:
            raise UsageError(f"served.api {settings.api}: it does not write; use chat")
        self.client = Client(url, settings)
        self.room, self.at_once = settings.max_length, settings.requests_in_flight
        # Whole rows: beside the message of one is whether it is whole.
        self._message, self._endpoint = api.chat.rows.value, replace(api.chat, rows=replace(api.chat.rows, value=None))

    @classmethod
    def named(cls, kind: str, url: str, settings: ServedConfig | None) -> ChatWriter:
        """Return the writer at an address that a model's name holds after its kind."""
        if settings is None:
            how = "--set served.api=chat --set served.model=NAME"
            raise UsageError(f"--model {kind}{url}: say what it serves with {how}")
        return cls(url, settings)

    def ask(self, conversation: Conversation, tokens: int) -> Ask:
        """Return a conversation with its tokens, about: four bytes each in English, three in other scripts."""
        texts = [message["content"] for message in conversation]
        sizes = (len(text) / 4 if text.isascii() else len(text.encode()) / 3 for text in texts)
        return Ask(conversation, tokens, round(sum(sizes)) + tokens)

    def together(self, asks: Sequence[Ask]) -> int:
        """Return how many, of the first ones, one request is about: one."""
        return min(1, len(asks))

    def write(self, asks: Sequence[Ask]) -> list[Written]:
        """Return the server's answers; whether it thinks is the server's own setting."""
        written = []
        for ask in asks:
            ((text, cut),), usage = self.client.ask(self._endpoint, self._read, 1, ask.conversation, ask.tokens)
            written.append(Written(text, cut, usage))
        return written

    def _read(self, value: Any, index: int) -> tuple[str, bool]:
        """Return an answer, before it the thought that a server gives apart, and whether it ran out of tokens."""
        row = value if isinstance(value, dict) else {}
        message: Any = row if self._message is None else row.get(self._message)
        text = reply(message, index)
        thoughts = (message.get(key) for key in ("reasoning_content", "reasoning"))  # of vLLM, DeepSeek; of OpenRouter
        if thought := next((one for one in thoughts if isinstance(one, str) and one), ""):
            text = f"{BEGIN_OF_THOUGHT}{thought}" + (f"{END_OF_THOUGHT}{text}" if text else "")
        return text, row.get("finish_reason") == "length"
