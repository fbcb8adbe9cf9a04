"""The client of a server: it sends a bounded number of requests at a time, and checks and hands on every answer."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from unimoe.config.served import ServedConfig
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.models.embedder import Advance
from unimoe.models.served.api import Endpoint
from unimoe.models.served.usage import Usage, add_usage, usage_of

Value = TypeVar("Value")
Kept = TypeVar("Kept")


class Part(NamedTuple, Generic[Value, Kept]):
    """A part of a list of items: what one request asks, unless its answer was kept.

    Attributes:
        items: how many.
        asked: the other fields of the request's body.
        keep: makes of the values of all items and what they cost what ``Client.ask`` returns, and writes it; an
            ``InputError`` carries an index in the part.
        kept: the same where it was written before; None to ask.
    """

    items: int
    asked: tuple[Any, ...]
    keep: Callable[[list[Value], Usage], Kept]
    kept: Kept | None = None


class Client:
    """Asks one server.

    Args:
        url: its address, as ``https://host/v1``.
        settings: how it is asked.

    Attributes:
        host: the address without ``http://``, for names.
        usage: what all requests so far cost, by name.

    Raises:
        UsageError: the address cannot be used, or a package of the extra ``served`` is not installed.
    """

    def __init__(self, url: str, settings: ServedConfig) -> None:
        refuse_secrets(url)
        parts = urlsplit(url)
        self.host = f"{parts.netloc}{parts.path}".rstrip("/")
        self.url, self.settings = f"{parts.scheme}://{self.host}", settings
        self.usage: dict[str, float] = {}
        self._key = _key(settings)
        try:
            from unimoe.models.served.connection import Connection
        except ImportError as error:
            raise UsageError(
                f"a model behind a server needs the package {error.name}; run: uv sync --extra served "
                "(or pip install 'unimoe[served]')"
            ) from None
        self._connection = Connection(self.url, self._key, settings)
        # In a thread of its own, so that a caller may have an event loop, as notebooks do.
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="unimoe-client", daemon=True).start()

    def ask(
        self,
        endpoint: Endpoint,
        read: Callable[[Any, int], Value],
        parts: Iterable[Part[Value, Kept]],
        advance: Advance | None = None,
    ) -> list[Kept]:
        """Ask about the parts of a list, ``served.requests_in_flight`` at a time; keep each as soon as it is answered.

        After an error or Ctrl-C no more are asked, and those under way are kept first: they are paid for.

        Args:
            endpoint: the path to which the request goes.
            read: returns the value of an answer's row, given with its index; an ``InputError`` carries the index.
            parts: made when their turn has come.
            advance: called with the items of each part.

        Returns:
            What was kept of each part, in their order.

        Raises:
            InputError: the server does not answer, or not with a value for each item; carries the index in the list.
        """
        base = re.sub(r"/v\d+$", "", self.url) if endpoint.from_root else self.url
        found: dict[int, Kept] = {}
        waiting: dict[Future[Any], tuple[int, Part[Value, Kept]]] = {}
        errors: list[BaseException] = []

        def take(begin: int, part: Part[Value, Kept], kept: Kept) -> None:
            found[begin] = kept
            if advance:
                advance(part.items)

        def collect(answered: Iterable[Future[Any]]) -> None:
            for future in answered:
                begin, part = waiting.pop(future)
                try:
                    values, usage = self._values(endpoint, read, part.items, future)
                    add_usage(self.usage, usage)
                    take(begin, part, part.keep(values, usage))
                except InputError as error:
                    errors.append(InputError(begin + error.index, error.reason))
                except BaseException as error:  # the other answers are worth keeping
                    errors.append(error)

        begin = 0
        try:
            for part in parts:
                if part.kept is not None:
                    take(begin, part, part.kept)
                else:
                    post = self._connection.post(base + endpoint.path, endpoint.body(self.settings, *part.asked))
                    waiting[asyncio.run_coroutine_threadsafe(post, self._loop)] = begin, part
                begin += part.items
                if len(waiting) >= self.settings.requests_in_flight:
                    collect(wait(waiting, return_when=FIRST_COMPLETED).done)
                if errors:
                    break
        finally:
            collect(as_completed(list(waiting)))
        if errors:
            raise min(errors, key=lambda error: getattr(error, "index", -1))
        return [found[begin] for begin in sorted(found)]

    def named(self, reason: str) -> str:
        """Return the message of an error that names the server."""
        return f"{self.url} ({self.settings.model}): {' '.join(reason.split())}"

    def _values(
        self, endpoint: Endpoint, read: Callable[[Any, int], Value], items: int, answered: Future[Any]
    ) -> tuple[list[Value], Usage]:
        answer: Any = None
        try:
            answer = answered.result()
            rows = endpoint.rows.values(answer, items)
            return [read(row, index) for index, row in enumerate(rows)], usage_of(answer, self.settings)
        except InputError as error:
            said = "answered with the key" if self._repeats_key(answer) else error.reason
            raise InputError(error.index, self.named(f"{said}; check served.api, and the server's log")) from None
        except DataError as error:  # no answer at all
            raise InputError(0, self.named(str(error))) from None

    def _repeats_key(self, answer: Any) -> bool:
        """Return whether no part of an answer may be shown."""
        try:
            return self._key is not None and self._key in str(answer)
        except RecursionError:  # too many lists within lists to tell
            return True


def refuse_secrets(url: str) -> None:
    """Refuse what is no address of a server, or holds more than host and path, without repeating it.

    Raises:
        UsageError: it is one of these.
    """
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
