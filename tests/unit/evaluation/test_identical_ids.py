"""The one rule for a document whose id is the query's: MTEB's, where it has a task of the collection."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import mteb
import pytest
import torch
from support.experiments import tiny_experiment
from support.reranking import invented, write_invented

from unimoe.config import BM25Config, Experiment
from unimoe.core.console import Steps
from unimoe.data.catalog import mteb_task
from unimoe.data.collection import Collection, Document, assemble
from unimoe.data.mteb_names import find_tasks
from unimoe.evaluation.runner import Evaluator
from unimoe.evaluation.spec import Evaluation, collection_evaluation
from unimoe.evaluation.store import ResultStore
from unimoe.evaluation.systems.system import System, first_stage_system, zero_shot_system
from unimoe.evaluation.tiers.datasets import Dataset, LoadedDataset, chosen_datasets
from unimoe.models.loader import ModelLoader
from unimoe.results import Task

pytestmark = pytest.mark.usefixtures("one_thread")


def named(collection: str) -> Dataset:
    return Dataset(collection, "test", 100, BM25Config())


def ask_mteb(task: str) -> bool:
    return bool(getattr(mteb.get_task(task), "ignore_identical_ids", False))


class TestRule:
    @pytest.mark.parametrize(
        ("collection", "task"),
        [
            ("fiqa", "FiQA2018"),
            ("FiQA2018", "FiQA2018"),
            ("path:my/FiQA", "FiQA2018"),
            ("ir_datasets:beir/fiqa/test", "FiQA2018"),
            ("msmarco", "MSMARCO"),
            ("ir_datasets:msmarco-passage/dev/small", "MSMARCO"),
            ("ir_datasets:beir/quora/test", "QuoraRetrieval"),
            ("path:my/cqadupstack/tex", "CQADupstackTexRetrieval"),
            ("ir_datasets:beir/cqadupstack/tex", "CQADupstackTexRetrieval"),
            ("trec-covid", "TRECCOVID"),
            ("mteb:ArguAna-PL", "ArguAna-PL"),
            ("mteb:QuoraRetrievalHardNegatives", "QuoraRetrievalHardNegatives"),
            ("mteb:BelebeleRetrieval:kor_Hang-kor_Hang", "BelebeleRetrieval"),
            ("nanobeir:ArguAna", "NanoArguAnaRetrieval"),
            ("nanobeir:climatefever", "NanoClimateFeverRetrieval"),
        ],
    )
    def test_it_is_that_of_mtebs_task_by_whatever_name_the_data_comes(self, collection: str, task: str) -> None:
        assert mteb_task(collection) == task
        assert named(collection).exclude_self is ask_mteb(task)

    def test_every_retrieval_task_of_the_benchmark(self) -> None:
        for task in find_tasks(["full"]):
            if task.metadata.type == "Retrieval":
                name = task.metadata.name
                assert named(f"mteb:{name}").exclude_self is ask_mteb(name), name

    @pytest.mark.parametrize("collection", ["apidocs", "path:my/notes", "my-notes", "ir_datasets:vaswani"])
    def test_other_collections_keep_such_documents(self, collection: str) -> None:
        assert mteb_task(collection) is None
        assert not named(collection).exclude_self

    def test_collections_that_mteb_does_not_know_are_asked_without_importing_it(self) -> None:
        code = (
            "import sys; from unimoe.config import BM25Config; from unimoe.evaluation.tiers.datasets import Dataset\n"
            "for name in ('apidocs', 'path:my/notes'):\n"
            "    data = Dataset(name, 'test', 9, BM25Config())\n"
            "    assert not data.exclude_self and not data.rule_hashes\n"
            "assert not {'mteb', 'torch'} & set(sys.modules)\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


def with_shared_id(name: str) -> Collection:
    """A collection whose first query has the id of a document that has the same words."""
    base = invented(name=name)
    text = base.queries["q0"]
    corpus = {**base.corpus, "q0": Document("", text)}
    return assemble(name, "test", corpus.items(), base.queries.items(), base.qrels)


@pytest.fixture
def data(tmp_path: Path, tmp_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """FiQA, ArguAna and SciFact in invented words; a query of each shares its id with a document."""
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path))
    for name in ("fiqa", "arguana", "scifact"):
        write_invented(tmp_path / name, with_shared_id(name))
    return tmp_path


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return tiny_experiment(tmp_path)


def loaded(experiment: Experiment, name: str) -> LoadedDataset:
    (dataset,) = chosen_datasets(experiment, [name])
    return LoadedDataset(dataset)


@pytest.mark.usefixtures("data")
class TestResults:
    @pytest.fixture
    def system(self, experiment: Experiment) -> System:
        return zero_shot_system(experiment, ModelLoader(experiment, torch.device("cpu"), torch.float32))

    def evaluated(self, output_dir: Path, system: System, task: Task, data: LoadedDataset) -> Evaluation:
        """Write the result of a task on a collection; return its spec."""
        evaluator = Evaluator(output_dir)
        evaluation = evaluator.on_collection(system, task, data)
        evaluator.take(evaluation, Steps(1))
        return evaluation

    def test_reranking_and_embedding_leave_out_the_same(
        self, experiment: Experiment, system: System, tmp_path: Path
    ) -> None:
        for name, out in (("fiqa", True), ("arguana", True), ("scifact", False)):
            data = loaded(experiment, name)
            assert ("q0" not in data.candidates["q0"]) is out
            evaluation = Evaluator(tmp_path / name).on_collection(system, "embedding", data)
            assert ("q0" not in evaluation.run(None).run["q0"]) is out

    @pytest.mark.parametrize("task", ["embedding", "retrieval"])
    def test_a_result_of_another_rule_is_not_done(
        self, experiment: Experiment, system: System, tmp_path: Path, task: Task
    ) -> None:
        one = system if task == "embedding" else first_stage_system(experiment)
        store = ResultStore(tmp_path / "outputs")
        for name, rule in (("arguana", {"identical_ids": "left out"}), ("scifact", {})):
            spec = self.evaluated(store.output_dir, one, task, loaded(experiment, name))
            assert store.is_done(spec)
            before = replace(spec, hashes={key: v for key, v in spec.hashes.items() if key != "identical_ids"})
            assert spec.hashes == before.hashes | rule
            store.write(before, Evaluator(tmp_path).on_collection(one, task, loaded(experiment, name)).run(None))
            assert store.is_done(spec) is not bool(rule)

    def test_rerankings_hash_of_candidates_holds_the_rule(
        self, experiment: Experiment, system: System, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = collection_evaluation(system, "reranking", loaded(experiment, "fiqa"))
        monkeypatch.setattr(Dataset, "exclude_self", False)
        before = collection_evaluation(system, "reranking", loaded(experiment, "fiqa"))
        changed = {key for key in now.hashes if now.hashes[key] != before.hashes.get(key)}
        assert changed == {"candidates"}
