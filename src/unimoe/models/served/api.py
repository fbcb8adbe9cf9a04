"""An API: the body of a request, and where an answer has its rows.

An API of your own is registered under a name, which ``served.api`` may then be::

    from unimoe.models.served.api import API, Endpoint, Rows, register_api

    register_api("mine", API(rerank=Endpoint("/rank", body, Rows("hits", "score"))))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unimoe.config.served import APIS, ServedConfig
from unimoe.core.errors import InputError, UsageError

register_api = APIS.add

TOP, BOTTOM = 37.0, -746.0
"""The margins of P(yes) 1 and 0: beyond those of the numbers next to them, 36.7 and -744.4, which are exact."""


@dataclass(frozen=True)
class Rows:
    """Where an answer has one row for each item of a request.

    Attributes:
        key: of the list of rows; None where the answer is the list.
        value: key of a row's score or vector, beside its ``index``; None where a row is the value, in the order asked.
    """

    key: str | None
    value: str | None

    def values(self, answer: Any, count: int) -> list[Any]:
        """Return the value of each of ``count`` items, in the order asked.

        Raises:
            InputError: the answer has not exactly one row for each; carries the item's index.
        """
        rows = answer if self.key is None else _field(answer, self.key)
        if not isinstance(rows, list):
            where = "a list" if self.key is None else f"a list under {self.key!r}"
            raise InputError(0, f"answered {_shown(answer)} in place of {where}")
        if len(rows) != count:
            raise InputError(0, f"answered {len(rows)} rows for the {count} of a request")
        if self.value is None:
            return rows
        found: dict[int, Any] = {}
        for row in rows:
            index = _field(row, "index")
            if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < count:
                raise InputError(0, f"answered a row with index {_shown(index)} of {count}")
            if index in found:
                raise InputError(index, "answered two rows for it")
            found[index] = _field(row, self.value)
        return [found[index] for index in range(count)]


@dataclass(frozen=True)
class Endpoint:
    """One address of a server.

    Attributes:
        path: after the server's address; with ``from_root`` the address without a version such as ``/v1``.
        body: makes a request from the settings and what is asked about.
        rows: where the answer has its rows.
        batch: items of one request, where the settings do not say.
        largest_batch: items of one request that the API takes; None for any number.
        from_root: whether the path begins at the server's root.
        probability: whether the score is a probability, of which the logit is taken.
        refuses_long: whether a text that is too long is refused with all beside it, so that ``served.max_length`` cuts
            it here.
    """

    path: str
    body: Callable[..., dict[str, Any]]
    rows: Rows
    batch: int = 32
    largest_batch: int | None = None
    from_root: bool = False
    probability: bool = False
    refuses_long: bool = False

    def items(self, settings: ServedConfig) -> int:
        """Return how many items a request has; raise ``UsageError`` where the API does not take so many."""
        items = settings.batch or self.batch
        if self.largest_batch is not None and items > self.largest_batch:
            raise UsageError(f"served.batch {items}: {settings.api} takes {self.largest_batch} at most; lower it")
        return items


@dataclass(frozen=True)
class API:
    """The endpoints of a server, of which it has one at least.

    Attributes:
        rerank: ``body(settings, query, documents)``, scores of texts.
        prompts: ``body(settings, prompts, yes_no)``, scores of prompts that are lists of token ids.
        embed: ``body(settings, texts)``, vectors of texts.
    """

    rerank: Endpoint | None = None
    prompts: Endpoint | None = None
    embed: Endpoint | None = None


def not_blank(texts: Sequence[str]) -> list[str]:
    """Return texts to embed, a full stop in place of each blank one: servers refuse those, and all beside them.

    See https://github.com/openai/openai-python/issues/576.
    """
    return [text if text.strip() else "." for text in texts]


def cut(text: str, tokens: int | None) -> str:
    """Return the beginning of a text that has so many tokens, of three bytes each; all of it where there is no limit.

    Tokenizers of servers are not here. English has four bytes a token, most other texts three at least.
    """
    return text if tokens is None else text.encode()[: 3 * tokens].decode(errors="ignore")


def number(value: Any, index: int) -> float:
    """Return a score; raise an ``InputError`` that carries the index where it is no finite number."""
    try:
        found = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        found = math.inf
    if not math.isfinite(found):
        raise InputError(index, f"answered {_shown(value)} in place of a finite number")
    return found


def margin(value: Any, index: int) -> float:
    """Return the logit of a probability; errors are those of ``number``."""
    probability = number(value, index)
    if not 0 <= probability <= 1:
        raise InputError(index, f"answered {probability:g} as a probability")
    if probability in {0, 1}:
        return TOP if probability else BOTTOM
    return math.log(probability) - math.log1p(-probability)


def vector(value: Any, index: int) -> list[float]:
    """Return a vector; errors are those of ``number``."""
    if not isinstance(value, list) or not value:
        raise InputError(index, f"answered {_shown(value)} as a vector")
    return [number(entry, index) for entry in value]


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _shown(value: Any) -> str:
    try:
        text = "nothing" if value in (None, "") else " ".join(repr(value).split())
    except RecursionError:
        text = "lists within lists"
    return text if len(text) <= 80 else f"{text[:77]}..."
