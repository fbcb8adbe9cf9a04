"""Answers by a chat model behind a server, one request each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from unimoe.config.served import APIS, ServedConfig
from unimoe.core.errors import UsageError
from unimoe.models.prompts.lists import Conversation
from unimoe.models.served.api import API, Rows, reply
from unimoe.models.served.client import CHARACTERS_PER_TOKEN, Client
from unimoe.models.writer import Written


class _Choice(NamedTuple):
    text: str
    cut: bool


def _choice(value: Any, index: int) -> _Choice:
    row = value if isinstance(value, dict) else {}
    return _Choice(reply(row.get("message"), index), row.get("finish_reason") == "length")


class ChatWriter:
    """Writes by a server's chat model; ``client`` counts what all of its answers cost. Otherwise a ``LocalWriter``."""

    place = "a server"

    def __init__(self, url: str, settings: ServedConfig) -> None:
        api: API = APIS[settings.api]
        if api.chat is None:
            raise UsageError(f"served.api {settings.api}: it does not write; use chat")
        self.client = Client(url, settings)
        self.at_once = settings.requests_in_flight
        self._endpoint = replace(api.chat, rows=Rows("choices", None))

    @classmethod
    def named(cls, kind: str, url: str, settings: ServedConfig | None) -> ChatWriter:
        """Return the writer at an address that a model's name holds after its kind."""
        if settings is None:
            how = "--set served.api=chat --set served.model=NAME"
            raise UsageError(f"--model {kind}{url}: say what it serves with {how}")
        return cls(url, settings)

    def fits(self, conversation: Conversation, tokens: int) -> bool:
        """Return whether ``served.max_length`` holds a conversation, at about four characters a token."""
        most = self.client.settings.max_length
        return most is None or self.size(conversation) + tokens <= most

    def size(self, conversation: Conversation) -> int:
        """Return the tokens of a conversation in English, about."""
        return sum(len(message["content"]) for message in conversation) // CHARACTERS_PER_TOKEN

    def write(self, conversation: Conversation, tokens: int, *, thinks: bool = False) -> Written:
        """Return the server's answer; whether it thinks is the server's own setting."""
        (found,), usage = self.client.ask(self._endpoint, _choice, 1, conversation, tokens)
        return Written(found.text, found.cut, usage)
