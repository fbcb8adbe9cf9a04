"""A prompt, a loss, a measure, a source and a reranker registered from outside the package, used end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.experiments import tiny_experiment
from support.tiny_models import tiny_base
from torch import Tensor

from unimoe.config import TEMPLATES, Experiment, PromptConfig
from unimoe.config.files import overridden, parse_config
from unimoe.config.training import LossOptions
from unimoe.core.errors import UsageError
from unimoe.data.catalog import load_collection, main_metric
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.source import SOURCES, Source, register_source
from unimoe.evaluation.reranking_eval import evaluate_beir
from unimoe.metrics import register_measure, score_run
from unimoe.models.prompts import PairTokenizer, register_prompt
from unimoe.models.unimodel import UnimodelForExp1
from unimoe.training.examples import RankingSet
from unimoe.training.losses import LOSSES, Loss, register_loss
from unimoe.training.losses.listwise import ListwiseLoss
from unimoe.training.steps import Budget, Texts, ranking_backward

pytestmark = pytest.mark.usefixtures("one_thread")

COLOURS = {"d1": "red roses are red", "d2": "blue violets", "d3": "red and blue make purple", "d4": "green leaves"}


class Colours(Source):
    """Collections about colours, of which there is one."""

    usage = "colours:NAME"

    def load(self, name: str, split: str) -> Collection:
        documents = [(key, Document("", text)) for key, text in COLOURS.items()]
        qrels = {"q1": {"d1": 2, "d3": 1}, "q2": {"d2": 1, "d3": 1}}
        return assemble(name, split, documents, [("q1", "what is red"), ("q2", "what is blue")], qrels)

    def main_metric(self, name: str, split: str) -> str:
        return "first_is_best"

    def default_split(self, name: str) -> str:
        return "spring"


class Bare:
    """A prompt without any markup."""

    def __init__(self, prompt: PromptConfig) -> None:
        self._instruction = prompt.instruction

    def conversation(self, tokenizer: Any) -> tuple[str, str]:
        return f"{self._instruction}\n", "\nAnswer: "

    def before_document(self, query: str) -> str:
        return f"{query} | "

    def around_document(self) -> tuple[str, str]:
        return "", " | "


def first_is_best(grades: Any, ranking: Sequence[str]) -> float:
    """Whether a query's first document has its highest grade."""
    return float(bool(ranking) and grades.get(ranking[0], 0) == max(grades.values()))


def squared_hinge(scores: Sequence[Tensor], labels: Sequence[Tensor], options: LossOptions) -> Tensor:
    """The mean of squared hinges over pairs of different labels."""
    hinges = []
    for row, given in zip(scores, labels, strict=True):
        better = given[:, None] > given
        hinges.append((options.sigma - (row[:, None] - row)[better]).clamp(min=0).square())
    return torch.cat(hinges).mean()


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("unimoe.metrics.names._registered", {})
    register_source("colours", Colours())
    register_prompt("bare", Bare)
    register_loss("squared_hinge", Loss(squared_hinge, ("sigma",)))
    register_measure("first_is_best", first_is_best, cutoff=1)
    yield
    SOURCES._things.pop("colours")
    TEMPLATES._things.pop("bare")
    LOSSES._things.pop("squared_hinge")


@pytest.fixture
def config(tmp_path: Path, tmp_cache: Path) -> Experiment:
    plain = tiny_experiment(tmp_path).model_dump()
    changes = ["prompt.template=bare", "training.ranking.loss=squared_hinge"]
    changes += ["training.ranking.loss_options.sigma=0.5"]
    return parse_config(Experiment, overridden(plain, changes), source="test")


def shared_words(pairs: list[tuple[str, str]]) -> list[float]:
    return [float(sum(document.split().count(word) for word in query.split())) for query, document in pairs]


def test_a_function_reranks_a_collection_of_ones_own_by_a_measure_of_ones_own(config: Experiment) -> None:
    found = evaluate_beir(shared_words, None, config, "colours:garden")
    collection = load_collection("colours:garden", "spring")
    assert found.run["q1"]["d1"] == 2.0
    assert found.items == sum(map(len, found.run.values()))
    metric = main_metric("colours:garden", "spring")
    scores = score_run(collection.qrels, found.run, [metric, "ndcg@10"])
    assert scores.per_query[metric] == {"q1": 1.0, "q2": 1.0}


def test_a_model_reranks_with_a_prompt_of_ones_own(config: Experiment) -> None:
    base = tiny_base(layers=2)
    found = evaluate_beir(base.model, base.tokenizer, config, "colours:garden")
    assert set(found.run) == {"q1", "q2"}
    tokens = PairTokenizer(base.tokenizer, config.prompt, 256)
    (ids,) = tokens([("what is red", "roses")])
    text = base.tokenizer.decode(ids)
    assert text.endswith("Answer: ")
    assert "<|im_start|>" not in text


def test_a_loss_of_ones_own_trains_the_reranker(config: Experiment) -> None:
    recipe = config.training.ranking
    loss_config = config.arm("rank_only_r8").ranking_loss(recipe)
    assert loss_config.sigma == 0.5
    model = UnimodelForExp1(tiny_base(layers=2), config.prompt, 256).train()
    model.model.requires_grad_(True)
    ids = model.pair_ids([("what is red", text) for text in COLOURS.values()])
    data = RankingSet(ids, groups=[[0, 2, 1, 3]], query_ids=["q1"], labels=[[2.0, 1.0, 0.0, 0.0]], batched=[[0]])
    loss, _ = ranking_backward(model, data, Texts(ids, None), [0], 1.0, loss_config, Budget(10_000))
    assert loss > 0
    assert any(weight.grad is not None and bool(weight.grad.any()) for weight in model.model.parameters())
    by_hand = ListwiseLoss(loss_config)([torch.tensor([1.0, 0.0])], [torch.tensor([0.0, 1.0])])
    assert float(by_hand) == pytest.approx(1.5**2)


def test_what_is_not_registered_is_refused_with_the_closest(config: Experiment) -> None:
    with pytest.raises(UsageError, match="did you mean 'bare'"):
        parse_config(Experiment, overridden(config.model_dump(), ["prompt.template=brae"]), source="test")
    with pytest.raises(UsageError, match="did you mean 'squared_hinge'"):
        parse_config(Experiment, overridden(config.model_dump(), ["training.ranking.loss=square_hinge"]), source="test")
    with pytest.raises(UsageError, match="did you mean 'colours'"):
        load_collection("colors:garden", "spring")
    with pytest.raises(UsageError, match="source of collections 'mteb' exists already"):
        register_source("mteb", Colours())
