"""HTTP by ``openai``'s client, which tries again after passing failures.

This module alone imports the packages of the extra ``served``.
"""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import httpx2
import openai
from aiolimiter import AsyncLimiter

from unimoe.config.served import APIS, ServedConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.core.limits import shortened
from unimoe.models.served.client import RefusedError

_WIDEST = 16_384 * 24
"""Bytes of the widest vector: so many numbers, with digits, exponent and comma."""

_SCORE = 4_096
"""Bytes of a score with its row."""

_AGAIN = "then run again: what was answered is kept"


_OF_THE_WIRE = ("content-encoding", "content-length", "transfer-encoding")
"""Headers that tell how an answer was sent, and nothing of its unpacked content."""


class _TooLongError(openai.OpenAIError):
    """An answer above its limit; the openai client sends no such request again."""


class _PacedClient(openai.DefaultAsyncHttpxClient):
    """Paces requests, and bounds time and size of a whole answer.

    httpx's own timeout begins again with every byte, and it unpacks whatever comes.
    """

    def __init__(self, settings: ServedConfig, longest: int) -> None:
        super().__init__(
            follow_redirects=False,  # a key goes to the address given and to no other
            headers={"Accept-Encoding": "gzip"},
        )
        per_minute = settings.requests_per_minute
        # One request at a time through the limiter: none of the bursts that a bucket of a minute's requests allows.
        self._limiter = AsyncLimiter(1, 60 / per_minute) if per_minute else None
        self._seconds = settings.timeout
        self._longest = longest

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if self._limiter:
            await self._limiter.acquire()
        try:
            async with asyncio.timeout(self._seconds):
                response = await super().send(request, **{**options, "stream": True})
                try:
                    # An answer may hold the texts that it is about, each byte of them as an escape of six.
                    content = await _content(response, self._longest + 6 * len(request.content))
                finally:
                    await response.aclose()
        except TimeoutError:
            raise httpx2.ReadTimeout("", request=request) from None
        headers = [(name, value) for name, value in response.headers.multi_items() if name not in _OF_THE_WIRE]
        return httpx2.Response(
            response.status_code, headers=headers, content=content, request=request, extensions=response.extensions
        )


async def _content(response: httpx2.Response, most: int) -> bytes:
    """Return an answer's content, unpacked as it comes, so that no more than ``most`` bytes are ever held."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise _TooLongError(f"an answer packed by {shortened(encoding)}, which was not asked for; look at the server")
    unpacker, content = zlib.decompressobj(16 + zlib.MAX_WBITS) if encoding == "gzip" else None, bytearray()
    async for chunk in response.aiter_raw():
        try:
            content += unpacker.decompress(chunk, most + 1 - len(content)) if unpacker else chunk
        except zlib.error as error:
            raise httpx2.DecodingError(str(error), request=response.request) from None
        if len(content) > most:
            raise _TooLongError(
                f"an answer of more than {most / 2**20:,.1f} MiB, which no answer to this request has; check the "
                "address, served.api and served.batch, and look at the server"
            )
    return bytes(content)


class Connection:
    """Sends requests to one server."""

    def __init__(self, url: str, key: str | None, settings: ServedConfig) -> None:
        self._key, self._settings = key, settings
        api = APIS[settings.api]
        items = max(one.items(settings) for one in (api.rerank, api.prompts, api.embed, api.chat) if one)
        longest = 2**20 + items * (_WIDEST if api.embed else _SCORE)
        try:
            self._client = openai.AsyncOpenAI(
                api_key=key or "none",
                base_url=url,
                timeout=settings.timeout,
                max_retries=settings.retries,
                http_client=_PacedClient(settings, longest),
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
        """Return the answer to a request as JSON values; raise a ``DataError`` with a remedy where there is none.

        It is a ``RefusedError`` where the server wants no such request.
        """
        try:
            return await self._client.post(url, cast_to=object, body=body, options={"headers": self._headers})
        except (openai.OpenAIError, ValueError) as failure:  # the last: JSON that is cut
            kind = RefusedError if getattr(failure, "status_code", None) in (400, 413, 422) else DataError
            raise kind(self._reason(failure)) from None

    def said(self, error: Exception | str) -> str:
        """Return a message in one short line, without the key."""
        text = " ".join(str(error)[:100_000].split()) or type(error).__name__
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
            case _TooLongError():
                return said
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
    if status < 500 and status not in {408, 409}:
        return "check served.api and served.model, and set a lower served.batch or served.max_length if it is too much"
    return f"look at the server's log, {_AGAIN}"
