"""MTEB from our search models: ties as MTEB breaks them, parts told apart, no text embedded twice, and from Python."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import pytrec_eval
import torch
from support import mteb_tasks
from support.embedders import WordEmbedder
from support.experiments import tiny_experiment
from support.mteb_tasks import ALL_TYPES, INSTRUCTED, PARTS, PLAIN, cosines, evaluate, loaded, make_model, split_data
from support.reranking import invented, write_invented
from support.tiny_models import tiny_base

from unimoe.config import Experiment
from unimoe.core.errors import DataError, UsageError
from unimoe.data.collection import Collection, Document, assemble
from unimoe.evaluation.embedding_eval import MTEBOutcome, evaluate_embedding_collection, evaluate_mteb, evaluate_task
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper
from unimoe.evaluation.mteb import search
from unimoe.evaluation.reranking import shards
from unimoe.evaluation.spec import Outcome
from unimoe.models.unimodel import UnimodelForExp1

if TYPE_CHECKING:
    from mteb import AbsTask

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model() -> UnimodelForExp1:
    return make_model()


def theirs(wrapped: MTEBEncoderWrapper | MTEBCrossEncoderWrapper, task: AbsTask) -> dict[str, Any]:
    """The scores that MTEB finds with its own search wrappers, as JSON values."""
    import mteb

    quiet: Any = {"batch_size": 8, "show_progress_bar": False}
    results = mteb.evaluate(wrapped, task, cache=None, co2_tracker=False, show_progress_bar=False, encode_kwargs=quiet)
    scores: dict[str, Any] = json.loads(results.task_results[0].model_dump_json())["scores"]
    return scores


def ours(
    wrapped: MTEBEncoderWrapper | MTEBCrossEncoderWrapper, task: AbsTask, folder: Path | None = None
) -> dict[str, Any]:
    scores: dict[str, Any] = evaluate_task(wrapped, task, folder=folder).mteb_json["scores"]
    return scores


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """All numbers to 1e-6, by split, subset and measure."""
    assert numbers(found) == pytest.approx(numbers(expected), abs=1e-6, nan_ok=True)
    assert any(key.endswith("main_score") for key in numbers(found))


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
    documents = 200

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        """As given by ``tied``."""
        self.dataset = {"default": {"test": split_data(tied(self.documents))}}
        self.data_loaded = True


class TiedCandidates(Tied):
    """The same, among candidates in no order; one query has none."""

    metadata = mteb_tasks.card("TiedCandidates", "Reranking", "map_at_1000")
    given = 60

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        """So many candidates of each query."""
        collection = tied(self.documents)
        rng = random.Random(1)
        given = {
            query: dict.fromkeys(rng.sample(list(collection.corpus), self.given), 0.0) for query in collection.queries
        }
        given[next(iter(given))] = {}
        self.dataset = {"default": {"test": split_data(collection, given)}}
        self.data_loaded = True


class TiedButExcluded(TiedCandidates):
    """Candidates that are nearly the whole corpus, as BRIGHT excludes documents."""

    metadata = mteb_tasks.card("TiedButExcluded", "Retrieval", "ndcg_at_10")
    given = 190


def words(**settings: Any) -> MTEBEncoderWrapper:
    return MTEBEncoderWrapper(WordEmbedder(WORDS), prompts=PLAIN, **settings)


class TestTies:
    @pytest.mark.parametrize("ignored", [False, True])
    @pytest.mark.parametrize("kind", [Tied, TiedCandidates, TiedButExcluded], ids=lambda kind: kind.__name__)
    def test_scores_are_mtebs(self, kind: type[Any], ignored: bool) -> None:
        one, other = loaded(kind), loaded(kind)
        one.ignore_identical_ids = other.ignore_identical_ids = ignored  # type: ignore[attr-defined]
        assert_same(ours(words(), one), theirs(words(), other))

    @pytest.mark.parametrize("depth", [1, 10, 100])
    def test_the_cut_keeps_the_scores_that_mteb_keeps(self, depth: int) -> None:
        from unimoe.evaluation.mteb.tasks import Rankings

        runs = []
        for find in (ours, theirs):
            task: Any = loaded(Tied)
            task._top_k = depth
            rankings = Rankings(task)
            find(words(), task)
            runs.append({query: sorted(found.values(), reverse=True) for query, found in rankings.run.items()})
        assert runs[0].keys() == runs[1].keys()
        for query, scores in runs[0].items():
            assert len(scores) == depth
            assert scores == pytest.approx(runs[1][query], abs=1e-6)


class TestErrors:
    def test_a_candidate_that_is_no_document_is_named(self, model: UnimodelForExp1) -> None:
        for wrapped in (words(), MTEBCrossEncoderWrapper(model)):
            task: Any = loaded(TiedCandidates)
            task.dataset["default"]["test"]["top_ranked"]["of no query"] = ["nowhere"]
            query = task.dataset["default"]["test"]["queries"]["id"][3]
            task.dataset["default"]["test"]["top_ranked"][query][4] = "nowhere"
            with pytest.raises(DataError, match=rf"^TiedCandidates, query '{query}': candidate 'nowhere' is no"):
                evaluate_task(wrapped, task)

    def test_a_cross_encoder_needs_candidates(self, model: UnimodelForExp1) -> None:
        with pytest.raises(DataError, match=r"^Tied: gives no candidates to rerank"):
            evaluate_task(MTEBCrossEncoderWrapper(model), loaded(Tied))

    def test_a_document_that_cannot_be_embedded_is_named(self) -> None:
        task: Any = loaded(Tied)
        data = task.dataset["default"]["test"]
        place = data["corpus"]["id"][5]
        data["corpus"] = data["corpus"].map(lambda row: row | {"text": "nan"} if row["id"] == place else row)
        with pytest.raises(DataError, match=rf"^Tied, document '{place}': the embedding is not finite"):
            evaluate_task(words(), task)


class TestResuming:
    @pytest.fixture(autouse=True)
    def small_units(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(search, "ENCODED_CHARACTERS", 100)

    def evaluate(self, embedder: WordEmbedder, folder: Path, kind: type[Any] = Tied, **settings: Any) -> Outcome:
        wrapped = MTEBEncoderWrapper(embedder, **({"prompts": PLAIN} | settings))
        return evaluate_task(wrapped, loaded(kind), folder=folder)

    @pytest.mark.parametrize("kind", [Tied, TiedCandidates], ids=lambda kind: kind.__name__)
    def test_a_killed_task_embeds_only_what_is_left(self, tmp_path: Path, kind: type[Any]) -> None:
        done: list[int] = []
        undisturbed = self.evaluate(WordEmbedder(WORDS), tmp_path / "whole", kind, advance=done.append)
        assert sum(done) == undisturbed.items
        killed, rest = WordEmbedder(WORDS, fail_after=80), WordEmbedder(WORDS)
        with pytest.raises(KeyboardInterrupt):
            self.evaluate(killed, tmp_path / "killed", kind)
        resumed = self.evaluate(rest, tmp_path / "killed", kind)
        assert (resumed.run, resumed.main_score) == (undisturbed.run, undisturbed.main_score)
        assert killed.embedded["document"] + rest.embedded["document"] <= 200
        assert rest.embedded["document"] <= 200 - 80
        assert rest.embedded["query"] == 0  # they fill more than a unit, and were done

    def test_shards_of_a_cross_encoder_are_found_again(
        self, model: UnimodelForExp1, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shards, "SHARD_CHARACTERS", 300)
        sizes: list[int] = []
        rerank_ids = model.rerank_ids

        def counted(sequences: list[list[int]], **options: Any) -> Any:
            sizes.append(len(sequences))
            if len(sizes) == 3:
                raise KeyboardInterrupt
            return rerank_ids(sequences, **options)

        task = mteb_tasks.InventedReranking
        whole = evaluate_task(MTEBCrossEncoderWrapper(model), loaded(task))
        monkeypatch.setattr(model, "rerank_ids", counted)
        wrapped = MTEBCrossEncoderWrapper(model)
        with pytest.raises(KeyboardInterrupt):
            evaluate_task(wrapped, loaded(task), folder=tmp_path)
        resumed = evaluate_task(wrapped, loaded(task), folder=tmp_path)
        assert (resumed.run, resumed.main_score) == (whole.run, whole.main_score)
        assert sum(sizes) == sizes[2] + sum(map(len, mteb_tasks.CANDIDATES.values()))
        other = MTEBCrossEncoderWrapper(model, prompts=INSTRUCTED)
        evaluate_task(other, loaded(task), folder=tmp_path)
        assert sum(sizes) == sizes[2] + 2 * sum(map(len, mteb_tasks.CANDIDATES.values()))


def test_splits_and_subsets_are_told_apart(model: UnimodelForExp1) -> None:
    outcome = evaluate(model, mteb_tasks.InventedParts)
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


class TestRefused:
    @pytest.mark.filterwarnings("ignore:An input array is constant")
    def test_scores_that_are_no_number(self, model: UnimodelForExp1, monkeypatch: pytest.MonkeyPatch) -> None:
        alike = np.full((1, 4), 0.5, dtype=np.float32)
        monkeypatch.setattr(model, "encode", lambda texts, **_: alike.repeat(len(texts), axis=0))
        with pytest.raises(DataError, match=r"^InventedSTS: cosine_spearman is not a number"):
            evaluate(model, mteb_tasks.InventedSTS)

    @pytest.mark.parametrize("kind", ALL_TYPES, ids=lambda kind: kind.__name__)
    def test_an_embedding_that_is_not_finite_is_named(self, kind: type[Any]) -> None:
        model = make_model()
        with torch.no_grad():
            model.model.model.norm.weight[0] = torch.nan
        with pytest.raises(DataError, match=rf"^{kind.__name__}, (text 1|query 'q0'): the score is not finite"):
            evaluate(model, kind)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("config"))


class TestEvaluateMTEB:
    """From Python: a causal language model with its tokenizer, and names of tasks."""

    @pytest.fixture
    def scifact(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Collection:
        collection = invented(documents=14, queries=4, name="scifact")
        write_invented(tmp_path / "scifact", collection)
        monkeypatch.setenv("UNIMOE_DATA", str(tmp_path))
        return collection

    def test_a_folder_of_the_users_is_read_as_the_task_it_is(self, scifact: Collection, config: Experiment) -> None:
        done: list[int] = []
        base = tiny_base()
        outcome = evaluate_mteb(base.model, base.tokenizer, config, ["SciFact"], advance=done.append)
        assert (outcome.failures, list(outcome.tasks)) == ({}, ["SciFact"])
        found = outcome.tasks["SciFact"]
        instruction = "Given a scientific claim, retrieve documents that support or refute the claim"
        model = UnimodelForExp1(tiny_base(), config.prompt, config.model.max_length)
        expected = cosines(model, scifact, f"Instruct: {instruction}\nQuery:")
        for query, cosine in expected.items():
            assert found.run[query] == pytest.approx(cosine, abs=1e-5)
        assert outcome.mean == found.main_score == pytest.approx(found.scores.aggregate["ndcg@10"], abs=1e-5)
        assert outcome.mean_by_type == {"Retrieval": found.main_score}
        assert sum(done) == found.items == 14 + 4

    def test_means_over_tasks_and_types(self, model: UnimodelForExp1) -> None:
        one = evaluate(model, mteb_tasks.InventedSTS)
        scores = {"a": ("STS", 0.2), "b": ("STS", 0.4), "c": ("Retrieval", 0.9)}
        tasks = {name: replace(one, task_type=kind, main_score=value) for name, (kind, value) in scores.items()}
        outcome = MTEBOutcome(tasks, {"d": "no data"})
        assert outcome.mean == pytest.approx(0.5)
        assert outcome.mean_by_type == pytest.approx({"STS": 0.3, "Retrieval": 0.9})
        assert np.isnan(MTEBOutcome({}).mean)

    def test_a_task_without_candidates_is_refused(self, model: UnimodelForExp1, config: Experiment) -> None:
        with pytest.raises(UsageError, match=r"^SciFact is a task of type Retrieval, which gives no candidates"):
            evaluate_mteb(model, None, config, ["AskUbuntuDupQuestions", "SciFact"], cross_encoder=True)


class TestSideEffects:
    def test_the_random_generators_of_a_training_are_left_alone(self, model: UnimodelForExp1) -> None:
        collection, drawn = invented(documents=20, queries=5), []
        for evaluated in (False, True):
            for seed in (torch.manual_seed, random.seed, np.random.seed):
                seed(11)
            if evaluated:
                evaluate_embedding_collection(MTEBEncoderWrapper(model, identity={}), collection)
            drawn.append((float(torch.rand(1)), random.random(), float(np.random.random())))
        assert drawn[0] == drawn[1]

    def test_nothing_is_printed_and_nothing_logged(
        self,
        model: UnimodelForExp1,
        capfd: pytest.CaptureFixture[str],
        caplog: pytest.LogCaptureFixture,
        recwarn: pytest.WarningsRecorder,
    ) -> None:
        with caplog.at_level(logging.INFO):
            evaluate(model, mteb_tasks.InventedRetrieval)
        assert capfd.readouterr() == ("", "")
        assert caplog.messages == []
        # Files that earlier tests left open may be closed at any moment.
        assert [str(one.message) for one in recwarn if not issubclass(one.category, ResourceWarning)] == []
