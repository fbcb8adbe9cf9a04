"""MTEB from Python: a model and names of tasks in, scores out, and whatever changes scores is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import mteb_tasks
from support.experiments import tiny_experiment
from support.mteb_runs import INSTRUCTED, PLAIN, PROMPT, cosines, evaluate, make_model
from support.reranking import invented, write_invented
from support.tiny_models import tiny_base

from unimoe.config import Experiment, MTEBConfig
from unimoe.core.errors import UsageError
from unimoe.data.collection import Collection
from unimoe.evaluation.embedding_eval import MTEBOutcome, evaluate_mteb
from unimoe.evaluation.model_wrappers import MTEBCrossEncoderWrapper, MTEBEncoderWrapper
from unimoe.evaluation.mteb.prompts import TaskPrompts
from unimoe.models.unimodel import UnimodelForExp1

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model() -> UnimodelForExp1:
    return make_model()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    return tiny_experiment(tmp_path_factory.mktemp("config"))


class TestNeverStale:
    """Whatever changes scores changes the revision that MTEB files them under."""

    def changed(self) -> dict[str, tuple[UnimodelForExp1, TaskPrompts]]:
        moved, half = make_model(), make_model()
        with torch.no_grad():
            moved.model.model.layers[-1].mlp.down_proj.weight.mul_(1.5)
        half.model.to(torch.bfloat16)
        by_hand = TaskPrompts(MTEBConfig(task_instruction=None, prompts={"Retrieval": "Words: ", "STS": "Words: "}))
        suffix = PROMPT.model_copy(update={"embedding_suffix": "\n"})
        return {
            "nothing": (make_model(), PLAIN),
            "weights": (moved, PLAIN),
            "base": (make_model(seed=1), PLAIN),
            "prompt": (make_model(prompt=suffix), PLAIN),
            "length": (make_model(max_length=150), PLAIN),
            "dtype": (half, PLAIN),
            "by hand": (make_model(), by_hand),
            "instruction": (make_model(), INSTRUCTED),
        }

    def test_revisions_differ_each_time(self) -> None:
        changed = self.changed()
        revisions = {MTEBEncoderWrapper(m, prompts=prompts).mteb_model_meta.revision for m, prompts in changed.values()}
        assert len(revisions) == len(changed)
        models = [m for name, (m, _) in changed.items() if name not in {"by hand", "instruction"}]
        assert len({MTEBCrossEncoderWrapper(m).mteb_model_meta.revision for m in models}) == len(models)

    def test_nothing_is_left_in_mtebs_cache(self, model: UnimodelForExp1) -> None:
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

    def run(self, config: Experiment, seed: int = 0, **settings: Any) -> MTEBOutcome:
        base = tiny_base(seed=seed)
        return evaluate_mteb(base.model, base.tokenizer, config, ["SciFact"], **settings)

    def test_a_folder_of_the_users_is_read_as_the_task_it_is(self, scifact: Collection, config: Experiment) -> None:
        done: list[int] = []
        outcome = self.run(config, advance=done.append)
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

    @pytest.mark.usefixtures("scifact")
    def test_every_change_is_seen(self, config: Experiment) -> None:
        def with_mteb(**mteb: Any) -> Experiment:
            section = config.evaluation.model_copy(update={"mteb": MTEBConfig(**mteb)})
            return config.model_copy(update={"evaluation": section})

        shorter = config.model_copy(update={"model": config.model.model_copy(update={"max_length": 60})})
        runs = [
            self.run(config).tasks["SciFact"].run,
            self.run(config, seed=1).tasks["SciFact"].run,
            self.run(shorter).tasks["SciFact"].run,
            self.run(with_mteb(task_instruction=None)).tasks["SciFact"].run,
            self.run(with_mteb(prompts={"query": "Claim: "})).tasks["SciFact"].run,
            self.run(with_mteb(prompts={"document": "Abstract: "})).tasks["SciFact"].run,
        ]
        assert all(one != other for n, one in enumerate(runs) for other in runs[:n])
        assert self.run(config).tasks["SciFact"].run == runs[0]

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
