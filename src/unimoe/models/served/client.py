"""The client of a server: it checks every answer, and counts what the answers cost."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar
from urllib.parse import urlsplit

from unimoe.config.served import ServedConfig
from unimoe.core.advice import install_extra
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.models.batching import ahead
from unimoe.models.embedder import Advance
from unimoe.models.served.api import Endpoint

Item = TypeVar("Item")
Value = TypeVar("Value")
Answer = TypeVar("Answer")

Usage = Mapping[str, float]
"""Amounts by name: ``requests``, ``tokens`` and ``searches`` where the server names them, ``price`` if configured."""

_MOST_TOKENS = 1e12  # of one answer

CHARACTERS_PER_TOKEN = 4
"""Of English prose, about."""


class RefusedError(DataError):
    """A server refuses a request for what it says."""


class RefusedInputError(InputError):
    """The same of one of a list of inputs."""


class Client:
    """Asks one server at an address such as ``https://host/v1``; several threads may do so at a time.

    Attributes:
        host: the address without ``http://``, for names.
        usage: what all requests so far cost.

    Raises:
        UsageError: the address cannot be used, or a package of the extra ``served`` is not installed.
    """

    def __init__(self, url: str, settings: ServedConfig) -> None:
        refuse_secrets(url)
        parts = urlsplit(url)
        self.host = f"{parts.netloc}{parts.path}".rstrip("/")
        self.url, self.settings = f"{parts.scheme}://{self.host}", settings
        self.usage: Counter[str] = Counter()
        try:
            from unimoe.models.served.connection import Connection
        except ImportError as error:
            raise UsageError(
                f"a model behind a server needs the package {error.name}; run: {install_extra('served')}"
            ) from None
        self._connection = Connection(self.url, _key(settings), settings)
        self._counting = threading.Lock()
        # In a thread of its own, so that a caller may have an event loop, as notebooks do.
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="unimoe-client", daemon=True).start()

    def ask(
        self, endpoint: Endpoint, read: Callable[[Any, int], Value], count: int, *asked: Any
    ) -> tuple[list[Value], Usage]:
        """Return the values of the ``count`` items of one request, and what they cost.

        ``asked`` are the other arguments of the endpoint's ``body``; ``read`` returns the value of an answer's row,
        given with its index. An ``InputError`` about the answer carries the item's index.
        """
        base = re.sub(r"/v\d+$", "", self.url) if endpoint.from_root else self.url
        post = self._connection.post(base + endpoint.path, endpoint.body(self.settings, *asked))
        try:
            answer = asyncio.run_coroutine_threadsafe(post, self._loop).result()
            values = [read(row, index) for index, row in enumerate(endpoint.rows.values(answer, count))]
        except InputError as error:
            said = self._connection.said(error.reason)
            raise InputError(error.index, self.named(f"{said}; check served.api, and the server's log")) from None
        except DataError as error:  # no answer at all
            kind = RefusedInputError if isinstance(error, RefusedError) else InputError
            raise kind(0, self.named(str(error))) from None
        usage = _usage(answer, self.settings)
        with self._counting:
            self.usage.update(usage)
        return values, usage

    def ask_all(
        self, ask: Callable[[Sequence[Item]], Answer], parts: Sequence[Sequence[Item]], advance: Advance | None = None
    ) -> list[Answer]:
        """Return what ``ask`` returns of each part of a list, asked ``served.requests_in_flight`` at a time.

        After an error or Ctrl-C no more are asked, and those under way are waited for: they are paid for. An
        ``InputError`` of ``ask`` carries the index in its part, and the one raised the index in the list.
        """

        def numbered(begin: int, part: Sequence[Item]) -> Answer:
            try:
                return ask(part)
            except InputError as error:
                raise InputError(begin + error.index, error.reason) from None

        begins = accumulate(map(len, parts), initial=0)
        at_once = self.settings.requests_in_flight
        found = []
        with closing(ahead(lambda place: numbered(*place), zip(begins, parts, strict=False), at_once)) as answers:
            for part, answer in zip(parts, answers, strict=True):
                found.append(answer)
                if advance:
                    advance(len(part))
        return found

    def named(self, reason: str) -> str:
        """Return the message of an error that names the server."""
        return f"{self.url} ({self.settings.model}): {reason}"


@dataclass(frozen=True)
class RequestEstimate:
    """What will be asked of a server: requests, about so many tokens, and their price where there are prices."""

    requests: int
    tokens: int
    price: float | None

    def __str__(self) -> str:
        cost = "" if self.price is None else f", price about {self.price:,.4g}"
        return f"{self.requests:,} requests, about {self.tokens:,} tokens{cost}"


def estimate(
    requests: int, tokens: float, settings: ServedConfig, searches: int = 0, written: float = 0.0
) -> RequestEstimate:
    """Return an estimate with its price; of the tokens so many are written by the model."""
    return RequestEstimate(requests, round(tokens), _price(tokens, written, searches, settings))


def usage_text(usage: Usage) -> str:
    """Return amounts in words."""
    return ", ".join(
        f"price {amount:,.4g}" if name == "price" else f"{amount:,.0f} {name}" for name, amount in usage.items()
    )


def _usage(answer: Any, settings: ServedConfig) -> dict[str, float]:
    """Return what an answer says that it cost (OpenAI's ``usage``, Cohere's ``meta.billed_units``), with its price."""

    def amount(*path: str) -> float:
        found = answer
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        known = isinstance(found, int | float) and 0 < found < _MOST_TOKENS  # what a server says may be anything
        return float(found) if known else 0.0

    tokens = amount("usage", "total_tokens") or amount("meta", "billed_units", "input_tokens")
    searches = amount("meta", "billed_units", "search_units")
    amounts = {"requests": 1.0, "tokens": tokens, "searches": searches}
    found = {name: amount for name, amount in amounts.items() if amount}
    price = _price(tokens, amount("usage", "completion_tokens"), searches, settings)
    return found if price is None else found | {"price": price}


def _price(tokens: float, written: float, searches: float, settings: ServedConfig) -> float | None:
    per_token, per_search = settings.price_per_million_tokens, settings.price_per_thousand_searches
    per_written = settings.price_per_million_written
    if per_token is None and per_search is None and per_written is None:
        return None
    per_token = per_token or 0.0
    more = per_token if per_written is None else per_written
    return (tokens * per_token + written * (more - per_token)) / 1e6 + searches * (per_search or 0.0) / 1e3


def refuse_secrets(url: str) -> None:
    """Raise a ``UsageError`` about what is no address of a server, or holds more than host and path, unseen."""
    try:
        parts = urlsplit(url)
        whole = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        whole = False
    if not whole:
        raise UsageError("this is no address of a server; write https://HOST/v1 or http://HOST:PORT/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            f"{parts.scheme}://{parts.hostname}: the address holds more than host and path; leave credentials out of "
            "it and put the key into the environment variable UNIMOE_API_KEY, or the one that served.key_variable names"
        )


def _key(settings: ServedConfig) -> str | None:
    key = os.environ.get(settings.key_variable, "").strip()
    if not key and "key_variable" in settings.model_fields_set:
        raise UsageError(
            f"served.key_variable: the environment variable {settings.key_variable} is not set; put the server's key "
            "there"
        )
    if not key.isascii() or len(key.split()) > 1:
        raise UsageError(f"the environment variable {settings.key_variable} holds more than a key; set it again")
    return key or None
