"""Requests to one endpoint of a server, and the check of every answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from typing import Any, Generic, NamedTuple, TypeVar

from unimoe.config.served import ServedConfig
from unimoe.core.errors import InputError, UsageError
from unimoe.models.served.api import Endpoint
from unimoe.models.served.client import Client, ServerError
from unimoe.models.served.usage import Usage, usage_of

Value = TypeVar("Value")


class Request(NamedTuple):
    """A request about some items of a list: the index of the first, how many they are, and the body."""

    begin: int
    items: int
    body: dict[str, Any]


class Asker(Generic[Value]):
    """Asks an endpoint about items and returns a value for each.

    Args:
        client: the server's.
        settings: how it is asked.
        endpoint: what is asked.
        read: returns the value of a row, given with its index; raises an ``InputError`` that carries the index.

    Attributes:
        batch: items of one request.

    Raises:
        UsageError: the settings ask for larger requests than the API takes.
    """

    def __init__(
        self, client: Client, settings: ServedConfig, endpoint: Endpoint, read: Callable[[Any, int], Value]
    ) -> None:
        self._client, self._settings, self._endpoint, self._read = client, settings, endpoint, read
        self.batch, largest = settings.batch or endpoint.batch, endpoint.largest_batch
        if largest is not None and self.batch > largest:
            raise UsageError(f"served.batch {self.batch}: {settings.api} takes {largest} at most; lower it")

    def ask(self, requests: Sequence[Request]) -> Iterator[tuple[int, list[Value], Usage]]:
        """Send requests at once; yield number, values and cost of each as soon as it is answered.

        After an error no more are sent, and those under way are yielded before it is raised: they are paid for.

        Raises:
            InputError: the server does not answer, or not with a value for each item; carries the item's index.
        """
        path, from_root, stopped = self._endpoint.path, self._endpoint.from_root, threading.Event()
        futures = {
            self._client.ask(path, request.body, from_root=from_root, unwanted=stopped.is_set): number
            for number, request in enumerate(requests)
        }
        errors: list[InputError] = []
        try:
            for future in as_completed(futures):
                number = futures[future]
                try:
                    if not future.cancelled():
                        yield number, *self._values(future, requests[number])
                except InputError as error:
                    stopped.set()
                    errors.append(error)
        finally:
            for future in futures:  # of a caller that left
                future.cancel()
        if errors:
            raise min(errors, key=lambda error: error.index)

    def _values(self, future: Future[Any], request: Request) -> tuple[list[Value], Usage]:
        try:
            answer = future.result()
            rows = self._endpoint.rows.values(answer, request.items)
            values = [self._read(row, index) for index, row in enumerate(rows)]
        except ServerError as error:
            raise InputError(request.begin, str(error)) from None
        except InputError as error:
            said = "answered with the key" if self._client.repeats_key(answer) else error.reason
            line = self._client.error(f"{said}; check served.api, and the server's log")
            raise InputError(request.begin + error.index, str(line)) from None
        return values, usage_of(answer, self._settings)
