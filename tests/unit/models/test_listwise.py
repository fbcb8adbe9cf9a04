"""Rerankers that order lists, by an oracle here and behind a server: runs, costs and what is refused."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.experiments import tiny_experiment
from support.model_server import ModelServer, serve
from support.toy_collections import invented
from support.windows import sliding_windows, texts_in, writing

from unimoe.config import Experiment
from unimoe.config.listwise import LIST_PROMPTS, ListwiseConfig
from unimoe.config.served import ServedConfig
from unimoe.core.errors import DataError, InputError, UsageError
from unimoe.core.trec import Run, ranked
from unimoe.evaluation.tasks.rerank import rerank_collection, shuffled
from unimoe.models.lists import DOUBLED, PARTIAL, TRUNCATED, UNPARSABLE
from unimoe.models.prompts.lists import control_tokens, rank_gpt, shown
from unimoe.models.reranker import ShardStore
from unimoe.models.rerankers.listwise import ListwiseReranker, prompt_of_lists
from unimoe.models.served.chat import ChatWriter
from unimoe.models.writer import Ask

pytestmark = pytest.mark.usefixtures("tmp_cache")

COLLECTION = invented(documents=30, queries=3, words=6)
_RANDOM = random.Random(3)
CANDIDATES: Run = {
    query: {key: float(place) for place, key in enumerate(_RANDOM.sample(sorted(COLLECTION.corpus), 25))}
    for query in COLLECTION.queries
}


def key_of(text: str) -> int:
    """A fixed order of all texts."""
    return zlib.crc32(text.encode())


def permutation(prompt: str) -> str:
    """The answer of an oracle: all documents by their key."""
    texts = texts_in(prompt)
    return " > ".join(f"[{place + 1}]" for place in sorted(range(len(texts)), key=lambda place: key_of(texts[place])))


def expected_order(query: str, size: int, step: int) -> list[str]:
    """What the reference makes of a query's candidates in the first stage's order."""
    keys = ranked(CANDIDATES[query])

    def by_key(window: list[int]) -> list[int]:
        return sorted(window, key=lambda place: key_of(" ".join(COLLECTION.corpus[keys[place]].full_text.split())))

    return [keys[place] for place in sliding_windows(list(range(len(keys))), by_key, size, step)]


@pytest.mark.parametrize(("size", "step"), [(20, 10), (6, 3), (100, 50)])
def test_a_run_has_the_order_of_hand_written_permutations(size: int, step: int) -> None:
    reranker = ListwiseReranker(writing(permutation), ListwiseConfig(window=size, step=step))
    run = rerank_collection(reranker, COLLECTION, CANDIDATES).run
    for query in COLLECTION.queries:
        assert ranked(run[query]) == expected_order(query, size, step)
        assert sorted(run[query].values()) == [-float(rank) for rank in range(25, 0, -1)], "no two scores are equal"


def test_a_setwise_and_a_pairwise_run_find_the_best() -> None:
    for way in ("setwise", "pairwise"):
        oracle = writing(lambda prompt: permutation(prompt).split(" > ")[0])
        reranker = ListwiseReranker(oracle, ListwiseConfig(way=way, passes=3))
        run = rerank_collection(reranker, COLLECTION, CANDIDATES).run
        for query, scores in run.items():
            ideal = sorted(CANDIDATES[query], key=lambda key: key_of(COLLECTION.corpus[key].full_text))
            assert ranked(scores)[:3] == ideal[:3], way


def test_a_model_that_prefers_the_first_place_changes_no_order_of_pairs() -> None:
    reranker = ListwiseReranker(writing(lambda prompt: "[1]"), ListwiseConfig(way="pairwise"))
    run = rerank_collection(reranker, COLLECTION, CANDIDATES).run
    assert {query: ranked(scores) for query, scores in run.items()} == {q: ranked(CANDIDATES[q]) for q in CANDIDATES}


def test_repairs_are_counted_and_stand_in_the_result() -> None:
    answers = iter(["nothing", "[2]", "[2] > [2]"])
    reranker = ListwiseReranker(writing(lambda prompt: next(answers)), ListwiseConfig(window=30))
    found = rerank_collection(reranker, COLLECTION, CANDIDATES)
    counted = {"tokens": 21.0, "answers": 3.0, UNPARSABLE: 1.0, PARTIAL: 2.0, DOUBLED: 1.0}
    assert found.usage == counted == dict(reranker.usage)
    assert "1 unparsable answers" in " ".join(found.notes)
    first, second, third = COLLECTION.queries
    assert ranked(found.run[first]) == ranked(CANDIDATES[first]), "nothing was understood"
    for query in (second, third):
        before = ranked(CANDIDATES[query])
        assert ranked(found.run[query]) == [before[1], before[0], *before[2:]], "missing documents keep their order"


def test_the_order_that_a_model_reads_is_the_first_stages_whatever_the_mapping_has() -> None:
    mixed = {query: dict(sorted(scores.items())) for query, scores in CANDIDATES.items()}
    asked = []
    for candidates in (CANDIDATES, mixed):
        oracle = writing(permutation)
        rerank_collection(ListwiseReranker(oracle, ListwiseConfig()), COLLECTION, candidates)
        asked.append(oracle.asked)
    assert asked[0] == asked[1]
    keys = ranked(CANDIDATES[next(iter(CANDIDATES))])[5:]
    assert texts_in(asked[0][0]) == [COLLECTION.corpus[key].full_text for key in keys]


def test_another_order_is_another_shard_and_another_run(tmp_path: Path) -> None:
    orders = [shuffled(CANDIDATES, seed) for seed in (1, 2)]
    assert [{q: set(row) for q, row in order.items()} for order in orders] == [
        {q: set(r) for q, r in CANDIDATES.items()}
    ] * 2
    assert len({str({q: ranked(row) for q, row in order.items()}) for order in [*orders, CANDIDATES]}) == 3
    store, runs = ShardStore(tmp_path, "f"), []
    for order in (None, 1, 2, 1):
        reranker = ListwiseReranker(writing(permutation), ListwiseConfig(window=6))
        found = rerank_collection(reranker, COLLECTION, CANDIDATES, order=order, store=store)
        runs.append(found.run)
        assert found.first_stage is not None
        assert found.first_stage.aggregate == rerank_collection(reranker, COLLECTION, CANDIDATES).first_stage.aggregate  # type: ignore[union-attr]
    assert runs[1] == runs[3] != runs[0] != runs[2] != runs[1]


def test_a_window_that_does_not_fit_loses_words_of_its_documents() -> None:
    oracle = writing(permutation, most=200)
    reranker = ListwiseReranker(oracle, ListwiseConfig(window=25))
    found = rerank_collection(reranker, COLLECTION, CANDIDATES)
    assert found.usage["shortened windows"] == 3
    assert all(len(text.split()) < 6 for prompt in oracle.asked for text in texts_in(prompt))
    with pytest.raises(DataError, match=r"does not fit into 20 tokens; lower listwise\.window"):
        rerank_collection(ListwiseReranker(writing(permutation, most=20), ListwiseConfig()), COLLECTION, CANDIDATES)


def test_texts_without_spaces_are_cut_too() -> None:
    control = control_tokens()
    assert shown("\u732b" * 5000, 300, control) == "\u732b" * 600
    assert shown("\u0e01" * 5000, 300, control) == "\u0e01" * 1500
    assert len(shown("x" * 500_000, 300, control)) == 300 * 80
    assert shown(" one  two\nthree ", 2, control) == "one two"
    oracle = writing(permutation, most=120)
    oracle.ask = lambda conversation, tokens: Ask(conversation, tokens, len(conversation[-1]["content"]) // 100)
    reranker = ListwiseReranker(oracle, ListwiseConfig())
    reranker.score(reranker.prepare([("q", letter * 5000) for letter in "\u732b\u72ac\u9ce5" * 20]))
    assert reranker.usage["shortened windows"] == reranker.usage["answers"] == 5


def _messages(content: Any) -> Any:
    return lambda query, documents: [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda query, documents: f"{query} {documents}", "returned .a query .*return a list of"),
        (lambda query, documents: {"y": query}["x"], r"listwise\.template mine raised KeyError"),
        (lambda query: [], "raised TypeError"),
        (lambda query, documents: [], "return a list of"),
        (lambda query, documents: [{"role": "user", "text": query}], "return a list of"),
        (_messages(5), "return a list of"),
        (_messages("[1] some text [2] another one"), "leaves out 'a query'"),
        (_messages("A query: [1] some text"), "leaves out 'another one'"),
        (_messages("A query: some text, another one"), r"leaves out '\[1\]'"),
    ],
)
def test_a_template_of_ones_own_that_is_none_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, made: Any, words: str
) -> None:
    monkeypatch.setitem(LIST_PROMPTS._things, "mine", made)
    with pytest.raises(DataError, match=words):
        prompt_of_lists(ListwiseConfig(template="mine"), None)


def test_another_text_of_a_template_is_another_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for end in ("Order them.", "Rank them."):

        def mine(query: str, documents: Sequence[str], end: str = end) -> Any:
            listed = " ".join(f"[{place}] {text}" for place, text in enumerate(documents, start=1))
            return [{"role": "user", "content": f"{query} {listed} {end}"}]

        monkeypatch.setitem(LIST_PROMPTS._things, "mine", mine)
        names.append(prompt_of_lists(ListwiseConfig(template="mine"), None))
    names += [prompt_of_lists(ListwiseConfig(template="mine", words=words), 99) for words in (300, 299)]
    names.append(prompt_of_lists(ListwiseConfig(template="mine", window=21), 99))
    assert len(set(names)) == 5


def test_a_conversation_of_rank_gpt_names_each_document_once() -> None:
    conversation = rank_gpt("why", ["a", "b"])
    assert [message["role"] for message in conversation] == ["system", *["user", "assistant"] * 3, "user"]
    assert conversation[5] == {"role": "user", "content": "[2] b"}
    assert shown("as [1] and\n[2] say so", 4, control_tokens()) == "as (1) and (2)"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serve(layers=2) as running:
        running.says = lambda messages: permutation(messages[-1]["content"])
        yield running


def served_experiment(folder: Path, **served: Any) -> Experiment:
    settings: dict[str, Any] = {"api": "chat", "model": "org/tiny", "retries": 2, "timeout": 20, **served}
    update = {"served": ServedConfig(**settings), "listwise": ListwiseConfig(window=10, step=5)}
    return tiny_experiment(folder).model_copy(update=update)


def served(url: str, experiment: Experiment) -> ListwiseReranker:
    """A reranker of the server."""
    return ListwiseReranker(ChatWriter.named("listwise:", url, experiment.served), experiment.listwise, "lists")


def test_a_server_gives_the_run_of_the_reference_and_its_cost(server: ModelServer, tmp_path: Path) -> None:
    experiment = served_experiment(tmp_path, price_per_million_tokens=2.0, revision="one")
    reranker = served(server.base("chat"), experiment)
    planned = reranker.asked(COLLECTION, CANDIDATES)
    assert planned is not None
    assert server.asked == [], "a plan pays nothing"
    found = rerank_collection(reranker, COLLECTION, CANDIDATES)
    for query in COLLECTION.queries:
        assert ranked(found.run[query]) == expected_order(query, 10, 5)
    assert planned.requests == found.usage["requests"] == found.usage["answers"] == len(server.asked) == 12
    tokens = sum(len(body["messages"][0]["content"]) for _, body in server.asked)
    assert found.usage["price"] == pytest.approx(2e-6 * found.usage["tokens"])
    assert found.usage["tokens"] == tokens
    assert planned.price == pytest.approx(2e-6 * planned.tokens)
    assert reranker.identity.startswith("served:chat:")


def test_a_server_that_fails_loses_nothing_and_is_paid_for_nothing_twice(server: ModelServer, tmp_path: Path) -> None:
    store, experiment = (
        ShardStore(tmp_path / "shards", "f"),
        served_experiment(tmp_path, retries=0, requests_in_flight=4),
    )
    draw = random.Random(5)
    server.fails = lambda body: "500" if draw.random() < 0.3 else None
    tries = 0
    while True:
        tries += 1
        reranker = served(server.base("chat"), experiment)
        try:
            found = rerank_collection(reranker, COLLECTION, CANDIDATES, store=store)
            break
        except DataError as error:
            assert "what was answered is kept" in str(error)  # noqa: PT017 - as often as it fails
    assert tries > 1
    asked = [json.dumps(body["messages"]) for _, body in server.asked]
    assert len(asked) == len(set(asked)) == 12 == found.usage["requests"]
    for query in COLLECTION.queries:
        assert ranked(found.run[query]) == expected_order(query, 10, 5)


def test_a_server_may_give_its_thought_apart(server: ModelServer, tmp_path: Path) -> None:
    thinks = {"reasoning_content": "[3] is better than [1]", "role": "assistant"}
    messages: Iterator[dict[str, Any]] = iter(
        [{**thinks, "content": "[2]"}, {**thinks, "content": None}, {"reasoning": "[1]?", "content": "[3]"}]
    )
    experiment = served_experiment(tmp_path, requests_in_flight=1)
    reranker = served(server.base("chat"), experiment)
    server.message = lambda text: next(messages)
    orders = []
    for _ in range(3):
        scores = reranker.score(reranker.prepare([("q", f"text {number}") for number in range(3)]))
        orders.append([int(-score) for score in scores])
    assert orders == [[2, 1, 3], [1, 2, 3], [2, 3, 1]]
    assert reranker.usage[TRUNCATED] == reranker.usage[UNPARSABLE] == 1


def test_what_a_model_writes_has_a_price_of_its_own(server: ModelServer, tmp_path: Path) -> None:
    prices = {"price_per_million_tokens": 1.0, "price_per_million_written": 5.0}
    reranker = served(server.base("chat"), served_experiment(tmp_path, **prices))
    server.usage = lambda usage: usage | {"completion_tokens": 40, "total_tokens": 1040}
    planned = reranker.asked(COLLECTION, CANDIDATES)
    found = rerank_collection(reranker, COLLECTION, CANDIDATES)
    assert found.usage["price"] == pytest.approx(12 * (1000 + 5 * 40) * 1e-6)
    assert planned is not None
    assert planned.price == pytest.approx((planned.tokens + 4 * 12 * 8 * 10) * 1e-6), "the longest answers"


@pytest.mark.parametrize("tokens", [float("nan"), float("inf"), -5, "many", None, 10**400])
def test_a_number_of_tokens_that_is_none_costs_nothing(server: ModelServer, tmp_path: Path, tokens: Any) -> None:
    experiment = served_experiment(tmp_path, price_per_million_tokens=1.0)
    server.usage = lambda usage: {"total_tokens": tokens}
    found = rerank_collection(served(server.base("chat"), experiment), COLLECTION, CANDIDATES)
    assert found.usage == {"requests": 12.0, "answers": 12.0, "price": 0.0}


def test_a_server_that_ranks_nothing_is_refused(server: ModelServer, tmp_path: Path) -> None:
    server.says = lambda messages: "Sorry."
    with pytest.raises(DataError, match="gives no answer that can be read for listwise about the probe texts"):
        _ = served(server.base("chat"), served_experiment(tmp_path)).identity
    with pytest.raises(UsageError, match="does not write; use chat"):
        served(server.base("tei"), served_experiment(tmp_path, api="tei"))


def test_an_error_names_the_query(server: ModelServer, tmp_path: Path) -> None:
    server.fails = lambda body: "too long"
    with pytest.raises((DataError, InputError), match=r"query 'q0'.*maximum context length"):
        rerank_collection(served(server.base("chat"), served_experiment(tmp_path)), COLLECTION, CANDIDATES)
