"""Reranking from Python: by models and functions of a user's own, in suites, and shards found again to the last bit."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model
from support.tiny_models import tiny_base
from support.toy_collections import SMALL, invented, with_evaluation, write_invented, write_msmarco
from torch import nn
from transformers import BartConfig, BartForConditionalGeneration

from unimoe.config import Experiment, PromptConfig
from unimoe.core.errors import DataError, UsageError
from unimoe.core.trec import Run
from unimoe.data.collection import Collection, Document
from unimoe.evaluation import reranking_eval
from unimoe.evaluation.embedding_eval import evaluate_mteb
from unimoe.evaluation.tasks.rerank import rerank_collection
from unimoe.models.base import BaseModel
from unimoe.models.embedder import Advance
from unimoe.models.functions import FunctionReranker
from unimoe.models.model import as_unimodel, given_reranker, stated_model
from unimoe.models.named import MODELS, ModelSettings, named_model
from unimoe.models.pair_model import PairModelReranker
from unimoe.models.reranker import Pair, Reranker, ShardStore
from unimoe.models.unimodel import UnimodelForExp1

pytestmark = pytest.mark.usefixtures("one_thread")

COLLECTION = invented(documents=12, queries=4, unjudged=1)
CPU = torch.device("cpu")
EVERY: Run = {query: dict.fromkeys(COLLECTION.corpus, 1.0) for query in COLLECTION.queries}


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return tiny_base(layers=2)


@pytest.fixture
def toy(tmp_path: Path, tmp_cache: Path) -> str:
    return f"path:{write_invented(tmp_path / 'toy', COLLECTION)}"


def shared_words(pairs: list[tuple[str, str]]) -> list[float]:
    """A user's own reranker: how often the words of the query are in the document."""
    return [sum(document.split().count(word) / 7 for word in query.split()) for query, document in pairs]


def test_a_function_ranks_a_suite_by_its_scores(experiment: Experiment, toy: str) -> None:
    suite = reranking_eval.evaluate_reranking_suite(shared_words, None, experiment, [toy], max_queries=2)
    (found,) = suite.datasets.values()
    assert found.items == sum(map(len, found.run.values()))
    for query, scores in found.run.items():
        texts = [(COLLECTION.queries[query], COLLECTION.corpus[document].full_text) for document in scores]
        assert list(scores.values()) == shared_words(texts)
    assert len(found.run) == 2
    assert suite.averages == {"ndcg@10": found.aggregate["ndcg@10"]}


class CountingReranker(Reranker):
    """A user's class: one shard a query, and the pairs scored so far; an interrupt after so many."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        self.scored, self._limit = 0, interrupt_after

    def score(self, prepared: Sequence[tuple[str, str]], advance: Advance | None = None) -> list[float]:
        if self._limit is not None and self.scored >= self._limit:
            raise KeyboardInterrupt
        self.scored += len(prepared)
        return shared_words(list(prepared))


@pytest.mark.parametrize("at_once", [1, 2])
def test_any_reranker_resumes_at_the_shard_it_was_killed_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(CountingReranker, "at_once", at_once)
    store, per_query, done = ShardStore(tmp_path, "one"), len(COLLECTION.corpus), list[int]()
    with pytest.raises(KeyboardInterrupt):
        rerank_collection(CountingReranker(2 * per_query), COLLECTION, EVERY, store=store)
    damaged, _ = store.folder.iterdir()
    damaged.write_text('{"scores": null, "seconds": 1}', encoding="utf-8")
    again = CountingReranker()
    found = rerank_collection(again, COLLECTION, EVERY, store=store, advance=done.append)
    assert again.scored == 4 * per_query  # of five queries, of which one of two files was damaged
    assert sum(done) == (1 if at_once == 1 else 5) * per_query  # the reranker itself reports none
    assert found.run == rerank_collection(FunctionReranker(shared_words), COLLECTION, EVERY).run


def test_a_shard_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    """A thread writes it: what went wrong there is not lost, also where it is the last shard."""
    (tmp_path / "file").write_text("no folder")
    for queries in (1, 3):
        some = replace(COLLECTION, queries=dict(list(COLLECTION.queries.items())[:queries]))
        with pytest.raises(UsageError, match="file: cannot create this folder"):
            rerank_collection(CountingReranker(), some, EVERY, store=ShardStore(tmp_path / "file", "one"))


class LosingReranker(CountingReranker):
    def cut(self, collection: Collection, candidates: Any) -> list[list[Pair]]:
        return super().cut(collection, candidates)[1:]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ([[1.0, 2.0]] * 12, r"scores of shape .*; return a number for each pair"),
        ([1.0], "query 'q0'.* returned 1 scores for 12 pairs; return one for each"),
        (["a"] * 12, "returned list; return a number for each pair"),
        ([np.nan] * 12, "query 'q0'.* the score is nan; .* finite numbers"),
    ],
)
def test_scores_that_are_none_and_pairs_that_get_none_are_refused(returned: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        rerank_collection(FunctionReranker(lambda pairs: returned), COLLECTION, EVERY)
    with pytest.raises(DataError, match=r"query 'q0', document 'd00': in no shard of the reranker's cut\(\)"):
        rerank_collection(LosingReranker(), COLLECTION, EVERY)


@pytest.mark.parametrize(
    ("model", "what"),
    [(7, "an int"), ("scifact", "a str"), (None, "a NoneType"), (CountingReranker, "the class CountingReranker")],
)
def test_anything_but_a_reranker_is_refused(experiment: Experiment, toy: str, model: Any, what: str) -> None:
    line = f"^{what} is no model; give a causal language model, or, to rerank, a function from"
    with pytest.raises(UsageError, match=line):
        reranking_eval.evaluate_beir(model, None, experiment, toy)
    with pytest.raises(UsageError, match=r"^a function is no model; give a causal language model"):
        evaluate_mteb(shared_words, None, experiment, ["STS12"])  # a function does not embed
    own = CountingReranker()
    assert given_reranker(own, None, experiment) is own


def test_a_model_and_tokenizer_score_as_their_reranker(base: BaseModel, experiment: Experiment, toy: str) -> None:
    raw = reranking_eval.evaluate_beir(base.model, base.tokenizer, experiment, toy)
    unimodel = UnimodelForExp1(base, experiment.prompt, experiment.model.max_length)
    made = reranking_eval.evaluate_beir(unimodel, None, experiment, toy)
    assert (made.run, made.scores, made.first_stage) == (raw.run, raw.scores, raw.first_stage)
    texts = [(COLLECTION.queries[q], COLLECTION.corpus[d].full_text) for q, gaps in raw.run.items() for d in gaps]
    gaps = [gap for gaps in raw.run.values() for gap in gaps.values()]
    np.testing.assert_allclose(gaps, unimodel.rerank(texts, output="margin"), atol=1e-4)
    assert raw.items == len(gaps) > 20
    assert raw.seconds > 0


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # PEFT's, when it merges
@pytest.mark.parametrize("module", ["q_proj", "lm_head"])
def test_adapters_on_the_output_layer_count_once_merged(experiment: Experiment, toy: str, module: str) -> None:
    settings = LoraConfig(r=2, target_modules=[module], init_lora_weights=False)
    adapted, tokenizer = get_peft_model(tiny_base(layers=2).model, settings), tiny_base().tokenizer
    if module == "lm_head":
        with pytest.raises(UsageError, match=r"adapters of PEFT on the output layer .* merge_and_unload\(\)"):
            reranking_eval.evaluate_beir(adapted, tokenizer, experiment, toy)
        found = {}
    else:
        found = reranking_eval.evaluate_beir(adapted, tokenizer, experiment, toy).run
    merged = reranking_eval.evaluate_beir(adapted.merge_and_unload(), tokenizer, experiment, toy).run
    plain = reranking_eval.evaluate_beir(tiny_base(layers=2).model, tokenizer, experiment, toy).run
    assert max(abs(merged["q0"][key] - margin) for key, margin in plain["q0"].items()) > 0.01
    for query, margins in found.items():
        assert margins == pytest.approx(merged[query], abs=1e-4)


@pytest.mark.parametrize("kind", [PromptTuningConfig, PrefixTuningConfig, PromptEncoderConfig])
def test_prompts_that_peft_learned_are_refused(experiment: Experiment, kind: Any) -> None:
    base = tiny_base(layers=2)
    adapted = get_peft_model(base.model, kind(num_virtual_tokens=4, task_type="CAUSAL_LM"))
    for take in (
        lambda: reranking_eval.evaluate_beir(adapted, base.tokenizer, experiment, "apidocs"),
        lambda: UnimodelForExp1(replace(base, model=adapted), experiment.prompt, experiment.model.max_length),
    ):
        with pytest.raises(UsageError, match=r"a PEFT model of P\w+ puts states of its own before every text"):
            take()


def test_what_has_no_decoder_is_refused(base: BaseModel, experiment: Experiment) -> None:
    sizes: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1, "vocab_size": 400, "d_model": 16}
    for model in (nn.Linear(2, 2), BartForConditionalGeneration(BartConfig(**sizes))):
        with pytest.raises(UsageError, match=rf"a {type(model).__name__} has no decoder layers at model\.layers"):
            as_unimodel(model, base.tokenizer, experiment)


def test_names_and_candidates_that_are_none_are_refused(base: BaseModel, experiment: Experiment) -> None:
    reranker = PairModelReranker(as_unimodel(base.model, base.tokenizer, experiment))
    with pytest.raises(DataError, match="candidate 'x9' of query 'q1' is no document of invented"):
        rerank_collection(reranker, COLLECTION, {"q0": {"d00": 1.0}, "q1": {"x9": 1.0}})
    with pytest.raises(UsageError, match="cqadupstack is 12 collections; use evaluate_reranking_suite"):
        reranking_eval.evaluate_beir(base.model, base.tokenizer, experiment, "cqadupstack")
    for names, words in (
        ([], "no collection is named"),
        (["pth:x"], "did you mean 'path'"),
        (["nanobeir:SciFct"], "did you mean 'scifact'"),
    ):
        with pytest.raises(UsageError, match=words):
            reranking_eval.evaluate_reranking_suite(base.model, base.tokenizer, experiment, names)


@pytest.fixture
def data(tmp_path: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty UNIMOE_DATA, and nothing to download with."""
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "beir.util", None)
    return tmp_path


def test_bm25_searches_the_passages_of_msmarco(base: BaseModel, experiment: Experiment, data: Path) -> None:
    write_msmarco(data / "msmarco", SMALL, compress=True)
    found = reranking_eval.evaluate_msmarco_dev(base.model, base.tokenizer, experiment)
    assert {query_id: set(gaps) for query_id, gaps in found.run.items()} == {"101": {"7"}, "205": {"9"}}
    assert found.first_stage is not None
    assert found.first_stage.aggregate["mrr@10"] == found.scores.aggregate["mrr@10"] == 1.0


def test_a_tier_runs_without_what_cannot_be_had(base: BaseModel, experiment: Experiment, data: Path) -> None:
    with pytest.raises(DataError, match=r"of the 3 collections could be evaluated; not available: .* 'scifact'"):
        reranking_eval.evaluate_reranking_suite(base.model, base.tokenizer, experiment)
    write_invented(data / "nfcorpus", COLLECTION)
    found = reranking_eval.evaluate_reranking_suite(base.model, base.tokenizer, experiment, max_queries=2)
    assert list(found.datasets) == ["nfcorpus"]
    assert len(found.datasets["nfcorpus"].run) == 2
    assert [line.partition(" is not available")[0] for line in found.missing] == [
        "not available: collection 'scifact'", "not available: collection 'fiqa'",
    ]  # fmt: skip


def test_msmarco_dev_runs_whole(experiment: Experiment, unimoe_data: Path) -> None:
    shallow = with_evaluation(experiment, depth=1)
    found = reranking_eval.evaluate_msmarco_dev(shared_words, None, shallow, collection="msmarco-dev-positives")
    assert len(found.run) == len(found.scores.per_query["mrr@10"]) == 6980
    assert 6_900 < sum(map(len, found.run.values())) <= 6980
    assert found.items == sum(map(len, found.run.values()))
    assert found.first_stage is not None
    assert found.first_stage.aggregate["mrr@10"] > 0.8  # an easy corpus: each passage is somebody's answer
    assert found.first_stage.aggregate["recall@100"] == found.scores.aggregate["recall@100"]


def test_only_what_scores_were_computed_from_finds_them(tmp_path: Path) -> None:
    pairs, prompts, store = (("q0", "d1"), ("q0", "d2")), ([1, 2], [1, 3]), ShardStore(tmp_path, "one")
    files = {
        store.file(pairs, prompts),
        ShardStore(tmp_path, "another").file(pairs, prompts),
        store.file(pairs, ([1, 2], [1, 4])),
        store.file((("q0", "d1"), ("q1", "d2")), prompts),
        store.file(pairs[:1], prompts[:1]),
    }
    assert len(files) == 5


@pytest.fixture(params=["query_first", "document_first"])
def judge(request: pytest.FixtureRequest) -> UnimodelForExp1:
    prompt = PromptConfig.model_validate({"template": "chat", "order": request.param, "instruction": "Judge it."})
    return UnimodelForExp1(tiny_base(layers=2), prompt, 128).eval()


def test_a_score_that_is_not_finite_names_the_pair(judge: UnimodelForExp1) -> None:
    token = judge.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    judge.model.model.embed_tokens.weight[token] = torch.nan
    corpus = {**COLLECTION.corpus, "d05": Document("", "a <|endoftext|> b")}
    with pytest.raises(DataError, match=r"query 'q\d', document 'd05': the score is not finite"):
        rerank_collection(PairModelReranker(judge), replace(COLLECTION, corpus=corpus), EVERY)


def test_a_query_that_leaves_no_room_is_named_in_the_outcome(judge: UnimodelForExp1) -> None:
    queries = {**COLLECTION.queries, "q2": "word " * 200}
    wordy = replace(COLLECTION, name="wordy", queries=queries)
    outcome = rerank_collection(PairModelReranker(judge), wordy, EVERY)
    plain = rerank_collection(PairModelReranker(judge), COLLECTION, EVERY)
    assert (outcome.truncated_queries, plain.truncated_queries) == (["q2"], [])
    (note,) = outcome.notes
    assert re.search(r"^wordy: queries that fill the whole prompt, .* 1 \(q2\); raise model.max_length", note)
    assert plain.notes == []
    assert len(set(outcome.run["q2"].values())) == 1  # each prompt has the same tokens
    for query in queries.keys() - {"q2"}:
        assert outcome.run[query] == pytest.approx(plain.run[query], abs=1e-4)


@dataclass(frozen=True)
class Own:
    """A model of a kind that a user registers."""

    error: BaseException
    name = identity = "own@1"

    def score(self, pairs: Any) -> Any:
        raise self.error


class Both:
    """An object of a user's own that scores pairs and embeds texts."""

    base_identity, name, device = "both@1", "both", None

    def score(self, pairs: Any) -> Any:
        return [float(len(document)) for _, document in pairs]

    def encode(self, texts: Any, **_: Any) -> Any:
        return np.ones((len(texts), 2), dtype=np.float32)


def test_an_object_that_scores_and_embeds_does_both() -> None:
    model = stated_model(Both())
    assert (model.identity, model.tasks) == ("both@1", ("reranking", "embedding"))
    assert model.reranker().score([("a", "bc"), ("a", "d")]) == [2, 1]
    assert model.embedder().encode(["a"]).shape == (1, 2)
    assert str(model.embedder().device) == "cpu"


def test_a_users_kind_of_model_that_raises_is_named(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, line = (
        ModelSettings(experiment, torch.device("cpu"), torch.float32),
        r" \(test_reranking\.py, line \d+\); fix it$",
    )
    errors = {"bad": ValueError("no\nluck"), "ours": UsageError("ours"), "stopped": KeyboardInterrupt("stop")}
    models = {name: Own(error) for name, error in errors.items()} | {"none": None}
    monkeypatch.setitem(MODELS._things, "own", lambda name, settings: models[name] and stated_model(models[name]))
    for name, kind, words in (
        ("bad", DataError, f"^own:bad raised ValueError: no luck{line}"),
        ("ours", UsageError, "^ours$"),
        ("stopped", KeyboardInterrupt, "^stop$"),
        ("else", DataError, f"own:else raised KeyError: 'else'{line}"),
        ("none", DataError, "own:none: its maker returned NoneType; return a Model"),
    ):
        with pytest.raises(kind, match=words) as raised:
            named_model(f"own:{name}", settings)[0].reranker().score([("query", "document")])
        assert errors.get(name) in (None, raised.value, raised.value.__cause__)
