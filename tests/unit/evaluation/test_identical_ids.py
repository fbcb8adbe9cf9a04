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

from unimoe.config import BM25Config
from unimoe.core.console import Steps
from unimoe.core.trec import read_run
from unimoe.data.catalog import mteb_task
from unimoe.data.collection import Collection, Document, assemble
from unimoe.evaluation.runner import Evaluator, describe
from unimoe.evaluation.store import ResultStore
from unimoe.evaluation.systems.system import first_stage_system, zero_shot_system
from unimoe.evaluation.tiers.datasets import Dataset, LoadedDataset, chosen_datasets
from unimoe.models.loader import ModelLoader
from unimoe.results import run_beside

pytestmark = pytest.mark.usefixtures("one_thread")


def named(collection: str) -> Dataset:
    return Dataset(collection, "test", 100, BM25Config())


def ask_mteb(task: str) -> bool:
    return bool(getattr(mteb.get_task(task), "ignore_identical_ids", False))


class TestRule:
    @pytest.mark.parametrize(
        ("collection", "task"),
        [
            ("FiQA2018", "FiQA2018"),
            ("path:my/FiQA", "FiQA2018"),
            ("ir_datasets:msmarco-passage/dev/small", "MSMARCO"),
            ("ir_datasets:beir/cqadupstack/tex", "CQADupstackTexRetrieval"),
            ("trec-covid", "TRECCOVID"),
            ("mteb:ArguAna-PL", "ArguAna-PL"),
            ("mteb:BelebeleRetrieval:kor_Hang-kor_Hang", "BelebeleRetrieval"),
            ("nanobeir:climatefever", "NanoClimateFeverRetrieval"),
        ],
    )
    def test_it_is_that_of_mtebs_task_by_whatever_name_the_data_comes(self, collection: str, task: str) -> None:
        assert mteb_task(collection) == task
        assert named(collection).exclude_self is ask_mteb(task)

    def test_other_collections_keep_such_documents_without_asking_mteb(self) -> None:
        code = (
            "import sys; from unimoe.config import BM25Config; from unimoe.evaluation.tiers.datasets import Dataset\n"
            "for name in ('apidocs', 'path:my/notes', 'my-notes', 'ir_datasets:vaswani'):\n"
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


@pytest.mark.usefixtures("data")
def test_every_task_leaves_out_the_same_and_a_result_of_another_rule_is_not_done(tmp_path: Path) -> None:
    experiment = tiny_experiment(tmp_path)
    system = zero_shot_system(experiment, ModelLoader(experiment, torch.device("cpu"), torch.float32))
    left_out = {"identical_ids": "left out"}
    for name, rule in (("fiqa", left_out), ("arguana", left_out), ("scifact", {})):
        data = LoadedDataset(chosen_datasets(experiment, [name])[0])
        assert ("q0" not in data.candidates["q0"]) is bool(rule)
        for one in (
            replace(system, tasks=("embedding",)),
            replace(first_stage_system(experiment), tasks=("retrieval",)),
        ):
            (task,) = one.tasks
            spec = describe(replace(one, output_dir=tmp_path / name), task, data)
            Evaluator().take(spec, Steps(1))
            store = ResultStore(tmp_path / name)
            assert ("q0" not in read_run(run_beside(store.path(spec)))["q0"]) is bool(rule)
            before = replace(spec, hashes={key: v for key, v in spec.hashes.items() if key != "identical_ids"})
            assert spec.hashes == before.hashes | rule
            assert store.is_done(spec)
            assert store.is_done(before) is not bool(rule)
