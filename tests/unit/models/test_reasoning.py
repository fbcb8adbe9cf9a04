"""Pairs that are scored after a thought: the margin after it, stated grades, thoughts that run out of tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.experiments import tiny_experiment
from support.model_server import ModelServer, serve, words_shared
from support.tiny_models import save_tiny_model, tiny_base
from support.toy_collections import invented

from unimoe.config import PromptConfig
from unimoe.config.listwise import ListwiseConfig
from unimoe.config.served import ServedConfig
from unimoe.core.errors import UsageError
from unimoe.core.trec import Run
from unimoe.evaluation.tasks.rerank import rerank_collection
from unimoe.models.lists import TRUNCATED, UNPARSABLE
from unimoe.models.named import ModelSettings, named_model
from unimoe.models.prompts import PairTokenizer
from unimoe.models.rerankers.grading import UNGRADED
from unimoe.models.rerankers.reasoning import ThoughtMargin
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.models.writer import LocalWriter

pytestmark = pytest.mark.usefixtures("tmp_cache")

COLLECTION = invented(documents=5, queries=2, words=4)
CANDIDATES: Run = {query: dict.fromkeys(COLLECTION.corpus, 1.0) for query in COLLECTION.queries}
PAIRS = [(text, d.full_text) for text in COLLECTION.queries.values() for d in COLLECTION.corpus.values()]
RANK1 = PromptConfig(template="rank1", answers=["yes", "no"])


def thinker(prompt: PromptConfig, thought: int, says: Callable[[list[int]], str] | None = None) -> ThoughtMargin:
    """The tiny model; ``says`` gives the thought in place of its own, and an end where it has none."""
    base = tiny_base(layers=2)
    writer = LocalWriter(base)
    if says:

        def follow(self: Any, prompt: list[int]) -> list[int]:
            ids: list[int] = base.tokenizer(says(prompt))["input_ids"]
            return ids

        made = base.model.generate

        def generate(input_ids: Any, **_: Any) -> Any:
            rows = [row.tolist() + follow(None, row.tolist())[:thought] for row in input_ids]
            longest = max(map(len, rows))
            end = writer._ends[0]
            return torch.tensor([row + [end] * (longest - len(row)) for row in rows])

        assert made
        base.model.generate = generate
    model = UnimodelForExp1(base, prompt, 900)
    pairs = PairTokenizer(base.tokenizer, prompt, 256)
    return ThoughtMargin(writer, ListwiseConfig(thought=thought), model, pairs)


def margin(reranker: ThoughtMargin, text: str) -> float:
    """The logit of yes minus that of no after a text, by a pass of the whole model."""
    tokenizer, model = reranker.writer.tokenizer, reranker._model.model
    ids = tokenizer(text)["input_ids"]
    yes, no = (tokenizer(word)["input_ids"][0] for word in ("yes", "no"))
    logits = model(torch.tensor([ids])).logits[0, -1]
    return float(logits[yes] - logits[no])


def prompt_of(query: str, document: str) -> str:
    """Rank1's prompt, as its authors write it."""
    return (
        "Determine if the following passage is relevant to the query. Answer only with 'true' or 'false'.\n"
        f"Query: {query}\nPassage: {document}\n<think>"
    )


def test_the_score_is_the_margin_after_the_thought_and_its_end() -> None:
    reranker = thinker(RANK1, 100, lambda prompt: " the cat sat.</think>")
    scores = reranker.score(reranker.prepare(PAIRS))
    expected = [margin(reranker, f"{prompt_of(*pair)} the cat sat.</think>") for pair in PAIRS]
    assert scores == pytest.approx(expected, abs=1e-4)
    assert reranker.usage[TRUNCATED] == 0
    assert reranker.usage["answers"] == len(PAIRS)
    assert reranker.logits


def test_a_thought_that_runs_out_is_closed_after_its_last_sentence_and_counted() -> None:
    spoken = " the cat sat. a quick sort splits the"
    length = len(tiny_base(layers=2).tokenizer(spoken)["input_ids"])
    reranker = thinker(RANK1, length, lambda prompt: spoken)
    found = rerank_collection(reranker, COLLECTION, CANDIDATES)
    expected = [margin(reranker, f"{prompt_of(*pair)}\nthe cat sat.\n</think>") for pair in PAIRS]
    assert [score for row in found.run.values() for score in row.values()] == pytest.approx(expected, abs=1e-4)
    assert found.usage[TRUNCATED] == found.usage["answers"] == len(PAIRS)
    assert f"thoughts of at most {length} tokens" in " ".join(found.notes)
    longer = thinker(RANK1, length + 9, lambda prompt: spoken)  # it ends by itself, without the word
    assert longer.score(longer.prepare(PAIRS)) == pytest.approx(expected, abs=1e-4)
    assert longer.usage[TRUNCATED] == 0


def test_the_chat_template_of_a_model_that_thinks_begins_a_thought() -> None:
    reranker = thinker(PromptConfig(template="think", instruction="Judge."), 40, lambda prompt: "rain</think>")
    (first, *_) = reranker.prepare(PAIRS)
    assert reranker.writer.tokenizer.decode(first).endswith("<|im_start|>assistant\n<think>\n")
    text = reranker.writer.tokenizer.decode(first)
    assert reranker.score([first]) == pytest.approx([margin(reranker, f"{text}rain</think>\n\n")], abs=1e-4)


def test_a_model_thinks_for_itself_within_its_budget(tmp_path: Path) -> None:
    experiment = tiny_experiment(tmp_path).model_copy(update={"listwise": ListwiseConfig(thought=5), "prompt": RANK1})
    folder = save_tiny_model(tmp_path / "causal", layers=2)
    settings = ModelSettings(experiment, torch.device("cpu"), torch.float32)
    model, _ = named_model(f"reasoning:{folder}", settings)
    found = rerank_collection(model.reranker(), COLLECTION, CANDIDATES)
    assert model.identity.startswith("reasoning:causal@")
    assert str(model.prompt).startswith("rank1/query_first@")
    assert model.said.endswith("margin after a thought of at most 5 tokens")
    assert found.usage["answers"] == len(PAIRS) >= found.usage.get(TRUNCATED, 0) > 0
    assert dict(model.usage) == found.usage
    shards = [model.reranker().prepare(PAIRS)]
    assert model.reranker().tokens_of(shards) == sum(map(len, shards[0])) + 5 * len(PAIRS)
    other, _ = named_model(
        f"reasoning:{folder}",
        ModelSettings(
            experiment.model_copy(update={"listwise": ListwiseConfig(thought=6)}), torch.device("cpu"), torch.float32
        ),
    )
    assert other.prompt != model.prompt, "the budget is part of how it reads"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with serve(layers=2) as running:
        yield running


def test_a_server_states_grades_after_its_thoughts(server: ModelServer, tmp_path: Path) -> None:
    asked: list[str] = []

    def says(messages: list[dict[str, str]]) -> str:
        prompt = messages[0]["content"]
        asked.append(prompt)
        if "Photosynthesis" in prompt or "plant" in prompt:
            return "1"
        grade = words_shared(prompt)
        return {5: "<think> it goes on", 6: "2 or 3"}.get(len(asked) % 7, f"<think>3 or 2?</think> Grade: {grade}.")

    server.says = says
    served = ServedConfig(api="chat", model="org/tiny", retries=1, price_per_million_tokens=2.0)
    update = {"served": served, "listwise": ListwiseConfig(answer="grade")}
    experiment = tiny_experiment(tmp_path).model_copy(update=update)
    settings = ModelSettings(experiment, torch.device("cpu"), torch.float32)
    model, _ = named_model(f"reasoning:{server.base('chat')}", settings)
    before = len(asked)
    found = rerank_collection(model.reranker(), COLLECTION, CANDIDATES)
    assert len(asked) - before == len(PAIRS) == found.usage["requests"]
    scores = [score for row in found.run.values() for score in row.values()]
    assert scores.count(UNGRADED) == found.usage[UNPARSABLE] > 0
    graded = [re.findall(r"<query>(.*)</query>\n\n<text>(.*)</text>", prompt)[0] for prompt in asked[before:]]
    assert set(graded) == set(PAIRS)
    assert found.usage["price"] == pytest.approx(2e-6 * found.usage["tokens"])
    how = experiment.model_copy(update={"listwise": ListwiseConfig()})
    with pytest.raises(UsageError, match=r"a server shows no margin; set listwise\.answer=grade"):
        named_model(f"reasoning:{server.base('chat')}", ModelSettings(how, torch.device("cpu"), torch.float32))
