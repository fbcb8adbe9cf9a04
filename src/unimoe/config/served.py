"""The config of a model behind a server."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field

from unimoe.config.base import Count, Positive, Section, checked
from unimoe.core.registry import Registry

APIS: Registry[Any] = Registry("served API", "unimoe.models.served.api", "unimoe.apis")
"""What servers speak, by name; see ``models.served.api.API``."""

Price = Annotated[float, Field(ge=0)]


def _variable_name(text: str) -> str:
    # The message leaves out what was given: it may be the key itself.
    if not re.fullmatch(r"[A-Z][A-Z0-9_]*", text):
        raise ValueError(
            "must be the NAME of an environment variable, in capitals, such as COHERE_API_KEY; the key itself stays in "
            "the environment"
        )
    return text


class ServedConfig(Section):
    """A model behind a server, and how it is asked. The address is given with ``--model``.

    Attributes:
        api: what the server speaks: ``vllm`` (``/generative_scoring`` with our prompt), ``vllm-score``,
            ``vllm-rerank``, ``tei``, ``cohere`` and ``jina`` rerank, ``openai`` and ``tei-embed`` embed,
            ``chat`` grades pairs for ``unimoe label``, and writes for ``listwise:`` and ``reasoning:``.
        model: the name that the server has for it; an adapter's name for a LoRA adapter of vLLM.
        revision: which weights the server runs, as far as you know: APIs do not tell; results without one say so.
        requests_in_flight: requests that wait for an answer at a time.
        requests_per_minute: requests are sent no faster than this, retries included; null for no limit.
        batch: documents or texts of one request, at most; null for 32, and 100 (one search) for ``cohere``.
        max_length: tokens that ``vllm-score`` and ``vllm-rerank`` read of a pair, ``cohere`` and ``chat`` of a
            document, and ``listwise:`` of a window with its answer; null for the server's own limit. ``vllm`` has
            ``model.max_length``. ``openai`` refuses a text above its limit and all beside it, so texts are cut before
            they are sent, at three bytes a token; ``chat`` does so too.
        timeout: seconds for a request and all of its answer, after which it is sent again.
        retries: how often a request is sent again after 408, 409, 429, 5xx, a timeout or a lost connection.
        key_variable: the name of the environment variable with the key, which goes to the server alone.
        probe_tolerance: share of their range that probe pairs' scores may move before the model counts as changed.
        price_per_million_tokens: in any currency, for ``--plan`` and results; null where tokens cost nothing.
        price_per_million_written: that of tokens which the model writes, thoughts included; null for the same.
        price_per_thousand_searches: the same for APIs that bill searches, such as ``cohere``.
    """

    api: Annotated[str, checked(APIS.checked)]
    model: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    requests_in_flight: Count = 16
    requests_per_minute: Positive | None = None
    batch: Count | None = None
    max_length: Count | None = None
    timeout: Positive = 60.0
    retries: Annotated[int, Field(ge=0)] = 5
    key_variable: Annotated[str, checked(_variable_name)] = "UNIMOE_API_KEY"
    probe_tolerance: Positive = 0.02
    price_per_million_tokens: Price | None = None
    price_per_million_written: Price | None = None
    price_per_thousand_searches: Price | None = None
