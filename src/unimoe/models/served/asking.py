"""Requests to one endpoint of a server, and the check of every answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from unimoe.config.served import ServedConfig
from unimoe.errors import InputError, UsageError
from unimoe.models.served.api import Endpoint
from unimoe.models.served.client import Client, ServerError
from unimoe.models.served.usage import Usage, usage_of

Value = TypeVar("Value")


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

    def ask(self, requests: Sequence[tuple[int, dict[str, Any]]]) -> Iterator[tuple[list[Value], Usage]]:
        """Send requests at once and yield the values and the cost of each, in their order.

        Args:
            requests: number of items and body of each.

        Raises:
            InputError: the server does not answer, or not with a value for each item; carries the item's index.
        """
        endpoint, begin = self._endpoint, 0
        futures = [self._client.ask(endpoint.path, body, from_root=endpoint.from_root) for _, body in requests]
        try:
            for (count, _), future in zip(requests, futures, strict=True):
                try:
                    answer = future.result()
                    rows = endpoint.rows.values(answer, count)
                    values = [self._read(row, index) for index, row in enumerate(rows)]
                except ServerError as error:
                    raise InputError(begin, str(error)) from None
                except InputError as error:
                    said = "answered with the key" if self._client.told_key(answer) else error.reason
                    line = self._client.error(f"{said}; check served.api, and the server's log")
                    raise InputError(begin + error.index, str(line)) from None
                yield values, usage_of(answer, self._settings)
                begin += count
        finally:
            for future in futures:  # after an error: what is not sent yet costs nothing
                future.cancel()
