"""The client of a server: requests at a bounded number and rate, sent again after passing failures.

The requests are those of ``openai``'s client, whose ``post`` reaches any address. It runs in a thread of its own, so
that a caller may have an event loop, as notebooks do, or several threads.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit

from unimoe.config.served import ServedConfig
from unimoe.core.errors import DataError, UsageError

_AGAIN = "then run again: what was answered is kept"
_PROXIES, _CERTIFICATES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"), ("SSL_CERT_FILE", "SSL_CERT_DIR")


class ServerError(DataError):
    """A server did not answer, or not as it should; the message names it and the remedy."""


class Client:
    """Asks one server.

    Args:
        url: its address, as ``https://host/v1``.
        settings: how it is asked.

    Attributes:
        host: the address without ``http://``, for names.

    Raises:
        UsageError: the address cannot be used, or the package ``openai`` is not installed.
    """

    def __init__(self, url: str, settings: ServedConfig) -> None:
        refuse_secrets(url)
        parts = urlsplit(url)
        self.host = f"{parts.netloc}{parts.path}".rstrip("/")
        self.url = f"{parts.scheme}://{self.host}"
        self._settings = settings
        self._key = _key(settings)
        self._post = _post_function(self.url, self._key, settings)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="unimoe-client", daemon=True).start()

    def ask(
        self, path: str, body: dict[str, Any], *, from_root: bool = False, unwanted: Callable[[], bool] = lambda: False
    ) -> Future[Any]:
        """Send a request; the future has the answer as JSON values.

        Args:
            path: after the server's address.
            body: the request, as JSON values.
            from_root: leave out the version that ends the address, such as ``/v1``.
            unwanted: called when the request's turn comes; where it returns true, the future is cancelled instead.

        Raises:
            ServerError: from the future: the server cannot be reached, or refuses.
        """
        base = re.sub(r"/v\d+$", "", self.url) if from_root else self.url
        return asyncio.run_coroutine_threadsafe(self._answer(base + path, body, unwanted), self._loop)

    def error(self, reason: str) -> ServerError:
        """Return an error that names the server."""
        return ServerError(f"{self.url} ({self._settings.model}): {' '.join(reason.split())}")

    def repeats_key(self, answer: Any) -> bool:
        """Return whether an answer repeats the key, so that no part of it may be shown."""
        try:
            return bool(self._key) and str(self._key) in str(answer)
        except RecursionError:  # too many lists within lists to tell
            return True

    async def _answer(self, url: str, body: dict[str, Any], unwanted: Callable[[], bool]) -> Any:
        import openai

        from unimoe.models.served.bounded import AnswerTooLargeError

        try:
            return await self._post(url, body, unwanted)
        except openai.APITimeoutError:
            tries, seconds = self._settings.retries + 1, self._settings.timeout
            raise self.error(
                f"no answer within {seconds:g} s (tries: {tries}); raise served.timeout or lower "
                f"served.requests_in_flight, {_AGAIN}"
            ) from None
        except openai.APIConnectionError as error:
            raise self.error(
                f"no connection ({self._said(error.__cause__ or error)}); check the address, and that the server runs, "
                f"{_AGAIN}"
            ) from None
        except openai.APIStatusError as error:
            said = self._said(error)
            status = "" if str(error.status_code) in said else f"{error.status_code} "
            raise self.error(f"{status}{said}; {_remedy(error.status_code, self._settings)}") from None
        except AnswerTooLargeError as error:
            raise self.error(f"{error}; check served.api, and lower served.batch") from None
        except (ValueError, RecursionError) as error:  # JSON that is cut, or nested without end
            raise self.error(
                f"an answer that is no JSON, or not all of it ({self._said(error)}); look at the server's log, {_AGAIN}"
            ) from None
        except openai.OpenAIError as error:
            raise self.error(f"{self._said(error)}; look at the server's log, {_AGAIN}") from None

    def _said(self, error: BaseException) -> str:
        """Return the beginning of a message without the key, or the kind of an error without one."""
        text = " ".join(str(error).split()) or type(error).__name__
        if self._key:
            text = text.replace(self._key, "***")
        return text if len(text) <= 200 else f"{text[:197]}..."


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


def _post_function(url: str, key: str | None, settings: ServedConfig) -> Callable[..., Any]:
    try:
        import openai
        from aiolimiter import AsyncLimiter

        from unimoe.models.served.bounded import BoundedClient
    except ImportError as error:
        raise UsageError(
            f"a model behind a server needs the package {error.name}; run: uv sync --extra served "
            "(or pip install 'unimoe[served]')"
        ) from None
    # One request at a time through the limiter: none of the bursts that a bucket of a minute's requests would allow.
    per_minute = settings.requests_per_minute
    limiter = AsyncLimiter(1, 60 / per_minute) if per_minute else None

    async def pace() -> None:  # of each request, retries too
        if limiter:
            await limiter.acquire()

    try:
        bounded = BoundedClient(settings.timeout, pace)
    except Exception as error:  # of many kinds; their messages may hold a proxy's password
        names = _CERTIFICATES if isinstance(error, OSError) else _PROXIES
        found = [name for name in names if os.environ.get(name) or os.environ.get(name.lower())]
        raise UsageError(
            f"the environment's settings for connections cannot be used ({', '.join(found)}); correct or unset them "
            "(a SOCKS proxy needs the package socksio)"
        ) from None
    try:
        client = openai.AsyncOpenAI(
            api_key=key or "none",
            base_url=url,
            timeout=settings.timeout,
            max_retries=settings.retries,
            http_client=bounded,
        )
    except Exception as error:  # a host name or port that httpx alone refuses
        raise UsageError(f"{url}: no address of a server ({error}); write https://HOST/v1") from None
    client.organization = client.project = None  # those of OPENAI_ORG_ID are another server's
    in_flight = asyncio.Semaphore(settings.requests_in_flight)
    headers: Any = {"Authorization": f"Bearer {key}" if key else openai.Omit()}

    async def post(address: str, body: dict[str, Any], unwanted: Callable[[], bool]) -> Any:
        async with in_flight:
            if unwanted():
                raise asyncio.CancelledError
            return await client.post(address, cast_to=object, body=body, options={"headers": headers})

    return post


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
