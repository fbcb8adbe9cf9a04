"""A real server on this machine around a tiny model, which speaks every API and fails on demand.

It refuses a request with a field that the API does not have, lacks, or has in another type. The scores are the model's
own: raw margins, P(yes) for ``/generative_scoring`` and Cohere, which come sorted where the API sorts them. A chat is
answered by the grade of ``words_shared``.
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
from typing import Any, Literal

from support.tiny_models import tiny_base

from unimoe.config import PromptConfig
from unimoe.models.prompts import answer_ids
from unimoe.models.unimodel import UnimodelForExp1

PROMPT = PromptConfig(template="chat", order="document_first", instruction="Judge it.", embedding_suffix="\n")
MAX_LENGTH = 256

Fault = Literal[
    "429", "429 for long", "500", "401", "cut connection", "cut JSON", "NaN", "echoes the key", "redirect",
    "tells the key", "drips", "too long",
]  # fmt: skip

_RANKING = {"model": str, "query": str, "documents": list}
_VLLM = {"truncate_prompt_tokens": int, "use_activation": False}
_TEI = {"truncate": True, "truncation_direction": "Right"}

FIELDS: dict[str, dict[str, Any]] = {
    "/vllm/generative_scoring": {
        "model": str, "query": list, "items": list, "label_token_ids": list, "apply_softmax": True,
        "item_first": False, "add_special_tokens": False,
    },
    "/vllm/v1/score": {"model": str, "text_1": str, "text_2": list, **_VLLM},
    "/vllm/v1/rerank": {**_RANKING, "top_n": int, **_VLLM},
    "/tei/rerank": {"query": str, "texts": list, "raw_scores": True, "return_text": False, **_TEI},
    "/tei/embed": {"inputs": list, "normalize": True, **_TEI},
    "/cohere/v2/rerank": {**_RANKING, "top_n": int},
    "/jina/v1/rerank": {**_RANKING, "top_n": int, "return_documents": False},
    "/openai/v1/embeddings": {"model": str, "input": list, "encoding_format": "float"},
    "/chat/v1/chat/completions": {"model": str, "messages": list, "temperature": 0, "max_tokens": int},
    "/mteb/v1/rerank": _RANKING,  # what mteb's wrapper sends
}  # fmt: skip
"""Of a request to each path, the fields with their type, or the one value that they may have."""

TOO_LONG = "This model's maximum context length is 64 tokens, however you requested 700 tokens"
FAILURES: dict[Fault, tuple[int, str, dict[str, str]]] = {
    "429": (429, '{"error": "too many"}', {"Retry-After": "1"}),
    "429 for long": (429, '{"error": "too many"}', {"Retry-After": "3600"}),
    "500": (500, '{"error": "sorry"}', {"retry-after-ms": "20"}),
    "401": (401, '{"error": {"message": "no such key"}}', {}),
    "too long": (400, json.dumps({"error": {"message": TOO_LONG}}), {}),
}
"""Status, body and headers of what is no answer."""

LARGEST = {"/tei/rerank": 32, "/tei/embed": 32, "/cohere/v2/rerank": 1000, "/openai/v1/embeddings": 2048}

BASES = {
    "tei": "/tei",
    "tei-embed": "/tei",
    "cohere": "/cohere/v2",
    "jina": "/jina/v1",
    "openai": "/openai/v1",
    "chat": "/chat/v1",
}
BASES |= dict.fromkeys(("vllm", "vllm-score", "vllm-rerank"), "/vllm/v1")
"""The address of each API below the server's."""


def refuse_wrong(path: str, body: dict[str, Any]) -> None:
    """Raise a ``ValueError`` about a request that the API of a path would refuse."""
    fields, items = FIELDS[path], _items(body)
    given = {name: value for name, value in body.items() if (path, name) != ("/cohere/v2/rerank", "max_tokens_per_doc")}
    if given.keys() != fields.keys():
        raise ValueError(f"the fields are {sorted(fields)}, not {sorted(body)}")
    for name, wanted in fields.items():
        if not (type(body[name]) is wanted if isinstance(wanted, type) else body[name] == wanted):
            raise ValueError(f"{name} is {body[name]!r}")
    if not 0 < len(items) <= LARGEST.get(path, len(items)):
        raise ValueError(f"{len(items)} items in a request")
    if path in {"/tei/embed", "/openai/v1/embeddings"} and not all(text.strip() for text in items):
        raise ValueError("the input is empty")


@dataclass
class ModelServer:
    """What the server does, and what it was asked.

    Attributes:
        url: its address; ``base`` has that of an API.
        model: answers.
        key: what requests must carry; None for none.
        faults: what happens to the next requests, one each, before answers are right again.
        fails: says of a request whether it fails, as often as it is sent; by default none does.
        says: what a chat model says to messages in place of a grade; None for the grade.
        message: makes a chat model's message of what it says.
        usage: makes what a chat model says that it cost of the usual.
        latency: seconds before every answer.
        asked: path and body of each request that was answered with scores.
        received: headers of every request.
    """

    url: str
    model: UnimodelForExp1
    key: str | None = None
    faults: list[Fault] = field(default_factory=list)
    fails: Callable[[str], Fault | None] = lambda body: None
    says: Callable[[list[dict[str, str]]], str | None] = lambda messages: None
    message: Callable[[str], dict[str, Any]] = lambda text: {"role": "assistant", "content": text}
    usage: Callable[[dict[str, Any]], dict[str, Any]] = lambda usage: usage
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

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        """The right answer to a request."""
        items = _items(body)
        usage = {"total_tokens": sum(map(len, items)), "prompt_tokens": 1}
        if path == "/chat/v1/chat/completions":
            messages = body["messages"]
            said = self.says(messages)
            text = str(words_shared(messages[0]["content"])) if said is None else said
            reason = "length" if len(text.split()) > body["max_tokens"] else "stop"
            text = " ".join(text.split()[: body["max_tokens"]])
            choice = {"index": 0, "message": self.message(text), "finish_reason": reason}
            return {"id": "x", "object": "chat.completion", "choices": [choice], "usage": self.usage(usage)}
        if path in {"/tei/embed", "/openai/v1/embeddings"}:
            with self.lock:
                vectors = self.model.encode(items).tolist()
            if path == "/tei/embed":
                return vectors
            rows = [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(vectors)]
            return {"object": "list", "model": body["model"], "data": rows[::-1], "usage": usage}
        if path == "/vllm/generative_scoring":
            if body["label_token_ids"] != answer_ids(self.model.tokenizer):
                raise ValueError("label_token_ids are not those of yes and no")
            with self.lock:
                margins = self.model.rerank_ids([body["query"] + item for item in items])
            scores = [sigmoid(float(margin)) for margin in margins]
        else:
            query = body["text_1"] if path == "/vllm/v1/score" else body["query"]
            with self.lock:
                scores = self.model.rerank([(query, text) for text in items], output="margin").tolist()
        if path == "/tei/rerank":
            return _sorted(scores, "score")
        if path in {"/vllm/generative_scoring", "/vllm/v1/score"}:
            rows = [{"index": i, "object": "score", "score": score} for i, score in enumerate(scores)]
            return {"id": "x", "object": "list", "model": body["model"], "data": rows, "usage": usage}
        if path == "/cohere/v2/rerank":
            billed = {"billed_units": {"search_units": math.ceil(len(scores) / 100)}}
            return {"id": "x", "results": _sorted(list(map(sigmoid, scores)), "relevance_score"), "meta": billed}
        return {"model": body["model"], "results": _sorted(scores, "relevance_score"), "usage": usage}


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
            return self._send(*FAILURES["401"])
        if fault in FAILURES:
            return self._send(*FAILURES[fault])
        match fault:
            case "echoes the key":
                return self._send(400, json.dumps({"error": {"message": f"bad\nkey {self.headers['Authorization']}"}}))
            case "tells the key":
                return self._send(200, json.dumps({"detail": f"bad key {self.headers['Authorization']}"}))
            case "redirect":
                return self._send(307, "", {"Location": f"http://localhost:9{self.path}"})
            case "drips":
                return self._drip()
        if self.path not in FIELDS:
            return self._send(404, json.dumps({"detail": "Not Found"}))
        try:
            request = json.loads(text)
            refuse_wrong(self.path, request)
            answer = shown.answer(self.path, request)
        except ValueError as error:
            return self._send(422, json.dumps({"error": {"message": str(error)}}))
        body = json.dumps(spoilt(answer) if fault == "NaN" else answer)
        if fault == "cut connection":
            return self._send(200, body, cut=len(body) // 2)
        if fault == "cut JSON":
            body = body[: len(body) // 2]
        if fault is None:
            with shown.lock:
                shown.asked.append((self.path, request))
        return self._send(200, body)

    def _drip(self) -> None:
        """Send a byte every .1 s, for 20 s at most."""
        with suppress(ConnectionError):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 200\r\n\r\n")
            for _ in range(200):
                self.wfile.write(b" ")
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


def spoilt(answer: Any) -> Any:
    """An answer whose last value is not a number."""
    key = next((name for name in ("data", "results") if isinstance(answer, dict) and name in answer), None)
    *rows, last = answer if key is None else answer[key]
    value = next((name for name in ("score", "relevance_score", "embedding") if name in last), None)
    if value is None:  # a vector
        last = [*last[:-1], math.nan]
    else:
        last = last | {value: [*last[value][:-1], math.nan] if isinstance(last[value], list) else math.nan}
    return [*rows, last] if key is None else {**answer, key: [*rows, last]}


def words_shared(prompt: str) -> int:
    """Words that the query and the text between their marks share, 3 at most."""
    query, text = (set(prompt.split(f"<{name}>")[1].split(f"</{name}>")[0].split()) for name in ("query", "text"))
    return min(3, len(query & text))


def _items(body: dict[str, Any]) -> list[Any]:
    if "messages" in body:
        return [body["messages"][0]["content"]]
    names = ("items", "text_2", "documents", "texts", "inputs", "input")
    return next(body[name] for name in names if name in body)


def _sorted(scores: Sequence[float], key: str) -> list[dict[str, Any]]:
    rows = [{"index": index, key: score} for index, score in enumerate(scores)]
    return sorted(rows, key=lambda row: -row[key])


def _model(seed: int, layers: int = 4) -> UnimodelForExp1:
    return UnimodelForExp1(tiny_base(layers=layers, seed=seed), PROMPT, MAX_LENGTH)
