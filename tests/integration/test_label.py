"""``unimoe label --runs``: what runs have found, graded by a chat model behind a server or by a local reranker."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import CrossEncoder
from support.model_server import ModelServer, serve, words_shared
from support.scripts import Done, assert_refused, call_script, call_unimoe, successful
from support.tiny_models import save_tiny_cross_encoder, save_tiny_encoder
from support.toy_collections import invented, write_invented

from unimoe.core.trec import ranked, write_run
from unimoe.data.catalog import load_collection
from unimoe.data.collection import describe_qrels
from unimoe.formats.qrels import read_qrels
from unimoe.models.rerankers.grading import AGAIN, PROMPT
from unimoe.models.served.probe import PROBE_PAIRS

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")

SET = invented(documents=24, queries=5, unjudged=2, name="set")
PROBES = len(PROBE_PAIRS)
_RANDOM = random.Random(1)
RUNS = {
    name: {query: {key: float(_RANDOM.randrange(9)) for key in SET.corpus} for query in SET.queries}
    for name in ("bm25", "dense", "late")
}
DEPTH = 4


def pool(*names: str) -> set[tuple[str, str]]:
    """The first documents of runs, equal scores by document id, descending, as in trec_eval."""
    return {(q, key) for name in names for q, row in RUNS[name].items() for key in ranked(row)[:DEPTH]}


def prompt_of(pair: tuple[str, str]) -> str:
    query, document = pair
    return PROMPT.format(query=SET.queries[query], document=SET.corpus[document].full_text)


GRADES = {pair: words_shared(prompt_of(pair)) for pair in pool(*RUNS)}
BOTH = pool("bm25", "dense")
NEW = pool("late") - BOTH


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serve(layers=2) as running:
        yield running


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collection and three runs in the working folder, one of them packed."""
    write_invented(tmp_path / "set", SET)
    for name, run in RUNS.items():
        write_run(tmp_path / f"{name}.trec", run, name)
    packed = tmp_path / "dense.trec"
    packed.with_suffix(".trec.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def arguments(url: str, *runs: str, api: str = "chat", **served: Any) -> list[str]:
    keys = {"api": api, "model": "org/tiny", "retries": 2, **served}
    given = [word for key, value in keys.items() for word in ("--set", f"served.{key}={value}")]
    named = ["--runs", *(runs or ("bm25.trec", "dense.trec.gz")), "--dataset", "path:set", "--depth", str(DEPTH)]
    return ["label", *named, "--model", url, "--output", "llm.qrels", *given]


def label(server: ModelServer, *runs: str, **served: Any) -> Done:
    return call_unimoe(*arguments(server.base("chat"), *runs, **served))


def made(output: str = "llm.qrels") -> Any:
    return json.loads(Path(f"{output}.labels.json").read_text())


def graded(output: str = "llm.qrels") -> dict[tuple[str, str], float]:
    return {(query, key): grade for query, row in read_qrels(Path(output)).items() for key, grade in row.items()}


def expected(pairs: set[tuple[str, str]]) -> dict[tuple[str, str], int]:
    return {pair: GRADES[pair] for pair in pairs}


def prompts(server: ModelServer) -> list[str]:
    """What was asked about pairs and answered, in all conversations."""
    return [body["messages"][0]["content"] for _, body in server.asked if PROBE_PAIRS[0][0] not in str(body)]


@pytest.mark.usefixtures("here")
def test_the_first_documents_of_all_runs_get_the_grades_of_a_chat_model(server: ModelServer) -> None:
    done = successful(label(server, price_per_million_tokens=2.0, revision="one"))
    assert graded() == expected(BOTH)
    assert {query for query, _ in BOTH} == SET.queries.keys() > SET.qrels.keys(), "without judgments too"
    asked = [body for _, body in server.asked[PROBES:]]
    tokens = sum(len(prompt_of(pair)) for pair in BOTH)
    assert [len(body["messages"]) for body in asked] == [1] * len(BOTH)
    assert f"{len(BOTH)} pairs of 7 queries; {len(BOTH)} requests, about {round(tokens / 4):,} tokens, price" in (
        done.stderr
    )
    found = made()
    counted = {"requests": len(BOTH), "answers": len(BOTH), "tokens": tokens, "price": tokens * 2 / 1e6}
    assert found["usage"] == pytest.approx(counted)
    assert found["model"].startswith("served:chat:")
    assert found["prompt"].startswith("grades@")
    assert [name.partition("@")[0] for name in found["runs"]] == ["bm25.trec", "dense.trec.gz"]
    assert (found["collection"], found["ungraded"], found["thresholds"]) == ("path:set@test", [], None)
    counts = [sum(grade == each for grade in expected(BOTH).values()) for each in (3, 2, 1, 0)]
    shown = [f"grade {grade} {count} pairs" for grade, count in zip((3, 2, 1, 0), counts, strict=True)]
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[:5] == [*shown, "queries 7"]
    assert lines[5] == "qrels llm.qrels"
    assert describe_qrels(Path("llm.qrels")).relevance_level == 2
    again = successful(label(server, price_per_million_tokens=2.0, revision="one"))
    assert again.stdout == done.stdout
    assert "already done" in again.stderr
    assert len(prompts(server)) == len(BOTH)
    assert not Path(".llm.qrels.shards").exists()


@pytest.mark.usefixtures("here")
def test_another_run_adds_its_documents_and_no_pair_is_paid_for_twice(server: ModelServer) -> None:
    successful(label(server))
    done = successful(label(server, "*.trec"))
    assert f"{len(pool('bm25', 'late'))} pairs of 7 queries, " in done.stderr
    assert graded() == expected(BOTH | NEW)
    assert sorted(prompts(server)) == sorted(map(prompt_of, BOTH | NEW))
    assert made()["usage"]["requests"] == len(BOTH | NEW)
    assert len(made()["runs"]) == 3


@pytest.mark.usefixtures("here")
def test_an_answer_that_is_no_grade_is_asked_for_once_more_and_then_left_out(server: ModelServer) -> None:
    never, late = sorted(BOTH)[:2], sorted(BOTH)[2:5]
    babble = dict(zip(map(prompt_of, [*never, *late]), ["4", "", "2 or 3", "The grade is 2.", "２"], strict=True))
    last = set(map(prompt_of, never))

    def says(messages: list[dict[str, str]]) -> str | None:
        prompt = messages[0]["content"]
        return babble[prompt] if prompt in last or (prompt in babble and len(messages) == 1) else None

    server.says = says
    done = label(server)
    names = ", ".join(map("/".join, never))
    assert_refused(done, 4, f"without a grade for 2 ({names})", "run again", silent=False)
    assert graded() == expected(BOTH - set(never))
    assert made()["ungraded"] == ["/".join(pair) for pair in never]
    assert made()["usage"]["unparsable answers"] == 2 * 2 + 3
    assert made()["usage"]["requests"] == len(BOTH) + 5
    assert all(body["messages"][2]["content"] == AGAIN for _, body in server.asked if len(body["messages"]) > 1)
    before, server.says = len(server.asked), lambda messages: None
    successful(label(server))
    assert graded() == expected(BOTH)
    assert len(server.asked) - before == PROBES + 2
    assert made()["ungraded"] == []
    Path("llm.qrels").unlink()
    server.says = lambda messages: None if PROBE_PAIRS[0][0] in messages[0]["content"] else "no"
    assert_refused(label(server), 4, f"without a grade for {len(BOTH)} (", silent=False)
    server.says = lambda messages: None
    successful(label(server))
    assert graded() == expected(BOTH)


@pytest.mark.usefixtures("here")
def test_a_model_that_gives_no_grades_is_refused_before_it_is_paid_for_pairs(server: ModelServer) -> None:
    server.says = lambda messages: "<think>Let me see"
    assert_refused(label(server), 3, "gives no grade to any of the 6 probe pairs", "by one digit alone")
    assert not Path("llm.qrels").exists()
    assert prompts(server) == []


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("apart", [False, True])
def test_a_grade_follows_the_thought_of_a_model_that_thinks(server: ModelServer, apart: bool) -> None:
    def message(text: str) -> dict[str, str]:
        thought = "0 or 1? More."
        said = (
            {"reasoning_content": thought, "content": text} if apart else {"content": f"<think>{thought}</think>{text}"}
        )
        return {"role": "assistant", **said}

    server.message = message
    successful(label(server))
    assert graded() == expected(BOTH)
    assert made()["usage"]["requests"] == len(BOTH), "nothing is asked for again"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("at_once", [1, 8])
def test_a_pair_that_the_server_refuses_has_no_grade_and_the_others_have(server: ModelServer, at_once: int) -> None:
    refused = min(BOTH)
    text = json.dumps(SET.corpus[refused[1]].full_text)[1:-1]
    query = json.dumps(SET.queries[refused[0]])[1:-1]
    server.fails = lambda body: "too long" if text in body and query in body else None
    done = label(server, requests_in_flight=at_once)
    assert_refused(done, 4, f"without a grade for 1 ({'/'.join(refused)})", silent=False)
    assert "pairs that the server refuses: 1; " in done.stderr
    assert "maximum context length" in done.stderr
    assert graded() == expected(BOTH - {refused})


@pytest.mark.usefixtures("here")
def test_requests_that_fail_lose_nothing_and_are_paid_for_once(server: ModelServer) -> None:
    lottery = random.Random(0)
    server.fails = lambda body: lottery.choice(["500", "cut JSON", "429"]) if lottery.random() < 0.3 else None
    done = label(server, retries=0)
    while done.returncode == 3:  # a request that was not sent again ends a run
        assert "run again" in done.stderr
        done = label(server, retries=0)
    successful(done)
    assert graded() == expected(BOTH)
    assert sorted(prompts(server)) == sorted(map(prompt_of, BOTH))
    assert made()["usage"]["requests"] == len(BOTH)


@pytest.mark.usefixtures("here")
def test_a_killed_run_asks_again_for_what_was_in_flight_alone(server: ModelServer) -> None:
    server.latency = 0.1
    command = arguments(server.base("chat"), requests_in_flight=2)
    with subprocess.Popen([sys.executable, "-m", "unimoe", *command], env={**os.environ}, stderr=-3) as process:
        deadline = time.monotonic() + 300
        while server.pairs < PROBES + 15 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    assert not Path("llm.qrels").exists()
    time.sleep(0.4)  # what was in flight is answered to nobody
    server.latency = 0.0
    successful(call_unimoe(*command))
    assert graded() == expected(BOTH)
    assert 0 <= len(prompts(server)) - len(BOTH) <= 2


@pytest.mark.usefixtures("here")
def test_a_plan_asks_about_no_pair(server: ModelServer) -> None:
    done = successful(call_unimoe(*arguments(server.base("chat")), "--plan"))
    assert f"{len(BOTH)} pairs of 7 queries; {len(BOTH)} requests, about" in done.stdout
    save_tiny_cross_encoder(Path("ce"))
    local = successful(call_unimoe(*arguments("cross-encoder:ce"), "--plan"))
    assert f"{len(BOTH)} pairs of 7 queries; 0 minutes (probe: " in local.stdout
    assert prompts(server) == []
    assert not Path("llm.qrels").exists()


def test_a_cross_encoder_grades_by_thresholds_of_its_probability(here: Path) -> None:
    theirs = CrossEncoder(str(save_tiny_cross_encoder(here / "ce")), device="cpu", activation_fn=torch.nn.Sigmoid())
    pairs = sorted(BOTH)
    scores = theirs.predict([(SET.queries[query], SET.corpus[key].full_text) for query, key in pairs]).tolist()
    low, high = (sorted(scores)[len(scores) * part // 3] + 1e-6 for part in (1, 2))
    given = ["--runs", "bm25.trec", "dense.trec.gz", "--dataset", "path:set", "--depth", "4", "--device", "cpu"]
    done = successful(
        call_unimoe("label", *given, "--model", "cross-encoder:ce", "--output", "ce.qrels", "--set",
                    f"thresholds=[{low},{high}]")
    )  # fmt: skip
    assert graded("ce.qrels") == {pair: (p >= low) + (p >= high) for pair, p in zip(pairs, scores, strict=True)}
    assert made("ce.qrels")["thresholds"] == [low, high]
    again = ("--model", "cross-encoder:ce", "--output", "none.qrels", "--set", "thresholds=[1.0]")
    successful(call_unimoe("label", *given, *again))
    assert set(graded("none.qrels").values()) == {0}
    assert "grade 2 " in done.stdout
    assert not Path("ce.qrels.json").exists(), "grade 1 is relevant where there are two"
    other = call_unimoe("label", *given, "--model", "cross-encoder:ce", "--output", "ce.qrels")
    assert_refused(other, 2, "ce.qrels: holds judgments by ", "choose another --output, or remove it first")


@pytest.mark.usefixtures("here")
def test_a_served_reranker_grades_by_its_probability(server: ModelServer) -> None:
    for api in ("tei", "cohere"):  # raw scores, and probabilities
        Path("llm.qrels").unlink(missing_ok=True)
        command = arguments(server.base(api), api=api)
        successful(call_unimoe(*command, "--set", "thresholds=[0.5]", "--set", "shard_queries=2"))
        margins = server.model.rerank([(SET.queries[q], SET.corpus[d].full_text) for q, d in sorted(BOTH)])
        values = zip(sorted(BOTH), margins.tolist(), strict=True)
        assert graded() == {pair: int(value >= 0.5) for pair, value in values}


@pytest.mark.usefixtures("here")
def test_a_chat_model_labels_pairs_to_train_on(server: ModelServer) -> None:
    served = ("--set", "served.api=chat", "--set", "served.model=org/tiny")
    done = successful(
        call_unimoe("label", "--dataset", "path:set", "--output-dir", "made", "--model", server.base("chat"), "--depth",
                    "6", "--set", "split=test", "--set", "test_split=null", *served)
    )  # fmt: skip
    labels = load_collection("path:made", "train").qrels
    assert {grade for row in labels.values() for grade in row.values()} <= {1, 2, 3}
    assert all(
        grade == words_shared(prompt_of((query, key))) for query, row in labels.items() for key, grade in row.items()
    )
    assert "grade 3 " in done.stdout


def test_what_cannot_be_labelled_is_refused_in_one_line(here: Path, server: ModelServer) -> None:
    save_tiny_encoder(here / "encoder")
    lines = (here / "bm25.trec").read_text()
    files = {
        "queries.trec": lines + "x7 Q0 d01 1 1 t\nx8 Q0 d01 1 1 t\n",
        "documents.trec": lines.replace(" d03 ", " z3 "),
        "nothing.trec": "",
        "own.qrels": "q0 0 d01 1\n",
    }
    for name, text in files.items():
        (here / name).write_text(text)
    good = ("--dataset", "path:set", "--model", "encoder:encoder", "--output", "x.qrels")
    runs = ("--runs", "bm25.trec")
    for arguments, code, *words in (
        (("--runs", "queries.trec", *good), 3, "queries.trec: query 'x7' has no text in path:set, split test",
         "nor have 1 more", "--dataset NAME@dev"),
        (("--runs", "documents.trec", *good, "--depth", "24"), 3, "documents.trec: candidate 'z3' of query 'q0'",
         "give a run made on this corpus"),
        (("--runs", "nothing.trec", *good), 3, "nothing.trec: "),
        (("--runs", "nowhere.trec", *good), 3, "nowhere.trec: no such file"),
        (("--runs", "no*.run", *good), 3, "--runs no*.run: no file matches"),
        ((*runs, *good), 2, "encoder:encoder: embeds and does not rerank"),
        ((*runs, *good, "--model", "cross-encodr:x"), 2, "did you mean 'cross-encoder'?"),
        ((*runs, *good, "--model", "http://127.0.0.1:9/v1"), 2, "--set served.api=API"),
        ((*runs, *good, "--output-dir", "y"), 2, "give --output alone"),
        ((*runs, "--dataset", "path:set"), 2, "give --output alone"),
        (good, 2, "give --output-dir alone"),
        ((*runs, *good, "--output", "x.gz"), 2, "without .gz"),
        ((*runs, *good, "--output", "own.qrels", "--model", "cross-encoder:ce"), 2, "holds judgments of somebody else"),
        ((*runs, *good, "--set", "sampling.queries=3"), 2, "sampling: unknown key"),
        (("--dataset", "path:set", "--output-dir", "y", "--plan"), 2, "--plan belongs to --runs"),
    ):  # fmt: skip
        if "cross-encoder:ce" in arguments:
            save_tiny_cross_encoder(here / "ce")
        assert_refused(call_unimoe("label", *arguments), code, *words)
    none = call_unimoe("label", *runs, *good, "--depth", "0")
    assert none.returncode == 2
    assert "--depth" in none.stderr
    assert not (here / "x.qrels").exists()
    chat = ("--set", "served.api=chat", "--set", "served.model=org/tiny")
    evaluated = call_script("evaluate.py", "--model", server.base("chat"), "--dataset", "path:set", *chat)
    assert_refused(evaluated, 2, "served.api chat: it does not rerank")
