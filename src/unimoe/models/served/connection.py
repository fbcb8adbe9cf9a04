"""HTTP by ``openai``'s client, which tries again after passing failures: an answer comes whole, in time and in bounds.

This module alone imports the packages of the extra ``served``.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import httpx2
import openai
from aiolimiter import AsyncLimiter

from unimoe.config.served import ServedConfig
from unimoe.core.errors import DataError, UsageError

LARGEST_ANSWER = 128 * 2**20
"""Bytes, unpacked: more than 2,048 vectors of 4,096 numbers in OpenAI's notation."""

_AGAIN = "then run again: what was answered is kept"
_PACKED = ("content-encoding", "content-length", "transfer-encoding")  # headers of a body as it was sent
_PROXIES, _CERTIFICATES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"), ("SSL_CERT_FILE", "SSL_CERT_DIR")


class AnswerTooLargeError(Exception):
    """An answer is larger than any that was asked for."""


_FAILURES = (openai.OpenAIError, AnswerTooLargeError, ValueError, RecursionError)
"""What a request without an answer ends with; the last two are of JSON that is cut, or nested without end."""


class _BoundedClient(openai.DefaultAsyncHttpxClient):
    """Paces requests, and bounds the time and size of an answer; httpx's own timeout begins again with every byte."""

    def __init__(self, settings: ServedConfig) -> None:
        super().__init__(follow_redirects=False)  # a key goes to the address given and to no other
        per_minute = settings.requests_per_minute
        # One request at a time through the limiter: none of the bursts that a bucket of a minute's requests allows.
        self._limiter = AsyncLimiter(1, 60 / per_minute) if per_minute else None
        self._seconds = settings.timeout

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if self._limiter:
            await self._limiter.acquire()
        content = bytearray()
        try:
            async with asyncio.timeout(self._seconds):
                answer = await super().send(request, **{**options, "stream": True})
                try:
                    async for part in answer.aiter_bytes():
                        content += part
                        if len(content) > LARGEST_ANSWER:
                            raise AnswerTooLargeError(f"an answer of more than {LARGEST_ANSWER / 2**20:,.0f} MiB")
                finally:
                    await answer.aclose()
        except TimeoutError:
            raise httpx2.ReadTimeout("", request=request) from None
        headers = [(name, value) for name, value in answer.headers.multi_items() if name not in _PACKED]
        return httpx2.Response(answer.status_code, headers=headers, content=bytes(content), request=request)


class Connection:
    """Sends requests to one server.

    Raises:
        UsageError: the address or the environment's settings for connections cannot be used.
    """

    def __init__(self, url: str, key: str | None, settings: ServedConfig) -> None:
        self._key, self._settings = key, settings
        try:
            bounded = _BoundedClient(settings)
        except Exception as error:  # of many kinds; their messages may hold a proxy's password
            names = _CERTIFICATES if isinstance(error, OSError) else _PROXIES
            found = [name for name in names if os.environ.get(name) or os.environ.get(name.lower())]
            raise UsageError(
                f"the environment's settings for connections cannot be used ({', '.join(found)}); correct or unset "
                "them (a SOCKS proxy needs the package socksio)"
            ) from None
        try:
            self._client = openai.AsyncOpenAI(
                api_key=key or "none",
                base_url=url,
                timeout=settings.timeout,
                max_retries=settings.retries,
                http_client=bounded,
            )
        except Exception as error:  # a host name or port that httpx alone refuses
            raise UsageError(f"{url}: no address of a server ({error}); write https://HOST/v1") from None
        self._client.organization = self._client.project = None  # those of OPENAI_ORG_ID are another server's

    async def post(self, url: str, body: dict[str, Any]) -> Any:
        """Return the answer to a request as JSON values; raise a ``DataError`` where there is none."""
        headers: Any = {"Authorization": f"Bearer {self._key}" if self._key else openai.Omit()}
        try:
            return await self._client.post(url, cast_to=object, body=body, options={"headers": headers})
        except _FAILURES as failure:
            raise DataError(self._reason(failure)) from None

    def _reason(self, failure: Exception) -> str:
        """Return why a request has no answer, and the remedy."""
        settings = self._settings
        match failure:
            case openai.APITimeoutError():
                return (
                    f"no answer within {settings.timeout:g} s (tries: {settings.retries + 1}); raise served.timeout or "
                    f"lower served.requests_in_flight, {_AGAIN}"
                )
            case openai.APIConnectionError():
                said = self._said(failure.__cause__ or failure)
                return f"no connection ({said}); check the address, and that the server runs, {_AGAIN}"
            case openai.APIStatusError(status_code=status):
                said = self._said(failure)
                return f"{'' if str(status) in said else f'{status} '}{said}; {_remedy(status, settings)}"
            case openai.OpenAIError():
                return f"{self._said(failure)}; look at the server's log, {_AGAIN}"
            case AnswerTooLargeError():
                return f"{failure}; check served.api, and lower served.batch"
        said = self._said(failure)
        return f"an answer that is no JSON, or not all of it ({said}); look at the server's log, {_AGAIN}"

    def _said(self, error: BaseException) -> str:
        """Return the beginning of a message without the key, or the kind of an error without a message."""
        text = " ".join(str(error).split()) or type(error).__name__
        if self._key:
            text = text.replace(self._key, "***")
        return text if len(text) <= 200 else f"{text[:197]}..."


def _remedy(status: int, settings: ServedConfig) -> str:
    if status in {401, 403}:
        return f"put a key that it takes into the environment variable {settings.key_variable}"
    if status in {404, 405}:
        return "check the address (with /v1 or /v2 where the API has one), served.api and served.model"
    if status == 429:
        return f"lower served.requests_per_minute or served.requests_in_flight, {_AGAIN}"
    if status < 500:
        return "check served.api and served.model, and set a lower served.batch or served.max_length if it is too much"
    return f"look at the server's log, {_AGAIN}"
