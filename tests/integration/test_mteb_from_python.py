"""MTEB from Python: a model and names of tasks in, scores out, and whatever changes scores is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import mteb_tasks
from support.experiments import tiny_experiment
from support.mteb_runs import cosines, evaluate, make_model
from support.reranking import invented, write_invented
from support.tiny_models import tiny_base

from unimoe.config import Experiment, MTEBConfig
from unimoe.core.errors import UsageError
from unimoe.data.collection import Collection
from unimoe.evaluation.embedding_eval import MTEBOutcome, evaluate_mteb
from unimoe.models.unimodel import UnimodelForExp1

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model() -> UnimodelForExp1:
    return make_model()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("config"))


def test_nothing_is_left_in_mtebs_cache(model: UnimodelForExp1) -> None:
    from mteb.cache import ResultCache

    evaluate(model, mteb_tasks.InventedSTS)
    assert not list(Path(ResultCache().cache_path).rglob("*Invented*"))


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

    def test_an_embedder_is_taken_as_it_is(
        self, model: UnimodelForExp1, scifact: Collection, config: Experiment
    ) -> None:
        plain = config.evaluation.model_copy(update={"mteb": MTEBConfig(task_instruction=None)})
        outcome = evaluate_mteb(model, None, config.model_copy(update={"evaluation": plain}), ["SciFact"])
        for query, cosine in cosines(model, scifact).items():
            assert outcome.tasks["SciFact"].run[query] == pytest.approx(cosine, abs=1e-5)

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
