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
from support.sources import IrDocument, IrQrel, IrQuery, write_beir

from unimoe.config import Experiment
from unimoe.config.files import parse_config
from unimoe.core.errors import UsageError
from unimoe.data.catalog import load_collection
from unimoe.data.collection import Collection, Document
from unimoe.data.source import find_source
from unimoe.evaluation.retrieval_eval import dense_collection
from unimoe.evaluation.spec import Evaluation, Outcome
from unimoe.evaluation.store import ResultStore
from unimoe.evaluation.tiers.datasets import chosen_datasets
from unimoe.evaluation.tiers.loading import load_reporting, relevance_level_note
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


class TestStated:
    def test_a_folder_states_name_and_level(self, tmp_path: Path) -> None:
        found = load_collection(f"path:{written(tmp_path / 'toy', name='dl20', relevance_level=2)}", "test")
        assert (found.name, found.relevance_level, found.level_stated) == ("dl20", 2, True)

    def test_parts_of_a_collection_keep_it(self) -> None:
        stated = replace(GRADED, relevance_level=2, level_stated=True)
        for part in (stated.sample_queries(1), *stated.split_queries(0.5), stated.pool(2)):
            assert (part.relevance_level, part.level_stated) == (2, True)


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
    dataset = SimpleNamespace(
        docs_iter=lambda: iter([IrDocument("d1", "T", "one")]),
        queries_iter=lambda: iter([IrQuery("q1", "first")]),
        qrels_iter=lambda: iter([IrQrel("q1", "d1", 3)]),
    )
    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=lambda name: dataset))
    found = load_collection("ir_datasets:msmarco-passage/trec-dl-2020/judged", "test")
    assert (found.name, found.relevance_level, found.level_stated) == ("msmarco-passage/trec-dl-2020/judged", 2, True)


class TestNames:
    def test_a_folder_may_not_take_the_name_of_a_set(self, experiment: Experiment, tmp_path: Path) -> None:
        folder = written(tmp_path / "SciFact")
        with pytest.raises(UsageError, match=r"scifact and path:.* would both be 'SciFact' in results; state another"):
            chosen_datasets(experiment, ["scifact", f"path:{folder}"])


class TestNote:
    def test_binary_measures_of_graded_judgments_without_a_stated_level(
        self, experiment: Experiment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = written(tmp_path / "toy")
        (dataset,) = chosen_datasets(experiment, [f"path:{folder}"])
        load_reporting(dataset)
        assert " ".join(capsys.readouterr().err.split()) == (
            "warning: grades up to 3 in toy: mrr@10, map, recall@100 count grade 1 as relevant; TREC DL counts from "
            f"2: state relevance_level in {folder}/collection.json"
        )

    @pytest.mark.parametrize(("name", "stated"), [("toy", {"relevance_level": 1}), ("nfcorpus", {})])
    def test_silent_where_the_level_is_stated_or_known(self, tmp_path: Path, name: str, stated: dict[str, Any]) -> None:
        source = f"path:{written(tmp_path / name, **stated)}"
        assert relevance_level_note(source, load_collection(source, "test")) is None

    def test_silent_on_the_bundled_collection(self) -> None:
        assert relevance_level_note("apidocs", load_collection("apidocs", "test")) is None


RUN = {"q1": {"a": 2.0, "b": 1.0}, "q2": {"a": 2.0, "b": 1.0}}


def found(level: int) -> Outcome:
    scores = score_run(GRADED.qrels, RUN, ("ndcg@10", "mrr"), level)
    return Outcome("ndcg@10", RUN, GRADED.qrels, GRADED.queries, scores, relevance_level=level)


class TestResults:
    def test_exported_judgments_carry_a_level_other_than_1(self, tmp_path: Path) -> None:
        identity, store = make_result("joint_r8", 0, [0.5, 0.5], dataset="toy").identity, ResultStore(tmp_path)
        spec = Evaluation("joint_r8", 0, "retrieval", "toy", identity, hashes={}, config={})
        assert store.write(spec, found(2)).relevance_level == 2
        assert read_plain(tmp_path / "qrels" / "toy-test.qrels.json") == {"relevance_level": 2}
        store.write(spec, found(1))
        assert [path.name for path in (tmp_path / "qrels").iterdir()] == ["toy-test.qrels"]


def test_dense_retrieval_keeps_the_level(tmp_path: Path) -> None:
    from unimoe.config import DenseConfig
    from unimoe.evaluation.retrieval_eval import retrieval_outcome

    stated = replace(GRADED, relevance_level=2, level_stated=True)
    data = dense_collection(stated, DenseConfig())
    scores = retrieval_outcome(data.test, RUN, DenseConfig()).scores
    assert scores.per_query["map"] == {"q1": 0.0, "q2": 0.5}
    assert scores.per_query["recall_of_retrieved@10"] == {"q1": 0.0, "q2": 1.0}
