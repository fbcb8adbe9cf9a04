"""Name and relevance level of a collection: stated by its files, known of published sets, carried to every result."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.experiments import tiny_experiment_dict
from support.json_files import read_plain
from support.results import make_result
from support.sources import ir_dataset, write_beir

from unimoe.config import DenseConfig, Experiment
from unimoe.config.files import parse_config
from unimoe.core.errors import UsageError
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection, Document
from unimoe.data.source import find_source
from unimoe.evaluation.retrieval_eval import dense_collection, retrieval_metrics
from unimoe.evaluation.spec import Evaluation, Outcome
from unimoe.evaluation.store import ResultStore
from unimoe.evaluation.tiers.datasets import chosen_datasets, load_reporting, relevance_level_note
from unimoe.metrics import score_run

GRADED = Collection(
    name="toy",
    split="test",
    corpus={"a": Document("", "red fish"), "b": Document("", "blue fish")},
    queries={"q1": "red", "q2": "blue"},
    qrels={"q1": {"a": 1}, "q2": {"b": 3, "a": 1}},
)


def written(folder: Path, collection: Collection = GRADED, **stated: Any) -> Path:
    write_beir(collection, folder)
    if stated:
        (folder / "collection.json").write_text(json.dumps(stated))
    return folder


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return parse_config(Experiment, tiny_experiment_dict(tmp_path), source="tiny")


def test_a_folder_states_name_and_level_and_its_parts_keep_them(tmp_path: Path) -> None:
    found = load_collection(f"path:{written(tmp_path / 'toy', name='dl20', relevance_level=2)}", "test")
    for part in (found, found.sample_queries(1), *found.split_queries(0.5), found.pool(2)):
        assert (part.name, part.relevance_level, part.level_stated) == ("dl20", 2, True)


@pytest.mark.parametrize(
    ("collection", "split", "level"),
    [
        ("ir_datasets:msmarco-passage/trec-dl-2019", "test", 2),
        ("ir_datasets:msmarco-passage/trec-dl-2020/judged", "test", 2),
        ("ir_datasets:msmarco-passage-v2/trec-dl-2021", "test", 2),
        ("ir_datasets:msmarco-passage/trec-dl-hard", "test", 2),
        ("ir_datasets:msmarco-document/trec-dl-2019", "test", 1),  # where TREC counts from "relevant", which is 1
        ("ir_datasets:beir/msmarco/test", "test", 2),
        ("ir_datasets:beir/msmarco/dev", "dev", 1),
        ("ir_datasets:antique/test", "test", None),
        ("msmarco", "test", 2),
        ("msmarco", "dev", 1),
        ("path:data/msmarco", "test", 2),
        ("nanobeir:MSMARCO", "test", 1),
        ("apidocs", "test", 1),
        ("nfcorpus", "test", 1),
        ("Touche2020", "test", 1),
        ("path:data/trec-covid/", "test", 1),
        ("path:data/DBPedia", "test", 1),
        ("cqadupstack/tex", "test", 1),
        ("mteb:NFCorpus", "test", 1),
        ("path:data/mine", "test", None),
        ("mine", "test", None),
    ],
)
def test_what_is_known_of_published_sets(collection: str, split: str, level: int | None) -> None:
    source, name = find_source(collection)
    assert source.relevance_level(name, split) == level


def test_trec_dl_from_ir_datasets_counts_from_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=lambda name: ir_dataset(GRADED)))
    found = load_collection("ir_datasets:msmarco-passage/trec-dl-2020/judged", "test")
    assert (found.name, found.relevance_level, found.level_stated) == ("msmarco-passage/trec-dl-2020/judged", 2, True)


def test_a_folder_may_not_take_the_name_of_a_set(experiment: Experiment, tmp_path: Path) -> None:
    folder = written(tmp_path / "SciFact")
    with pytest.raises(UsageError, match=r"scifact and path:.* would both be 'SciFact' in results; state another"):
        chosen_datasets(experiment, ["scifact", f"path:{folder}"])


def test_graded_judgments_without_a_stated_level_are_noted(
    experiment: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "toy")
    (dataset,) = chosen_datasets(experiment, [f"path:{folder}"])
    load_reporting(dataset)
    assert " ".join(capsys.readouterr().err.split()) == (
        "warning: grades up to 3 in toy: mrr@10, map, recall@100 count grade 1 as relevant; TREC DL counts from "
        f"2: state relevance_level in {folder}/collection.json"
    )
    known = (
        "apidocs",
        f"path:{written(tmp_path / 'stated', relevance_level=1)}",
        f"path:{written(tmp_path / 'nfcorpus')}",
    )
    assert [relevance_level_note(name, load_collection(name, "test")) for name in known] == [None] * 3


RUN = {"q1": {"a": 2.0, "b": 1.0}, "q2": {"a": 2.0, "b": 1.0}}


def found(level: int) -> Outcome:
    scores = score_run(GRADED.qrels, RUN, ("ndcg@10", "mrr"), level)
    return Outcome("ndcg@10", RUN, GRADED.qrels, GRADED.queries, scores, relevance_level=level)


def test_exported_judgments_carry_a_level_other_than_1(tmp_path: Path) -> None:
    identity, store = make_result("joint_r8", 0, [0.5, 0.5], dataset="toy").identity, ResultStore(tmp_path)
    spec = Evaluation("joint_r8", 0, "retrieval", "toy", identity, hashes={}, config={})
    assert store.write(spec, found(2)).relevance_level == 2
    assert read_plain(tmp_path / "qrels" / "toy-test.qrels.json") == {"relevance_level": 2}
    store.write(spec, found(1))
    assert [path.name for path in (tmp_path / "qrels").iterdir()] == ["toy-test.qrels"]


def test_dense_retrieval_keeps_the_level(tmp_path: Path) -> None:
    stated = replace(GRADED, relevance_level=2, level_stated=True)
    data = dense_collection(stated, DenseConfig())
    scores = Outcome.of_run(data.test, RUN, "ndcg@10", retrieval_metrics(DenseConfig())).scores
    assert scores.per_query["map"] == {"q1": 0.0, "q2": 0.5}
    assert scores.per_query["recall_of_retrieved@10"] == {"q1": 0.0, "q2": 1.0}
