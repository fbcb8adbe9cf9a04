"""What names mean: tiers, collections, the document left out as the query itself; systems and their kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mteb
import pytest
import torch
from support.experiments import tiny_experiment, tiny_experiment_dict, zero_shot
from support.model_server import serve
from support.tiny_models import save_tiny_cross_encoder
from support.toy_collections import SMALL, invented, write_invented, write_msmarco

from unimoe.config import Experiment
from unimoe.config.files import parse_config
from unimoe.core.console import Steps
from unimoe.core.errors import DataError, UsageError
from unimoe.data.collection import Document
from unimoe.data.published import CQADUPSTACK
from unimoe.data.source import find_source
from unimoe.evaluation.chosen import load_extra_systems, planned_extra_systems
from unimoe.evaluation.datasets import Dataset, LoadedDataset, chosen_datasets, tier_datasets
from unimoe.evaluation.evaluate import Evaluator
from unimoe.evaluation.store import ResultStore
from unimoe.evaluation.tasks.embed import describe
from unimoe.formats.runs import read_run
from unimoe.metrics.scoring import dataset_group
from unimoe.results import run_beside

pytestmark = pytest.mark.usefixtures("one_thread", "tmp_cache")
CPU = torch.device("cpu")


def named(collection: str, split: str = "test") -> Dataset:
    return Dataset(collection, split)


def test_full_is_beirs_fifteen_sets_with_cqadupstack_counting_once(experiment: Experiment) -> None:
    (bundled,), datasets = (tier_datasets(experiment, tier) for tier in ("bundled", "full"))
    assert (bundled.collection, bundled.settings.depth, bundled.queries, bundled.pool) == ("apidocs", 4, 6, 40)
    groups = [dataset_group(dataset.collection) for dataset in datasets]
    assert len({dataset.collection for dataset in datasets}) == len(datasets) == 26
    assert (len(set(groups)), groups.count("cqadupstack")) == (15, len(CQADUPSTACK))


@pytest.mark.parametrize(
    ("collection", "split", "metric"),
    [
        ("msmarco", "dev", "mrr@10"),
        ("path:data/msmarco-dev-positives/", "test", "mrr@10"),
        ("ir_datasets:msmarco-passage/dev/small", "dev", "mrr@10"),
        ("msmarco", "test", "ndcg@10"),
        ("ir_datasets:beir/msmarco/test", "dev", "ndcg@10"),
        ("nanobeir:MSMARCO", "test", "ndcg@10"),
        ("path:msmarco/scifact", "test", "ndcg@10"),
        ("scifact", "dev", "ndcg@10"),
    ],
)
def test_the_main_metric_is_mrr_on_msmarcos_dev_queries_alone(collection: str, split: str, metric: str) -> None:
    assert named(collection, split).main_metric == metric


@pytest.mark.parametrize(
    ("name", "collection", "split"),
    [
        ("MSMARCO", "msmarco", "dev"),
        ("msmarco@test", "msmarco", "test"),
        ("msmarco-dev-positives", "msmarco-dev-positives", "test"),
        ("nanobeir:MSMARCO", "nanobeir:MSMARCO", "test"),
        ("fiqa2018", "fiqa", "test"),
        ("nanobeir:scifact", "nanobeir:SciFact", "test"),
        ("path:data/x@dev", "path:data/x", "dev"),
        ("path:da@ta/x", "path:da@ta/x", "test"),
        ("path:data/msmarco", "path:data/msmarco", "dev"),
        ("path:passages", "path:passages", "dev"),
        ("ir_datasets:beir/fiqa/dev@dev", "ir_datasets:beir/fiqa/dev", "dev"),
    ],
)
def test_a_name_says_which_collection_and_split(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, collection: str, split: str
) -> None:
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for folder in ("msmarco-dev-positives", "data/x", "data/msmarco", "da@ta/x"):
        (tmp_path / folder).mkdir(parents=True)
    write_msmarco(tmp_path / "passages", SMALL)  # MS MARCO's own files have only dev
    (dataset,) = chosen_datasets(experiment, [name])
    assert (dataset.collection, dataset.split) == (collection, split)
    with pytest.raises(DataError, match="nowhere: no such folder"):  # before the other is evaluated
        chosen_datasets(experiment, [name, "path:nowhere"])


@pytest.mark.parametrize(
    ("collection", "task"),
    [
        ("FiQA2018", "FiQA2018"),
        ("path:my/FiQA", "FiQA2018"),
        ("ir_datasets:msmarco-passage/dev/small", "MSMARCO"),
        ("ir_datasets:beir/cqadupstack/tex", "CQADupstackTexRetrieval"),
        ("trec-covid", "TRECCOVID"),
        ("mteb:BelebeleRetrieval:kor_Hang-kor_Hang", "BelebeleRetrieval"),
        ("nanobeir:climatefever", "NanoClimateFeverRetrieval"),
    ],
)
def test_the_query_itself_is_left_out_where_mtebs_task_does_so(collection: str, task: str) -> None:
    source, name = find_source(collection)
    assert source.mteb_task(name) == task
    assert named(collection).exclude_self is bool(getattr(mteb.get_task(task), "ignore_identical_ids", False))


def test_a_result_of_another_rule_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIMOE_DATA", str(tmp_path))
    experiment = tiny_experiment(tmp_path)
    system = replace(zero_shot(experiment), tasks=("embedding",))
    left_out = {"identical_ids": "left out"}
    for name, rule in (("fiqa", left_out), ("arguana", left_out), ("scifact", {})):
        made = invented(name=name)
        corpus = {**made.corpus, "q0": Document("", made.queries["q0"])}
        write_invented(tmp_path / name, replace(made, corpus=corpus))
        data = LoadedDataset(chosen_datasets(experiment, [name])[0])
        assert ("q0" not in data.candidates["q0"]) is bool(rule)
        spec = describe(replace(system, output_dir=tmp_path / name), "embedding", data)
        store = ResultStore(tmp_path / name)
        Evaluator().take(spec, Steps(1))
        assert ("q0" not in read_run(run_beside(store.path(spec)))["q0"]) is bool(rule)
        before = replace(spec, hashes={key: v for key, v in spec.hashes.items() if key != "identical_ids"})
        assert spec.hashes == before.hashes | rule
        assert store.is_done(spec)
        assert store.is_done(before) is not bool(rule)


def experiment_with(folder: Path, systems: dict[str, str], **sections: Any) -> Experiment:
    config = tiny_experiment_dict(folder) | sections
    config["evaluation"] = config["evaluation"] | {"systems": systems}
    return parse_config(Experiment, config, source="tiny")


def test_a_model_behind_a_server_is_asked_about_the_probe_alone_and_planned_with_its_price(tmp_path: Path) -> None:
    write_invented(tmp_path / "toy", invented(documents=20, queries=5))
    save_tiny_cross_encoder(tmp_path / "ce")
    asked = {"api": "tei", "model": "org/tiny", "batch": 8, "price_per_million_tokens": 2.0}
    with serve() as server:
        names = {"remote": server.base("tei"), "local": f"cross-encoder:{tmp_path / 'ce'}"}
        found = experiment_with(tmp_path, names, served=asked)
        systems = load_extra_systems(found, CPU, torch.float32)
        probed = server.pairs
        (dataset,) = chosen_datasets(found, [f"path:{tmp_path / 'toy'}"])
        data = LoadedDataset(dataset)
        remote, local = planned_extra_systems(systems, data)
        assert server.pairs == probed > 0
    pairs = sum(map(len, data.candidates.values()))
    assert remote.startswith("beside the arms: remote (served:tei:")
    assert f", {pairs} pairs to rerank, " in remote
    assert ", price about " in remote
    assert local.endswith(f"), {pairs} pairs to rerank")
    assert [system.name for system in systems] == ["remote", "local"]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("crossencoder:ce", UsageError, r"^evaluation\.systems\.other: crossencoder:ce: no kind of model"),
        (
            "./served:abc",
            DataError,
            r"^evaluation\.systems\.other: .*holds neither modules.json nor config.json",
        ),  # a folder
        ("cross-encoder:./nowhere", DataError, r"^evaluation\.systems\.other: '\./nowhere': no such folder"),
        ("http://127.0.0.1:9", UsageError, r"^evaluation\.systems\.other: http://127\.0\.0\.1:9: say what it speaks"),
    ],
)
def test_what_is_no_model_is_named_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: type[Exception], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("served:abc").mkdir()
    with pytest.raises(kind, match=words):
        load_extra_systems(experiment_with(tmp_path, {"other": name}), CPU, torch.float32)
