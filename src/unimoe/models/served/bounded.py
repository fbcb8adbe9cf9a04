"""The HTTP client below ``openai``'s: an answer comes whole, in time and within a size, or is an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import openai

LARGEST_ANSWER = 128 * 2**20
"""Bytes, unpacked: more than 2,048 vectors of 4,096 numbers in OpenAI's notation."""

_PACKED = ("content-encoding", "content-length", "transfer-encoding")
"""Headers of a body as it was sent; ours is unpacked."""


class AnswerTooLargeError(Exception):
    """An answer is larger than any that was asked for."""


class BoundedClient(openai.DefaultAsyncHttpxClient):
    """Sends a request and reads all of its answer.

    Args:
        seconds: for both together; httpx's own timeout begins again with every byte.
        wait: returns when the request's turn has come.
    """

    def __init__(self, seconds: float, wait: Callable[[], Awaitable[None]]) -> None:
        super().__init__(follow_redirects=False)  # a key goes to the address given and to no other
        self._seconds, self._wait = seconds, wait

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Return the answer.

        Raises:
            httpx2.ReadTimeout: it takes too long.
            AnswerTooLargeError: it is too large.
        """
        await self._wait()
        try:
            async with asyncio.timeout(self._seconds):
                answer = await super().send(request, **{**options, "stream": True})
                try:
                    content = await _content(answer)
                finally:
                    await answer.aclose()
        except TimeoutError:
            raise httpx2.ReadTimeout("", request=request) from None
        headers = [(name, value) for name, value in answer.headers.multi_items() if name not in _PACKED]
        return httpx2.Response(answer.status_code, headers=headers, content=content, request=request)


async def _content(answer: httpx2.Response) -> bytes:
    content = bytearray()
    async for part in answer.aiter_bytes():
        content += part
        if len(content) > LARGEST_ANSWER:
            raise AnswerTooLargeError(f"an answer of more than {LARGEST_ANSWER / 2**20:,.0f} MiB")
    return bytes(content)
