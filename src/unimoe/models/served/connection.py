"""HTTP by ``openai``'s client, which tries again after passing failures.

This module alone imports the packages of the extra ``served``.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import openai
from aiolimiter import AsyncLimiter

from unimoe.config.served import ServedConfig
from unimoe.core.errors import DataError, UsageError

_AGAIN = "then run again: what was answered is kept"


class _PacedClient(openai.DefaultAsyncHttpxClient):
    """Paces requests, and bounds the time of a whole answer; httpx's own timeout begins again with every byte."""

    def __init__(self, settings: ServedConfig) -> None:
        super().__init__(follow_redirects=False)  # a key goes to the address given and to no other
        per_minute = settings.requests_per_minute
        # One request at a time through the limiter: none of the bursts that a bucket of a minute's requests allows.
        self._limiter = AsyncLimiter(1, 60 / per_minute) if per_minute else None
        self._seconds = settings.timeout

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if self._limiter:
            await self._limiter.acquire()
        try:
            async with asyncio.timeout(self._seconds):
                return await super().send(request, **options)
        except TimeoutError:
            raise httpx2.ReadTimeout("", request=request) from None


class Connection:
    """Sends requests to one server."""

    def __init__(self, url: str, key: str | None, settings: ServedConfig) -> None:
        self._key, self._settings = key, settings
        try:
            self._client = openai.AsyncOpenAI(
                api_key=key or "none",
                base_url=url,
                timeout=settings.timeout,
                max_retries=settings.retries,
                http_client=_PacedClient(settings),
            )
        except Exception:  # of many kinds; their messages may hold a proxy's password
            raise UsageError(
                f"{url}: no address of a server, or the environment's settings for connections cannot be used "
                "(HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE, SSL_CERT_DIR); write https://HOST/v1, "
                "and correct or unset them (a SOCKS proxy needs the package socksio)"
            ) from None
        self._client.organization = self._client.project = None  # those of OPENAI_ORG_ID are another server's
        self._headers: Any = {"Authorization": f"Bearer {key}" if key else openai.Omit()}

    async def post(self, url: str, body: dict[str, Any]) -> Any:
        """Return the answer to a request as JSON values; raise a ``DataError`` with a remedy where there is none."""
        try:
            return await self._client.post(url, cast_to=object, body=body, options={"headers": self._headers})
        except (openai.OpenAIError, ValueError) as failure:  # the last: JSON that is cut
            raise DataError(self._reason(failure)) from None

    def said(self, error: Exception | str) -> str:
        """Return a message in one short line, without the key."""
        text = " ".join(str(error).split()) or type(error).__name__
        if self._key:
            text = text.replace(self._key, "***")
        return text if len(text) <= 200 else f"{text[:117]}...{text[-80:]}"

    def _reason(self, failure: Exception) -> str:
        """Return why a request has no answer, and the remedy."""
        settings, said = self._settings, self.said(failure)
        match failure:
            case openai.APITimeoutError():
                tries = f"no answer within {settings.timeout:g} s (tries: {settings.retries + 1})"
                return f"{tries}; raise served.timeout or lower served.requests_in_flight, {_AGAIN}"
            case openai.APIConnectionError(__cause__=cause):
                said = self.said(cause) if isinstance(cause, Exception) else said
                return f"no connection ({said}); check the address, and that the server runs, {_AGAIN}"
            case openai.APIStatusError(status_code=status):
                return f"{'' if str(status) in said else f'{status} '}{said}; {_remedy(status, settings)}"
            case openai.OpenAIError():
                return f"{said}; look at the server's log, {_AGAIN}"
        return f"an answer that is no JSON, or not all of it ({said}); look at the server's log, {_AGAIN}"


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
