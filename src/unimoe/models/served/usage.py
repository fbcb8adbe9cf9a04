"""What requests cost: the tokens and searches that answers name, and their price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unimoe.config.served import ServedConfig

CHARACTERS_PER_TOKEN = 4
"""Of English prose, about."""

_MOST = 10**12
"""Tokens or searches of one answer; a server that names more does not know."""

Usage = Mapping[str, float]
"""Amounts by name: ``requests``, ``tokens`` and ``searches`` where the server names them, ``price`` if configured."""


@dataclass(frozen=True)
class Estimate:
    """What will be asked of a server.

    Attributes:
        requests: how many.
        tokens: of a sample where prompts are ours, else one for every four characters.
        price: in the currency of the settings; None without prices.
    """

    requests: int
    tokens: int
    price: float | None

    def __str__(self) -> str:
        cost = "" if self.price is None else f", price about {self.price:,.4g}"
        return f"{self.requests:,} requests, about {self.tokens:,} tokens{cost}"


def estimate(requests: int, tokens: float, settings: ServedConfig, searches: int = 0) -> Estimate:
    """Return an estimate with its price."""
    return Estimate(requests, round(tokens), _price(tokens, searches, settings))


def usage_of(answer: Any, settings: ServedConfig) -> dict[str, float]:
    """Return what an answer says that it cost (OpenAI's ``usage``, Cohere's ``meta.billed_units``), with its price."""
    usage, billed = _part(answer, "usage"), _part(_part(answer, "meta"), "billed_units")
    tokens = _amount(usage, "total_tokens") or _amount(billed, "input_tokens")
    searches = _amount(billed, "search_units")
    found = {"requests": 1.0, "tokens": tokens, "searches": searches}
    found = {name: amount for name, amount in found.items() if amount}
    price = _price(tokens, searches, settings)
    return found if price is None else found | {"price": price}


def add_usage(total: dict[str, float], usage: Usage) -> None:
    """Add amounts to a total, by name."""
    for name, amount in usage.items():
        total[name] = total.get(name, 0.0) + amount


def usage_text(usage: Usage) -> str:
    """Return amounts in words."""
    return ", ".join(
        f"price {amount:,.4g}" if name == "price" else f"{amount:,.0f} {name}" for name, amount in usage.items()
    )


def _price(tokens: float, searches: float, settings: ServedConfig) -> float | None:
    per_token, per_search = settings.price_per_million_tokens, settings.price_per_thousand_searches
    if per_token is None and per_search is None:
        return None
    return tokens * (per_token or 0.0) / 1e6 + searches * (per_search or 0.0) / 1e3


def _part(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _amount(value: Any, name: str) -> float:
    amount = _part(value, name)
    return float(amount) if isinstance(amount, int | float) and 0 <= amount <= _MOST else 0.0
