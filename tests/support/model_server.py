"""A real server on this machine around a tiny model, which speaks every API and fails on demand.

It refuses a request with a field that the API does not have, lacks, or has in another type. The scores are the model's
own: raw margins, P(yes) for ``/generative_scoring`` and Cohere, which come sorted where the API sorts them.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from support.tiny_models import tiny_base

from unimoe.config import PromptConfig
from unimoe.models.prompts import yes_no_ids
from unimoe.models.unimodel import UnimodelForExp1

PROMPT = PromptConfig(template="chat", order="document_first", instruction="Judge it.", embedding_suffix="\n")
MAX_LENGTH = 256

Fault = Literal[
    "429", "429 for long", "500", "401", "cut connection", "cut JSON", "nothing", "null", "text", "too few", "too many",
    "twice", "beyond", "no index", "NaN", "word", "no rows", "huge", "echoes the key", "redirect",
    "tells the key", "drips headers", "drips its body", "too long",
]  # fmt: skip


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("the input is empty")
    return text


Documents = Annotated[list[str], Field(min_length=1)]
Inputs = Annotated[list[Annotated[str, AfterValidator(_not_blank)]], Field(min_length=1, max_length=2048)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Generative(_Request):
    model: str
    query: list[int]
    items: list[list[int]] = Field(min_length=1)
    label_token_ids: list[int]
    apply_softmax: Literal[True]
    item_first: Literal[False]
    add_special_tokens: Literal[False]


class _VllmOptions(_Request):
    truncate_prompt_tokens: int = Field(ge=-1)
    use_activation: Literal[False]


class VllmScore(_VllmOptions):
    model: str
    text_1: str
    text_2: Documents


class MtebRerank(_Request):
    """What mteb's wrapper sends."""

    model: str
    query: str
    documents: Documents


class VllmRerank(_VllmOptions, MtebRerank):
    top_n: int


class JinaRerank(MtebRerank):
    top_n: int
    return_documents: Literal[False]


class CohereRerank(MtebRerank):
    documents: list[str] = Field(min_length=1, max_length=1000)
    top_n: int
    max_tokens_per_doc: int | None = None


class _TeiOptions(_Request):
    truncate: Literal[True]
    truncation_direction: Literal["Right"]


class TeiRerank(_TeiOptions):
    query: str
    texts: list[str] = Field(min_length=1, max_length=32)
    raw_scores: Literal[True]
    return_text: Literal[False]


class TeiEmbed(_TeiOptions):
    inputs: Annotated[Inputs, Field(max_length=32)]
    normalize: Literal[True]


class OpenaiEmbed(_Request):
    model: str
    input: Inputs
    encoding_format: Literal["float"]


KINDS: dict[str, type[_Request]] = {
    "/vllm/generative_scoring": Generative,
    "/vllm/v1/score": VllmScore,
    "/vllm/v1/rerank": VllmRerank,
    "/tei/rerank": TeiRerank,
    "/tei/embed": TeiEmbed,
    "/cohere/v2/rerank": CohereRerank,
    "/jina/v1/rerank": JinaRerank,
    "/openai/v1/embeddings": OpenaiEmbed,
    "/mteb/v1/rerank": MtebRerank,
}
BASES = {
    "vllm": "/vllm/v1",
    "vllm-score": "/vllm/v1",
    "vllm-rerank": "/vllm/v1",
    "tei": "/tei",
    "tei-embed": "/tei",
    "cohere": "/cohere/v2",
    "jina": "/jina/v1",
    "openai": "/openai/v1",
}
"""The address of each API below the server's."""


@dataclass
class ModelServer:
    """What the server does, and what it was asked.

    Attributes:
        url: its address; ``base`` has that of an API.
        model: answers.
        key: what requests must carry; None for none.
        faults: what happens to the next requests, one each, before answers are right again.
        fails: says of a request whether it fails, as often as it is sent; by default none does.
        latency: seconds before every answer.
        asked: path and body of each request that was answered with scores.
        received: headers of every request.
    """

    url: str
    model: UnimodelForExp1
    key: str | None = None
    faults: list[Fault] = field(default_factory=list)
    fails: Callable[[str], Fault | None] = lambda body: None
    latency: float = 0.0
    asked: list[tuple[str, Any]] = field(default_factory=list)
    received: list[dict[str, str]] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)

    def base(self, api: str) -> str:
        """The address to give for an API."""
        return self.url + BASES[api]

    @property
    def pairs(self) -> int:
        """Pairs and texts that were answered."""
        return sum(len(_items(body)) for _, body in self.asked)

    def change_model(self, seed: int = 1) -> None:
        """Let another model answer under the same name."""
        self.model = _model(seed)

    def answer(self, path: str, request: Any) -> Any:
        """The right answer to a request."""
        usage = {"total_tokens": sum(map(len, _items(request.model_dump()))), "prompt_tokens": 1}
        match request:
            case Generative() | VllmScore():
                if isinstance(request, Generative):
                    scores = self._generative(request)
                else:
                    scores = self._margins(request.text_1, request.text_2)
                rows = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores)]
                return {"id": "x", "object": "list", "model": request.model, "data": rows, "usage": usage}
            case TeiRerank():
                return _sorted(self._margins(request.query, request.texts), "score")
            case TeiEmbed():
                return self._vectors(request.inputs)
            case OpenaiEmbed():
                rows = [{"object": "embedding", "index": i, "embedding": row}
                        for i, row in enumerate(self._vectors(request.input))]  # fmt: skip
                return {"object": "list", "model": request.model, "data": rows[::-1], "usage": usage}
            case CohereRerank():
                scores = [sigmoid(margin) for margin in self._margins(request.query, request.documents)]
                billed = {"billed_units": {"search_units": math.ceil(len(scores) / 100)}}
                return {"id": "x", "results": _sorted(scores, "relevance_score"), "meta": billed}
            case MtebRerank():  # vLLM's and Jina's too
                scores = self._margins(request.query, request.documents)
                return {"model": request.model, "results": _sorted(scores, "relevance_score"), "usage": usage}
        raise AssertionError(path)

    def _generative(self, request: Generative) -> list[float]:
        if tuple(request.label_token_ids) != yes_no_ids(self.model.tokenizer):
            raise ValueError("label_token_ids are not those of yes and no")
        with self.lock:
            margins = self.model.rerank_ids([request.query + item for item in request.items])
        return [sigmoid(float(margin)) for margin in margins]

    def _margins(self, query: str, documents: Sequence[str]) -> list[float]:
        with self.lock:
            return list(map(float, self.model.rerank([(query, text) for text in documents], output="margin")))

    def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
        with self.lock:
            vectors: list[list[float]] = self.model.encode(texts).tolist()
        return vectors


def sigmoid(margin: float) -> float:
    """P(yes) of a margin, in float64."""
    return 1 / (1 + math.exp(-margin))


@contextmanager
def serve(seed: int = 0, layers: int = 4) -> Iterator[ModelServer]:
    """Run a server while the block does."""
    server = ModelServer("", _model(seed, layers))

    class Handler(_Handler):
        shown = server

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        http.shutdown()
        http.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    shown: ModelServer

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        """Name the model, for mteb's wrapper."""
        self._send(200, json.dumps({"data": [{"id": "tiny"}]}))

    def do_POST(self) -> None:
        """Answer, or fail as it is wanted."""
        shown = self.shown
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with shown.lock:
            shown.received.append(dict(self.headers))
            fault = shown.faults.pop(0) if shown.faults else shown.fails(text)
        time.sleep(shown.latency)
        self._respond(text, fault)

    def _respond(self, text: str, fault: Fault | None) -> None:
        shown = self.shown
        if shown.key is not None and self.headers.get("Authorization") != f"Bearer {shown.key}":
            return self._send(401, json.dumps({"error": {"message": "no such key"}}))
        match fault:
            case "429":
                return self._send(429, '{"error": "too many"}', {"Retry-After": "1"})
            case "429 for long":
                return self._send(429, '{"error": "too many"}', {"Retry-After": "3600"})
            case "500":
                return self._send(500, '{"error": "sorry"}', {"retry-after-ms": "20"})
            case "401":
                return self._send(401, '{"error": {"message": "no such key"}}')
            case "echoes the key":
                return self._send(400, json.dumps({"error": {"message": f"bad\nkey {self.headers['Authorization']}"}}))
            case "tells the key":
                return self._send(200, json.dumps({"detail": f"bad key {self.headers['Authorization']}"}))
            case "too long":
                message = "This model's maximum context length is 64 tokens, however you requested 700 tokens"
                return self._send(400, json.dumps({"error": {"message": message}}))
            case "redirect":
                return self._send(307, "", {"Location": f"http://localhost:9{self.path}"})
            case "drips headers" | "drips its body":
                return self._drip(headers=fault == "drips headers")
        kind = KINDS.get(self.path)
        if kind is None:
            return self._send(404, json.dumps({"detail": "Not Found"}))
        try:
            request = kind.model_validate_json(text)
            answer = shown.answer(self.path, request)
        except (ValidationError, ValueError) as error:
            return self._send(422, json.dumps({"error": {"message": str(error)}}))
        body = json.dumps(spoilt(answer, fault))
        if fault == "cut connection":
            return self._send(200, body, cut=len(body) // 2)
        if fault in {"cut JSON", "nothing", "text"}:
            body = {"cut JSON": body[: len(body) // 2], "nothing": "", "text": "<html>busy</html>"}[str(fault)]
        if fault is None:
            with shown.lock:
                shown.asked.append((self.path, json.loads(text)))
        return self._send(200, body, {"Content-Type": "text/html"} if fault == "text" else {})

    def _drip(self, headers: bool) -> None:
        """Send a byte every .1 s, for 20 s at most."""
        begin = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        rest = b"X-Slow: " + b"a" * 200 if headers else b" " * 200
        with suppress(ConnectionError):
            self.wfile.write(begin if headers else begin + b"Content-Length: 200\r\n\r\n")
            for byte in rest:
                self.wfile.write(bytes([byte]))
                if self.shown.over.wait(0.1):
                    break
        self.close_connection = True

    def _send(self, status: int, body: str, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body.encode())))
        with suppress(ConnectionError):  # a client that does not wait any longer
            self.end_headers()
            self.wfile.write(body.encode()[:cut])
        if cut is not None:
            self.close_connection = True


def spoilt(answer: Any, fault: Fault | None) -> Any:
    """An answer with one thing wrong in its last row."""
    if fault == "null":
        return None
    key = next((name for name in ("data", "results") if isinstance(answer, dict) and name in answer), None)
    rows = list(answer if key is None else answer[key])
    last = rows[-1]
    value = next((name for name in ("score", "relevance_score", "embedding") if name in last), None)
    match fault:
        case "too few":
            rows.pop()
        case "too many":
            rows.append(last)
        case "twice" if value:
            rows[-1] = last | {"index": rows[0]["index"]}
        case "beyond" if value:
            rows[-1] = last | {"index": len(rows)}
        case "no index" if value:
            rows[-1] = {value: last[value]}
        case "NaN":
            rows[-1] = _with(last, value, math.nan)
        case "word":
            rows[-1] = _with(last, value, "high")
        case "huge":
            rows[-1] = _with(last, value, 10**400)
        case "no rows":
            return {}
        case _:
            return answer
    return rows if key is None else {**answer, key: rows}


def _with(row: Any, key: str | None, value: Any) -> Any:
    if key is None:  # a vector
        return [*row[:-1], value]
    return row | {key: [*row[key][:-1], value] if isinstance(row[key], list) else value}


def _items(body: dict[str, Any]) -> list[Any]:
    names = ("items", "text_2", "documents", "texts", "inputs", "input")
    return next(body[name] for name in names if name in body)


def _sorted(scores: Sequence[float], key: str) -> list[dict[str, Any]]:
    rows = [{"index": index, key: score} for index, score in enumerate(scores)]
    return sorted(rows, key=lambda row: -row[key])


def _model(seed: int, layers: int = 4) -> UnimodelForExp1:
    return UnimodelForExp1(tiny_base(layers=layers, seed=seed), PROMPT, MAX_LENGTH)
