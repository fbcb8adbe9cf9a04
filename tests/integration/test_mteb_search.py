"""MTEB from our search models: ties as MTEB breaks them, parts told apart, no text embedded twice, and from Python."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import pytrec_eval
import torch
from support import mteb_tasks
from support.embedders import WordEmbedder
from support.mteb_tasks import INSTRUCTED, INVENTED, PLAIN, by_mteb, cosines, evaluate, loaded, make_model, split_data
from support.tiny_models import tiny_base
from support.toy_collections import invented, write_invented

from unimoe.config import Experiment
from unimoe.core.errors import DataError, UsageError
from unimoe.data.collection import Collection, Document, assemble
from unimoe.evaluation.embedding_eval import MTEBOutcome, evaluate_mteb
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper
from unimoe.evaluation.mteb.tasks import Rankings
from unimoe.evaluation.tasks.mteb import evaluate_task
from unimoe.models import reranker as shards
from unimoe.models.unimodel import UnimodelForExp1

if TYPE_CHECKING:
    from mteb import AbsTask

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model() -> UnimodelForExp1:
    return make_model()


def theirs(wrapped: MTEBEncoderWrapper, task: AbsTask) -> dict[str, Any]:
    """The scores that MTEB finds with its own search wrappers, as JSON values."""
    scores: dict[str, Any] = json.loads(by_mteb(wrapped, task).model_dump_json())["scores"]
    return scores


def ours(wrapped: MTEBEncoderWrapper, task: AbsTask) -> dict[str, Any]:
    scores: dict[str, Any] = evaluate_task(wrapped, task).mteb_json["scores"]
    return scores


def numbers(value: Any, key: str = "") -> dict[str, float]:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {path: number for own, part in items for path, number in numbers(part, f"{key}/{own}").items()}
    return {key: float("nan") if value is None else value} if isinstance(value, int | float | None) else {}


WORDS = ("cat", "dog", "rain", "roof", "salt")


def tied(documents: int, seed: int = 0) -> Collection:
    """Documents of one to three words, so that most scores occur often; queries whose ids are documents' too."""
    rng = random.Random(seed)
    ids = [f"d{number:04d}" for number in rng.sample(range(10_000), documents)]
    corpus = [(key, Document("", " ".join(rng.choices(WORDS, k=rng.randint(1, 3))))) for key in ids]
    queries = [(key, " ".join(rng.choices(WORDS, k=2))) for key in ids[:12]]
    qrels = {query: dict.fromkeys(rng.sample(ids, 9), 1) | {query: 0} for query, _ in queries}
    return assemble("tied", "test", corpus, queries, qrels)


class Tied(mteb_tasks.InventedRetrieval):
    """Retrieval among documents that tie."""

    metadata = mteb_tasks.card("Tied", "Retrieval", "ndcg_at_10")

    def held(self) -> dict[str, Any]:
        return {"default": {"test": split_data(tied(200))}}


class TiedCandidates(Tied):
    """The same, among candidates in no order; one query has none."""

    metadata = mteb_tasks.card("TiedCandidates", "Reranking", "map_at_1000")
    given = 60

    def held(self) -> dict[str, Any]:
        collection, rng = tied(200), random.Random(1)
        ids = list(collection.corpus)
        given = {query: dict.fromkeys(rng.sample(ids, self.given), 0.0) for query in collection.queries}
        given[next(iter(given))] = {}
        return {"default": {"test": split_data(collection, given)}}


class TiedButExcluded(TiedCandidates):
    """Candidates that are nearly the whole corpus, as BRIGHT excludes documents."""

    metadata = mteb_tasks.card("TiedButExcluded", "Retrieval", "ndcg_at_10")
    given = 190


WORDY = MTEBEncoderWrapper(WordEmbedder(WORDS), prompts=PLAIN)


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("kind", [Tied, TiedCandidates, TiedButExcluded], ids=lambda kind: kind.__name__)
def test_scores_among_ties_are_mtebs(kind: type[Any], ignored: bool) -> None:
    one, other = loaded(kind), loaded(kind)
    one.ignore_identical_ids = other.ignore_identical_ids = ignored  # type: ignore[attr-defined]
    found, expected = numbers(ours(WORDY, one)), numbers(theirs(WORDY, other))
    assert found == pytest.approx(expected, abs=1e-6, nan_ok=True)
    assert any(key.endswith("main_score") for key in found)


@pytest.mark.parametrize("depth", [1, 10, 100])
def test_the_cut_keeps_the_scores_that_mteb_keeps(depth: int) -> None:
    runs = []
    for find in (ours, theirs):
        task: Any = loaded(Tied)
        task._top_k = depth
        rankings = Rankings(task)
        find(WORDY, task)
        runs.append({query: sorted(found.values(), reverse=True) for query, found in rankings.run.items()})
    assert runs[0].keys() == runs[1].keys()
    for query, scores in runs[0].items():
        assert len(scores) == depth
        assert scores == pytest.approx(runs[1][query], abs=1e-6)


def test_what_cannot_be_ranked_is_named(model: UnimodelForExp1, experiment: Experiment) -> None:
    for wrapped in (WORDY, MTEBCrossEncoderWrapper(model)):
        data: Any = loaded(TiedCandidates)
        given = data.dataset["default"]["test"]["top_ranked"]
        given["of no query"] = ["nowhere"]
        query = data.dataset["default"]["test"]["queries"]["id"][3]
        given[query][4] = "nowhere"
        with pytest.raises(DataError, match=rf"^TiedCandidates, query '{query}': candidate 'nowhere' is no"):
            evaluate_task(wrapped, data)
    data = loaded(Tied)
    with pytest.raises(DataError, match=r"^Tied: gives no candidates to rerank"):
        evaluate_task(MTEBCrossEncoderWrapper(model), data)
    with pytest.raises(UsageError, match=r"^SciFact is a task of type Retrieval, which gives no candidates"):
        evaluate_mteb(model, None, experiment, ["AskUbuntuDupQuestions", "SciFact"], cross_encoder=True)
    part = data.dataset["default"]["test"]
    place = part["corpus"]["id"][5]
    part["corpus"] = part["corpus"].map(lambda row: row | {"text": "nan"} if row["id"] == place else row)
    with pytest.raises(DataError, match=rf"^Tied, document '{place}': the embedding is not finite"):
        evaluate_task(WORDY, data)
    part["queries"] = part["queries"].select([])
    with pytest.raises(DataError, match=r"^Tied: a split has no queries; leave the task out"):
        evaluate_task(WORDY, data)


@pytest.mark.parametrize("kind", [Tied, TiedCandidates], ids=lambda kind: kind.__name__)
def test_a_killed_task_embeds_what_is_left(tmp_path: Path, kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unimoe.retrieval.embeddings.UNIT_CHARACTERS", 100)
    done: list[int] = []
    whole, killed, rest = WordEmbedder(WORDS), WordEmbedder(WORDS, fail_after=80), WordEmbedder(WORDS)
    wrapped = MTEBEncoderWrapper(whole, prompts=PLAIN, advance=done.append)
    undisturbed = evaluate_task(wrapped, loaded(kind), folder=tmp_path / "whole")
    assert sum(done) == undisturbed.items
    with pytest.raises(KeyboardInterrupt):
        evaluate_task(MTEBEncoderWrapper(killed, prompts=PLAIN), loaded(kind), folder=tmp_path)
    resumed = evaluate_task(MTEBEncoderWrapper(rest, prompts=PLAIN), loaded(kind), folder=tmp_path)
    assert (resumed.run, resumed.main_score) == (undisturbed.run, undisturbed.main_score)
    assert killed.embedded["document"] + rest.embedded["document"] <= 200
    assert rest.embedded["document"] <= 200 - 80
    assert rest.embedded["query"] == 0  # they fill more than a unit, and were done


def test_shards_of_a_killed_cross_encoder_are_found_again(
    model: UnimodelForExp1, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 300)
    sizes, rerank_ids, task = list[int](), model.rerank_ids, mteb_tasks.InventedReranking

    def counted(sequences: list[list[int]], **options: Any) -> Any:
        sizes.append(len(sequences))
        if len(sizes) == 3:
            raise KeyboardInterrupt
        return rerank_ids(sequences, **options)

    wrapped = MTEBCrossEncoderWrapper(model)
    whole, pairs = evaluate_task(wrapped, loaded(task)), sum(map(len, mteb_tasks.CANDIDATES.values()))
    monkeypatch.setattr(model, "rerank_ids", counted)
    with pytest.raises(KeyboardInterrupt):
        evaluate_task(wrapped, loaded(task), folder=tmp_path)
    resumed = evaluate_task(wrapped, loaded(task), folder=tmp_path)
    assert (resumed.run, resumed.main_score) == (whole.run, whole.main_score)
    assert sum(sizes) == sizes[2] + pairs
    evaluate_task(MTEBCrossEncoderWrapper(model, prompts=INSTRUCTED), loaded(task), folder=tmp_path)
    assert sum(sizes) == sizes[2] + 2 * pairs


PARTS = {
    ("dev", "left"): invented(documents=9, queries=3),
    ("dev", "right"): invented(documents=10, queries=4),
    ("test", "left"): invented(documents=11, queries=2),
    ("test", "right"): invented(documents=12, queries=5),
}
"""Of ``InventedParts``, by split and subset; they have document and query ids in common."""

SPLITS, SUBSETS = ["dev", "test"], {"left": ["eng-Latn"], "right": ["eng-Latn"]}


class InventedParts(mteb_tasks.InventedRetrieval):
    """Retrieval in two splits of two subsets each, which have a corpus of their own."""

    metadata = mteb_tasks.card("InventedParts", "Retrieval", "ndcg_at_10", eval_splits=SPLITS, eval_langs=SUBSETS)

    def held(self) -> dict[str, Any]:
        return {subset: {split: split_data(PARTS[split, subset]) for split in SPLITS} for subset in SUBSETS}


def test_splits_and_subsets_are_told_apart_and_nothing_is_printed_or_logged(
    model: UnimodelForExp1, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        outcome = evaluate(model, InventedParts)
    assert (capfd.readouterr(), caplog.messages) == (("", ""), [])
    expected, texts, means = dict[str, float](), dict[str, str](), []
    for (split, subset), collection in PARTS.items():
        found = pytrec_eval.RelevanceEvaluator(collection.qrels, {"ndcg_cut.10"}).evaluate(cosines(model, collection))
        per_query = {query: values["ndcg_cut_10"] for query, values in found.items()}
        means.append(np.mean([*per_query.values()]))
        expected |= {f"{split}/{subset}/{query}": value for query, value in per_query.items()}
        texts |= {f"{split}/{subset}/{query}": collection.queries[query] for query in per_query}
    assert outcome.scores.per_query["ndcg@10"] == pytest.approx(expected)
    assert outcome.main_score == pytest.approx(np.mean(means), abs=1e-5)  # MTEB's, over parts
    assert outcome.queries == texts
    assert outcome.run.keys() == outcome.qrels.keys() == expected.keys()


@pytest.mark.filterwarnings("ignore:An input array is constant")
def test_scores_that_are_no_number_are_refused(model: UnimodelForExp1, monkeypatch: pytest.MonkeyPatch) -> None:
    alike = np.full((1, 4), 0.5, dtype=np.float32)
    monkeypatch.setattr(model, "encode", lambda texts, **_: alike.repeat(len(texts), axis=0))
    with pytest.raises(DataError, match=r"^InventedSTS: cosine_spearman is not a number"):
        evaluate(model, mteb_tasks.InventedSTS)


@pytest.mark.parametrize("kind", INVENTED, ids=lambda kind: kind.__name__)
def test_an_embedding_that_is_not_finite_is_named(kind: type[Any]) -> None:
    model = make_model()
    with torch.no_grad():
        model.model.model.norm.weight[0] = torch.nan
    with pytest.raises(DataError, match=rf"^{kind.__name__}, (text 1|query 'q0'): the score is not finite"):
        evaluate(model, kind)


def test_a_folder_of_the_users_is_read_as_the_task_it_is(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scifact, base, done = invented(documents=14, queries=4, name="scifact"), tiny_base(), list[int]()
    write_invented(tmp_path / "scifact", scifact)
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path))
    outcome = evaluate_mteb(base.model, base.tokenizer, experiment, ["SciFact"], advance=done.append)
    assert (outcome.failures, list(outcome.tasks)) == ({}, ["SciFact"])
    found = outcome.tasks["SciFact"]
    instruction = "Given a scientific claim, retrieve documents that support or refute the claim"
    model = UnimodelForExp1(tiny_base(), experiment.prompt, experiment.model.max_length)
    for query, cosine in cosines(model, scifact, f"Instruct: {instruction}\nQuery:").items():
        assert found.run[query] == pytest.approx(cosine, abs=1e-5)
    assert outcome.mean == found.main_score == pytest.approx(found.scores.aggregate["ndcg@10"], abs=1e-5)
    assert sum(done) == found.items == 14 + 4


def test_means_are_over_tasks_and_over_types() -> None:
    scores = {"a": ("STS", 0.2), "b": ("STS", 0.4), "c": ("Retrieval", 0.9)}
    tasks: Any = {name: SimpleNamespace(task_type=kind, main_score=value) for name, (kind, value) in scores.items()}
    outcome = MTEBOutcome(tasks, {"d": "no data"})
    assert outcome.mean == pytest.approx(0.5)
    assert outcome.mean_by_type == pytest.approx({"STS": 0.3, "Retrieval": 0.9})
    assert np.isnan(MTEBOutcome({}).mean)
